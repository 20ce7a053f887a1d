"""What is wrong with a cell, as far as its syntax tree and the contracts of functions tell.

Rules
-----
1. No false alarms. Only what fails for certain is told: a name counts as bound if anything in the code binds
   it anywhere, a function that is bound by the code or the session is not looked at, and an argument is
   judged only where it is written out.
2. Fast: one walk over the tree. Features that the engine does not have are left to it; it refuses them
   before any code runs.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator
from typing import Any, Final

from standfast.errors import Code, Span
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.monty.cell_arguments import argument_problems
from standfast.sandbox.monty.failures import MODULES
from standfast.sandbox.monty.syntax import Names, bound_by, modules_of, names_in
from standfast.tools.stubs import capability_stub

_BUILTINS: Final = frozenset(dir(builtins))
_MODULES: Final = frozenset({*MODULES.split(", "), "__future__"})
_LATE_BINDERS: Final = frozenset({"exec", "eval", "globals", "locals", "vars", "__import__"})
"""Functions through which names can be bound that no syntax shows."""
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_GUARDS: Final = (*_SCOPES, ast.Try, ast.TryStar, ast.With, ast.If)
"""Where an import may be meant to fail, or may never happen."""


class DeclaredFunctions:
    """A cell's functions for the type checker, without those that the session's own names hide."""

    def __init__(self, functions: CellFunctions, hidden: Collection[str]) -> None:
        self._functions = functions
        self._hidden = hidden

    def __contains__(self, name: object, /) -> bool:
        return name in self._functions and name not in self._hidden

    def suggest(self, name: str) -> str | None:
        return self._functions.suggest(name)

    def stubs(self) -> str:
        names = [name for name in self._functions.names() if name in self]
        return "\n".join(capability_stub(self._functions.capability(name)) for name in names)


def check_calls(
    code: str, tree: ast.Module, bound: Collection[str], functions: CellFunctions, inputs: Collection[str]
) -> list[Diagnostic]:
    """Unknown functions, wrong arguments, missing modules and rebound inputs, in the order of the lines."""
    names = names_in(code, tree)
    lines = _Columns(code)
    found: list[Diagnostic] = []
    if not names.anywhere.isdisjoint(inputs) or any(map(_is_missing, names.modules)):
        places = _Places(tree, inputs)
        found += [_read_only(node, name, lines) for node, name in places.rebound]
        found += [_no_module(node, name, lines) for node, name in places.missing_modules]
    known = {*bound, *inputs, *names.anywhere}
    may_miss = _binds_late(names) or "NameError" in code
    for call, name in names.called:
        if name in known:
            continue
        if name in functions:
            found += _wrong_arguments(call, name, functions, lines)
        elif name not in _BUILTINS and not may_miss:
            found.append(_unknown(call, name, functions, lines))
    return sorted(found, key=lambda item: (item.span.line, item.span.column) if item.span else (0, 0))


def _binds_late(names: Names) -> bool:
    """Whether names may be bound that no syntax shows."""
    return names.imports_all or any(name in _LATE_BINDERS for _, name in names.called)


def names_touched(tree: ast.Module, names: Collection[str]) -> dict[str, frozenset[str] | None]:
    """Which of *names* the code reads, with the literal keys if it reads nothing else of them."""
    keys: dict[str, set[str]] = {}
    whole: set[str] = set()
    keyed: set[ast.expr] = set()
    for node in ast.walk(tree):  # a subscript comes before what it is a subscript of
        match node:
            case ast.Subscript(
                value=ast.Name(id=name) as base, slice=ast.Constant(value=str(key)), ctx=ast.Load()
            ) if name in names:
                keyed.add(base)
                keys.setdefault(name, set()).add(key)
            case ast.Name(id=name, ctx=ast.Load()) if name in names and node not in keyed:
                whole.add(name)
    return {**{name: frozenset(seen) for name, seen in keys.items()}, **dict.fromkeys(whole)}


class _Places:
    """Where an input is bound as a global name, and where a module is imported that there is not.

    Bound at the top level, that is, or in a function that declares it global; imported where that must fail.
    """

    def __init__(self, tree: ast.Module, inputs: Collection[str]) -> None:
        self.rebound: list[tuple[ast.AST, str]] = []
        self.missing_modules: list[tuple[ast.AST, str]] = []
        self._inputs = inputs
        pending: list[tuple[ast.AST, Collection[str], bool]] = [(node, inputs, False) for node in tree.body]
        while pending:
            node, watched, guarded = pending.pop()
            self.rebound += [(node, name) for name in bound_by(node) if name in watched]
            if isinstance(node, (ast.Import, ast.ImportFrom)) and not guarded:
                self.missing_modules += [(node, name) for name in modules_of(node) if _is_missing(name)]
            pending += self._inside(node, watched, guarded)

    def _inside(
        self, node: ast.AST, watched: Collection[str], guarded: bool
    ) -> Iterator[tuple[ast.AST, Collection[str], bool]]:
        """The children, each with the names that it must not bind, and whether an import in it may fail."""
        if isinstance(node, _SCOPES):
            watched = self._declared_global(node)
        guarded = guarded or isinstance(node, _GUARDS)
        binds_nothing = isinstance(node, ast.comprehension) or (
            isinstance(node, ast.AnnAssign) and node.value is None
        )
        target = getattr(node, "target", None) if binds_nothing else None
        return ((part, watched, guarded) for part in ast.iter_child_nodes(node) if part is not target)

    def _declared_global(self, scope: ast.AST) -> frozenset[str]:
        """The inputs that a function or class declares global for itself."""
        found: set[str] = set()
        pending = list(ast.iter_child_nodes(scope))
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Global):
                found.update(name for name in node.names if name in self._inputs)
            if not isinstance(node, _SCOPES):
                pending += ast.iter_child_nodes(node)
        return frozenset(found)


def _is_missing(module: str) -> bool:
    return module.partition(".")[0] not in _MODULES


class _Columns:
    """Places of nodes, in lines and characters from 1."""

    def __init__(self, code: str) -> None:
        self._lines = None if code.isascii() else code.encode().split(b"\n")

    def span(self, node: Any) -> Span:
        end_line = node.end_lineno or node.lineno
        return Span(
            line=node.lineno,
            column=self._column(node.lineno, node.col_offset),
            end_line=end_line,
            end_column=self._column(end_line, node.end_col_offset or node.col_offset),
        )

    def _column(self, line: int, offset: int) -> int:
        if self._lines is None:
            return offset + 1
        return len(self._lines[line - 1][:offset].decode("utf-8", "replace")) + 1


def _error(code: Code, message: str, hint: str | None, span: Span) -> Diagnostic:
    return Diagnostic(severity=Severity.ERROR, code=code, message=message, hint=hint, span=span)


def _read_only(node: ast.AST, name: str, lines: _Columns) -> Diagnostic:
    message = f"{name} is an input and read-only; bind another name"
    return _error(Code.TYPE_ERROR, message, None, lines.span(node))


def _no_module(node: ast.AST, name: str, lines: _Columns) -> Diagnostic:
    hint = f"the sandbox has these modules: {MODULES}"
    return _error(Code.UNSUPPORTED_FEATURE, f"there is no module {name!r}", hint, lines.span(node))


def _unknown(call: ast.Call, name: str, functions: CellFunctions, lines: _Columns) -> Diagnostic:
    message = f"{name}() is neither defined nor a function that can be called"
    return _error(Code.UNKNOWN_TOOL, message, functions.suggest(name), lines.span(call.func))


def _wrong_arguments(
    call: ast.Call, name: str, functions: CellFunctions, lines: _Columns
) -> Iterator[Diagnostic]:
    capability = functions.capability(name)
    for node, problem in argument_problems(call, name, capability.input_schema):
        yield _error(
            Code.TYPE_ERROR, problem, capability_stub(capability).removesuffix(": ..."), lines.span(node)
        )
