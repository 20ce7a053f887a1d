"""Copying a store's file while programs use it, and renaming it while none does."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw

from standfast.errors import InvalidArgument, StoreUnavailable
from standfast.store.sqlite.checksums import ensure_checksums, find_damaged_page, open_checked, page_damaged
from standfast.store.sqlite.connection import create_file, translated
from standfast.store.sqlite.database import Database


def back_up(database: Database, to: str | Path) -> Path:
    """Copy the whole file as it stands now to a new file *to*, and check every page of the copy.

    `cp` would miss the write-ahead log, and `sqlite3 .backup` leaves page 1 of the copy without its checksum.
    """
    target = Path(to).absolute()
    if target.exists():
        raise InvalidArgument(f"{target} exists already", hint="name a file that does not exist")
    try:
        create_file(target)
        ensure_checksums(target, lambda attempt: False, lambda db: None)
        with contextlib.closing(open_checked(str(target))) as copy:
            database.read(lambda source: _copy(source, copy))
        if (page := find_damaged_page(target)) is not None:
            raise page_damaged(target, page)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, apsw.Error):
            raise translated(error, target) from error
        raise
    return target


def _copy(source: apsw.Connection, copy: apsw.Connection) -> None:
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
        with contextlib.closing(open_checked(str(path))) as db:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = DELETE").fetchall()
            os.replace(path, new)
    except apsw.Error as error:
        raise translated(error, path) from error
