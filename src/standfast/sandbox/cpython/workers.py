"""Jailed processes, each with one session, and the resources that they use.

Rules
-----
1. A process serves one session. One spare process is kept ready, because starting one is slow.
2. A process without a run is stopped (SIGSTOP), so that no guest thread runs between two runs.
3. A process that sends messages after the end of its run is ended, so that no run reads another's messages.
4. A killed process that does not exit promptly keeps its slot while a background thread waits for it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import secrets
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from standfast.errors import EngineFailed, ErrorObject
from standfast.model.limits import SessionLimits
from standfast.sandbox.cpython.failures import FILES_ERROR, THREADS_ERROR
from standfast.sandbox.cpython.jail import MAX_FILES_BYTES, Jail, JailProcess
from standfast.sandbox.cpython.messages import NO_RUN, NONCE_BYTES
from standfast.sandbox.run_errors import cpu_error, memory_error
from standfast.sandbox.worker_process import WorkerDied
from standfast.sandbox.workers import PeakMemory, WorkerSlots

LOADING_MS: Final = 2_000
"""CPU time for loading the session, in addition to `cpu_ms`, which is for the code alone."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SPARE_BYTES: Final = 48 << 20
_SPARE_CPU_S: Final = 3
_MAX_ENTRIES: Final = 2_000
_MAX_DEPTH: Final = 100
_MAX_THREADS: Final = 200
_THREADS_AT: Final = 17
"""The index of the number of threads among the fields of /proc/PID/stat after the name."""


class Meter:
    """Measures the resources that guest code uses in one process, without those used before its first run."""

    def __init__(self, pid: int, home: str | None) -> None:
        self._pid = pid
        self._home = home
        self._cpu_clock = (~pid << 3) | 2  # the value that clock_getcpuclockid(3) computes
        self._cpu_start = 0.0
        self.peak = PeakMemory(pid)
        try:
            pages = Path(f"/proc/{pid}/statm").read_text().split()
        except ProcessLookupError:
            raise WorkerDied from None
        except OSError as error:
            raise EngineFailed(f"the resources of the guest's process cannot be measured: {error}") from error
        self._own_space, self._own_memory = int(pages[0]) * _PAGE, int(pages[1]) * _PAGE

    def begin(self, limits: SessionLimits) -> None:
        """Measure a new run, and set kernel limits that also apply between two checks of the watchdog."""
        self._cpu_start = self._cpu_s()
        self.peak.reset()
        space = self._own_space + 2 * (limits.memory_mb << 20) + _SPARE_BYTES  # packing needs as much again
        seconds = int(self._cpu_start + limits.cpu_ms / 1000) + _SPARE_CPU_S
        try:
            for which, most in ((resource.RLIMIT_AS, space), (resource.RLIMIT_CPU, seconds)):
                _, hard = resource.prlimit(self._pid, which)  # kept, so that the next run can have more
                soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(self._pid, which, (soft, hard))
        except ProcessLookupError:
            raise WorkerDied from None
        except OSError as error:
            raise EngineFailed(f"the resources of the guest's process cannot be limited: {error}") from error

    def computed_ms(self) -> float:
        """Return the CPU time that the run has used so far."""
        return (self._cpu_s() - self._cpu_start) * 1000

    def used_bytes(self) -> int:
        """Return the run's peak memory, without the memory that the process had before its first run."""
        return max(0, (self.peak.bytes() or 0) - self._own_memory)

    def needs_more_than(self, limits: SessionLimits, peak: int | None = None) -> bool:
        """Return whether the run's peak memory, or *peak* if given, exceeds the memory limit."""
        used = self.peak.bytes() if peak is None else peak
        return used is not None and used - self._own_memory > limits.memory_mb << 20

    def exceeded(self, limits: SessionLimits, *, loading: bool, packing: bool) -> ErrorObject | None:
        """Return the error of the limit that the run exceeds.

        Loading and packing have other memory limits.
        """
        if self.computed_ms() > limits.cpu_ms + (LOADING_MS if loading else 0):
            return cpu_error(limits)
        if not (loading or packing) and self.needs_more_than(limits):
            return memory_error(limits)
        with contextlib.suppress(OSError):  # the process may be ending; no system limit holds for root
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[_THREADS_AT]) > _MAX_THREADS:
                return THREADS_ERROR
        return FILES_ERROR if self._files_too_large() else None

    def close(self) -> None:
        self.peak.close()

    def _cpu_s(self) -> float:
        try:
            return time.clock_gettime(self._cpu_clock)
        except OSError:  # the process is gone
            return self._cpu_start

    def _files_too_large(self) -> bool:
        """Return whether files in the private directory exceed a limit that the kernel does not enforce."""
        if self._home is None:
            try:
                system = os.statvfs(f"/proc/{self._pid}/root/tmp")
            except OSError:  # the process is ending
                return False
            return system.f_files - system.f_ffree > _MAX_ENTRIES
        size, entries = _held_below(self._home)
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{self._pid}/fd"):
                with contextlib.suppress(OSError):
                    found = os.stat(f"/proc/{self._pid}/fd/{name}")
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink:  # deleted, but still open
                        size += found.st_blocks * 512
        return size > MAX_FILES_BYTES or entries > _MAX_ENTRIES


def _held_below(home: str) -> tuple[int, int]:
    """Count bytes and entries below a directory; an unreadable or very deep one counts as too many."""
    size = entries = 0
    pending = [(home, 0)]
    while pending and entries <= _MAX_ENTRIES:
        path, depth = pending.pop()
        try:
            with os.scandir(path) as found:
                for entry in itertools.islice(found, _MAX_ENTRIES):
                    entries += 1
                    with contextlib.suppress(FileNotFoundError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append((entry.path, depth + 1))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            entries += _MAX_ENTRIES
        if depth > _MAX_DEPTH:
            entries += _MAX_ENTRIES
    return size, entries


Beside = Callable[[JailProcess], AbstractContextManager[None]]
"""Returns a context within which a process that is being started can be killed."""
MAX_RUNS: Final = 500
"""A process is replaced after this many runs, because interpreters leak."""
_PATIENCE_S: Final = 0.3
_CLOSE_S: Final = 10.0


class CPythonWorker:
    """A session in a jailed process. Each frame from it must have `nonce`, the nonce of the current run."""

    def __init__(self, process: JailProcess) -> None:
        self.process = process
        self.meter = Meter(process.guest_pid, process.home)
        self.version: bytes | None = b""
        self.nonce = NO_RUN
        self.warm = False
        self.runs = 0
        self._halted = False

    def holds(self, state: bytes) -> bool:
        """Return whether a run from *state* can begin here: the process is alive and has sent nothing."""
        fits = self.version == state and self.runs < MAX_RUNS
        return fits and self.process.is_alive() and not self.process.has_unread()

    def begin(self) -> str:
        """Start a run; return its new nonce, in hexadecimal. The session's state is unknown from then on."""
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.version = None
        self.runs += 1
        return self.nonce.hex()

    def kill(self) -> None:
        self.meter.peak.bytes()  # read and cached while the process still exists
        self.process.kill()

    def halt(self) -> None:
        """Stop the process (SIGSTOP) until `wake`."""
        with contextlib.suppress(OSError):
            os.kill(self.process.guest_pid, signal.SIGSTOP)
        self._halted = True

    def wake(self) -> None:
        if self._halted:
            with contextlib.suppress(OSError):
                os.kill(self.process.guest_pid, signal.SIGCONT)
            self._halted = False

    def end(self) -> bool:
        """Kill the process; return whether it exited promptly."""
        return self.process.end(_PATIENCE_S)

    def close(self) -> None:
        self.process.close()
        self.meter.close()


class CPythonWorkers(WorkerSlots[CPythonWorker]):
    """The jailed processes of one engine."""

    def __init__(self, jail: Jail, capacity: int) -> None:
        super().__init__(capacity)
        self.jail = jail
        self._spare: CPythonWorker | None = None
        self._making: threading.Thread | None = None
        self._starting: JailProcess | None = None
        self._ending: set[threading.Thread] = set()
        self._closed = False
        self._changing = threading.Lock()

    def fresh(self, beside: Beside) -> CPythonWorker:
        """Return a process with an empty session. A new one is started within *beside*. Blocks."""
        with self._changing:
            worker, self._spare = self._spare, None
        if worker is not None and not worker.process.is_alive():
            worker.close()
            worker = None
        if worker is None:
            worker = self._made(beside)
        self.prepare()
        return worker

    def keep(self, key: str, worker: CPythonWorker) -> None:
        worker.halt()
        super().keep(key, worker)

    def give_back(self, worker: CPythonWorker | None) -> None:
        """Free a slot as soon as its process has exited."""
        if worker is None or worker.end():
            super().give_back(worker)
        else:
            self._later(lambda: super(CPythonWorkers, self).give_back(worker))

    def drop(self, worker: CPythonWorker) -> None:
        """End the process of a run that keeps its slot."""
        if worker.end():
            worker.close()
        else:
            self._later(worker.close)

    def ending(self) -> int:
        """Return the number of killed processes that have not exited yet."""
        return len(self._ending)

    def _later(self, work: Callable[[], None]) -> None:
        def do() -> None:
            try:
                work()
            finally:
                self._ending.discard(thread)

        thread = threading.Thread(target=do, name="standfast-jail-end", daemon=True)
        self._ending.add(thread)
        thread.start()

    def close(self) -> None:
        """End every process that has no run, and start no more. Blocking."""
        self._closed = True
        super().close()
        with self._changing:
            making, starting = self._making, self._starting
        if starting is not None:
            starting.kill()
        if making is not None:
            making.join()
        until = time.monotonic() + _CLOSE_S
        for thread in list(self._ending):
            thread.join(max(0.0, until - time.monotonic()))
        with self._changing:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def prepare(self) -> None:
        """Start a spare process in the background, unless there is one."""
        with self._changing:
            if self._closed or self._spare is not None or self._making is not None:
                return
            self._making = threading.Thread(target=self._make_spare, name="standfast-jail", daemon=True)
            self._making.start()

    def _make_spare(self) -> None:
        worker: CPythonWorker | None = None
        with contextlib.suppress(EngineFailed):  # the next run that needs a process reports it
            worker = self._made(self._as_starting)
        with self._changing:
            self._making = None
            if not self._closed:
                self._spare, worker = worker, None
        if worker is not None:
            worker.close()

    @contextlib.contextmanager
    def _as_starting(self, process: JailProcess) -> Iterator[None]:
        """Let `close` kill *process* while it is started in the background."""
        with self._changing:
            self._starting = process
            if self._closed:
                process.kill()
        try:
            yield
        finally:
            with self._changing:
                self._starting = None

    def _made(self, beside: Beside) -> CPythonWorker:
        if self._closed:
            raise EngineFailed("the sandbox is closed")
        process = self.jail.start()
        with beside(process):
            process.wait_until_ready()
        try:
            return CPythonWorker(process)
        except WorkerDied:  # killed as soon as it was ready
            process.close()
            raise EngineFailed("a jail ended before it was used") from None
        except EngineFailed:
            process.close()
            raise
