"""The engines that a sandbox has opened, by name.

Rule: an engine is opened when a session of it is first used: a data directory may hold sessions of engines
that cannot run here, and everything that does not run them works.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from standfast.ports.code_engine import CodeEngine
from standfast.sandbox.engine_kinds import EngineSettings, installed_kind
from standfast.sandbox.monty.workers import Workers


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """An engine and its version, which names the build: what another one has stored is refused."""

    version: str
    cells: CodeEngine


class CodeEngines:
    """The engines of one sandbox, each opened at its first use. `workers` are Monty's."""

    def __init__(self, workers: Workers, capacity: int, packages: tuple[str, ...]) -> None:
        self._settings = EngineSettings(
            capacity=capacity, packages=packages, workers=workers, engine=lambda name: self.get(name).cells
        )
        self._opened: dict[str, OpenEngine] = {}
        self._opening = threading.RLock()  # an engine may be made of others

    def get(self, name: str) -> OpenEngine:
        """Return the engine of this name; one that cannot be used here is a typed error."""
        found = self._opened.get(name)
        if found is not None:
            return found
        with self._opening:
            if name not in self._opened:
                kind = installed_kind(name)
                cells = kind.open(self._settings)  # first: it says what is missing
                self._opened[name] = OpenEngine(kind.version(), cells)
            return self._opened[name]

    def forget(self, session_id: str) -> None:
        """Drop what is kept warm for a session."""
        for engine in list(self._opened.values()):
            engine.cells.forget(session_id)

    def close(self) -> None:
        """End the processes of all engines."""
        for engine in list(self._opened.values()):
            engine.cells.close()
