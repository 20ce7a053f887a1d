"""What a guest's memory holds beyond the boot image, as bytes.

A snapshot is the size of the memory, and the runs of blocks that differ from the boot image (from zeros,
where that has ended). What lies below the guest's data is its stack, which is empty between two entries::

    size, count | start, end | start, end | … | the bytes of each run

Rules: `put` makes of a new guest what `take` was given; it raises `ValueError` for what is no snapshot, and
never writes outside of a guest's data.
"""

from __future__ import annotations

import struct
from typing import Final

from holdfast.sandbox.quickjs.guest import PAGE, Guest

_PAIR: Final = struct.Struct("<II")
_GAPS: Final = (64, 256, 4096, 1 << 16, 1 << 31)


def take(guest: Guest) -> bytes:
    """The snapshot of a guest that nothing has entered."""
    guest.tidy()
    listed = next(found for gap in _GAPS if (found := guest.changed(gap)) is not None)
    head = _PAIR.pack(guest.size, len(listed) // _PAIR.size)
    return head + listed + guest.read_runs(_PAIR.iter_unpack(listed))


def put(guest: Guest, data: bytes) -> None:
    """Make a new guest what a snapshot tells. `Trapped` if it needs more memory than the guest may have."""
    size, runs = _read_runs(data)
    start = guest.boot.data
    if size % PAGE or size < start + guest.boot.image_bytes:
        raise ValueError("the size of the memory is wrong")
    if any(not start <= first < end <= size for first, end in runs):
        raise ValueError("a run lies outside of the memory")
    at = _PAIR.size * (1 + len(runs))
    if at + sum(end - first for first, end in runs) != len(data):
        raise ValueError("the runs are incomplete")
    guest.resize(size)
    for first, end in runs:
        guest.write(first, data[at : at + end - first])
        at += end - first


def _read_runs(data: bytes) -> tuple[int, list[tuple[int, int]]]:
    if len(data) < _PAIR.size:
        raise ValueError("there is no head")
    size, count = _PAIR.unpack_from(data)
    if len(data) < _PAIR.size * (1 + count):
        raise ValueError("the list of runs is incomplete")
    listed = data[_PAIR.size : _PAIR.size * (1 + count)]
    return size, list(_PAIR.iter_unpack(listed))
