"""The ring buffer of updates."""

from __future__ import annotations

from standfast.model.monitor import RING, MonitorUpdate
from standfast.runtime.monitors.running_monitor import KEPT_CHARS, UpdateRing, kept


def _take(ring: UpdateRing) -> tuple[tuple[MonitorUpdate, ...], int]:
    taken = ring.updates, ring.lost
    ring.drop(ring.seq)
    return taken


def _fill(ring: UpdateRing, count: int, text: str = "x") -> UpdateRing:
    for _ in range(count):
        ring.add(MonitorUpdate(monitor_id="m", seq=ring.next_seq(), at_ms=0, kind="update", text=text))
    return ring


def test_the_last_updates_are_kept_and_the_lost_ones_counted_until_the_updates_are_taken() -> None:
    """Ours: SPEC §9, a ring of 128 updates; the reader learns how many are missing."""
    ring = _fill(UpdateRing(), RING + 3)
    taken, lost = _take(ring)
    assert ([taken[0].seq, taken[-1].seq], len(taken), lost) == ([4, RING + 3], RING, 3)
    assert _take(ring) == ((), 0)


def test_skipped_updates_are_numbered_and_counted_as_lost() -> None:
    """Ours: numbers count all updates, even those that were never read."""
    ring = _fill(UpdateRing(), 1)
    ring.skip(10)
    _fill(ring, RING)
    taken, lost = _take(ring)
    assert (taken[0].seq, lost) == (12, 11)


def test_numbering_continues_where_another_process_stopped() -> None:
    """Ours: the number of an update never changes."""
    before = _fill(UpdateRing(), 2)
    assert [it.seq for it in _fill(UpdateRing(before.updates), 1).updates] == [1, 2, 3]
    assert [it.seq for it in _fill(UpdateRing(seq=7), 1).updates] == [8]


def test_updates_taken_elsewhere_are_dropped_and_newer_ones_kept() -> None:
    """Ours: a turn of another process may take the updates."""
    ring = _fill(UpdateRing(), 5)
    assert [it.seq for it in ring.after(3)] == [4, 5]
    ring.drop(3)
    assert [it.seq for it in ring.updates] == [4, 5]


def test_the_stored_updates_are_bounded_and_the_newest_take_precedence() -> None:
    """Ours: a record stays small, whatever a command writes."""
    ring = _fill(UpdateRing(), RING, "y" * 1_000)
    found = kept(ring.updates)
    assert len(found) == KEPT_CHARS // 1_000
    assert found[-1].seq == RING
