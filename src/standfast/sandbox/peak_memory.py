"""The most memory that a process has used, as the system tells it."""

from __future__ import annotations

import contextlib
import os


class PeakMemory:
    """Peak resident memory of one process, which can be measured anew."""

    def __init__(self, pid: int) -> None:
        self._status = -1
        self._reset = -1
        self._last: int | None = None
        with contextlib.suppress(OSError):
            self._status = os.open(f"/proc/{pid}/status", os.O_RDONLY)
            self._reset = os.open(f"/proc/{pid}/clear_refs", os.O_WRONLY)

    def is_alive(self) -> bool:
        """Whether the process still runs; true where the system does not tell."""
        if self._status < 0:
            return True
        try:
            return b"State:\tZ" not in os.pread(self._status, 256, 0)
        except OSError:
            return False

    def reset(self) -> None:
        """Start measuring anew."""
        if self._reset >= 0:
            with contextlib.suppress(OSError):
                os.write(self._reset, b"5")

    def bytes(self) -> int | None:
        """The peak since `reset`; of a process that has ended the last one known, None if there is none."""
        if self._status < 0:
            return self._last
        try:
            text = os.pread(self._status, 4096, 0)
        except OSError:
            return self._last
        at = text.find(b"VmHWM:")
        if at >= 0:
            self._last = int(text[at + 6 : text.index(b"kB", at)]) * 1024
        return self._last

    def close(self) -> None:
        for handle in (self._status, self._reset):
            if handle >= 0:
                os.close(handle)
        self._status = self._reset = -1
