"""Which JSON Schemas OpenAI can hold a model to, and how a schema is made to start as it wants.

Rules
-----
1. Strict mode knows a part of JSON Schema: every object is closed, everything in it is required, and there is
   no keyword beyond those here. A schema that goes further is sent all the same, as advice (`strict: false`).
2. Whatever the mode, a schema is that of an object.
"""

from __future__ import annotations

from typing import Any, Final

_KNOWN: Final = frozenset(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "$ref",
        "$defs",
        "title",
        "description",
        "pattern",
        "format",
        "multipleOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minItems",
        "maxItems",
    ]
)
_FORMATS: Final = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]
)
_SAYS_WHAT: Final = frozenset(("type", "anyOf", "$ref", "enum", "const"))
_MAX_DEPTH: Final = 10
_DEFINITION: Final = "#/$defs/"


def fits_strict(schema: dict[str, Any]) -> bool:
    """Whether the model can be held to that schema of an object."""
    return is_object(schema) and "anyOf" not in schema and _fits(schema, 0)


def is_object(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "object"


def opened(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, with the definition that it only refers to in its place."""
    name = str(schema.get("$ref", "")).removeprefix(_DEFINITION)
    found = schema.get("$defs", {}).get(name)
    if not isinstance(found, dict):
        return schema
    return {**found, "$defs": schema["$defs"]}


def _fits(schema: object, depth: int) -> bool:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return False
    if not (schema.keys() <= _KNOWN and schema.keys() & _SAYS_WHAT):
        return False
    if not _plain(schema):
        return False
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    defined = schema.get("$defs", {}).values()
    return all(_fits(each, depth + 1) for each in inner) and all(_fits(each, depth) for each in defined)


def _plain(schema: dict[str, Any]) -> bool:
    """Whether what the schema says of itself is allowed: closed objects, items for arrays, known formats."""
    kinds = schema.get("type", ())
    if "format" in schema and schema["format"] not in _FORMATS:
        return False
    if "array" in kinds and "items" not in schema:
        return False
    if "object" not in kinds and "properties" not in schema:
        return True
    required = set(schema.get("required", ()))
    return schema.get("additionalProperties") is False and required == set(schema.get("properties", {}))
