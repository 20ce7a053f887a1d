"""Approval rules: Python expressions, evaluated in a sandbox of their own."""

from __future__ import annotations

from typing import Final

from standfast.model.canonical import Json
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty.workers import MontyWorkers

_LIMITS: Final = SessionLimits(memory_mb=32, cpu_ms=200)
_MAX_FRAME_BYTES: Final = 32_768
"""The most that a rule may send back: its value, and every name that it looks up."""


class MontyRules:
    """Evaluates rules in an empty sandbox of their own, without capabilities."""

    def __init__(self, workers: MontyWorkers) -> None:
        self._workers = workers

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool:
        """Return whether *rule* is `True`; an error or any other value counts as false."""
        worker = self._workers.attach_bare(_LIMITS)
        try:
            inputs = {"args": args, "kwargs": kwargs, "session_id": session_id}
            return worker.evaluate(f"({rule}\n)", inputs, _MAX_FRAME_BYTES) is True
        except Exception:
            return False
        finally:
            worker.close()
