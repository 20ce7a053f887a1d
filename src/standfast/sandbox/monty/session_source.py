"""The variables of a Monty session as Python source that recreates them in another engine.

Values are read one by one and written as literals. A value without a literal form (a function, a class or an
instance of it, a generator, a value that contains itself) is made by its definition instead: the text of
every top-level `def`, `class` and `import` that the session has run, which the engine above keeps.

Nothing here runs code of the session. A variable that has neither form is reported as lost, never silently
dropped.
"""

from __future__ import annotations

import ast
import contextlib
import math
from typing import Final

import msgspec

from standfast.errors import InvalidArgument, ValueTooLarge
from standfast.model.canonical import MAX_VALUE_BYTES, check_bounds
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.dump import check_arguments, stand_ins
from standfast.sandbox.monty.syntax import bound_by, parse
from standfast.sandbox.monty.workers import EngineState, MontyWorker, MontyWorkers

_MAX_DEPTH: Final = 200
_DEFINES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


class SessionSource(msgspec.Struct, frozen=True):
    """`values` are expressions by name, `definitions` texts in order, `lost` the names without either."""

    values: dict[str, str]
    definitions: dict[str, str]
    lost: list[str]

    def code(self) -> str:
        """Return code that creates the variables; its value is the list of names that it could not create."""
        names: dict[str, list[str]] = {}
        for name, text in self.definitions.items():
            names.setdefault(text, []).append(name)
        lines = [f"{name} = {text}" for name, text in self.values.items()]
        lines.append("__standfast_lost = []")
        for text, bound in names.items():
            lines += ["try:", f"    exec({text!r}, globals())"]
            lines += ["except Exception:", f"    __standfast_lost += {bound!r}"]
        return "\n".join([*lines, 'globals().pop("__standfast_lost")'])


def definitions_in(code: str) -> dict[str, str]:
    """Return the text of each definition and import at the top level of *code*, by the name that it binds."""
    if "def " not in code and "class " not in code and "import " not in code:
        return {}
    tree = parse(code)
    found: dict[str, str] = {}
    lines = code.encode().splitlines()
    for statement in tree.body if tree is not None else ():
        if isinstance(statement, _DEFINES):
            decorators = getattr(statement, "decorator_list", [])
            first = min([statement.lineno, *(node.lineno for node in decorators)])
            text = lines[first - 1 : statement.end_lineno or statement.lineno]
            text[-1] = text[-1][: statement.end_col_offset]
            if first == statement.lineno:
                text[0] = text[0][statement.col_offset :]
            found.update(dict.fromkeys(bound_by(statement), b"\n".join(text).decode()))
    return found


def session_source(
    state: EngineState | None, definitions: dict[str, str], workers: MontyWorkers
) -> SessionSource:
    """Return the source of everything that the session has bound."""
    if state is None:
        return SessionSource({}, {}, [])
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
    return SessionSource(values, kept, [name for name in rest if name not in kept])


def _value_of(worker: MontyWorker, name: str) -> str | None:
    """Return a variable as an expression, None if it has no such form; raise `_Unbound` if it is unbound."""
    text = None
    try:
        snapshot = worker.show(name, ())
        dumped = worker.dump(snapshot)
        with contextlib.suppress(ValueTooLarge):
            if check_arguments(dumped) is None and not stand_ins(dumped):
                text = literal(snapshot.args[0])
        snapshot.resume({"return_value": None})
    except engine.MontyError as error:
        if "is not defined" in str(error):
            raise _Unbound from None
        return None
    return text


def literal(value: object) -> str | None:
    """Return Python source of an equal value; None if it has other types, or exceeds the bounds."""
    try:
        check_bounds(value)
        return _literal(value, 0)
    except (_NoLiteral, RecursionError, InvalidArgument):
        return None


class _Unbound(Exception):
    """The name is unbound: the code that would have bound it failed before."""


class _NoLiteral(Exception):
    """A value has no literal form."""


def _literal(value: object, depth: int) -> str:
    kind, depth = type(value), depth + 1
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if isinstance(value, float) and kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if depth > _MAX_DEPTH:
        raise _NoLiteral
    if isinstance(value, dict) and kind is dict:
        pairs = (f"{_literal(key, depth)}: {_literal(part, depth)}, " for key, part in value.items())
        return f"{{{''.join(pairs)}}}"
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = "".join(f"{_literal(part, depth)}, " for part in value)
        if kind is list:
            return f"[{parts}]"
        if kind is tuple:
            return f"({parts})"
        if kind in (set, frozenset):
            return f"{kind.__name__}([{parts}])"
    raise _NoLiteral
