"""Calls to tools by name, and their results, for tests of the dispatcher."""

from __future__ import annotations

import queue
from typing import Any

from standfast.model.capability import SettledCall
from standfast.tools.dispatch import Dispatcher, RunningCall
from standfast.tools.registered_tool import Admission, Admitted
from standfast.tools.settlement import settle_outcome


def admit(dispatcher: Dispatcher, name: str, args: object, kwargs: object, *, call_id: int = 0) -> Admission:
    """Check a call up to and including its approval policy."""
    tool = dispatcher.registry.require(name)
    return dispatcher.admit_tool(tool, args, kwargs, session_id="s", call_id=call_id)


class _Performed(RunningCall):
    """A running call that puts its outcome into a queue."""

    def __init__(self, call: Admitted) -> None:
        super().__init__(call)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def launched(self) -> None:
        self.inbox.put(None)

    def returned(self, value: object, error: BaseException | None) -> None:
        self.inbox.put((value, error))


def perform(dispatcher: Dispatcher, call: Admitted) -> SettledCall:
    """Execute an admitted call and return its result."""
    running = _Performed(call)
    dispatcher.start(running)
    while True:
        try:
            outcome = running.inbox.get(timeout=running.seconds_left())
        except queue.Empty:
            if (settled := running.expire()) is not None:
                return settled
            continue
        if outcome is not None:
            return settle_outcome(call, running.started, *outcome)
