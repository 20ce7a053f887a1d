"""Rows of `plugin_records`: what plugins keep beyond one session.

Rule: a row is checked whenever it is read.
"""

from __future__ import annotations

from typing import Final

import apsw

from standfast.errors import RecordCorrupt
from standfast.store.sqlite.schema import Row, seal

RECORDS: Final = "SELECT plugin_id, scope, name, updated_at, digest, body FROM plugin_records"
_KIND: Final = "shelf"
"""The kind in the digests: the name that the table once had."""

Place = tuple[str, str, str]
"""The plugin, its scope and the name of what it keeps there."""


def put(db: apsw.Connection, place: Place, body: bytes | None, now_ms: int) -> None:
    """Keep *body* in place of what is there; None takes it away."""
    if body is None:
        db.execute("DELETE FROM plugin_records WHERE plugin_id = ? AND scope = ? AND name = ?", place)
        return
    row = (*place, now_ms, seal(_KIND, *place, now_ms, body), body)
    db.execute("INSERT OR REPLACE INTO plugin_records VALUES (?, ?, ?, ?, ?, ?)", row)


def find(db: apsw.Connection, place: Place) -> bytes | None:
    row = db.execute(f"{RECORDS} WHERE plugin_id = ? AND scope = ? AND name = ?", place).fetchone()
    return None if row is None else record_of(row)[1]


def find_scope(db: apsw.Connection, plugin_id: str, scope: str) -> list[tuple[str, bytes]]:
    """What a plugin keeps in one scope, ordered by name."""
    sql = f"{RECORDS} WHERE plugin_id = ? AND scope = ? ORDER BY name"
    return [record_of(row) for row in db.execute(sql, (plugin_id, scope)).fetchall()]


def record_of(row: Row) -> tuple[str, bytes]:
    plugin_id, scope, name, updated_at, digest, body = row
    if seal(_KIND, plugin_id, scope, name, updated_at, body) != digest:
        raise RecordCorrupt(f"{name} of plugin {plugin_id}")
    return name, body
