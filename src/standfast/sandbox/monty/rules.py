"""Approval rules: a Python expression, evaluated where it can do no harm."""

from __future__ import annotations

from typing import Final

from standfast.model.canonical import Json
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty.feeding import feed_through
from standfast.sandbox.monty.workers import MontyWorkers

_LIMITS: Final = SessionLimits(memory_mb=32, cpu_ms=200)
_MAX_FRAME_BYTES: Final = 32_768
"""What a rule may send back: its value, and every name that it looks up."""


class RuleEvaluator:
    """Evaluates rules in an empty sandbox of their own, without capabilities."""

    def __init__(self, workers: MontyWorkers) -> None:
        self._workers = workers

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool:
        """Whether *rule* is exactly true. An error, or any other value, is not."""
        worker = self._workers.attach_bare(_LIMITS)
        try:
            inputs = {"args": args, "kwargs": kwargs, "session_id": session_id}
            return feed_through(worker, f"({rule}\n)", inputs, _MAX_FRAME_BYTES) is True
        except Exception:
            return False
        finally:
            worker.close()
