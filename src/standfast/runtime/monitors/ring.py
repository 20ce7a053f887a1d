"""The last updates of a monitor, until somebody takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from standfast.model.monitor import RING, MonitorUpdate


class UpdateRing:
    """At most `RING` updates. `seq` is the number of the last one; `lost` were pushed out untaken.

    Rule: an update has one number for ever, also across processes: who goes on begins where the last ended.
    """

    def __init__(self, updates: Iterable[MonitorUpdate] = (), *, seq: int = 0, lost: int = 0) -> None:
        self._updates = deque(updates, RING)
        self.seq = max([seq, *(update.seq for update in self._updates)])
        self.lost = lost

    def __len__(self) -> int:
        return len(self._updates)

    @property
    def updates(self) -> tuple[MonitorUpdate, ...]:
        return tuple(self._updates)

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def add(self, update: MonitorUpdate) -> None:
        self.lost += len(self._updates) == RING
        self._updates.append(update)

    def skip(self, count: int) -> None:
        """Number updates that nobody will see: at least a whole ring of others follows them."""
        self.seq += count
        self.lost += count

    def after(self, seq: int) -> tuple[MonitorUpdate, ...]:
        return tuple(update for update in self._updates if update.seq > seq)

    def drop(self, seq: int) -> None:
        """Forget what was taken, up to the number *seq*."""
        while self._updates and self._updates[0].seq <= seq:
            self._updates.popleft()
            self.lost = 0

    def take(self) -> tuple[tuple[MonitorUpdate, ...], int]:
        """Everything, and how much was lost before it."""
        taken, lost = self.updates, self.lost
        self._updates.clear()
        self.lost = 0
        return taken, lost
