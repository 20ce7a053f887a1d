"""Renaming a database file together with its write-ahead log."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw

from standfast.errors import StoreUnavailable
from standfast.store.sqlite.checksums import open_checked
from standfast.store.sqlite.connection import translated


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
