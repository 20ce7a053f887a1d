"""Code that the engine accepts and runs differently from Python.

A class may define special methods that the engine does not call: an object with `__len__` is true even when
it is empty, `+=` makes a new object. Text cannot hold half of a surrogate pair: the engine puts U+FFFD in its
place. So nothing of such code is run, and whoever wrote it is told.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from standfast.errors import Code, Span
from standfast.model.diagnostic import Diagnostic, Severity

_IGNORED: Final = frozenset({
    "__bool__", "__len__", "__ne__", "__format__", "__new__",
    "__getattr__", "__getattribute__", "__setattr__", "__delattr__",
    "__get__", "__set__", "__delete__", "__set_name__",
    "__iadd__", "__isub__", "__imul__", "__imatmul__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
})  # fmt: skip


_SURROGATE: Final = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F][0-9a-fA-F]{2}")


def misread(code: str, tree: ast.Module | None) -> Iterator[Diagnostic]:
    """Why code cannot be run as it is meant, one diagnostic for each place."""
    yield from ignored_methods(code, tree)
    yield from lone_surrogates(code, tree)


def lone_surrogates(code: str, tree: ast.Module | None) -> Iterator[Diagnostic]:
    """One diagnostic for each text with half of a surrogate pair; for code that is not read, one at most."""
    if _SURROGATE.search(code) is None:
        return
    if tree is None:
        yield _surrogate_refusal(None)
        return
    lines = code.encode().split(b"\n")
    evaluates = "eval" in code or "exec" in code
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if _is_broken(node.value) or (evaluates and _SURROGATE.search(node.value)):
            column = len(lines[node.lineno - 1][: node.col_offset].decode(errors="replace")) + 1
            yield _surrogate_refusal(
                Span(line=node.lineno, column=column, end_line=node.lineno, end_column=column + 1)
            )


def _is_broken(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _surrogate_refusal(span: Span | None) -> Diagnostic:
    return Diagnostic(
        severity=Severity.ERROR,
        code=Code.UNSUPPORTED_FEATURE,
        message="the sandbox's Python has no text with a lone surrogate",
        hint='write the character itself, or its escape with eight digits; engine="auto" accepts such text',
        span=span,
    )


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
