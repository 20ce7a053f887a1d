"""Whether the arguments of a call in Python code can be what a function takes; see `schema_fit`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, Final

from standfast.sandbox.schema_fit import OPEN, Schema, SchemaFit

Problem = tuple[ast.AST, str]
_SCALARS: Final = (str, bool, int, float, type(None))
_CONTAINERS: Final = {
    ast.List: "array", ast.Tuple: "array", ast.ListComp: "array",
    ast.Dict: "object", ast.DictComp: "object", ast.JoinedStr: "string",
}  # fmt: skip
_LITERALS: Final = frozenset({ast.Constant, ast.UnaryOp, *_CONTAINERS})


def argument_problems(call: ast.Call, name: str, schema: Schema) -> Iterator[Problem]:
    """Yield what is wrong with the arguments of `call`, and the node that has the problem."""
    properties = schema.get("properties")
    if schema.get("type") == "array" or not isinstance(properties, dict):
        return
    names = list(properties)
    spread = ast.Starred in map(type, call.args)
    by_name = [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg is not None]
    if not spread and len(call.args) > len(names):
        takes = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
        were = "was" if len(call.args) == 1 else "were"
        yield call, f"{name}() takes {takes}, {len(call.args)} {were} given"
        return
    by_position = [] if spread else list(zip(names, call.args, strict=False))
    given = [*by_position, *by_name]
    if by_name:
        yield from _misnamed(call, name, schema, {key for key, _ in by_position})
    if not spread and len(by_name) == len(call.keywords):
        given_names = {key for key, _ in given}
        if missing := [key for key in schema.get("required", ()) if key not in given_names]:
            yield call, f"{name}() is missing {', '.join(missing)}"
    fit = _PythonFit(schema)
    for key, node in given:
        if key in properties and (problem := fit.problem(node, properties[key])):
            yield node, f"{name}(): {key} {problem}"


def _misnamed(call: ast.Call, name: str, schema: Schema, taken: set[str]) -> Iterator[Problem]:
    """Yield the keywords that do not exist, or that have a value by position already."""
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    for keyword in call.keywords:
        if keyword.arg in taken:
            yield keyword, f"{name}() got multiple values for {keyword.arg}"
        elif keyword.arg is not None and closed and keyword.arg not in schema["properties"]:
            yield keyword, f"{name}() has no parameter {keyword.arg}"


class _PythonFit(SchemaFit[ast.expr]):
    """Reads the literals of Python."""

    def literal(self, node: ast.expr) -> ast.expr | None:
        return node if type(node) in _LITERALS else None

    def scalar(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value) if type(value) in _SCALARS:
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return OPEN if isinstance(value, bool) else -value
        return OPEN

    def container_type(self, node: ast.expr) -> str | None:
        return _CONTAINERS.get(type(node))

    def items(self, node: ast.expr) -> Iterable[ast.expr] | None:
        return node.elts if isinstance(node, (ast.List, ast.Tuple)) else None

    def pairs(self, node: ast.expr) -> dict[str, ast.expr] | None:
        if not isinstance(node, ast.Dict):
            return None
        names = [
            key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
        return dict(zip(names, node.values, strict=True)) if len(names) == len(node.keys) else None

    def text(self, node: ast.expr) -> str:
        return ast.unparse(node)

    def quoted(self, value: Any) -> str:
        return repr(value)
