"""Capabilities as Python function stubs, for type checkers and for models."""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from typing import Any

from standfast.model.capability import Capability
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.typescript_stubs import MAX_LITERALS, SchemaTypes

_SIMPLE = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
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
    returns = PythonTypes(capability.output_schema).text(capability.output_schema)
    return f"def {capability.name}({parameters}) -> {returns}: ..."


class PythonTypes(SchemaTypes):
    """The Python types of one schema, `Any` where there is none or where one contains itself."""

    any_type, null_type = "Any", "None"

    def object_type(self, schema: dict[str, Any], wanted: str, definition: str | None) -> str:
        return "dict[str, Any]"

    def literals(self, values: list[Any]) -> list[str]:
        if 0 < len(values) <= MAX_LITERALS:
            return [f"Literal[{', '.join(map(repr, values))}]"]
        return ["str" if values and all(isinstance(value, str) for value in values) else "Any"]

    def all_of(self, schemas: list[Any], wanted: str) -> list[str]:
        return ["Any"]

    def typed(self, schema: dict[str, Any], kind: Any, wanted: str) -> str:
        if kind == "array":
            first = schema.get("prefixItems")
            items = self.union(first if isinstance(first, list) else [schema.get("items")], wanted)
            return f"list[{' | '.join(items)}]"
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"dict[str, {self.text(schema['additionalProperties'], wanted)}]"
        return _SIMPLE.get(kind, "Any") if isinstance(kind, str) else "Any"


def _parameters(schema: dict[str, Any], positional: int | None) -> str:
    required = set(schema.get("required", ()))
    types = PythonTypes(schema)
    parts: list[str] = []
    optional_seen = False
    starred = False
    for index, (name, part) in enumerate(schema.get("properties", {}).items()):
        if not starred and (index == positional or (optional_seen and name in required)):
            parts.append("*")
            starred = True
        optional_seen |= name not in required
        parts.append(f"{name}: {types.text(part)}{'' if name in required else ' = ...'}")
    return ", ".join(parts)
