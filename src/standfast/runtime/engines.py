"""The engine of a runtime that evaluates approval rules. It is imported and started when first needed."""

from __future__ import annotations

from typing import Any

from standfast.model.canonical import Json


class LazyRules:
    """Approval rules, evaluated by an engine that is started when the first rule needs it."""

    def __init__(self) -> None:
        self._workers: Any = None
        self._evaluate: Any = None

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool:
        if self._evaluate is None:
            from standfast.sandbox.monty.rules import RuleEvaluator
            from standfast.sandbox.monty.workers import MontyWorkers

            self._workers = MontyWorkers(1)
            self._evaluate = RuleEvaluator(self._workers)
        return bool(self._evaluate(rule, args, kwargs, session_id))

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
