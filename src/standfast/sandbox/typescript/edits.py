"""Changes at byte offsets that turn TypeScript into JavaScript, and the way back.

A removed part leaves blanks of the same width, so most places stay where they are. Inserted text is on the
same line and moves the places after it; `Moves` maps them back.

Rules
-----
1. No change adds or removes a line.
2. A blank has as many bytes, as many UTF-16 units and, outside of the astral planes, as many characters as
   the text it replaces.
3. Changes do not overlap. Two at one offset apply in the order in which they were made.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

_BLANK_ASCII: Final = bytes(byte if byte in b"\n\r" else 0x20 for byte in range(256))
_NOT_ASCII: Final = re.compile("[^\x00-\x7f\u2028\u2029]")
_BY_WIDTH: Final = {2: "\u00a0", 3: "\u3000", 4: "\u3000 "}
"""White space of 2, 3 and 4 bytes."""

Move = tuple[int, int, int]
"""An offset of the new text, the old offset that it maps to, and the last old offset of this move."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Maps offsets of the new text to offsets of the old."""

    at: tuple[Move, ...] = ()

    def origin(self, offset: int) -> int:
        index = bisect_right(self.at, offset, key=lambda move: move[0]) - 1
        if index < 0:
            return offset
        new, old, limit = self.at[index]
        return min(old + offset - new, limit)


class SourceEdits:
    """Changes to one text."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._changes: list[tuple[int, int, bytes | None]] = []

    def blank(self, start: int, end: int) -> None:
        """Replace a range with white space."""
        if end > start:
            self._changes.append((start, end, None))

    def replace(self, start: int, end: int, text: str) -> None:
        self._changes.append((start, end, text.encode()))

    def insert(self, at: int, text: str) -> None:
        self._changes.append((at, at, text.encode()))

    def blank_with(self, start: int, end: int, mark: str) -> None:
        """Blank a range, except for one byte as near to its beginning as possible, which becomes `mark`."""
        self._changes.append((start, end, self._marked(start, end, mark.encode())))

    def end_statements(self, ends: set[int]) -> None:
        """Write a semicolon into each blank that ends at one of `ends`."""
        for index, (start, end, text) in enumerate(self._changes):
            if text is None and end in ends:
                self._changes[index] = (start, end, self._marked(start, end, b";"))

    def _marked(self, start: int, end: int, mark: bytes) -> bytes:
        return blanked(self._data[start:end]).replace(b" ", mark, 1)

    def apply(self) -> tuple[str, Moves]:
        """Return the new text, and the way back from it."""
        if not self._changes:
            return self._data.decode(), Moves()
        self._changes.sort(key=lambda change: change[:2])
        parts: list[bytes] = []
        moves: list[Move] = []
        at = length = 0
        for start, end, text in self._changes:
            kept = self._data[at:start]
            new = blanked(self._data[start:end]) if text is None else text
            parts += (kept, new)
            length += len(kept)
            if len(new) != end - start:
                moves += ((length, start, end), (length + len(new), end, len(self._data)))
            length += len(new)
            at = end
        parts.append(self._data[at:])
        return b"".join(parts).decode(), Moves(tuple(moves))


def blanked(data: bytes) -> bytes:
    """Return white space as wide as `data`, with its line breaks."""
    if data.isascii():
        return data.translate(_BLANK_ASCII)
    text = _NOT_ASCII.sub(lambda found: _BY_WIDTH[len(found[0].encode())], data.decode())
    return re.sub("[!-~\x01-\x09\x0b\x0c\x0e-\x1f\x7f]", " ", text).encode()
