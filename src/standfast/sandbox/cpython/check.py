"""What is wrong with a cell for full Python, found without running or even compiling any of it.

Rules
-----
1. No false alarms: a module counts as missing only where the import must fail, and syntax is Python's own.
2. Code is parsed, not compiled: nested code can make a compiler work for hours.
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
from standfast.sandbox.monty.cell_check import check_calls
from standfast.sandbox.monty.syntax import MAX_READ_CHARS, modules_of, parse

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_GUARDS: Final = (*_FUNCTIONS, ast.ClassDef, ast.Try, ast.TryStar, ast.With, ast.If)
"""Where an import may be meant to fail, or may never happen."""
_UNTYPED: Final = Diagnostic(
    severity=Severity.WARNING,
    code=Code.UNSUPPORTED_FEATURE,
    message="types were not checked: this engine has no type checker",
    hint='engine="monty" checks types',
)


def check_cell(
    code: str,
    bound: Collection[str],
    functions: CellFunctions,
    inputs: Collection[str],
    packages: tuple[str, ...],
) -> list[Diagnostic]:
    """Syntax, unknown functions, wrong arguments, missing modules and rebound inputs, by their lines."""
    tree = parse(code)
    if tree is None:
        return _syntax(code) if len(code) <= MAX_READ_CHARS else []
    lines = code.split("\n")
    found = [_error(Code.SYNTAX_ERROR, what, None, _place(node, lines)) for node, what in misplaced(tree)]
    calls = check_calls(code, tree, bound, functions, inputs)
    found += [item for item in calls if item.code != Code.UNSUPPORTED_FEATURE]  # what another engine lacks
    for node, name in missing_modules(tree, packages):
        message = f"there is no module {name!r}"
        found.append(_error(Code.UNSUPPORTED_FEATURE, message, modules_hint(packages), _place(node, lines)))
    return sorted(found, key=lambda item: (item.span.line, item.span.column) if item.span else (0, 0))


def untyped() -> Diagnostic:
    """Says that a type checker would have been asked, had there been one."""
    return _UNTYPED


def misplaced(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Statements that the parser takes anywhere and Python does not."""
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


def missing_modules(tree: ast.Module, packages: Collection[str]) -> Iterator[tuple[ast.AST, str]]:
    """Imports that must fail, and of what."""
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


def _syntax(code: str) -> list[Diagnostic]:
    """Why the code cannot be parsed."""
    try:
        ast.parse(code)
    except SyntaxError as error:
        span = Span(line=max(1, error.lineno or 1), column=max(1, error.offset or 1))
        return [_error(Code.SYNTAX_ERROR, error.msg, None, span)]
    except ValueError as error:
        return [_error(Code.SYNTAX_ERROR, str(error), None, None)]
    except (RecursionError, MemoryError, SystemError):
        return [_error(Code.SYNTAX_ERROR, "the code is nested too deeply", None, None)]
    return []


def _error(code: Code, message: str, hint: str | None, span: Span | None) -> Diagnostic:
    return Diagnostic(severity=Severity.ERROR, code=code, message=message, hint=hint, span=span)


def _place(node: Any, lines: list[str]) -> Span:
    end_line = node.end_lineno or node.lineno
    return Span(
        line=node.lineno,
        column=_column(lines, node.lineno, node.col_offset),
        end_line=end_line,
        end_column=_column(lines, end_line, node.end_col_offset or node.col_offset),
    )


def _column(lines: list[str], line: int, offset: int) -> int:
    if line > len(lines):
        return offset + 1
    return len(lines[line - 1].encode()[:offset].decode("utf-8", "replace")) + 1
