"""What the host reads off the code of a cell for full Python, without running or compiling any of it.

Rules
-----
1. No false alarms: a module counts as missing only where the import must fail, and syntax is Python's own.
2. Code is parsed, not compiled: a compiler can take hours for nested code.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from typing import Any, Final

from standfast.errors import Code, Span
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.cpython.failures import modules_hint
from standfast.sandbox.cpython.state import CPythonState
from standfast.sandbox.monty.cell_check import check_calls
from standfast.sandbox.monty.program import AwaitMarker, called_if_pure, called_name
from standfast.sandbox.monty.syntax import MAX_READ_CHARS, modules_of, parse

Site = tuple[int, int, int, int]
_RUNNERS: Final = frozenset({"run", "run_until_complete"})
"""Functions of asyncio that await their argument outside of a coroutine."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_GUARDS: Final = (*_FUNCTIONS, ast.ClassDef, ast.Try, ast.TryStar, ast.With, ast.If)
"""Statements inside of which an import may be meant to fail, or may never run."""
UNTYPED: Final = Diagnostic(
    severity=Severity.WARNING,
    code=Code.UNSUPPORTED_FEATURE,
    message="types were not checked: this engine has no type checker",
    hint='engine="monty" checks types',
)


def awaited_sites(code: str) -> list[Site]:
    """Return the places of the calls whose value ends up awaited."""
    if "await" not in code and "asyncio" not in code:
        return []
    tree = parse(code)
    if tree is None:
        return []
    calls = set(AwaitMarker(tree).calls)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in _RUNNERS:
            calls.update(part for part in node.args if isinstance(part, ast.Call))
    return sorted(
        (call.lineno, call.col_offset, call.end_lineno or 0, call.end_col_offset or 0) for call in calls
    )


def leaves_unchanged(code: str, before: CPythonState | None) -> bool:
    """Return whether the code can only compute a value from what the session binds.

    Operators are harmless on plain data, and so are built-in functions that the session has not redefined.
    """
    if before is not None and not before.plain:
        return False
    tree = parse(code)
    called = called_if_pure(tree) if tree is not None else None
    return called is not None and (before is None or called.isdisjoint(before.names))


def check_cell(
    code: str,
    bound: Collection[str],
    functions: CellFunctions,
    inputs: Collection[str],
    packages: tuple[str, ...],
) -> list[Diagnostic]:
    """Find wrong syntax, unknown functions, wrong arguments, missing modules and rebound inputs, by line."""
    tree = parse(code)
    if tree is None:
        try:
            if len(code) <= MAX_READ_CHARS:
                ast.parse(code)
            return []
        except SyntaxError as error:
            span = Span(line=max(1, error.lineno or 1), column=max(1, error.offset or 1))
            return [_error(Code.SYNTAX_ERROR, error.msg, span=span)]
        except ValueError as error:
            return [_error(Code.SYNTAX_ERROR, str(error))]
        except (RecursionError, MemoryError, SystemError):
            return [_error(Code.SYNTAX_ERROR, "the code is nested too deeply")]
    lines = code.split("\n")
    found = [_error(Code.SYNTAX_ERROR, what, span=_span(node, lines)) for node, what in _misplaced(tree)]
    calls = check_calls(code, tree, bound, functions, inputs)
    found += [item for item in calls if item.code != Code.UNSUPPORTED_FEATURE]  # limits of another engine
    for node, name in _missing_modules(tree, packages):
        message, hint = f"there is no module {name!r}", modules_hint(packages)
        found.append(_error(Code.UNSUPPORTED_FEATURE, message, hint, _span(node, lines)))
    return sorted(found, key=lambda item: (item.span.line, item.span.column) if item.span else (0, 0))


def _misplaced(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield statements that the parser accepts anywhere and the compiler does not."""
    pending: list[tuple[ast.AST, bool, bool]] = [(node, False, False) for node in tree.body]
    while pending:
        node, in_function, in_loop = pending.pop()
        match node:
            case ast.Return() if not in_function:
                yield node, "'return' outside function"
            case ast.Yield() | ast.YieldFrom() if not in_function:
                yield node, "'yield' outside function"
            case ast.Break() if not in_loop:
                yield node, "'break' outside loop"
            case ast.Continue() if not in_loop:
                yield node, "'continue' not properly in loop"
        if isinstance(node, _FUNCTIONS):
            in_function, in_loop = True, False
        elif isinstance(node, ast.ClassDef):
            in_function = in_loop = False
        inner = in_loop or isinstance(node, _LOOPS)
        pending += [(part, in_function, inner) for part in ast.iter_child_nodes(node)]


def _missing_modules(tree: ast.Module, packages: Collection[str]) -> Iterator[tuple[ast.AST, str]]:
    """Yield imports that must fail, with the name of the module."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, _GUARDS):
            continue
        for name in modules_of(node):
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in packages:
                yield node, name
        pending += ast.iter_child_nodes(node)


def _error(code: Code, message: str, hint: str | None = None, span: Span | None = None) -> Diagnostic:
    return Diagnostic(severity=Severity.ERROR, code=code, message=message, hint=hint, span=span)


def _span(node: Any, lines: list[str]) -> Span:
    def column(line: int, offset: int) -> int:
        """Convert an offset in bytes to a column in characters."""
        if line > len(lines):
            return offset + 1
        return len(lines[line - 1].encode()[:offset].decode("utf-8", "replace")) + 1

    end_line = node.end_lineno or node.lineno
    end_column = column(end_line, node.end_col_offset or node.col_offset)
    start_column = column(node.lineno, node.col_offset)
    return Span(line=node.lineno, column=start_column, end_line=end_line, end_column=end_column)
