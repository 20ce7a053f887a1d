"""Measures and limits, from outside, how much a guest computes and keeps in memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import stat
import time
from pathlib import Path
from typing import Final

from standfast.errors import EngineFailed, ErrorObject
from standfast.model.limits import SessionLimits
from standfast.sandbox.cpython.failures import FILES_ERROR, THREADS_ERROR
from standfast.sandbox.cpython.jail import MAX_FILES_BYTES
from standfast.sandbox.run_errors import cpu_error, memory_error
from standfast.sandbox.worker_process import WorkerDied
from standfast.sandbox.workers import PeakMemory

LOADING_MS: Final = 2_000
"""What loading the session may compute in addition to `cpu_ms`; it is not the code's computing."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SPARE_BYTES: Final = 48 << 20
_SPARE_CPU_S: Final = 3
_MAX_ENTRIES: Final = 2_000
_MAX_DEPTH: Final = 100
_MAX_THREADS: Final = 200
_THREADS_AT: Final = 17
"""The index of the number of threads among the fields of /proc/PID/stat after the name."""


class Meter:
    """The resources of one process. What it used before its first run is its own, not the code's."""

    def __init__(self, pid: int, home: str | None) -> None:
        self._pid = pid
        self._home = home
        self._cpu_clock = (~pid << 3) | 2  # as clock_getcpuclockid(3) makes it
        self._cpu_start = 0.0
        self.peak = PeakMemory(pid)
        try:
            pages = Path(f"/proc/{pid}/statm").read_text().split()
        except ProcessLookupError:
            raise WorkerDied from None
        except OSError as error:
            raise EngineFailed(f"the guest cannot be watched: {error}") from error
        self._own_space, self._own_memory = int(pages[0]) * _PAGE, int(pages[1]) * _PAGE

    def begin(self, limits: SessionLimits) -> None:
        """Measure a new run, and set system limits that hold even between two looks of the watchdog."""
        self._cpu_start = self._cpu_s()
        self.peak.reset()
        space = self._own_space + 2 * (limits.memory_mb << 20) + _SPARE_BYTES  # storing takes as much again
        seconds = int(self._cpu_start + limits.cpu_ms / 1000) + _SPARE_CPU_S
        try:
            for which, most in ((resource.RLIMIT_AS, space), (resource.RLIMIT_CPU, seconds)):
                _, hard = resource.prlimit(self._pid, which)  # it stays, so that the next run may have more
                soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(self._pid, which, (soft, hard))
        except ProcessLookupError:
            raise WorkerDied from None
        except OSError as error:
            raise EngineFailed(f"the guest's resources cannot be limited: {error}") from error

    def computed_ms(self) -> float:
        """Return how long the run has computed so far."""
        return (self._cpu_s() - self._cpu_start) * 1000

    def used_bytes(self) -> int:
        """Return the run's memory peak, without what the process had before its first run."""
        return max(0, (self.peak.bytes() or 0) - self._own_memory)

    def needs_more_than(self, limits: SessionLimits, peak: int | None = None) -> bool:
        """Return whether the run's memory peak, or *peak*, is over its limit."""
        used = self.peak.bytes() if peak is None else peak
        return used is not None and used - self._own_memory > limits.memory_mb << 20

    def exceeded(self, limits: SessionLimits, *, loading: bool, packing: bool) -> ErrorObject | None:
        """Return the error of the limit that the run exceeds. Memory has others while the session moves."""
        if self.computed_ms() > limits.cpu_ms + (LOADING_MS if loading else 0):
            return cpu_error(limits)
        if not (loading or packing) and self.needs_more_than(limits):
            return memory_error(limits)
        with contextlib.suppress(OSError):  # the process may be ending; as root it may start any number
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
        """Return whether the private directory exceeds a limit that the system does not set."""
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
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink:  # open, and without a name
                        size += found.st_blocks * 512
        return size > MAX_FILES_BYTES or entries > _MAX_ENTRIES


def _held_below(home: str) -> tuple[int, int]:
    """Count bytes and entries below a directory, stopping at too many; what cannot be read counts as that."""
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
