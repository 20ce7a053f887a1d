"""What plugins keep beyond one session, row by row.

Rule: a row is checked whenever it is read.
"""

from __future__ import annotations

from typing import Final

import apsw

from standfast.errors import RecordCorrupt
from standfast.store.sqlite.session_schema import Row, seal

_SHELF: Final = "SELECT plugin_id, scope, name, updated_at, digest, body FROM shelf"

Place = tuple[str, str, str]
"""The plugin, its scope and the name of what it keeps there."""


def put(db: apsw.Connection, place: Place, body: bytes | None, now_ms: int) -> None:
    """Keep *body* in place of what is there; None takes it away."""
    if body is None:
        db.execute("DELETE FROM shelf WHERE plugin_id = ? AND scope = ? AND name = ?", place)
        return
    digest = seal("shelf", *place, now_ms, body)
    db.execute("INSERT OR REPLACE INTO shelf VALUES (?, ?, ?, ?, ?, ?)", (*place, now_ms, digest, body))


def get(db: apsw.Connection, place: Place) -> bytes | None:
    row = db.execute(f"{_SHELF} WHERE plugin_id = ? AND scope = ? AND name = ?", place).fetchone()
    return None if row is None else _of(row)[1]


def list_scope(db: apsw.Connection, plugin_id: str, scope: str) -> list[tuple[str, bytes]]:
    """What a plugin keeps in one scope, ordered by name."""
    sql = f"{_SHELF} WHERE plugin_id = ? AND scope = ? ORDER BY name"
    return [_of(row) for row in db.execute(sql, (plugin_id, scope)).fetchall()]


def check_all(db: apsw.Connection) -> int:
    """Check the digest of every row; return how many there are."""
    return sum(1 for _ in map(_of, db.execute(_SHELF)))


def _of(row: Row) -> tuple[str, bytes]:
    plugin_id, scope, name, updated_at, digest, body = row
    if seal("shelf", plugin_id, scope, name, updated_at, body) != digest:
        raise RecordCorrupt(f"{name} on the shelf of plugin {plugin_id}")
    return name, body
