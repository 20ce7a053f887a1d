"""Analysis of a cell's code for full Python, without running or compiling any of it.

There are no false alarms: a module is reported as missing only if its import must fail, and syntax is checked
by Python's own parser. Code is not compiled, because compiling deeply nested code can take hours.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from typing import Final

from standfast.errors import Code, Span
from standfast.model.code import Diagnostic, Severity
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.cpython.failures import modules_hint
from standfast.sandbox.cpython.state import CPythonState
from standfast.sandbox.monty.cell_check import Modules, check_calls
from standfast.sandbox.monty.program import AwaitMarker, called_if_pure, called_name
from standfast.sandbox.monty.syntax import MAX_READ_CHARS, SourceLines, parse
from standfast.sandbox.run_errors import by_line, diagnose

Site = tuple[int, int, int, int]
_RUNNERS: Final = frozenset({"run", "run_until_complete"})
"""Functions of asyncio that await their argument outside of a coroutine."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
UNTYPED: Final = Diagnostic(
    severity=Severity.WARNING,
    code=Code.UNSUPPORTED_FEATURE,
    message="types were not checked: this engine has no type checker",
    hint='engine="monty" checks types',
)


def awaited_sites(code: str) -> list[Site]:
    """Return the positions of the calls whose value is eventually awaited."""
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
    """Return whether the code can only compute a value from the session's variables, without changing any."""
    # Operators are harmless on plain data, and so are built-in functions that the session has not redefined.
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
    """Find syntax errors, unknown functions, wrong arguments, missing modules and rebound inputs, by line."""
    tree = parse(code)
    if tree is None:
        try:
            if len(code) <= MAX_READ_CHARS:
                ast.parse(code)
            return []
        except SyntaxError as error:
            span = Span(line=max(1, error.lineno or 1), column=max(1, error.offset or 1))
            return [diagnose(Code.SYNTAX_ERROR, error.msg, span)]
        except ValueError as error:
            return [diagnose(Code.SYNTAX_ERROR, str(error))]
        except (RecursionError, MemoryError, SystemError):
            return [diagnose(Code.SYNTAX_ERROR, "the code is nested too deeply")]
    lines = SourceLines(code)
    found = [diagnose(Code.SYNTAX_ERROR, what, lines.span(node)) for node, what in _misplaced(tree)]
    modules = Modules(sys.stdlib_module_names.union(packages), modules_hint(packages))
    found += check_calls(code, tree, bound, functions, inputs, modules)
    return sorted(found, key=by_line)


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
