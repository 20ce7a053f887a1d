"""What every run of guest code has: a worker, a time to end, what it printed, and a way to be stopped.

Rules
-----
1. One thread at a time steps the engine. `stop` kills the worker's process, no more; whoever steps the engine
   finds out.
2. A run has one outcome; a stop that comes after the end does nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from standfast.errors import ErrorObject, StandfastError
from standfast.sandbox.calls_under_way import RunStopped
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.failures import Failure, describe_failure
from standfast.sandbox.monty.plan import RunPlan
from standfast.sandbox.monty.stepper import Stepper
from standfast.sandbox.monty.steps import Step
from standfast.sandbox.monty.workers import Worker
from standfast.sandbox.output import Output
from standfast.sandbox.run_errors import stdout_error, wall_error
from standfast.sandbox.watchdog import Watchdog

S = TypeVar("S")


class Earlier(Protocol):
    """What a run that goes on has printed and used before."""

    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def wall_used_ms(self) -> int: ...
    @property
    def memory_peak_bytes(self) -> int | None: ...


class EngineRun:
    """A run as far as it concerns the engine. `stop` it from anywhere."""

    def __init__(
        self, plan: RunPlan, stepper: Stepper, watchdog: Watchdog, earlier: Earlier | None = None
    ) -> None:
        self.plan = plan
        self._stepper = stepper
        self._watchdog = watchdog
        printed = (earlier.stdout, earlier.stderr) if earlier else ("", "")
        self.output = Output(plan.limits.max_stdout_bytes, self._flooded, *printed)
        self.output.truncated = bool(earlier and earlier.truncated)
        self.memory_peak: int | None = earlier.memory_peak_bytes if earlier else None
        self._wall_before_ms = earlier.wall_used_ms if earlier else 0
        self._measures = True
        """Whether anybody wants to know how much memory the run takes."""
        self._worker: Worker | None = None
        self._stopping = threading.Lock()
        self._stopped: ErrorObject | None = None
        self._ended = False
        self._started = time.monotonic()

    def duration_ms(self) -> int:
        """Wall time so far, not counting time parked."""
        return self._wall_before_ms + max(0, int((time.monotonic() - self._started) * 1000))

    def stop(self, error: ErrorObject) -> None:
        """End the run with *error*, wherever it stands. Harmless once it has ended."""
        with self._stopping:
            if self._ended or self._stopped is not None:
                return
            self._stopped = error
            if self._worker is not None:
                self._worker.kill()
        self._on_stop()

    def _on_stop(self) -> None:
        """What else is to be woken."""

    def _watch(self) -> None:
        """Have the run stopped when its time is over."""
        wall_s = max(1, self.plan.limits.wall_ms - self._wall_before_ms) / 1000
        self._watchdog.watch(self, wall_s, lambda: self.stop(wall_error(self.plan.limits)))

    def _begin(self, begin: Callable[[], Worker]) -> Step:
        """Begin; if the worker turns out to have died while it was idle, with another.

        Nothing has reached the outside before the first step ends, so the second attempt repeats nothing.
        """
        if (refused := self.plan.program.refused) is not None:
            return Failure(
                ErrorObject(code=refused.code, message=refused.message, hint=refused.hint, span=refused.span)
            )
        worker = self._attach(begin)
        try:
            return self._stepper.begin(worker, self.output)
        except engine.MontyCrashedError as error:
            if self._stopped is not None or error.timed_out or not worker.warm:
                raise
            worker.version = None
            self.output.forget()
            return self._stepper.begin(self._attach(begin), self.output)

    def _attach(self, begin: Callable[[], Worker]) -> Worker:
        worker = begin()
        with self._stopping:
            self._worker = worker
            if self._stopped is not None:
                raise RunStopped
        if self._measures:
            worker.peak.reset()
        return worker

    def _in_engine(self, job: Callable[[], S]) -> S | Failure:
        """Do something with the engine; what it raises becomes the run's failure."""
        if self._stopped is not None:
            raise RunStopped
        try:
            return job()
        except (StandfastError, RunStopped):
            raise
        except Exception as error:
            if self._stopped is not None:
                raise RunStopped from None
            return describe_failure(error, self.plan.program, self.plan.limits, self._stepper.call_errors)

    def _end(self) -> None:
        """From here on a stop comes too late; one that came before has killed the worker."""
        with self._stopping:
            self._ended = True
            if self._stopped is not None:
                raise RunStopped

    def _measure(self) -> None:
        if self._measures and self._worker is not None and (peak := self._worker.peak.bytes()) is not None:
            self.memory_peak = max(peak, self.memory_peak or 0)

    def _flooded(self) -> None:
        """Called from inside the engine, in the middle of a step."""
        self.stop(stdout_error(self.plan.limits))
