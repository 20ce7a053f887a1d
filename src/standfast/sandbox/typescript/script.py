"""Conversion of a TypeScript program to the JavaScript that the engine runs.

`read_script` parses the code once, rejects syntax that cannot be run, and writes JavaScript with the same
lines: types become blanks, top-level declarations become names of the session. The engine evaluates it as a
global script with top-level `await`; its value is that of its last expression.

Each line of the source is the same line of the JavaScript. Columns are the same too, except after an edit;
`Script.position` maps a position in the JavaScript to the source. The engine counts columns in UTF-8 bytes;
we count characters, from 1. For any input, `ScriptRefused` is the only exception raised.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import Code, ErrorObject, ScriptRefused
from standfast.model.code import Diagnostic
from standfast.sandbox.run_errors import by_line, diagnose
from standfast.sandbox.typescript.declarations import RESULT, TopLevel, assigns_result
from standfast.sandbox.typescript.source import (
    OffsetMap,
    Source,
    SourceEdits,
    UnreadableSource,
    line_starts,
    parse,
    parse_jsx,
)
from standfast.sandbox.typescript.stripper import Stripper

if TYPE_CHECKING:
    from tree_sitter import Node

_SHORT_CHARS: Final = 20_000
_CLOSES: Final = {")": "(", "]": "[", "}": "{"}
_OPENS: Final = {"(": "(", "[": "[", "{": "{", "${": "{"}
_WHOLE: Final = frozenset({"string", "regex", "comment"})
_QUOTES: Final = ('"', "'", "`")
_HEADS: Final = frozenset({
    "const", "let", "var", "function", "if", "for", "while", "switch", "class", "case", "import",
})  # fmt: skip
"""Words that are correct themselves if a syntax error is reported at them; the next token is wrong."""
_OPERANDS: Final = frozenset({"identifier", "number", "string", "type_identifier", "property_identifier"})
_PYTHON: Final = re.compile(
    r"^\s*(?:def |elif |except\b|from \w+ import |(?:for|if|while|class|with|try|else)\b[^{}]*:\s*(?:#.*)?$)",
    re.M,
)
_MAX_SHOWN_CHARS: Final = 30
_MAX_JSX_BYTES: Final = 50_000
_MAX_CLIMB: Final = 100


@dataclass(frozen=True, slots=True)
class Script:
    """A program that can be run."""

    code: str
    javascript: str
    bound: frozenset[str]
    """The names that it binds at its top level."""
    binds_result: bool
    """Whether `result` is among them, or is assigned to without a declaration."""
    moves: OffsetMap = field(repr=False)
    source: Source = field(repr=False, compare=False)

    def position(self, line: int, column: int) -> tuple[int, int]:
        """Map a position in `javascript`, as the engine reports it, to a position in the source."""
        return self.source.place(self._origin(line, column))

    def call_line(self, line: int, column: int, name: str) -> int:
        """Return the line of the source on which the call of *name* at such a position begins."""
        if len(self.code) > _SHORT_CHARS:  # encoded once, not for every call
            return line
        at = self._origin(line, column)
        node = self.source.root.descendant_for_byte_range(at, at)
        for _ in range(_MAX_CLIMB):
            if node is None:
                break
            called = node.child_by_field_name("function") if node.type == "call_expression" else None
            if called is not None and self.source.text(called) == name:
                return self.source.place(node.start_byte)[0]
            node = node.parent
        return line

    def _origin(self, line: int, column: int) -> int:
        # The engine counts columns in bytes, from 1, but in the first line from 0; it never reports 0.
        data = self.javascript.encode()
        starts = line_starts(data)
        line = max(1, min(line, len(starts)))
        end = starts[line] - 1 if line < len(starts) else len(data)
        if line > 1:
            column = max(column - 1, 0)
        elif column <= 1 and data[:1] not in (b" ", b"(", b"[", b";"):
            column = 0
        return self.moves.origin(min(starts[line - 1] + column, end))


def read_script(code: str) -> Script:
    """Convert `code` to JavaScript; raise `ScriptRefused` with every problem that keeps it from running."""
    return _read_short(code) if len(code) <= _SHORT_CHARS else _read(code)


def _read(code: str) -> Script:
    try:
        source = parse(code)
    except UnreadableSource as problem:
        raise _refused([problem.diagnostic]) from None
    if not source.is_sound:
        raise _refused(syntax_errors(source))
    edits = SourceEdits(source.data)
    top = TopLevel(source, edits)
    top.rewrite()
    stripper = Stripper(source, edits, top)
    stripper.strip()
    if refused := [*top.refused, *stripper.refused]:
        raise _refused(sorted(refused, key=by_line))
    javascript, moves = edits.apply()
    assigns = RESULT not in top.bound and RESULT in code and assigns_result(source)
    return Script(
        code=code,
        javascript=f"{javascript}\nvar {RESULT};" if assigns else javascript,
        bound=frozenset(top.bound | {RESULT} if assigns else top.bound),
        binds_result=assigns or RESULT in top.bound,
        moves=moves,
        source=source,
    )


def _refused(found: list[Diagnostic]) -> ScriptRefused:
    return ScriptRefused([msgspec.convert(one, ErrorObject, from_attributes=True) for one in found])


_read_short: Final = functools.lru_cache(maxsize=64)(_read)
"""Cached, because code is usually checked and then run."""


def syntax_errors(source: Source) -> list[Diagnostic]:
    """Return a diagnostic for the first syntax error; most are explained by unmatched brackets or quotes."""
    if source.gave_up_at is not None:
        at = source.between(source.gave_up_at, source.gave_up_at)
        return [diagnose(Code.SYNTAX_ERROR, "the code has too many syntax errors to be parsed", at)]
    wrong: Node | None = source.root
    while wrong is not None:  # find the innermost node that the parser could not parse, or inserted
        first_wrong = wrong
        wrong = next((part for part in wrong.children if part.has_error or part.is_missing), None)
    has_tags = b"</" in source.data or b"/>" in source.data
    if has_tags and len(source.data) <= _MAX_JSX_BYTES and not parse_jsx(source).has_error:
        hint = "build strings or objects instead"
        return [diagnose(Code.UNSUPPORTED_FEATURE, "JSX is not supported", source.span(first_wrong), hint)]
    return [
        _unmatched_bracket(source) or _unclosed_quote(source, first_wrong) or _misplaced(source, first_wrong)
    ]


def _unmatched_bracket(source: Source) -> Diagnostic | None:
    """Report the first bracket that closes nothing, or the innermost one that is never closed."""
    opened: list[Node] = []
    for token in _tokens(source.root):
        kind = token.type
        if kind in _OPENS:
            opened.append(token)
        elif kind in _CLOSES:
            if not opened:
                return diagnose(Code.SYNTAX_ERROR, f"unexpected {kind!r}", source.span(token))
            last = opened.pop()
            if _OPENS[last.type] != _CLOSES[kind]:
                line = source.place(last.start_byte)[0]
                hint = f"the {last.type!r} of line {line} is not closed before it"
                return diagnose(Code.SYNTAX_ERROR, f"unexpected {kind!r}", source.span(token), hint)
    if opened:
        return diagnose(Code.SYNTAX_ERROR, f"{opened[-1].type!r} is never closed", source.span(opened[-1]))
    return None


def _tokens(root: Node) -> Iterator[Node]:
    """Yield the brackets and words of the code in order, but nothing inside of strings."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.child_count == 0:
            if not node.is_missing:
                yield node
        elif node.type not in _WHOLE:
            pending.extend(reversed(node.children))


def _unclosed_quote(source: Source, wrong: Node) -> Diagnostic | None:
    text = source.data[wrong.start_byte : wrong.end_byte]
    if text.startswith(b"/*"):
        return diagnose(Code.SYNTAX_ERROR, "the comment is never closed", source.span(wrong))
    quotes = [part for part in (wrong, *wrong.children) if part.type in _QUOTES]
    if len(quotes) % 2:
        return diagnose(Code.SYNTAX_ERROR, "the string is never closed", source.span(quotes[-1]))
    if text[:1] in (b'"', b"'", b"`") and text.count(text[:1]) == 1:
        at = source.between(wrong.start_byte, wrong.start_byte + 1)
        return diagnose(Code.SYNTAX_ERROR, "the string is never closed", at)
    return None


def _misplaced(source: Source, wrong: Node) -> Diagnostic:
    hint = "the code is parsed as TypeScript" if _PYTHON.search(source.code) else None
    if wrong.is_missing:
        what = "an expression" if wrong.type == "identifier" else repr(wrong.type)
        return diagnose(Code.SYNTAX_ERROR, f"{what} is missing", source.span(wrong), hint)
    tokens = list(islice(_tokens(wrong), 3))
    token = tokens[0] if tokens else wrong
    if len(tokens) > 1 and token.type in _HEADS:
        token = tokens[1]
    elif len(tokens) > 1 and not source.data[wrong.end_byte :].strip():
        end = source.between(wrong.end_byte, wrong.end_byte)
        return diagnose(Code.SYNTAX_ERROR, "the code ends in the middle of a statement", end, hint)
    elif len(tokens) == 1 and token.type in _OPERANDS:
        following = next(
            (later for later in _tokens(source.root) if later.start_byte >= wrong.end_byte), None
        )
        if following is not None and (following.type in _OPERANDS or following.type.isalpha()):
            token = following  # the parser often omits the preceding token
    text = source.text(token)
    shown = text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
    return diagnose(Code.SYNTAX_ERROR, f"unexpected {shown!r}", source.span(token), hint)
