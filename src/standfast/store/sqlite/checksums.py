"""Checksums on every page of a SQLite file, so that damage in an index is an error and never a wrong answer.

Theory of operation
-------------------
SQLite's checksum VFS (`cksumvfs`, which comes with apsw) keeps eight bytes at the end of every page, and
checks them whenever a page is read. It does so only for files whose header reserves eight bytes on each page,
and it looks at the header only when a connection opens the file and when page 1 is written in place. So a
file gets its checksums before any connection works on it, under an exclusive lock and outside WAL mode:

    no file, or an empty one     -> one transaction that reserves the bytes and marks the file CHECKED
    a file without checksums     -> migrate its tables and mark it UPGRADING      (one transaction)
    UPGRADING, nothing reserved  -> VACUUM that reserves the bytes                (one transaction)
    UPGRADING, bytes reserved    -> VACUUM through the checksum VFS, mark CHECKED (two transactions)

    CHECKED, pages without them  -> check every record, mark UPGRADING            (two transactions)

The last one is taken when the operator asks for it (see `checksum_rewrite`): frames of the write-ahead log
have no checksums, so another SQLite program that copies them to the file leaves pages that look damaged.

Each step is atomic, and the next program that opens the file continues with the step that is missing. The
mark is the `application_id` in the file's header.

Rules
-----
1. Bytes are reserved without the checksum VFS: while it is being told to reserve them, it would skip pages.
2. A rollback journal that a killed program left is rolled back without the checksum VFS: it would write
   checksums over pages of a file that reserves no bytes for them.
3. A file marked CHECKED that does not reserve the bytes, or one that reserves them unmarked, is damaged.
4. Tables are migrated first: programs that write no checksums refuse the newer schema.
5. This process's default VFS stays what it was; other users of apsw notice nothing.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

import apsw
from apsw import sqlite_extra

from standfast.errors import RecordCorrupt, StoreUnavailable

_CHECKSUM_VFS: Final = "cksmvfs"
_MAGIC: Final = b"SQLite format 3\0"
_RESERVED: Final = 8
_CHECKED: Final = 0x48665043
_UPGRADING: Final = 0x3BA1C59E
"""Marks in the header. They differ in 20 bits, so that one flipped bit never turns one into the other."""

_loading: Final = threading.Lock()
_vfs_below: str | None = None


class _State(Enum):
    """How far a file is on its way to checksums."""

    EMPTY = "empty"
    WITHOUT = "without checksums"
    NOTHING_RESERVED = "upgrading, nothing reserved"
    RESERVED = "upgrading, bytes reserved"
    CHECKED = "checked"


def open_checked(path: str, flags: int | None = None) -> apsw.Connection:
    """Open *path*, a file name or a URI, through the checksum VFS."""
    _load()
    return _open(path, _CHECKSUM_VFS, flags)


def open_unwritten(path: Path, *, immutable: bool) -> apsw.Connection:
    """Open a file for reading only. One without checksums is read as it is, and not upgraded."""
    options = "mode=ro&immutable=1" if immutable else "mode=ro"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = open_checked(f"{path.as_uri()}?{options}", flags)
    try:
        if _state_of(connection, path) is _State.RESERVED:  # an upgrade that has not written them all
            connection.execute("PRAGMA checksum_verification = OFF")
    except BaseException:
        connection.close(True)
        raise
    return connection


def is_checked(connection: apsw.Connection) -> bool:
    """Whether this connection checks every page that it reads, and writes checksums."""
    return bool(connection.execute("PRAGMA checksum_verification").get == "1")


def ensure_checksums(
    path: Path, patience: Callable[[int], bool], migrate: Callable[[apsw.Connection], None]
) -> None:
    """Create the file with checksums, or upgrade one that has none.

    Wait for other programs while `patience` allows, then raise `apsw.BusyError`. *migrate* brings the tables
    of a file without checksums to their last version, inside a transaction. Call it before this program has
    any other connection to the file.
    """
    _load()
    attempt = 0
    while True:
        try:
            if _advance(path, migrate):
                return
        except apsw.BusyError:
            if not patience(attempt):
                raise
            attempt += 1


def start_rewrite(path: Path, check: Callable[[apsw.Connection], None]) -> None:
    """Let the next `ensure_checksums` write every checksum of a checked file anew, unless *check* raises.

    *check* reads the file without page checksums, in a transaction that is undone if it raises. Raises
    `apsw.BusyError` if another connection to the file is open.
    """
    _load()
    _roll_back(path)
    with contextlib.closing(_open_below(path)) as db:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a file that is refused stays as it is
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        if _state_of(db, path) is not _State.CHECKED:
            return
        check(db)
        db.execute("COMMIT")
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        _lock(db)
        db.execute(f"PRAGMA application_id = {_UPGRADING}")


def find_damaged_page(path: Path) -> int | None:
    """Return the number of the first page in the file whose checksum is wrong; None if all are right."""
    _load()
    with contextlib.closing(_open_below(path)) as file, contextlib.closing(_open_below(":memory:")) as memory:
        header = _header(file) or bytes(100)
        size = int.from_bytes(header[16:18], "big")
        page_size = 65_536 if size == 1 else size
        if page_size < 512 or page_size & (page_size - 1) or header[20] != _RESERVED:
            return 1
        for page in range(path.stat().st_size // page_size):
            data = file.read("main", 0, page * page_size, page_size)[1]
            if memory.execute("SELECT verify_checksum(?)", (data,)).get != 1:
                return page + 1
    return None


def _advance(path: Path, migrate: Callable[[apsw.Connection], None]) -> bool:
    """Take the next step towards checksums; true once every page has one."""
    _roll_back(path)
    with contextlib.closing(_open_below(path)) as db:
        state = _state_of(db, path)
    match state:
        case _State.CHECKED:
            return True
        case _State.EMPTY:
            _create(path)
        case _State.WITHOUT | _State.NOTHING_RESERVED:
            _reserve(path, migrate)
        case _State.RESERVED:
            _write_checksums(path)
    return False


def _roll_back(path: Path) -> None:
    """Undo what a killed program has left half written (rule 2)."""
    if path.with_name(path.name + "-journal").exists():
        with contextlib.closing(_open_below(path)) as db:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()


def _create(path: Path) -> None:
    with contextlib.closing(open_checked(str(path))) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = EXTRA")
        db.reserve_bytes("main", _RESERVED)
        db.execute("BEGIN EXCLUSIVE")
        if _state_of(db, path) is _State.EMPTY:  # no other program was faster
            db.execute(f"PRAGMA application_id = {_CHECKED}")
        db.execute("COMMIT")


def _reserve(path: Path, migrate: Callable[[apsw.Connection], None]) -> None:
    with contextlib.closing(_open_below(path)) as db:
        _lock(db)
        db.execute("BEGIN EXCLUSIVE")
        state = _state_of(db, path)
        if state is _State.WITHOUT:
            migrate(db)
            db.execute(f"PRAGMA application_id = {_UPGRADING}")
            state = _State.NOTHING_RESERVED
        db.execute("COMMIT")
        if state is _State.NOTHING_RESERVED:
            db.reserve_bytes("main", _RESERVED)
            db.execute("VACUUM")


def _write_checksums(path: Path) -> None:
    with contextlib.closing(open_checked(str(path))) as db:
        db.execute("PRAGMA checksum_verification = OFF")
        _lock(db)
        db.execute("BEGIN EXCLUSIVE; COMMIT")
        if _state_of(db, path) is _State.RESERVED:
            db.execute("VACUUM")
            db.execute(f"PRAGMA application_id = {_CHECKED}")


def _lock(db: apsw.Connection) -> None:
    """Leave WAL mode, which takes that no other connection is open, and keep others out until *db* closes."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA synchronous = EXTRA")  # a journal that was deleted must not come back after power loss
    db.execute("PRAGMA journal_mode = DELETE").fetchall()


def _state_of(db: apsw.Connection, path: Path) -> _State:
    """Read how far the file is from its header. Outside a lock the answer may be out of date."""
    header = _header(db)
    if header is None:
        return _State.EMPTY
    if not header.startswith(_MAGIC):
        return _State.WITHOUT  # SQLite itself is going to refuse it
    reserved, mark = header[20] == _RESERVED, int.from_bytes(header[68:72], "big")
    if mark == _UPGRADING:
        return _State.RESERVED if reserved else _State.NOTHING_RESERVED
    if reserved != (mark == _CHECKED):
        raise page_damaged(path, 1)
    return _State.CHECKED if reserved else _State.WITHOUT


def page_damaged(path: Path, page: int | None) -> RecordCorrupt:
    """Name the page that does not match its checksum; None: it is in the write-ahead log."""
    where = "a page in its write-ahead log" if page is None else f"page {page}"
    error = RecordCorrupt("")
    error.message = f"{path} is damaged: {where} does not match its checksum"
    error.hint = (
        "restore the file from a backup and check the disk; "
        "or, if another SQLite program has opened the file, "
        f"run: {shlex.join(('standfast', 'sessions', 'rewrite-checksums', '--data-dir', str(path)))}"
    )
    return error


def _header(db: apsw.Connection) -> bytes | None:
    """The first hundred bytes of the file itself; None if it is empty."""
    whole, header = db.read("main", 0, 0, 100)
    return header if whole else None


def _open_below(path: Path | str) -> apsw.Connection:
    """Open a file without the checksum VFS."""
    return _open(str(path), _vfs_below, None)


def _open(path: str, vfs: str | None, flags: int | None) -> apsw.Connection:
    if flags is None:
        return apsw.Connection(path, vfs=vfs)
    return apsw.Connection(path, flags=flags, vfs=vfs)


def _load() -> None:
    """Register the checksum VFS over this process's default one, once."""
    global _vfs_below
    if _vfs_below is not None:
        return
    with _loading:
        if _vfs_below is not None:
            return
        below = apsw.vfs_names()[0]
        try:
            with contextlib.closing(apsw.Connection(":memory:")) as db:
                sqlite_extra.load(db, "cksumvfs")
        except (apsw.Error, sqlite_extra.NotAvailable) as error:
            raise StoreUnavailable(
                f"apsw {apsw.apsw_version()} cannot load SQLite's checksum VFS: {error}",
                hint="install apsw from its wheel on PyPI",
            ) from error
        finally:
            apsw.set_default_vfs(below)
        _vfs_below = below
