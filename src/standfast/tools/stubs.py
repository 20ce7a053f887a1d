"""Capabilities as Python function stubs, for type checkers and for models."""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from typing import Any

from standfast.model.capability import Capability
from standfast.tools.registered_tool import RegisteredTool

_SIMPLE = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list[Any]",
    "object": "dict[str, Any]",
}


def stub_text(tools: Iterable[RegisteredTool]) -> str:
    """One `def` per capability."""
    return "\n".join(stub_of(tool) for tool in tools)


def stub_of(tool: RegisteredTool) -> str:
    return capability_stub(tool.capability, tool.signature.positional if tool.signature else None)


def capability_stub(capability: Capability, positional: int | None = None) -> str:
    """The `def` of a contract, whose first *positional* parameters alone may be passed by position."""
    schema = capability.input_schema
    if schema.get("type") == "array":
        parameters = "*args: Any"
    elif any(not name.isidentifier() or keyword.iskeyword(name) for name in schema.get("properties", {})):
        parameters = "*args: Any, **kwargs: Any"
    else:
        parameters = _parameters(schema, positional)
    returns = type_text(capability.output_schema, capability.output_schema.get("$defs", {}))
    return f"def {capability.name}({parameters}) -> {returns}: ..."


def type_text(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The Python type that a JSON Schema describes, `Any` where it has none or contains itself."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        others = {key: value for key, value in definitions.items() if key != name}
        return type_text(definitions.get(name, {}), others)
    if "enum" in schema:
        return f"Literal[{', '.join(repr(value) for value in schema['enum'])}]"
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(type_text(option, definitions) for option in schema[key]))
    match schema.get("type"):
        case "array" if isinstance(schema.get("items"), dict):
            return f"list[{type_text(schema['items'], definitions)}]"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"dict[str, {type_text(schema['additionalProperties'], definitions)}]"
        case list() as options:
            return " | ".join(_SIMPLE.get(option, "Any") for option in options)
        case str() as name:
            return _SIMPLE.get(name, "Any")
    return "Any"


def _parameters(schema: dict[str, Any], positional: int | None) -> str:
    required = set(schema.get("required", ()))
    definitions = schema.get("$defs", {})
    parts: list[str] = []
    optional_seen = False
    starred = False
    for index, (name, part) in enumerate(schema.get("properties", {}).items()):
        if not starred and (index == positional or (optional_seen and name in required)):
            parts.append("*")
            starred = True
        optional_seen |= name not in required
        parts.append(f"{name}: {type_text(part, definitions)}{'' if name in required else ' = ...'}")
    return ", ".join(parts)
