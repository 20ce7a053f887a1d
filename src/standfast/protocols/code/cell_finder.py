"""The cell finder: separates the cells of a streaming reply from the prose to show.

A reply is Markdown. A fence whose first word names a programming language is a *cell*; every other fence is
prose. Text arrives in pieces of any size. At the start of a line, pieces are held back while the line may
become the opening of a cell; from then on the line is *shown* piece by piece, or *hidden* to its end. Line
ends are held until visible text follows, so that the blank lines around a removed cell can become one
paragraph break.

Rules
-----
1. The shown text depends on the reply alone, never on how it was cut into pieces.
2. No part of a cell or of its fences is ever shown.
3. As in CommonMark, a fence ends at a line of at least as many of its characters and nothing else, indented
   by at most three columns more than its opening. A block quote that ends also ends its fence: such a cell is
   not closed. The end of a list item does not, because models often forget to indent.
4. Each character is read a bounded number of times: a line whose fence does not name a language within the
   first `MAX_OPENING` characters does not open a cell.
"""

from __future__ import annotations

import functools
import re
from enum import Enum, auto
from typing import Final

import msgspec

from standfast.model.code import Language

MAX_OPENING: Final = 200
"""How many characters of a line may come before the language of a fence."""

_FAMILIES: Final = {
    Language.PYTHON: ("python", "py", "python3", "py3"),
    Language.TYPESCRIPT: (
        "typescript", "ts", "mts", "cts", "tsx", "javascript", "js", "mjs", "cjs", "jsx", "ecmascript",
    ),
}  # fmt: skip
_OTHERS: Final = (
    "bash", "sh", "shell", "zsh", "ruby", "rb", "go", "golang", "rust", "rs", "java", "c", "cpp", "c++",
    "csharp", "c#", "cs", "php", "perl", "r", "julia", "lua", "powershell", "swift", "kotlin",
)  # fmt: skip
_OWN: Final = ("cell", "run_code")
"""Words that mean a cell in the session's language."""

_MARKERS: Final = r"(?:[ \t]*(?:>|(?:[-+*]|[0-9]{1,9}[.)])(?=[ \t]|\Z)))*[ \t]*"
_OPENING: Final = re.compile(
    rf"(?P<markers>{_MARKERS})(?P<fence>`{{3,}}|~{{3,}})[ \t]*\{{?[ \t]*\.?(?P<word>[A-Za-z0-9_+#-]{{0,20}})"
)
_MAY_OPEN: Final = re.compile(rf"{_MARKERS}(?:[0-9]{{1,9}}|``?|~~?)?")
_BLANK: Final = re.compile(r"[ \t>]*")
_QUOTE: Final = re.compile(r"[ \t]*>")


class FoundCell(msgspec.Struct, frozen=True):
    """A cell of a reply, and whether its fence was closed. An unknown language is kept in lower case."""

    language: str
    code: str
    closed: bool


class _Line(Enum):
    """How the line that is being read is treated."""

    UNDECIDED = auto()
    BLANK = auto()
    SHOWN = auto()
    HIDDEN = auto()


class _Fence(msgspec.Struct):
    """An open fence, inside `quotes` block quotes and indented by `indent` columns. Prose has no language."""

    character: str
    size: int
    quotes: int
    indent: int
    language: str
    code: list[str] = msgspec.field(default_factory=list)
    dedent: int | None = None

    def unquoted(self, line: str) -> str | None:
        """Return the line without the fence's quote markers; None if it is outside of the quotes."""
        at = 0
        for _ in range(self.quotes):
            marker = _QUOTE.match(line, at)
            if marker is None or marker.end() > MAX_OPENING:
                return None
            at = marker.end() + (line[marker.end() : marker.end() + 1] == " ")
        return line[at:]

    def is_closed_by(self, line: str) -> bool:
        """Return whether an unquoted line is the closing fence."""
        bare = line.strip(" \t\r")
        if len(bare) < self.size or bare.strip(self.character):
            return False
        return _indent_of(line) <= self.indent + 3

    def add(self, line: str) -> None:
        """Add a line of code.

        If the first non-blank line is indented less than the fence, any line may be.
        """
        if self.dedent is None and line.strip():
            self.dedent = min(self.indent, _indent_of(line))
        self.code.append(_dedented(line, self.indent if self.dedent is None else self.dedent))


class CellFinder:
    """A parser of one reply, fed in pieces. `cells` are the cells that are complete so far, in order."""

    def __init__(self, language: Language) -> None:
        self.cells: list[FoundCell] = []
        self._tags, self._beginnings = _tags_of(language)
        self._fence: _Fence | None = None
        self._line = _Line.UNDECIDED
        self._start = ""  # the beginning of a line that is not classified yet
        self._parts: list[str] | None = None  # the text of a classified line, if it is needed at its end
        self._gap: list[str] = []  # line ends and blank lines that no visible text has followed yet
        self._returns: list[str] = []  # carriage returns that may be followed by more of a shown line
        self._cut = False  # whether a cell was removed in that gap
        self._shown = False
        self._out: list[str] = []

    def feed(self, chunk: str) -> str:
        """Parse a piece of the reply; return the prose that can be shown now."""
        # A piece without a line end changes no state if the line is hidden, or shown with nothing held back.
        passes = self._line is _Line.HIDDEN or (
            self._line is _Line.SHOWN and not self._gap and not self._returns and "\r" not in chunk
        )
        if "\n" not in chunk and passes:
            if self._parts is not None:
                self._parts.append(chunk)
            return chunk if self._line is _Line.SHOWN else ""
        first, *others = chunk.split("\n")
        self._take(first)
        for piece in others:
            self._end_line()
            self._gap.append("\n")
            self._take(piece)
        return self._drain()

    def end(self) -> str:
        """End the reply; return the rest of the prose. A cell that is still open counts as not closed."""
        if self._start or self._line is not _Line.UNDECIDED:
            self._end_line()
        self._leave_fence(closed=False)
        if not self._cut:
            self._out += self._gap
        self._gap = []
        return self._drain()

    def _drain(self) -> str:
        shown = "".join(self._out)
        self._out.clear()
        return shown

    # Lines

    def _take(self, piece: str) -> None:
        """Process a piece of the current line, without its line end."""
        if self._line is _Line.UNDECIDED and piece:
            piece = self._start + piece
            self._line = self._decide(piece, ended=False)
            self._start = piece if self._line is _Line.UNDECIDED else ""
        if self._line is _Line.UNDECIDED:
            return
        if self._line is _Line.SHOWN:
            self._show(piece)
        if self._parts is not None:
            self._parts.append(piece)

    def _end_line(self) -> None:
        if self._line is _Line.UNDECIDED:
            piece, self._start = self._start, ""
            self._line = self._decide(piece, ended=True)
            if self._line is _Line.SHOWN:
                self._show(piece)
            elif self._line is _Line.BLANK:
                self._gap.append(piece)
            if self._parts is not None:
                self._parts.append(piece)
        if self._parts is not None:
            self._conclude("".join(self._parts))
        self._gap += self._returns
        self._returns, self._parts, self._line = [], None, _Line.UNDECIDED

    def _decide(self, line: str, *, ended: bool) -> _Line:
        """Return how to treat a line that begins with *line*, even if the rest has not arrived yet."""
        if self._fence is not None and self._fence.unquoted(line) is None:
            if not ended and len(line) <= MAX_OPENING and _BLANK.fullmatch(line):
                return _Line.UNDECIDED
            self._leave_fence(closed=False)
        if self._fence is None:
            return self._decide_outside(line.removesuffix("\r"), ended=ended)
        self._parts = []
        return _Line.HIDDEN if self._fence.language else _Line.SHOWN

    def _decide_outside(self, line: str, *, ended: bool) -> _Line:
        opening = _OPENING.match(line)
        if opening is None:
            if len(line) > MAX_OPENING or _MAY_OPEN.fullmatch(line) is None:
                return _Line.SHOWN
            if not ended:
                return _Line.UNDECIDED
            return _Line.BLANK if _BLANK.fullmatch(line) else _Line.SHOWN
        if opening.start("word") > MAX_OPENING:
            return _Line.SHOWN
        word = opening["word"].lower()
        if not ended and opening.end() == len(line) and word in self._beginnings:
            return _Line.UNDECIDED
        self._parts = []
        return _Line.HIDDEN if word in self._tags else _Line.SHOWN

    def _conclude(self, line: str) -> None:
        """Process a complete line that opens or closes a fence, or is inside one."""
        if self._fence is None:
            self._open(line)
            return
        inside = self._fence.unquoted(line) or ""
        if self._fence.is_closed_by(inside):
            self._leave_fence(closed=True)
        elif self._fence.language:
            self._fence.add(inside.removesuffix("\r"))

    # Fences

    def _open(self, line: str) -> None:
        """Open a fence if this line is one. The info string of a backtick fence must not have backticks."""
        opening = _OPENING.match(line)
        if opening is None or (opening["fence"][0] == "`" and "`" in line[opening.end("fence") :]):
            if self._line is _Line.HIDDEN:
                self._show(line)
            return
        language = self._tags.get(opening["word"].lower(), "")
        _, quoted, after = opening["markers"].rpartition(">")  # a list marker counts as indentation
        after = after.removeprefix(" ") if quoted else after
        self._fence = _Fence(
            character=opening["fence"][0],
            size=len(opening["fence"]),
            quotes=opening["markers"].count(">"),
            indent=len(after.expandtabs(4)),
            language=language,
        )
        if language:
            self._cut = True

    def _leave_fence(self, *, closed: bool) -> None:
        if self._fence is not None and self._fence.language:
            self.cells.append(FoundCell(self._fence.language, "\n".join(self._fence.code), closed))
        self._fence = None

    # Prose

    def _show(self, piece: str) -> None:
        """Show a piece of a line, but hold back a carriage return that may be half of its line end."""
        visible = piece.rstrip("\r")
        if visible:
            if not self._cut:
                self._out += self._gap
            elif self._shown:  # a cell was removed: replace it by a paragraph break
                self._out.append("\n\n")
            self._gap, self._cut, self._shown = [], False, True
            self._out += self._returns
            self._out.append(visible)
            self._returns = []
        if len(visible) < len(piece):
            self._returns.append(piece[len(visible) :])


def find_cells(text: str, language: Language) -> tuple[str, tuple[FoundCell, ...]]:
    """Return the prose and the cells of a whole reply, as a `CellFinder` finds them."""
    finder = CellFinder(language)
    prose = finder.feed(text)
    prose += finder.end()
    return prose, tuple(finder.cells)


@functools.cache
def _tags_of(language: Language) -> tuple[dict[str, str], frozenset[str]]:
    """Return the language of each tag that makes a fence a cell, and all prefixes of these tags."""
    tags = {tag: tag for tag in _OTHERS}
    for family, names in _FAMILIES.items():
        tags.update((name, str(family)) for name in names)
    tags |= {tag: str(language) for tag in _OWN}
    return tags, frozenset(tag[:end] for tag in tags for end in range(len(tag) + 1))


def _indent_of(line: str) -> int:
    """Return the columns of white space at the start of a line."""
    blank = line[: len(line) - len(line.lstrip(" \t"))]
    return len(blank.expandtabs(4))


def _dedented(line: str, columns: int) -> str:
    """Return the line without its first *columns* of white space, or as many as it has."""
    if not columns or not line.startswith((" ", "\t")):
        return line
    column = at = 0
    while column < columns and line[at : at + 1] in (" ", "\t"):
        column += 1 if line[at] == " " else 4 - column % 4
        at += 1
    return " " * (column - columns) + line[at:]
