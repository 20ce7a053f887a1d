"""Calls to tools by name, and their results, for tests of the dispatcher."""

from __future__ import annotations

import queue
from typing import Any

from standfast.model.capability import SettledCall
from standfast.tools.dispatch import Arrived, Dispatcher
from standfast.tools.registered_tool import Admission, Admitted
from standfast.tools.settlement import settle_outcome


def admit(dispatcher: Dispatcher, name: str, args: object, kwargs: object, *, call_id: int = 0) -> Admission:
    """Check a call up to and including its approval policy."""
    tool = dispatcher.registry.require(name)
    return dispatcher.admit_tool(tool, args, kwargs, session_id="s", call_id=call_id)


def perform(dispatcher: Dispatcher, call: Admitted) -> SettledCall:
    """Execute an admitted call and return its result."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    running = dispatcher.start(call, inbox)
    while True:
        try:
            message = inbox.get(timeout=dispatcher.seconds_left(running))
        except queue.Empty:
            if (settled := dispatcher.expire(running)) is not None:
                return settled
            continue
        if isinstance(message, Arrived):
            return settle_outcome(call, running.started, message.value, message.error)
