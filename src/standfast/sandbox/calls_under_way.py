"""The calls of one run that are under way, asleep or settled, and the records they leave.

Handlers run elsewhere and tell the inbox. `hear` waits for the next thing to happen: an outcome, the end of
a sleep, the end of a call's time, or a stop.
"""

from __future__ import annotations

import queue
import time
from typing import Final

from standfast.errors import StandfastError
from standfast.model.call import MAX_TRACEBACKS, CallStatus, ExternalCallRecord, SettledCall
from standfast.ports.journal import CallJournal
from standfast.sandbox.run_errors import under_way_error
from standfast.tools.admission import Admitted
from standfast.tools.dispatch import Dispatcher
from standfast.tools.running import Arrived, Inbox, RunningCall
from standfast.tools.settlement import settle_failure

_LONGEST_S: Final = 366 * 86_400.0
"""No sleep is longer: what waits for one is timed, and no run lives as long."""


class RunStopped(Exception):
    """The run was stopped from outside; nothing of it may go on."""


class CallsUnderWay:
    """Used by the thread that drives the run; only `interrupt` may be called from others."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        journal: CallJournal | None,
        records: dict[int, ExternalCallRecord],
        settled: dict[int, SettledCall | None],
    ) -> None:
        self._dispatcher = dispatcher
        self._journal = journal
        self.records = records
        self.settled = settled
        self._running: dict[int, RunningCall] = {}
        self._sleeping: dict[int, float] = {}
        self._inbox: Inbox = queue.SimpleQueue()

    @property
    def some(self) -> bool:
        """Whether anything is still to come."""
        return bool(self._running or self._sleeping)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self._running or call_id in self.settled

    def start(self, call: Admitted) -> None:
        """Begin a call; it may settle at once."""
        try:
            started = self._dispatcher.start(call, self._inbox, self._journal)
        except StandfastError as error:
            started = settle_failure(call.tool, call.request_digest, error.error_object())
        if isinstance(started, SettledCall):
            self.add(call.call_id, started)
        else:
            self._running[call.call_id] = started

    def start_here(self, call: Admitted) -> RunningCall | SettledCall | None:
        """Begin a call whose handler the driving thread runs; None if it cannot."""
        try:
            return self._dispatcher.start_here(call, self._journal)
        except StandfastError as error:
            return settle_failure(call.tool, call.request_digest, error.error_object())

    def sleep(self, call_id: int, seconds: float) -> None:
        self._sleeping[call_id] = time.monotonic() + min(max(0.0, seconds), _LONGEST_S)

    def add(self, call_id: int, settled: SettledCall) -> None:
        """Keep a result until it is handed over."""
        self.settled[call_id] = self.record(call_id, settled)

    def wait_for(self, call_id: int) -> SettledCall | None:
        """The result of a call, or None for a sleep, once it is there."""
        while call_id not in self.settled:
            self.hear()
        return self.settled.pop(call_id)

    def take(self, call_ids: list[int]) -> dict[int, SettledCall | None]:
        """The results that are there, of these calls."""
        return {call_id: self.settled.pop(call_id) for call_id in call_ids if call_id in self.settled}

    def hear(self) -> None:
        """Wait for the next thing to happen and take note of it."""
        try:
            message = self._inbox.get(timeout=self._patience())
        except queue.Empty:
            self._expire()
            return
        if message is None:
            raise RunStopped
        if isinstance(message, Arrived):
            call_id = message.running.call.call_id
            del self._running[call_id]
            self.add(call_id, self.settle(message))

    def interrupt(self) -> None:
        """Wake the driving thread; it finds that the run was stopped."""
        self._inbox.put(None)

    def settle(self, arrived: Arrived) -> SettledCall:
        try:
            return self._dispatcher.settle(arrived)
        except StandfastError as error:
            call = arrived.running.call
            return settle_failure(call.tool, call.request_digest, error.error_object())

    def settle_late(self, running: RunningCall) -> SettledCall:
        return self._dispatcher.settle_late(running)

    def record(self, call_id: int, settled: SettledCall) -> SettledCall:
        record = settled.record
        if record.traceback and self._tracebacks() >= MAX_TRACEBACKS:
            record = record.without_traceback()
        self.records[call_id] = record
        return settled

    def _tracebacks(self) -> int:
        return sum(bool(record.traceback) for record in self.records.values())

    def record_waiting(self, call: Admitted) -> None:
        """The record of a call that waits for a person."""
        self.records[call.call_id] = ExternalCallRecord(
            name=call.tool.name,
            side_effect=call.tool.capability.side_effect,
            duration_ms=0,
            status=CallStatus.APPROVAL_PENDING,
            request_digest=call.request_digest,
        )

    def abandon(self) -> None:
        """Give up what is under way, and say that nobody knows what became of it."""
        for running in self._running.values():
            running.abandon()
            call = running.call
            error = under_way_error(call.tool.name)
            self.record(call.call_id, settle_failure(call.tool, call.request_digest, error))
        self._running.clear()

    def _patience(self) -> float | None:
        """Seconds until something is due by itself."""
        now = time.monotonic()
        due = [max(0.0, moment - now) for moment in self._sleeping.values()]
        for running in self._running.values():
            if (left := self._dispatcher.seconds_left(running)) is not None:
                due.append(left)
        return min(due, default=None)

    def _expire(self) -> None:
        now = time.monotonic()
        for call_id in [key for key, moment in self._sleeping.items() if moment <= now]:
            del self._sleeping[call_id]
            self.settled[call_id] = None
        for call_id, running in list(self._running.items()):
            if (settled := self._dispatcher.expire(running)) is not None:
                del self._running[call_id]
                self.add(call_id, settled)
