"""One run of guest code, from its first statement to its result or to the call it waits at.

Theory of operation
-------------------
The engine is stepped: it runs until guest code calls the host, and each answer runs it to the next call. One
thread drives a run from begin to end; handlers run elsewhere (a thread, an event loop) and their outcomes
arrive in the run's inbox::

    driver   begin ─ engine ─ HostCall ─ admit, start ─ wait ─ settle ─ engine ─ … ─ outcome
    handler                                └─ runs ───────┘

A plain call is answered with its value. A call that guest code awaits is answered with a future and runs
beside the others; when every guest task is blocked, whatever has settled is handed over. A call that needs a
person stops the run once nothing else can go on: the engine is dumped where it stands and the worker is free.

Rules
-----
1. A drive is a generator, so that it can change threads: a handler that runs on the driving thread and does
   not come back is left behind with that thread, and another takes the drive up where it stands.
2. Only the driver touches the engine. `stop` kills the worker's process and wakes the driver, no more.
3. A hard stop (limit, crash, cancel) leaves the session as it was before. A Python exception does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from standfast.errors import Code, ErrorObject
from standfast.model.approval import Approval
from standfast.model.call import SettledCall
from standfast.model.canonical import Json
from standfast.sandbox.calls_under_way import RunStopped
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.conclude import (
    fed_without_storing,
    find_stand_in,
    left_unchanged,
    not_kept,
    settle_names,
    state_after,
    value_as_json,
)
from standfast.sandbox.monty.engine_run import EngineRun
from standfast.sandbox.monty.failures import Failure
from standfast.sandbox.monty.plan import RunPlan
from standfast.sandbox.monty.state import EngineState, OpenState, PausedState, encode_paused
from standfast.sandbox.monty.stepper import ASYNC_SLEEP, SLEEP, Stepper
from standfast.sandbox.monty.steps import Blocked, Finished, HostCall, Step
from standfast.sandbox.monty.values import not_serializable
from standfast.sandbox.monty.workers import Worker, Workers
from standfast.sandbox.pump import Driven
from standfast.sandbox.registry_functions import RegistryFunctions
from standfast.sandbox.run_calls import RunCalls, RunHost, answer_of
from standfast.sandbox.run_errors import argument_not_json, deadlock_error, request_too_large
from standfast.sandbox.run_order import RunOrder
from standfast.sandbox.session_engine import Ended, Parked
from standfast.sandbox.snapshots import PausedRun
from standfast.tools.admission import Admission, Admitted, NeedsApproval


@dataclass(slots=True)
class Place:
    """A place among the workers, and what is in it."""

    workers: Workers
    worker: Worker | None


class MontyRun(EngineRun):
    """The state of one run. `drive` it once; `stop` it from anywhere."""

    def __init__(
        self,
        order: RunOrder,
        plan: RunPlan,
        host: RunHost,
        place: Place,
        before: tuple[EngineState | None, object],
    ) -> None:
        registry = host.dispatcher.registry
        stepper = Stepper(plan, RegistryFunctions(registry))
        super().__init__(plan, stepper, host.watchdog, order.paused)
        if order.paused is not None:
            stepper.calls_made = order.paused.calls_made
        self._order = order
        self._registry = registry
        self._place = place
        self._before, self._version = before
        self._calls = RunCalls(order, host)

    def _on_stop(self) -> None:
        self._calls.interrupt()

    def drive(self, decided: dict[int, Approval]) -> Driven[Ended | Parked]:
        """Run to the end. *decided* continues a parked run."""
        self._watch()
        outcome: Finished | Failure | Parked
        try:
            outcome = yield from self._drive(decided)
            self._end()
        except RunStopped:
            assert self._stopped is not None
            outcome = Failure(self._stopped, hard=True)
        finally:
            with self._stopping:
                self._ended = True
            self._watchdog.forget(self)
            self._calls.abandon()
        self._measure()
        return outcome if isinstance(outcome, Parked) else self._concluded(outcome)

    def leave(self, version: object) -> None:
        """Keep the worker warm if it holds the session as it is now, else free it."""
        place = self._place
        worker = place.worker
        if worker is None or worker.version is None or version is None:
            place.workers.give_back(worker)
        else:
            worker.version = version
            place.workers.keep(self._order.session_id, worker)

    def _drive(self, decided: dict[int, Approval]) -> Driven[Finished | Failure | Parked]:
        step: Step | Parked
        if self._order.paused is None:
            step = self._in_engine(lambda: self._begin(self._loaded))
        else:
            step = self._in_engine(lambda: self._stepper.reload(self._attach(self._bare), self.output))
            self._calls.start_decided(self._order.paused.pending, decided)
        while True:
            if isinstance(step, HostCall):
                step = yield from self._on_call(step)
            elif isinstance(step, Blocked):
                step = self._on_blocked(step)
            else:
                return step

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def _loaded(self) -> Worker:
        """The worker with the session loaded under these limits."""
        place = self._place
        worker = place.worker
        if worker is not None and worker.holds(self._version, self.plan.limits):
            return worker
        if worker is not None:
            worker.close()
        place.worker = worker = place.workers.attach(self._before, self.plan.limits)
        worker.version = self._version
        return worker

    def _bare(self) -> Worker:
        """A worker for a run that is loaded in the middle of itself."""
        place = self._place
        if place.worker is not None:
            place.worker.close()
        place.worker = worker = place.workers.attach_bare(self.plan.limits)
        return worker

    # ── what guest code asks of the host ─────────────────────────────────────────────────────────

    def _on_call(self, call: HostCall) -> Driven[Step | Parked]:
        if call.name in (SLEEP, ASYNC_SLEEP):
            return self._on_sleep(call)
        if call.call_id in self._calls.waiting:  # a parked run, loaded at the call it still waits for
            return self._park(call.snapshot)
        if call.call_id in self._calls:  # the same, and the call was decided
            return self._answer(call, self._calls.wait_for(call.call_id))
        admission = self._admit(call)
        if isinstance(admission, SettledCall):
            return self._answer(call, self._calls.record(call.call_id, admission))
        if isinstance(admission, NeedsApproval):
            return self._on_approval_needed(call, admission.call)
        if not call.awaited and self._calls.may_run_here:
            settled = yield from self._calls.call_here(admission)
            if settled is not None:
                return self._answer(call, self._calls.record(call.call_id, settled))
        self._calls.start(admission)
        if call.awaited:
            return self._in_engine(lambda: self._stepper.promise(call))
        return self._answer(call, self._calls.wait_for(call.call_id))

    def _admit(self, call: HostCall) -> Admission:
        if call.too_large is not None:
            return self._calls.refuse(call.name, request_too_large(call.name, call.too_large))
        if call.foreign is not None:
            return self._calls.refuse(call.name, argument_not_json(call.name, call.foreign))
        return self._calls.admit(call.name, call.args, call.kwargs, call.call_id)

    def _on_approval_needed(self, call: HostCall, admitted: Admitted) -> Step | Parked:
        self._calls.ask_person(admitted, awaited=call.awaited)
        if call.awaited:
            return self._in_engine(lambda: self._stepper.promise(call))
        return self._park(call.snapshot)

    def _on_blocked(self, blocked: Blocked) -> Step | Parked:
        while not (settled := self._calls.take(blocked.pending)):
            if self._calls.some:
                self._calls.hear()
            elif self._calls.waiting:
                return self._park(blocked.snapshot)
            else:
                return Failure(deadlock_error(), hard=True)
        answers = {call_id: answer_of(item) for call_id, item in settled.items()}
        return self._in_engine(lambda: self._stepper.answer_futures(blocked, answers))

    def _on_sleep(self, call: HostCall) -> Step:
        self._calls.sleep(call.call_id, float(call.args[0]) if call.args else 0.0)
        if call.name == ASYNC_SLEEP:
            return self._in_engine(lambda: self._stepper.promise(call))
        return self._answer(call, self._calls.wait_for(call.call_id))

    def _answer(self, call: HostCall, settled: SettledCall | None) -> Step:
        return self._in_engine(lambda: self._stepper.answer(call, answer_of(settled)))

    def _park(self, snapshot: engine.FunctionSnapshot | engine.FutureSnapshot) -> Parked | Failure:
        """Wait for calls in flight, then dump the engine where it stands."""
        while self._calls.some:
            self._calls.hear()
        dump = self._in_engine(lambda: self._loadable(snapshot.dump()))
        if isinstance(dump, Failure):
            return Failure(dump.error, hard=True)
        self._measure()
        if self._place.worker is not None:
            self._place.worker.version = None  # it stands in the middle of a run
        return Parked(encode_paused(PausedState(before=self._before, dump=dump)), self._paused())

    def _loadable(self, dump: bytes) -> bytes:
        self._place.workers.check_loads(dump, self.plan.limits, paused=True)
        return dump

    def _paused(self) -> PausedRun:
        order, plan, calls = self._order, self.plan, self._calls
        return PausedRun(
            run_id=order.run_id,
            code=order.code,
            filename=plan.filename,
            limits=plan.limits,
            input_names=order.paused.input_names if order.paused else list(order.inputs or ()),
            shadowed=plan.kept,
            return_snapshot=order.return_snapshot,
            pending=list(calls.waiting.values()),
            settled=calls.settled,
            records=calls.records,
            calls_made=self._stepper.calls_made,
            stdout=self.output.stdout,
            stderr=self.output.stderr,
            truncated=self.output.truncated,
            wall_used_ms=self.duration_ms(),
            memory_peak_bytes=self.memory_peak,
        )

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _concluded(self, outcome: Finished | Failure) -> Ended:
        """Find the run's value and what it left."""
        failure = outcome if isinstance(outcome, Failure) else None
        worker = self._place.worker
        if worker is None or left_unchanged(outcome) or (failure is not None and failure.hard):
            return self._unchanged(failure)
        try:
            raw = settle_names(self.plan, worker, outcome)
        except engine.MontyError as error:
            return self._unchanged(Failure(not_kept(error, self.plan.limits), hard=True))
        except Exception as error:
            lost = ErrorObject(code=Code.INTERRUPTED, message=f"the run could not be completed: {error}")
            return self._unchanged(Failure(lost, hard=True))
        value: Json = None
        if failure is None:
            value, failure = value_as_json(raw)
        return self._stored(worker, value, failure)

    def _stored(self, worker: Worker, value: Json, failure: Failure | None) -> Ended:
        """The end of a run that was not undone, with the state that it left if it may have left any."""
        before, plan = self._before, self.plan
        classes = before is not None and before.has_classes
        if plan.program.changes_nothing(plan.names, classes) and not plan.borrowed:
            fed_without_storing(worker)
            return self._over(*self._looked_through(value, failure, before))
        try:
            state, compacted = state_after(plan, before, worker, self._place.workers)
        except engine.MontyError as error:
            return self._unchanged(Failure(not_kept(error, plan.limits), hard=True))
        value, failure = self._looked_through(value, failure, state)
        worker.version = None if compacted else state
        worker.unsaved_feeds = 0
        return self._over(value, failure, OpenState.of(state))

    def _unchanged(self, failure: Failure | None) -> Ended:
        """The session stays as it was; what the worker holds is not the session any more."""
        if self._place.worker is not None:
            self._place.worker.version = None
        return self._over(None, failure)

    def _looked_through(
        self, value: Json, failure: Failure | None, state: EngineState | None
    ) -> tuple[Json, Failure | None]:
        """Refuse a result that holds the text of something that is not text."""
        if failure is not None or value is None or isinstance(value, (int, float)):
            return value, failure
        functions = {*self._registry.names(), *(state.names if state else ())}
        foreign = find_stand_in(value, self.plan.program, functions, state, self._place.workers)
        return (None, Failure(not_serializable(foreign))) if foreign else (value, failure)

    def _over(self, value: Json, failure: Failure | None, state: OpenState | None = None) -> Ended:
        return Ended(
            value=value,
            error=failure.error if failure is not None else None,
            hard=failure is not None and failure.hard,
            changed=state is not None,
            state=state,
            records=self._calls.records,
            calls_made=self._stepper.calls_made,
            stdout=self.output.stdout,
            stderr=self.output.stderr,
            truncated=self.output.truncated,
            wall_used_ms=self.duration_ms(),
            memory_peak_bytes=self.memory_peak,
        )
