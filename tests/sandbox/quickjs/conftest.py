"""Fixtures for the tests of the TypeScript engine: one engine per module, and helpers that open cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standfast.errors import ErrorObject
from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CellEnd, CellPause, CellRequest, CellStep
from standfast.sandbox.cell_lifecycle import SteppedCell
from standfast.sandbox.quickjs.cell_engine import QuickJsCells

LOOKUP_SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "string"}},
    "required": ["x"],
}


class Functions:
    """The functions that these cells may call."""

    def __init__(self, *names: str) -> None:
        self._all = {name: Capability(name=name, description="", input_schema={}) for name in names}
        self._all["lookup"] = Capability(name="lookup", description="", input_schema=LOOKUP_SCHEMA)

    def __contains__(self, name: object, /) -> bool:
        return name in self._all

    def names(self) -> list[str]:
        return list(self._all)

    def capability(self, name: str) -> Capability:
        return self._all[name]

    def is_async(self, name: str) -> bool:
        return True

    def suggest(self, name: str) -> str | None:
        return "did you mean add?" if name == "ad" else None


FUNCTIONS = Functions("add", "fetchIt", "finish", "nowOrNever")


class Cells:
    """Opens cells on an engine and returns their outcomes."""

    def __init__(self, engine: QuickJsCells) -> None:
        self.engine = engine

    def request(self, code: str, **options: Any) -> CellRequest:
        limits = SessionLimits(**{"wall_ms": 30_000, "cpu_ms": 20_000, **options.pop("limits", {})})
        functions = options.pop("functions", FUNCTIONS)
        key = options.pop("key", "s")
        return CellRequest(key=key, code=code, limits=limits, functions=functions, **options)

    def open(self, code: str, **options: Any) -> SteppedCell:
        return self.engine.open(self.request(code, **options))

    def run(self, code: str, **options: Any) -> CellEnd:
        """Run a cell that makes no calls."""
        return self.ended(self.open(code, **options).start())

    def value(self, code: str, **options: Any) -> Any:
        """Return the result of a cell that must not fail."""
        end = self.run(code, **options)
        assert end.error is None, end.error
        return end.result

    def fails(self, code: str, **options: Any) -> ErrorObject:
        """Return the error of a cell that must fail."""
        end = self.run(code, **options)
        assert end.error is not None, end.result
        return end.error

    @staticmethod
    def ended(step: CellStep) -> CellEnd:
        assert isinstance(step, CellEnd), step
        return step

    @staticmethod
    def is_pause(step: CellStep) -> bool:
        return isinstance(step, CellPause)

    @staticmethod
    def made(step: CellStep) -> list[tuple[int, str]]:
        """Return the number and name of each call of a pause."""
        assert isinstance(step, CellPause), step
        return [(call.number, call.name) for call in step.calls]

    def kept(self, code: str, **options: Any) -> bytes:
        """Return the state that a cell leaves."""
        end = self.run(code, **options)
        assert end.error is None, end.error
        assert end.state is not None
        return end.state


@pytest.fixture(scope="module")
def cells() -> Iterator[Cells]:
    engine = QuickJsCells(capacity=2)
    yield Cells(engine)
    engine.close()


@pytest.fixture(scope="module")
def other() -> Iterator[Cells]:
    """Another engine with its own processes, as another host process would have."""
    engine = QuickJsCells(capacity=2)
    yield Cells(engine)
    engine.close()


@pytest.fixture
def spare() -> Iterator[Callable[..., Cells]]:
    """Return a function that creates engines for a single test."""
    made: list[QuickJsCells] = []

    def make(capacity: int = 2) -> Cells:
        made.append(QuickJsCells(capacity=capacity))
        return Cells(made[-1])

    yield make
    for engine in made:
        engine.close()
