"""Lines out of the bytes that a command writes.

Rules
-----
1. A line is cut at `MAX_LINE_CHARS`, so that one without an end needs no more memory than one with.
2. Bytes that are no UTF-8 are replaced; the end of the line is taken off; a blank line says nothing.
3. Of very many lines at once only the last that a ring could keep are made; the others are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from standfast.model.monitor import MAX_LINE_CHARS, RING

_MAX_LINE_BYTES: Final = 4 * MAX_LINE_CHARS
"""No character has more than four bytes."""


@dataclass(frozen=True, slots=True)
class Lines:
    """What was said, and how many lines before it were left out."""

    texts: tuple[str, ...] = ()
    skipped: int = 0


class LineReader:
    """Cuts one stream into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Lines:
        """The lines that end in *data*."""
        pieces = (self._rest + data).split(b"\n")
        self._rest = pieces.pop()[:_MAX_LINE_BYTES]
        told = [piece for piece in pieces if not _is_blank(piece)]
        return Lines(tuple(_text(piece) for piece in told[-RING:]), max(0, len(told) - RING))

    def end(self) -> Lines:
        """The last line, if it has no end of its own."""
        rest, self._rest = self._rest, b""
        return Lines() if _is_blank(rest) else Lines((_text(rest),))


def _is_blank(piece: bytes) -> bool:
    return not piece or piece.isspace()


def _text(piece: bytes) -> str:
    return piece[:_MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")[:MAX_LINE_CHARS]
