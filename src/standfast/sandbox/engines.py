"""The engines that there are, by name, and those that a sandbox has opened.

Rules
-----
1. An engine is made when a session of it is first used: a data directory may hold sessions of engines that
   cannot run here, and everything that does not run them works.
2. A name, once stored with a session, keeps its meaning.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from standfast.errors import CodeExecutionUnavailable, InvalidArgument
from standfast.model.language import USUAL_ENGINE, EngineName, Language
from standfast.ports.clock import Clock
from standfast.ports.code_engine import CodeEngine
from standfast.sandbox.monty.workers import Workers
from standfast.sandbox.session_engine import SessionEngine
from standfast.sandbox.watchdog import Watchdog
from standfast.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of. `workers` are Monty's, which approval rules need in any case."""

    registry: ToolRegistry
    workers: Workers
    watchdog: Watchdog
    clock: Clock
    capacity: int
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine that can be asked for by name. Where it cannot run, `make` raises why."""

    language: Language
    make: Callable[[EngineParts], SessionEngine]


class Engines:
    """The engines of one sandbox, each opened at its first use."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._opened: dict[str, SessionEngine] = {}
        self._opening = threading.Lock()

    def get(self, name: str) -> SessionEngine:
        """The engine of this name; one that cannot be used here is a typed error."""
        found = self._opened.get(name)
        if found is not None:
            return found
        with self._opening:
            if name not in self._opened:
                self._opened[name] = kind_of(name).make(self._parts)
            return self._opened[name]

    def forget(self, session_id: str) -> None:
        """Drop what is kept warm for a session."""
        for engine in list(self._opened.values()):
            engine.forget(session_id)

    def close(self) -> None:
        """End the processes of all engines."""
        for engine in list(self._opened.values()):
            engine.close()


def kind_of(name: str) -> EngineKind:
    """The kind of engine that has this name."""
    found = KINDS.get(name)
    if found is None:
        raise InvalidArgument(f"there is no engine {name!r}", hint=f"there are {', '.join(KINDS)}")
    return found


def usual_engine(language: Language) -> str:
    """The engine that runs a language unless another is asked for."""
    return USUAL_ENGINE[language]


def _monty(parts: EngineParts) -> SessionEngine:
    from standfast.sandbox.monty.session_engine import MontySessions

    return MontySessions(parts.workers, parts.registry, parts.watchdog)


def _quickjs(parts: EngineParts) -> SessionEngine:
    _require("typescript", "TypeScript", "wasmtime", "quickjs_rs", "tree_sitter", "tree_sitter_typescript")
    from standfast.sandbox.quickjs.build import build_id
    from standfast.sandbox.quickjs.cell_engine import QuickJsCells

    return _over("quickjs", build_id().hex(), QuickJsCells(capacity=parts.capacity), parts)


def _cpython(parts: EngineParts) -> SessionEngine:
    from standfast.sandbox.cpython.cell_engine import CPythonCells
    from standfast.sandbox.cpython.state import FORMAT, VERSION

    cells = CPythonCells(capacity=parts.capacity, packages=parts.packages)
    return _over("cpython", f"{VERSION}/{FORMAT}", cells, parts)


def _auto(parts: EngineParts) -> SessionEngine:
    from standfast.sandbox.auto_python import AutoPython
    from standfast.sandbox.cpython.cell_engine import CPythonCells
    from standfast.sandbox.cpython.state import FORMAT, VERSION
    from standfast.sandbox.monty.cell_engine import MontyCells
    from standfast.sandbox.monty.state import ENGINE_VERSION

    monty = MontyCells(parts.workers)
    cpython = CPythonCells(capacity=parts.capacity, packages=parts.packages)
    version = f"{ENGINE_VERSION} {VERSION}/{FORMAT}"
    return _over("auto", version, AutoPython(monty, cpython), parts, under=(monty, cpython))


def _over(
    name: str, version: str, cells: CodeEngine, parts: EngineParts, under: tuple[CodeEngine, ...] = ()
) -> SessionEngine:
    from standfast.sandbox.cell_sessions import CellSessions

    return CellSessions(name, version, cells, parts.registry, parts.clock, parts.capacity, under)


def _require(extra: str, what: str, *modules: str) -> None:
    """Refuse where packages are missing that only some users have."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CodeExecutionUnavailable(
            f"{what} needs packages that are not installed: {', '.join(missing)}",
            hint=f"pip install 'standfast[{extra}]'",
        )


KINDS: Final[dict[str, EngineKind]] = {
    EngineName.MONTY: EngineKind(Language.PYTHON, _monty),
    EngineName.QUICKJS: EngineKind(Language.TYPESCRIPT, _quickjs),
    EngineName.CPYTHON: EngineKind(Language.PYTHON, _cpython),
    EngineName.AUTO: EngineKind(Language.PYTHON, _auto),
}
"""Every engine, by the name that is stored with its sessions."""
