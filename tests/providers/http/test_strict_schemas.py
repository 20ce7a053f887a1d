"""Schemas that OpenAI enforces strictly."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.providers.http.schemas import fits_strict


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def nested(depth: int) -> dict[str, Any]:
    schema = closed()
    for _ in range(depth):
        schema = closed(inner=schema)
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        closed(),
        closed(a={"type": "string", "description": "A.", "format": "uuid"}, b={"enum": ["x", "y"]}),
        closed(a={"type": ["integer", "null"], "minimum": 0}, b={"type": "array", "items": closed()}),
        closed(a={"anyOf": [closed(), {"type": "null"}]}),
        {**closed(a={"$ref": "#/$defs/A"}), "$defs": {"A": closed(b={"type": "boolean"})}},
        nested(9),
    ],
    ids=["empty", "plain", "nullable", "union", "definitions", "deep"],
)
def test_a_closed_schema_of_supported_keywords_is_strict(schema: dict[str, Any]) -> None:
    """Ours: a schema that the provider can enforce is sent as strict."""
    assert fits_strict(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {**closed(a={"type": "string"}), "required": []},
        closed(a={}),
        closed(a=True),
        closed(a={"type": "array"}),
        closed(a={"type": "object", "additionalProperties": {"type": "string"}}),
        closed(a={"type": "string", "default": "x"}),
        closed(a={"type": "string", "format": "uri"}),
        closed(a={"allOf": [closed()]}),
        {**closed(), "anyOf": [closed()]},
        {**closed(), "$defs": {"A": {"type": "object"}}},
        nested(12),
    ],
)
def test_a_schema_beyond_strict_mode_is_only_advisory(schema: dict[str, Any]) -> None:
    """Ours: the API refuses to enforce these schemas, but they still guide the model."""
    assert not fits_strict(schema)
