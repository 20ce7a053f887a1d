"""How much a guest computes and keeps in memory, measured and limited from outside of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import stat
import time
from pathlib import Path
from typing import Final

from standfast.errors import EngineFailed
from standfast.model.limits import SessionLimits
from standfast.sandbox.cpython.jail import MAX_FILES_BYTES
from standfast.sandbox.worker_process import WorkerDied
from standfast.sandbox.workers import PeakMemory

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SPARE_BYTES: Final = 48 << 20
_SPARE_CPU_S: Final = 3
_MAX_ENTRIES: Final = 2_000
_MAX_DEPTH: Final = 100
_MAX_THREADS: Final = 200
_THREADS_AT: Final = 17
"""Where the number of threads is, in what the system tells of a process after its name."""


class Meter:
    """Looks at one process. What it used before its first run is its own, not the code's."""

    def __init__(self, pid: int, home: str | None) -> None:
        self._pid = pid
        self._home = home
        self._cpu_clock = (~pid << 3) | 2  # as clock_getcpuclockid(3) makes it
        self._cpu_start = 0.0
        self.peak = PeakMemory(pid)
        self._own_space, self._own_memory = self._sizes()

    def begin(self, limits: SessionLimits) -> None:
        """A run begins: measure anew, and set limits that hold even if nobody looks."""
        self._cpu_start = self._cpu_s()
        self.peak.reset()
        space = self._own_space + 2 * (limits.memory_mb << 20) + _SPARE_BYTES  # storing takes as much again
        seconds = int(self._cpu_start + limits.cpu_ms / 1000) + _SPARE_CPU_S
        try:
            self._limit(resource.RLIMIT_AS, space)
            self._limit(resource.RLIMIT_CPU, seconds)
        except ProcessLookupError:
            raise WorkerDied from None
        except OSError as error:
            raise EngineFailed(f"the guest's resources cannot be limited: {error}") from error

    def computed_ms(self) -> float:
        """What the run has computed so far."""
        return (self._cpu_s() - self._cpu_start) * 1000

    def used_bytes(self) -> int:
        """The run's peak, without what the process had before its first run."""
        return max(0, (self.peak.bytes() or 0) - self._own_memory)

    def needs_more_than(self, limits: SessionLimits, peak: int | None = None) -> bool:
        """Whether the run's peak, or the one given, is over its limit."""
        used = self.peak.bytes() if peak is None else peak
        return used is not None and used - self._own_memory > limits.memory_mb << 20

    def has_too_many_threads(self) -> bool:
        """Whether the guest starts more threads than the system would let a user who is not root."""
        try:
            told = Path(f"/proc/{self._pid}/stat").read_text()
        except OSError:  # it is ending
            return False
        return int(told.rpartition(")")[2].split()[_THREADS_AT]) > _MAX_THREADS

    def files_too_large(self) -> bool:
        """Whether the private directory holds too much, or too many files, where the system sets no limit."""
        if self._home is None:
            return self._inodes() > _MAX_ENTRIES
        size, entries = _held_below(self._home)
        return size + self._unlinked_bytes() > MAX_FILES_BYTES or entries > _MAX_ENTRIES

    def _inodes(self) -> int:
        """How many files and directories there are in a private file system."""
        try:
            system = os.statvfs(f"/proc/{self._pid}/root/tmp")
        except OSError:  # it is ending
            return 0
        return system.f_files - system.f_ffree

    def _unlinked_bytes(self) -> int:
        """What open files take that have no name any more."""
        size = 0
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{self._pid}/fd"):
                with contextlib.suppress(OSError):
                    found = os.stat(f"/proc/{self._pid}/fd/{name}")
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                        size += found.st_blocks * 512
        return size

    def close(self) -> None:
        self.peak.close()

    def _cpu_s(self) -> float:
        try:
            return time.clock_gettime(self._cpu_clock)
        except OSError:  # it is gone
            return self._cpu_start

    def _sizes(self) -> tuple[int, int]:
        try:
            pages = Path(f"/proc/{self._pid}/statm").read_text().split()
        except ProcessLookupError:
            raise WorkerDied from None
        except OSError as error:
            raise EngineFailed(f"the guest cannot be watched: {error}") from error
        return int(pages[0]) * _PAGE, int(pages[1]) * _PAGE

    def _limit(self, which: int, most: int) -> None:
        """Set the limit that holds; the one above it stays, so that the next run may have more."""
        _, hard = resource.prlimit(self._pid, which)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(self._pid, which, (soft, hard))


def _held_below(home: str) -> tuple[int, int]:
    """Bytes and entries below a directory, no further than is too much; what cannot be looked at is that."""
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
