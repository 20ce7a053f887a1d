"""SQLite connections: checksums on every page, WAL mode, and SQLite's errors as errors of the store.

Reading a damaged page, even of an index, raises an error and never returns a wrong result.

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

The last one is taken when the operator requests it (see `maintenance`): frames of the write-ahead log have no
checksums, so another SQLite program that copies them to the file leaves pages that look damaged.

Each step is atomic, and the next program that opens the file continues with the step that is missing. The
mark is the `application_id` in the file's header.

Rules
-----
1. Bytes are reserved without the checksum VFS, which would skip pages in the same operation.
2. A rollback journal that a killed program left is rolled back without the checksum VFS: it would write
   checksums over pages of a file that reserves no bytes for them.
3. A file marked CHECKED that does not reserve the bytes, or one that reserves them unmarked, is damaged.
4. Tables are migrated first: programs that write no checksums refuse the newer schema.
5. This process's default VFS is unchanged, so other users of apsw are not affected.
6. Every SQLite error is converted to an error of the store whose message contains the path.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from standfast.errors import InvalidArgument, RecordCorrupt, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

_PRAGMAS: Final = """
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA journal_size_limit = 16777216;
"""

_STATEMENTS: Final = 256
"""The size of apsw's statement cache: after how many other executions a prepared statement is dropped."""

_TAKEN: Final = (apsw.SQLITE_CONSTRAINT_UNIQUE, apsw.SQLITE_CONSTRAINT_PRIMARYKEY)


class SqliteConnection(apsw.Connection):
    """A connection to a file. It has the only write transaction, so there is nothing to lock."""

    patience: LockWait
    indexes_journal = False

    def insert_new(
        self, sql: str, values: Sequence[Any], refusal: Callable[..., Exception], *about: Any
    ) -> None:
        try:
            self.execute(sql, values)
        except apsw.ConstraintError as error:
            if getattr(error, "extendedresult", 0) not in _TAKEN:
                raise
            raise refusal(*about) from None

    def lock_sessions(self, session_ids: Iterable[str]) -> None: ...

    def lock_family(self, family: int) -> None: ...

    def lock_blobs(self) -> None: ...

    def skip_used_keys(self) -> None:
        """Do nothing: SQLite's next key is always higher than any existing one."""

    def announce(self, text: str) -> None: ...

    def size_bytes(self) -> int:
        return int(self.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").get)

    def lease_now(self, claimed_ms: int) -> int:
        return claimed_ms


def connect(path: Path, busy_timeout_ms: int) -> SqliteConnection:
    """Open *path* in WAL mode with full sync and page checksums, waiting for others in short steps."""
    connection = open_checked(str(path))
    patience = LockWait(busy_timeout_ms)
    connection.patience = patience
    connection.set_busy_handler(patience)
    # Without it, SQLite prepares a statement again for every bound value: 110 µs instead of 8.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    try:
        _enter_wal(connection, patience)
        connection.execute(_PRAGMAS)
        if not is_checked(connection):  # the header has been damaged since the file was opened
            raise page_damaged(path, 1)
    except BaseException:
        connection.close(True)
        raise
    return connection


def create_file(path: Path) -> None:
    """Create the file and its directory, for this user only. Existing ones keep their mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Closing a file drops all locks that this process has on it, so an existing file is not opened.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except (OSError, ValueError) as error:
        raise StoreUnavailable(
            f"cannot open {path}: {error}", hint="check the path and its permissions"
        ) from error


def bytes_on_disk(path: Path) -> int:
    """Return the size of the file with its write-ahead log."""
    return sum(part.stat().st_size for part in (path, path.with_name(path.name + "-wal")) if part.exists())


def translated(error: BaseException, path: Path) -> BaseException:
    """Convert an SQLite error to an error of the store; return any other error unchanged."""
    match error:
        case apsw.Error():
            found: BaseException = _store_error(error, path)
        case UnicodeDecodeError():
            found = damaged(f"{path} contains text that is not UTF-8")
        case UnicodeEncodeError():
            found = InvalidArgument("a string contains a lone surrogate")
        case _:
            return error
    found.__cause__ = error
    return found


class LockWait:
    """The time to wait for another process, in short steps, because SQLite's own busy handler can starve.

    After an unsuccessful wait, and for as long as it took, later waits take only a tenth of the time: writes
    that are queued behind a stopped process must not wait for the full time one after the other.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._until = 0.0
        self._short_until = 0.0
        self.waits = True

    def __call__(self, attempt: int) -> bool:
        if not self.waits:
            return False
        now = time.monotonic()
        if attempt == 0:
            self._until = now + (self._timeout_s / 10 if now < self._short_until else self._timeout_s)
        elif now > self._until:
            self._short_until = now + self._timeout_s
            return False
        time.sleep(min(0.000_2 * (attempt + 1), 0.005))
        return True


def _enter_wal(connection: SqliteConnection, patience: LockWait) -> None:
    """Switch to WAL mode, with retries, because SQLite does not call the busy handler here."""
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
            hint="move the file to a local disk that this process may write to",
        )


def _store_error(error: apsw.Error, path: Path) -> StoreError:
    match error:
        case apsw.FullError():
            return StoreUnavailable(
                f"the disk is full; {path} was not written", hint="free space, then retry"
            )
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return _locked(path)
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(
                f"{path} cannot be written to", hint="check the permissions of the file and its directory"
            )
        case apsw.CantOpenError():
            return StoreUnavailable(
                f"{path} cannot be opened", hint="check the path, its permissions and the free space"
            )
        case apsw.IOError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
            page = None
            with contextlib.suppress(apsw.Error, OSError):
                page = find_damaged_page(path)
            return page_damaged(path, page)
        case apsw.IOError():
            return StoreUnavailable(
                f"the disk failed on {path}: {error}", hint="check the disk and its free space"
            )
        case apsw.NotADBError():
            return StoreError(f"{path} is not a SQLite database", hint="name another file, or move it away")
        case apsw.CorruptError():
            return damaged(f"{path} is damaged: {error}")
        case _:
            return StoreError(f"SQLite failed on {path}: {error}")


def _locked(path: Path) -> StoreUnavailable:
    """Return an error that names the process holding the lock; a stopped process holds it until it ends."""
    from standfast.store.sqlite.lock_holders import find_lock_holder  # few programs find a lock

    holder = find_lock_holder(path)
    if holder is None:
        return StoreUnavailable(f"{path} is locked by another process", hint="retry, or end that process")
    hint = f"retry, or end process {holder.pid}"
    if holder.state.startswith("stopped"):
        hint = f"let it continue (kill -CONT {holder.pid}) or end it (kill -KILL {holder.pid}), then retry"
    return StoreUnavailable(f"{path} is locked by {holder}", hint=hint)


def damaged(message: str) -> RecordCorrupt:
    """Return the error for a record so damaged that SQLite could not read it, so its name is unknown."""
    error = RecordCorrupt("")
    error.message = message
    return error


# Reading a file that this process cannot write to
#
# SQLite reads a file in WAL mode only if it can create or find the file's `-shm`. If it cannot, a file
# without a write-ahead log is read directly (`immutable`): no writer has it open, or there would be a log. A
# file with a log but without `-shm`, as in a copy of a running program's directory, is copied to a private
# directory and read there; so is a file with the tables of an older version.


def can_write(path: Path) -> bool:
    """Return whether this process may write to the file and create the files that SQLite needs next to it."""
    if not path.exists():
        return True  # creating it raises the reason
    if not os.access(path, os.W_OK):
        return False
    return os.access(path.parent, os.W_OK) or _beside(path, "-shm").exists()


def connect_read_only(path: Path, busy_timeout_ms: int) -> SqliteConnection:
    """Open the file read-only; raise `apsw.CantOpenError` if its log cannot be read in place."""
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


def copy_to_private_directory(path: Path) -> tuple[TemporaryDirectory[str], Path]:
    """Copy the file and its log; return the directory, which is deleted with its object, and the copy."""
    import shutil
    import tempfile  # few programs read a file that they may not write

    home = tempfile.TemporaryDirectory(prefix="standfast-read-")
    copy = Path(home.name) / path.name
    for part in ("", "-wal", "-journal"):
        if _beside(path, part).exists():
            shutil.copyfile(_beside(path, part), _beside(copy, part))
    return home, copy


def _beside(path: Path, part: str) -> Path:
    return path.with_name(path.name + part)


# Checksums

_CHECKSUM_VFS: Final = "cksmvfs"
_CHECKSUMS: Final = os.path.join("sqlite_extra_binaries", "cksumvfs")
"""The extension with the checksum VFS, in the package apsw. SQLite adds the platform's suffix."""
_MAGIC: Final = b"SQLite format 3\0"
_RESERVED: Final = 8
_CHECKED: Final = 0x48665043
_UPGRADING: Final = 0x3BA1C59E
"""Marks in the header. They differ in 20 bits, so that one flipped bit never turns one into the other."""

_loading: Final = threading.Lock()
_vfs_below: str | None = None


class _State(Enum):
    """The progress of a file towards checksums."""

    EMPTY = "empty"
    WITHOUT = "without checksums"
    NOTHING_RESERVED = "upgrading, nothing reserved"
    RESERVED = "upgrading, bytes reserved"
    CHECKED = "checked"


def open_checked(path: str, flags: int | None = None) -> SqliteConnection:
    """Open *path*, a file name or a URI, through the checksum VFS."""
    _load()
    if flags is None:
        return SqliteConnection(path, vfs=_CHECKSUM_VFS, statementcachesize=_STATEMENTS)
    return SqliteConnection(path, flags=flags, vfs=_CHECKSUM_VFS, statementcachesize=_STATEMENTS)


def open_unwritten(path: Path, *, immutable: bool) -> SqliteConnection:
    """Open a file read-only. A file without checksums is not upgraded."""
    options = "mode=ro&immutable=1" if immutable else "mode=ro"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = open_checked(f"{path.as_uri()}?{options}", flags)
    try:
        if _state_of(connection, path) is _State.RESERVED:  # unfinished upgrade: some checksums are missing
            connection.execute("PRAGMA checksum_verification = OFF")
    except BaseException:
        connection.close(True)
        raise
    return connection


def is_checked(connection: SqliteConnection) -> bool:
    """Return whether this connection checks every page that it reads, and writes checksums."""
    return bool(connection.execute("PRAGMA checksum_verification").get == "1")


def ensure_checksums(
    path: Path, patience: Callable[[int], bool], migrate: Callable[[SqliteConnection], None]
) -> None:
    """Create the file with checksums, or upgrade one that has none.

    Wait for other programs while `patience` allows, then raise `apsw.BusyError`. *migrate* upgrades the
    tables of a file without checksums to the latest version, inside a transaction. Call this before this
    program has any other connection to the file.
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


def start_rewrite(path: Path, check: Callable[[SqliteConnection], None]) -> None:
    """Make the next `ensure_checksums` rewrite every checksum of a checked file, unless *check* raises.

    *check* reads the file without page checksums, in a transaction that is rolled back if it raises. Raise
    `apsw.BusyError` if another connection to the file is open.
    """
    _load()
    _roll_back(path)
    with contextlib.closing(_open_below(path)) as db:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a rejected file is not changed
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


def _advance(path: Path, migrate: Callable[[SqliteConnection], None]) -> bool:
    """Take the next step towards checksums; return True once every page has one."""
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
    """Roll back the unfinished transaction of a killed program (rule 2)."""
    if path.with_name(path.name + "-journal").exists():
        with contextlib.closing(_open_below(path)) as db:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()


def _create(path: Path) -> None:
    with contextlib.closing(open_checked(str(path))) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = EXTRA")
        db.reserve_bytes("main", _RESERVED)
        db.execute("BEGIN EXCLUSIVE")
        if _state_of(db, path) is _State.EMPTY:  # unless another program created it first
            db.execute(f"PRAGMA application_id = {_CHECKED}")
        db.execute("COMMIT")


def _reserve(path: Path, migrate: Callable[[SqliteConnection], None]) -> None:
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


def _lock(db: SqliteConnection) -> None:
    """Leave WAL mode, for which no other connection may be open, and lock the file until *db* closes."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA synchronous = EXTRA")  # a journal that was deleted must not come back after power loss
    db.execute("PRAGMA journal_mode = DELETE").fetchall()


def _state_of(db: SqliteConnection, path: Path) -> _State:
    """Read the file's progress towards checksums from its header. Without a lock it may be out of date."""
    header = _header(db)
    if header is None:
        return _State.EMPTY
    if not header.startswith(_MAGIC):
        return _State.WITHOUT  # SQLite itself will reject it
    reserved, mark = header[20] == _RESERVED, int.from_bytes(header[68:72], "big")
    if mark == _UPGRADING:
        return _State.RESERVED if reserved else _State.NOTHING_RESERVED
    if reserved != (mark == _CHECKED):
        raise page_damaged(path, 1)
    return _State.CHECKED if reserved else _State.WITHOUT


def page_damaged(path: Path, page: int | None) -> RecordCorrupt:
    """Return the error for a page with a wrong checksum; None means a page in the write-ahead log."""
    import shlex

    where = "a page in its write-ahead log" if page is None else f"page {page}"
    error = damaged(f"{path} is damaged: {where} does not match its checksum")
    error.hint = (
        "restore the file from a backup and check the disk; "
        "or, if another SQLite program has opened the file, "
        f"run: {shlex.join(('standfast', 'sessions', 'rewrite-checksums', '--store', str(path)))}"
    )
    return error


def _header(db: SqliteConnection) -> bytes | None:
    """Return the first hundred bytes of the file itself; None if it is empty."""
    whole, header = db.read("main", 0, 0, 100)
    return header if whole else None


def _open_below(path: Path | str) -> SqliteConnection:
    """Open a file without the checksum VFS."""
    return SqliteConnection(str(path), vfs=_vfs_below)


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
            with contextlib.closing(SqliteConnection(":memory:")) as db:
                db.enable_load_extension(True)  # not by `apsw.sqlite_extra`, whose import takes longer
                db.load_extension(os.path.join(os.path.dirname(apsw.__file__), _CHECKSUMS))
        except apsw.Error as error:
            raise StoreUnavailable(
                f"apsw {apsw.apsw_version()} cannot load SQLite's checksum VFS: {error}",
                hint="install apsw from its wheel on PyPI",
            ) from error
        finally:
            apsw.set_default_vfs(below)
        _vfs_below = below
