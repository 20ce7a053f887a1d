"""Writing all page checksums anew, after another SQLite program has written pages without them.

Theory of operation
-------------------
Pages in the write-ahead log carry no checksums; they get them when a connection through the checksum VFS
copies them to the file. If a process was killed and another SQLite program then opens the file, that program
copies them, and leaves pages whose checksums are wrong although nothing is damaged. Such a page looks like a
damaged one. So the operator has to say that it is none, and everything else that can be checked is checked:
SQLite's `integrity_check`, the definitions of the tables, and the digest of every record.

Rules
-----
1. Nothing is changed before every check has passed, and no other program has the file open meanwhile.
2. An index that does not match its table is refused, not rebuilt: the table may be the one that lost a row.
3. After a kill the command is run again, or the next program that opens the file continues (see `checksums`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from standfast.errors import InvalidArgument, RecordCorrupt
from standfast.store.sqlite import (
    approvals,
    clocks,
    schema,
    session_inputs,
    session_rows,
    session_schema,
    session_states,
    session_waits,
    shelf,
    tasks,
    triggers,
    turn_rows,
)
from standfast.store.sqlite.checksums import find_damaged_page, page_damaged, start_rewrite
from standfast.store.sqlite.connection import translated
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.migrations import migrate_all

_COMPONENTS: Final = {
    schema.COMPONENT: schema.MIGRATIONS,
    session_schema.COMPONENT: session_schema.MIGRATIONS,
}
_CHECKS: Final[tuple[Callable[[apsw.Connection], int], ...]] = (
    schema.check_all,
    approvals.check_all,
    session_rows.check_all,
    turn_rows.check_all,
    session_inputs.check_all,
    session_states.check_all,
    session_waits.check_all,
    shelf.check_all,
    tasks.check_all,
    triggers.check_all,
    clocks.check_all,
)
_DEFINITIONS: Final = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"


def rewrite_checksums(path: Path) -> int | None:
    """Check every record of the file, then write the checksums of all pages anew.

    Returns how many records there are; None if every page matches its checksum, and nothing was to do. Raises
    `RecordCorrupt` if a check fails and `StoreUnavailable` if another program has the file open. Neither
    changes the file.
    """
    path = path.absolute()
    if not path.exists():
        raise InvalidArgument(f"{path} does not exist", hint="name the database with --data-dir")
    records: int | None = None

    def check(db: apsw.Connection) -> None:
        nonlocal records
        records = _check(db, path)

    try:
        if find_damaged_page(path) is not None:
            start_rewrite(path, check)
    except RecordCorrupt as error:
        error.hint = "restore the file from a backup; nothing was changed"
        raise
    except (apsw.Error, UnicodeError) as error:
        raise translated(error, path) from error
    Database(path, _COMPONENTS).close()  # continues from the mark that `start_rewrite` has made
    if (page := find_damaged_page(path)) is not None:
        raise page_damaged(path, page)
    return records


def _check(db: apsw.Connection, path: Path) -> int:
    """Check all that can be checked without page checksums, and rebuild the indexes; count the records."""
    problem = db.execute("PRAGMA integrity_check(1)").get
    if problem != "ok":
        raise _damaged(path, str(problem))
    migrate_all(db, _COMPONENTS, path)
    _check_definitions(db, path)
    records = sum(check(db) for check in _CHECKS)
    db.execute("REINDEX")
    return records


def _check_definitions(db: apsw.Connection, path: Path) -> None:
    """Compare tables and indexes with those of a new file: one wrong letter would rebuild a wrong index."""
    with contextlib.closing(apsw.Connection(":memory:")) as new:
        migrate_all(new, _COMPONENTS, path)
        expected = new.execute(_DEFINITIONS).fetchall()
    found = set(db.execute(_DEFINITIONS))
    for name, sql in expected:
        if (name, sql) not in found:
            raise _damaged(path, f"the definition of {name} is not the one that Standfast made")


def _damaged(path: Path, problem: str) -> RecordCorrupt:
    error = RecordCorrupt("")
    error.message = f"{path} is damaged: {problem}"
    return error
