"""How JavaScript is made of TypeScript: changes at byte offsets, and the way back.

Theory of operation
-------------------
What is taken away leaves blanks of the same width, so most places stay where they are. What has to be written
otherwise is put in on the same line; then the places behind it move, and `Moves` tells where they came from.

Rules
-----
1. No change adds or removes a line.
2. A blank has as many bytes, as many UTF-16 units and, outside of the astral planes, as many characters as
   what it stands for.
3. Changes do not overlap. Two at one offset apply in the order in which they were made.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

_BLANK_ASCII: Final = bytes(byte if byte in b"\n\r" else 0x20 for byte in range(256))
_NOT_ASCII: Final = re.compile("[^\x00-\x7f]")
_BY_WIDTH: Final = {2: "\u00a0", 3: "\u3000", 4: "\u3000 "}
"""White space of 2, 3 and 4 bytes."""

Move = tuple[int, int, int]
"""An offset of the new text, the old offset that it is, and the old offset up to which that goes."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Offsets of the new text as offsets of the old."""

    at: tuple[Move, ...] = ()

    def origin(self, offset: int) -> int:
        index = bisect_right(self.at, offset, key=lambda move: move[0]) - 1
        if index < 0:
            return offset
        new, old, limit = self.at[index]
        return min(old + offset - new, limit)


class Edits:
    """Changes to one text."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._changes: list[tuple[int, int, bytes | None]] = []

    def blank(self, start: int, end: int) -> None:
        """Put white space in the place of a range."""
        if end > start:
            self._changes.append((start, end, None))

    def replace(self, start: int, end: int, text: str) -> None:
        self._changes.append((start, end, text.encode()))

    def insert(self, at: int, text: str) -> None:
        self._changes.append((at, at, text.encode()))

    def blank_with(self, start: int, end: int, mark: str) -> None:
        """Blank a range but for one byte at its beginning, which becomes *mark*."""
        self._changes.append((start, end, _marked(blanked(self._data[start:end]), mark.encode())))

    def end_statements(self, ends: set[int]) -> None:
        """Write a semicolon into each blank that ends at one of *ends*."""
        for index, (start, end, text) in enumerate(self._changes):
            if text is None and end in ends:
                self._changes[index] = (start, end, _marked(blanked(self._data[start:end]), b";"))

    def apply(self) -> tuple[str, Moves]:
        """The new text, and the way back from it."""
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
    """White space as wide as *data*, with its line breaks."""
    if data.isascii():
        return data.translate(_BLANK_ASCII)
    text = _NOT_ASCII.sub(_wide_blank, data.decode())
    return re.sub("[!-~\x01-\x09\x0b\x0c\x0e-\x1f\x7f]", " ", text).encode()


def _wide_blank(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter in "\u2028\u2029" else _BY_WIDTH[len(letter.encode())]


def _marked(blank: bytes, mark: bytes) -> bytes:
    """The blank with a mark of one byte in it, as far to the front as can be."""
    return blank.replace(b" ", mark, 1)
