"""Rows of `turns` and `journal`: from and to values, read and written.

What stands in the graph is not stored a second time. If the turn's answer is its last reply, and the records
of its calls are those of its results, the row `echoes` them: a reader takes both from the segment of the
same name.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from standfast.errors import IdempotencyConflict, RecordCorrupt
from standfast.model.call import ExternalCallRecord
from standfast.model.message import AssistantMessage, ToolMessage
from standfast.model.node import Entry
from standfast.model.outcome import Finished
from standfast.model.turn import TurnRecord, TurnState, TurnSummary
from standfast.ports.session_store import Blob, JournalEntry
from standfast.store import rules
from standfast.store.sqlite import session_rows
from standfast.store.sqlite.schema import Row, decoded, seal

TURNS: Final = (
    "SELECT turns.turn_id, turns.session, turns.state, turns.created_at, turns.ended_at, turns.cancel, "
    "turns.echoes, turns.agent, turns.input_digest, turns.idempotency_key, turns.digest, turns.summary, "
    "turns.input, ifnull(sessions.id, '') FROM turns LEFT JOIN sessions ON sessions.key = turns.session"
)
_INSERT: Final = (
    "INSERT INTO turns (turn_id, session, state, created_at, ended_at, cancel, echoes, agent, input_digest, "
    "idempotency_key, digest, summary, input) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (turn_id) DO NOTHING"
)
_UPDATE: Final = (
    "UPDATE turns SET state = ?, ended_at = ?, cancel = ?, echoes = ?, digest = ?, summary = ?, input = ? "
    "WHERE turn_id = ?"
)
ENTRIES: Final = "SELECT seq, turn_id, name, kind, digest, body FROM journal"
_ADD_ENTRY: Final = "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_REPLACE_ENTRY: Final = "INSERT OR REPLACE INTO journal VALUES (?, ?, ?, ?, ?, ?)"
# Read whole, and with what belongs to no unfinished turn: an entry whose turn cannot be told any more is not
# to be overlooked, or its effect would happen again.
_JOURNAL: Final = """
SELECT seq, turn_id, name, kind, digest, body FROM journal NOT INDEXED
WHERE turn_id = ? OR turn_id NOT IN (SELECT turn_id FROM turns WHERE state <> 'ended') ORDER BY seq
"""

_BLOB: Final = "blob"
"""The kind of a row of the journal that is no entry: it keeps the blob that it names."""

_encode = msgspec.json.Encoder().encode
_summaries = msgspec.json.Decoder(TurnSummary)
_replace = msgspec.structs.replace


class StoredTurn(msgspec.Struct, frozen=True):
    """A row of `turns`. `session` is the session's key; `input` is there until the turn ends."""

    record: TurnRecord
    session: int
    input: bytes | None
    echoes: bool = False


def turn_of(row: Row, session_id: str) -> StoredTurn:
    """A turn, of its columns, as the row has it: an echoed answer is empty."""
    *columns, digest, summary, given = row
    turn_id, session, state, created_at, ended_at, cancel, echoes, agent, input_digest, key = columns
    what = f"turn {turn_id}"
    if seal("turn", session_id, *columns, summary, given) != digest:
        raise RecordCorrupt(what)
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
        summary=None if summary is None else decoded(_summaries, summary, what),
    )
    return StoredTurn(record, session, given, bool(echoes))


def row_of(turn: StoredTurn) -> Row:
    """The columns of a turn."""
    record = turn.record
    columns = (
        record.turn_id,
        turn.session,
        record.state.value,
        record.created_at,
        record.ended_at,
        int(record.cancel_requested),
        int(turn.echoes),
        record.agent,
        record.input_digest,
        record.idempotency_key,
    )
    summary = None if record.summary is None else _encode(record.summary)
    digest = seal("turn", record.session_id, *columns, summary, turn.input)
    return *columns, digest, summary, turn.input


def insert(db: apsw.Connection, turn: StoredTurn) -> None:
    db.execute(_INSERT, row_of(turn))
    if not db.changes():
        raise IdempotencyConflict(turn.record.turn_id)


def update(db: apsw.Connection, turn: StoredTurn) -> None:
    """Write the columns that change during a turn and at its end."""
    turn_id, _, state, _, ended_at, cancel, echoes, _, _, _, digest, summary, given = row_of(turn)
    db.execute(_UPDATE, (state, ended_at, cancel, echoes, digest, summary, given, turn_id))


def find(db: apsw.Connection, turn_id: str) -> StoredTurn | None:
    row = db.execute(f"{TURNS} WHERE turns.turn_id = ?", (turn_id,)).fetchone()
    return None if row is None else turn_of(row[:-1], str(row[-1]))


def find_where(db: apsw.Connection, condition: str, *values: str | int) -> list[StoredTurn]:
    """Turns that *condition* is true of, oldest first."""
    rows = db.execute(f"{TURNS} WHERE {condition} ORDER BY turns.key", values).fetchall()
    return [turn_of(row[:-1], str(row[-1])) for row in rows]


# Answers that stand in the graph


def ended(turn: StoredTurn, summary: TurnSummary, entries: tuple[Entry, ...], now_ms: int) -> StoredTurn:
    """The turn with its end; its answer and its records are left out where *entries* have them."""
    outcome = summary.outcome
    echoes = (
        isinstance(outcome, Finished)
        and _answer(entries) == outcome.text
        and len(_records(entries)) == len(summary.calls)
    )
    if echoes:
        assert isinstance(outcome, Finished)
        summary = _replace(summary, outcome=_replace(outcome, text=""), calls=())
    return StoredTurn(rules.ended(turn.record, summary, now_ms), turn.session, None, echoes)


def whole(db: apsw.Connection, turn: StoredTurn) -> TurnRecord:
    """The turn's record with its answer and the records of its calls, in the order of the calls."""
    if not turn.echoes:
        return turn.record
    record = turn.record
    segment = session_rows.find_segment(db, record.turn_id)
    text = None if segment is None else _answer(segment.entries)
    summary = record.summary
    if segment is None or text is None or summary is None or not isinstance(summary.outcome, Finished):
        raise RecordCorrupt(f"turn {record.turn_id}")
    outcome = _replace(summary.outcome, text=text)
    return _replace(record, summary=_replace(summary, outcome=outcome, calls=_records(segment.entries)))


def keep_answer(db: apsw.Connection, turn_id: str) -> None:
    """Store the turn's answer with it, because its segment is about to go."""
    turn = find(db, turn_id)
    if turn is not None and turn.echoes:
        update(db, StoredTurn(whole(db, turn), turn.session, turn.input))


def _answer(entries: tuple[Entry, ...]) -> str | None:
    """The text of the last reply."""
    for entry in reversed(entries):
        if isinstance(entry.payload, AssistantMessage):
            return entry.payload.text
    return None


def _records(entries: tuple[Entry, ...]) -> tuple[ExternalCallRecord, ...]:
    """The records that the results carry."""
    results = [entry.payload for entry in entries if isinstance(entry.payload, ToolMessage)]
    return tuple(result.record for result in results if result.record is not None)


# The journal


def append_journal(db: apsw.Connection, turn_id: str, entries: tuple[JournalEntry, ...]) -> None:
    """Add entries after the last one of any turn."""
    for seq, entry in enumerate(entries, _next_seq(db)):
        sql = _REPLACE_ENTRY if entry.kind == "state" else _ADD_ENTRY
        if not _write_entry(db, sql, (seq, turn_id, entry.key, entry.kind, entry.body)):
            raise rules.already_journaled(turn_id, entry.key)


def keep_blobs(db: apsw.Connection, turn_id: str, blobs: tuple[Blob, ...]) -> None:
    """Name blobs in the journal, so that they stay as long as it does."""
    for seq, blob in enumerate(blobs, _next_seq(db)):
        _write_entry(db, _ADD_ENTRY, (seq, turn_id, blob.digest, _BLOB, blob.digest.encode()))


def journal(db: apsw.Connection, turn_id: str) -> tuple[JournalEntry, ...]:
    """What a turn saved, in its order."""
    rows = db.execute(_JOURNAL, (turn_id,)).fetchall()
    return tuple(entry for entry in map(entry_of, rows) if entry is not None)


def _next_seq(db: apsw.Connection) -> int:
    last: int = db.execute("SELECT ifnull(max(seq), 0) FROM journal").get
    return last + 1


def _write_entry(db: apsw.Connection, sql: str, columns: tuple[int, str, str, str, bytes]) -> bool:
    """Write a row of the journal; false if *sql* adds only and there is one of its name."""
    *others, body = columns
    db.execute(sql, (*others, seal("journal", *columns), body))
    return db.changes() > 0


def entry_of(row: Row) -> JournalEntry | None:
    """An entry, of its row; None for one that only names a blob."""
    seq, turn_id, name, kind, digest, body = row
    if seal("journal", seq, turn_id, name, kind, body) != digest:
        raise RecordCorrupt(f"{name} of turn {turn_id}")
    return None if kind == _BLOB else JournalEntry(key=name, kind=kind, body=body)
