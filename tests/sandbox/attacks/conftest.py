"""A host to attack (a secret, listening sockets, tools that log their calls) and the checks afterwards."""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast import BlockingSandbox, RunResult, tool
from standfast.errors import Code
from standfast.model.capability import Capability
from standfast.sandbox.cpython import cell_engine as cpython

sys.path.insert(0, str(Path(__file__).parent))

SECRET = "standfast-test-secret-5f2c"
LIMITS = {"cpu_ms": 200, "wall_ms": 900, "memory_mb": 32}
GRACE_S = 1.0
"""SPEC 5: no guest code can hang, kill or slow the host for longer than its limit and this grace period."""

_noted: list[Any] = []


@tool(side_effect="read")
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(side_effect="read")
def echo(value: Any) -> Any:
    """Return the argument."""
    return value


@tool(side_effect="read")
def note(value: Any = None) -> int:
    """Record a call."""
    _noted.append(value)
    return len(_noted)


@tool(approval="manual")
def pay(amount: int = 0) -> str:
    """Pay; guest code must not do so without an approval."""
    _noted.append(("paid", amount))
    return "paid"


TOOLS = [add, echo, note, pay]


class Target:
    """The host of one engine, and the attacks on it."""

    def __init__(self, box: BlockingSandbox, one: str, more: str) -> None:
        self.box = box
        self._keep, self._more = one, more

    def attack(self, code: str, session: str, **options: Any) -> RunResult:
        """Run hostile code, and check that a typed result comes back in time."""
        options.setdefault("limits", LIMITS)
        result, took = self._timed(code, session, options)
        allowed = options["limits"].get("wall_ms", 5_000) / 1000 + GRACE_S
        for _ in range(3):  # a busy machine is slow now and then; one of several attempts must be in time
            if took > allowed:
                result, took = self._timed(code, session, options)
        assert took <= allowed, took
        assert result.error is None or result.error.code in set(Code), result.error
        return result

    def keep(self, session: str) -> None:
        """Bind a variable in a session that an attack must not destroy."""
        kept = self.box.run(self._keep, session=session)
        assert kept.error is None, kept.error

    def has_kept(self, session: str) -> None:
        again = self.box.run(self._more, session=session)
        assert (again.status, again.result) == ("ok", 42), again.error

    def _timed(self, code: str, session: str, options: dict[str, Any]) -> tuple[RunResult, float]:
        began = time.monotonic()
        result = self.box.run(code, session=session, **options)
        return result, time.monotonic() - began

    def is_well(self, session: str) -> None:
        """Check that the session still answers, and that other sessions still work."""
        self.box.run("1 + 1", session=session, limits=LIMITS)
        self.box.destroy(session)
        assert self.box.run("1 + 1", session="bystander").result == 2


def descendants() -> set[int]:
    """Return the descendant processes of this process."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (fields := _stat(int(name))):
            parents[int(name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@pytest.fixture(scope="module")
def nothing_left() -> Iterator[None]:
    """Check that all processes of sandboxes opened after this are gone once the sandboxes are closed."""
    before = descendants()
    yield
    until = time.monotonic() + 10
    while left := {pid for pid in descendants() - before if _stat(pid)[:1] != ["Z"]}:
        assert time.monotonic() < until, left


@pytest.fixture
def noted() -> list[Any]:
    """Return the arguments of the tools in this test."""
    _noted.clear()
    return _noted


@pytest.fixture(scope="module")
def typescript(nothing_left: None) -> Iterator[Target]:
    """A host that runs TypeScript."""
    with BlockingSandbox(tools=TOOLS, language="typescript", workers=2) as box:
        yield Target(box, "var mine = 41", "mine + 1")


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def jail(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Target]:
    """A host that runs CPython, in each kind of jail."""
    yield from _jail(request.param)


@pytest.fixture(scope="module")
def any_jail(nothing_left: None) -> Iterator[Target]:
    """A host that runs CPython in one kind of jail, for attacks that do not depend on the kind."""
    yield from _jail("bubblewrap")


def _jail(kind: Any) -> Iterator[Target]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpython, "CPythonCells", functools.partial(cpython.CPythonCells, kind=kind))
        with BlockingSandbox(tools=TOOLS, engine="cpython", workers=2) as box:
            yield Target(box, "mine = 41", "mine + 1")


class Outside:
    """Targets outside the sandbox: a file, environment variables, sockets."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "secret"
        self.file.write_text(SECRET)
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(directory / "unix"))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0standfast-attack-{os.getpid()}")
        for one in (self.unix, self.abstract):
            one.listen()
        for one in self._sockets():
            one.setblocking(False)
        self._before = self._told()

    def _sockets(self) -> list[socket.socket]:
        return [self.tcp, self.udp, self.unix, self.abstract]

    def _told(self) -> tuple[Any, ...]:
        found = self.file.stat()
        names = sorted(path.name for path in self.file.parent.iterdir())
        return found.st_mode, found.st_uid, found.st_mtime_ns, found.st_nlink, names, os.getpriority(0, 0)

    def is_untouched(self) -> None:
        """Assert that no attack read, wrote, reached or sent anything."""
        assert self.file.read_text() == SECRET
        assert self._told() == self._before
        for one in (self.tcp, self.unix, self.abstract):
            with pytest.raises(BlockingIOError):
                one.accept()
        with pytest.raises(BlockingIOError):
            self.udp.recv(1)

    def places(self) -> dict[str, Any]:
        """Return the paths, ports and process id that attacks are aimed at."""
        return {
            "file": self.file, "folder": self.file.parent, "pid": os.getpid(),
            "port": self.tcp.getsockname()[1], "udp": self.udp.getsockname()[1],
            "abstract": f"standfast-attack-{os.getpid()}",
        }  # fmt: skip

    def close(self) -> None:
        for one in self._sockets():
            one.close()


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    made = Outside(tmp_path_factory.mktemp("outside"))
    os.environ["STANDFAST_TEST_SECRET"] = SECRET
    yield made
    del os.environ["STANDFAST_TEST_SECRET"]
    made.close()


class Functions:
    """The functions that cells may call when a test drives an engine directly."""

    def __init__(self) -> None:
        self._all = {name: Capability(name=name, description="", input_schema={}) for name in ("add", "pay")}

    def __contains__(self, name: object, /) -> bool:
        return name in self._all

    def names(self) -> list[str]:
        return list(self._all)

    def capability(self, name: str) -> Capability:
        return self._all[name]

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return None


@pytest.fixture(scope="session")
def chosen(request: pytest.FixtureRequest) -> Callable[[str, str], list[str]]:
    """Return a function that lists the selected cases of a file and an engine."""

    def names(file: str, engine: str) -> list[str]:
        taken = [getattr(item, "callspec") for item in request.session.items if str(item.path) == file]  # noqa: B009
        return [each.params["name"] for each in taken if each.params["engine"] == engine]

    return names


@pytest.fixture(scope="session")
def functions() -> Functions:
    return Functions()


@pytest.fixture(scope="session")
def secret() -> str:
    return SECRET


@pytest.fixture(scope="session")
def children() -> Callable[[], set[int]]:
    """Return a function that lists the descendant processes of this process."""
    return descendants
