"""JSON Schema as Gemini takes it: almost all of it as it is.

Rules
-----
1. A schema is changed only where Gemini would refuse or ignore it, and then into one that means the same:
   `$ref` stands alone, `const` is an `enum` of one. Only what constrains nothing is left out.
2. A property that is called like a keyword is a property.
"""

from __future__ import annotations

from typing import Any, Final

from standfast.model.canonical import Json

Schema = dict[str, Any]

_LEFT_OUT: Final = frozenset({"$schema", "$comment", "$vocabulary"})
_NAMED: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_VALUES: Final = frozenset({"enum", "default", "examples", "example", "required", "propertyOrdering"})


def parameters_schema(schema: Schema) -> Schema:
    """The schema of a function's parameters, which must be an object's."""
    kind = schema.get("type")
    if kind not in (None, "object") or not schema:
        return {"type": "object"}
    return {"type": "object", **accepted(schema)}


def accepted(schema: Json) -> Json:
    """A schema that Gemini takes."""
    if not isinstance(schema, dict):
        return schema
    made: Schema = {}
    for key, value in schema.items():
        if key == "const":
            made.setdefault("enum", [value])
        elif key not in _LEFT_OUT:
            made[key] = _below(key, value)
    return _with_ref_alone(made)


def _below(key: str, value: Json) -> Json:
    """What stands under a keyword: schemas by name, plain values, or schemas."""
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: accepted(schema) for name, schema in value.items()}
    return [accepted(entry) for entry in value] if isinstance(value, list) else accepted(value)


def _with_ref_alone(schema: Schema) -> Schema:
    """Beside `$ref`, Gemini takes only what starts with `$`."""
    others = [key for key in schema if not key.startswith("$")]
    if "$ref" not in schema or not others or "anyOf" in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**rest, "anyOf": [{"$ref": schema["$ref"]}]}
