"""The calls that guest code makes in one run, from their admission to what the code is told of them.

Theory of operation
-------------------
A call is admitted, and then it runs, waits for a person, or has failed already. One whose handler may run on
the driving thread does so, which saves two changes of threads; the others run elsewhere, beside each other.
When a run goes on after a decision, the calls that were approved begin and the others settle as denied.

Rules
-----
1. A handler that keeps the driving thread too long is left behind with it; the drive goes on elsewhere.
2. Only `interrupt` may be called from other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from standfast.errors import ErrorObject
from standfast.model.approval import Approval, ApprovalState
from standfast.model.call import SettledCall
from standfast.ports.code_engine import CallAnswer
from standfast.ports.journal import CallJournal, PendingCall
from standfast.sandbox.calls_under_way import CallsUnderWay, RunStopped
from standfast.sandbox.pump import Driven
from standfast.sandbox.run_errors import denial
from standfast.sandbox.run_order import RunOrder
from standfast.sandbox.watchdog import Watchdog
from standfast.tools.admission import Admission, Admitted
from standfast.tools.context import RunContext
from standfast.tools.dispatch import Dispatcher
from standfast.tools.running import RunningCall
from standfast.tools.settlement import settle_denied, settle_failure


@dataclass(frozen=True, slots=True)
class RunHost:
    """What a run needs of the world around it."""

    dispatcher: Dispatcher
    watchdog: Watchdog
    journal: CallJournal | None
    go_on: Callable[[], None] | None = None
    """Continues the drive on another thread when a handler keeps this one; a caller's own cannot be left."""


class RunCalls(CallsUnderWay):
    """One run's calls. `waiting` are those that a person has to decide about."""

    def __init__(self, order: RunOrder, host: RunHost) -> None:
        paused = order.paused
        super().__init__(
            host.dispatcher,
            host.journal,
            records=dict(paused.records) if paused else {},
            settled=dict(paused.settled) if paused else {},
        )
        self._host = host
        self._order = order
        self._session_id = order.session_id
        self._here: RunningCall | None = None
        self._interrupted = False
        self.waiting: dict[int, PendingCall] = {}
        self.may_run_here = host.go_on is not None

    def admit(self, name: str, args: Any, kwargs: Any, call_id: int) -> Admission:
        """Check a call up to and including its approval policy."""
        admission = self._dispatcher.admit(name, args, kwargs, session_id=self._session_id, call_id=call_id)
        if isinstance(admission, Admitted) and admission.tool.takes_context:
            return msgspec.structs.replace(admission, run_context=self._context(call_id))
        return admission

    def refuse(self, name: str, error: ErrorObject) -> SettledCall:
        """Settle a call whose arguments have no JSON form or exceed a limit."""
        return settle_failure(self._dispatcher.registry.require(name), "", error)

    def call_here(self, call: Admitted) -> Driven[SettledCall | None]:
        """Have the handler run on the driving thread; None if it cannot."""
        running = self.start_here(call)
        if running is None or isinstance(running, SettledCall):
            return running
        self._here = running
        if self._interrupted:  # before it was known where to stop
            raise RunStopped
        seconds = call.timeout_ms / 1000
        self._host.watchdog.watch(running, seconds, lambda: self._leave_behind(running))
        arrived = yield running
        self._host.watchdog.forget(running)
        if self._interrupted:
            raise RunStopped
        self._here = None
        return self.settle_late(running) if arrived is None else self.settle(arrived)

    def ask_person(self, call: Admitted, *, awaited: bool) -> None:
        """Take note of a call that waits for a person."""
        self.waiting[call.call_id] = PendingCall(
            call_id=call.call_id,
            name=call.tool.name,
            args=call.context.args,
            kwargs=call.context.kwargs,
            approval_id="",
            contract=call.tool.digest,
            awaited=awaited,
        )
        self.record_waiting(call)

    def start_decided(self, pending: list[PendingCall], decided: dict[int, Approval]) -> None:
        """Begin the calls that were approved and settle those that were not."""
        for call in pending:
            approval = decided.get(call.call_id)
            if approval is None or approval.state is ApprovalState.PENDING:
                self.waiting[call.call_id] = call
            else:
                self._start_one(call, approval)

    def interrupt(self) -> None:
        """Wake the driving thread; it finds that the run was stopped."""
        self._interrupted = True
        super().interrupt()
        if (here := self._here) is not None:
            self._leave_behind(here)

    def abandon(self) -> None:
        """Give up what is under way, here or elsewhere."""
        if self._here is not None:
            self._running[self._here.call.call_id] = self._here
        super().abandon()

    def _context(self, call_id: int) -> RunContext[Any]:
        """What a tool may know about the run that calls it."""
        order = self._order
        return RunContext(
            None,
            order.session_id,
            call_id=call_id,
            limits=order.limits,
            session_limits=order.session_limits,
        )

    def _start_one(self, pending: PendingCall, approval: Approval) -> None:
        tool = self._dispatcher.registry.require(pending.name)
        checked = self._dispatcher.check(
            tool, approval.args, approval.kwargs, session_id=self._session_id, call_id=pending.call_id
        )
        if isinstance(checked, SettledCall):
            self.add(pending.call_id, checked)
        elif approval.state is ApprovalState.APPROVED and tool.digest == pending.contract:
            context = self._context(pending.call_id) if tool.takes_context else None
            self.start(msgspec.structs.replace(checked, run_context=context))
        else:
            self.add(pending.call_id, settle_denied(checked, denial(pending.name, approval)))

    def _leave_behind(self, running: RunningCall) -> None:
        """Go on without a handler that does not come back, on another thread."""
        if running.abandon() and self._host.go_on is not None:
            self._host.go_on()


def answer_of(settled: SettledCall | None) -> CallAnswer:
    """What the engine is told of a call; None is the end of a sleep."""
    if settled is None:
        return _SLEPT
    return CallAnswer(value=settled.value, exception=settled.exception, error=settled.record.error)


_SLEPT: Final = CallAnswer()
