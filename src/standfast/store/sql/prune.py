"""Deletion of whole sessions, old frames, abandoned branches, old records, and unreferenced blobs.

Theory of operation
-------------------
Sessions share segments and states only with their forks; sessions that may share them form a `family`. The
segments and states that a family still needs are found by walking its links in memory, without the bodies;
all others are deleted.

Rules
-----
1. Segments on a session's active path are deleted only with `frames`, and only if no other session needs
   them.
2. A session with an unfinished turn, a waiting input, a live task or a scheduled trigger is not idle, and is
   never deleted by age.
3. A session past its `expires_at` is deleted unless one of its turns is running.
4. Data that an unfinished turn still needs is never deleted.
5. Deleting a session checks no digests, so that a damaged session can be deleted too.
6. A blob is referenced wherever its digest occurs as text: in nodes, in waiting inputs, in the input and the
   journal of an unfinished turn or of a turn whose journal is kept, and in the list of a state's blobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from standfast.model.session import split_node_id
from standfast.ports.session_store import Pruned, PruneRequest
from standfast.store import rules
from standfast.store.sql import history, inputs, records, rows, waits
from standfast.store.sql.connection import Connection, Row
from standfast.store.sql.rows import StoredSession, session_of

_replace = msgspec.structs.replace

_PRUNABLE: Final = """
SELECT key, id, family, leaf_key, fence, owner, until_ms, digest, head,
    NOT EXISTS (SELECT 1 FROM turns WHERE session = sessions.key AND state <> 'ended')
        AND NOT EXISTS (SELECT 1 FROM inputs WHERE session = sessions.key AND kind <> 'claimed')
        AND NOT EXISTS (SELECT 1 FROM tasks WHERE session = sessions.key AND live = 1)
        AND NOT EXISTS (SELECT 1 FROM triggers WHERE session = sessions.key AND due IS NOT NULL),
    EXISTS (SELECT 1 FROM turns WHERE session = sessions.key AND state = 'running')
FROM sessions WHERE (CAST(?1 AS TEXT) IS NULL OR id = ?1)
"""
TEXTS: Final = """
SELECT body FROM segments
UNION ALL SELECT input FROM turns WHERE input IS NOT NULL
UNION ALL SELECT body FROM journal
UNION ALL SELECT body FROM inputs WHERE body IS NOT NULL
UNION ALL SELECT blobs FROM states
"""

_FAMILIES: Final = """
SELECT DISTINCT family FROM segments WHERE CAST(?1 AS TEXT) IS NULL
UNION SELECT family FROM sessions WHERE id = ?1
"""
_DECIDED: Final = f"""
{waits.APPROVALS} WHERE state <> 'pending' AND (CAST(?1 AS TEXT) IS NULL OR session_id = ?1)
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


def delete_session(db: Connection, session_id: str, is_dead: rules.IsDead) -> bool:
    """Delete a session, unless a live owner runs a turn of it."""
    db.lock_sessions((session_id,))
    sql = "SELECT key, family, owner FROM sessions WHERE id = ?"
    row = db.execute(sql, (session_id,)).fetchone()
    if row is None:
        return False
    key, family, owner = row
    rules.require_no_owner(session_id, owner, is_dead)
    _delete(db, key, family)
    return True


def _delete(db: Connection, key: int, family: int) -> tuple[int, int]:
    """Delete a session and the data that only it needs; return the number of deleted segments and states."""
    db.lock_family(family)
    for (turn_id,) in db.execute(
        "SELECT turn_id FROM turns WHERE session = ? AND state <> 'ended'", (key,)
    ).fetchall():
        rows.delete_journal(db, str(turn_id))
        waits.drop(db, str(turn_id))
    db.execute("DELETE FROM journals WHERE key IN (SELECT key FROM turns WHERE session = ?)", (key,))
    db.execute("DELETE FROM turns WHERE session = ?", (key,))
    db.execute("DELETE FROM inputs WHERE session = ?", (key,))
    db.execute("DELETE FROM tasks WHERE session = ?", (key,))
    db.execute("DELETE FROM triggers WHERE session = ?", (key,))
    db.execute("DELETE FROM sessions WHERE key = ?", (key,))
    return _sweep(db, family)


def _sweep(db: Connection, family: int) -> tuple[int, int]:
    """Delete what no session of the family can reach; return the number of deleted segments and states."""
    members = _members(db, family)
    if not members:
        sql = f"DELETE FROM states WHERE {history.OF_FAMILY} RETURNING key"  # noqa: S608 (a constant)
        states = db.execute(sql, (family,)).fetchall()
        segments = db.execute("DELETE FROM segments WHERE family = ? RETURNING key", (family,)).fetchall()
        return len(segments), len(states)
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
    return count, history.sweep_states(db, family, members)


# Retention


def prune(db: Connection, request: PruneRequest) -> tuple[Pruned, list[str]]:
    """Delete the requested data in one transaction, without shrinking the file.

    Also return the names of the objects of deleted blobs.
    """
    done = Pruned()
    for session_id in old_sessions(db, request):
        done = plus(done, prune_session(db, request, session_id))
    done = plus(done, prune_records(db, request))
    for family in old_families(db, request):
        done = plus(done, prune_family(db, request, family))
    blobs, objects = prune_blobs(db)
    return plus(done, blobs), objects


def plus(one: Pruned, other: Pruned) -> Pruned:
    """Return the sum of two results."""
    return Pruned(**{name: getattr(one, name) + getattr(other, name) for name in Pruned.__struct_fields__})


def old_sessions(db: Connection, request: PruneRequest) -> list[str]:
    """Return the sessions that are to be deleted by age."""
    return [
        session.id
        for *row, idle, running in db.execute(_PRUNABLE, (request.session_id,)).fetchall()
        if rules.may_be_pruned(
            (session := session_of(tuple(row))).head, request, idle=bool(idle), running=bool(running)
        )
    ]


def prune_session(db: Connection, request: PruneRequest, session_id: str) -> Pruned:
    """Delete a session if its age still requires it."""
    db.lock_sessions((session_id,))
    if not old_sessions(db, _replace(request, session_id=session_id)):
        return Pruned()
    session = rows.require_session(db, session_id)
    segments, states = _delete(db, session.key, session.family)
    return Pruned(sessions=1, segments=segments, states=states)


def prune_records(db: Connection, request: PruneRequest) -> Pruned:
    """Delete old records. An occurrence that is reported again afterwards counts as a new one."""
    if (before_ms := request.sessions_before_ms) is None:
        return Pruned()
    session_id = request.session_id
    ended = db.execute(
        "DELETE FROM turns WHERE state = 'ended' AND ended_at < ?1 "
        "AND (CAST(?2 AS TEXT) IS NULL OR session = (SELECT key FROM sessions WHERE id = ?2)) "
        "RETURNING key",
        (before_ms, session_id),
    ).fetchall()
    for (key,) in ended:
        db.execute("DELETE FROM journals WHERE key = ?", (key,))
    count = len(ended) + records.prune_snapshots(db, before_ms, session_id)
    decided = map(waits.approval_of, db.execute(_DECIDED, (session_id,)).fetchall())
    for approval in [it for it in decided if rules.approval_is_old(it, before_ms)]:
        db.execute("DELETE FROM approvals WHERE approval_id = ?", (approval.approval_id,))
        count += 1
    if session_id is None:
        forget = "DELETE FROM occurrences WHERE at_ms < ? RETURNING at_ms"
        count += len(db.execute(forget, (before_ms,)).fetchall())
    return Pruned(records=count)


def old_families(db: Connection, request: PruneRequest) -> list[int]:
    """Return the families that may have segments or states to delete."""
    found = db.execute("SELECT DISTINCT family FROM states").fetchall()
    if request.frames or request.branches:
        found += db.execute(_FAMILIES, (request.session_id,)).fetchall()
    return sorted({family for (family,) in found})


def prune_family(db: Connection, request: PruneRequest, family: int) -> Pruned:
    """Delete the segments of a family that the request names, and the states that are no longer needed."""
    db.lock_family(family)
    segments = _prune_segments(db, family, request) if request.frames or request.branches else 0
    return Pruned(segments=segments, states=history.sweep_states(db, family, _members(db, family)))


def prune_blobs(db: Connection) -> tuple[Pruned, list[str]]:
    """Delete the unreferenced blobs; also return the names of their objects."""
    db.lock_blobs()
    digests = {str(digest).encode() for (digest,) in db.execute("SELECT digest FROM blobs").fetchall()}
    for (text,) in db.execute(TEXTS) if digests else ():
        digests.difference_update(rules.blob_digests(text))
    for row in db.execute(rows.KEPT) if digests else ():
        for text in rules.journal_texts(*rows.kept_journal_of(row)):
            digests.difference_update(rules.blob_digests(text))
    objects = [blob.data.decode() for blob in inputs.blobs_apart(db) if blob.digest.encode() in digests]
    for digest in digests:
        db.execute("DELETE FROM blobs WHERE digest = ?", (digest.decode(),))
    return Pruned(blobs=len(digests)), objects


def _prune_segments(db: Connection, family: int, request: PruneRequest) -> int:
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


def _members(db: Connection, family: int) -> list[StoredSession]:
    return [session_of(row) for row in db.execute(rows.OF_FAMILY, (family,)).fetchall()]


def _links(db: Connection, family: int) -> dict[int, _Link]:
    sql = "SELECT key, segment_id, session_id, up, up_at, opens_at FROM segments WHERE family = ?"
    found: list[Row] = db.execute(sql, (family,)).fetchall()
    return {row[0]: _Link(*row[1:]) for row in found}


def _delete_segments(db: Connection, links: dict[int, _Link], keys: Iterable[int]) -> int:
    """Delete segments, after moving the answers and journals of their turns into the turns' own rows."""
    count = 0
    for key in keys:
        rows.keep_without_segment(db, links[key].segment_id)
        db.execute("DELETE FROM segments WHERE key = ?", (key,))
        count += 1
    return count
