"""Waiting for turns, and closing a session together with all sessions below it.

Theory of operation
-------------------
Closing works in two passes. From the top down, queued inputs are withdrawn and every turn is cancelled, so
that no new work starts. Then, from the deepest session up, each turn's end is awaited, and the session's
tasks and monitors are ended. Sessions that were created in the meantime are found by another round.

Rule: a turn that cannot end before the calling turn does is not awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from standfast.errors import ServiceUnavailable, TurnNotFound, TurnWaitsForItself
from standfast.model.events import Event, TurnCommitted, TurnParked
from standfast.model.session import TurnRecord, TurnState
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.turn import RUNNING_TURN, EventSignal

END_S: Final = 10.0
"""How long closing waits for a cancelled turn to end."""


class WaitGraph:
    """The sessions whose turns wait for turns of other sessions.

    A wait that would form a cycle is refused.
    """

    __slots__ = ("_edges",)

    def __init__(self) -> None:
        self._edges: dict[str, Counter[str]] = {}

    @contextlib.contextmanager
    def waiting_for(self, session_id: str) -> Iterator[None]:
        """Record that the calling turn waits for a session; raise `TurnWaitsForItself` if that is a cycle."""
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
            edges[session_id] -= 1
            if not edges[session_id]:
                del edges[session_id]
            if not edges:
                del self._edges[here.session_id]

    def waits_for_asker(self, session_id: str) -> bool:
        """Return whether a turn of the session cannot end before the calling turn does."""
        here = RUNNING_TURN.get()
        return here is not None and self._reaches(session_id, here.session_id)

    def _reaches(self, start: str, goal: str) -> bool:
        """Return whether *start* is *goal*, or waits for it directly or indirectly."""
        seen, todo = {start}, [start]
        while todo:
            at = todo.pop()
            if at == goal:
                return True
            new = set(self._edges.get(at, ())) - seen
            seen |= new
            todo += new
        return False


class _EndOf(EventSignal):
    """A signal that is set when a turn has ended or waits."""

    __slots__ = ("_turn_id",)

    def __init__(self, turn_id: str) -> None:
        super().__init__()
        self._turn_id = turn_id

    def receive(self, event: Event) -> None:
        if isinstance(event, TurnCommitted | TurnParked) and event.turn_id == self._turn_id:
            self.ring()


async def turn_rests(directory: SessionDirectory, record: TurnRecord, *, ended: bool = False) -> TurnRecord:
    """Wait until the turn, in any process, has ended or waits; with *ended*, until it has ended."""
    turn_id, feed = record.turn_id, directory.live(record.session_id).events.feed
    bell = feed.listen(_EndOf(turn_id))
    try:
        while True:
            if not directory.is_open:
                raise ServiceUnavailable("awaiting turns", "the runtime is closed")
            found = await directory.store.turn(turn_id)
            if found is None:
                raise TurnNotFound(turn_id)
            if found.state is TurnState.ENDED or (found.state is TurnState.WAITING and not ended):
                return found
            await bell.wait(directory.poll_s)
    finally:
        feed.leave(bell)


async def close_tree(
    directory: SessionDirectory,
    waits: WaitGraph,
    session_id: str,
    end_beside: Callable[[str], Awaitable[None]],
) -> None:
    """Close a session and all sessions below it; *end_beside* ends the tasks and monitors of one session."""
    closed: set[str] = set()
    while True:
        tree = [session_id]
        for one in tree:  # parents before children
            tree += [head.session_id for head in await directory.store.children(one)]
        new = [one for one in tree if one not in closed]
        if not new:
            return
        for one in new:
            await _withdraw_inputs(directory, one)
            if (record := await directory.store.open_turn(one)) is not None:
                await directory.live(one).cancel(record.turn_id)
        for one in reversed(new):
            await _await_end(directory, waits, one)
            await end_beside(one)
            await _withdraw_inputs(directory, one)
            directory.live(one).forget()
        closed.update(new)


async def _withdraw_inputs(directory: SessionDirectory, session_id: str) -> None:
    """Withdraw the inputs that would start a turn."""
    for item in await directory.store.inputs(session_id):
        if item.kind != "first":
            await directory.store.withdraw_input(item.input_id)


async def _await_end(directory: SessionDirectory, waits: WaitGraph, session_id: str) -> None:
    """Wait for a cancelled turn to end, unless its agent is unknown here and only others can end it."""
    record = await directory.store.open_turn(session_id)
    if record is None or waits.waits_for_asker(session_id):
        return
    if record.state is not TurnState.RUNNING and directory.live(session_id).prepared is None:
        return  # a process that knows its agent will end it
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await turn_rests(directory, record, ended=True)
