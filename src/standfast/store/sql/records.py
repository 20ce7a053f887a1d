"""Records other than turns: tasks, records of plugins, and snapshots, which outlive their session.

Rule: a row is checked whenever it is read, even if it is about to be replaced. Deleting checks nothing, so
that a damaged record can be deleted. `rules` decides how a change affects a task.
"""

from __future__ import annotations

from typing import Final

from standfast.errors import RecordCorrupt, TaskNotFound
from standfast.model.task import TaskRecord
from standfast.store import rules
from standfast.store.rules import PlacedTask
from standfast.store.sql import rows
from standfast.store.sql.connection import Connection, Row
from standfast.store.sql.rows import RecordDecoder, decoded, encode, seal, text_seal

# Tasks

TASKS: Final = "SELECT seq, session, task_id, live, digest, body FROM tasks"
_OF_SESSION: Final = "session = (SELECT key FROM sessions WHERE id = ?)"
_INSERT_TASK: Final = "INSERT INTO tasks (session, task_id, live, digest, body) VALUES (?, ?, ?, ?, ?)"
_UPDATE_TASK: Final = (
    "UPDATE tasks SET session = ?, task_id = ?, live = ?, digest = ?, body = ? WHERE seq = ?"
)

_NO_SESSION: Final = 0
"""A key that no session has."""

_tasks: RecordDecoder[TaskRecord] = RecordDecoder(TaskRecord)


def add_task(db: Connection, record: TaskRecord) -> None:
    db.lock_sessions((record.session_id,))
    session = rows.require_session(db, record.session_id)
    _make_room(db, session.key, record.id)
    db.execute(_INSERT_TASK, _task_row(session.key, record))


def change_task(db: Connection, session_id: str, task_id: str, change: rules.TaskChange) -> TaskRecord:
    db.lock_sessions((session_id,))
    session = rows.session_key(db, session_id) or _NO_SESSION
    placed = _require_task(db, session, session_id, task_id)
    after = rules.changed_task(placed.record, change)
    if after is not placed.record:
        db.execute(_UPDATE_TASK, (*_task_row(session, after), placed.seq))
    return after


def find_task(db: Connection, session_id: str, task_id: str) -> TaskRecord | None:
    found = _find_task(db, rows.session_key(db, session_id) or _NO_SESSION, task_id)
    return None if found is None else found.record


def find_tasks(db: Connection, *, session_id: str | None = None, live: bool = False) -> list[TaskRecord]:
    conditions = [_OF_SESSION] if session_id is not None else []
    conditions += ["live = 1"] if live else []
    sql = f"{TASKS} WHERE {' AND '.join(conditions)}" if conditions else TASKS
    found = db.execute(sql, () if session_id is None else (session_id,)).fetchall()
    return [it.record for it in sorted(map(task_of, found), key=rules.task_order)]


def move_tasks(db: Connection, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
    db.lock_sessions((from_id, to_id))
    source, target = (rows.require_session(db, session_id).key for session_id in (from_id, to_id))
    found = [_require_task(db, source, from_id, task_id) for task_id in dict.fromkeys(task_ids)]
    for placed in found if source != target else ():
        _make_room(db, target, placed.record.id)
        record = rules.moved_task(placed.record, to_id, now_ms)
        db.execute(_UPDATE_TASK, (*_task_row(target, record), placed.seq))


def remove_task(db: Connection, session_id: str, task_id: str) -> bool:
    """Delete a task without checking its digest, so that a damaged one can be deleted."""
    db.lock_sessions((session_id,))
    session = rows.session_key(db, session_id)
    sql = "DELETE FROM tasks WHERE session = ? AND task_id = ? RETURNING seq"
    return bool(db.execute(sql, (session, task_id)).fetchall())


def _make_room(db: Connection, session: int, task_id: str) -> None:
    """Delete the task of that id if it has ended; raise `TaskExists` if it is live."""
    if (there := _find_task(db, session, task_id)) is not None:
        rules.require_room(there.record)
        db.execute("DELETE FROM tasks WHERE seq = ?", (there.seq,))


def _require_task(db: Connection, session: int, session_id: str, task_id: str) -> PlacedTask:
    if (found := _find_task(db, session, task_id)) is None:
        raise TaskNotFound(session_id, task_id)
    return found


def _find_task(db: Connection, session: int, task_id: str) -> PlacedTask | None:
    row = db.execute(f"{TASKS} WHERE session = ? AND task_id = ?", (session, task_id)).fetchone()
    return None if row is None else task_of(row)


def _task_row(session: int, record: TaskRecord) -> Row:
    """session, task_id, live, digest, body."""
    columns = (session, record.id, int(not record.state.is_terminal))
    body = encode(record)
    return *columns, seal("task", *columns, body), body


def task_of(row: Row) -> PlacedTask:
    seq, *columns, digest, body = row
    what = f"task {columns[1]}"
    if seal("task", *columns, body) != digest:
        raise RecordCorrupt(what)
    return PlacedTask(decoded(_tasks, body, what), seq)


# Records of plugins

PLUGIN_RECORDS: Final = "SELECT plugin_id, scope, name, updated_at, digest, body FROM plugin_records"
_INSERT_PLUGIN_RECORD: Final = (
    "INSERT INTO plugin_records (plugin_id, scope, name, updated_at, digest, body) VALUES (?, ?, ?, ?, ?, ?)"
)
_PUT_PLUGIN_RECORD: Final = (
    f"{_INSERT_PLUGIN_RECORD} ON CONFLICT (plugin_id, scope, name) "
    "DO UPDATE SET updated_at = excluded.updated_at, digest = excluded.digest, body = excluded.body"
)
_PLUGIN_RECORD: Final = "shelf"
"""The kind in the digests: the name that the table once had."""


def put_plugin_record(
    db: Connection,
    plugin_id: str,
    scope: str,
    key: str,
    body: bytes | None,
    now_ms: int,
    *,
    replace: bool = True,
) -> None:
    place = (plugin_id, scope, key)
    if body is None:
        db.execute("DELETE FROM plugin_records WHERE plugin_id = ? AND scope = ? AND name = ?", place)
        return
    row = (*place, now_ms, seal(_PLUGIN_RECORD, *place, now_ms, body), body)
    db.execute(_PUT_PLUGIN_RECORD if replace else f"{_INSERT_PLUGIN_RECORD} ON CONFLICT DO NOTHING", row)


def plugin_record(db: Connection, plugin_id: str, scope: str, key: str) -> bytes | None:
    sql = f"{PLUGIN_RECORDS} WHERE plugin_id = ? AND scope = ? AND name = ?"
    row = db.execute(sql, (plugin_id, scope, key)).fetchone()
    return None if row is None else plugin_record_of(row)[1]


def plugin_records(db: Connection, plugin_id: str, scope: str) -> list[tuple[str, bytes]]:
    sql = f"{PLUGIN_RECORDS} WHERE plugin_id = ? AND scope = ? ORDER BY name"
    return [plugin_record_of(row) for row in db.execute(sql, (plugin_id, scope)).fetchall()]


def plugin_record_of(row: Row) -> tuple[str, bytes]:
    plugin_id, scope, name, updated_at, digest, body = row
    if seal(_PLUGIN_RECORD, plugin_id, scope, name, updated_at, body) != digest:
        raise RecordCorrupt(f"{name} of plugin {plugin_id}")
    return name, body


FOLDER: Final = ("standfast", "blobs", "folder")
"""The key of the plugin record that names the folder of this store's objects (`object_blobs`)."""


def own_folder(db: Connection, otherwise: str) -> str:
    """Return the folder of this store's objects; set it to *otherwise* if it has none yet."""
    body = otherwise.encode()
    row = (*FOLDER, 0, seal(_PLUGIN_RECORD, *FOLDER, 0, body), body)
    db.execute(f"{_INSERT_PLUGIN_RECORD} ON CONFLICT DO NOTHING", row)
    return (plugin_record(db, *FOLDER) or body).decode()


# Snapshots

_PUT_SNAPSHOT: Final = (
    "INSERT INTO snapshots (snapshot_id, session_id, created_at, digest, data) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (snapshot_id) DO UPDATE SET session_id = excluded.session_id, "
    "created_at = excluded.created_at, digest = excluded.digest, data = excluded.data"
)
SNAPSHOTS: Final = "SELECT snapshot_id, session_id, created_at, digest, data FROM snapshots"


def snapshot_row(snapshot_id: str, session_id: str, created_at: int, data: bytes) -> Row:
    """snapshot_id, session_id, created_at, digest, data."""
    digest = text_seal("snapshot", snapshot_id, session_id, created_at, data=data)
    return snapshot_id, session_id, created_at, digest, data


def put_snapshot(db: Connection, row: Row) -> None:
    db.execute(_PUT_SNAPSHOT, row)


def find_snapshot(db: Connection, snapshot_id: str) -> bytes | None:
    row = db.execute(f"{SNAPSHOTS} WHERE snapshot_id = ?", (snapshot_id,)).fetchone()
    return None if row is None else snapshot_of(row)[2]


def session_snapshots(db: Connection, session_id: str) -> list[tuple[str, int, bytes]]:
    """Return id, time and data of the session's snapshots."""
    return [
        snapshot_of(row) for row in db.execute(f"{SNAPSHOTS} WHERE session_id = ?", (session_id,)).fetchall()
    ]


def prune_snapshots(db: Connection, before_ms: int, session_id: str | None) -> int:
    """Delete older snapshots; return how many."""
    sql = (
        "DELETE FROM snapshots WHERE created_at < ?1 AND (CAST(?2 AS TEXT) IS NULL OR session_id = ?2) "
        "RETURNING snapshot_id"
    )
    return len(db.execute(sql, (before_ms, session_id)).fetchall())


def snapshot_of(row: Row) -> tuple[str, int, bytes]:
    """Return id, time and data of a row with the columns of `SNAPSHOTS`."""
    snapshot_id, session_id, created_at, digest, data = row
    if text_seal("snapshot", snapshot_id, session_id, created_at, data=data) != digest:
        raise RecordCorrupt(f"snapshot {snapshot_id}")
    return snapshot_id, created_at, data
