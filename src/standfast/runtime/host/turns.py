"""Turns that plugins and tools start, await and cancel.

Rules
-----
1. A turn that was started is stored. It runs whether or not its events are read or its end is awaited, even
   after the turn that started it has ended.
2. If too many events are unread, the oldest are dropped, and the reader gets a `Gap` with their number.
3. A wait that could never end raises `TurnWaitsForItself`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from standfast.errors import TurnNotFound
from standfast.model.events import Event, Gap
from standfast.model.host_requests import AssembledTurn, TurnInput
from standfast.model.outcome import Finished
from standfast.model.session import TurnRecord
from standfast.ports.host import SessionTurnHandle
from standfast.runtime.agent_definition import checked_limits
from standfast.runtime.dependencies import fits
from standfast.runtime.host.closing import turn_rests
from standfast.runtime.host.service import HostService
from standfast.runtime.sessions.live_session import LiveSession, inheritable_deps
from standfast.runtime.sessions.observation import messages_of_turn
from standfast.runtime.turn import Subscription, Turn, TurnRequest, detached

MAX_UNREAD: Final = 2_048


class TurnService(HostService):
    """The `TurnHost` of a session."""

    __slots__ = ()

    async def start_turn_stream(self, session_id: str, input: TurnInput) -> SessionTurnHandle:
        """Start a turn, after the session's running turn if there is one. It is stored when this returns."""
        live = await self._live("start_turn_stream", session_id)
        turn = live.new_turn(
            TurnRequest(
                message=input.message,
                deps=await self._deps_for(live),
                limits=checked_limits(input.limits),
                idempotency_key=input.idempotency_key,
            )
        )
        events = TurnEvents(turn)
        with self._background.waits.waiting_for(session_id):
            detached().run(turn.start)
            try:
                await turn.begun()
            except asyncio.CancelledError:
                turn.withdrawn = not turn.began  # its caller was cancelled
                raise
        if not turn.began:
            await turn.settled()  # raises the error that prevented its start
        return SessionTurnHandle(turn_id=turn.turn_id, events=events)

    async def _deps_for(self, live: LiveSession) -> Any:
        """Return the starting turn's deps if *live* is below this session and they fit; otherwise its own."""
        asking = await self._directory.put_to_work(self.session_id)
        passed = None if asking is None else inheritable_deps(asking)
        agent = None if live.prepared is None else live.prepared.agent
        if agent is None or not fits(agent.deps_type, passed):
            return live.deps
        head = await self._directory.store.head(live.session_id)
        below = head is not None and await self._is_above(self.session_id, head)
        return passed if below else live.deps

    async def await_turn(self, turn_id: str) -> AssembledTurn:
        """Return a turn of any process once it has ended or waits."""
        record = await self._turn("await_turn", turn_id)
        with self._background.waits.waiting_for(record.session_id):
            rests = await turn_rests(self._directory, record)
        assert rests.summary is not None
        outcome = rests.summary.outcome
        return AssembledTurn(
            turn_id=rests.turn_id,
            session_id=rests.session_id,
            outcome=outcome,
            text=outcome.text if isinstance(outcome, Finished) else "",
            usage=rests.summary.usage,
            messages=await messages_of_turn(self._directory.store, rests),
        )

    async def cancel_turn(self, turn_id: str) -> None:
        """Cancel a turn. Does nothing if it has ended."""
        record = await self._turn("cancel_turn", turn_id)
        await self._directory.live(record.session_id).cancel(turn_id)

    async def start_turn(self, session_id: str, input: TurnInput) -> AssembledTurn:
        """Start a turn and wait until it ends or parks."""
        self._require_open("start_turn")
        with self._background.waits.waiting_for(session_id):
            started = await self.start_turn_stream(session_id, input)
            return await self.await_turn(started.turn_id)

    async def _turn(self, method: str, turn_id: str) -> TurnRecord:
        """Return a turn of a session that this one may see."""
        self._require_open(method)
        record = await self._directory.store.turn(turn_id)
        head = None if record is None else await self._directory.store.head(record.session_id)
        if record is None or head is None or not await self._sees(head, False):
            raise TurnNotFound(turn_id)
        return record


class TurnEvents(Subscription):
    """The events of one turn for one reader, from the turn's beginning to its end."""

    __slots__ = ("_lost", "_turn")

    def __init__(self, turn: Turn[Any]) -> None:
        super().__init__()
        self._turn = turn
        self._lost = 0
        turn.subscribe(self)

    def receive(self, event: Event) -> None:
        super().receive(event)
        if len(self._events) > MAX_UNREAD:
            self._events.popleft()
            self._lost += 1

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            if self._lost:
                missed, self._lost = self._lost, 0
                return Gap(missed=missed)
            if (event := self.take()) is not None:
                return event
            if self._turn.done:
                raise StopAsyncIteration
            await self.wait()
