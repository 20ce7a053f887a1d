"""A JSON schema as the vendor's structured output takes it.

Rules
-----
1. The vendor's grammar knows a part of JSON Schema. A constraint that it does not know is told in the
   description; whoever asked checks the answer anyway.
2. What would change its meaning without a word (a map with any keys, a value of any kind, a type that holds
   itself) is not narrowed down: there is no native form of such a schema, and the model is told it in words.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

_FORMATS: Final = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"]
)
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean", "null"})
_SILENT: Final = frozenset({"default", "discriminator", "examples", "$schema", "$id", "title"})
_MAX_DEPTH: Final = 40

Schema = dict[str, Any]


class _Inexpressible(Exception):
    """The schema says something that the native form cannot."""


def native_schema(schema: Schema) -> Schema | None:
    """The schema in the vendor's form; None if it has none."""
    definitions = schema.get("$defs", {})
    try:
        _refuse_cycles(definitions)
        found = _written({key: value for key, value in schema.items() if key != "$defs"}, 0)
        if definitions:
            found["$defs"] = {name: _written(part, 0) for name, part in definitions.items()}
    except _Inexpressible:
        return None
    return found


def told_schema(schema: Schema) -> str:
    """The schema in words, for a model that cannot be held to it."""
    text = msgspec.json.encode(schema).decode()
    return f"Your final answer must be one JSON value that fits this JSON Schema, and nothing else:\n{text}"


def _written(schema: Schema, depth: int) -> Schema:
    if depth > _MAX_DEPTH or not isinstance(schema, dict):
        raise _Inexpressible
    rest = {key: value for key, value in schema.items() if key not in _SILENT}
    if "$ref" in rest:
        return {"$ref": rest["$ref"]}
    description = rest.pop("description", None)
    found = _kind(rest, depth)
    words = [str(description)] if description else []
    if rest:
        words.append(msgspec.json.encode(rest).decode())
    if words:
        found["description"] = "\n".join(words)
    return found


def _kind(rest: Schema, depth: int) -> Schema:
    """What the value may be; takes out of *rest* all that it says."""
    for key in ("enum", "const"):
        if key in rest:
            rest.pop("type", None)
            return {key: _literals(rest.pop(key))}
    for key in ("anyOf", "oneOf", "allOf"):
        if key in rest:
            parts = [_written(part, depth + 1) for part in rest.pop(key)]
            return {"allOf" if key == "allOf" else "anyOf": parts}
    match rest.pop("type", None):
        case "object":
            return _object(rest, depth)
        case "array":
            return _array(rest, depth)
        case str(name) if name in _SCALARS:
            known = {"format": rest.pop("format")} if rest.get("format") in _FORMATS else {}
            return {"type": name, **known}
        case list(names) if names and _SCALARS.issuperset(names):
            return {"anyOf": [{"type": name} for name in names]}
    raise _Inexpressible


def _object(rest: Schema, depth: int) -> Schema:
    properties = rest.pop("properties", None)
    others = rest.pop("additionalProperties", None)
    if properties is None or isinstance(others, dict) or others is True or "patternProperties" in rest:
        raise _Inexpressible
    written = {name: _written(part, depth + 1) for name, part in properties.items()}
    found: Schema = {"type": "object", "properties": written, "additionalProperties": False}
    if "required" in rest:
        found["required"] = rest.pop("required")
    return found


def _array(rest: Schema, depth: int) -> Schema:
    if "prefixItems" in rest or not isinstance(rest.get("items"), dict):
        raise _Inexpressible
    found: Schema = {"type": "array", "items": _written(rest.pop("items"), depth + 1)}
    if rest.get("minItems") in (0, 1):
        found["minItems"] = rest.pop("minItems")
    return found


def _literals(given: Any) -> Any:
    for value in given if isinstance(given, list) else [given]:
        if isinstance(value, list | dict):
            raise _Inexpressible
    return given


def _refuse_cycles(definitions: dict[str, Schema]) -> None:
    """Refuse a type that holds itself; the vendor's grammar has no such thing."""
    mentions = {name: _names_in(part) for name, part in definitions.items()}
    while mentions:
        free = [name for name, names in mentions.items() if not names & mentions.keys()]
        if not free:
            raise _Inexpressible
        for name in free:
            del mentions[name]


def _names_in(part: Any) -> set[str]:
    """The definitions that a schema refers to."""
    found: set[str] = set()
    pending = [part]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                found.add(value["$ref"].rpartition("/")[2])
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return found
