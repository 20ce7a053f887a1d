"""The runtime's background loop: resumes turns that can continue, fires triggers, starts queued inputs.

Every second, and after each change, it looks for turns that can continue: those of dead processes and those
with a wait that has ended. It resumes the turns whose agent is known here, because their session was opened
here or the agent was passed to `Runtime(agents=[...])`. So recovery at start-up, timers, expired approvals
and decisions made in other processes are all handled in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from standfast.durable.process_identity import boot_id
from standfast.errors import StandfastError, StoreError
from standfast.model.session import SANDBOX_AGENT, TurnRecord
from standfast.ports.session_store import CLOCK_TOLERANCE_MS, WORK
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.turn import Turn

_OFFER_MS: Final = 1_000
"""How long work that the store has offered to this process is not offered to others."""
_DROP_EVERY_MS: Final = 3_600_000
_MAX_LOOKED_AT: Final = 100
_ENGINE_S: Final = 60.0
"""How long to skip turns that need an engine build which is not available here."""


class RecoveryLoop:
    """Recovers the turns of a directory's sessions; *recover_background* recovers tasks and monitors."""

    def __init__(
        self, directory: SessionDirectory, recover_background: Callable[[], Awaitable[None]]
    ) -> None:
        self._directory = directory
        self._recover_background = recover_background
        self._clock_offset_ms: int | None = None
        self._engines_elsewhere: dict[str, float] = {}
        self._dropped_ms = -_DROP_EVERY_MS
        self.looked_s: float | None = None
        """When the last round succeeded, on the monotonic clock."""

    async def run(self) -> None:
        """Make a round after each change, and every `poll_s`, until the runtime closes."""
        loop = asyncio.get_running_loop()

        def hear(text: str) -> None:
            if text in ("", WORK):
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._directory.changed.set)

        stop_listening = self._directory.store.listen(hear)
        try:
            await self._make_rounds()
        finally:
            stop_listening()

    async def _make_rounds(self) -> None:
        directory = self._directory
        while directory.is_open:  # a simultaneous change can swallow the cancellation
            with contextlib.suppress(StoreError):  # the next round may succeed
                await self.check_clock()
                await self.recover()
                await self._start_queued()
                await self._recover_background()
                await self._drop_journals()
                self.looked_s = directory.services.clock.monotonic()
            # Not `wait_for`, which loses a cancellation that arrives together with the change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(directory.poll_s):
                    await directory.changed.wait()
            directory.changed.clear()

    async def _drop_journals(self) -> None:
        """Delete the journals past their retention time, now and every hour."""
        services = self._directory.services
        now, keep_ms = services.clock.boot_ms(), services.settings.keep_journals_ms
        if self._directory.agents and keep_ms and now - self._dropped_ms >= _DROP_EVERY_MS:
            await services.store.drop_journals(services.clock.now_ms() - keep_ms)
            self._dropped_ms = now

    async def recover(self) -> list[Turn[Any]]:
        """Resume every unfinished turn that can continue and whose agent is known here."""
        if not (self._directory.agents or self._directory.sessions):
            return []
        leases, slots = self._directory.services.leases, self._directory.slots
        if slots.is_closed:
            return []
        if slots.is_limited and slots.has_room:
            return await self._claim_offers()
        left = await self._directory.store.unfinished(self._directory.now_ms(), lease_now_ms=leases.now_ms())
        if slots.is_limited:  # only child sessions can start
            import random  # slow to import, and few runtimes limit their turns

            left = random.sample(left, min(len(left), _MAX_LOOKED_AT))
        found = [await self._take_up(record) for record in left if record.agent != SANDBOX_AGENT]
        return [turn for turn in found if turn is not None]

    async def _claim_offers(self) -> list[Turn[Any]]:
        """Resume the turns and start the inputs that the store offers to this process, for its slots."""
        directory, store = self._directory, self._directory.store
        agents = tuple(name for name, agent in directory.agents.items() if directory.slots.admits(agent))
        now = directory.services.clock.monotonic()
        without = tuple(build for build, until in self._engines_elsewhere.items() if now < until)
        found = []
        for work in await store.offer(directory.now_ms(), _OFFER_MS, agents, directory.slots.free, without):
            if work.turn_id is None:
                live = await directory.put_to_work(work.session_id)
                if live is not None:
                    live.queue.drain_if_due()
            elif (record := await store.turn(work.turn_id)) is not None:
                needed = "" if record.summary is None else record.summary.engine
                if needed and needed != directory.services.engines.build(needed.partition(" ")[0]):
                    self._engines_elsewhere[needed] = now + _ENGINE_S
                found.append(await self._take_up(record))
        return [turn for turn in found if turn is not None]

    async def check_clock(self) -> None:
        """Check whether the system clock was set; if so, reschedule everything that depends on it."""
        services = self._directory.services
        offset_ms = services.clock.now_ms() - services.clock.boot_ms()
        known = self._clock_offset_ms
        if known is not None and abs(offset_ms - known) <= CLOCK_TOLERANCE_MS:
            return
        with contextlib.suppress(StoreError):  # the store may be read-only
            seen = await services.store.see_clock(boot_id(), offset_ms)
            services.leases.offset_ms = seen.lease_offset_ms
            if triggers := await services.store.triggers():
                from standfast.runtime.triggers import reschedule  # few stores have triggers

                await reschedule(services.store, triggers, services.clock.now_ms())
            self._clock_offset_ms = offset_ms

    async def _start_queued(self) -> None:
        """Fire the triggers that are due, and start queued inputs of sessions whose agent is known here."""
        if not (self._directory.agents or self._directory.sessions):
            return
        store = self._directory.store
        if triggers := await store.triggers():
            from standfast.runtime.triggers import fire_due

            await fire_due(store, triggers, self._directory.now_ms())
        slots = self._directory.slots
        if slots.is_closed or slots.is_limited:
            return
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
        if (free := live.take_slot()) is None:
            return None
        turn = live.turn_of(record.turn_id)
        turn.start().add_done_callback(free)
        if not self._directory.slots.is_limited:
            live.queue.drain()  # run the inputs queued behind it
        return turn
