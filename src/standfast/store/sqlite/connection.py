"""How a SQLite file is opened, how long we wait for others, and what its errors mean.

Rule: whatever SQLite says, callers hear it as one of the store's own errors, with the path in it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

import apsw

from standfast.errors import InvalidArgument, RecordCorrupt, StoreError, StoreUnavailable
from standfast.store.sqlite.checksums import find_damaged_page, is_checked, open_checked, page_damaged
from standfast.store.sqlite.lock_holders import find_lock_holder

_PRAGMAS: Final = """
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA journal_size_limit = 16777216;
"""


def connect(path: Path, busy_timeout_ms: int) -> apsw.Connection:
    """Open *path* in WAL mode with full sync and page checksums, waiting for others in short steps."""
    connection = open_checked(str(path))
    patience = Patience(busy_timeout_ms)
    connection.set_busy_handler(patience)
    # Without it SQLite prepares a statement anew for every value that is bound: 8 µs become 110.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    try:
        _enter_wal(connection, patience)
        connection.execute(_PRAGMAS)
        if not is_checked(connection):  # its header was damaged since the file was opened
            raise page_damaged(path, 1)
    except BaseException:
        connection.close(True)
        raise
    return connection


def create_file(path: Path) -> None:
    """Make the file and its directory, for this user only. What exists keeps its mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Closing a file drops all locks that this process has on it: one that exists is not touched.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"cannot open {path}: {error}", hint="check the path and its mode") from error


def bytes_on_disk(path: Path) -> int:
    """The size of the file with its write-ahead log."""
    return sum(part.stat().st_size for part in (path, path.with_name(path.name + "-wal")) if part.exists())


def translated(error: BaseException, path: Path) -> BaseException:
    """The store's own error for one of SQLite's; every other error as it is."""
    match error:
        case apsw.Error():
            found: BaseException = _store_error(error, path)
        case UnicodeDecodeError():
            found = _damaged(f"{path} holds text that is not UTF-8")
        case UnicodeEncodeError():
            found = InvalidArgument("a string holds a lone surrogate")
        case _:
            return error
    found.__cause__ = error
    return found


class Patience:
    """How long to wait for another process. Short steps, because SQLite's own let it starve."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._until = 0.0

    def __call__(self, attempt: int) -> bool:
        if attempt == 0:
            self._until = time.monotonic() + self._timeout_s
        elif time.monotonic() > self._until:
            return False
        time.sleep(min(0.000_2 * (attempt + 1), 0.005))
        return True


def _enter_wal(connection: apsw.Connection, patience: Patience) -> None:
    """Switch to WAL. SQLite asks no busy handler here, so the waiting is ours."""
    attempt = 0
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").get
            break
        except apsw.BusyError:
            if not patience(attempt):
                raise
            attempt += 1
    if mode != "wal":
        raise StoreUnavailable(
            f"{connection.filename} cannot be used in WAL mode",
            hint="put the file on a local disk that this process may write to",
        )


def _store_error(error: apsw.Error, path: Path) -> StoreError:
    match error:
        case apsw.FullError():
            return StoreUnavailable(
                f"the disk is full, {path} was not written", hint="free space, then retry"
            )
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return _locked(path)
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(
                f"{path} cannot be written to", hint="check the mode of file and directory"
            )
        case apsw.CantOpenError():
            return StoreUnavailable(
                f"{path} cannot be opened", hint="check the path, its mode and free space"
            )
        case apsw.IOError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
            return page_damaged(path, _damaged_page(path))
        case apsw.IOError():
            return StoreUnavailable(
                f"the disk failed on {path}: {error}", hint="check the disk and its free space"
            )
        case apsw.NotADBError():
            return StoreError(f"{path} is not a SQLite database", hint="name another file, or move it away")
        case apsw.CorruptError():
            return _damaged(f"{path} is damaged: {error}")
        case _:
            return StoreError(f"SQLite refused on {path}: {error}")


def _locked(path: Path) -> StoreUnavailable:
    """Name the process that has the lock; a process that is stopped keeps it until it continues or ends."""
    holder = find_lock_holder(path)
    if holder is None:
        return StoreUnavailable(f"{path} is locked by another process", hint="retry, or end that process")
    hint = f"retry, or end process {holder.pid}"
    if holder.state.startswith("stopped"):
        hint = f"let it continue (kill -CONT {holder.pid}) or end it (kill -KILL {holder.pid}), then retry"
    return StoreUnavailable(f"{path} is locked by {holder}", hint=hint)


def _damaged_page(path: Path) -> int | None:
    with contextlib.suppress(apsw.Error, OSError):
        return find_damaged_page(path)
    return None


def _damaged(message: str) -> RecordCorrupt:
    """A record so broken that SQLite could not hand it over, hence without its name."""
    error = RecordCorrupt("")
    error.message = message
    return error
