"""Whether the arguments of a call, as they are written, can be what a function takes.

Theory of operation
-------------------
One plain object whose keys are all parameters, and all required ones among them, is named arguments;
anything else is arguments by position. An object that is neither one nor the other is told as what it most
likely was meant to be.

Rules
-----
1. No false alarms: what is not written out, and what a schema leaves open, fits. A schema's `format` may
   stand for a type that takes more than text, and the properties of a pydantic model (each has a `title`)
   are converted by it, so neither is judged.
2. An argument is judged by its JSON type, by `enum` and `const`, and part by part where it is an array or
   an object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from standfast.sandbox.typescript.source import Source

if TYPE_CHECKING:
    from tree_sitter import Node

Schema = dict[str, Any]
Problem = tuple["Node", str]
_OPEN: Final = object()
"""A value that is not written out."""
_MAX_DEPTH: Final = 8
_SHOWN_CHARS: Final = 60
_NAMES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_WRAPPERS: Final = (
    "as_expression",
    "satisfies_expression",
    "non_null_expression",
    "parenthesized_expression",
)
_NUMBER: Final = re.compile(r"(?:0|[1-9][\d_]*)(?:\.[\d_]*)?(?:[eE][+-]?\d+)?|\.\d+")
_MAX_NUMBER_CHARS: Final = 40


def argument_problems(source: Source, call: Node, name: str, schema: Schema) -> Iterator[Problem]:
    """What is wrong with the arguments of *call*, and where."""
    properties = schema.get("properties")
    arguments = call.child_by_field_name("arguments")
    if schema.get("type") == "array" or not isinstance(properties, dict) or arguments is None:
        return
    if arguments.type != "arguments":
        return
    given = [part for part in arguments.named_children if part.type != "comment"]
    fit = _Fit(source, schema)
    if len(given) == 1:
        yield from _one_argument(call, name, given[0], fit)
    elif not any(part.type == "spread_element" for part in given):
        yield from _by_position(call, name, given, fit)


def _one_argument(call: Node, name: str, argument: Node, fit: _Fit) -> Iterator[Problem]:
    """One argument may be an object with all of them."""
    node = _unwrapped(argument)
    if node.type != "object":
        if fit.json_type(node) is not None:
            yield from _by_position(call, name, [argument], fit)
        return
    parts = fit.parts_of(node)
    if parts is None:
        return
    if parts.keys() <= fit.properties.keys() and set(fit.required) <= parts.keys():
        yield from _judged(name, parts.items(), fit)
    elif by_position := list(_by_position(call, name, [argument], fit)):
        yield from _meant_by_name(call, name, parts, fit) or by_position


def _meant_by_name(call: Node, name: str, parts: dict[str, Node], fit: _Fit) -> list[Problem]:
    """What is wrong with an object if it was meant to hold the arguments by name."""
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


def _by_position(call: Node, name: str, given: list[Node], fit: _Fit) -> Iterator[Problem]:
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


def _judged(name: str, parts: Iterable[tuple[str, Node]], fit: _Fit) -> Iterator[Problem]:
    for key, node in parts:
        if problem := fit.problem(node, fit.properties[key]):
            yield node, f"{name}(): {key} {problem}"


class _Fit:
    """Judges what is written against the schemas of one contract."""

    def __init__(self, source: Source, root: Schema) -> None:
        self.properties: dict[str, Any] = root["properties"]
        self.required: list[str] = [key for key in root.get("required", ()) if key in self.properties]
        self._source = source
        self._definitions: dict[str, Any] = root.get("$defs") or {}

    def problem(self, node: Node, schema: Any, depth: int = 0) -> str | None:
        """Why the node cannot be what *schema* describes; None if it can."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or "format" in schema:
            return None
        node = _unwrapped(node)
        if "$ref" in schema:
            return self.problem(node, self._referred(schema), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list):
                return self._of_options(node, options, depth)
        if node.type == "null" and _may_be_null(schema):
            return None
        found = self._of_value(node, schema) or self._of_type(node, schema)
        return found or self._of_parts(node, schema, depth)

    def may_be_object(self, schema: Any, depth: int = 0) -> bool:
        """Whether a schema takes objects of some kind."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return True
        if "$ref" in schema:
            return self.may_be_object(self._referred(schema), depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list):
                return any(self.may_be_object(option, depth + 1) for option in options)
        kinds = schema.get("type", "object")
        return "object" in (kinds if isinstance(kinds, list) else [kinds])

    def json_type(self, node: Node) -> str | None:
        """The JSON type of what is written, if it can be told."""
        match node.type:
            case "array":
                return "array"
            case "object":
                return "object"
            case "string" | "template_string":
                return "string"
        return _NAMES.get(type(self._scalar(node)))

    def parts_of(self, node: Node) -> dict[str, Node] | None:
        """The values of an object by their keys; None if not all keys are written out."""
        parts: dict[str, Node] = {}
        for part in node.named_children:
            if part.type == "comment":
                continue
            if part.type == "shorthand_property_identifier":
                parts[self._source.text(part)] = part
                continue
            key, value = part.child_by_field_name("key"), part.child_by_field_name("value")
            name = self._key(key) if part.type == "pair" and key is not None else None
            if name is None or value is None:
                return None
            parts[name] = value
        return parts

    def _key(self, node: Node) -> str | None:
        if node.type == "property_identifier":
            return self._source.text(node)
        value = self._scalar(node) if node.type == "string" else None
        return value if isinstance(value, str) else None

    def _referred(self, schema: Schema) -> Any:
        return self._definitions.get(str(schema["$ref"]).removeprefix("#/$defs/"))

    def _of_options(self, node: Node, options: list[Any], depth: int) -> str | None:
        problems = [self.problem(node, option, depth + 1) for option in options]
        if not problems or None in problems:
            return None
        only = len(set(problems)) == 1
        return problems[0] if only else f"is {self._shown(node)}, which fits none of its types"

    def _of_value(self, node: Node, schema: Schema) -> str | None:
        allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if not isinstance(allowed, list) or (value := self._scalar(node)) is _OPEN:
            return None
        if any(type(value) is type(item) and value == item for item in allowed):
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value in allowed:
            return None
        return f"is {self._shown(node)}, not one of {', '.join(map(json.dumps, allowed))}"

    def _of_type(self, node: Node, schema: Schema) -> str | None:
        wanted = schema.get("type")
        if wanted is None or (given := self.json_type(node)) is None:
            return None
        types = wanted if isinstance(wanted, list) else [wanted]
        if given in types or (given == "integer" and "number" in types):
            return None
        return f"is {self._shown(node)}, not {' or '.join(map(str, types))}"

    def _of_parts(self, node: Node, schema: Schema, depth: int) -> str | None:
        if node.type == "array" and "prefixItems" not in schema:
            parts = [part for part in node.named_children if part.type not in ("comment", "spread_element")]
            items = schema.get("items")
            return self._first(((f"[{index}]", part, items) for index, part in enumerate(parts)), depth)
        if node.type == "object" and (values := self.parts_of(node)) is not None:
            return self._of_object(values, schema, depth)
        return None

    def _of_object(self, parts: dict[str, Node], schema: Schema, depth: int) -> str | None:
        properties = schema.get("properties") or {}
        if any(isinstance(part, dict) and "title" in part for part in properties.values()):
            return None
        if missing := [key for key in schema.get("required", ()) if key not in parts]:
            return f"is missing {json.dumps(missing[0])}"
        others = None if schema.get("patternProperties") else schema.get("additionalProperties")
        if others is False and (unknown := [key for key in parts if key not in properties]):
            return f"has no place for {json.dumps(unknown[0])}"
        wanted = ((f"[{json.dumps(key)}]", part, properties.get(key, others)) for key, part in parts.items())
        return self._first(wanted, depth)

    def _first(self, parts: Iterable[tuple[str, Node, Any]], depth: int) -> str | None:
        for place, node, schema in parts:
            if problem := self.problem(node, schema, depth + 1):
                return f"at {place} {problem}"
        return None

    def _scalar(self, node: Node) -> Any:
        """The value of a literal, `_OPEN` if it is something else."""
        match node.type:
            case "string":
                return _string(node, self._source)
            case "number":
                return _number(self._source.text(node))
            case "true" | "false" | "null":
                return {"true": True, "false": False, "null": None}[node.type]
            case "unary_expression":
                operator, operand = node.child(0), node.child(1)
                if (
                    operator is not None
                    and operator.type == "-"
                    and operand is not None
                    and operand.type == "number"
                ):
                    value = _number(self._source.text(operand))
                    return value if value is _OPEN else -value
        return _OPEN

    def _shown(self, node: Node) -> str:
        """What is written, in short."""
        text = " ".join(self._source.text(node).split())
        return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _unwrapped(node: Node) -> Node:
    """An expression without parentheses and casts around it."""
    while node.type in _WRAPPERS and node.named_children and node.named_children[0].type != "comment":
        node = node.named_children[0]
    return node


def _string(node: Node, source: Source) -> Any:
    """The text of a string literal; one with escapes is left open."""
    fragments = node.named_children
    if all(part.type == "string_fragment" for part in fragments):
        return "".join(source.text(part) for part in fragments)
    return _OPEN


def _number(text: str) -> Any:
    if len(text) > _MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return _OPEN
    value = float(text.replace("_", ""))
    return int(value) if value.is_integer() else value


def _may_be_null(schema: Schema) -> bool:
    return bool(schema.get("nullable")) or schema.get("default", _OPEN) is None
