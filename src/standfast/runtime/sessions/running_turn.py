"""Which turn the running code is a part of, and which turns wait for which.

Theory of operation
-------------------
While a turn is driven, its context stands in a context variable, so that tools, hooks and code
of the turn have them wherever they run. Work that goes on beside the turn begins without them (`detached`).

Whoever waits, within a turn of one session, for a turn of another adds an edge between the two for so long. A
wait that would close a circle is refused: it would never end.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import Counter
from collections.abc import Iterator
from typing import Final

from standfast.errors import TurnWaitsForItself
from standfast.plugins.running import HOOK
from standfast.plugins.turn_hooks import TurnContext

RUNNING_TURN: Final[contextvars.ContextVar[TurnContext | None]] = contextvars.ContextVar(
    "standfast_running_turn", default=None
)
"""The turn that this code is a part of."""


def detached() -> contextvars.Context:
    """A copy of the current context for work that is no part of the turn under way."""
    context = contextvars.copy_context()
    context.run(RUNNING_TURN.set, None)
    context.run(HOOK.set, "")
    return context


class TurnWaits:
    """Which sessions wait, in the middle of a turn, for turns of which others."""

    __slots__ = ("_edges",)

    def __init__(self) -> None:
        self._edges: dict[str, Counter[str]] = {}

    @contextlib.contextmanager
    def waiting_for(self, session_id: str) -> Iterator[None]:
        """Wait for a turn of a session; `TurnWaitsForItself` if that waits for the one that asks."""
        here = RUNNING_TURN.get()
        if here is None:
            yield
            return
        if self._reaches(session_id, here.session_id):
            raise TurnWaitsForItself(here.session_id, session_id)
        edges = self._edges.setdefault(here.session_id, Counter())
        edges[session_id] += 1
        try:
            yield
        finally:
            self._drop(here.session_id, session_id)

    def waits_for_asker(self, session_id: str) -> bool:
        """Whether a turn of the session cannot end before the one that asks goes on."""
        here = RUNNING_TURN.get()
        return here is not None and self._reaches(session_id, here.session_id)

    def _reaches(self, start: str, goal: str) -> bool:
        """Whether *start* is *goal*, or waits for it however indirectly."""
        seen, todo = {start}, [start]
        while todo:
            at = todo.pop()
            if at == goal:
                return True
            new = set(self._edges.get(at, ())) - seen
            seen |= new
            todo += new
        return False

    def _drop(self, waiter: str, session_id: str) -> None:
        edges = self._edges[waiter]
        edges[session_id] -= 1
        if not edges[session_id]:
            del edges[session_id]
        if not edges:
            del self._edges[waiter]
