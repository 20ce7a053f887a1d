"""Whether the arguments of a call, as they are written, can be what a function takes.

Rules
-----
1. No false alarms: what is not written out, and what a schema leaves open, fits. A schema's `format` may
   stand for a type that takes more than text, and the properties of a pydantic model (each has a `title`)
   are converted by it, so neither is judged.
2. An argument is judged by its JSON type, by `enum` and `const`, and part by part where it is a list or a
   dict.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, Final

Schema = dict[str, Any]
Problem = tuple[ast.AST, str]
_OPEN: Final = object()
"""A value that is not written out."""
_MAX_DEPTH: Final = 8
_SHOWN_CHARS: Final = 60
_NAMES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_WRITTEN_OUT: Final = frozenset({
    ast.Constant, ast.UnaryOp, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.DictComp, ast.JoinedStr,
})  # fmt: skip
"""The kinds of nodes that tell anything of their value."""


def argument_problems(call: ast.Call, name: str, schema: Schema) -> Iterator[Problem]:
    """What is wrong with the arguments of *call*, and where."""
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
    fit = _Fit(schema)
    for key, node in given:
        if key in properties and (problem := fit.problem(node, properties[key])):
            yield node, f"{name}(): {key} {problem}"


def _misnamed(call: ast.Call, name: str, schema: Schema, taken: set[str]) -> Iterator[Problem]:
    """Keywords that there are not, or that have a value by position already."""
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    for keyword in call.keywords:
        if keyword.arg in taken:
            yield keyword, f"{name}() got multiple values for {keyword.arg}"
        elif keyword.arg is not None and closed and keyword.arg not in schema["properties"]:
            yield keyword, f"{name}() has no parameter {keyword.arg}"


class _Fit:
    """Judges what is written against the schemas of one contract."""

    def __init__(self, root: Schema) -> None:
        self._definitions: dict[str, Any] = root.get("$defs") or {}

    def problem(self, node: ast.expr, schema: Any, depth: int = 0) -> str | None:
        """Why the node cannot be what *schema* describes; None if it can."""
        if type(node) not in _WRITTEN_OUT or depth > _MAX_DEPTH:
            return None
        if not isinstance(schema, dict) or "format" in schema:
            return None
        if "$ref" in schema:
            name = str(schema["$ref"]).removeprefix("#/$defs/")
            return self.problem(node, self._definitions.get(name), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list):
                return self._of_options(node, options, depth)
        if _may_be_none(schema) and isinstance(node, ast.Constant) and node.value is None:
            return None
        found = self._of_value(node, schema) or self._of_type(node, schema)
        return found or self._of_parts(node, schema, depth)

    def _of_options(self, node: ast.expr, options: list[Any], depth: int) -> str | None:
        problems = [self.problem(node, option, depth + 1) for option in options]
        if not problems or None in problems:
            return None
        return problems[0] if len(set(problems)) == 1 else f"is {_shown(node)}, which fits none of its types"

    def _of_value(self, node: ast.expr, schema: Schema) -> str | None:
        allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if not isinstance(allowed, list) or (value := _scalar(node)) is _OPEN:
            return None
        if any(type(value) is type(item) and value == item for item in allowed):
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value in allowed:
            return None
        return f"is {value!r}, not one of {', '.join(map(repr, allowed))}"

    def _of_type(self, node: ast.expr, schema: Schema) -> str | None:
        wanted = schema.get("type")
        if wanted is None or (given := _json_type(node)) is None:
            return None
        types = wanted if isinstance(wanted, list) else [wanted]
        if given in types or (given == "integer" and "number" in types):
            return None
        if given == "number" and "integer" in types and _is_whole(node):
            return None
        return f"is {_shown(node)}, not {' or '.join(map(str, types))}"

    def _of_parts(self, node: ast.expr, schema: Schema, depth: int) -> str | None:
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) if "prefixItems" not in schema:
                items = schema.get("items")
                return self._first(((f"[{i}]", part, items) for i, part in enumerate(parts)), depth)
            case ast.Dict(keys=keys):
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                if len(names) == len(keys) and all(isinstance(name, str) for name in names):
                    return self._of_dict(dict(zip(names, node.values, strict=True)), schema, depth)
        return None

    def _of_dict(self, parts: dict[Any, ast.expr], schema: Schema, depth: int) -> str | None:
        properties = schema.get("properties") or {}
        if any(isinstance(part, dict) and "title" in part for part in properties.values()):
            return None
        if missing := [key for key in schema.get("required", ()) if key not in parts]:
            return f"is missing {missing[0]!r}"
        others = None if schema.get("patternProperties") else schema.get("additionalProperties")
        if others is False and (unknown := [key for key in parts if key not in properties]):
            return f"has no place for {unknown[0]!r}"
        wanted = ((f"[{key!r}]", part, properties.get(key, others)) for key, part in parts.items())
        return self._first(wanted, depth)

    def _first(self, parts: Iterable[tuple[str, ast.expr, Any]], depth: int) -> str | None:
        for place, node, schema in parts:
            if problem := self.problem(node, schema, depth + 1):
                return f"at {place} {problem}"
        return None


def _may_be_none(schema: Schema) -> bool:
    return bool(schema.get("nullable")) or schema.get("default", _OPEN) is None


def _json_type(node: ast.expr) -> str | None:
    """The JSON type of what is written, if it can be told."""
    match node:
        case ast.List() | ast.Tuple() | ast.ListComp():
            return "array"
        case ast.Dict() | ast.DictComp():
            return "object"
        case ast.JoinedStr():
            return "string"
    return _NAMES.get(type(_scalar(node)))


def _scalar(node: ast.expr) -> Any:
    """The value of a literal, `_OPEN` if it is something else."""
    match node:
        case ast.Constant(value=value) if type(value) in _NAMES:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return _OPEN if isinstance(value, bool) else -value
    return _OPEN


def _is_whole(node: ast.expr) -> bool:
    value = _scalar(node)
    return isinstance(value, float) and value.is_integer()


def _shown(node: ast.expr) -> str:
    """What is written, in short."""
    text = ast.unparse(node)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
