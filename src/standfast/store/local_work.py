"""The part of a store for one machine that concerns other processes: it offers all work to each that asks."""

from __future__ import annotations

from collections.abc import Callable

from standfast.ports.session_store import SessionStore, SessionWork


class LocalWork:
    """The base of the stores for one machine, whose processes poll."""

    async def offer(
        self: SessionStore,
        now_ms: int,
        offer_ms: int,
        agents: tuple[str, ...],
        limit: int,
        without: tuple[str, ...] = (),
    ) -> list[SessionWork]:
        found = [
            SessionWork(session_id=record.session_id, turn_id=record.turn_id)
            for record in await self.unfinished(now_ms)
            if record.agent in agents
            and (record.cancel_requested or record.summary is None or record.summary.engine not in without)
        ]
        for session_id in await self.with_queued():
            head = await self.head(session_id)
            if head is not None and head.agent in agents:
                found.append(SessionWork(session_id=session_id, turn_id=None))
        import random  # slow to import, and needed only by workers

        random.shuffle(found)  # otherwise sessions that cannot run could block all others
        return found[:limit]

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        """Return a function that does nothing: there are no announcements."""
        return lambda: None

    async def announce(self, text: str) -> None:
        """Do nothing: no other process listens."""
