"""A disk that is full or fails from the n-th write on: below SQLite, where real disks fail.

It starts counting at `arm`, when the file is open, and works again when the file is closed: SQLite ignores a
disk error while it closes a file, and a VFS written in Python cannot report one then.
"""

from __future__ import annotations

import itertools
from typing import Any

import apsw


class BrokenDisk(apsw.VFS):
    """The VFS of every connection of this process once it is created. `heal` lets writes succeed again."""

    def __init__(self, fails_at: int, full: bool) -> None:
        super().__init__("broken-disk", "unix", makedefault=True)
        self._numbers = itertools.count(1)
        self._fails_at = fails_at
        self._error = apsw.FullError if full else apsw.IOError
        self._healed = True
        self.failures = 0

    def arm(self) -> None:
        """Start counting, once."""
        self._healed = self.failures > 0

    def heal(self) -> bool:
        """Let writes succeed from now on; return False if they already did."""
        was_broken = self.failures > 0 and not self._healed
        self._healed = True
        return was_broken

    def check(self) -> None:
        """Count a write, and fail it if its number has come."""
        if not self._healed and next(self._numbers) >= self._fails_at:
            self.failures += 1
            raise self._error("injected")

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: BrokenDisk, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.check()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.check()
        super().xSync(flags)
