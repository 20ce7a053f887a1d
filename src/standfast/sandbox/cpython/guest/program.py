"""Compilation of guest code.

The code is changed in its syntax tree, never in its text, so that lines and columns stay as they were
written:

* the value of the last expression is assigned to a name;
* a call whose value is eventually awaited (the host sends their places) returns a `Later`;
* a name that has no known binding is looked up by a function, which requests it from the host;
* an exception handler first checks for an allocation failure, which must end the run.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Collection, Container
from types import CodeType
from typing import Any, Final

VALUE: Final = "__standfast_value__"
LATER: Final = "__standfast_later__"
LOAD: Final = "__standfast_load__"
CAUGHT: Final = "__standfast_caught__"

Site = tuple[int, int, int, int]

_NO_NODES: Final = frozenset({
    "ctx", "op", "ops", "id", "attr", "arg", "name", "names", "module", "level", "kind", "type_comment",
    "conversion", "simple", "is_async", "rest", "kwd_attrs", "type_ignores",
})  # fmt: skip
_CHILDREN: Final = {
    kind: tuple(name for name in kind._fields if name not in _NO_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST) and kind not in (ast.Constant, ast.MatchSingleton)
}
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_NAMED: Final = (*_SCOPES[:2], ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


def filename_of(code: str) -> str:
    """Return the file name that *code* is compiled under, which is derived from the code."""
    return f"<cell {zlib.crc32(code.encode()):08x}>"


def compile_cell(
    code: str, known: Container[str], inputs: Collection[str], later: Collection[Site], loads: bool
) -> CodeType:
    """Compile a cell. *known* and *inputs* are bound names; with *loads*, the host may know other names."""
    tree = ast.parse(code, filename_of(code))
    if later or loads or "except" in code:
        _change(tree, known, frozenset(inputs), frozenset(later), loads)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        named = ast.copy_location(ast.Name(id=VALUE, ctx=ast.Store()), last)
        tree.body[-1] = ast.copy_location(ast.Assign(targets=[named], value=last.value), last)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(tree, filename_of(code), "exec", flags=flags, dont_inherit=True)  # type: ignore[no-any-return]


class _Scan:
    """The names, calls and exception handlers of the code, found in one walk over its tree."""

    def __init__(self, tree: ast.Module) -> None:
        self.read: list[ast.Name] = []
        self.bound: set[str] = set()
        self.calls: list[ast.Call] = []
        self.handlers: list[ast.ExceptHandler] = []
        self.has_scopes = False
        pending: list[Any] = list(tree.body)
        while pending:
            node = pending.pop()
            kind = type(node)
            if kind is ast.Name:
                if type(node.ctx) is ast.Load:
                    self.read.append(node)
                else:
                    self.bound.add(node.id)
            elif kind in _CHILDREN:
                if isinstance(node, ast.Call):
                    self.calls.append(node)
                elif isinstance(node, ast.arg):
                    self.bound.add(node.arg)
                elif isinstance(node, (ast.Import, ast.ImportFrom)):
                    self.bound.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.MatchMapping) and node.rest:
                    self.bound.add(node.rest)
                elif isinstance(node, _NAMED) and node.name:
                    self.bound.add(node.name)
                if isinstance(node, ast.ExceptHandler):
                    self.handlers.append(node)
                self.has_scopes |= isinstance(node, _SCOPES)
                for name in _CHILDREN[kind]:
                    part = getattr(node, name, None)
                    pending.extend(part) if type(part) is list else pending.append(part)


def _change(
    tree: ast.Module, known: Container[str], inputs: frozenset[str], later: frozenset[Site], loads: bool
) -> None:
    scan = _Scan(tree)
    for call in scan.calls if later else ():
        if (call.lineno, call.col_offset, call.end_lineno or 0, call.end_col_offset or 0) in later:
            call.func = _calling(LATER, [call.func], call.func)
    asked = inputs if scan.has_scopes else frozenset()
    for name in scan.read if loads else ():
        if name.id not in scan.bound and (name.id not in known or name.id in asked):
            look_up = _calling(LOAD, [ast.copy_location(ast.Constant(value=name.id), name)], name)
            node: Any = name  # turned into a call in place
            node.__class__ = ast.Call
            node.func, node.args, node.keywords = look_up.func, look_up.args, []
    for handler in scan.handlers:
        check = ast.Expr(_calling(CAUGHT, [], handler))
        handler.body.insert(0, ast.copy_location(check, handler.body[0]))


def _calling(function: str, arguments: list[ast.expr], at: ast.AST) -> ast.Call:
    called = ast.copy_location(ast.Name(id=function, ctx=ast.Load()), at)
    return ast.copy_location(ast.Call(func=called, args=arguments, keywords=[]), at)
