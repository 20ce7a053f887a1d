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

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, TypeVar

from holdfast.errors import Code, ErrorObject
from holdfast.model.approval import Approval, ApprovalState
from holdfast.model.call import ExternalCallRecord, SettledCall
from holdfast.ports.code_engine import CallAnswer
from holdfast.ports.journal import CallJournal, PendingCall
from holdfast.sandbox.monty import engine
from holdfast.sandbox.monty.calls import CallsUnderWay
from holdfast.sandbox.monty.engine_run import EngineRun
from holdfast.sandbox.monty.failures import Failure
from holdfast.sandbox.monty.functions import RegistryFunctions
from holdfast.sandbox.monty.plan import RunPlan
from holdfast.sandbox.monty.run_errors import deadlock_error, denial
from holdfast.sandbox.monty.stepper import ASYNC_SLEEP, SLEEP, Stepper
from holdfast.sandbox.monty.steps import Blocked, HostCall, Outcome, Parked, RunStopped, Step
from holdfast.sandbox.monty.workers import Worker
from holdfast.sandbox.snapshots import PausedRun
from holdfast.sandbox.watchdog import Watchdog
from holdfast.tools.admission import Admitted, NeedsApproval
from holdfast.tools.dispatch import Dispatcher
from holdfast.tools.running import Arrived, RunningCall
from holdfast.tools.settlement import settle_denied, settle_failure

T = TypeVar("T")
Driven = Generator[RunningCall, Arrived | None, T]
"""A part of a drive. It yields calls whose handlers are to be run by whoever drives; see `pump`."""


@dataclass(frozen=True, slots=True)
class RunHost:
    """What a run needs of the world around it."""

    dispatcher: Dispatcher
    watchdog: Watchdog
    journal: CallJournal | None
    on_own_thread: bool = False
    """Whether the driving thread may be left to a handler that hangs; a caller's own thread may not."""


class MontyRun(EngineRun):
    """The state of one run. `drive` it once; `stop` it from anywhere."""

    def __init__(self, plan: RunPlan, host: RunHost) -> None:
        paused = plan.paused
        stepper = Stepper(plan, RegistryFunctions(host.dispatcher.registry))
        super().__init__(plan, stepper, host.watchdog, paused)
        self._host = host
        self._calls = CallsUnderWay(
            host.dispatcher,
            host.journal,
            records=dict(paused.records) if paused else {},
            settled=dict(paused.settled) if paused else {},
        )
        self._waiting: dict[int, PendingCall] = {}
        self._here: RunningCall | None = None
        self.go_on: Callable[[], None] | None = None
        """Continues the drive on another thread, when a handler keeps this one."""

    @property
    def records(self) -> dict[int, ExternalCallRecord]:
        """What is known of each call, by its id."""
        return self._calls.records

    @property
    def calls_made(self) -> int:
        return self._stepper.calls_made

    def _on_stop(self) -> None:
        self._calls.interrupt()
        if (here := self._here) is not None:
            self._leave_behind(here)

    def drive(
        self, begin: Callable[[], Worker], decided: dict[int, Approval] | None = None
    ) -> Driven[Outcome]:
        """Run to the end. *begin* gives the worker; *decided* continues a parked run."""
        self._watch()
        try:
            outcome = yield from self._drive(begin, decided)
            self._end()
        except RunStopped:
            assert self._stopped is not None
            outcome = Failure(self._stopped, hard=True)
        finally:
            with self._stopping:
                self._ended = True
            self._host.watchdog.forget(self)
            self._calls.abandon(self._here)
        self._measure()
        return outcome

    def _drive(self, begin: Callable[[], Worker], decided: dict[int, Approval] | None) -> Driven[Outcome]:
        step: Step | Parked
        if self.plan.paused is None:
            step = self._in_engine(lambda: self._begin(begin))
        else:
            step = self._in_engine(lambda: self._stepper.reload(self._attach(begin), self.output))
            self._start_decided(self.plan.paused, decided or {})
        while True:
            if isinstance(step, HostCall):
                step = yield from self._on_call(step)
            elif isinstance(step, Blocked):
                step = self._on_blocked(step)
            else:
                return step

    # ── what guest code asks of the host ─────────────────────────────────────────────────────────

    def _on_call(self, call: HostCall) -> Driven[Step | Parked]:
        if call.name in (SLEEP, ASYNC_SLEEP):
            return self._on_sleep(call)
        if call.call_id in self._waiting:  # a parked run, loaded at the call it still waits for
            return self._park(call.snapshot)
        if call.call_id in self._calls:  # the same, and the call was decided
            return self._answer(call, self._calls.wait_for(call.call_id))
        admission = self._admit(call)
        if isinstance(admission, SettledCall):
            return self._answer(call, self._calls.record(call.call_id, admission))
        if isinstance(admission, NeedsApproval):
            return self._on_approval_needed(call, admission.call)
        if not call.awaited and self._host.on_own_thread:
            settled = yield from self._call_here(admission)
            if settled is not None:
                return self._answer(call, self._calls.record(call.call_id, settled))
        self._calls.start(admission)
        if call.awaited:
            return self._in_engine(lambda: self._stepper.promise(call))
        return self._answer(call, self._calls.wait_for(call.call_id))

    def _admit(self, call: HostCall) -> Admitted | NeedsApproval | SettledCall:
        if call.foreign is not None:
            message = f"an argument of {call.name}() is not JSON: it holds {call.foreign}"
            tool = self._host.dispatcher.registry.require(call.name)
            return settle_failure(tool, "", ErrorObject(code=Code.INVALID_ARGUMENT, message=message))
        return self._host.dispatcher.admit(
            call.name, call.args, call.kwargs, session_id=self.plan.session_id, call_id=call.call_id
        )

    def _call_here(self, call: Admitted) -> Driven[SettledCall | None]:
        """Have the handler run on the driving thread, which saves two changes of threads, if it can."""
        running = self._calls.start_here(call)
        if running is None or isinstance(running, SettledCall):
            return running
        self._here = running
        if self._stopped is not None:  # before it was known where to stop
            raise RunStopped
        seconds = call.tool.capability.limits.timeout_ms / 1000
        self._host.watchdog.watch(running, seconds, lambda: self._leave_behind(running))
        arrived = yield running
        self._host.watchdog.forget(running)
        if self._stopped is not None:
            raise RunStopped
        self._here = None
        return self._calls.settle_late(running) if arrived is None else self._calls.settle(arrived)

    def _leave_behind(self, running: RunningCall) -> None:
        """Go on without a handler that does not come back, on another thread."""
        if running.abandon() and self.go_on is not None:
            self.go_on()

    def _on_approval_needed(self, call: HostCall, admitted: Admitted) -> Step | Parked:
        self._waiting[call.call_id] = PendingCall(
            call_id=call.call_id,
            name=call.name,
            args=admitted.context.args,
            kwargs=admitted.context.kwargs,
            approval_id="",
            contract=admitted.tool.digest,
            awaited=call.awaited,
        )
        self._calls.record_waiting(admitted)
        if call.awaited:
            return self._in_engine(lambda: self._stepper.promise(call))
        return self._park(call.snapshot)

    def _on_blocked(self, blocked: Blocked) -> Step | Parked:
        while not (settled := self._calls.take(blocked.pending)):
            if self._calls.some:
                self._calls.hear()
            elif self._waiting:
                return self._park(blocked.snapshot)
            else:
                return Failure(deadlock_error(), hard=True)
        answers = {call_id: answer_of(item) for call_id, item in settled.items()}
        return self._in_engine(lambda: self._stepper.answer_futures(blocked, answers))

    def _on_sleep(self, call: HostCall) -> Step:
        self._calls.sleep(call.call_id, max(0.0, float(call.args[0])) if call.args else 0.0)
        if call.name == ASYNC_SLEEP:
            return self._in_engine(lambda: self._stepper.promise(call))
        return self._answer(call, self._calls.wait_for(call.call_id))

    def _answer(self, call: HostCall, settled: SettledCall | None) -> Step:
        return self._in_engine(lambda: self._stepper.answer(call, answer_of(settled)))

    # ── waiting for people ───────────────────────────────────────────────────────────────────────

    def _start_decided(self, paused: PausedRun, decided: dict[int, Approval]) -> None:
        """Begin the calls that were approved and settle those that were not."""
        for pending in paused.pending:
            approval = decided.get(pending.call_id)
            if approval is None or approval.state is ApprovalState.PENDING:
                self._waiting[pending.call_id] = pending
            else:
                self._start_one(pending, approval)

    def _start_one(self, pending: PendingCall, approval: Approval) -> None:
        tool = self._host.dispatcher.registry.require(pending.name)
        checked = self._host.dispatcher.check(
            tool, approval.args, approval.kwargs, session_id=self.plan.session_id, call_id=pending.call_id
        )
        if isinstance(checked, SettledCall):
            self._calls.add(pending.call_id, checked)
        elif approval.state is ApprovalState.APPROVED and tool.digest == pending.contract:
            self._calls.start(checked)
        else:
            self._calls.add(pending.call_id, settle_denied(checked, denial(pending.name, approval)))

    def _park(self, snapshot: engine.FunctionSnapshot | engine.FutureSnapshot) -> Parked | Failure:
        """Wait for calls in flight, then dump the engine where it stands."""
        while self._calls.some:
            self._calls.hear()
        dump = self._in_engine(snapshot.dump)
        if isinstance(dump, Failure):
            return Failure(dump.error, hard=True)
        self._measure()
        plan = self.plan
        paused = PausedRun(
            run_id=plan.run_id,
            code=plan.program.code,
            filename=plan.filename,
            limits=plan.limits,
            input_names=plan.input_names,
            shadowed=plan.kept,
            return_snapshot=plan.return_snapshot,
            pending=list(self._waiting.values()),
            settled=self._calls.settled,
            records=self.records,
            calls_made=self.calls_made,
            stdout=self.output.stdout,
            stderr=self.output.stderr,
            truncated=self.output.truncated,
            wall_used_ms=self.duration_ms(),
            memory_peak_bytes=self.memory_peak,
        )
        return Parked(dump, paused)


def answer_of(settled: SettledCall | None) -> CallAnswer:
    """What the engine is told of a call; None is the end of a sleep."""
    if settled is None:
        return _SLEPT
    return CallAnswer(value=settled.value, exception=settled.exception, error=settled.record.error)


_SLEPT: Final = CallAnswer()
