"""One cell on the Monty engine: from its code to a pause, from answer to answer, to its end.

Theory of operation
-------------------
The engine is stepped until the code cannot go on. A plain call stops it there; a call that the code awaits is
given a future, and the code goes on until every task of it waits. Either way the cell *stands*, and the calls
it made since it last stood are its pause::

    start ─ engine ─ stands at f() ──────── answer ─ engine ─ waits for g(), h() ─ answer ─ engine ─ … ─ end
                     CellPause(f)                             CellPause(g, h)

A cell that stands lends its place among the workers: when another session needs it, the engine is dumped,
and loaded again with the next answer. A suspended cell is the same dump, with what this file knows of the
cell; it is loaded with the first answer that lets it go on.

Rules
-----
1. The engine is given one answer at a time. An answer that it cannot take yet (to a future, while the code
   stands at a plain call) is kept, and handed over in the order of the answers as soon as every task waits.
2. A call that is answered on the spot has no number and is not counted. If it is awaited, its value is kept
   like any other answer; an exception is raised where the call is made.
3. Inputs, and names that were loaded, are unbound when the cell ends, so they are never part of its state.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from standfast.errors import Code, EngineFailed, ErrorObject, InvalidArgument, Span
from standfast.model.canonical import Json, to_json
from standfast.ports.code_engine import SLEEP as SLEEP_CALL
from standfast.ports.code_engine import (
    CallAnswer,
    CellCall,
    CellEnd,
    CellOutput,
    CellPause,
    CellRequest,
    CellStep,
    LastCall,
)
from standfast.sandbox.calls_under_way import RunStopped
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.cell_stepper import OS_POLICY, CellStepper, Surroundings
from standfast.sandbox.monty.conclude import (
    fed_without_storing,
    find_value,
    give_names_back,
    left_unchanged,
    not_kept,
    not_put_aside,
    stand_in_shown,
    state_after,
    value_as_json,
)
from standfast.sandbox.monty.engine_run import EngineRun
from standfast.sandbox.monty.failures import Failure
from standfast.sandbox.monty.plan import RunPlan
from standfast.sandbox.monty.program import VALUE_NAME, read_program
from standfast.sandbox.monty.state import (
    EngineState,
    KnownError,
    PausedCell,
    decode_cell,
    decode_state,
    encode_cell,
    encode_state,
)
from standfast.sandbox.monty.stepper import ASYNC_SLEEP, SLEEP
from standfast.sandbox.monty.steps import Blocked, Finished, HostCall, Step
from standfast.sandbox.monty.values import first_foreign, may_hold_stand_ins, not_serializable
from standfast.sandbox.monty.workers import Worker, Workers
from standfast.sandbox.run_errors import (
    argument_not_json,
    calls_error,
    cancelled_error,
    deadlock_error,
    request_too_large,
)
from standfast.sandbox.watchdog import Watchdog

_SMALL_CHARS: Final = 1_000
"""A value up to this size may stay in the session until the next cell; what is larger is dropped at once."""


@dataclass(frozen=True, slots=True)
class CellHost:
    """What cells share. `live` are those that have begun and not ended."""

    workers: Workers
    watchdog: Watchdog
    live: set[MontyCellRun]


class MontyCellRun(EngineRun):
    """One cell. One thread at a time uses it; `stop` and `hand_back` may come from others."""

    def __init__(self, request: CellRequest, host: CellHost) -> None:
        paused = decode_cell(request.paused) if request.paused else None
        before = paused.before if paused else decode_state(request.state)
        self._request = request
        self._host = host
        self._before = before
        self._around = Surroundings(
            max(request.now_ms, paused.now_ms if paused else 0),
            request.seed,
            request.load,
            paused.draws if paused else 0,
        )
        plan = _plan_of(request, before, paused)
        super().__init__(
            plan, CellStepper(plan, request.functions, self._around), host.watchdog, earlier=paused
        )
        self._measures = request.through is None  # whoever wants to know early does not wait for that
        self._using = threading.Lock()
        self._has_slot = False
        self._standing: HostCall | Blocked | None = None
        self._result: CellEnd | None = None
        self._new: list[CellCall] = []
        self._made = paused.calls_made if paused else 0
        self._at = paused.at if paused else None
        self._calls: dict[int, int] = dict(paused.calls) if paused else {}
        self._ready = _ready_of(paused) if paused else []
        if paused is not None:
            self._stepper.call_errors.update(
                {(known.type, known.message): known.error for known in paused.errors}
            )

    # ── what the port asks ───────────────────────────────────────────────────────────────────────

    def start(self) -> CellStep:
        """Run from the beginning, or stand where the cell was suspended."""
        with self._using:
            self._host.live.add(self)
            if not self._request.paused:
                self._taken()  # waiting for a place is not the cell's time
            self._started = time.monotonic()
            self._watch()
            if self._request.paused:
                return CellPause()
            step = self._go_on(lambda: self._in_engine(lambda: self._begin(self._loaded)))
        return self._lending(step)

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        """Give the cell the result of one of its calls, and let it go on."""
        with self._using:
            if self._result is not None:
                return self._result
            if (call_id := self._calls.pop(number, None)) is None:
                raise InvalidArgument(f"the cell has no call {number} that waits for an answer")
            self._around.pass_to(answer.at_ms)
            if self._at is not None and call_id != self._at and self._stopped is None:
                self._ready.append((call_id, answer))
                return CellPause()
            self._host.workers.reclaim(self)
            step = self._go_on(lambda: self._answered(call_id, answer))
        return self._lending(step)

    def printed(self) -> CellOutput:
        return self.output.so_far()

    def suspend(self) -> bytes:
        """The cell as bytes; its worker is free."""
        with self._using:
            if self._result is not None:
                raise InvalidArgument("a cell that has ended cannot be suspended")
            if self._stopped is not None:
                raise EngineFailed(f"the cell was stopped: {self._stopped.message}")
            self._host.workers.reclaim(self)
            try:
                self._put_aside()
                self._check_loads()
                return encode_cell(self._paused())
            finally:
                self._leave(cancelled_error())

    def close(self) -> None:
        """Give the cell up."""
        with self._using:
            self._host.workers.reclaim(self)
            self._leave(cancelled_error())

    def hand_back(self) -> None:
        """Free the slot for another session while the cell stands. Harmless if it does not.

        A cell that could not be loaded again ends: to keep its slot could block the call that it waits for.
        """
        if not self._using.acquire(blocking=False):
            return
        try:
            if self._has_slot and self._result is None and self._standing is not None:
                self._put_aside()
                self._check_loads()
        except EngineFailed as error:
            self.stop(not_put_aside(error, self.plan.limits))
            self._release()
        finally:
            self._using.release()

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def _go_on(self, first: Callable[[], Step]) -> CellStep:
        """Step until the code stands or has ended."""
        try:
            step = first()
            while not isinstance(step, (Finished, Failure)):
                following = self._on_call(step) if isinstance(step, HostCall) else self._on_blocked(step)
                if following is None:
                    return self._pause(step)
                step = following
            self._end()
            return self._finish(step)
        except RunStopped:
            assert self._stopped is not None
            return self._over(Failure(self._stopped, hard=True))
        except BaseException:
            self._leave(cancelled_error())
            raise

    def _on_call(self, call: HostCall) -> Step | None:
        """Answer a call on the spot, or give it a number; None if the code stands at it."""
        made = cell_call(call, self._made + 1)
        now = self._request.answer_now
        if now is not None and (answer := now(made)) is not None:
            return self._answer_now(call, answer)
        if self._made >= self.plan.limits.max_external_calls:
            return Failure(calls_error(self.plan.limits), hard=True)
        self._made += 1
        self._calls[self._made] = call.call_id
        self._new.append(made)
        return self._in_engine(lambda: self._stepper.promise(call)) if call.awaited else None

    def _answer_now(self, call: HostCall, answer: CallAnswer) -> Step:
        self._around.pass_to(answer.at_ms)
        if not call.awaited or answer.exception is not None:
            return self._in_engine(lambda: self._stepper.answer(call, answer))
        self._ready.append((call.call_id, answer))
        return self._in_engine(lambda: self._stepper.promise(call))

    def _on_blocked(self, blocked: Blocked) -> Step | None:
        """Hand over the first answer that is there; None if there is none."""
        for index, (call_id, answer) in enumerate(self._ready):
            if call_id in blocked.pending:
                del self._ready[index]
                results = {call_id: answer}
                return self._in_engine(functools.partial(self._stepper.answer_futures, blocked, results))
        return None if self._calls else Failure(deadlock_error(), hard=True)

    def _answered(self, call_id: int, answer: CallAnswer) -> Step:
        """The step that an answer leads to, from where the cell stands."""
        standing: Step = self._standing if self._standing is not None else self._in_engine(self._reload)
        self._standing, self._at = None, None
        if isinstance(standing, HostCall):
            return self._in_engine(lambda: self._stepper.answer(standing, answer))
        self._ready.append((call_id, answer))
        return standing

    def _pause(self, at: HostCall | Blocked) -> CellPause:
        """Stand, and tell of the calls made since."""
        self._standing = at
        self._at = at.call_id if isinstance(at, HostCall) else None
        calls, self._new = tuple(self._new), []
        return CellPause(calls)

    def _lending(self, step: CellStep) -> CellStep:
        """Lend the slot of a cell that stands. Not under its lock: whoever needs the slot needs the lock."""
        if isinstance(step, CellPause):
            self._host.workers.lend(self)
        return step

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def _loaded(self) -> Worker:
        """A worker that holds the session as it was before the cell: the one it was left in, or another."""
        worker = self._taken()
        if worker is not None and worker.holds(self._request.state, self.plan.limits):
            return worker
        self._drop(worker)
        made = self._host.workers.attach(self._before, self.plan.limits, os_policy=OS_POLICY)
        made.version = self._request.state
        return made

    def _reload(self) -> Step:
        """Load the cell where it was dumped; the step is what it stood at."""
        return self._stepper.reload(self._attach(self._bare), self.output)

    def _bare(self) -> Worker:
        self._drop(self._taken())
        return self._host.workers.attach_bare(self.plan.limits, os_policy=OS_POLICY)

    def _taken(self) -> Worker | None:
        """The worker in the cell's slot, which it takes if it has none."""
        if self._has_slot:
            return self._worker
        worker = self._host.workers.take(self._request.key)
        self._has_slot = True
        with self._stopping:
            self._worker = worker
        return worker

    def _drop(self, worker: Worker | None) -> None:
        with self._stopping:
            self._worker = None
        if worker is not None:
            worker.close()

    def _put_aside(self) -> None:
        """Dump the engine where it stands and free the slot. A cell that is dumped already stays so."""
        if self._standing is None:
            return
        try:
            if self._stopped is None:
                self.plan.paused_dump = self._standing.snapshot.dump()
        except Exception as error:
            raise EngineFailed(f"the cell cannot be suspended: {error}") from error
        self._standing = None
        self._measure()
        self._release()

    def _check_loads(self) -> None:
        """Refuse to suspend a cell that could not be taken up again."""
        try:
            self._host.workers.check_loads(self.plan.paused_dump, self.plan.limits, paused=True)
        except engine.MontyError as error:
            raise EngineFailed(f"the cell cannot be suspended: {error}") from error

    def _release(self) -> None:
        """Free the slot and the process in it."""
        if not self._has_slot:
            return
        with self._stopping:
            worker, self._worker = self._worker, None
        self._has_slot = False
        self._host.workers.give_back(worker)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _finish(self, outcome: Finished | Failure) -> CellEnd:
        """Find the result and what the code left. The worker is kept if it holds just that."""
        worker = self._worker
        if worker is None or left_unchanged(outcome) or (isinstance(outcome, Failure) and outcome.hard):
            return self._over(outcome if isinstance(outcome, Failure) else None)
        failure = outcome if isinstance(outcome, Failure) else None
        value: Json = None
        try:
            raw = find_value(self.plan, worker, outcome)
            if failure is None:
                value, failure = self._checked(raw, worker)
            last = self._last_call(outcome, value, failure)
            if last is not None:
                value, failure = None, None
            self._measure()
            if self._request.through is not None:
                self._request.through(self._end_of(failure, value, last=last))
            give_names_back(self.plan, worker, self._to_drop(raw))
            state = self._state(worker)
        except engine.MontyError as error:
            return self._over(Failure(not_kept(error, self.plan.limits), hard=True))
        except Exception as error:
            lost = ErrorObject(code=Code.INTERRUPTED, message=f"the cell could not be completed: {error}")
            return self._over(Failure(lost, hard=True))
        return self._over(failure, value, state, last)

    def _last_call(
        self, outcome: Finished | Failure, value: Json, failure: Failure | None
    ) -> LastCall | None:
        """The call that the code ended with, if it is one that is left to others."""
        found = self.plan.program.last_call if isinstance(outcome, Finished) else None
        return None if found is None else _last_call(*found, value, failure)

    def _checked(self, raw: object, worker: Worker) -> tuple[Json, Failure | None]:
        """The value as JSON, unless it is not or holds the text of something that is not text."""
        value, failure = value_as_json(raw)
        if failure is not None or value is None or isinstance(value, (int, float)):
            return value, failure
        functions = {*self._request.functions.names(), *self.plan.names, *self.plan.program.bound}
        if not may_hold_stand_ins(value, functions):
            return value, None
        foreign = stand_in_shown(worker, self.plan.program, functions)
        return (None, Failure(not_serializable(foreign))) if foreign else (value, None)

    def _to_drop(self, value: object) -> list[str]:
        """The name that would keep a large value in the session, where there is one."""
        if self.plan.program.reads_only is not None or self.plan.program.result_mode == "always":
            return []
        small = value is None or isinstance(value, (int, float))
        small = small or (isinstance(value, str) and len(value) <= _SMALL_CHARS)
        return [] if small else [VALUE_NAME]

    def _state(self, worker: Worker) -> bytes | None:
        """What the code left; None if that is what there was."""
        before = self._before
        if self.plan.program.changes_nothing(self.plan.names, before is not None and before.has_classes):
            fed_without_storing(worker)
            return None
        state, compacted = state_after(self.plan, before, worker, self._host.workers)
        data = encode_state(state)
        worker.version = None if compacted else data
        worker.unsaved_feeds = 0
        return data

    def _over(
        self,
        failure: Failure | None,
        value: Json = None,
        state: bytes | None = None,
        last: LastCall | None = None,
    ) -> CellEnd:
        """End with this. A worker that a failure has left in the middle of something is not kept."""
        hard = failure is not None and failure.hard
        refused = failure is not None and left_unchanged(failure)
        if hard or refused:
            self._measure()
            if self._worker is not None:
                self._worker.version = None
        self._result = self._end_of(failure, value, state, last)
        self._forget()
        self._free_worker()
        return self._result

    def _end_of(
        self,
        failure: Failure | None = None,
        value: Json = None,
        state: bytes | None = None,
        last: LastCall | None = None,
    ) -> CellEnd:
        return CellEnd(
            result=value,
            error=failure.error if failure else None,
            last_call=last,
            hard=failure is not None and failure.hard,
            stdout=self.output.stdout,
            stderr=self.output.stderr,
            truncated=self.output.truncated,
            state=state,
            calls_made=self._made,
            duration_ms=self.duration_ms(),
            memory_peak_bytes=self.memory_peak,
        )

    def _free_worker(self) -> None:
        """Leave the worker warm if it holds the session, else free it."""
        worker = self._worker
        if not self._has_slot or worker is None or worker.version is None:
            self._release()
            return
        with self._stopping:
            self._worker = None
        self._has_slot = False
        self._host.workers.keep(self._request.key, worker)

    def _leave(self, error: ErrorObject) -> None:
        """Be over without an end: suspended, given up, or broken."""
        if self._result is not None:
            return
        self._result = CellEnd(error=error, hard=True, calls_made=self._made)
        self._forget()
        self._release()

    def _forget(self) -> None:
        with self._stopping:
            self._ended = True
        self._standing = None
        self._watchdog.forget(self)
        self._host.live.discard(self)

    def _paused(self) -> PausedCell:
        before = msgspec.structs.replace(self._before, dump=b"") if self._before else None
        errors = [KnownError(*key, error) for key, error in self._stepper.call_errors.items()]
        return PausedCell(
            dump=self.plan.paused_dump,
            before=before,
            filename=self.plan.filename,
            borrowed=self.plan.borrowed,
            kept=self.plan.kept,
            at=self._at,
            calls=self._calls,
            ready=[(call_id, msgspec.json.encode(answer)) for call_id, answer in self._ready],
            errors=errors,
            calls_made=self._made,
            now_ms=self._around.now_ms,
            draws=self._around.draws,
            stdout=self.output.stdout,
            stderr=self.output.stderr,
            truncated=self.output.truncated,
            wall_used_ms=self.duration_ms(),
            memory_peak_bytes=self.memory_peak,
        )


def cell_call(call: HostCall, number: int) -> CellCall:
    """A call of the engine as one of the cell's."""
    if call.name in (SLEEP, ASYNC_SLEEP):
        seconds = max(0.0, float(call.args[0])) if call.args else 0.0
        name, args, kwargs = SLEEP_CALL, [], {"seconds": seconds}
    else:
        name, args, kwargs = call.name, list(call.args), call.kwargs
    if call.too_large is not None:
        return CellCall(number=number, name=name, problem=request_too_large(name, call.too_large))
    foreign, clean = call.foreign, None
    if foreign is None:
        try:
            clean, _ = to_json([args, kwargs])
        except InvalidArgument:
            foreign = first_foreign([args, kwargs])
    if clean is None:
        return CellCall(number=number, name=name, problem=argument_not_json(name, str(foreign)))
    return CellCall(number=number, name=name, args=clean[0], kwargs=clean[1])


def _last_call(name: str, span: Span, value: Json, failure: Failure | None) -> LastCall:
    """The call that the code ended with; *failure* tells why its value is none."""
    if failure is None:
        return LastCall(CellCall(number=0, name=name, args=[value]), span)
    error = failure.error
    if error.code == Code.RESULT_NOT_SERIALIZABLE:
        error = argument_not_json(name, str(error.hint))
    elif error.code == Code.RESPONSE_TOO_LARGE:
        error = request_too_large(name, error.message.removeprefix("the result is too large: "))
    return LastCall(CellCall(number=0, name=name, problem=error), span)


def _plan_of(request: CellRequest, before: EngineState | None, paused: PausedCell | None) -> RunPlan:
    plan = RunPlan(
        program=read_program(
            request.code,
            result_may_be_bound=before is not None and before.result_later,
            last=request.last.difference(before.names) if before else request.last,
        ),
        limits=request.limits,
        names=frozenset(before.names) if before else frozenset(),
        sites=before.sites if before else {},
        inputs=request.inputs,
        all_inputs_end=True,
        plain_keys=before is None or before.plain_keys,
    )
    if paused is None:
        return plan
    return plan.standing(paused.dump, paused.filename, list(paused.borrowed), paused.kept)


def _ready_of(paused: PausedCell) -> list[tuple[int, Any]]:
    return [(call_id, msgspec.json.decode(data, type=CallAnswer)) for call_id, data in paused.ready]
