"""The subset of JSON Schema that each vendor accepts.

Rules
-----
1. A schema is changed only where the vendor would reject or ignore it, and then to an equivalent one.
2. Anthropic's grammar supports a part of JSON Schema. An unsupported constraint is moved to the description;
   a schema whose meaning would change (a map with any keys, a value of any type, a recursive type) has no
   native form, and is described to the model in words.
3. OpenAI's strict mode requires closed objects with every property required. Any other schema is sent as
   advice (`strict: false`).
4. Gemini accepts nearly everything: `$ref` must stand alone, and `const` becomes an `enum` of one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.model.canonical import Json

Schema = dict[str, Any]

_FORMATS: Final = frozenset((
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
))  # fmt: skip


def is_object(schema: Schema) -> bool:
    return schema.get("type") == "object"


# OpenAI

_STRICT_KEYWORDS: Final = frozenset((
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref",
    "$defs", "title", "description", "pattern", "format", "multipleOf", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems",
))  # fmt: skip
_STRICT_KINDS: Final = frozenset(("type", "anyOf", "$ref", "enum", "const"))
_STRICT_DEPTH: Final = 10


def resolve_root(schema: Schema) -> Schema:
    """Replace a schema that only refers to one of its definitions by that definition."""
    found = schema.get("$defs", {}).get(str(schema.get("$ref", "")).removeprefix("#/$defs/"))
    return {**found, "$defs": schema["$defs"]} if isinstance(found, dict) else schema


def openai_parameters(schema: Schema) -> Schema:
    """Return the schema of a function's parameters, which must be an object."""
    schema = resolve_root(schema)
    return schema if is_object(schema) else {"type": "object", "properties": {}}


def fits_strict(schema: Schema) -> bool:
    """Return whether OpenAI can constrain a model to the schema of an object."""
    return is_object(schema) and "anyOf" not in schema and _fits(schema, 0)


def _fits(schema: object, depth: int) -> bool:
    if not isinstance(schema, dict) or depth > _STRICT_DEPTH:
        return False
    if not (schema.keys() <= _STRICT_KEYWORDS and schema.keys() & _STRICT_KINDS):
        return False
    kinds, properties = schema.get("type", ()), schema.get("properties", {})
    if "format" in schema and schema["format"] not in _FORMATS:
        return False
    if "array" in kinds and "items" not in schema:
        return False
    if "object" in kinds or "properties" in schema:
        is_closed = schema.get("additionalProperties") is False
        if not is_closed or set(schema.get("required", ())) != set(properties):
            return False
    inner = [*properties.values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    defined = schema.get("$defs", {}).values()
    return all(_fits(each, depth + 1) for each in inner) and all(_fits(each, depth) for each in defined)


# Anthropic

_ANTHROPIC_FORMATS: Final = _FORMATS | {"uri"}
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean", "null"})
_ANNOTATIONS: Final = frozenset({"default", "discriminator", "examples", "$schema", "$id", "title"})
_ANTHROPIC_DEPTH: Final = 40


class _NoNativeForm(Exception):
    """The schema needs something that the vendor's grammar cannot express."""


def anthropic_schema(schema: Schema) -> Schema | None:
    """Return the schema in Anthropic's form; None if it has none, such as for a recursive type."""
    definitions = schema.get("$defs", {})
    mentions = {name: _references(part) for name, part in definitions.items()}
    while mentions:
        free = [name for name, names in mentions.items() if not names & mentions.keys()]
        if not free:
            return None
        for name in free:
            del mentions[name]
    try:
        found = _written({key: value for key, value in schema.items() if key != "$defs"}, 0)
        if definitions:
            found["$defs"] = {name: _written(part, 0) for name, part in definitions.items()}
    except _NoNativeForm:
        return None
    return found


def _written(schema: Schema, depth: int) -> Schema:
    if depth > _ANTHROPIC_DEPTH or not isinstance(schema, dict):
        raise _NoNativeForm
    rest = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    if "$ref" in rest:
        return {"$ref": rest["$ref"]}
    description = rest.pop("description", None)
    found = _type_of(rest, depth)
    words = [str(description)] if description else []
    if rest:
        words.append(msgspec.json.encode(rest).decode())
    if words:
        found["description"] = "\n".join(words)
    return found


def _type_of(rest: Schema, depth: int) -> Schema:
    """Write the type of a value; remove the keywords that it expresses from *rest*."""
    for key in ("enum", "const"):
        if key in rest:
            rest.pop("type", None)
            literals = rest.pop(key)
            for value in literals if isinstance(literals, list) else [literals]:
                if isinstance(value, list | dict):
                    raise _NoNativeForm
            return {key: literals}
    for key in ("anyOf", "oneOf", "allOf"):
        if key in rest:
            parts = [_written(part, depth + 1) for part in rest.pop(key)]
            return {"allOf" if key == "allOf" else "anyOf": parts}
    match rest.pop("type", None):
        case "object":
            return _object(rest, depth)
        case "array":
            if "prefixItems" in rest or not isinstance(rest.get("items"), dict):
                raise _NoNativeForm
            found: Schema = {"type": "array", "items": _written(rest.pop("items"), depth + 1)}
            if rest.get("minItems") in (0, 1):
                found["minItems"] = rest.pop("minItems")
            return found
        case str(name) if name in _SCALARS:
            known = {"format": rest.pop("format")} if rest.get("format") in _ANTHROPIC_FORMATS else {}
            return {"type": name, **known}
        case list(names) if names and _SCALARS.issuperset(names):
            return {"anyOf": [{"type": name} for name in names]}
    raise _NoNativeForm


def _object(rest: Schema, depth: int) -> Schema:
    properties = rest.pop("properties", None)
    others = rest.pop("additionalProperties", None)
    if properties is None or isinstance(others, dict) or others is True or "patternProperties" in rest:
        raise _NoNativeForm
    written = {name: _written(part, depth + 1) for name, part in properties.items()}
    found: Schema = {"type": "object", "properties": written, "additionalProperties": False}
    if "required" in rest:
        found["required"] = rest.pop("required")
    return found


def _references(part: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
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


# Google

_DROPPED: Final = frozenset({"$schema", "$comment", "$vocabulary"})
_SCHEMAS_BY_NAME: Final = frozenset(
    {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
)
_PLAIN_VALUES: Final = frozenset({"enum", "default", "examples", "example", "required", "propertyOrdering"})


def google_parameters(schema: Schema) -> Schema:
    """Return the schema of a function's parameters, which must be an object."""
    if not schema or schema.get("type") not in (None, "object"):
        return {"type": "object"}
    return {"type": "object", **google_schema(schema)}


def google_schema(schema: Json) -> Json:
    """Return the schema in Gemini's form. A property may have the name of a keyword."""
    if not isinstance(schema, dict):
        return schema
    made: Schema = {}
    for key, value in schema.items():
        if key == "const":
            made.setdefault("enum", [value])
        elif key in _PLAIN_VALUES:
            made[key] = value
        elif key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            made[key] = {name: google_schema(inner) for name, inner in value.items()}
        elif key not in _DROPPED:
            is_list = isinstance(value, list)
            made[key] = [google_schema(entry) for entry in value] if is_list else google_schema(value)
    if "$ref" not in made or "anyOf" in made or all(key.startswith("$") for key in made):
        return made
    reference = made.pop("$ref")  # beside `$ref`, Gemini accepts only keywords that start with `$`
    return {**made, "anyOf": [{"$ref": reference}]}
