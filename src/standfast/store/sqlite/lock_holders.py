"""Finds the process that holds the write lock of a SQLite file, if it is on this machine.

SQLite's locks are POSIX locks, which Linux lists in `/proc/locks` with the processes that hold them. In WAL
mode the writer locks byte 120 of the `-shm` file; in other modes it locks the database file itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

_WRITE_LOCK: Final = 120
_STATES: Final = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for a disk", "Z": "dead"}


class LockHolder(NamedTuple):
    """A process that holds the write lock. `state` is empty if it is running normally."""

    pid: int
    name: str
    state: str

    def __str__(self) -> str:
        what = f"process {self.pid} ({self.name})" if self.name else f"process {self.pid}"
        return f"{what}, which is {self.state}" if self.state else what


def find_lock_holder(path: Path) -> LockHolder | None:
    """Return the other process that holds the file's write lock; None if it cannot be determined."""
    try:
        locks = Path("/proc/locks").read_text().splitlines()
        shared = _inode(path.with_name(path.name + "-shm"))
        whole = _inode(path)
    except OSError:
        return None
    for line in locks:
        fields = line.split()
        if len(fields) != 8 or fields[1] != "POSIX" or fields[3] != "WRITE":
            continue
        pid, inode, first, last = int(fields[4]), fields[5].rpartition(":")[2], fields[6], fields[7]
        covers = first.isdigit() and int(first) <= _WRITE_LOCK and (last == "EOF" or int(last) >= _WRITE_LOCK)
        writes = inode == shared and covers
        if pid > 0 and pid != os.getpid() and (writes or inode == whole):
            return _described(pid)
    return None


def _inode(path: Path) -> str | None:
    return str(path.stat().st_ino) if path.exists() else None


def _described(pid: int) -> LockHolder:
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return LockHolder(pid, head.partition("(")[2], _STATES.get(tail.split()[0], ""))
    except (OSError, IndexError):
        return LockHolder(pid, "", "")
