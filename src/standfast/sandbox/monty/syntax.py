"""The syntax tree of guest code, and what one walk over it tells.

Rules
-----
1. Nothing here runs guest code, and nobody changes a tree: the same code is checked, then run, and read once.
2. Every node is visited once. Whatever wants to know something of all nodes asks here.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

MAX_READ_CHARS: Final = 64 << 10
"""Longer code is not read: that would cost the host more than it is worth."""
_SHORT_CHARS: Final = 4 << 10
_MAX_KNOWN: Final = 32
"""So many trees of short code are remembered, with what was read off them."""
_NO_NODES: Final = frozenset({
    "ctx", "op", "ops", "id", "attr", "arg", "name", "names", "module", "level", "kind", "type_comment",
    "conversion", "simple", "is_async", "rest", "kwd_attrs", "type_ignores",
})  # fmt: skip
CHILDREN: Final = {
    kind: tuple(name for name in kind._fields if name not in _NO_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST) and kind not in (ast.Constant, ast.MatchSingleton)
}
"""Of each kind of node, the fields in which other nodes are."""
_SCOPES: Final = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef})
_BINDERS: Final = frozenset({
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.MatchAs,
    ast.MatchStar, ast.MatchMapping,
})  # fmt: skip
"""Nodes that bind names of their own, besides the names inside of them."""
_BINDERS_FOR_A_WHILE: Final = frozenset({ast.ExceptHandler, ast.arg})
"""Those whose names end with them."""


def parse(code: str) -> ast.Module | None:
    """The syntax tree, or None of code that is too long, or that this Python cannot read.

    The engine may accept it all the same.
    """
    if len(code) > MAX_READ_CHARS:
        return None
    return _parse_short(code) if len(code) <= _SHORT_CHARS else _parse(code)


def _parse(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return None


_parse_short: Final = functools.lru_cache(_MAX_KNOWN)(_parse)


@dataclass(slots=True)
class Names:
    """What code binds, calls and imports.

    `at_top` are the names that the module's own statements bind, `anywhere` those that are bound or unbound
    in whatever scope; `called` are the calls of plain names.
    """

    tree: ast.Module
    at_top: set[str] = field(default_factory=set)
    anywhere: set[str] = field(default_factory=set)
    called: list[tuple[ast.Call, str]] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    imports_all: bool = False
    always_result: bool = False
    maybe_result: bool = False
    reads_result: bool = False
    global_result: bool = False
    defines_functions: bool = False
    defines_classes: bool = False
    calls: bool = False

    @classmethod
    def of(cls, tree: ast.Module) -> Names:
        found = cls(tree)
        for statement in tree.body:
            found._top_level(statement)
        return found

    def _top_level(self, statement: ast.stmt) -> None:
        """Walk a statement; names bound inside functions and classes belong to those, unless global."""
        inside: list[Any] = []
        self._walk([statement], inside, module_scope=True)
        if inside:
            self._walk(inside, inside, module_scope=False)
        if "result" in self.at_top:
            self.maybe_result = True
            self.always_result |= "result" in bound_directly(statement)

    def _walk(self, pending: list[Any], inside: list[Any], *, module_scope: bool) -> None:
        """Note everything in *pending*; what is in functions and classes goes to *inside*."""
        while pending:
            node = pending.pop()
            kind = type(node)
            if kind is ast.Name:
                if type(node.ctx) is ast.Load:
                    self.reads_result |= node.id == "result"
                else:
                    self.anywhere.add(node.id)
                    if module_scope and type(node.ctx) is ast.Store:
                        self.at_top.add(node.id)
            elif kind in CHILDREN:
                if kind is ast.Call:
                    self.calls = True
                    if type(node.func) is ast.Name:
                        self.called.append((node, node.func.id))
                elif kind is ast.Global:
                    self.at_top.update(node.names)
                    self.global_result |= "result" in node.names
                elif kind in _BINDERS:
                    self._note_binder(node, module_scope)
                elif kind in _BINDERS_FOR_A_WHILE:
                    self.anywhere.update(bound_by(node))
                found = pending
                if kind in _SCOPES:
                    self.defines_functions = True
                    self.defines_classes |= kind is ast.ClassDef
                    found = inside
                for name in CHILDREN[kind]:
                    part = getattr(node, name)
                    found.extend(part) if type(part) is list else found.append(part)

    def _note_binder(self, node: ast.AST, module_scope: bool) -> None:
        bound = set(bound_by(node))
        self.anywhere |= bound
        if module_scope:
            self.at_top |= bound
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.modules.update(modules_of(node))
            self.imports_all |= any(alias.name == "*" for alias in node.names)


def names_in(code: str, tree: ast.Module) -> Names:
    """What a walk over the tree of this code tells."""
    return _names_in_short(code) if len(code) <= _SHORT_CHARS else Names.of(tree)


@functools.lru_cache(_MAX_KNOWN)
def _names_in_short(code: str) -> Names:
    tree = parse(code)
    assert tree is not None
    return Names.of(tree)


def children(node: Any) -> Iterator[Any]:
    """What is inside of a node, None where something is left out. Names and constants have nothing inside."""
    for name in CHILDREN.get(type(node), ()):
        part = getattr(node, name)
        if type(part) is list:
            yield from part
        else:
            yield part


def bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds or unbinds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)) | ast.arg(arg=name):
            yield name


def bound_directly(statement: ast.stmt) -> set[str]:
    """Names that this statement binds whenever it is reached."""
    match statement:
        case ast.Assign(targets=targets):
            return {name for target in targets for name in _targets(target)}
        case ast.AnnAssign(target=target, value=ast.expr()):
            return set(_targets(target))
        case ast.AugAssign(target=target):
            return set(_targets(target))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
            return set(bound_by(statement))
    return set()


def modules_of(node: ast.AST) -> list[str]:
    """The modules that an import names; none if it is relative, which is another mistake."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
    return []


def _targets(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
