"""Rows of `tasks`: background work of a session.

Rules
-----
1. A row is checked whenever it is read, also before it is written anew.
2. What becomes of a task is decided in `rules`; here it is read and written.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from standfast.errors import RecordCorrupt, TaskNotFound
from standfast.model.task import TaskRecord
from standfast.store import rules
from standfast.store.rules import PlacedTask
from standfast.store.sqlite import session_rows
from standfast.store.sqlite.schema import Row, decoded, seal

TASKS: Final = "SELECT seq, session, task_id, live, digest, body FROM tasks"
_SESSION: Final = "session = (SELECT key FROM sessions WHERE id = ?)"
_INSERT: Final = "INSERT INTO tasks (session, task_id, live, digest, body) VALUES (?, ?, ?, ?, ?)"
_DELETE: Final = "DELETE FROM tasks WHERE session = (SELECT key FROM sessions WHERE id = ?) AND task_id = ?"
_UPDATE: Final = "UPDATE tasks SET session = ?, task_id = ?, live = ?, digest = ?, body = ? WHERE seq = ?"

_NO_SESSION: Final = 0
"""The key of no session."""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(TaskRecord)


def add(db: apsw.Connection, record: TaskRecord) -> None:
    """Keep a task in place of one of its id that is over."""
    session = session_rows.require(db, record.session_id)
    _make_room(db, session.key, record.id)
    db.execute(_INSERT, _row_of(session.key, record))


def change(db: apsw.Connection, session_id: str, task_id: str, change: rules.TaskChange) -> TaskRecord:
    """The task as *change* leaves it, unless it is over."""
    session = session_rows.key_of(db, session_id) or _NO_SESSION
    placed = _require(db, session, session_id, task_id)
    after = rules.changed_task(placed.record, change)
    if after is not placed.record:
        db.execute(_UPDATE, (*_row_of(session, after), placed.seq))
    return after


def find(db: apsw.Connection, session_id: str, task_id: str) -> TaskRecord | None:
    found = _find(db, session_rows.key_of(db, session_id) or _NO_SESSION, task_id)
    return None if found is None else found.record


def find_all(db: apsw.Connection, session_id: str | None, live: bool) -> list[TaskRecord]:
    """Tasks of one session or of all, oldest first."""
    conditions = [_SESSION] if session_id is not None else []
    conditions += ["live = 1"] if live else []
    sql = f"{TASKS} WHERE {' AND '.join(conditions)}" if conditions else TASKS
    rows = db.execute(sql, () if session_id is None else (session_id,)).fetchall()
    return [it.record for it in sorted(map(task_of, rows), key=rules.task_order)]


def move(db: apsw.Connection, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
    """Give tasks to another session, all or none."""
    source, target = (session_rows.require(db, session_id).key for session_id in (from_id, to_id))
    found = [_require(db, source, from_id, task_id) for task_id in dict.fromkeys(task_ids)]
    for placed in found if source != target else ():
        _make_room(db, target, placed.record.id)
        record = rules.moved_task(placed.record, to_id, now_ms)
        db.execute(_UPDATE, (*_row_of(target, record), placed.seq))


def remove(db: apsw.Connection, session_id: str, task_id: str) -> bool:
    """Delete a task without checking its digest, so that a damaged one can be deleted."""
    db.execute(_DELETE, (session_id, task_id))
    return db.changes() > 0


def _make_room(db: apsw.Connection, session: int, task_id: str) -> None:
    """Drop the task of that id if it is over."""
    if (there := _find(db, session, task_id)) is not None:
        rules.require_room(there.record)
        db.execute("DELETE FROM tasks WHERE seq = ?", (there.seq,))


def _require(db: apsw.Connection, session: int, session_id: str, task_id: str) -> PlacedTask:
    if (found := _find(db, session, task_id)) is None:
        raise TaskNotFound(session_id, task_id)
    return found


def _find(db: apsw.Connection, session: int, task_id: str) -> PlacedTask | None:
    row = db.execute(f"{TASKS} WHERE session = ? AND task_id = ?", (session, task_id)).fetchone()
    return None if row is None else task_of(row)


def _row_of(session: int, record: TaskRecord) -> Row:
    """session, task_id, live, digest, body."""
    columns = (session, record.id, int(not record.state.is_terminal))
    body = _encode(record)
    return *columns, seal("task", *columns, body), body


def task_of(row: Row) -> PlacedTask:
    seq, *columns, digest, body = row
    what = f"task {columns[1]}"
    if seal("task", *columns, body) != digest:
        raise RecordCorrupt(what)
    return PlacedTask(decoded(_decoder, body, what), seq)
