"""What the TypeScript compiler finds, where it is installed.

Theory of operation
-------------------
The compiler gets the code as it is written, with declarations of the functions that it may call, of the
guest's own objects, and of the session's names, whose types are not known. The checks that need no compiler
come first, and a place that they report is not reported again.

Rules
-----
1. Lenient: the compiler's strict options are off, and messages about types of earlier programs, of which a
   session keeps nothing, are left out.
2. If the compiler did not run, one diagnostic says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from importlib import resources
from typing import Final

from standfast.errors import Code, Span
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.typescript.checks import check_script
from standfast.sandbox.typescript.source import Source, error, parse, place_of
from standfast.sandbox.typescript.tsc import VARIABLE, CompilerFailed, Message, compile_messages, find_tsc
from standfast.tools.typescript_stubs import overloads_of

_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_DECLARED: Final = re.compile(r"^declare (?:var|function|class) (\w+)", re.M)
_TYPE_MESSAGES: Final = frozenset({2304, 2315, 2503, 2552, 2694, 2709, 2749})
"""Messages about a type that the compiler does not know, or knows only as a value."""
_HARMLESS: Final = frozenset({1108, 1148, 2300, 2393, 2451, 2528, 2580, 2584, 2588, 2669, 7016})
"""Messages about code that is right here: names declared again, constants of the top level that change."""
_MAX_REPORTED: Final = 30


def check_types(
    code: str, *, bound: Collection[str], functions: CellFunctions, inputs: Collection[str]
) -> list[Diagnostic]:
    """Return everything that `check_script` finds, and what the compiler finds elsewhere."""
    found = check_script(code, bound=bound, functions=functions, inputs=inputs)
    if any(item.code in (Code.SYNTAX_ERROR, Code.UNSUPPORTED_FEATURE) for item in found):
        return found
    tsc = find_tsc()
    if tsc is None:
        hint = f"install it with `npm install typescript`, or name it in {VARIABLE}"
        return [*found, _unchecked("the TypeScript compiler is not installed", hint)]
    try:
        messages = compile_messages(tsc, code, _ambient({*bound, *inputs}, functions))
    except CompilerFailed as problem:
        return [*found, _unchecked(str(problem), None)]
    spans = [item.span for item in found if item.span]
    others = [
        item
        for item in _diagnostics(parse(code), messages)
        if not any(
            (span.line, span.column) <= place_of(item)
            and place_of(item) <= (span.end_line or span.line, span.end_column or span.column)
            for span in spans
        )
    ]
    return sorted([*found, *others[:_MAX_REPORTED]], key=place_of)


def _unchecked(why: str, hint: str | None) -> Diagnostic:
    message = f"syntax and calls were checked, types were not: {why}"
    return Diagnostic(severity=Severity.INFO, code=Code.TYPE_ERROR, message=message, hint=hint)


def _ambient(names: Collection[str], functions: CellFunctions) -> str:
    """Return declarations of everything that the code may use. A name of the session hides a function."""
    guest, own = _guest_declarations()
    hidden = {name for name in names if _NAME.fullmatch(name)}
    called = [name for name in functions.names() if name not in hidden and name not in own]
    return "\n".join([
        guest,
        *(overloads_of(functions.capability(name)) for name in called),
        *(f"declare var {name}: any; type {name} = any;" for name in sorted(hidden - own)),
    ])  # fmt: skip


@cache
def _guest_declarations() -> tuple[str, frozenset[str]]:
    text = resources.files(__package__).joinpath("guest.d.ts").read_text("utf-8")
    return text, frozenset(_DECLARED.findall(text))


def _diagnostics(source: Source, messages: list[Message]) -> Iterator[Diagnostic]:
    for message in messages:
        if message.number in _HARMLESS:
            continue
        start = _offset(source, message)
        node = source.root.named_descendant_for_byte_range(start, start)
        if message.number in _TYPE_MESSAGES and node is not None and node.type != "identifier":
            continue
        end = node.end_byte if node is not None and node.start_byte == start else start
        span = source.between(start, end)
        if end == start:
            span = Span(line=span.line, column=span.column)
        yield error(Code.TYPE_ERROR, f"{message.text} (TS{message.number})", span)


def _offset(source: Source, message: Message) -> int:
    """Return the byte offset of a place that the compiler counts in UTF-16 units."""
    starts = source.starts
    line = max(1, min(message.line, len(starts)))
    start = starts[line - 1]
    end = starts[line] if line < len(starts) else len(source.data)
    text = source.data[start:end].decode("utf-8", "replace")
    before = text.encode("utf-16-le")[: 2 * (message.column - 1)].decode("utf-16-le", "ignore")
    return start + len(before.encode())
