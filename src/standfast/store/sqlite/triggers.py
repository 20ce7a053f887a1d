"""Rows of `triggers` and `occurrences`: who is woken by what, and what was delivered already.

Rules
-----
1. An occurrence and the inputs it becomes are one transaction. Its row is what makes a delivery the only one,
   whichever process hears of it first.
2. A row is checked whenever it is read.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from standfast.errors import RecordCorrupt
from standfast.model.trigger import Occurrence, Trigger
from standfast.ports.session_store import QueuedInput
from standfast.store import rules
from standfast.store.sqlite import session_inputs, session_rows
from standfast.store.sqlite.schema import Row, decoded, seal

TRIGGERS: Final = "SELECT name, session, due, digest, body FROM triggers"
OCCURRENCES: Final = "SELECT source, key, at_ms, digest FROM occurrences"
_NOTE: Final = "INSERT INTO occurrences VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Trigger)


def put(db: apsw.Connection, trigger: Trigger) -> None:
    """Keep a trigger in place of the one of its name."""
    columns = (trigger.name, session_rows.require(db, trigger.session_id).key, rules.due_at(trigger))
    body = _encode(trigger)
    row = (*columns, seal("trigger", *columns, body), body)
    db.execute("INSERT OR REPLACE INTO triggers VALUES (?, ?, ?, ?, ?)", row)


def find(db: apsw.Connection, name: str) -> Trigger | None:
    row = db.execute(f"{TRIGGERS} WHERE name = ?", (name,)).fetchone()
    return None if row is None else trigger_of(row)


def find_all(db: apsw.Connection) -> list[Trigger]:
    """All triggers, by name."""
    return [trigger_of(row) for row in db.execute(f"{TRIGGERS} ORDER BY name").fetchall()]


def remove(db: apsw.Connection, name: str) -> bool:
    db.execute("DELETE FROM triggers WHERE name = ?", (name,))
    return db.changes() > 0


def replace(db: apsw.Connection, seen: Trigger, by: Trigger) -> bool:
    """Put *by* in the place of *seen*, if that is still there."""
    if find(db, seen.name) != seen:
        return False
    put(db, by)
    return True


def occur(
    db: apsw.Connection, occurrence: Occurrence, inputs: tuple[QueuedInput, ...], advance: Trigger | None
) -> bool:
    """Keep what occurred and the inputs it becomes; false if it was known."""
    new = _note(db, occurrence)
    for item in inputs if new else ():
        session_inputs.put_if_there(db, item)
    if advance is not None and rules.moves_on(find(db, advance.name), advance):
        put(db, advance)
    return new


def _note(db: apsw.Connection, occurrence: Occurrence) -> bool:
    """Remember an occurrence; false if it was known."""
    columns = (occurrence.source, occurrence.key, occurrence.at_ms)
    db.execute(_NOTE, (*columns, seal("occurrence", *columns)))
    if db.changes():
        return True
    row = db.execute(f"{OCCURRENCES} WHERE source = ? AND key = ?", columns[:2]).fetchone()
    check_occurrence((*columns, None) if row is None else row)
    return False


def check_occurrence(row: Row) -> None:
    source, key, at_ms, digest = row
    if seal("occurrence", source, key, at_ms) != digest:
        raise RecordCorrupt(f"occurrence {key} of {source}")


def trigger_of(row: Row) -> Trigger:
    *columns, digest, body = row
    what = f"trigger {columns[0]}"
    if seal("trigger", *columns, body) != digest:
        raise RecordCorrupt(what)
    return decoded(_decoder, body, what)
