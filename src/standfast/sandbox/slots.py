"""How many worker processes an engine has, who has one, and who keeps a warm one.

Theory of operation
-------------------
A run needs a worker process with its session loaded. Loading costs more than a small run, so a session
keeps its worker after a run until another session needs it; the one that was idle longest gives way. What
a worker holds is always also in the session's last state, so a worker may be dropped at any time. A run that
merely waits for something outside *lends* its slot: it can be asked to free it, and takes another to go on.

Rules
-----
1. Everything here may block, and is called from the threads that drive runs.
2. Lending takes no lock, for a run lends at every call that it makes: the table of lenders is changed by
   single operations, and whoever waits says so before looking at it for the last time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Occupant(Protocol):
    """A worker in a slot. A *warm* one has waited for its session."""

    warm: bool

    def close(self) -> None:
        """End the process, or make it fit for another session. Harmless if it is dead."""


class Lender(Protocol):
    """A run that occupies a slot and has no use for it at the moment."""

    def hand_back(self) -> None:
        """Free the slot, unless there is use for it by now. Called without any lock."""


W = TypeVar("W", bound=Occupant)


class Slots(Generic[W]):
    """A bounded number of workers, some of them kept warm for their sessions."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._warm: OrderedDict[str, W] = OrderedDict()
        self._lent: OrderedDict[Lender, None] = OrderedDict()
        self._changed = threading.Condition()
        self._waiting = 0

    def take(self, key: str) -> W | None:
        """Get a slot: the session's warm worker, or None and leave to start one. Waits for its turn."""
        while True:
            worker, lender = self._wait_for_slot(key)
            if lender is None:
                return worker
            lender.hand_back()

    def _wait_for_slot(self, key: str) -> tuple[W | None, Lender | None]:
        """The session's warm worker or an empty slot; or a run that may free one."""
        with self._changed:
            while True:
                if (worker := self._warm.pop(key, None)) is not None:
                    return worker, None
                if self._free:
                    self._free -= 1
                    return None, None
                if self._warm:
                    _, idle = self._warm.popitem(last=False)
                    break
                if (lender := self._any_lender()) is not None:
                    return None, lender
                self._waiting += 1
                try:
                    if not self._lent:
                        self._changed.wait()
                finally:
                    self._waiting -= 1
        idle.close()
        return None, None

    def _any_lender(self) -> Lender | None:
        """The run that has lent its slot for longest, unless none has, or each has just taken it back."""
        try:
            return self._lent.popitem(last=False)[0]
        except KeyError:
            return None

    def lend(self, lender: Lender) -> None:
        """Let others have the slot of a run that waits, if they need it."""
        self._lent[lender] = None
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def reclaim(self, lender: Lender) -> None:
        """The run goes on or is over: it lends no more."""
        self._lent.pop(lender, None)

    def keep(self, key: str, worker: W) -> None:
        """Leave a worker warm for its session; one that was left before gives way."""
        worker.warm = True
        with self._changed:
            other = self._warm.pop(key, None)
            self._warm[key] = worker
            self._changed.notify()
        if other is not None:
            self.give_back(other)

    def drop(self, worker: W) -> None:
        """End the worker of a run that keeps its slot."""
        worker.close()

    def give_back(self, worker: W | None) -> None:
        """Free a slot and close what was in it."""
        if worker is not None:
            worker.close()
        with self._changed:
            self._free += 1
            self._changed.notify()

    def forget(self, key: str) -> None:
        """Drop the warm worker of a session that changed elsewhere."""
        with self._changed:
            worker = self._warm.pop(key, None)
        if worker is not None:
            self.give_back(worker)

    def close_idle(self) -> None:
        """Close every warm worker."""
        with self._changed:
            idle, self._warm = list(self._warm.values()), OrderedDict()
            self._free += len(idle)
        for worker in idle:
            worker.close()
