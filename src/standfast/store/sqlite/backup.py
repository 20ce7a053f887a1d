"""Copying a store's file while programs use it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw

from standfast.errors import InvalidArgument
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
        database.read(lambda source: _copy(source, target))
        if (page := find_damaged_page(target)) is not None:
            raise page_damaged(target, page)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, apsw.Error):
            raise translated(error, target) from error
        raise
    return target


def _copy(source: apsw.Connection, target: Path) -> None:
    with (
        contextlib.closing(open_checked(str(target))) as copy,
        copy.backup("main", source, "main") as copying,
    ):
        copying.step(-1)
