"""Rows of `clocks`: the time that leases go by, and what happens when the time of day is set.

Rule: whoever notices first that the time of day was set moves the timers along, in the transaction that notes
it. So they are moved once, however many programs notice.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from standfast.errors import RecordCorrupt
from standfast.model.outcome import Waiting
from standfast.ports.session_store import CLOCK_TOLERANCE_MS, SeenClock
from standfast.store.sqlite import session_waits, turn_rows
from standfast.store.sqlite.session_schema import Row, seal
from standfast.store.wait_outcomes import moved_along

_CLOCKS: Final = "SELECT boot, lease_offset_ms, seen_offset_ms, digest FROM clocks"

_replace = msgspec.structs.replace


def find(db: apsw.Connection, boot: str, offset_ms: int) -> SeenClock | None:
    """What is known of the clocks of *boot*; None if there is something to note."""
    row: Row | None = db.execute(f"{_CLOCKS} WHERE boot = ?", (boot,)).fetchone()
    if row is None:
        return None
    _check(row)
    _, lease_offset_ms, seen_ms, _ = row
    return SeenClock(lease_offset_ms=lease_offset_ms, shift_ms=offset_ms - seen_ms)


def see(db: apsw.Connection, boot: str, offset_ms: int) -> SeenClock:
    """Take note of how the clocks stand, and move timers along if the time of day was set."""
    seen = find(db, boot, offset_ms) or SeenClock(lease_offset_ms=offset_ms)
    row = (boot, seen.lease_offset_ms, offset_ms)
    db.execute("INSERT OR REPLACE INTO clocks VALUES (?, ?, ?, ?)", (*row, seal("clock", *row)))
    if abs(seen.shift_ms) <= CLOCK_TOLERANCE_MS:
        return _replace(seen, shift_ms=0)
    _move_waits(db, seen.shift_ms)
    return seen


def check_all(db: apsw.Connection) -> int:
    """Check the digest of every clock; return how many there are."""
    clocks = db.execute(_CLOCKS).fetchall()
    for row in clocks:
        _check(row)
    return len(clocks)


def _check(row: Row) -> None:
    boot, lease_offset_ms, seen_ms, digest = row
    if seal("clock", boot, lease_offset_ms, seen_ms) != digest:
        raise RecordCorrupt(f"clock of boot {boot}")


def _move_waits(db: apsw.Connection, shift_ms: int) -> None:
    for turn in turn_rows.find_where(db, "turns.state <> 'ended'"):
        session_waits.move_along(db, turn.record.turn_id, shift_ms)
        summary = turn.record.summary
        if summary is not None and isinstance(summary.outcome, Waiting):
            waits = tuple(moved_along(wait, shift_ms) for wait in summary.outcome.waits)
            moved = _replace(summary, outcome=_replace(summary.outcome, waits=waits))
            turn_rows.update(db, _replace(turn, record=_replace(turn.record, summary=moved)))
