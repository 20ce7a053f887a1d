"""Schemas in the form that the vendor's structured output accepts."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.providers.http.schemas import anthropic_schema


def test_definitions_are_kept_and_unsupported_constraints_become_descriptions() -> None:
    """Ours: references stay; a constraint without a native form is stated in the description."""
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
def test_a_schema_whose_meaning_would_change_has_no_native_form(schema: dict[str, Any]) -> None:
    """Ours: a map with arbitrary keys must not become an object without keys."""
    assert anthropic_schema(schema) is None


def test_the_given_schema_is_not_modified() -> None:
    """Ours: a schema is sent more than once."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    assert anthropic_schema(schema) == anthropic_schema(schema)
    assert schema["required"] == ["n"]
