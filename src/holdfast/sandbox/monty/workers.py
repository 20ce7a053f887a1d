"""Worker processes of the engine: how many, who has one, and who keeps a warm one.

Theory of operation
-------------------
A run needs a worker process with its session loaded. Loading costs more than a small run, so a session
keeps its worker after a run until another session needs it; the one that was idle longest gives way. What
a worker holds is always also in the session's last dump, so a worker may be dropped at any time. A run that
merely waits for something outside *lends* its slot: it can be asked to free it, and takes another to go on.

Rules: everything here may block, and is called from the threads that drive runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Protocol

from holdfast.errors import EngineFailed
from holdfast.model.limits import SessionLimits
from holdfast.sandbox.monty import engine
from holdfast.sandbox.monty.dump import MAX_SUSPENSIONS, with_limits
from holdfast.sandbox.monty.state import EngineState
from holdfast.sandbox.monty.untraced import untraced

KILL_GRACE_S: Final = 0.4
"""How long past its time limit the engine may take to stop by itself."""


_SLEEPS_WHOLE: Final = {"sleep_system_max": float("inf")}
"""Unless told, the engine cuts sleeps to ten seconds. How long code may run is a limit of ours."""


@dataclass(slots=True, eq=False)
class Worker:
    """A session loaded in a worker process.

    `version` names the state it holds, `next_input` is the number of the next source, and `unsaved_feeds`
    counts what it was fed since its state was last stored. A *warm* one has waited for this run.
    """

    session: engine.MontySession
    pid: int
    limits: SessionLimits
    version: object = None
    next_input: int = 0
    unsaved_feeds: int = 0
    warm: bool = False
    _status: int = -1
    _reset: int = -1
    _last_peak: int | None = None

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError):
            self._status = os.open(f"/proc/{self.pid}/status", os.O_RDONLY)
            self._reset = os.open(f"/proc/{self.pid}/clear_refs", os.O_WRONLY)

    def fits(self, limits: SessionLimits) -> bool:
        """Whether the engine's own limits are the same; the others are ours to watch."""
        mine = self.limits
        return limits is mine or (
            limits.memory_mb == mine.memory_mb
            and limits.cpu_ms == mine.cpu_ms
            and limits.max_stack_depth == mine.max_stack_depth
        )

    def holds(self, version: object, limits: SessionLimits) -> bool:
        """Whether a run from this version of the session, under these limits, can begin here."""
        return self.version == version and self.fits(limits) and self.is_alive()

    def is_alive(self) -> bool:
        """Whether the process still runs; true where the system does not tell."""
        if self._status < 0:
            return True
        try:
            return b"State:\tZ" not in os.pread(self._status, 256, 0)
        except OSError:
            return False

    def reset_peak(self) -> None:
        """Start measuring peak memory anew."""
        if self._reset >= 0:
            with contextlib.suppress(OSError):
                os.write(self._reset, b"5")

    def peak_bytes(self) -> int | None:
        """Peak resident memory of the process since `reset_peak`; None where the system does not tell."""
        if self._status < 0:
            return self._last_peak
        try:
            text = os.pread(self._status, 4096, 0)
        except OSError:
            return self._last_peak
        at = text.find(b"VmHWM:")
        return int(text[at + 6 : text.index(b"kB", at)]) * 1024 if at >= 0 else self._last_peak

    def feed(self, code: str, **options: Any) -> Any:
        """Run code in the session, up to the first thing that needs the host."""
        return untraced(self.session.feed_start, code, **options)

    def kill(self) -> None:
        self._last_peak = self.peak_bytes()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Give the process back to the engine's pool."""
        for handle in (self._status, self._reset):
            if handle >= 0:
                os.close(handle)
        self._status = self._reset = -1
        with contextlib.suppress(Exception):
            self.session.__exit__(None, None, None)


class Lender(Protocol):
    """A run that occupies a slot and has no use for it at the moment."""

    def hand_back(self) -> None:
        """Free the slot, unless there is use for it by now. Called without any lock."""


class Workers:
    """A bounded number of worker processes, some of them kept warm for their sessions."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._warm: OrderedDict[str, Worker] = OrderedDict()
        self._lent: OrderedDict[Lender, None] = OrderedDict()
        self._changed = threading.Condition()
        self._pool: engine.Monty | None = None
        self._starting = threading.Lock()
        self._closed = False

    def take(self, key: str) -> Worker | None:
        """Get a slot: the session's warm worker, or None and leave to `attach` one. Waits for its turn."""
        while (lender := self._wait_for_slot(key)) is not None:
            if isinstance(lender, Worker):
                return lender
            lender.hand_back()
        return None

    def _wait_for_slot(self, key: str) -> Worker | Lender | None:
        """The session's warm worker, None with a slot, or a run that may free one."""
        idle: Worker | None = None
        with self._changed:
            while True:
                if (worker := self._warm.pop(key, None)) is not None:
                    return worker
                if self._free:
                    self._free -= 1
                    return None
                if self._warm:
                    _, idle = self._warm.popitem(last=False)
                    break
                if self._lent:
                    return self._lent.popitem(last=False)[0]
                self._changed.wait()
        idle.close()
        return None

    def lend(self, lender: Lender) -> None:
        """Let others have the slot of a run that waits, if they need it."""
        with self._changed:
            self._lent[lender] = None
            self._changed.notify()

    def reclaim(self, lender: Lender) -> None:
        """The run goes on or is over: it lends no more."""
        with self._changed:
            self._lent.pop(lender, None)

    def keep(self, key: str, worker: Worker) -> None:
        """Leave a worker warm for its session; one that was left before gives way."""
        worker.warm = True
        with self._changed:
            other = self._warm.pop(key, None)
            self._warm[key] = worker
            self._changed.notify()
        if other is not None:
            self.give_back(other)

    def give_back(self, worker: Worker | None) -> None:
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

    def attach(self, state: EngineState | None, limits: SessionLimits, **options: Any) -> Worker:
        """Start or reuse a process and load a session into it; *options* are for an empty one. Blocking."""
        worker = self.attach_bare(limits, **options)
        if state is None:
            return worker
        try:
            dump = state.dump if worker.fits(state.limits) else with_limits(state.dump, limits)
            worker.session.load_session(dump)
            worker.next_input = state.next_input
        except Exception as error:
            worker.close()
            raise EngineFailed(f"the session's state cannot be loaded: {error}") from error
        return worker

    def attach_bare(self, limits: SessionLimits, **options: Any) -> Worker:
        """A worker with an empty session, for checks, rules and snapshots of a running program. Blocking."""
        session = self._checkout(engine_limits(limits), **{"os_policy": _SLEEPS_WHOLE, **options})
        return Worker(session, session.worker_pid or 0, limits)

    def close(self) -> None:
        """End every process. Blocking."""
        self._closed = True
        with self._changed:
            idle, self._warm = list(self._warm.values()), OrderedDict()
        for worker in idle:
            worker.close()
        with self._starting:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(None, None, None)

    def _checkout(self, limits: dict[str, Any], **options: Any) -> engine.MontySession:
        session = self._started().checkout(limits=limits, **options)  # type: ignore[arg-type]
        session.__enter__()
        return session

    def _started(self) -> engine.Monty:
        with self._starting:
            if self._closed:
                raise EngineFailed("the sandbox is closed")
            if self._pool is None:
                self._pool = _start_pool(self.capacity)
            return self._pool


def engine_limits(limits: SessionLimits) -> dict[str, Any]:
    """Our limits under the engine's names."""
    return {
        "max_memory": limits.memory_mb << 20,
        "max_feed_duration_secs": limits.cpu_ms / 1000,
        "max_recursion_depth": limits.max_stack_depth,
        "max_suspensions": MAX_SUSPENSIONS,
    }


def _start_pool(capacity: int) -> engine.Monty:
    try:
        # Two beyond our own slots: rules and checks never wait for runs that wait for them.
        pool = engine.Monty(
            min_processes=1, max_processes=capacity + 2, feed_duration_limit_grace=KILL_GRACE_S
        )
        pool.__enter__()
    except Exception as error:
        raise EngineFailed(
            f"the Python engine cannot be started: {error}", hint="`holdfast doctor` looks for the reason"
        ) from error
    return pool
