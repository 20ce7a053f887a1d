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
    plugin_records,
    session_inputs,
    session_rows,
    session_states,
    session_waits,
    snapshots,
    tasks,
    triggers,
    turn_rows,
)
from standfast.store.sqlite.checksums import find_damaged_page, page_damaged, start_rewrite
from standfast.store.sqlite.connection import translated
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.migrations import migrate_all
from standfast.store.sqlite.sandbox_migration import COMPONENTS
from standfast.store.sqlite.schema import Row

_RECORDS: Final[tuple[tuple[str, Callable[[Row], object]], ...]] = (
    (approvals.APPROVALS, approvals.approval_of),
    (snapshots.SNAPSHOTS, snapshots.snapshot_of),
    (session_rows.SESSIONS, session_rows.session_of),
    (session_rows.SEGMENTS, session_rows.segment_of),
    (turn_rows.TURNS, lambda row: turn_rows.turn_of(row[:-1], str(row[-1]))),
    (turn_rows.ENTRIES, turn_rows.entry_of),
    (session_inputs.INPUTS, session_inputs.check_input),
    (session_inputs.BLOBS, session_inputs.blob_of),
    (session_states.STATES, session_states.body_of),
    (session_waits.WAITS, session_waits.wait_of),
    (plugin_records.RECORDS, plugin_records.record_of),
    (tasks.TASKS, tasks.task_of),
    (triggers.TRIGGERS, triggers.trigger_of),
    (triggers.OCCURRENCES, triggers.check_occurrence),
    (clocks.CLOCKS, clocks.check_clock),
)
"""What reads the rows of each table, and what raises `RecordCorrupt` for one whose digest does not match."""

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
    Database(path, COMPONENTS).close()  # continues from the mark that `start_rewrite` has made
    if (page := find_damaged_page(path)) is not None:
        raise page_damaged(path, page)
    return records


def _check(db: apsw.Connection, path: Path) -> int:
    """Check all that can be checked without page checksums, and rebuild the indexes; count the records."""
    problem = db.execute("PRAGMA integrity_check(1)").get
    if problem != "ok":
        raise _damaged(path, str(problem))
    migrate_all(db, COMPONENTS, path)
    _check_definitions(db, path)
    records = 0
    for select, check in _RECORDS:
        for row in db.execute(select):
            check(row)
            records += 1
    db.execute("REINDEX")
    return records


def _check_definitions(db: apsw.Connection, path: Path) -> None:
    """Compare tables and indexes with those of a new file: one wrong letter would rebuild a wrong index."""
    with contextlib.closing(apsw.Connection(":memory:")) as new:
        migrate_all(new, COMPONENTS, path)
        expected = new.execute(_DEFINITIONS).fetchall()
    found = set(db.execute(_DEFINITIONS))
    for name, sql in expected:
        if (name, sql) not in found:
            raise _damaged(path, f"the definition of {name} is not the one that Standfast made")


def _damaged(path: Path, problem: str) -> RecordCorrupt:
    error = RecordCorrupt("")
    error.message = f"{path} is damaged: {problem}"
    return error
