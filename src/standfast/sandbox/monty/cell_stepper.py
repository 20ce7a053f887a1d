"""Steps the engine through a cell, whose time, chance and outside values come from its request.

Rules
-----
1. The clock stands still between answers, and chance is made of the seed: a cell that is run again sees the
   same. The engine keeps its own random state in its dumps, so only what seeds it is made here.
2. What the engine cannot keep apart: an object without a `__repr__` prints with an address, which may differ
   between a worker that was kept and one that was loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from standfast.errors import EngineFailed, StandfastError
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.failures import Failure
from standfast.sandbox.monty.functions import Callables
from standfast.sandbox.monty.plan import RunPlan
from standfast.sandbox.monty.stepper import Stepper
from standfast.sandbox.monty.steps import Step
from standfast.sandbox.monty.workers import Worker
from standfast.sandbox.output import Output

OS_POLICY: Final = {
    "datetime": "call_host",
    "timezone": "utc",
    "random_start": "call_host",
    "sleep_system_max": float("inf"),
}
"""What the engine asks the host for; it is part of its dumps. Unless told, it cuts sleeps to ten seconds."""
_MAX_RANDOM_BYTES: Final = 64 << 10


class Surroundings:
    """What a cell sees of the world: the time, chance, and values by name."""

    __slots__ = ("draws", "load", "now_ms", "seed")

    def __init__(self, now_ms: int, seed: str, load: Callable[[str], Any] | None, draws: int = 0) -> None:
        self.now_ms = now_ms
        self.seed = seed
        self.load = load
        self.draws = draws

    def pass_to(self, at_ms: int) -> None:
        """Let time pass; it never goes back."""
        self.now_ms = max(self.now_ms, at_ms)

    def random_bytes(self, count: int) -> bytes:
        """The next so many bytes that nobody could guess without the seed."""
        self.draws += 1
        return hashlib.shake_256(f"{self.draws}:{self.seed}".encode()).digest(count)

    def moment(self, name: str, args: tuple[Any, ...]) -> Any:
        """What one of the engine's clocks shows."""
        if name == "time.time":
            return self.now_ms / 1000
        zone = args[0] if args else None
        now = datetime.fromtimestamp(self.now_ms / 1000, UTC)
        if name == "date.today":
            return now.date()
        return now.replace(tzinfo=None) if zone is None else now.astimezone(zone)


class CellStepper(Stepper):
    """The engine's side of one cell. Calls are counted by the run: some are answered on the spot."""

    def __init__(self, plan: RunPlan, functions: Callables, around: Surroundings) -> None:
        super().__init__(plan, functions)
        self._around = around

    def begin(self, worker: Worker, output: Output) -> Step:
        self._around.draws = 0  # a second attempt sees what the first saw
        return super().begin(worker, output)

    def _count_call(self) -> Failure | None:
        return None

    def _on_name(self, snapshot: engine.NameLookupSnapshot, name: str) -> Any:
        if name in self._functions or self._around.load is None:
            return super()._on_name(snapshot, name)
        try:
            value = self._around.load(name)
        except LookupError:
            return snapshot.resume()
        except StandfastError:
            raise
        except Exception as error:
            raise EngineFailed(f"{name} could not be loaded: {error}") from error
        if name not in self._plan.borrowed:
            self._plan.borrowed.append(name)
        return snapshot.resume(value=value)

    def _on_system_call(self, snapshot: engine.FunctionSnapshot, name: str) -> Any:
        if name in ("time.time", "datetime.now", "date.today"):
            return snapshot.resume({"return_value": self._around.moment(name, snapshot.args)})
        if name == "os.urandom":
            return snapshot.resume(self._drawn(int(snapshot.args[0])))
        return super()._on_system_call(snapshot, name)

    def _drawn(self, count: int) -> Any:
        if count > _MAX_RANDOM_BYTES:
            return {"exc_type": "ValueError", "message": f"at most {_MAX_RANDOM_BYTES} random bytes at once"}
        return {"return_value": self._around.random_bytes(count)}
