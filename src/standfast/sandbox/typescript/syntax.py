"""What is wrong with code that the parser could not read.

The parser goes on after a mistake as well as it can, and what it makes of the rest is guessing: so the first
mistake alone is told. Brackets and quotes that do not match say most, and are looked for first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from standfast.errors import Code
from standfast.model.diagnostic import Diagnostic
from standfast.sandbox.typescript.source import Source, error, parse_jsx

if TYPE_CHECKING:
    from tree_sitter import Node

_CLOSES: Final = {")": "(", "]": "[", "}": "{"}
_OPENS: Final = {"(": "(", "[": "[", "{": "{", "${": "{"}
_WHOLE: Final = frozenset({"string", "regex", "comment"})
_QUOTES: Final = ('"', "'", "`")
_HEADS: Final = frozenset({
    "const", "let", "var", "function", "if", "for", "while", "switch", "class", "case", "import",
})  # fmt: skip
"""Words behind which something else was expected than what is there."""
_OPERANDS: Final = frozenset({"identifier", "number", "string", "type_identifier", "property_identifier"})
_PYTHON: Final = re.compile(
    r"^\s*(?:def |elif |except\b|from \w+ import |(?:for|if|while|class|with|try|else)\b[^{}]*:\s*(?:#.*)?$)",
    re.M,
)
_SHOWN_CHARS: Final = 30
_JSX_CHARS: Final = 50_000


def syntax_errors(source: Source) -> list[Diagnostic]:
    """The first mistake, as one diagnostic."""
    if source.gave_up_at is not None:
        at = source.between(source.gave_up_at, source.gave_up_at)
        return [error(Code.SYNTAX_ERROR, "the code has too many mistakes to be read", at)]
    wrong = _first_wrong(source.root)
    if _is_jsx(source):
        hint = "build strings or objects instead"
        return [error(Code.UNSUPPORTED_FEATURE, "JSX is not supported", source.span(wrong), hint)]
    found = _unmatched(source) or _unclosed_quote(source, wrong) or _misplaced(source, wrong)
    return [found]


def _first_wrong(root: Node) -> Node:
    """The first node that the parser could not make sense of, or had to invent."""
    node = root
    while True:
        inner = next((part for part in node.children if part.has_error or part.is_missing), None)
        if inner is None:
            return node
        node = inner


def _is_jsx(source: Source) -> bool:
    """Whether the code would be right if there were JSX."""
    marks = b"</" in source.data or b"/>" in source.data
    return marks and len(source.data) <= _JSX_CHARS and not parse_jsx(source).has_error


def _unmatched(source: Source) -> Diagnostic | None:
    """The first bracket that closes nothing, or the innermost one that is never closed."""
    opened: list[Node] = []
    for token in _tokens(source.root):
        kind = token.type
        if kind in _OPENS:
            opened.append(token)
        elif kind in _CLOSES:
            if not opened:
                return error(Code.SYNTAX_ERROR, f"unexpected {kind!r}", source.span(token))
            last = opened.pop()
            if _OPENS[last.type] != _CLOSES[kind]:
                line = source.place(last.start_byte)[0]
                hint = f"the {last.type!r} of line {line} is not closed before it"
                return error(Code.SYNTAX_ERROR, f"unexpected {kind!r}", source.span(token), hint)
    if opened:
        return error(Code.SYNTAX_ERROR, f"{opened[-1].type!r} is never closed", source.span(opened[-1]))
    return None


def _tokens(root: Node) -> Iterator[Node]:
    """The brackets and words of the code in their order, without what is inside of strings."""
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
        return error(Code.SYNTAX_ERROR, "the comment is never closed", source.span(wrong))
    quotes = [part for part in (wrong, *wrong.children) if part.type in _QUOTES]
    if len(quotes) % 2:
        return error(Code.SYNTAX_ERROR, "the string is never closed", source.span(quotes[-1]))
    if text[:1] in (b'"', b"'", b"`") and text.count(text[:1]) == 1:
        at = source.between(wrong.start_byte, wrong.start_byte + 1)
        return error(Code.SYNTAX_ERROR, "the string is never closed", at)
    return None


def _misplaced(source: Source, wrong: Node) -> Diagnostic:
    hint = "the code is read as TypeScript" if _PYTHON.search(source.code) else None
    if wrong.is_missing:
        what = "an expression" if wrong.type == "identifier" else repr(wrong.type)
        return error(Code.SYNTAX_ERROR, f"{what} is missing", source.span(wrong), hint)
    tokens = list(islice(_tokens(wrong), 3))
    if len(tokens) > 1 and not source.data[wrong.end_byte :].strip():
        end = source.between(wrong.end_byte, wrong.end_byte)
        if tokens[0].type not in _HEADS:
            return error(Code.SYNTAX_ERROR, "the code ends in the middle of a statement", end, hint)
    token = _unexpected(source, wrong, tokens)
    text = source.text(token)
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    return error(Code.SYNTAX_ERROR, f"unexpected {shown!r}", source.span(token), hint)


def _unexpected(source: Source, wrong: Node, tokens: list[Node]) -> Node:
    """The token at which reading stopped making sense: often the one behind what the parser left out."""
    first = tokens[0] if tokens else wrong
    if first.type in _HEADS and len(tokens) > 1:
        return tokens[1]
    if len(tokens) == 1 and first.type in _OPERANDS:
        following = next(
            (token for token in _tokens(source.root) if token.start_byte >= wrong.end_byte), None
        )
        if following is not None and (following.type in _OPERANDS or following.type.isalpha()):
            return following
    return first
