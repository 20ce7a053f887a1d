"""The engines of a runtime: those that run cells, and the one that evaluates approval rules.

Rule: an engine is imported and started when it is first needed.
"""

from __future__ import annotations

from typing import Any

from standfast.model.canonical import Json
from standfast.model.language import EngineName
from standfast.ports.code_engine import CodeEngine


class LazyRules:
    """Approval rules, evaluated by an engine that is started when the first rule needs it."""

    def __init__(self) -> None:
        self._workers: Any = None
        self._evaluate: Any = None

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool:
        if self._evaluate is None:
            from standfast.sandbox.monty.rules import RuleEvaluator
            from standfast.sandbox.monty.workers import Workers

            self._workers = Workers(1)
            self._evaluate = RuleEvaluator(self._workers)
        return bool(self._evaluate(rule, args, kwargs, session_id))

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


class LazyEngines:
    """The engines that run cells, each started when the first cell needs it."""

    def __init__(self) -> None:
        self._opened: dict[EngineName, CodeEngine] = {}

    def named(self, name: EngineName) -> CodeEngine:
        """The engine of this name; `CodeExecutionUnavailable` if it cannot be had."""
        found = self._opened.get(name)
        if found is None:
            found = self._opened[name] = self._open(name)
        return found

    def _open(self, name: EngineName) -> CodeEngine:
        from standfast.sandbox.engine_kinds import EngineSettings, open_engine

        return open_engine(name, EngineSettings(engine=lambda other: self.named(EngineName(other))))

    @property
    def opened(self) -> bool:
        """Whether any engine was started."""
        return bool(self._opened)

    def forget(self, session_id: str) -> None:
        """Let go of what is kept warm for a session. Blocking."""
        for engine in list(self._opened.values()):
            engine.forget(session_id)

    def close(self) -> None:
        opened, self._opened = self._opened, {}
        for engine in opened.values():
            engine.close()
