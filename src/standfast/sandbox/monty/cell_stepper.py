"""One cell in the Monty engine, as the lifecycle steps it.

A plain call stops the code there; a call that the code awaits is given a future, and the code continues
until every task waits. A cell that waits is put aside as the engine's dump, in the middle of its expression.

Rule: inputs, and names that were loaded, are unbound when the cell ends, so they are never part of its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from standfast.errors import Code, ErrorObject, Span, StandfastError
from standfast.model.canonical import Json
from standfast.ports.cell_stepper import (
    CellFailed,
    CellStopped,
    EngineCall,
    Step,
    StepBlocked,
    StepEnded,
    StepperHost,
)
from standfast.ports.code_engine import CallAnswer, CellCall, CellRequest, LastCall
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.conclude import (
    fed_without_storing,
    find_value,
    give_names_back,
    left_unchanged,
    not_kept,
    not_suspended,
    stand_in_shown,
    state_after,
    value_as_json,
)
from standfast.sandbox.monty.failures import Failure, describe_failure
from standfast.sandbox.monty.plan import RunPlan
from standfast.sandbox.monty.program import VALUE_NAME, read_program
from standfast.sandbox.monty.state import (
    CellDump,
    EngineState,
    KnownError,
    decode_dump,
    decode_state,
    encode_dump,
    encode_state,
)
from standfast.sandbox.monty.stepper import Stepper
from standfast.sandbox.monty.steps import EngineStep, Finished
from standfast.sandbox.monty.surroundings import OS_POLICY, Surroundings
from standfast.sandbox.monty.values import may_hold_stand_ins
from standfast.sandbox.monty.workers import MontyWorker, MontyWorkers
from standfast.sandbox.run_errors import argument_not_json, not_serializable, request_too_large
from standfast.sandbox.workers import WorkerSlot

T = TypeVar("T")
_SMALL_CHARS: Final = 1_000
"""A value up to this size may stay in the session until the next cell; what is larger is dropped at once."""


class MontyStepper:
    """A `CellStepper`. The cell is in the worker while the engine's `standing` is what it stopped at."""

    replayed = False
    wall_grace_s = 0.0
    instructions: int | None = None

    def __init__(self, host: StepperHost, workers: MontyWorkers, dump: bytes) -> None:
        request = host.request
        paused = decode_dump(dump) if dump else None
        self._host = host
        self._workers = workers
        self._slot = WorkerSlot(workers, request.key)
        self._before = paused.before if paused else decode_state(request.state)
        self._plan = _plan_of(request, self._before, paused)
        self._around = Surroundings(host, paused.draws if paused else 0)
        self._engine = Stepper(self._plan, request.functions, self._around)
        if paused is not None:
            self._engine.call_errors.update(
                {(known.type, known.message): known.error for known in paused.errors}
            )
        self._measures = request.through is None  # a caller that wants to know early does not wait for that
        self._large_names: list[str] = []

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        self._slot.take()

    def begin(self) -> Step:
        if (refused := self._plan.program.refused) is not None:
            error = ErrorObject(
                code=refused.code, message=refused.message, hint=refused.hint, span=refused.span
            )
            return StepEnded(error=error, refused=True)
        return self._stepped(self._begin)

    def proceed(self) -> Step:
        return self._stepped(self._engine.promise)

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        return self._stepped(lambda: self._engine.answer(call_id, answer))

    def raises_at_call(self, answer: CallAnswer) -> bool:
        return answer.exception is not None

    def _begin(self) -> EngineStep:
        """Begin; if the worker turns out to have died while it was idle, with another.

        Nothing has reached the outside before the first step ends, so the second attempt repeats nothing.
        """
        worker = self._attached(self._with_session())
        try:
            return self._engine.begin(worker, self._host.output)
        except engine.MontyCrashedError as error:
            if self._host.stopped is not None or error.timed_out or not worker.warm:
                raise
        worker.version = None
        self._host.output.forget()
        return self._engine.begin(self._attached(self._with_session()), self._host.output)

    def _stepped(self, job: Callable[[], EngineStep]) -> Step:
        """Step the engine; what it raises becomes the cell's failure."""
        if self._host.stopped is not None:
            raise CellStopped
        outcome: EngineStep | Failure
        try:
            outcome = job()
        except (StandfastError, CellStopped):
            raise
        except Exception as error:
            if self._host.stopped is not None:
                raise CellStopped from None
            outcome = describe_failure(error, self._plan.program, self._plan.limits, self._engine.call_errors)
        if isinstance(outcome, EngineCall | StepBlocked):
            return outcome
        return self._ended(outcome)

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def _with_session(self) -> MontyWorker:
        """Return a worker that holds the session as it was before the cell: the warm one, or another."""
        request, worker = self._host.request, self._slot.take()
        if worker is not None and worker.holds(request.state, request.limits):
            return worker
        self._slot.drop()
        made = self._workers.attach(self._before, request.limits, os_policy=OS_POLICY)
        made.version = request.state
        return made

    def _attached(self, worker: MontyWorker) -> MontyWorker:
        self._slot.put(worker)
        if self._measures:
            worker.peak.reset()
        return worker

    def put_aside(self) -> None:
        standing, limits = self._engine.standing, self._plan.limits
        if standing is None:
            return
        try:
            self._plan.paused_dump = standing.dump()
            self._engine.standing = None
            self._workers.check_loads(self._plan.paused_dump, limits, paused=True)
        except Exception as error:
            raise not_suspended(error, limits) from error

    def dump(self) -> bytes:
        before = msgspec.structs.replace(self._before, dump=b"") if self._before else None
        return encode_dump(
            CellDump(
                dump=self._plan.paused_dump,
                before=before,
                filename=self._plan.filename,
                borrowed=self._plan.borrowed,
                kept=self._plan.kept,
                errors=[KnownError(*key, error) for key, error in self._engine.call_errors.items()],
                draws=self._around.draws,
            )
        )

    def load(self) -> Step:
        return self._stepped(self._reloaded)

    def _reloaded(self) -> EngineStep:
        self._slot.take()
        self._slot.drop()
        worker = self._workers.attach_bare(self._plan.limits, os_policy=OS_POLICY)
        return self._engine.reload(self._attached(worker), self._host.output)

    def is_in_worker(self) -> bool:
        return True

    def memory_peak_bytes(self) -> int | None:
        worker = self._slot.worker
        return worker.peak.bytes() if worker is not None and self._measures else None

    def release(self, *, warm: bool) -> None:
        self._engine.standing = None
        self._slot.release(warm=warm)

    def kill(self) -> None:
        self._slot.kill()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _ended(self, outcome: Finished | Failure) -> StepEnded:
        """Find the result of the code."""
        failure = outcome if isinstance(outcome, Failure) else None
        if failure is not None and failure.hard:
            raise CellFailed(failure.error)
        if left_unchanged(outcome):
            if self._slot.worker is not None:
                self._slot.worker.version = None  # it was fed, and may have counted the source
            return StepEnded(error=failure.error if failure else None, refused=True)
        return self._completed(lambda: self._found(outcome, failure))

    def _found(self, outcome: Finished | Failure, failure: Failure | None) -> StepEnded:
        worker = self._slot.worker
        assert worker is not None
        program = self._plan.program
        raw = find_value(self._plan, worker, outcome)
        value: Json = None
        if failure is None:
            value, failure = self._checked(raw, worker)
        small = (
            raw is None
            or isinstance(raw, (int, float))
            or (isinstance(raw, str) and len(raw) <= _SMALL_CHARS)
        )
        unnamed = program.reads_only is not None or program.result_mode == "always"
        self._large_names = [] if small or unnamed else [VALUE_NAME]
        if isinstance(outcome, Finished) and program.last_call is not None:
            return StepEnded(last_call=_last_call(*program.last_call, value, failure))
        return StepEnded(result=value, error=failure.error if failure else None)

    def _checked(self, raw: object, worker: MontyWorker) -> tuple[Json, Failure | None]:
        """Convert the value to JSON, unless it is not or holds the text of something that is not text."""
        value, failure = value_as_json(raw)
        if failure is not None or value is None or isinstance(value, (int, float)):
            return value, failure
        functions = {*self._host.request.functions.names(), *self._plan.names, *self._plan.program.bound}
        if not may_hold_stand_ins(value, functions):
            return value, None
        foreign = stand_in_shown(worker, self._plan.program, functions)
        return (None, Failure(not_serializable(foreign))) if foreign else (value, None)

    def keep(self) -> bytes | None:
        return self._completed(self._state)

    def _state(self) -> bytes | None:
        worker, before = self._slot.worker, self._before
        assert worker is not None
        give_names_back(self._plan, worker, self._large_names)
        if self._plan.program.changes_nothing(self._plan.names, before is not None and before.has_classes):
            fed_without_storing(worker)
            return None
        state, compacted = state_after(self._plan, before, worker, self._workers)
        data = encode_state(state)
        worker.version = None if compacted else data
        worker.unsaved_feeds = 0
        return data

    def _completed(self, job: Callable[[], T]) -> T:
        """Do what is left after the code has run; a failure of the engine undoes the cell."""
        try:
            return job()
        except engine.MontyError as error:
            raise CellFailed(not_kept(error, self._plan.limits)) from error
        except Exception as error:
            message = f"the cell could not be completed: {error}"
            raise CellFailed(ErrorObject(code=Code.INTERRUPTED, message=message)) from error


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


def _plan_of(request: CellRequest, before: EngineState | None, paused: CellDump | None) -> RunPlan:
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
        plain_keys=before is None or before.plain_keys,
    )
    if paused is None:
        return plan
    return plan.standing(paused.dump, paused.filename, list(paused.borrowed), paused.kept)
