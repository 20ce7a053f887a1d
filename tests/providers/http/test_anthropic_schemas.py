"""Schemas as the vendor's structured output takes them."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.providers.http.schemas import anthropic_schema


def test_a_schema_keeps_its_definitions_and_its_words() -> None:
    """Ours: references stay, a constraint without a native form is stated in the description."""
    schema = {
        "$ref": "#/$defs/Order",
        "$defs": {
            "Order": {
                "title": "Order",
                "type": "object",
                "properties": {
                    "id": {"type": "string", "format": "uuid"},
                    "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "minItems": 2},
                    "state": {"enum": ["open", "paid"]},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                },
                "required": ["id", "lines", "state"],
            },
            "Line": {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}},
        },
    }
    assert anthropic_schema(schema) == {
        "$ref": "#/$defs/Order",
        "$defs": {
            "Order": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "format": "uuid"},
                    "lines": {
                        "type": "array",
                        "items": {"$ref": "#/$defs/Line"},
                        "description": '{"minItems":2}',
                    },
                    "state": {"enum": ["open", "paid"]},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "additionalProperties": False,
                "required": ["id", "lines", "state"],
            },
            "Line": {
                "type": "object",
                "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                "additionalProperties": False,
            },
        },
    }


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        {"type": "array"},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
        {"type": "object", "properties": {"any": {}}},
        {"enum": [[1], [2]]},
        {
            "$ref": "#/$defs/Tree",
            "$defs": {
                "Tree": {
                    "type": "object",
                    "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
                }
            },
        },
    ],
)
def test_what_would_change_its_meaning_has_no_native_form(schema: dict[str, Any]) -> None:
    """Ours: a map of any keys must not become an object without any."""
    assert anthropic_schema(schema) is None


def test_a_schema_that_was_given_is_left_as_it_is() -> None:
    """Ours: a schema is sent more than once, so it must not be changed."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    assert anthropic_schema(schema) == anthropic_schema(schema)
    assert schema["required"] == ["n"]
