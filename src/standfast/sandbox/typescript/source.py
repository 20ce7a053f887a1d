"""The syntax tree of TypeScript code, positions and names in it, and edits that turn it into JavaScript.

A removed part leaves blanks of the same width, so most positions do not change. Inserted text is on the same
line and shifts the positions after it; `OffsetMap` maps them back.

Rules
-----
1. The parser works on UTF-8 bytes; diagnostics have lines and characters from 1. A line ends where JavaScript
   says it does: LF, CR, CRLF, U+2028 and U+2029.
2. The tree is read, never changed: the same code is checked and then run.
3. Nothing here follows a tree by recursion; code may nest deeper than the stack.
4. The parser gets long code in pieces. For code full of syntax errors, its time and memory can grow with the
   square of the length; if it takes too long, it gets no more pieces and the code is rejected. Correct code
   takes about 0.2 ms per kilobyte. Code with thousands of `<`, each of which may begin a list of types, is
   rejected without parsing.
5. No change adds or removes a line. A blank has as many bytes, as many UTF-16 units and, outside of the
   astral planes, as many characters as the text it replaces.
6. Changes do not overlap. Two at one offset apply in the order in which they were made.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import Code, EngineFailed, Span
from standfast.sandbox.run_errors import diagnose

if TYPE_CHECKING:
    from tree_sitter import Node

CASTS: Final = ("as_expression", "satisfies_expression")
_NAMED: Final = frozenset({
    "function_declaration", "generator_function_declaration", "class_declaration", "enum_declaration",
    "abstract_class_declaration", "internal_module", "module",
})  # fmt: skip
_SKIPPED: Final = frozenset({"type_annotation", "comment"})
MAX_CODE_CHARS: Final = 1 << 20
_BREAK: Final = re.compile(rb"\r\n|\n|\r|\xe2\x80[\xa8\xa9]")
_SHORT_CHARS: Final = 20_000
_MAX_ANGLES: Final = 3000
_ANGLE: Final = re.compile("<(?![/=<!])")
_PIECE_BYTES: Final = 512
_PARSE_S: Final = 0.25
_PARSE_S_PER_BYTE: Final = 2e-6
_LONG_CAST: Final = re.compile(
    rb"\b(?:as|satisfies)\s+(?:[|&]\s*)?(?:(?:keyof|readonly|[\w$.\[\]\"']+\s*[|&])\s*)*[A-Za-z_$][\w$]*(?:\.[\w$]+){2,}"
)
"""A cast to `A.B.C`, which the parser would interpret as the property C of a cast to `A.B`."""

_LATE_TEMPLATE: Final = re.compile(rb"(?m)^((?:(?!//)[^\n])+)\n(?=[ \t]*`)")
"""A line followed by one that begins with a template: the parser does not end a type there."""


_CAST: Final = re.compile(rb"\b(?:as|satisfies)\b")
_GAP: Final = re.compile(
    rb"""(?s)"(?:\\.|[^"\\\r\n])*+"?|'(?:\\.|[^'\\\r\n])*+'?|`(?:\\.|[^`\\])*+`?"""
    rb"""|((?:[ \t\r\n]|//[^\r\n]*+|/\*.*?(?:\*/|\Z))++)(\[)?"""
)
"""A string, which is skipped, or blanks and comments (group 1) followed by a bracket.

Matching takes linear time.
"""
_MAY_END_TYPE: Final = re.compile(rb"[\w$\])}\"'`]|(?<!=)>")
_MAX_TRIES: Final = 4


class UnreadableSource(Exception):
    """Code that cannot be passed to the parser."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.diagnostic = diagnose(Code.SYNTAX_ERROR, message, span)


@dataclass(frozen=True, eq=False)
class Source:
    """Code, its bytes and its syntax tree, which is that of `parsed`: a text of the same length."""

    code: str
    data: bytes
    parsed: bytes
    root: Node
    gave_up_at: int | None = None
    """The offset at which the parser was stopped because it took too long."""

    @property
    def is_sound(self) -> bool:
        """Whether the code has no syntax errors."""
        return self.gave_up_at is None and not self.root.has_error

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode()

    def breaks(self, start: int, end: int) -> bool:
        """Return whether there is a line break between two offsets."""
        return _BREAK.search(self.data, start, end) is not None

    @functools.cached_property
    def starts(self) -> list[int]:
        """The byte offset of each line."""
        return line_starts(self.data)

    def place(self, offset: int) -> tuple[int, int]:
        """Return the line and character of a byte offset."""
        starts = self.starts
        line = bisect_right(starts, offset)
        return line, len(self.data[starts[line - 1] : offset].decode("utf-8", "replace")) + 1

    def span(self, node: Node) -> Span:
        return self.between(node.start_byte, node.end_byte)

    def between(self, start: int, end: int) -> Span:
        line, column = self.place(start)
        end_line, end_column = self.place(end)
        return Span(line=line, column=column, end_line=end_line, end_column=end_column)


def first_row(node: Node) -> int:
    """Return the row that `node` begins on, from 0."""
    # By index: the attributes of a point release a reference that they do not own, a bug of tree-sitter 0.26.
    return node.start_point[0]


def last_row(node: Node) -> int:
    return node.end_point[0]


def line_starts(data: bytes) -> list[int]:
    """Return the byte offset of each line, as JavaScript counts lines."""
    return [0, *(found.end() for found in _BREAK.finditer(data))]


def parse(code: str) -> Source:
    """Parse `code`. The tree marks syntax errors; raise `UnreadableSource` for text that cannot be parsed."""
    return _parse_short(code) if len(code) <= _SHORT_CHARS else _parse(code)


def parse_jsx(source: Source) -> Node:
    """Return the tree of the same code with JSX allowed."""
    return _parser("language_tsx").parse(source.data).root_node  # type: ignore[no-any-return]


def _parse(code: str) -> Source:
    if len(code) > MAX_CODE_CHARS:
        raise UnreadableSource(f"the code has more than {MAX_CODE_CHARS} characters", Span())
    if (at := code.find("\0")) >= 0:
        raise UnreadableSource("the code holds a NUL character", _span_after(code[:at]))
    if code.count("<") > _MAX_ANGLES and sum(1 for _ in _ANGLE.finditer(code)) > _MAX_ANGLES:
        raise UnreadableSource(f"the code has more than {_MAX_ANGLES} '<' characters", Span())
    try:
        data = code.encode()
    except UnicodeEncodeError as problem:
        place = _span_after(code[: problem.start])
        raise UnreadableSource("the code holds half of a surrogate pair", place) from None
    parsed = _LONG_CAST.sub(lambda found: found[0].replace(b".", b"_"), data)
    source = _parsed(code, data, parsed)
    if _CAST.search(parsed) and (gaps := _late_brackets(parsed)):
        source = _with_casts_ended(source, gaps)
    if not source.is_sound and _LATE_TEMPLATE.search(source.parsed):
        again = _parsed(code, data, _LATE_TEMPLATE.sub(rb"\1;", source.parsed))
        return again if again.is_sound else source
    return source


_parse_short: Final = functools.lru_cache(maxsize=32)(_parse)


def _span_after(text: str) -> Span:
    line = text.count("\n") + 1
    return Span(line=line, column=len(text) - (text.rfind("\n") + 1) + 1)


def _late_brackets(parsed: bytes) -> list[tuple[int, int]]:
    """Return the gaps, as offsets, between a possible type and a bracket at the start of another line."""
    return [
        match.span(1)
        for match in _GAP.finditer(parsed)
        if match[2]
        and _BREAK.search(parsed, *match.span(1))
        and _MAY_END_TYPE.match(parsed, match.start(1) - 1)
    ]


def _with_casts_ended(source: Source, gaps: list[tuple[int, int]]) -> Source:
    """Parse the source as TypeScript does: a line break before a bracket ends the type of a cast.

    The parser would treat the bracket as part of the type. A semicolon in the gap prevents that; it is
    removed again where no cast ends.
    """
    for _ in range(_MAX_TRIES):
        text = bytearray(source.parsed)
        for start, end in gaps:
            text[start:end] = b";" + re.sub(rb"[^\r\n]", b" ", source.parsed[start + 1 : end])
        tried = _parsed(source.code, source.data, bytes(text))
        ended = []
        for gap in gaps:
            node = tried.root.descendant_for_byte_range(gap[0] - 1, gap[0])
            while node is not None and node.end_byte == gap[0] and node.type not in CASTS:
                node = node.parent
            if node is not None and node.end_byte == gap[0]:
                ended.append(gap)
        if len(ended) == len(gaps):
            return tried if tried.is_sound else source
        gaps = ended
    return source


def _parsed(code: str, data: bytes, parsed: bytes) -> Source:
    parser = _parser("language_typescript")
    if len(parsed) <= 2 * _PIECE_BYTES:
        return Source(code, data, parsed, parser.parse(parsed).root_node)
    feed = _Feed(parsed)
    return Source(code, data, parsed, parser.parse(feed.read).root_node, feed.stopped_at)


class _Feed:
    """Passes the text to the parser in pieces, until the parser has taken too long."""

    def __init__(self, data: bytes) -> None:
        self.stopped_at: int | None = None
        self._data = data
        self._began = time.thread_time()

    def read(self, offset: int, _point: object) -> bytes:
        late = time.thread_time() - self._began > _PARSE_S + offset * _PARSE_S_PER_BYTE
        if self.stopped_at is None and late and offset < len(self._data):
            self.stopped_at = offset
        end = offset + _PIECE_BYTES
        return self._data[offset : end if self.stopped_at is None else min(self.stopped_at, end)]


_parsers: Final = threading.local()
"""The parsers of each thread: one that gets its text in pieces must not be shared."""


def _parser(grammar: str) -> Any:
    """Return this thread's parser; import its packages, which are an extra, on first use."""
    if (parser := getattr(_parsers, grammar, None)) is None:
        try:
            import tree_sitter
            import tree_sitter_typescript
        except ImportError as problem:
            raise EngineFailed(
                f"TypeScript cannot be parsed: {problem}",
                hint="install the extra: pip install 'standfast[typescript]'",
            ) from problem
        parser = tree_sitter.Parser(tree_sitter.Language(getattr(tree_sitter_typescript, grammar)()))
        setattr(_parsers, grammar, parser)
    return parser


def names_in_declaration(source: Source, node: Node) -> Iterator[str]:
    """Yield the names that a declaration binds; none if `node` is something else."""
    kind = node.type
    if kind in ("lexical_declaration", "variable_declaration"):
        for part in node.named_children:
            pattern = part.child_by_field_name("name") if part.type == "variable_declarator" else None
            if pattern is not None:
                yield from (source.text(name) for name in names_in_pattern(pattern))
    elif kind in _NAMED:
        name = node.child_by_field_name("name")
        if name is not None and name.type in ("identifier", "type_identifier"):
            yield source.text(name)
    elif kind == "expression_statement" and node.named_children[0].type == "internal_module":
        yield from names_in_declaration(source, node.named_children[0])


def names_in_pattern(pattern: Node) -> Iterator[Node]:
    """Yield the identifiers that a pattern binds, in any order."""
    pending = [pattern]
    while pending:
        node = pending.pop()
        match node.type:
            case "identifier" | "shorthand_property_identifier_pattern":
                yield node
            case "assignment_pattern" | "object_assignment_pattern" | "pair_pattern":
                field = "value" if node.type == "pair_pattern" else "left"
                if (inner := node.child_by_field_name(field)) is not None:
                    pending.append(inner)
            case "object_pattern" | "array_pattern" | "rest_pattern":
                pending.extend(part for part in node.named_children if part.type not in _SKIPPED)


_BLANK_ASCII: Final = bytes(byte if byte in b"\n\r" else 0x20 for byte in range(256))
_NOT_ASCII: Final = re.compile("[^\x00-\x7f\u2028\u2029]")
_BY_WIDTH: Final = {2: "\u00a0", 3: "\u3000", 4: "\u3000 "}
"""White space of 2, 3 and 4 bytes."""

Move = tuple[int, int, int]
"""An offset in the new text, the old offset that it maps to, and the last old offset of this move."""


@dataclass(frozen=True, slots=True)
class OffsetMap:
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
        """Blank a range, and write `mark` as near to its beginning as possible."""
        self._changes.append((start, end, self._marked(start, end, mark.encode())))

    def end_statements(self, ends: set[int]) -> None:
        """Write a semicolon into each blank that ends at one of `ends`."""
        for index, (start, end, text) in enumerate(self._changes):
            if text is None and end in ends:
                self._changes[index] = (start, end, self._marked(start, end, b";"))

    def _marked(self, start: int, end: int, mark: bytes) -> bytes:
        return blanked(self._data[start:end]).replace(b" ", mark, 1)

    def apply(self) -> tuple[str, OffsetMap]:
        """Return the new text, and the mapping of its offsets to the old text."""
        if not self._changes:
            return self._data.decode(), OffsetMap()
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
        return b"".join(parts).decode(), OffsetMap(tuple(moves))


def blanked(data: bytes) -> bytes:
    """Return white space as wide as `data`, with its line breaks."""
    if data.isascii():
        return data.translate(_BLANK_ASCII)
    text = _NOT_ASCII.sub(lambda found: _BY_WIDTH[len(found[0].encode())], data.decode())
    return re.sub("[!-~\x01-\x09\x0b\x0c\x0e-\x1f\x7f]", " ", text).encode()
