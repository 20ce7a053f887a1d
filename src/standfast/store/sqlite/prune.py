"""Deleting: whole sessions, old frames, dead branches, old records, and blobs that nothing names.

Theory of operation
-------------------
Sessions share segments and states with their forks, and with no other session: those that may share form
a `family`. What a family still needs is found by walking its links in memory, without the bodies; everything
else of it goes.

Rules
-----
1. What lies on a session's active path goes only by `frames`, and only if no other session needs it.
2. A session with an unfinished turn, with input that waits, with a live task or with a trigger that is
   going to wake it is not idle and never goes by age.
3. A session past its `expires_at` goes unless a turn of it runs.
4. Nothing goes that an unfinished turn still needs.
5. Deleting a session reads no digests: one that is damaged can be destroyed too.
6. A blob is named where its digest stands as text: in nodes, in inputs that wait, and in the input and the
   journal of an unfinished turn, whatever else these hold; and in the list that comes with a state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import apsw

from standfast.model.session import split_node_id
from standfast.ports.session_store import Pruned, PruneRequest
from standfast.store import rules
from standfast.store.sqlite import history, records, rows, waits
from standfast.store.sqlite.rows import SESSIONS, Row, StoredSession, session_of

_PRUNABLE: Final = """
SELECT key, id, family, leaf_key, fence, owner, until_ms, digest, head,
    NOT EXISTS (SELECT 1 FROM turns WHERE session = sessions.key AND state <> 'ended')
        AND NOT EXISTS (SELECT 1 FROM inputs WHERE session = sessions.key AND kind <> 'claimed')
        AND NOT EXISTS (SELECT 1 FROM tasks WHERE session = sessions.key AND live = 1)
        AND NOT EXISTS (SELECT 1 FROM triggers WHERE session = sessions.key AND due IS NOT NULL),
    EXISTS (SELECT 1 FROM turns WHERE session = sessions.key AND state = 'running')
FROM sessions WHERE (?1 IS NULL OR id = ?1)
"""
_TEXTS: Final = (
    "SELECT body FROM segments",
    "SELECT input FROM turns WHERE input IS NOT NULL",
    "SELECT body FROM journal",
    "SELECT body FROM inputs WHERE body IS NOT NULL",
    "SELECT blobs FROM states",
)

_FAMILIES: Final = """
SELECT DISTINCT family FROM segments WHERE ?1 IS NULL
UNION SELECT family FROM sessions WHERE id = ?1
"""
_DECIDED: Final = f"""
{waits.APPROVALS} WHERE state <> 'pending' AND (?1 IS NULL OR session_id = ?1)
AND run_id NOT IN (SELECT turn_id FROM turns WHERE state <> 'ended')
"""  # noqa: S608 (a constant)


class _Link(NamedTuple):
    """A segment without its nodes."""

    segment_id: str
    session_id: str
    up: int | None
    up_at: int | None
    opens_at: int | None


# One session


def delete_session(db: apsw.Connection, session_id: str, is_dead: rules.IsDead) -> bool:
    """Delete a session, unless a live owner runs a turn of it."""
    sql = "SELECT key, family, owner FROM sessions WHERE id = ?"
    row = db.execute(sql, (session_id,)).fetchone()
    if row is None:
        return False
    key, family, owner = row
    rules.require_no_owner(session_id, owner, is_dead)
    _delete(db, key, family)
    return True


def _delete(db: apsw.Connection, key: int, family: int) -> int:
    """Delete a session and what only it needs; returns how many segments went."""
    for (turn_id,) in db.execute(
        "SELECT turn_id FROM turns WHERE session = ? AND state <> 'ended'", (key,)
    ).fetchall():
        db.execute("DELETE FROM journal WHERE turn_id = ?", (turn_id,))
        waits.drop(db, str(turn_id))
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
    history.sweep_states(db, family, members)
    return count


# Retention


def prune(db: apsw.Connection, request: PruneRequest) -> Pruned:
    """Carry a request out; the file is as large as before."""
    old_records, states = 0, history.count_states(db)
    old = [
        session
        for *row, idle, running in db.execute(_PRUNABLE, (request.session_id,)).fetchall()
        if rules.may_be_pruned(
            (session := session_of(tuple(row))).head, request, idle=bool(idle), running=bool(running)
        )
    ]
    segments = sum(_delete(db, session.key, session.family) for session in old)
    if request.sessions_before_ms is not None:
        old_records = _old_records(db, request.sessions_before_ms, request.session_id)
    if request.frames or request.branches:
        for (family,) in db.execute(_FAMILIES, (request.session_id,)).fetchall():
            segments += _prune_family(db, int(str(family)), request)
    for (family,) in db.execute("SELECT DISTINCT family FROM states").fetchall():
        history.sweep_states(db, int(str(family)), _members(db, int(str(family))))
    return Pruned(
        sessions=len(old),
        segments=segments,
        states=states - history.count_states(db),
        blobs=_unnamed_blobs(db),
        records=old_records,
    )


def _old_records(db: apsw.Connection, before_ms: int, session_id: str | None) -> int:
    """Delete records that are older and count them. An occurrence delivered again afterwards is a new one."""
    db.execute(
        "DELETE FROM turns WHERE state = 'ended' AND ended_at < ?1 "
        "AND (?2 IS NULL OR session = (SELECT key FROM sessions WHERE id = ?2))",
        (before_ms, session_id),
    )
    count = db.changes() + records.prune_snapshots(db, before_ms, session_id)
    decided = map(waits.approval_of, db.execute(_DECIDED, (session_id,)).fetchall())
    old = [(it.approval_id,) for it in decided if rules.approval_is_old(it, before_ms)]
    db.executemany("DELETE FROM approvals WHERE approval_id = ?", old)
    count += len(old)
    if session_id is None:
        db.execute("DELETE FROM occurrences WHERE at_ms < ?", (before_ms,))
        count += db.changes()
    return count


def _unnamed_blobs(db: apsw.Connection) -> int:
    """Delete the blobs that nothing names; return how many."""
    digests = {str(digest).encode() for (digest,) in db.execute("SELECT digest FROM blobs").fetchall()}
    for texts in _TEXTS if digests else ():
        for (text,) in db.execute(texts):
            digests.difference_update(rules.blob_digests(text))
    for digest in digests:
        db.execute("DELETE FROM blobs WHERE digest = ?", (digest.decode(),))
    return len(digests)


def _prune_family(db: apsw.Connection, family: int, request: PruneRequest) -> int:
    links = _links(db, family)
    chosen = request.session_id
    active: set[int] = set()
    needed: set[int] = set()
    victims: set[int] = set()
    for member in _members(db, family):
        by_frame = request.frames and chosen in (None, member.id)
        for key, in_frame in _active_path(links, member):
            active.add(key)
            (needed if in_frame or not by_frame else victims).add(key)
    if request.branches:
        victims |= {
            key for key, link in links.items() if key not in active and chosen in (None, link.session_id)
        }
    return _delete_segments(db, links, victims - needed)


def _active_path(links: dict[int, _Link], session: StoredSession) -> Iterable[tuple[int, bool]]:
    """Yield the segments from the session's leaf to the root, and whether each is in the current frame."""
    if session.head.leaf is None:
        return
    key, place, in_frame = session.leaf_key, split_node_id(session.head.leaf)[1], True
    while key is not None and (link := links.get(key)) is not None:
        yield key, in_frame
        if link.opens_at is not None and link.opens_at <= place:
            in_frame = False
        key, place = link.up, link.up_at or 0


def _members(db: apsw.Connection, family: int) -> list[StoredSession]:
    sql = f"{SESSIONS} WHERE family = ?"
    return [session_of(row) for row in db.execute(sql, (family,)).fetchall()]


def _links(db: apsw.Connection, family: int) -> dict[int, _Link]:
    sql = "SELECT key, segment_id, session_id, up, up_at, opens_at FROM segments WHERE family = ?"
    found: list[Row] = db.execute(sql, (family,)).fetchall()
    return {row[0]: _Link(*row[1:]) for row in found}


def _delete_segments(db: apsw.Connection, links: dict[int, _Link], keys: Iterable[int]) -> int:
    """Delete segments; the answers of their turns stay with the turns."""
    count = 0
    for key in keys:
        rows.keep_answer(db, links[key].segment_id)
        db.execute("DELETE FROM segments WHERE key = ?", (key,))
        count += 1
    return count
