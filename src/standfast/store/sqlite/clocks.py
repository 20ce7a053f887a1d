"""Rows of `clocks`: the time that leases go by, and what happens when the time of day is set.

Rule: the first program that notices that the time of day was set moves the timers, in the transaction that
records it. So they are moved once, however many programs notice.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from standfast.errors import RecordCorrupt
from standfast.ports.session_store import SeenClock
from standfast.store import rules
from standfast.store.sqlite import session_waits, turn_rows
from standfast.store.sqlite.schema import Row, seal

CLOCKS: Final = "SELECT boot, lease_offset_ms, seen_offset_ms, digest FROM clocks"


def find(db: apsw.Connection, boot: str) -> tuple[int, int] | None:
    """Return the lease offset and the last offset of the clocks of *boot*."""
    row: Row | None = db.execute(f"{CLOCKS} WHERE boot = ?", (boot,)).fetchone()
    if row is None:
        return None
    check_clock(row)
    return row[1], row[2]


def see(db: apsw.Connection, boot: str, offset_ms: int) -> SeenClock:
    """Record how the clocks stand, and move timers along if the time of day was set."""
    seen = rules.seen_clock(find(db, boot), offset_ms)
    row = (boot, seen.lease_offset_ms, offset_ms)
    db.execute("INSERT OR REPLACE INTO clocks VALUES (?, ?, ?, ?)", (*row, seal("clock", *row)))
    for turn in turn_rows.find_where(db, "turns.state <> 'ended'") if seen.shift_ms else ():
        session_waits.move_along(db, turn.record.turn_id, seen.shift_ms)
        moved = rules.record_moved_along(turn.record, seen.shift_ms)
        if moved is not turn.record:
            turn_rows.update(db, msgspec.structs.replace(turn, record=moved))
    return seen


def check_clock(row: Row) -> None:
    boot, lease_offset_ms, seen_ms, digest = row
    if seal("clock", boot, lease_offset_ms, seen_ms) != digest:
        raise RecordCorrupt(f"clock of boot {boot}")
