"""Maintenance of a store's file: copy it, rename it, rewrite all page checksums.

Theory of operation
-------------------
Pages in the write-ahead log carry no checksums; they get them when a connection through the checksum VFS
copies them to the file. If a process was killed and another SQLite program then opens the file, that program
copies them, and leaves pages whose checksums are wrong although nothing is damaged. Such a page looks like a
damaged one. So the operator has to state that it is not, and everything else that can be checked is checked:
SQLite's `integrity_check`, the definitions of the tables, and the digest of every record.

Rules
-----
1. Nothing is changed before every check has passed, and no other program may have the file open.
2. An index that does not match its table is refused, not rebuilt: the table may be the one that lost a row.
3. If the command is killed, run it again, or the next program that opens the file continues.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import apsw

from standfast.errors import InvalidArgument, RecordCorrupt, StoreUnavailable
from standfast.store.sql.tables import CHECKS
from standfast.store.sqlite import connection
from standfast.store.sqlite.connection import SqliteConnection
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.sandbox_migration import COMPONENTS
from standfast.store.sqlite.schema import migrate_all


def back_up(database: Database, to: str | Path) -> Path:
    """Copy the whole file in its current state to a new file *to*, and check every page of the copy.

    `cp` would miss the write-ahead log, and `sqlite3 .backup` leaves page 1 of the copy without its checksum.
    """
    target = Path(to).absolute()
    if target.exists():
        raise InvalidArgument(f"{target} exists already", hint="name a file that does not exist")
    try:
        connection.create_file(target)
        connection.ensure_checksums(target, lambda attempt: False, lambda db: None)
        with contextlib.closing(connection.open_checked(str(target))) as copy:
            database.read(lambda source: _copy(source, copy))
        if (page := connection.find_damaged_page(target)) is not None:
            raise connection.page_damaged(target, page)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, apsw.Error):
            raise connection.translated(error, target) from error
        raise
    return target


def _copy(source: SqliteConnection, copy: SqliteConnection) -> None:
    with copy.backup("main", source, "main") as copying:
        copying.step(-1)


def rename_database(path: Path, new: Path) -> None:
    """Move the database *path* to *new*, which must not exist, while no program has it open.

    Leaving WAL mode requires that no other connection is open, and moves the log into the file first, so
    that the rename moves all of the data or nothing.
    """
    if new.exists():
        raise StoreUnavailable(f"{new} exists already", hint=f"move it away, or keep it and delete {path}")
    try:
        with contextlib.closing(connection.open_checked(str(path))) as db:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = DELETE").fetchall()
            os.replace(path, new)
    except apsw.Error as error:
        raise connection.translated(error, path) from error


# Checksums

_DEFINITIONS: Final = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"


def rewrite_checksums(path: Path) -> int | None:
    """Check every record of the file, then write the checksums of all pages anew.

    Returns the number of records; None if every page already matches its checksum. Raises
    `RecordCorrupt` if a check fails and `StoreUnavailable` if another program has the file open. Neither
    changes the file.
    """
    path = path.absolute()
    if not path.exists():
        raise InvalidArgument(f"{path} does not exist", hint="name the database with --store")
    records: int | None = None

    def check(db: SqliteConnection) -> None:
        nonlocal records
        records = _check(db, path)

    try:
        if connection.find_damaged_page(path) is not None:
            connection.start_rewrite(path, check)
    except RecordCorrupt as error:
        error.hint = "restore the file from a backup; nothing was changed"
        raise
    except (apsw.Error, UnicodeError) as error:
        raise connection.translated(error, path) from error
    Database(path, COMPONENTS).close()  # continues from the mark that `start_rewrite` set
    if (page := connection.find_damaged_page(path)) is not None:
        raise connection.page_damaged(path, page)
    return records


def _check(db: SqliteConnection, path: Path) -> int:
    """Check everything but page checksums, rebuild the indexes, and return the number of records."""
    problem = db.execute("PRAGMA integrity_check(1)").get
    if problem != "ok":
        raise connection.damaged(f"{path} is damaged: {problem}")
    migrate_all(db, COMPONENTS, path)
    _check_definitions(db, path)
    records = 0
    for select, check in CHECKS:
        for row in db.execute(select):
            check(row)
            records += 1
    db.execute("REINDEX")
    return records


def _check_definitions(db: SqliteConnection, path: Path) -> None:
    """Compare the definitions with those of a new file: one changed letter could rebuild a wrong index."""
    with contextlib.closing(SqliteConnection(":memory:")) as new:
        migrate_all(new, COMPONENTS, path)
        expected = new.execute(_DEFINITIONS).fetchall()
    found = set(db.execute(_DEFINITIONS))
    for name, sql in expected:
        if (name, sql) not in found:
            raise connection.damaged(
                f"{path} is damaged: the definition of {name} is not the one that Standfast created"
            )
