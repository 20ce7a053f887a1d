"""Worker processes, for all engines: slots, the slot of a cell, peak memory, and the watchdog.

A run needs a worker process with its session loaded. Loading costs more than a small run, so a session
keeps its worker after a run until another session needs the slot; the longest idle worker is closed first.
Everything that a worker holds is also in the session's last state, so it may be closed at any time. A run
that waits for an answer *lends* its slot: if another run needs the slot, the lender frees it and takes a slot
again when it continues.

Rules
-----
1. Methods of `WorkerSlots` may block. The threads that drive runs call them.
2. Lending takes no lock, because a run lends at every call that it makes: the table of lenders is changed by
   atomic operations only, and a thread increments `_waiting` before it checks the table for the last time.
3. One thread at a time uses the slot of a cell, but any thread may call `kill`, which only kills the
   processes. A killed cell takes no further worker: `put_worker` raises `CellStopped`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from standfast.ports.cell_stepper import CellStopped, StepperHost
from standfast.ports.code_engine import CallAnswer

_log: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.02
_IDLE_TICKS: Final = 100
_BRIEF_RUNS: Final = 16


class Killable(Protocol):
    def kill(self) -> None: ...


class SlotWorker(Killable, Protocol):
    """A worker in a slot. `warm`: it was kept for its session. `version` names its state, if known."""

    warm: bool

    @property
    def version(self) -> object: ...

    def close(self) -> None:
        """End the process, or reset it for another session. Harmless if the process is dead."""


class Lender(Protocol):
    """A run that holds a slot which it does not need while it waits."""

    def hand_back(self) -> None:
        """Free the slot, unless the run is using it again. Called with no lock held."""


W = TypeVar("W", bound=SlotWorker)


class WorkerSlots(Generic[W]):
    """A bounded number of workers, some of them kept warm for their sessions."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._warm: OrderedDict[str, W] = OrderedDict()
        self._lent: OrderedDict[Lender, None] = OrderedDict()
        self._slots_lock = threading.Lock()
        self._changed = threading.Condition(self._slots_lock)
        self._waiting = 0

    def take(self, key: str) -> W | None:
        """Wait for a slot; return the session's warm worker, or None if the caller has to start one."""
        while True:
            idle: W | None = None
            lender: Lender | None = None
            with self._slots_lock:
                if (worker := self._warm.pop(key, None)) is not None:
                    return worker
                if self._free:
                    self._free -= 1
                    return None
                if self._warm:
                    _, idle = self._warm.popitem(last=False)
                elif self._lent:
                    with contextlib.suppress(KeyError):  # the last lender has just reclaimed its slot
                        lender, _ = self._lent.popitem(last=False)
                else:
                    self._waiting += 1
                    try:
                        if not self._lent:
                            self._changed.wait()
                    finally:
                        self._waiting -= 1
            if idle is not None:
                idle.close()
                return None
            if lender is not None:
                lender.hand_back()

    def lend(self, lender: Lender) -> None:
        """Offer the slot of a waiting run to other runs."""
        self._lent[lender] = None
        if self._waiting:
            with self._slots_lock:
                self._changed.notify()

    def reclaim(self, lender: Lender) -> None:
        """Withdraw the offer: the run continues or has ended."""
        self._lent.pop(lender, None)

    def keep(self, key: str, worker: W) -> None:
        """Keep *worker* warm for its session, replacing a worker that was kept before."""
        worker.warm = True
        with self._slots_lock:
            other = self._warm.pop(key, None)
            self._warm[key] = worker
            if self._waiting:
                self._changed.notify()
        if other is not None:
            self.give_back(other)

    def drop(self, worker: W) -> None:
        """Close *worker*, whose run keeps the slot."""
        worker.close()

    def give_back(self, worker: W | None) -> None:
        """Free a slot and close the worker in it, if there is one."""
        if worker is not None:
            worker.close()
        with self._slots_lock:
            self._free += 1
            if self._waiting:
                self._changed.notify()

    def forget(self, key: str) -> None:
        """Close the session's warm worker, if it has one, and free the slot."""
        with self._slots_lock:
            worker = self._warm.pop(key, None)
        if worker is not None:
            self.give_back(worker)

    def close(self) -> None:
        """Close every warm worker. Engines end their other processes too."""
        with self._slots_lock:
            idle, self._warm = list(self._warm.values()), OrderedDict()
            self._free += len(idle)
        for worker in idle:
            worker.close()


class SlotStepper(Generic[W]):
    """The slot of a cell and the worker in it; base class of the steppers of engines with workers."""

    replayed = False
    wall_grace_s = 0.0
    instructions: int | None = None
    _has_slot = _killed = False
    _others: frozenset[Killable] = frozenset()

    def __init__(self, host: StepperHost, slots: WorkerSlots[W]) -> None:
        self._host = host
        self._limits = host.request.limits
        self._slots = slots
        self._killing = threading.Lock()
        self.worker: W | None = None

    def prepare(self) -> None:
        """Wait for a slot, unless the cell has one."""
        if not self._has_slot:
            worker = self._slots.take(self._host.request.key)
            self._has_slot, self.worker = True, worker

    def raises_at_call(self, answer: CallAnswer) -> bool:
        return False

    def is_in_worker(self) -> bool:
        return True

    def put_worker(self, worker: W) -> W:
        """Put *worker* into the slot and return it; raise `CellStopped` if the cell was killed."""
        with self._killing:
            self.worker = worker
            if self._killed:
                raise CellStopped
        return worker

    def drop_worker(self) -> None:
        """Close the worker and keep the slot."""
        with self._killing:
            worker, self.worker = self.worker, None
        if worker is not None:
            self._slots.drop(worker)

    @contextlib.contextmanager
    def beside(self, process: Killable) -> Iterator[None]:
        """Let `kill` kill *process* too while the block runs."""
        with self._killing:
            self._others |= {process}
            if self._killed:
                process.kill()
        try:
            yield
        finally:
            with self._killing:
                self._others -= {process}

    def kill(self) -> None:
        """Kill every process of the cell. Callable from any thread."""
        with self._killing:
            self._killed = True
            for process in (self.worker, *self._others):
                if process is not None:
                    process.kill()

    def release(self, *, warm: bool) -> None:
        """Free the slot. If *warm*, and the worker's state is known, keep the worker for the session."""
        if not self._has_slot:
            return
        with self._killing:
            worker, self.worker = self.worker, None
        self._has_slot = False
        if warm and worker is not None and worker.version is not None:
            self._slots.keep(self._host.request.key, worker)
        else:
            self._slots.give_back(worker)


class PeakMemory:
    """Peak resident memory of one process since the last `reset`, as Linux reports it.

    Memory grows only by page faults, and reading their count takes half as long as reading the peak. After a
    run without faults, whose peak is the memory of the idle process, the peak is not read again until the
    count has changed. Even the count is read after only one in `_BRIEF_RUNS` runs that were too brief to use
    much memory, if the runs before them kept little of it.
    """

    _status = _stat = _reset = -1
    _brief_runs = 0
    _last: int | None = None
    _is_reset = False
    _faults: Sequence[bytes] = ()
    _faults_at_rest: Sequence[bytes] | None = None

    def __init__(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._status = os.open(f"/proc/{pid}/status", os.O_RDONLY)
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
            self._reset = os.open(f"/proc/{pid}/clear_refs", os.O_WRONLY)

    def reset(self) -> None:
        if self._reset >= 0:
            try:
                os.write(self._reset, b"5")
                self._is_reset = True
            except OSError:
                return

    def bytes(self, *, was_brief: bool = False) -> int | None:
        """Return the peak; for a process that has ended, the last known one; None if there is none."""
        if self._status < 0:
            return self._last
        if was_brief and self._faults_at_rest is not None and self._brief_runs < _BRIEF_RUNS:
            self._brief_runs += 1
            return self._last
        self._brief_runs = 0
        try:
            text = os.pread(self._stat, 1024, 0)
            faults = text[text.rindex(b")") :].split(None, 11)[8:11]  # minor, its children's minor, major
            if faults == self._faults_at_rest:
                return self._last
            text = os.pread(self._status, 4096, 0)
            self._last = int(text[text.index(b"VmHWM:") + 6 :].split(None, 1)[0]) * 1024
        except (OSError, ValueError):
            return self._last
        self._faults_at_rest = faults if self._is_reset and faults == self._faults else None
        self._is_reset, self._faults = False, faults
        return self._last

    def close(self) -> None:
        for handle in (self._status, self._stat, self._reset):
            if handle >= 0:
                os.close(handle)
        self._status = self._stat = self._reset = -1


class Watchdog:
    """Calls back when a deadline has passed: a run cannot watch itself while its engine computes.

    One thread checks all deadlines every 20 ms. It goes to sleep only after two seconds without a deadline,
    so that runs in quick succession do not have to wake it.
    """

    def __init__(self) -> None:
        self._watched: dict[object, tuple[float, Callable[[], None]]] = {}
        self._awake = threading.Event()
        self._asleep = True
        self._started = threading.Lock()
        self._closed = False

    def watch(self, key: object, seconds: float, late: Callable[[], None]) -> None:
        """Call *late* from the watchdog's thread, about *seconds* from now, unless *key* is forgotten."""
        self._watched[key] = (time.monotonic() + seconds, late)
        if self._asleep:
            self._asleep = False
            self._awake.set()
            if self._started.acquire(blocking=False):
                threading.Thread(target=self._look, name="standfast-watchdog", daemon=True).start()

    def forget(self, key: object) -> None:
        self._watched.pop(key, None)

    def close(self) -> None:
        self._closed = True
        self._awake.set()

    def _look(self) -> None:
        idle = 0
        while not self._closed:
            time.sleep(_TICK_S)
            now = time.monotonic()
            for key, (deadline, late) in list(self._watched.items()):
                if now >= deadline and self._watched.pop(key, None) is not None:
                    try:
                        late()
                    except Exception:  # must not end the watchdog, which watches other runs
                        _log.exception("a run that is past its deadline could not be ended")
            idle = 0 if self._watched else idle + 1
            if idle > _IDLE_TICKS:
                self._awake.clear()
                self._asleep = True
                if not self._watched:
                    self._awake.wait()
                idle, self._asleep = 0, False
