"""What the host reads off code before it runs, for the guest and for itself. Nothing here runs any of it."""

from __future__ import annotations

import ast
from typing import Final

from standfast.sandbox.cpython.state import SessionState
from standfast.sandbox.monty.program import AwaitMarker, called_if_pure, called_name
from standfast.sandbox.monty.syntax import parse

Site = tuple[int, int, int, int]
_RUNNERS: Final = frozenset({"run", "run_until_complete"})
"""Functions of asyncio that take one thing to await, outside of any coroutine."""


def awaited_sites(code: str) -> list[Site]:
    """Where calls are whose value ends up awaited."""
    if "await" not in code and "asyncio" not in code:
        return []
    tree = parse(code)
    if tree is None:
        return []
    calls = set(AwaitMarker(tree).calls)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in _RUNNERS:
            calls.update(part for part in node.args if isinstance(part, ast.Call))
    return sorted(_site(call) for call in calls)


def leaves_unchanged(code: str, before: SessionState | None) -> bool:
    """Whether the code can do nothing but compute a value from what there is.

    Operators are harmless on plain data, and so are built-in functions that the session has not redefined.
    """
    if before is not None and not before.plain:
        return False
    tree = parse(code)
    called = called_if_pure(tree) if tree is not None else None
    return called is not None and (before is None or called.isdisjoint(before.names))


def _site(call: ast.Call) -> Site:
    return (call.lineno, call.col_offset, call.end_lineno or 0, call.end_col_offset or 0)
