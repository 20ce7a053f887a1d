"""One run of a session, as a cell of a `CodeEngine`.

Theory of operation
-------------------
The cell computes until it cannot go on without the result of a call. Its new calls are taken on: they run
beside each other, or wait for a person. Whatever settles first is handed over first, and the cell goes on::

    start ─ pause(f, g) ─ take on f, g ─ wait ─ answer(g) ─ pause() ─ wait ─ answer(f) ─ … ─ end

When nothing is under way any more and only people can go on, the cell is suspended and the run parked.

Rules
-----
1. Only the driver touches the cell. `stop` stops it and wakes the driver, no more.
2. A run that is stopped while its cell stands still ends with what the cell has to tell: it is answered once
   more, which ends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from standfast.errors import Code, EngineFailed, ErrorObject, StandfastError
from standfast.model.approval import Approval
from standfast.model.call import SettledCall
from standfast.model.canonical import Json
from standfast.ports.clock import Clock
from standfast.ports.code_engine import (
    SLEEP,
    CallAnswer,
    CellCall,
    CellEnd,
    CellOutput,
    CellPause,
    CellRun,
    CellStep,
)
from standfast.sandbox.calls_under_way import RunStopped
from standfast.sandbox.pump import Driven
from standfast.sandbox.run_calls import RunCalls, RunHost, answer_of
from standfast.sandbox.run_errors import calls_error, deadlock_error, wall_error
from standfast.sandbox.run_order import RunOrder
from standfast.sandbox.session_engine import Ended, Parked
from standfast.sandbox.snapshots import PausedRun
from standfast.tools.admission import Admission, NeedsApproval

MAX_SLEEPS: Final = 10_000


class ParkedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that waits for a person, and the session before it. Inputs are JSON: integers have no limit."""

    cell: bytes
    before: bytes = b""
    inputs: bytes = b"{}"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run began with, and the clock that tells the cell when its calls settle."""

    clock: Clock
    state: bytes
    inputs: dict[str, Json]
    now_ms: int
    seed: str


class CellSessionRun:
    """`drive` it once; `stop` it from anywhere."""

    def __init__(
        self, order: RunOrder, cell: CellRun, host: RunHost, began: Beginning, release: Callable[[], None]
    ) -> None:
        paused = order.paused
        self._order = order
        self._cell = cell
        self._host = host
        self._began = began
        self._release = release
        self._calls = RunCalls(order, host)
        self._made = paused.calls_made if paused else 0
        self._wall_before_ms = paused.wall_used_ms if paused else 0
        self._unanswered = {call.call_id for call in paused.pending} if paused else set[int]()
        self._stopping = threading.Lock()
        self._stopped: ErrorObject | None = None
        self._ended = False
        self._started = time.monotonic()

    def stop(self, error: ErrorObject) -> None:
        """End the run with *error*, wherever it stands."""
        with self._stopping:
            if self._ended or self._stopped is not None:
                return
            self._stopped = error
        self._cell.stop(error)
        self._calls.interrupt()

    def leave(self, version: object) -> None:
        """Give up a cell that has not ended, and the run's place. The engine keeps warm what it likes."""
        try:
            self._cell.close()
        finally:
            self._release()

    def drive(self, decided: dict[int, Approval]) -> Driven[Ended | Parked]:
        """Run to the end. *decided* continues a parked run."""
        limits = self._order.limits
        wall_s = max(1, limits.wall_ms - self._wall_before_ms) / 1000
        self._host.watchdog.watch(self, wall_s, lambda: self.stop(wall_error(limits)))
        try:
            outcome = yield from self._drive(decided)
            if isinstance(outcome, Parked):
                self._end()
        except RunStopped:
            outcome = self._after_stop()
        finally:
            with self._stopping:
                self._ended = True
            self._host.watchdog.forget(self)
            self._calls.abandon()
        return outcome if isinstance(outcome, Parked) else self._over(outcome)

    def _drive(self, decided: dict[int, Approval]) -> Driven[CellEnd | Parked]:
        step = self._cell.start()
        if self._order.paused is not None:
            self._calls.start_decided(self._order.paused.pending, decided)
        while isinstance(step, CellPause):
            for call in step.calls:
                yield from self._take_on(call, alone=len(step.calls) == 1)
            number = self._next_settled()
            if number is None:
                return self._park()
            step = self._answer(number)
        return step

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    def _take_on(self, call: CellCall, *, alone: bool) -> Driven[None]:
        """Begin a call, or take note of what keeps it from beginning."""
        if self._stopped is not None:
            raise RunStopped
        number = call.number
        self._unanswered.add(number)
        admission = self._admit(call)
        if admission is None:
            self._calls.sleep(number, float(call.kwargs.get("seconds", 0.0)))
        elif isinstance(admission, SettledCall):
            self._calls.add(number, admission)
        elif isinstance(admission, NeedsApproval):
            self._calls.ask_person(admission.call, awaited=not alone)
        elif not (alone and self._calls.may_run_here and not self._calls.some):
            self._calls.start(admission)
        elif (settled := (yield from self._calls.call_here(admission))) is not None:
            self._calls.add(number, settled)
        else:
            self._calls.start(admission)

    def _admit(self, call: CellCall) -> Admission | None:
        """Whether a call may be made; None if it is only a sleep. One call too many ends the run."""
        if call.name == SLEEP and call.name not in self._host.dispatcher.registry:
            return None
        if self._made >= self._order.limits.max_external_calls:
            self.stop(calls_error(self._order.limits))
            raise RunStopped
        self._made += 1
        if call.problem is not None:
            return self._calls.refuse(call.name, call.problem)
        return self._calls.admit(call.name, call.args, call.kwargs, call.number)

    def _next_settled(self) -> int | None:
        """Wait for a call that has settled, the first of them; None if only people can go on."""
        calls = self._calls
        while not calls.settled:
            if calls.some:
                calls.hear()
            elif calls.waiting:
                return None
            else:
                self.stop(deadlock_error())
                raise RunStopped
        return next(iter(calls.settled))

    def _answer(self, number: int) -> CellStep:
        if self._stopped is not None:
            raise RunStopped
        answer = answer_of(self._calls.settled.pop(number))
        self._unanswered.discard(number)
        return self._cell.answer(number, msgspec.structs.replace(answer, at_ms=self._began.clock.now_ms()))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _park(self) -> CellEnd | Parked:
        """Suspend the cell where it stands."""
        printed = self._cell.printed()
        try:
            suspended = self._cell.suspend()
        except EngineFailed as error:
            if self._stopped is not None:
                raise RunStopped from None
            return CellEnd(error=error.error_object(), hard=True)
        began = self._began
        parked = ParkedCell(cell=suspended, before=began.state, inputs=msgspec.json.encode(began.inputs))
        return Parked(msgspec.msgpack.encode(parked), self._paused(printed))

    def _paused(self, printed: CellOutput) -> PausedRun:
        order, began = self._order, self._began
        return PausedRun(
            run_id=order.run_id,
            code=order.code,
            limits=order.limits,
            input_names=list(began.inputs),
            return_snapshot=order.return_snapshot,
            pending=list(self._calls.waiting.values()),
            records=self._calls.records,
            calls_made=self._made,
            stdout=printed.stdout,
            stderr=printed.stderr,
            truncated=printed.truncated,
            wall_used_ms=self._duration_ms(),
            now_ms=began.now_ms,
            seed=began.seed,
        )

    def _end(self) -> None:
        """From here on a stop comes too late. (A cell that has ended was ended by it, or before it.)"""
        with self._stopping:
            self._ended = True
            if self._stopped is not None:
                raise RunStopped

    def _after_stop(self) -> CellEnd:
        """What a cell that was stopped while it stood still has to tell."""
        assert self._stopped is not None
        end: CellStep | None = None
        if self._unanswered:
            try:
                end = self._cell.answer(min(self._unanswered), CallAnswer())
            except StandfastError:
                end = None
        if not isinstance(end, CellEnd):
            end = CellEnd()
        return msgspec.structs.replace(end, result=None, error=self._stopped, hard=True, state=None)

    def _over(self, end: CellEnd) -> Ended:
        return Ended(
            value=end.result,
            error=end.error if self._stopped is not None else self._meant(end.error),
            hard=end.hard,
            changed=end.state is not None,
            state=end.state,
            records=self._calls.records,
            calls_made=self._made,
            stdout=end.stdout,
            stderr=end.stderr,
            truncated=end.truncated,
            wall_used_ms=self._duration_ms(),
            memory_peak_bytes=end.memory_peak_bytes,
            instructions=end.instructions,
            notes=end.notes,
        )

    def _meant(self, error: ErrorObject | None) -> ErrorObject | None:
        """An error of the engine, which counts sleeps among the calls."""
        if error is None or error.code != Code.EXTERNAL_CALLS_EXCEEDED:
            return error
        most = self._order.limits.max_external_calls
        message = f"the run made more than {most} external calls, or slept more than {MAX_SLEEPS} times"
        return msgspec.structs.replace(error, message=message)

    def _duration_ms(self) -> int:
        """Wall time so far, not counting time parked."""
        return self._wall_before_ms + max(0, int((time.monotonic() - self._started) * 1000))
