"""The syntax tree of guest code, and facts derived from it. Nothing here runs code or changes a tree.

* *Names*: one walk finds the names that the code binds, calls and imports.
* *Misread code*: the engine accepts some code but runs it differently from Python. It does not call some
  special methods: an object with `__len__` is true even if it is empty, and `+=` creates a new object. It
  replaces half of a surrogate pair by U+FFFD. Such code is rejected before any of it runs.
* *Plain keys*: to convert a value to a Python object, the engine hashes keys and items of sets. Hashing a
  tuple visits all its parts, in C, holding the GIL: for a key of forty nested tuples, each of which holds the
  next one twice, this never ends. A value that may contain such a key is first checked in a dump, which is
  slow. Most code needs no check: it uses only the syntax and functions listed here, which cannot put an
  arbitrary value into a tuple or a frozenset.
"""

from __future__ import annotations

import ast
import builtins
import functools
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from standfast.errors import Code, Span
from standfast.model.code import Diagnostic
from standfast.sandbox.run_errors import diagnose

MAX_READ_CHARS: Final = 64 << 10
"""Longer code is not parsed, because that would take the host too long."""
_SHORT_CHARS: Final = 4 << 10
_MAX_KNOWN: Final = 32
"""The number of syntax trees of short code that are cached, with their names."""
_NO_NODES: Final = frozenset({
    "ctx", "op", "ops", "id", "attr", "arg", "name", "names", "module", "level", "kind", "type_comment",
    "conversion", "simple", "is_async", "rest", "kwd_attrs", "type_ignores",
})  # fmt: skip
CHILDREN: Final = {
    kind: tuple(name for name in kind._fields if name not in _NO_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST) and kind not in (ast.Constant, ast.MatchSingleton)
}
"""The fields of each kind of node that hold other nodes."""
_SCOPES: Final = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef})
_BINDERS: Final = frozenset({
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.MatchAs,
    ast.MatchStar, ast.MatchMapping,
})  # fmt: skip
"""Nodes that bind names themselves, besides those that their parts bind."""
_BINDERS_FOR_A_WHILE: Final = frozenset({ast.ExceptHandler, ast.arg})
"""Those whose names are unbound at their end."""


_IGNORED: Final = frozenset({
    "__bool__", "__len__", "__ne__", "__format__", "__new__",
    "__getattr__", "__getattribute__", "__setattr__", "__delattr__",
    "__get__", "__set__", "__delete__", "__set_name__",
    "__iadd__", "__isub__", "__imul__", "__imatmul__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
})  # fmt: skip
_SURROGATE: Final = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F][0-9a-fA-F]{2}")
_PLAIN_NODES: Final = frozenset({
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return,
    ast.Pass, ast.Break, ast.Continue, ast.Raise, ast.Try, ast.ExceptHandler, ast.Assert, ast.Global,
    ast.Nonlocal, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.arguments, ast.arg, ast.BoolOp,
    ast.BinOp, ast.UnaryOp, ast.NamedExpr, ast.IfExp, ast.Dict, ast.Set, ast.List, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Await, ast.Compare, ast.Call, ast.keyword,
    ast.FormattedValue, ast.JoinedStr, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred,
    ast.Name, ast.Tuple, ast.Import, ast.ImportFrom,
})  # fmt: skip
"""Classes are not included: their methods receive slices, and their instances may be keys."""
_PLAIN_BUILTINS: Final = frozenset({
    "abs", "all", "any", "bin", "bool", "chr", "dict", "divmod", "filter", "float", "hash", "hex", "id",
    "int", "isinstance", "iter", "len", "list", "map", "max", "min", "next", "oct", "ord", "pow", "print",
    "range", "repr", "reversed", "round", "set", "sorted", "str", "sum",
    *(name for name, one in vars(builtins).items() if type(one) is type and issubclass(one, BaseException)),
})  # fmt: skip
_PLAIN_MODULES: Final = {
    "asyncio": {"gather", "run", "sleep"},
    "datetime": {"date", "datetime", "fromisoformat", "isoformat", "now", "strftime", "timedelta", "today"},
    "json": {"dumps", "loads"},
    "math": {name for name in vars(math) if not name.startswith("_")},
    "random": {"choice", "randint", "random", "sample", "shuffle", "uniform"},
    "re": {"compile", "escape", "findall", "fullmatch", "group", "match", "search", "sub"},
}
_PLAIN_ATTRIBUTES: Final = frozenset({
    *(name for kind in (str, int, float, list, dict, set) for name in vars(kind) if not name.startswith("_")),
    *(name for names in _PLAIN_MODULES.values() for name in names),
}) - {"items", "popitem"}  # fmt: skip
_UNPACKED: Final = frozenset({"enumerate", "items", "zip"})
"""Functions and methods whose tuples are not kept if a loop unpacks them."""


_NEWLINE: Final = re.compile(rb"\r\n?|\n")

Site = tuple[int, int]
"""The start and the end of a node, in bytes from the start of the code."""


class SourceLines:
    """Converts positions in code. Python and the engine count columns in bytes, users in characters."""

    def __init__(self, code: str) -> None:
        self.data = code.encode()
        self._starts = [0, *(match.end() for match in _NEWLINE.finditer(self.data))]

    def site(self, node: ast.stmt | ast.expr) -> Site:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column

    def column(self, line: int, offset: int) -> int:
        """Convert an *offset* in bytes into a column: characters, counted from 1."""
        start = self._starts[line - 1]
        return len(self.data[start : start + offset].decode("utf-8", "replace")) + 1

    def span(self, node: Any) -> Span:
        end_line, end_offset = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return Span(
            line=node.lineno,
            column=self.column(node.lineno, node.col_offset),
            end_line=end_line,
            end_column=self.column(end_line, end_offset),
        )


def parse(code: str) -> ast.Module | None:
    """Return the syntax tree; None for code that is too long, or that this Python cannot parse."""
    if len(code) > MAX_READ_CHARS:
        return None
    return _parse_short(code) if len(code) <= _SHORT_CHARS else _parse(code)


def _parse(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return None


_parse_short: Final = functools.lru_cache(_MAX_KNOWN)(_parse)


class Names(msgspec.Struct):
    """The names that code binds, calls and imports.

    `at_top` are the names that the module's own statements bind, `anywhere` those that are bound or unbound
    in any scope; `called` are the calls of plain names.
    """

    tree: ast.Module
    at_top: set[str] = msgspec.field(default_factory=set)
    anywhere: set[str] = msgspec.field(default_factory=set)
    called: list[tuple[ast.Call, str]] = msgspec.field(default_factory=list)
    modules: set[str] = msgspec.field(default_factory=set)
    imports_all: bool = False
    always_result: bool = False
    maybe_result: bool = False
    reads_result: bool = False
    global_result: bool = False
    defines_functions: bool = False
    defines_classes: bool = False
    calls: bool = False

    def __post_init__(self) -> None:
        """Walk the tree; names bound inside functions and classes belong to those, unless global."""
        for statement in self.tree.body:
            inside: list[Any] = []
            self._walk([statement], inside, module_scope=True)
            if inside:
                self._walk(inside, inside, module_scope=False)
            if "result" in self.at_top:
                self.maybe_result = True
                self.always_result |= "result" in bound_directly(statement)

    def _walk(self, pending: list[Any], inside: list[Any], *, module_scope: bool) -> None:
        """Record the nodes in *pending*; append the bodies of functions and classes to *inside*."""
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
                    bound = set(bound_by(node))
                    self.anywhere |= bound
                    if module_scope:
                        self.at_top |= bound
                    if kind is ast.Import or kind is ast.ImportFrom:
                        self.modules.update(modules_of(node))
                        self.imports_all |= any(alias.name == "*" for alias in node.names)
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


def names_in(code: str, tree: ast.Module) -> Names:
    """Return the names of *code*, whose tree is *tree*."""
    return _names_in_short(code) if len(code) <= _SHORT_CHARS else Names(tree)


@functools.lru_cache(_MAX_KNOWN)
def _names_in_short(code: str) -> Names:
    tree = parse(code)
    assert tree is not None
    return Names(tree)


def children(node: Any) -> Iterator[Any]:
    """Yield the child nodes of a node, None for an omitted one. Names and constants have none."""
    for name in CHILDREN.get(type(node), ()):
        part = getattr(node, name)
        if type(part) is list:
            yield from part
        else:
            yield part


def bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node itself binds or unbinds."""
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
    """Return the names that this statement binds whenever it is reached."""
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
    """Return the modules that an import names; () for a relative import, which is reported elsewhere."""
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


def misread(code: str, tree: ast.Module | None) -> Iterator[Diagnostic]:
    """Yield a diagnostic wherever the engine would run *code* differently; without a *tree*, at most one."""
    methods, surrogates = tree is not None and "class " in code, _SURROGATE.search(code) is not None
    if not methods and not surrogates:
        return
    lines = SourceLines(code)
    nodes = list(ast.walk(tree)) if tree is not None else []
    for node in nodes if methods else ():
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name in _IGNORED:
                    what = f"the sandbox's Python does not call {part.name}"
                    advice = 'use a method with a name of its own, or engine="auto"'
                    yield diagnose(Code.UNSUPPORTED_FEATURE, what, _beginning(part, lines, 3), advice)
    message = "the sandbox's Python has no text with a lone surrogate"
    hint = 'write the character itself, or its escape with eight digits; engine="auto" accepts such text'
    if tree is None:
        yield diagnose(Code.UNSUPPORTED_FEATURE, message, hint=hint)
    evaluates = "eval" in code or "exec" in code
    for node in nodes if surrogates else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            broken = not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)
            if broken or (evaluates and _SURROGATE.search(text)):
                yield diagnose(Code.UNSUPPORTED_FEATURE, message, _beginning(node, lines, 1), hint)


def _beginning(node: ast.Constant | ast.FunctionDef, lines: SourceLines, width: int) -> Span:
    column = lines.column(node.lineno, node.col_offset)
    return Span(line=node.lineno, column=column, end_line=node.lineno, end_column=column + width)


def has_plain_keys(tree: ast.Module) -> bool:
    """Return whether running *tree* can only hash values without parts."""
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        kind = type(node)
        if node is None or kind is ast.Constant:
            continue
        if kind not in _PLAIN_NODES or not _is_plain(node, kind):
            return False
        unpacks = False
        if kind is ast.For or kind is ast.comprehension:
            match node.iter:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    unpacks = name in _UNPACKED and type(node.target) is ast.Tuple
        if unpacks:  # the loop unpacks tuples that it does not keep
            pending += [*node.iter.args, *node.iter.keywords, getattr(node.iter.func, "value", None)]
        for field_name in CHILDREN[kind]:
            if not (unpacks and field_name == "iter"):
                part = getattr(node, field_name)
                pending += part if type(part) is list else [part]
    return True


def _is_plain(node: Any, kind: type) -> bool:
    """Return whether a node of a listed kind is used in one of the listed ways."""
    if kind is ast.Name:
        return node.id in _PLAIN_BUILTINS or not (hasattr(builtins, node.id) or node.id.startswith("__"))
    if kind is ast.Attribute:
        return node.attr in _PLAIN_ATTRIBUTES
    if kind is ast.Tuple:
        return type(node.ctx) is ast.Store
    if kind is ast.arguments:
        return node.vararg is None
    if kind is ast.Import:
        return all(alias.name in _PLAIN_MODULES for alias in node.names)
    if kind is ast.ImportFrom:
        return all(alias.name in _PLAIN_MODULES.get(node.module, ()) for alias in node.names)
    return True
