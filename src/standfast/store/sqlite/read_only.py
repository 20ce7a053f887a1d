"""Reading a SQLite file that this process cannot write to: read-only files, directories and file systems.

SQLite reads a file in WAL mode only if it can make or find the file's `-shm`. Where it cannot, a file without
a write-ahead log is read as it stands (`immutable`): no writer has it open, or there would be a log. A file
with a log but without `-shm`, as on a copy of a running program's directory, is copied to a private directory
and read there; so is one whose tables are those of an older version.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import apsw

from standfast.store.sqlite.connection import open_unwritten

_PARTS: Final = ("", "-wal", "-journal")


def can_write(path: Path) -> bool:
    """Whether this process may write to the file, and make what SQLite needs beside it."""
    if not path.exists():
        return True  # creating it raises the reason
    if not os.access(path, os.W_OK):
        return False
    return os.access(path.parent, os.W_OK) or _beside(path, "-shm").exists()


def connect_read_only(path: Path, busy_timeout_ms: int) -> apsw.Connection:
    """Open the file without changing anything; `apsw.CantOpenError` if its log cannot be read in place."""
    log = _beside(path, "-wal")
    as_it_stands = not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size)
    connection = open_unwritten(path, immutable=as_it_stands)
    try:
        connection.set_busy_timeout(busy_timeout_ms)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except BaseException:
        connection.close(True)
        raise
    return connection


def copy_to_private_directory(path: Path) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """Copy the file and its log; returns the directory, which goes with its object, and the copy."""
    home = tempfile.TemporaryDirectory(prefix="standfast-read-")
    copy = Path(home.name) / path.name
    for part in _PARTS:
        if _beside(path, part).exists():
            shutil.copyfile(_beside(path, part), _beside(copy, part))
    return home, copy


def _beside(path: Path, part: str) -> Path:
    return path.with_name(path.name + part)
