"""Forgetting: whole sessions, old frames, dead branches, old records, and blobs that nobody names.

Theory of operation
-------------------
Sessions share segments and states with their forks, and with nobody else: those that may share form a
`family`. What a family still needs is found by walking its links in memory, without the bodies; everything
else of it goes.

Rules
-----
1. What lies on a session's active path goes only by `frames`, and only if no other session needs it.
2. A session with an unfinished turn, with input that waits, with a task that goes on or with a trigger that
   is going to wake it is not idle and never goes by age.
3. Deleting reads no digests: a record that is damaged can be destroyed too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, cast

import apsw

from standfast.errors import SessionBusy
from standfast.model.node import split_node_id
from standfast.ports.session_store import Pruned, PruneRequest
from standfast.store.sqlite import session_states, session_waits, turn_rows
from standfast.store.sqlite.record_prune import old_records, unnamed_blobs
from standfast.store.sqlite.session_rows import SESSIONS, StoredSession, session_of
from standfast.store.sqlite.session_schema import Row
from standfast.store.sqlite.session_turns import IsDead

_IDLE: Final = """
WHERE (?1 IS NULL OR id = ?1)
AND NOT EXISTS (SELECT 1 FROM turns WHERE session = sessions.key AND state <> 'ended')
AND NOT EXISTS (SELECT 1 FROM inputs WHERE session = sessions.key AND kind <> 'claimed')
AND NOT EXISTS (SELECT 1 FROM tasks WHERE session = sessions.key AND live = 1)
AND NOT EXISTS (SELECT 1 FROM triggers WHERE session = sessions.key AND due IS NOT NULL)
"""


class _Link(NamedTuple):
    """A segment without its nodes."""

    segment_id: str
    session_id: str
    up: int | None
    up_at: int | None
    opens_at: int | None


class _Step(NamedTuple):
    """A segment on a path: whether the path's current frame begins with it or before it."""

    key: int
    in_frame: bool


# One session


def delete_session(db: apsw.Connection, session_id: str, is_dead: IsDead) -> bool:
    """Forget a session, unless a live owner runs a turn of it."""
    sql = "SELECT key, family, owner FROM sessions WHERE id = ?"
    row = db.execute(sql, (session_id,)).fetchone()
    if row is None:
        return False
    key, family, owner = row
    if owner is not None and not is_dead(owner):
        raise SessionBusy(session_id, owner)
    _forget(db, key, family)
    return True


def _forget(db: apsw.Connection, key: int, family: int) -> int:
    """Delete a session and what only it needs; returns how many segments went."""
    for (turn_id,) in db.execute(
        "SELECT turn_id FROM turns WHERE session = ? AND state <> 'ended'", (key,)
    ).fetchall():
        db.execute("DELETE FROM journal WHERE turn_id = ?", (turn_id,))
        session_waits.forget(db, str(turn_id))
    db.execute("DELETE FROM turns WHERE session = ?", (key,))
    db.execute("DELETE FROM inputs WHERE session = ?", (key,))
    db.execute("DELETE FROM tasks WHERE session = ?", (key,))
    db.execute("DELETE FROM triggers WHERE session = ?", (key,))
    db.execute("DELETE FROM sessions WHERE key = ?", (key,))
    return _sweep(db, family)


def _sweep(db: apsw.Connection, family: int) -> int:
    """Delete what no session of the family can reach any more; returns how many segments went."""
    members = _members(db, family)
    if not members:
        db.execute("DELETE FROM states WHERE family = ?", (family,))
        db.execute("DELETE FROM segments WHERE family = ?", (family,))
        return db.changes()
    links = _links(db, family)
    names = {member.id for member in members}
    starts = [member.leaf_key for member in members]
    starts += [key for key, link in links.items() if link.session_id in names]
    kept: set[int] = set()
    for start in starts:
        while start is not None and start in links and start not in kept:
            kept.add(start)
            start = links[start].up
    count = _delete_segments(db, links, links.keys() - kept)
    session_states.sweep(db, family, members)
    return count


# Retention


def prune(db: apsw.Connection, request: PruneRequest) -> Pruned:
    """Carry a request out; the file is as large as before."""
    sessions = segments = records = 0
    states = session_states.count(db)
    if request.sessions_before_ms is not None:
        sessions, segments = _old_sessions(db, request.sessions_before_ms, request.session_id)
        records = old_records(db, request.sessions_before_ms, request.session_id)
    if request.frames or request.branches:
        for family in _families(db, request.session_id):
            segments += _prune_family(db, family, request)
    for family in session_states.families(db):
        session_states.sweep(db, family, _members(db, family))
    return Pruned(
        sessions=sessions,
        segments=segments,
        states=states - session_states.count(db),
        blobs=unnamed_blobs(db),
        records=records,
    )


def _old_sessions(db: apsw.Connection, before_ms: int, session_id: str | None) -> tuple[int, int]:
    idle = map(session_of, db.execute(f"{SESSIONS} {_IDLE}", (session_id,)).fetchall())
    old = [session for session in idle if session.head.updated_at < before_ms]
    return len(old), sum(_forget(db, session.key, session.family) for session in old)


def _prune_family(db: apsw.Connection, family: int, request: PruneRequest) -> int:
    links = _links(db, family)
    chosen = request.session_id
    active: set[int] = set()
    needed: set[int] = set()
    victims: set[int] = set()
    for member in _members(db, family):
        by_frame = request.frames and chosen in (None, member.id)
        for step in _active_path(links, member):
            active.add(step.key)
            (needed if step.in_frame or not by_frame else victims).add(step.key)
    if request.branches:
        victims |= {
            key for key, link in links.items() if key not in active and chosen in (None, link.session_id)
        }
    return _delete_segments(db, links, victims - needed)


def _active_path(links: dict[int, _Link], session: StoredSession) -> Iterable[_Step]:
    """The segments from the session's leaf to the root."""
    if session.head.leaf is None:
        return
    key, place, in_frame = session.leaf_key, split_node_id(session.head.leaf)[1], True
    while key is not None and (link := links.get(key)) is not None:
        yield _Step(key, in_frame)
        if link.opens_at is not None and link.opens_at <= place:
            in_frame = False
        key, place = link.up, link.up_at or 0


def _families(db: apsw.Connection, session_id: str | None) -> list[int]:
    if session_id is None:
        rows = db.execute("SELECT DISTINCT family FROM segments").fetchall()
    else:
        rows = db.execute("SELECT family FROM sessions WHERE id = ?", (session_id,)).fetchall()
    return [row[0] for row in cast("list[Row]", rows)]


def _members(db: apsw.Connection, family: int) -> list[StoredSession]:
    sql = f"{SESSIONS} WHERE family = ?"
    return [session_of(row) for row in db.execute(sql, (family,)).fetchall()]


def _links(db: apsw.Connection, family: int) -> dict[int, _Link]:
    sql = "SELECT key, segment_id, session_id, up, up_at, opens_at FROM segments WHERE family = ?"
    rows: list[Row] = db.execute(sql, (family,)).fetchall()
    return {row[0]: _Link(*row[1:]) for row in rows}


def _delete_segments(db: apsw.Connection, links: dict[int, _Link], keys: Iterable[int]) -> int:
    """Delete segments; the answers of their turns stay with the turns."""
    count = 0
    for key in keys:
        turn_rows.keep_answer(db, links[key].segment_id)
        db.execute("DELETE FROM segments WHERE key = ?", (key,))
        count += 1
    return count
