"""Engines that the tests of this directory share: starting a jail takes a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CellEnd, CellRequest
from standfast.sandbox.cpython.cell_engine import CPythonCells


class Functions:
    """The functions that these cells may call."""

    def __init__(self, *names: str) -> None:
        self._all = {name: Capability(name=name, description="", input_schema={}) for name in names}

    def __contains__(self, name: object, /) -> bool:
        return name in self._all

    def names(self) -> list[str]:
        return list(self._all)

    def capability(self, name: str) -> Capability:
        return self._all[name]

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return "did you mean add?" if name == "ad" else None


FUNCTIONS = Functions("add", "fetch", "finish", "now_or_never")
Request = Callable[..., CellRequest]


def make_request(code: str, **options: Any) -> CellRequest:
    limits = SessionLimits(**{"wall_ms": 30_000, "cpu_ms": 20_000, **options.pop("limits", {})})
    return CellRequest(key=options.pop("key", "s"), code=code, limits=limits, functions=FUNCTIONS, **options)


@pytest.fixture(scope="session")
def request_of() -> Request:
    """Return a request to run code, with limits that only broken code reaches."""
    return make_request


@pytest.fixture(scope="session")
def engine() -> Iterator[CPythonCells]:
    cells = CPythonCells(capacity=2, kind="bubblewrap")
    yield cells
    cells.close()


@pytest.fixture(scope="session")
def other() -> Iterator[CPythonCells]:
    """Another engine with its own processes, as another host process would have."""
    cells = CPythonCells(capacity=2, kind="bubblewrap")
    yield cells
    cells.close()


@pytest.fixture(scope="session")
def locked() -> Iterator[CPythonCells]:
    """An engine without namespaces."""
    cells = CPythonCells(capacity=2, kind="landlock")
    yield cells
    cells.close()


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
def jailed(request: pytest.FixtureRequest, engine: CPythonCells, locked: CPythonCells) -> CPythonCells:
    """An engine of each kind of jail."""
    return engine if request.param == "bubblewrap" else locked


class Session:
    """One session of an engine, run after run."""

    def __init__(self, cells: CPythonCells, key: str) -> None:
        self.cells = cells
        self.key = key
        self.state = b""

    def __call__(self, code: str, **options: Any) -> CellEnd:
        """Run code that makes no calls, or only calls that are answered immediately."""
        end = self.cells.open(make_request(code, key=self.key, state=self.state, **options)).start()
        assert isinstance(end, CellEnd), end
        self.state = end.state if end.state is not None else self.state
        return end


@pytest.fixture(scope="module")
def session(engine: CPythonCells, request: pytest.FixtureRequest) -> Session:
    """A session that all tests of a file share."""
    return Session(engine, request.module.__name__)


@pytest.fixture(scope="module")
def jail_session(jailed: CPythonCells, request: pytest.FixtureRequest) -> Session:
    """The same, in each kind of jail."""
    return Session(jailed, request.module.__name__)
