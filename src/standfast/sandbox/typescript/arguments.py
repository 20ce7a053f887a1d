"""Checks whether the arguments of a call in TypeScript can be what a function takes; see `schema_fit`.

One plain object whose keys are all parameters, with every required one among them, holds the arguments by
name; anything else is arguments by position. An object that is neither is reported as what it most likely
was meant to be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from standfast.sandbox.schema_fit import OPEN, Schema, SchemaFit
from standfast.sandbox.typescript.source import CASTS, Source

if TYPE_CHECKING:
    from tree_sitter import Node

Problem = tuple["Node", str]
_MAX_DEPTH: Final = 8
_CONTAINERS: Final = {"array": "array", "object": "object", "string": "string", "template_string": "string"}
_WRAPPERS: Final = (*CASTS, "non_null_expression", "parenthesized_expression")
_NUMBER: Final = re.compile(r"(?:0|[1-9][\d_]*)(?:\.[\d_]*)?(?:[eE][+-]?\d+)?|\.\d+")
_MAX_NUMBER_CHARS: Final = 40


def argument_problems(source: Source, call: Node, name: str, schema: Schema) -> Iterator[Problem]:
    """Yield what is wrong with the arguments of *call*, and where."""
    properties = schema.get("properties")
    arguments = call.child_by_field_name("arguments")
    if schema.get("type") == "array" or not isinstance(properties, dict) or arguments is None:
        return
    if arguments.type != "arguments":
        return
    given = [part for part in arguments.named_children if part.type != "comment"]
    fit = _TypeScriptFit(source, schema)
    if len(given) != 1:
        if not any(part.type == "spread_element" for part in given):
            yield from _by_position(call, name, given, fit)
        return
    node = fit.literal(given[0])  # it may be an object with all of them
    parts = fit.pairs(node)
    if node.type != "object":
        if fit.json_type(node) is not None:
            yield from _by_position(call, name, given, fit)
    elif parts is None:
        return
    elif parts.keys() <= fit.properties.keys() and set(fit.required) <= parts.keys():
        yield from _judged(name, parts.items(), fit)
    elif by_position := list(_by_position(call, name, given, fit)):
        yield from _meant_by_name(call, name, parts, fit) or by_position


def _meant_by_name(call: Node, name: str, parts: dict[str, Node], fit: _TypeScriptFit) -> list[Problem]:
    """Return what is wrong with an object if it was meant to hold the arguments by name."""
    first = next(iter(fit.properties.values()), None)
    if parts.keys().isdisjoint(fit.properties) and fit.may_be_object(first):
        return []
    unknown = [
        (node, f"{name}() has no parameter {key}") for key, node in parts.items() if key not in fit.properties
    ]
    missing = [key for key in fit.required if key not in parts]
    lacking = [(call, f"{name}() is missing {', '.join(missing)}")] if missing else []
    known = [(key, node) for key, node in parts.items() if key in fit.properties]
    return [*unknown, *lacking, *_judged(name, known, fit)]


def _by_position(call: Node, name: str, given: list[Node], fit: _TypeScriptFit) -> Iterator[Problem]:
    names = list(fit.properties)
    if len(given) > len(names):
        takes = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
        yield call, f"{name}() takes {takes}, {len(given)} {'was' if len(given) == 1 else 'were'} given"
        return
    placed = list(zip(names, given, strict=False))
    missing = [key for key in fit.required if key not in names[: len(given)]]
    if missing:
        yield call, f"{name}() is missing {', '.join(missing)}"
    yield from _judged(name, placed, fit)


def _judged(name: str, parts: Iterable[tuple[str, Node]], fit: _TypeScriptFit) -> Iterator[Problem]:
    for key, node in parts:
        if problem := fit.problem(node, fit.properties[key]):
            yield node, f"{name}(): {key} {problem}"


class _TypeScriptFit(SchemaFit["Node"]):
    """Reads the literals of TypeScript, for one contract."""

    def __init__(self, source: Source, root: Schema) -> None:
        super().__init__(root)
        self.properties: dict[str, Any] = root["properties"]
        self.required: list[str] = [key for key in root.get("required", ()) if key in self.properties]
        self._source = source

    def may_be_object(self, schema: Any, depth: int = 0) -> bool:
        """Return whether a schema accepts objects of some kind."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return True
        if "$ref" in schema:
            return self.may_be_object(self.definition(schema), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list):
                return any(self.may_be_object(option, depth + 1) for option in options)
        kinds = schema.get("type", "object")
        return "object" in (kinds if isinstance(kinds, list) else [kinds])

    def literal(self, node: Node) -> Node:
        while node.type in _WRAPPERS and node.named_children and node.named_children[0].type != "comment":
            node = node.named_children[0]
        return node

    def scalar(self, node: Node) -> Any:
        match node.type:
            case "string" if all(part.type == "string_fragment" for part in node.named_children):
                return "".join(self._source.text(part) for part in node.named_children)
            case "number":
                return _number(self._source.text(node))
            case "true" | "false" | "null":
                return {"true": True, "false": False, "null": None}[node.type]
            case "unary_expression":
                operator, operand = node.children[:2]
                if operator.type == "-" and operand.type == "number":
                    value = _number(self._source.text(operand))
                    return value if value is OPEN else -value
        return OPEN

    def container_type(self, node: Node) -> str | None:
        return _CONTAINERS.get(node.type)

    def items(self, node: Node) -> list[Node] | None:
        if node.type != "array":
            return None
        return [part for part in node.named_children if part.type not in ("comment", "spread_element")]

    def pairs(self, node: Node) -> dict[str, Node] | None:
        if node.type != "object":
            return None
        pairs: dict[str, Node] = {}
        for part in node.named_children:
            if part.type == "comment":
                continue
            if part.type == "shorthand_property_identifier":
                pairs[self._source.text(part)] = part
                continue
            key, value = part.child_by_field_name("key"), part.child_by_field_name("value")
            if part.type != "pair" or key is None or value is None:
                return None
            name = self._source.text(key) if key.type == "property_identifier" else None
            if key.type == "string":
                name = self.scalar(key)
            if not isinstance(name, str):
                return None
            pairs[name] = value
        return pairs

    def text(self, node: Node) -> str:
        return " ".join(self._source.text(node).split())

    def quoted(self, value: Any) -> str:
        return json.dumps(value)


def _number(text: str) -> Any:
    if len(text) > _MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return OPEN
    value = float(text.replace("_", ""))
    return int(value) if value.is_integer() else value
