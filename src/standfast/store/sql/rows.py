"""Rows of `sessions`, `segments`, `turns` and `journal`: their conversion, reading and writing.

Rules
-----
1. Every row has a digest of all its other columns, so that a swapped row or a changed lease is detected as
   well. A turn's digest also covers the id of its session, which is not in the row.
2. A row is checked whenever it is read, even if it is about to be replaced. A row that equals, in every
   column, the last one that this process wrote needs no check; its value is cached (`_sessions`, `_turns`).
3. Payloads are JSON, because users' integers have no upper bound and msgpack's do; the digest is that of a
   msgpack array, in which columns cannot run together. Approvals and snapshots, which are older, use
   `text_seal`.
4. Data in the graph is not stored twice. If the turn's answer is its last reply, and the records of its calls
   are those of its results, the row `echoes` them: a reader takes both from the segment of the same name. The
   journal of an ended turn is compressed against its nodes (`packing`).
5. A turn has one journal entry of each name and kind. In PostgreSQL a unique index refuses a second one. In
   SQLite the index would double the pages that a save writes, so `append_journal` refuses it: it is passed
   the places of the turn's rows, or reads them. `turns` has the rule by which cached places are valid.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack

import msgspec

from standfast.errors import IdempotencyConflict, InvalidSessionId, RecordCorrupt, SessionNotFound
from standfast.model.canonical import digest_bytes
from standfast.model.capability import ExternalCallRecord
from standfast.model.message import AssistantMessage, ToolMessage
from standfast.model.outcome import Finished
from standfast.model.session import (
    Blocked,
    Entry,
    FrameOpened,
    Segment,
    SessionHead,
    TurnRecord,
    TurnState,
    TurnSummary,
)
from standfast.ports.session_store import Blob, JournaledTurn, JournalEntry
from standfast.store import packing, rules
from standfast.store.sql.connection import Connection, Row

if TYPE_CHECKING:
    from standfast.ports.session_store import SessionDescription

T = TypeVar("T")

SESSIONS: Final = "SELECT key, id, family, leaf_key, fence, owner, until_ms, digest, head FROM sessions"
SESSION: Final = f"{SESSIONS} WHERE id = ?"
# In parts that SQLite has indexes for: a family has the key of its first session.
OF_FAMILY: Final = f"{SESSIONS} WHERE key = ?1 AND family = ?1 OR family = ?1 AND family <> key"
# A damaged head sorts first and matches every agent, so that it is read and reported.
UPDATED_AT: Final = (
    "iif(json_valid(CAST(head AS TEXT)), json_extract(CAST(head AS TEXT), '$.updated_at'), 1000000000000000)"
)
OF_AGENT: Final = "iif(json_valid(CAST(head AS TEXT)), json_extract(CAST(head AS TEXT), '$.agent') = ?, true)"
NEXT_SESSION: Final = "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'sessions'"
_INSERT_SESSION: Final = (
    "INSERT INTO sessions (key, id, family, leaf_key, fence, until_ms, digest, head, parent) "
    "VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)"
)
UPDATE_SESSION: Final = (
    "UPDATE sessions SET leaf_key = ?, fence = ?, owner = ?, until_ms = ?, digest = ?, head = ? WHERE key = ?"
)
UPDATE_LEASE: Final = "UPDATE sessions SET fence = ?, owner = ?, until_ms = ?, digest = ? WHERE key = ?"
SEGMENTS: Final = (
    "SELECT segment_id, session_id, family, up, up_at, opens_at, depth, model_calls, parent, frame, "
    "caused_by, body, state, digest FROM segments"
)
TURNS: Final = (
    "SELECT turns.turn_id, turns.session, turns.state, turns.created_at, turns.ended_at, turns.cancel, "
    "turns.echoes, turns.agent, turns.input_digest, turns.idempotency_key, turns.digest, turns.summary, "
    "turns.input, coalesce(sessions.id, '') FROM turns LEFT JOIN sessions ON sessions.key = turns.session"
)
ENTRIES: Final = "SELECT seq, turn_id, name, kind, digest, body FROM journal"
_OF_TURNS: Final = f"""
{SEGMENTS} WHERE segment_id IN (
    SELECT turn_id FROM turns JOIN sessions ON sessions.key = turns.session WHERE id = ? AND echoes <> 0
)
"""  # noqa: S608 (a constant)
_INSERT_SEGMENT: Final = (
    "INSERT INTO segments (key, segment_id, session_id, family, up, up_at, opens_at, depth, model_calls, "
    "parent, frame, caused_by, state, digest, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
NEXT_SEGMENT: Final = "(SELECT coalesce(max(key), 0) + 1 FROM segments)"
_INSERT_TURN: Final = (
    "INSERT INTO turns (turn_id, session, state, created_at, ended_at, cancel, echoes, agent, input_digest, "
    "idempotency_key, digest, summary, input) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
UPDATE_TURN: Final = (
    "UPDATE turns SET state = ?, ended_at = ?, cancel = ?, echoes = ?, digest = ?, summary = ?, input = ? "
    "WHERE turn_id = ?"
)
_ACTIVE: Final = (
    "key IN (SELECT session FROM turns WHERE state <> 'ended' "
    "UNION SELECT session FROM inputs WHERE kind = 'queue')"
)
_OPEN: Final = "sessions.id = ? AND turns.state <> 'ended'"
Places = dict[tuple[str, str], int]
"""The `seq` of the rows that a turn has in the journal, by name and kind."""
_ADD_ENTRY: Final = "INSERT INTO journal (seq, turn_id, name, kind, digest, body) VALUES (?, ?, ?, ?, ?, ?)"
_ADD_ENTRIES: Final = {6 * rows: _ADD_ENTRY + ", (?, ?, ?, ?, ?, ?)" * (rows - 1) for rows in range(1, 5)}
"""The statements that add up to four entries, by the number of their values. Few saves have more."""
_MOST_VALUES: Final = max(_ADD_ENTRIES)
_REPLACE_ENTRY: Final = (
    f"{_ADD_ENTRY} ON CONFLICT (turn_id, name, kind) "
    "DO UPDATE SET seq = excluded.seq, digest = excluded.digest, body = excluded.body "
    "WHERE journal.seq < excluded.seq"
)
_PLACES: Final = "SELECT name, kind, seq FROM journal WHERE turn_id = ?"
_DELETE_ENTRIES: Final = "DELETE FROM journal WHERE seq IN (SELECT value FROM json_each(?))"
LAST_ENTRY: Final = "(SELECT coalesce(max(seq), 0) FROM journal)"
# PostgreSQL counts the turn's rows; SQLite would read the whole table.
JOURNALED: Final = "(SELECT EXISTS (SELECT 1 FROM journal))"
# Read whole, and with what belongs to no unfinished turn: an entry whose turn cannot be determined must not
# be overlooked, or its effect would happen again.
JOURNAL: Final = """
SELECT seq, turn_id, name, kind, digest, body FROM journal NOT INDEXED
WHERE turn_id = ? OR turn_id NOT IN (SELECT turn_id FROM turns WHERE state <> 'ended') ORDER BY seq
"""
KEPT: Final = (
    "SELECT journals.key, journals.ended_at, journals.digest, journals.body, segments.body FROM journals "
    "LEFT JOIN turns ON turns.key = journals.key LEFT JOIN segments ON segments.segment_id = turns.turn_id"
)
_KEPT_OF: Final = f"{KEPT} WHERE turns.turn_id = ?"
_KEEP_JOURNAL: Final = (
    "INSERT INTO journals (key, ended_at, digest, body) SELECT key, ?, ?, ? FROM turns WHERE turn_id = ?"
)
_BLOB: Final = "blob"
"""The kind of a journal row that is not an entry, but keeps the blob that it names."""

_pack = msgspec.msgpack.Encoder().encode
_sha256 = hashlib.sha256
_replace = msgspec.structs.replace
_UNDECODABLE: Final = (InvalidSessionId, msgspec.DecodeError, UnicodeDecodeError)

encode = msgspec.json.Encoder().encode


class RecordDecoder(Generic[T]):
    """Decodes JSON of one type. Built when it is first used, because most programs read few types."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    @functools.cached_property
    def decode(self) -> Callable[[bytes], T]:
        return msgspec.json.Decoder(self._kind).decode


_heads: Final[RecordDecoder[SessionHead]] = RecordDecoder(SessionHead)
_entries: Final[RecordDecoder[tuple[Entry, ...]]] = RecordDecoder(tuple[Entry, ...])
_summaries: Final[RecordDecoder[TurnSummary]] = RecordDecoder(TurnSummary)


def seal(*columns: str | int | bytes | None) -> bytes:
    """Return the digest of a row: of its kind and all its other columns."""
    return _sha256(_pack(columns)).digest()[:16]


def text_seal(kind: str, *keys: str | int | None, data: bytes) -> str:
    """Return the digest of a row of the first tables. JSON has no NUL: keys and data cannot run together."""
    return digest_bytes(encode((kind, *keys)) + b"\0" + data)


def decoded(decoder: RecordDecoder[T], data: bytes, what: str) -> T:
    """Decode *data*; raise `RecordCorrupt`, which names *what*, if that fails."""
    try:
        return decoder.decode(data)
    except _UNDECODABLE:
        raise RecordCorrupt(what) from None


# Sessions


class StoredSession(msgspec.Struct, frozen=True, gc=False):
    """A row of `sessions`. `body` is the encoded head."""

    key: int
    family: int
    leaf_key: int | None
    fence: int
    owner: str | None
    until_ms: int
    head: SessionHead
    body: bytes

    @property
    def id(self) -> str:
        return self.head.session_id


_MAX_KNOWN: Final = 256
"""The size of the caches. A full cache is cleared in one step, because several threads may use it."""
_sessions: dict[str, tuple[Row, StoredSession]] = {}
"""The sessions that this process wrote last, with their rows, by id; up to `_MAX_KNOWN` of them."""


def check_session(row: Row) -> None:
    """Raise `RecordCorrupt` if a row with the columns of `SESSIONS` does not match its digest."""
    if (known := _sessions.get(row[1])) is not None and known[0] == row:
        return
    *columns, digest, body = row
    if seal("session", *columns, body) != digest:
        raise RecordCorrupt(f"session {row[1]}")


def session_of(row: Row, *, checked: bool = False) -> StoredSession:
    """Return the session of a row with the columns of `SESSIONS`."""
    if (known := _sessions.get(row[1])) is not None and known[0] == row:
        return known[1]
    if not checked:
        check_session(row)
    key, session_id, family, leaf_key, fence, owner, until_ms, _, body = row
    head = decoded(_heads, body, f"session {session_id}")
    return StoredSession(key, family, leaf_key, fence, owner, until_ms, head, body)


def find_session(db: Connection, session_id: str) -> StoredSession | None:
    row = db.execute(SESSION, (session_id,)).fetchone()
    return None if row is None else session_of(row)


def require_session(db: Connection, session_id: str) -> StoredSession:
    if (found := find_session(db, session_id)) is None:
        raise SessionNotFound(session_id)
    return found


def session_key(db: Connection, session_id: str) -> int | None:
    """Return the key of a session without reading the rest of it."""
    found: int | None = db.execute("SELECT key FROM sessions WHERE id = ?", (session_id,)).get
    return found


def lock_session_of(db: Connection, sql: str, value: str) -> None:
    """Lock the session whose key the statement *sql* finds."""
    session_id: str | None = db.execute(f"SELECT id FROM sessions WHERE key = ({sql})", (value,)).get  # noqa: S608
    if session_id is not None:
        db.lock_sessions((session_id,))


def open_session(db: Connection, head: SessionHead) -> SessionHead:
    found = find_session(db, head.session_id)
    return insert_session(db, head).head if found is None else found.head


def head(db: Connection, session_id: str) -> SessionHead | None:
    found = find_session(db, session_id)
    return None if found is None else found.head


def heads(
    db: Connection,
    *,
    agent: str | None = None,
    after: tuple[int, str] | None = None,
    limit: int | None = None,
    active: bool = False,
) -> list[SessionHead]:
    conditions = [_ACTIVE if active else "true"]
    values: list[str | int] = []
    if agent is not None:
        conditions.append(OF_AGENT)
        values.append(agent)
    if after is not None:
        conditions.append(f"({UPDATED_AT}, id) < (?, ?)")
        values += after
    sql = f"{SESSIONS} WHERE {' AND '.join(conditions)}"
    if limit is not None:  # the database sorts; only the requested rows are read and checked
        sql += f" ORDER BY {UPDATED_AT} DESC, id DESC LIMIT ?"
        values.append(limit)
    rows = db.execute(sql, values).fetchall()
    return sorted((session_of(row).head for row in rows), key=rules.head_order, reverse=True)


def children(db: Connection, session_id: str) -> list[SessionHead]:
    rows = db.execute(f"{SESSIONS} WHERE parent = ? ORDER BY key", (session_id,)).fetchall()
    found = [session_of(row).head for row in rows]
    for head in found:
        if rules.parent_of(head) != session_id:
            raise RecordCorrupt(f"session {head.session_id}")
    return sorted(found, key=lambda head: head.created_at)


def insert_session(
    db: Connection, head: SessionHead, family: int | None = None, leaf_key: int | None = None
) -> StoredSession:
    """Create a session. Without *family*, it is the first of a new family."""
    body = encode(head)
    key: int = db.execute(NEXT_SESSION).get
    made = StoredSession(key, key if family is None else family, leaf_key, key << 32, None, 0, head, body)
    columns = (key, head.session_id, made.family, leaf_key, made.fence)
    db.execute(_INSERT_SESSION, (*columns, _note_session(made), body, rules.parent_of(head)))
    return made


def update_session(db: Connection, session: StoredSession) -> StoredSession:
    """Write the session's leaf, head and lease."""
    lease = session.fence, session.owner, session.until_ms
    db.execute(UPDATE_SESSION, (session.leaf_key, *lease, _note_session(session), session.body, session.key))
    return session


def _note_session(session: StoredSession) -> bytes:
    """Cache a session that is being written; return the digest of its row."""
    key, family, leaf_key, fence, owner, until_ms, head, body = msgspec.structs.astuple(session)
    session_id, digest = head.session_id, session_digest(session)
    if len(_sessions) >= _MAX_KNOWN:
        _sessions.clear()
    row = (key, session_id, family, leaf_key, fence, owner, until_ms, digest, body)
    _sessions[session_id] = row, session
    return digest


def write_head(db: Connection, session: StoredSession, head: SessionHead) -> None:
    """Write another head of the session, with the same leaf."""
    update_session(db, _replace(session, head=head, body=encode(head)))


def describe(db: Connection, session_id: str, **description: Unpack[SessionDescription]) -> None:
    db.lock_sessions((session_id,))
    session = require_session(db, session_id)
    write_head(db, session, rules.described(session.head, **description))


def note_blocked(db: Connection, session_id: str, blocked: Blocked | None) -> None:
    db.lock_sessions((session_id,))
    if (session := find_session(db, session_id)) is not None:
        write_head(db, session, _replace(session.head, blocked=blocked))


def write_lease(
    db: Connection, session: StoredSession, owner: str | None, until_ms: int, fence: int
) -> StoredSession:
    """Write a lease of *owner* until *until_ms*; None releases it. Return the session as written."""
    leased = StoredSession(
        session.key, session.family, session.leaf_key, fence, owner, until_ms, session.head, session.body
    )
    db.execute(UPDATE_LEASE, (fence, owner, until_ms, _note_session(leased), session.key))
    return leased


def session_digest(session: StoredSession) -> bytes:
    return seal(
        "session",
        session.key,
        session.head.session_id,
        session.family,
        session.leaf_key,
        session.fence,
        session.owner,
        session.until_ms,
        session.body,
    )


# Segments


_SEGMENT: Final = ("segment",)
"""What the digest of a segment's row covers besides its columns."""


def insert_segment(
    db: Connection, segment: Segment, session: StoredSession, body: bytes, key: int | None
) -> int:
    """Add a segment under the session's leaf and return its key, *key* if that is known to be free.

    *body* is its entries, encoded.
    """
    body = packing.pack_nodes(body)
    key = db.execute(f"SELECT {NEXT_SEGMENT}").get if key is None else key
    parent, opens_at = segment.parent, None
    if segment.opens_frame:
        opens_at = [isinstance(entry.payload, FrameOpened) for entry in segment.entries].index(True)
    columns = (
        segment.segment_id,
        segment.session_id,
        session.family,
        session.leaf_key,
        None if parent is None else int(parent.rpartition(".")[2]),
        opens_at,
        segment.depth,
        segment.model_calls,
        parent,
        segment.frame,
        None if segment.caused_by == segment.segment_id else segment.caused_by,
        rules.state_key(session.head.state),
    )
    sealed = seal(*_SEGMENT, *(columns if columns[-1] is not None else columns[:-1]), body)
    db.execute(_INSERT_SEGMENT, (key, *columns, sealed, body))
    return key


def segment_of(row: Row) -> Segment:
    """Return the segment of a row with the columns of `SEGMENTS`. A frame has thousands of them."""
    segment_id, session, _, _, _, opens_at, depth, calls, parent, frame, caused_by, body, state, digest = row
    # without a state, as in the first version
    sealed = _SEGMENT + row[:12] if state is None else (*_SEGMENT, *row[:11], state, body)
    if _sha256(_pack(sealed)).digest()[:16] != digest:
        raise RecordCorrupt(f"segment {segment_id}")
    try:
        entries = _entries.decode(packing.unpack_nodes(body, segment_id))
    except _UNDECODABLE:
        raise RecordCorrupt(f"segment {segment_id}") from None
    return Segment(
        segment_id=segment_id,
        session_id=session,
        parent=parent,
        caused_by=segment_id if caused_by is None else caused_by,
        depth=depth,
        frame=frame,
        entries=entries,
        opens_frame=opens_at is not None,
        model_calls=calls,
    )


def find_segment(db: Connection, segment_id: str) -> Segment | None:
    row = db.execute(f"{SEGMENTS} WHERE segment_id = ?", (segment_id,)).fetchone()
    return None if row is None else segment_of(row)


# Turns


class StoredTurn(msgspec.Struct, frozen=True, gc=False):
    """A row of `turns`. `session` is the session's key; `input` is there until the turn ends."""

    record: TurnRecord
    session: int
    input: bytes | None
    echoes: bool = False


_turns: dict[str, tuple[Row, str, StoredTurn]] = {}
"""The turns that began in this process, with their rows and session ids, by id."""


def check_turn(row: Row, session_id: str) -> None:
    """Raise `RecordCorrupt` if a turn's row does not match its digest."""
    if (known := _turns.get(row[0])) is not None and known[:2] == (row, session_id):
        return
    *columns, digest, summary, given = row
    if seal("turn", session_id, *columns, summary, given) != digest:
        raise RecordCorrupt(f"turn {row[0]}")


def turn_of(row: Row, session_id: str, *, checked: bool = False) -> StoredTurn:
    """Return the turn of a row, in which an echoed answer is empty."""
    if (known := _turns.get(row[0])) is not None and known[:2] == (row, session_id):
        return known[2]
    if not checked:
        check_turn(row, session_id)
    *columns, _, summary, given = row
    turn_id, session, state, created_at, ended_at, cancel, echoes, agent, input_digest, key = columns
    record = TurnRecord(
        turn_id=turn_id,
        session_id=session_id,
        state=TurnState(state),
        created_at=created_at,
        agent=agent,
        ended_at=ended_at,
        idempotency_key=key,
        input_digest=input_digest,
        cancel_requested=bool(cancel),
        summary=None if summary is None else decoded(_summaries, summary, f"turn {turn_id}"),
    )
    return StoredTurn(record, session, given, bool(echoes))


def _turn_row(turn: StoredTurn) -> Row:
    record = turn.record
    columns = (
        record.turn_id,
        turn.session,
        str(record.state),
        record.created_at,
        record.ended_at,
        int(record.cancel_requested),
        int(turn.echoes),
        record.agent,
        record.input_digest,
        record.idempotency_key,
    )
    summary = None if record.summary is None else encode(record.summary)
    digest = seal("turn", record.session_id, *columns, summary, turn.input)
    return *columns, digest, summary, turn.input


def turn_digest(turn: StoredTurn) -> bytes:
    """Return the digest of a turn's row."""
    digest: bytes = _turn_row(turn)[10]
    return digest


def insert_turn(db: Connection, turn: StoredTurn) -> None:
    row = _turn_row(turn)
    db.insert_new(_INSERT_TURN, row, IdempotencyConflict, turn.record.turn_id)
    if len(_turns) >= _MAX_KNOWN:
        _turns.clear()
    _turns[turn.record.turn_id] = row, turn.record.session_id, turn


def update_turn(db: Connection, turn: StoredTurn) -> None:
    """Write the columns that change during a turn and at its end."""
    turn_id, _, state, _, ended_at, cancel, echoes, _, _, _, digest, summary, given = _turn_row(turn)
    db.execute(UPDATE_TURN, (state, ended_at, cancel, echoes, digest, summary, given, turn_id))
    _turns.pop(turn_id, None)


def find_turn(db: Connection, turn_id: str) -> StoredTurn | None:
    found = find_turns(db, "turns.turn_id = ?", turn_id)
    return found[0] if found else None


def find_locked_turn(db: Connection, turn_id: str) -> StoredTurn | None:
    """Lock the session of a turn, then read the turn."""
    lock_session_of(db, "SELECT session FROM turns WHERE turn_id = ?", turn_id)
    return find_turn(db, turn_id)


def find_turns(db: Connection, condition: str, *values: str | int) -> list[StoredTurn]:
    """Return the turns that match *condition*, oldest first."""
    # `+`: SQLite would read all turns in the order of their keys rather than sort the few of an index.
    rows = db.execute(f"{TURNS} WHERE {condition} ORDER BY +turns.key", values).fetchall()
    return [turn_of(row[:-1], str(row[-1])) for row in rows]


def turn(db: Connection, turn_id: str) -> TurnRecord | None:
    found = find_turn(db, turn_id)
    return None if found is None else whole_record(db, found)


def turns(db: Connection, session_id: str) -> list[TurnRecord]:
    found = find_turns(db, "sessions.id = ?", session_id)
    segments: dict[str, Segment] = {}
    if any(turn.echoes for turn in found):
        segments = {row[0]: segment_of(row) for row in db.execute(_OF_TURNS, (session_id,)).fetchall()}
    return [_whole_record(turn, segments.get(turn.record.turn_id)) for turn in found]


def open_turn(db: Connection, session_id: str) -> TurnRecord | None:
    found = find_turns(db, _OPEN, session_id)
    return found[0].record if found else None


def open_turn_journal(db: Connection, session_id: str) -> JournaledTurn | None:
    for turn in find_turns(db, _OPEN, session_id):
        assert turn.input is not None  # it is deleted when the turn ends
        saved = journal(db, turn.record.turn_id)
        return JournaledTurn(record=turn.record, input=turn.input, journal=saved)
    return None


def turn_journal(db: Connection, turn_id: str) -> JournaledTurn | None:
    found = find_turn(db, turn_id)
    if found is None:
        return None
    if found.input is not None:
        return JournaledTurn(record=found.record, input=found.input, journal=journal(db, turn_id))
    row = db.execute(_KEPT_OF, (turn_id,)).fetchone()
    if row is None:
        return None
    first, entries = kept_journal_of(row)
    return JournaledTurn(record=whole_record(db, found), input=first, journal=entries)


def keep_journal(
    db: Connection, turn: StoredTurn, entries: tuple[JournalEntry, ...], nodes: bytes, now_ms: int
) -> None:
    """Keep *entries*, the journal of a turn that ends with a segment of these *nodes*, encoded."""
    assert turn.input is not None
    journal = packing.encode_journal(turn.input, entries)
    body = packing.pack_journal(journal, nodes)
    db.execute(_KEEP_JOURNAL, (now_ms, seal("kept journal", now_ms, journal), body, turn.record.turn_id))


def drop_journals(db: Connection, before_ms: int) -> int:
    """Delete the journals of turns that ended before then, oldest first."""
    count = 0
    while True:  # in key order: an index would not pay off for such a rare operation
        oldest = db.execute("SELECT key, ended_at FROM journals ORDER BY key LIMIT 200").fetchall()
        old = [key for key, ended_at in oldest if ended_at < before_ms]
        if not old:
            return count
        for key in old:
            db.execute("DELETE FROM journals WHERE key = ?", (key,))
        count += len(old)


def kept_journal_of(row: Row) -> tuple[bytes, tuple[JournalEntry, ...]]:
    """Return the first input and the entries of a row with the columns of `KEPT`."""
    return packing.decode_journal(_kept_journal(row), f"kept journal {row[0]}")


def _kept_journal(row: Row) -> bytes:
    """Return the journal of a row with the columns of `KEPT`, encoded."""
    key, ended_at, digest, body, segment = row
    journal, covered = packing.unpack_journal(body, segment, f"kept journal {key}")
    if seal("kept journal", ended_at, covered) != digest:
        raise RecordCorrupt(f"kept journal {key}")
    return journal


def end_turn(
    db: Connection, turn: StoredTurn, summary: TurnSummary, entries: tuple[Entry, ...], now_ms: int
) -> None:
    """Write the turn's end, without the answer and the records that *entries* already contain."""
    outcome = summary.outcome
    echoes = (
        isinstance(outcome, Finished)
        and _answer(entries) == outcome.text
        and len(_records(entries)) == len(summary.calls)
    )
    if echoes:
        assert isinstance(outcome, Finished)
        summary = _replace(summary, outcome=_replace(outcome, text=""), calls=())
    update_turn(db, StoredTurn(rules.ended(turn.record, summary, now_ms), turn.session, None, echoes))


def whole_record(db: Connection, turn: StoredTurn) -> TurnRecord:
    """Return the turn's record with its answer and the records of its calls, in the order of the calls."""
    return _whole_record(turn, find_segment(db, turn.record.turn_id) if turn.echoes else None)


def _whole_record(turn: StoredTurn, segment: Segment | None) -> TurnRecord:
    if not turn.echoes:
        return turn.record
    record = turn.record
    text = None if segment is None else _answer(segment.entries)
    summary = record.summary
    if segment is None or text is None or summary is None or not isinstance(summary.outcome, Finished):
        raise RecordCorrupt(f"turn {record.turn_id}")
    outcome = _replace(summary.outcome, text=text)
    return _replace(record, summary=_replace(summary, outcome=outcome, calls=_records(segment.entries)))


def keep_without_segment(db: Connection, turn_id: str) -> None:
    """Store the turn's whole answer and kept journal, because its segment is about to be deleted."""
    turn = find_turn(db, turn_id)
    if turn is not None and turn.echoes:
        update_turn(db, StoredTurn(whole_record(db, turn), turn.session, turn.input))
    row = db.execute(_KEPT_OF, (turn_id,)).fetchone()
    if row is not None:
        journal = _kept_journal(row)
        sql = "UPDATE journals SET digest = ?, body = ? WHERE key = ?"
        sealed = seal("kept journal", row[1], journal)
        db.execute(sql, (sealed, packing.pack_journal(journal, b""), row[0]))


def _answer(entries: tuple[Entry, ...]) -> str | None:
    """Return the text of the last reply."""
    for entry in reversed(entries):
        if isinstance(entry.payload, AssistantMessage):
            return entry.payload.text
    return None


def _records(entries: tuple[Entry, ...]) -> tuple[ExternalCallRecord, ...]:
    """Return the records in the results."""
    results = [entry.payload for entry in entries if isinstance(entry.payload, ToolMessage)]
    return tuple(result.record for result in results if result.record is not None)


# The journal


def append_journal(
    db: Connection,
    turn_id: str,
    entries: tuple[JournalEntry, ...],
    blobs: tuple[Blob, ...],
    last: int,
    places: Places | None = None,
) -> Places:
    """Append entries after *last*, and the digests of *blobs*, which are kept as long as the journal.

    *places* are those of all rows of the turn, None if they are not known. Return the places of the new rows;
    of all rows of the turn if *places* is None.
    """
    if db.indexes_journal:
        _append_indexed(db, turn_id, entries, blobs, last)
        return {}
    found = _find_places(db, turn_id) if places is None else places
    added: Places = {}
    values: list[str | int | bytes] = []
    replaced: list[int] = []
    for seq, entry in enumerate(entries, last + 1):
        key = entry.key, entry.kind
        if key in found or key in added:
            if entry.kind != "state":
                raise rules.already_journaled(turn_id, entry.key)
            if key in found:
                replaced.append(found[key])
            if key in added:
                at = 6 * [*added].index(key)
                del added[key], values[at : at + 6]
        added[key] = seq
        values += _entry_row(seq, turn_id, entry.key, entry.kind, entry.body)
    for seq, blob in enumerate(blobs, last + len(entries) + 1):
        if (name := (blob.digest, _BLOB)) not in found and name not in added:
            added[name] = seq
            values += _entry_row(seq, turn_id, blob.digest, _BLOB, blob.digest.encode())
    if replaced:
        _delete_entries(db, replaced)
    for at in range(0, len(values), _MOST_VALUES):
        some = values[at : at + _MOST_VALUES]
        db.execute(_ADD_ENTRIES[len(some)], some)
    return added if places is not None else found | added


def _append_indexed(
    db: Connection, turn_id: str, entries: tuple[JournalEntry, ...], blobs: tuple[Blob, ...], last: int
) -> None:
    """Append entries without reading: the unique index of the journal refuses those that it already has."""
    added: list[str | int | bytes] = []
    for seq, entry in enumerate(entries, last + 1):
        row = _entry_row(seq, turn_id, entry.key, entry.kind, entry.body)
        if entry.kind == "state":
            db.execute(_REPLACE_ENTRY, row)
        else:
            added += row
    for at in range(0, len(added), _MOST_VALUES):
        values = added[at : at + _MOST_VALUES]
        db.insert_new(_ADD_ENTRIES[len(values)], values, rules.already_journaled, turn_id, *values[2::6])
    for seq, blob in enumerate(blobs, last + len(entries) + 1):
        row = _entry_row(seq, turn_id, blob.digest, _BLOB, blob.digest.encode())
        db.execute(f"{_ADD_ENTRY} ON CONFLICT DO NOTHING", row)


def delete_journal(db: Connection, turn_id: str, places: Mapping[tuple[str, str], int] | None = None) -> None:
    """Delete the turn's rows. Without *places*, those of all its rows, SQLite reads the whole journal."""
    if places is None or db.indexes_journal:
        db.execute("DELETE FROM journal WHERE turn_id = ?", (turn_id,))
    elif places:
        _delete_entries(db, places.values())


def _delete_entries(db: Connection, seqs: Iterable[int]) -> None:
    db.execute(_DELETE_ENTRIES, (encode(tuple(seqs)).decode(),))


def _find_places(db: Connection, turn_id: str) -> Places:
    return {(name, kind): seq for name, kind, seq in db.execute(_PLACES, (turn_id,)).fetchall()}


def journal(db: Connection, turn_id: str) -> tuple[JournalEntry, ...]:
    """Return the entries that a turn saved, in their order."""
    rows = db.execute(JOURNAL, (turn_id,)).fetchall()
    return tuple(entry for entry in map(entry_of, rows) if entry is not None)


def _entry_row(seq: int, turn_id: str, name: str, kind: str, body: bytes) -> Row:
    digest = _sha256(_pack(("journal", seq, turn_id, name, kind, body))).digest()[:16]
    return seq, turn_id, name, kind, digest, body


def entry_of(row: Row) -> JournalEntry | None:
    """Return the entry of a row; None for one that only names a blob."""
    seq, turn_id, name, kind, digest, body = row
    if seal("journal", seq, turn_id, name, kind, body) != digest:
        raise RecordCorrupt(f"{name} of turn {turn_id}")
    return None if kind == _BLOB else JournalEntry(key=name, kind=kind, body=body)
