"""Engines by name, shipped with Standfast or offered by other packages, and a sandbox's configuration.

A package offers an engine as an entry point of the group `standfast.engines`: an `EngineKind`. To add one,
derive a class from `cell_lifecycle.SteppedCells` and implement `ports.cell_stepper`::

    [project.entry-points."standfast.engines"]
    lua = "standfast_lua:KIND"

Rules
-----
1. Finding a kind imports no engine and starts no process. An engine is opened when one of its sessions is
   first used: a data directory may hold sessions of engines that cannot run here.
2. A name that is stored with a session keeps its meaning: no package can replace a shipped engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import CodeExecutionUnavailable, InvalidArgument
from standfast.model.canonical import Json
from standfast.model.code import EngineName, Language
from standfast.model.limits import SessionLimits
from standfast.ports.clock import Clock, SystemClock
from standfast.ports.code_engine import CodeEngine
from standfast.ports.trace import TraceSink

if TYPE_CHECKING:
    from standfast.sandbox.monty.workers import MontyWorkers

GROUP: Final = "standfast.engines"


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `EngineKind.open`.

    `capacity` is the number of worker processes, `packages` are those that guest code may import. `workers`
    are Monty's, if the host already has some. `engine` returns an engine by name, for one built on others.
    """

    capacity: int
    packages: tuple[str, ...]
    workers: MontyWorkers | None
    engine: Callable[[str], CodeEngine]


class EngineKind(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that can be opened by name.

    `version` returns the build: a session stored by another build is refused. `open` raises
    `CodeExecutionUnavailable`, with a hint that says what to install, if the engine cannot run here.
    """

    language: Language
    version: Callable[[], str]
    open: Callable[[EngineSettings], CodeEngine]


def monty_version() -> str:
    from standfast.sandbox.monty.workers import ENGINE_VERSION

    return ENGINE_VERSION


def open_monty(settings: EngineSettings) -> CodeEngine:
    _require("pydantic-monty", "Python on Monty", "pydantic_monty")
    from standfast.sandbox.monty.cell_engine import MontyCells

    return MontyCells(settings.workers, capacity=settings.capacity)


def cpython_version() -> str:
    from standfast.sandbox.cpython.state import FORMAT, VERSION

    return f"{VERSION}/{FORMAT}"


def open_cpython(settings: EngineSettings) -> CodeEngine:
    from standfast.sandbox.cpython.cell_engine import CPythonCells

    return CPythonCells(capacity=settings.capacity, packages=settings.packages)


def open_auto(settings: EngineSettings) -> CodeEngine:
    from standfast.sandbox.auto_python import AutoPython
    from standfast.sandbox.monty.cell_engine import MontyCells

    monty = settings.engine(EngineName.MONTY)
    assert isinstance(monty, MontyCells)
    return AutoPython(monty, settings.engine(EngineName.CPYTHON))


def quickjs_version() -> str:
    from standfast.sandbox.quickjs.build import build_id

    return build_id().hex()


def open_quickjs(settings: EngineSettings) -> CodeEngine:
    modules = ("wasmtime", "quickjs_rs", "tree_sitter", "tree_sitter_typescript")
    _require("standfast[typescript]", "TypeScript", *modules)
    from standfast.sandbox.quickjs.cell_engine import QuickJsCells

    return QuickJsCells(capacity=settings.capacity)


def _require(package: str, what: str, *modules: str) -> None:
    """Raise `CodeExecutionUnavailable` if any of *modules*, which *package* installs, is missing."""
    import importlib.util

    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CodeExecutionUnavailable(
            f"{what} needs packages that are not installed: {', '.join(missing)}",
            hint=f"pip install '{package}'",
        )


MONTY: Final = EngineKind(language=Language.PYTHON, version=monty_version, open=open_monty)
CPYTHON: Final = EngineKind(language=Language.PYTHON, version=cpython_version, open=open_cpython)
AUTO: Final = EngineKind(
    language=Language.PYTHON, version=lambda: f"{monty_version()} {cpython_version()}", open=open_auto
)
QUICKJS: Final = EngineKind(language=Language.TYPESCRIPT, version=quickjs_version, open=open_quickjs)

KINDS: Final[dict[str, EngineKind]] = {
    EngineName.MONTY: MONTY,
    EngineName.CPYTHON: CPYTHON,
    EngineName.AUTO: AUTO,
    EngineName.QUICKJS: QUICKJS,
}
"""The shipped kinds, and those of other packages that were looked up: finding an entry point is slow."""


def find_kind(name: str) -> EngineKind | None:
    """Return the engine kind of this name; None if no installed package offers it."""
    if name not in KINDS:
        from importlib import metadata  # slow to import

        for entry in metadata.entry_points(group=GROUP, name=name):
            package = entry.dist.name if entry.dist is not None else entry.value
            try:
                kind = entry.load()
            except Exception as error:
                raise CodeExecutionUnavailable(
                    f"the engine {name!r} cannot be imported: {error}",
                    hint=f"pip install --upgrade '{package}'",
                ) from error
            if not isinstance(kind, EngineKind):
                raise CodeExecutionUnavailable(
                    f"the engine {name!r} of {package} is {type(kind).__name__}, not an EngineKind",
                    hint=f"point the entry point {entry.value} to an EngineKind",
                )
            KINDS[name] = kind
            break
    return KINDS.get(name)


def kind_of(name: str) -> EngineKind:
    """Return the engine kind of this name; raise `InvalidArgument` if there is none."""
    found = find_kind(name)
    if found is None:
        from importlib import metadata

        names = sorted({*KINDS, *(entry.name for entry in metadata.entry_points(group=GROUP))})
        raise InvalidArgument(f"there is no engine {name!r}", hint=f"use one of {', '.join(names)}")
    return found


class OpenEngine(msgspec.Struct, frozen=True):
    """An opened engine and its version, as in `EngineKind`."""

    version: str
    cells: CodeEngine


class CodeEngines:
    """The engines of one host, each opened at its first use. `workers` are Monty's."""

    def __init__(
        self, workers: MontyWorkers | None = None, capacity: int = 8, packages: tuple[str, ...] = ()
    ) -> None:
        self._settings = EngineSettings(
            capacity=capacity, packages=packages, workers=workers, engine=self.named
        )
        self._opened: dict[str, OpenEngine] = {}
        self._opening = threading.RLock()  # opening an engine may open others

    def get(self, name: str) -> OpenEngine:
        """Return the engine of this name; raise `CodeExecutionUnavailable` if it cannot run here."""
        if (found := self._opened.get(name)) is not None:
            return found
        with self._opening:
            if name not in self._opened:
                kind = find_kind(name)
                if kind is None:
                    raise CodeExecutionUnavailable(
                        f"the engine {name!r} is not installed",
                        hint=f"install the package that offers it as an entry point of the group {GROUP}",
                    )
                cells = kind.open(self._settings)  # before `version()`: its error says what to install
                self._opened[name] = OpenEngine(kind.version(), cells)
            return self._opened[name]

    def named(self, name: str) -> CodeEngine:
        return self.get(name).cells

    def build(self, name: str) -> str:
        """Return *name* followed by the engine's version; *name* alone if the version is unknown here."""
        from standfast.sandbox.quickjs.build import GuestMissing

        try:
            kind = find_kind(name)
            return name if kind is None else f"{name} {kind.version()}"
        except (CodeExecutionUnavailable, ImportError, GuestMissing):
            return name

    @property
    def opened(self) -> bool:
        """Whether any engine has been opened."""
        return bool(self._opened)

    def forget(self, session_id: str) -> None:
        """Close the workers that are kept warm for a session. Blocks."""
        for engine in list(self._opened.values()):
            engine.cells.forget(session_id)

    def close(self) -> None:
        """End the processes of all engines."""
        for engine in list(self._opened.values()):
            engine.cells.close()


class SandboxConfig(msgspec.Struct, frozen=True):
    """The configuration of a sandbox.

    `host` describes this process's tools to a process that resumes its waiting runs. `engine` runs the
    sessions of its language; by default an existing session runs on its own engine, and a new one on the
    default engine of its language. Guest code may import `packages` if its engine can.
    """

    snapshot_key: bytes
    limits: SessionLimits = msgspec.field(default_factory=SessionLimits)
    approval_ttl_ms: int = 24 * 3600 * 1000
    keep_journals_ms: int = 0
    workers: int = 8
    engine: str | None = None
    packages: tuple[str, ...] = ()
    max_code_bytes: int = 256 << 10
    max_input_bytes: int = 16 << 20
    clock: Clock = msgspec.field(default_factory=SystemClock)
    host: dict[str, Json] = msgspec.field(default_factory=dict)
    trace: TraceSink | Sequence[TraceSink] | None = None
