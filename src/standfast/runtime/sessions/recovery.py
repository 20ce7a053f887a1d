"""The runtime's background loop: resumes turns that can continue, fires triggers, starts queued inputs.

Every second, and whenever something has changed, it looks for turns that can continue: those of dead
processes and those with a wait that has ended. It resumes those whose agent is known here, because their
session was opened here or the agent was passed to `Runtime(agents=[...])`. So recovery at start-up, timers,
expiry and decisions of other processes are one thing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from standfast.durable.process_identity import boot_id
from standfast.errors import StandfastError, StoreError
from standfast.model.session import SANDBOX_AGENT, TurnRecord
from standfast.ports.session_store import CLOCK_TOLERANCE_MS
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.triggers import fire_due, reschedule
from standfast.runtime.turn import Turn


class RecoveryLoop:
    """Recovers the sessions of a directory; *recover_background* their tasks and monitors."""

    def __init__(
        self, directory: SessionDirectory, recover_background: Callable[[], Awaitable[None]]
    ) -> None:
        self._directory = directory
        self._recover_background = recover_background
        self._clock_offset_ms: int | None = None

    async def run(self) -> None:
        """Make a round after each change, and every `poll_s`, until the runtime closes."""
        directory = self._directory
        while directory.is_open:  # a change can swallow the cancellation that comes with it
            with contextlib.suppress(StoreError):  # the next round may succeed
                await self.check_clock()
                await self.recover()
                await self._start_queued()
                await self._recover_background()
            # Not `wait_for`: it forgets a cancellation that comes together with the change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(directory.poll_s):
                    await directory.changed.wait()
            directory.changed.clear()

    async def recover(self) -> list[Turn[Any]]:
        """Take up every unfinished turn that can continue and whose agent is known here."""
        if not (self._directory.agents or self._directory.sessions):
            return []
        leases = self._directory.services.leases
        left = await self._directory.store.unfinished(self._directory.now_ms(), lease_now_ms=leases.now_ms())
        found = [await self._take_up(record) for record in left if record.agent != SANDBOX_AGENT]
        return [turn for turn in found if turn is not None]

    async def check_clock(self) -> None:
        """See whether the time of day was set; if so, plan anew everything that was planned by it."""
        services = self._directory.services
        offset_ms = services.clock.now_ms() - services.clock.boot_ms()
        known = self._clock_offset_ms
        if known is not None and abs(offset_ms - known) <= CLOCK_TOLERANCE_MS:
            return
        with contextlib.suppress(StoreError):  # it may be for reading only
            seen = await services.store.see_clock(boot_id(), offset_ms)
            services.leases.offset_ms = seen.lease_offset_ms
            await reschedule(services.store, services.clock.now_ms())
            self._clock_offset_ms = offset_ms

    async def _start_queued(self) -> None:
        """Fire the triggers that are due, and start queued inputs of sessions whose agent is known here."""
        if not (self._directory.agents or self._directory.sessions):
            return
        store = self._directory.store
        if triggers := await store.triggers():
            await fire_due(store, triggers, self._directory.now_ms())
        for session_id in await store.with_queued():
            live = await self._directory.put_to_work(session_id)
            if live is not None:
                live.queue.drain_if_due()

    async def _take_up(self, record: TurnRecord) -> Turn[Any] | None:
        """Resume a turn with its session's agent, or the one that it belongs to, if that is known here."""
        live = await self._directory.put_to_work(record.session_id)
        agent = self._directory.agents.get(record.agent)
        if live is None and agent is not None:
            with contextlib.suppress(StandfastError):  # its model cannot be opened here
                live = self._directory.assign(record.session_id, agent)
        if live is None or live.busy or (live.queue.is_blocked and not record.cancel_requested):
            return None
        turn = live.turn_of(record.turn_id)
        turn.start()
        live.queue.drain()  # what was queued behind it
        return turn
