"""A cell's slot among the workers of its engine, and the processes that compute for the cell.

Rules
-----
1. One thread at a time uses a slot. `kill` may come from any: it kills the processes, no more; the thread
   that waits for one of them finds out.
2. A slot that was killed takes no further worker: `put` raises `CellStopped`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from standfast.ports.cell_stepper import CellStopped
from standfast.sandbox.slots import Occupant, Slots


class Killable(Protocol):
    def kill(self) -> None: ...


class SlotWorker(Occupant, Killable, Protocol):
    """A worker with the state that it holds; None if that is unknown."""

    @property
    def version(self) -> object: ...


W = TypeVar("W", bound=SlotWorker)


class WorkerSlot(Generic[W]):
    """`worker` is the one in the slot, `taken` whether there is a slot."""

    def __init__(self, slots: Slots[W], key: str) -> None:
        self._slots = slots
        self._key = key
        self._killing = threading.Lock()
        self._killed = False
        self._others: set[Killable] = set()
        self.worker: W | None = None
        self.taken = False

    def take(self) -> W | None:
        """Wait for a slot unless there is one; return the worker in it."""
        if not self.taken:
            worker = self._slots.take(self._key)
            self.taken = True
            with self._killing:
                self.worker = worker
        return self.worker

    def put(self, worker: W) -> W:
        """Make *worker* the one in the slot, and return it."""
        with self._killing:
            self.worker = worker
            if self._killed:
                raise CellStopped
        return worker

    @contextmanager
    def beside(self, process: Killable) -> Iterator[None]:
        """Have *process* killed with the slot while the block runs."""
        self.add(process)
        try:
            yield
        finally:
            self.discard(process)

    def add(self, process: Killable) -> None:
        with self._killing:
            self._others.add(process)
            if self._killed:
                process.kill()

    def discard(self, process: Killable) -> None:
        with self._killing:
            self._others.discard(process)

    def kill(self) -> None:
        """Kill every process of the cell. Callable from any thread."""
        with self._killing:
            self._killed = True
            for process in (self.worker, *self._others):
                if process is not None:
                    process.kill()

    def drop(self) -> None:
        """End the worker and keep the slot."""
        with self._killing:
            worker, self.worker = self.worker, None
        if worker is not None:
            self._slots.drop(worker)

    def release(self, *, warm: bool) -> None:
        """Free the slot. If *warm*, keep a worker whose state is known for the session."""
        if not self.taken:
            return
        with self._killing:
            worker, self.worker = self.worker, None
        self.taken = False
        if warm and worker is not None and worker.version is not None:
            self._slots.keep(self._key, worker)
        else:
            self._slots.give_back(worker)
