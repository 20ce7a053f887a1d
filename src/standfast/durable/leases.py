"""Keeping the leases of the turns that run here.

One task renews all of them, three times as often as they would end, and looks every second whether another
process wants one of their turns to end. A lease that is lost stops its turn: what that turn still wants to
write would be refused anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from standfast.errors import StoreError
from standfast.ports.clock import Clock
from standfast.ports.session_store import Lease, SessionStore


class Holder(Protocol):
    """A turn that runs under a lease."""

    lease: Lease
    turn_id: str
    held_until_ms: int
    """Until then, by the boot-time clock, no other process may take the lease."""

    def lose(self) -> None:
        """The lease is gone."""

    def request_cancel(self) -> None:
        """Somebody in another process wants the turn to end."""


class LeaseKeeper:
    """Renews leases while any turn runs, and hears what other processes want of those turns."""

    def __init__(self, store: SessionStore, clock: Clock, lease_ms: int) -> None:
        self._store = store
        self._clock = clock
        self.lease_ms = lease_ms
        self.offset_ms = clock.now_ms() - clock.boot_ms()
        self._holders: dict[str, Holder] = {}
        self._task: asyncio.Task[None] | None = None

    def now_ms(self) -> int:
        """The time that leases go by: it moves with the boot-time clock, and setting the time of day does not
        change it."""
        return self._clock.boot_ms() + self.offset_ms

    def hold(self, holder: Holder) -> None:
        holder.held_until_ms = holder.lease.until_ms - self.offset_ms
        self._holders[holder.turn_id] = holder
        self.start_renewing()

    def start_renewing(self) -> None:
        """Have leases renewed from now on, if they are not."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._renew_for_ever())

    def let_go(self, holder: Holder) -> None:
        self._holders.pop(holder.turn_id, None)

    async def give_back(self, lease: Lease) -> None:
        """End a lease whose turn is left unfinished, so that another process need not wait for its time."""
        with contextlib.suppress(StoreError):
            await self._store.renew((lease,), self.now_ms(), 0)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _renew_for_ever(self) -> None:
        rounds = max(1, self.lease_ms // 3000)
        while True:
            for _ in range(rounds):
                await asyncio.sleep(min(self.lease_ms / 3000, 1.0))
                await self.look()
            if self._holders:
                await self.renew_all()

    async def look(self) -> None:
        """See whether other processes want one of the turns to end."""
        with contextlib.suppress(StoreError):
            for holder in list(self._holders.values()):
                record = await self._store.turn(holder.turn_id)
                if record is not None and record.cancel_requested:
                    holder.request_cancel()

    async def renew_all(self) -> None:
        holders = list(self._holders.values())
        until_ms = self._clock.boot_ms() + self.lease_ms
        leases = tuple(holder.lease for holder in holders)
        try:
            renewed = await self._store.renew(leases, self.now_ms(), self.lease_ms)
        except StoreError:
            return  # the next round may succeed; the lease lasts three
        for holder in holders:
            if holder.lease.session_id in renewed.lost:
                holder.lose()
                continue
            holder.held_until_ms = until_ms
            if holder.turn_id in renewed.cancelled:
                holder.request_cancel()
