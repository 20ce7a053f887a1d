"""MontyWorker processes of the engine, each with a session loaded in it; see `slots` for who has one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from standfast.errors import Code, EngineFailed
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.dump import MAX_SUSPENSIONS, with_limits
from standfast.sandbox.monty.state import EngineState
from standfast.sandbox.monty.untraced import untraced
from standfast.sandbox.workers import PeakMemory, WorkerSlots

KILL_GRACE_S: Final = 0.4
"""How long past its time limit the engine may take to stop by itself."""


_SLEEPS_WHOLE: Final = {"sleep_system_max": float("inf")}
"""Unless told, the engine cuts sleeps to ten seconds. How long code may run is a limit of ours."""


_LOADING_FACTOR: Final = 16
"""Loading a dump takes at most eight times its size (measured: many small strings, lists or functions)."""


TINY_FRAME_BYTES: Final = 128
"""No value that arrives in so few bytes takes long to hash: a tree of some 100,000 parts at most."""
SMALL_FRAME_BYTES: Final = 32 << 10
"""Few enough parts to take over at once, and too few large integers to make a slow dict of equal hashes."""


class StateTooLarge(EngineFailed):
    """A session's state does not fit into the memory that a run may have."""

    code = Code.MEMORY_EXCEEDED

    def __init__(self, limits: SessionLimits) -> None:
        super().__init__(
            f"the session's state cannot be loaded within {limits.memory_mb} MB",
            hint="run with the memory_mb that the session was last run with, or more",
        )


@dataclass(slots=True, eq=False)
class MontyWorker:
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
    peak: PeakMemory = field(init=False)
    _io: int = field(init=False, default=-1)
    _sent: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.peak = PeakMemory(self.pid)
        with contextlib.suppress(OSError):
            self._io = os.open(f"/proc/{self.pid}/io", os.O_RDONLY)

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
        return self.version == version and self.fits(limits)

    def feed(self, code: str, **options: Any) -> Any:
        """Run code in the session, up to the first thing that needs the host."""
        return untraced(self.session.feed_start, code, **options)

    def sent_bytes(self) -> int:
        """How much the process has written since this was last asked; very much if the system does not tell.

        What it wrote last is the engine's answer, so this is the most that a value in it can take.
        """
        before = self._sent
        try:
            self._sent = int(os.pread(self._io, 64, 0).split(None, 4)[3])
        except (OSError, IndexError, ValueError):
            return sys.maxsize
        return self._sent - before

    def dump(self, standing: Any) -> bytes:
        """Dump the session, or a snapshot of it; what that sends is not counted as a value."""
        dumped: bytes = standing.dump()
        self.sent_bytes()
        return dumped

    def kill(self) -> None:
        self.peak.bytes()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Give the process back to the engine's pool."""
        self.peak.close()
        if self._io >= 0:
            os.close(self._io)
            self._io = -1
        with contextlib.suppress(Exception):
            self.session.__exit__(None, None, None)


class MontyWorkers(WorkerSlots[MontyWorker]):
    """The worker processes of the engine's own pool."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._pool: engine.Monty | None = None
        self._starting = threading.Lock()
        self._closed = False

    def attach(self, state: EngineState | None, limits: SessionLimits, **options: Any) -> MontyWorker:
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
            if "memory limit" in str(error):
                raise StateTooLarge(limits) from error
            raise EngineFailed(f"the session's state cannot be loaded: {error}") from error
        return worker

    def check_loads(self, dump: bytes, limits: SessionLimits, *, paused: bool = False) -> None:
        """Raise as the engine does if *dump*, made under *limits*, could not be loaded under them. Blocking.

        Loading takes more memory than the values had. Only a dump that may be too large is tried.
        """
        if len(dump) * _LOADING_FACTOR <= limits.memory_mb << 20:
            return
        worker = self.attach_bare(limits)
        try:
            if paused:
                worker.session.load_snapshot(dump)
            else:
                worker.session.load_session(dump)
        finally:
            worker.close()

    def attach_bare(self, limits: SessionLimits, **options: Any) -> MontyWorker:
        """A worker with an empty session, for checks, rules and snapshots of a running program. Blocking."""
        session = self._checkout(engine_limits(limits), **{"os_policy": _SLEEPS_WHOLE, **options})
        return MontyWorker(session, session.worker_pid or 0, limits)

    def close(self) -> None:
        """End every process. Blocking."""
        self._closed = True
        self.close_idle()
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
            f"the Python engine cannot be started: {error}", hint="`standfast doctor` looks for the reason"
        ) from error
    return pool
