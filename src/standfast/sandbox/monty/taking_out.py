"""The variables of a Monty session as Python that makes them again elsewhere.

Theory of operation
-------------------
Values are asked for one by one, and written as literals. What has no literal form (functions, classes and
their instances, generators, values that contain themselves) is left to its definition: the text of every
top-level `def`, `class` and `import` that a session has run, which whoever runs its code has kept.

Rules
-----
1. Nothing here runs code of the session.
2. What can be taken out neither way is named, never silently dropped.
"""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from standfast.errors import InvalidArgument, ValueTooLarge
from standfast.model.bounds import MAX_VALUE_BYTES, check_bounds
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.dump import check_arguments, stand_ins
from standfast.sandbox.monty.state import EngineState
from standfast.sandbox.monty.syntax import parse
from standfast.sandbox.monty.workers import MontyWorker, MontyWorkers

_MAX_DEPTH: Final = 200
_DEFINES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class TakenOut:
    """`values` are expressions by name, `definitions` texts in order, `lost` the names without either."""

    values: dict[str, str]
    definitions: dict[str, str]
    lost: list[str]


def definitions_in(code: str) -> dict[str, str]:
    """The text of each definition and import at the top level of *code*, by the name that it binds."""
    if "def " not in code and "class " not in code and "import " not in code:
        return {}
    tree = parse(code)
    if tree is None:
        return {}
    found: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, _DEFINES):
            text = _text_of(statement, code)
            found.update(dict.fromkeys(_names_of(statement), text))
    return found


def take_out(state: EngineState | None, definitions: dict[str, str], workers: MontyWorkers) -> TakenOut:
    """Everything that the session has bound."""
    if state is None:
        return TakenOut({}, {}, [])
    found: dict[str, str | None] = {}
    worker = workers.attach(state, state.limits)
    try:
        room = MAX_VALUE_BYTES
        for name in state.names:
            with contextlib.suppress(_Unbound):
                text = _value_of(worker, name)
                found[name] = text if text is None or len(text) <= room else None
                room -= len(found[name] or "")
    finally:
        worker.close()
    values = {name: text for name, text in found.items() if text is not None}
    rest = [name for name, text in found.items() if text is None]
    kept = {name: definitions[name] for name in definitions if name in rest}
    return TakenOut(values, kept, [name for name in rest if name not in kept])


def _value_of(worker: MontyWorker, name: str) -> str | None:
    """A variable as an expression; None if it has no such form, `_Unbound` if there is no such variable."""
    try:
        snapshot = worker.show(name, ())
        dumped = worker.dump(snapshot)
        readable = _is_readable(dumped) and not stand_ins(dumped)
        value = snapshot.args[0] if readable else None
        snapshot.resume({"return_value": None})
    except engine.MontyError as error:
        if "is not defined" in str(error):
            raise _Unbound from None
        return None
    return literal(value) if readable else None


def _is_readable(dumped: bytes) -> bool:
    try:
        return check_arguments(dumped) is None
    except ValueTooLarge:
        return False


def literal(value: object) -> str | None:
    """A value as Python text that makes an equal one.

    None if the value is made of anything but built-in types, or exceeds the bound on values: its text would
    repeat each part that it shares.
    """
    try:
        check_bounds(value)
        return "".join(_literal(value, 0))
    except (_NoLiteral, RecursionError, InvalidArgument):
        return None


class _Unbound(Exception):
    """Code that would have bound a name has failed before it did."""


class _NoLiteral(Exception):
    """A value has no literal form."""


def _literal(value: object, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise _NoLiteral
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        yield repr(value)
    elif isinstance(value, float) and kind is float:
        yield repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    elif isinstance(value, dict) and kind is dict:
        yield from _enclosed("{", _pairs(value, depth + 1), "}")
    elif isinstance(value, list) and kind is list:
        yield from _enclosed("[", _items(value, depth + 1), "]")
    elif isinstance(value, tuple) and kind is tuple:
        yield from _enclosed("(", _items(value, depth + 1), ")")
    elif isinstance(value, (set, frozenset)) and kind in (set, frozenset):
        yield from _enclosed(f"{kind.__name__}([", _items(value, depth + 1), "])")
    else:
        raise _NoLiteral


def _enclosed(left: str, inside: Iterable[str], right: str) -> Iterator[str]:
    yield left
    yield from inside
    yield right


def _items(values: Iterable[object], depth: int) -> Iterator[str]:
    for value in values:
        yield from _literal(value, depth)
        yield ", "


def _pairs(values: dict[Any, Any], depth: int) -> Iterator[str]:
    for key, value in values.items():
        yield from _literal(key, depth)
        yield ": "
        yield from _literal(value, depth)
        yield ", "


def _text_of(statement: ast.stmt, code: str) -> str:
    """The source of a statement, its decorators included."""
    lines = code.encode().splitlines()
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(node.lineno for node in decorators)])
    last = statement.end_lineno or statement.lineno
    taken = lines[first - 1 : last]
    taken[-1] = taken[-1][: statement.end_col_offset]
    if first == statement.lineno:
        taken[0] = taken[0][statement.col_offset :]
    return b"\n".join(taken).decode()


def _names_of(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
