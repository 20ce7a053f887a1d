"""Whether the keys of a program's dicts, and the items of its sets, are numbers and text only.

Theory of operation
-------------------
The engine hands a value over as a Python object, and for that it hashes keys and items of sets. Hashing a
tuple walks it as a tree, in C, holding the GIL: a key of forty tuples that hold each other twice never ends.
A value that may hold such a key is looked at in a dump first, which costs time in proportion to the session.
Most code needs no look: nothing that it uses can put an arbitrary value into a tuple or a frozenset.

Rule: everything is listed that such code may use. Whatever is not listed needs the look.
"""

from __future__ import annotations

import ast
import builtins
import math
from typing import Any, Final

from standfast.sandbox.monty.syntax import CHILDREN

_NODES: Final = frozenset({
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return,
    ast.Pass, ast.Break, ast.Continue, ast.Raise, ast.Try, ast.ExceptHandler, ast.Assert, ast.Global,
    ast.Nonlocal, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.arguments, ast.arg, ast.BoolOp,
    ast.BinOp, ast.UnaryOp, ast.NamedExpr, ast.IfExp, ast.Dict, ast.Set, ast.List, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Await, ast.Compare, ast.Call, ast.keyword,
    ast.FormattedValue, ast.JoinedStr, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred,
    ast.Name, ast.Tuple, ast.Import, ast.ImportFrom,
})  # fmt: skip
"""No classes: their methods are given slices, and their instances may be keys."""
_BUILTINS: Final = frozenset({
    "abs", "all", "any", "bin", "bool", "chr", "dict", "divmod", "filter", "float", "hash", "hex", "id",
    "int", "isinstance", "iter", "len", "list", "map", "max", "min", "next", "oct", "ord", "pow", "print",
    "range", "repr", "reversed", "round", "set", "sorted", "str", "sum",
    *(name for name, one in vars(builtins).items() if type(one) is type and issubclass(one, BaseException)),
})  # fmt: skip
_MODULES: Final = {
    "asyncio": {"gather", "run", "sleep"},
    "datetime": {"date", "datetime", "fromisoformat", "isoformat", "now", "strftime", "timedelta", "today"},
    "json": {"dumps", "loads"},
    "math": {name for name in vars(math) if not name.startswith("_")},
    "random": {"choice", "randint", "random", "sample", "shuffle", "uniform"},
    "re": {"compile", "escape", "findall", "fullmatch", "group", "match", "search", "sub"},
}
_ATTRIBUTES: Final = frozenset({
    *(name for kind in (str, int, float, list, dict, set) for name in vars(kind) if not name.startswith("_")),
    *(name for names in _MODULES.values() for name in names),
}) - {"items", "popitem"}  # fmt: skip
_UNPACKED: Final = frozenset({"enumerate", "items", "zip"})
"""Functions and methods whose tuples are gone at once where a loop unpacks them."""


def has_plain_keys(tree: ast.Module) -> bool:
    """Return whether running *tree* can hash nothing but what has no parts."""
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        kind = type(node)
        if node is None or kind is ast.Constant:
            continue
        if kind not in _NODES or not _is_plain(node, kind):
            return False
        unpacks = (kind is ast.For or kind is ast.comprehension) and _unpacks(node)
        if unpacks:
            pending += [*node.iter.args, *node.iter.keywords, getattr(node.iter.func, "value", None)]
        for name in CHILDREN[kind]:
            if not (unpacks and name == "iter"):
                part = getattr(node, name)
                pending += part if type(part) is list else [part]
    return True


def _is_plain(node: Any, kind: type) -> bool:
    """Whether a node that may be used by itself is used in a listed way."""
    if kind is ast.Name:
        return node.id in _BUILTINS or not (hasattr(builtins, node.id) or node.id.startswith("__"))
    if kind is ast.Attribute:
        return node.attr in _ATTRIBUTES
    if kind is ast.Tuple:
        return type(node.ctx) is ast.Store
    if kind is ast.arguments:
        return node.vararg is None
    if kind is ast.Import:
        return all(alias.name in _MODULES for alias in node.names)
    if kind is ast.ImportFrom:
        return all(alias.name in _MODULES.get(node.module, ()) for alias in node.names)
    return True


def _unpacks(loop: Any) -> bool:
    """Whether a loop goes through tuples that it unpacks and does not keep."""
    match loop.iter:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _UNPACKED and type(loop.target) is ast.Tuple
    return False
