"""What a guest's memory holds beyond the boot image, as bytes.

A snapshot is the size of the memory, and the runs of blocks that differ from the boot image (from zeros,
where that has ended). Below the guest's data lies its stack, which is empty between two entries::

    size, count | start, end | start, end | … | the bytes of each run

Rules
-----
1. `load` makes a new guest equal to the one that a snapshot was taken of. It raises `ValueError` for bytes
   that are no snapshot, and never writes outside of a guest's data.
2. Neither copies the memory: a snapshot is read from it and written into it piece by piece.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from standfast.sandbox.quickjs.guest import PAGE, SCRATCH_BYTES, Guest

_PAIR: Final = struct.Struct("<II")
_GAPS: Final = (64, 256, 4096, 1 << 16, 1 << 31)


class GuestSnapshot:
    """A snapshot of a guest between two entries. It is invalid as soon as the guest is entered."""

    def __init__(self, guest: Guest) -> None:
        guest.write(guest.boot.scratch, bytes(SCRATCH_BYTES))  # no part of the guest, nor is freed memory
        guest.scrub()
        listed = next(found for gap in _GAPS if (found := guest.changed(gap)) is not None)
        self._guest = guest
        self._runs: list[tuple[int, int]] = list(_PAIR.iter_unpack(listed))
        self._head = _PAIR.pack(guest.size, len(self._runs)) + listed
        self.size = len(self._head) + sum(end - start for start, end in self._runs)

    def parts(self) -> Iterator[bytes | memoryview]:
        yield self._head
        yield from self._guest.views(self._runs)


def load(guest: Guest, size: int, pieces: Iterable[bytes]) -> None:
    """Load a snapshot of *size* bytes into a new guest. Raise `Trapped` if it is larger than allowed."""
    source = _Source(pieces)
    memory, count = _PAIR.unpack(source.take(min(size, _PAIR.size)).ljust(_PAIR.size, b"\0"))
    left = size - _PAIR.size * (1 + count)
    if left < 0:
        raise ValueError("the list of runs is incomplete")
    runs: list[tuple[int, int]] = list(_PAIR.iter_unpack(source.take(_PAIR.size * count)))
    start = guest.boot.data
    if memory % PAGE or memory < start + guest.boot.image_bytes:
        raise ValueError("the size of the memory is wrong")
    if any(not start <= first < end <= memory for first, end in runs):
        raise ValueError("a run lies outside of the memory")
    if sum(end - first for first, end in runs) != left:
        raise ValueError("the runs are incomplete")
    guest.resize(memory)
    for first, end in runs:
        for piece in source.pieces(end - first):
            guest.write(first, piece)
            first += len(piece)


class _Source:
    """Bytes that arrive in pieces, taken by their number."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def pieces(self, size: int) -> Iterator[bytes]:
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._pieces))
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield bytes(piece)

    def take(self, size: int) -> bytes:
        return b"".join(self.pieces(size))
