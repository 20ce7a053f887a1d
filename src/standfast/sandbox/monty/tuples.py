"""Whether guest code may nest tuples.

Theory of operation
-------------------
The engine hands a value over as a Python object, and for that it hashes the keys of dicts and the items of
sets. Hashing a tuple walks it as a tree, in C, holding the GIL: a key of forty tuples that hold each other
twice would never be done. Such a value must be found while it is still the engine's, in a dump, which costs
some time. Most code needs no look: it has no way to put a tuple into a tuple.

Rule: what is not known to be harmless may nest tuples.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from standfast.sandbox.monty.syntax import CHILDREN

_NAMES: Final = frozenset({
    "accumulate", "args", "batched", "combinations", "combinations_with_replacement", "eval", "exec",
    "getattr", "groupby", "items", "locals", "most_common", "namedtuple", "pairwise", "partial",
    "permutations", "popitem", "product", "starmap", "tee", "tuple", "type", "wait", "zip", "zip_longest",
})  # fmt: skip
"""Functions, methods and attributes that give tuples of any values, or reach others by their names."""
_UNPACKED: Final = frozenset({"enumerate", "items", "zip"})
"""Those whose tuples are gone at once where a loop unpacks them."""
_LOOPS: Final = (ast.For, ast.comprehension)


def may_nest_tuples(tree: ast.Module) -> bool:
    """Whether running *tree* could make a tuple that holds a tuple."""
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind is ast.Name:
            if node.id in _NAMES:
                return True
        elif kind in CHILDREN:
            if _makes_tuple(node, kind):
                return True
            if kind in _LOOPS and _unpacks(node):
                pending += [*node.iter.args, *node.iter.keywords, getattr(node.iter.func, "value", None)]
                pending += [part for name in CHILDREN[kind] if name != "iter" for part in _listed(node, name)]
            else:
                for name in CHILDREN[kind]:
                    pending += _listed(node, name)
    return False


def _makes_tuple(node: Any, kind: type) -> bool:
    """Whether a node by itself can make a tuple of any values."""
    if kind is ast.Tuple:
        return type(node.ctx) is ast.Load
    if kind is ast.Attribute:
        return node.attr in _NAMES
    if kind is ast.arguments:
        return node.vararg is not None
    if kind is ast.Import or kind is ast.ImportFrom:
        return any(alias.name == "*" or alias.name in _NAMES for alias in node.names)
    return False


def _listed(node: Any, name: str) -> list[Any]:
    part = getattr(node, name)
    return part if type(part) is list else [part]


def _unpacks(loop: Any) -> bool:
    """Whether a loop goes through tuples that it unpacks and does not keep."""
    match loop.iter:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _UNPACKED and type(loop.target) is ast.Tuple
    return False
