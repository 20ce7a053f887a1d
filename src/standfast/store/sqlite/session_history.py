"""Paths through stored segments, and the moves of a session's leaf.

Theory of operation
-------------------
SQLite walks from the leaf to where the caller's interest ends and hands over the segments it came by; the
pure functions of `standfast.graph` then make the path of them. So a long session costs what its current frame
costs, and the rules of paths are written once.

Rule: a parent that is not there was pruned. It is looked for by its name as well before we believe that.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from standfast.errors import InvalidArgument, NodeNotFound, RecordCorrupt, SessionExists, StaleBranch
from standfast.graph import calls_at, frame_at, frame_path, holds, path
from standfast.graph.history import Branch, grown, moved
from standfast.model.charter import SessionCharter
from standfast.model.head import SessionHead
from standfast.model.node import Entry, Segment, split_node_id
from standfast.model.usage import UsageEntry
from standfast.ports.session_store import NewSession
from standfast.store import rules
from standfast.store.sqlite import session_inputs, session_rows, session_states
from standfast.store.sqlite.schema import Row
from standfast.store.sqlite.session_rows import StoredSession, segment_of

_replace = msgspec.structs.replace

# ?1 the segment of the leaf, ?2 the leaf's place in it, ?3 a segment to stop at
_FRAME: Final = """
WITH RECURSIVE steps (step, place) AS (
    SELECT key, ?2 FROM segments WHERE segment_id = ?1
    UNION ALL
    SELECT up, up_at FROM steps JOIN segments ON key = step
    WHERE up IS NOT NULL AND (opens_at IS NULL OR opens_at > place) AND segment_id IS NOT ?3
)
SELECT segment_id, session_id, family, up, up_at, opens_at, depth, model_calls, parent, frame, caused_by,
    state, digest, body FROM steps JOIN segments ON key = step
"""

# ?1 the segment of the leaf, ?2 the number of nodes to leave out
_PATH: Final = """
WITH RECURSIVE steps (step) AS (
    SELECT key FROM segments WHERE segment_id = ?1
    UNION ALL
    SELECT up FROM steps JOIN segments ON key = step WHERE up IS NOT NULL AND depth > ?2
)
SELECT segment_id, session_id, family, up, up_at, opens_at, depth, model_calls, parent, frame, caused_by,
    state, digest, body FROM steps JOIN segments ON key = step
"""


def load_frame(db: apsw.Connection, leaf: str, known: str | None) -> tuple[Segment, ...]:
    """The path of the leaf's frame; see `SessionStore.frame`."""
    segment_id, place = split_node_id(leaf)
    stop = None if known is None else split_node_id(known)[0]
    segments = _by_id(db.execute(_FRAME, (segment_id, place, stop)).fetchall())
    found = frame_path(segments.get, leaf, known=known)
    if known is not None and found and found[0].parent != known and stop in segments:
        return load_frame(db, leaf, None)
    if found and not found[0].opens_frame and found[0].parent != known:
        _require_pruned(db, found[0])
    return tuple(found)


def load_path(db: apsw.Connection, leaf: str, after_depth: int) -> tuple[Segment, ...]:
    """The path to the leaf; see `SessionStore.path`."""
    segments = _by_id(db.execute(_PATH, (split_node_id(leaf)[0], after_depth)).fetchall())
    found = path(segments.get, leaf, after_depth=after_depth)
    if found and found[0].depth > after_depth:
        _require_pruned(db, found[0])
    return tuple(found)


def append(
    db: apsw.Connection, session: StoredSession, segment_id: str, entries: tuple[Entry, ...], now_ms: int
) -> SessionHead:
    """Add nodes under the leaf."""
    if session_rows.find_segment(db, segment_id) is not None:
        raise InvalidArgument(f"there is a segment {segment_id[:80]!r} already")
    body = session_rows.encode_entries(entries)
    grew = grow(db, session, segment_id, entries, body, 0)
    return session_rows.update(db, at_time(grew, now_ms)).head


def require_ancestor(db: apsw.Connection, session: StoredSession, wanted: str) -> None:
    """`StaleBranch` if the node is not on the active path."""
    if not _on_path(db, session.head.leaf, wanted):
        raise StaleBranch(session.head.leaf)


def grow(
    db: apsw.Connection,
    session: StoredSession,
    segment_id: str,
    entries: tuple[Entry, ...],
    body: bytes,
    model_calls: int,
) -> StoredSession:
    """Add a segment; returns the session with its leaf at the segment's end, not yet written."""
    head = session.head
    if not entries:
        return _with_head(session, _replace(head, model_calls=head.model_calls + model_calls))
    branch = rules.branch_of(head)
    segment = grown(branch, head.session_id, segment_id, entries, model_calls)
    key = session_rows.insert_segment(db, segment, session, body)
    return _with_head(session, rules.head_at(head, moved(branch, segment)), key)


def fork(
    db: apsw.Connection,
    session: StoredSession,
    new_id: str,
    at: str | None,
    now_ms: int,
    charter: SessionCharter | None = None,
) -> SessionHead:
    """Make a session whose leaf is *at*, or this one's. It has no parent unless *charter* names one."""
    if session_rows.find(db, new_id) is not None:
        raise SessionExists(new_id)
    head, state = session.head, session.head.state
    if at is None or at == head.leaf:
        branch = Branch(head.leaf, head.depth, head.frame, head.model_calls)
    else:
        branch = _branch_at(db, session, at, revision=0)
        state = session_states.at_node(db, session, at, branch.depth)
    fork = _replace(rules.forked(head, new_id, branch, now_ms, charter), state=state)
    return session_rows.insert(db, fork, session.family, _key_of(db, branch.leaf)).head


def make(db: apsw.Connection, new: NewSession) -> SessionHead:
    """Make a session with all that it begins with, or return the one that has the same charter."""
    head = new.head
    found = session_rows.find(db, head.session_id)
    if found is not None:
        rules.require_same_session(found.head, head)
        return found.head
    if new.fork_of is None:
        session_rows.insert(db, head, None, None)
    else:
        source = session_rows.require(db, new.fork_of)
        fork(db, source, head.session_id, new.at, head.created_at, head.charter)
        forked = session_rows.require(db, head.session_id)
        session_rows.write_head(db, forked, rules.described_as(forked.head, head))
    if new.entries:
        made = session_rows.require(db, head.session_id)
        append(db, made, new.segment_id, new.entries, head.created_at)
    session = session_rows.require(db, head.session_id)
    session_inputs.put_blobs(db, new.blobs)
    held = session.head.state
    state = new.make_state(None if held is None else session_states.body(db, held))
    if state is not None:
        changed = session_states.write(db, session, state)
        session_rows.update(db, at_time(changed, head.created_at))
    if new.first is not None:
        session_inputs.put(db, new.first)
    return session_rows.require(db, head.session_id).head


def add_usage(
    db: apsw.Connection, session_id: str, usage: tuple[UsageEntry, ...], model_calls: int, now_ms: int
) -> SessionHead:
    """Add to the ledger, and to the number of model calls."""
    session = session_rows.require(db, session_id)
    counted = grow(db, session, "", (), b"", model_calls)
    return session_rows.update(db, at_time(counted, now_ms, usage)).head


def rewind(db: apsw.Connection, session: StoredSession, to: str, now_ms: int) -> SessionHead:
    """Move the leaf to another node of the session's history."""
    branch = _branch_at(db, session, to, session.head.revision + 1)
    state = session_states.at_node(db, session, to, branch.depth)
    head = _replace(rules.head_at(session.head, branch), state=state)
    back = _with_head(session, head, _key_of(db, to))
    return session_rows.update(db, at_time(back, now_ms)).head


def at_time(session: StoredSession, now_ms: int, usage: tuple[UsageEntry, ...] = ()) -> StoredSession:
    """The session as used at that time, with what that took; its head is encoded anew."""
    head = rules.used(session.head, now_ms, usage)
    return _replace(session, head=head, body=session_rows.encode_head(head))


def _with_head(session: StoredSession, head: SessionHead, leaf_key: int | None = None) -> StoredSession:
    return _replace(session, head=head, leaf_key=session.leaf_key if leaf_key is None else leaf_key)


def _branch_at(db: apsw.Connection, session: StoredSession, node: str, revision: int) -> Branch:
    def find(segment_id: str) -> Segment | None:
        return session_rows.find_segment(db, segment_id)

    segment_id, index = split_node_id(node)
    segment = find(segment_id)
    if segment is None or index >= len(segment.entries):
        raise NodeNotFound(node)
    if segment.session_id != session.id and not _on_path(db, session.head.leaf, node):
        raise NodeNotFound(node)
    return Branch(
        leaf=node,
        depth=segment.depth + index + 1,
        # Only a segment that opens a frame has nodes of different frames.
        frame=frame_at(find, node) if segment.opens_frame else segment.frame,
        model_calls=calls_at(find, node),
        revision=revision,
    )


def _on_path(db: apsw.Connection, leaf: str | None, wanted: str) -> bool:
    """Whether a node is on the path to *leaf*; reads no more of the path than lies after the node."""
    if leaf is None or wanted == leaf:
        return leaf is not None
    segment = session_rows.find_segment(db, split_node_id(wanted)[0])
    if segment is None:
        return False
    segments = {item.segment_id: item for item in load_path(db, leaf, segment.depth)}
    return holds(segments.get, leaf, wanted)


def _key_of(db: apsw.Connection, leaf: str | None) -> int | None:
    if leaf is None:
        return None
    found: int = db.execute("SELECT key FROM segments WHERE segment_id = ?", (split_node_id(leaf)[0],)).get
    return found


def _by_id(rows: list[Row]) -> dict[str, Segment]:
    return {row[0]: segment_of(row) for row in rows}


def _require_pruned(db: apsw.Connection, first: Segment) -> None:
    """A path ends where it should, unless the link to what comes before is damaged."""
    if first.parent is not None and session_rows.find_segment(db, split_node_id(first.parent)[0]) is not None:
        raise RecordCorrupt(f"segment {first.segment_id}")
