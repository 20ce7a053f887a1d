"""Special methods that the engine lets a class define and then does not call.

Code with such a class runs, and gives other results than Python: an object with `__len__` is true even when
it is empty, `+=` makes a new object. So nothing of it is run, and whoever wrote it is told.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from holdfast.errors import Code, Span
from holdfast.model.diagnostic import Diagnostic, Severity

_IGNORED: Final = frozenset({
    "__bool__", "__len__", "__ne__", "__format__", "__new__",
    "__getattr__", "__getattribute__", "__setattr__", "__delattr__",
    "__get__", "__set__", "__delete__", "__set_name__",
    "__iadd__", "__isub__", "__imul__", "__imatmul__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
})  # fmt: skip


def ignored_methods(code: str, tree: ast.Module | None) -> Iterator[Diagnostic]:
    """Why code cannot be run as it is meant, one diagnostic for each such method."""
    if tree is None or "class " not in code:
        return
    lines = code.encode().split(b"\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name in _IGNORED:
                    yield _refusal(part, lines)


def _refusal(method: ast.FunctionDef, lines: list[bytes]) -> Diagnostic:
    column = len(lines[method.lineno - 1][: method.col_offset].decode()) + 1
    return Diagnostic(
        severity=Severity.ERROR,
        code=Code.UNSUPPORTED_FEATURE,
        message=f"the sandbox's Python does not call {method.name}",
        hint='use a method with a name of its own, or engine="auto"',
        span=Span(line=method.lineno, column=column, end_line=method.lineno, end_column=column + 3),
    )
