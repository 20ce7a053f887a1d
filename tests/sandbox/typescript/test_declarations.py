"""Capabilities as TypeScript declarations."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.model.capability import Capability
from standfast.sandbox.typescript.script import read_script
from standfast.tools.stubs import declaration_of, declarations, overloads_of, type_of


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "number"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "null"}, "null"),
        ({"type": ["integer", "null"]}, "number | null"),
        ({"type": "string", "nullable": True}, "string | null"),
        ({"enum": ["a", 1, True, None]}, '"a" | 1 | true | null'),
        ({"const": 'say "x"'}, r'"say \"x\""'),
        ({"enum": [f"v{n}" for n in range(100)]}, "string"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "number"}]}, "string | number"),
        ({"anyOf": [{"type": "string"}, {}]}, "any"),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "(string | null)[]"),
        ({"type": "array"}, "any[]"),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
         "[string, number]"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, "[string, ...any[]]"),
        ({"type": "object"}, "Record<string, any>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "Record<string, number>"),
        ({"type": "object", "properties": {"a": {"type": "string"}, "b-c": {}}, "required": ["a"]},
         '{ a: string; "b-c"?: any }'),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/B"}},
                                         "B": {"enum": ["x"]}}}, '"x"[]'),
        ({"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"n": {"$ref": "#/$defs/T"}}}}},
         "{ n?: any }"),
        ({"$ref": "#/$defs/Nowhere"}, "any"),
        (True, "any"),
    ],
)  # fmt: skip
def test_a_schema_becomes_a_type(schema: Any, text: str) -> None:
    """Seed: the types of JSON Schema are shown in the model's language."""
    assert type_of(schema) == text


def test_a_capability_becomes_a_declaration(functions: Any) -> None:
    """Seed: a stub shows the object form."""
    assert declaration_of(functions.capability("add")) == (
        "/** Add two numbers. */\ndeclare function add(args: { a: number; b?: number }): Promise<number>;"
    )
    text = declarations(map(functions.capability, functions.names()))
    assert "declare function listed(...args: any[]): Promise<any>;" in text
    assert 'how?: "fast" | "slow"' in text
    assert text.count("declare function") == 6


@pytest.mark.parametrize(
    ("schema", "signature"),
    [
        ({"type": "object", "properties": {}}, "f()"),
        ({"type": "object", "additionalProperties": True}, "f(args?: { [key: string]: any })"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "f(args?: { a?: string })"),
    ],
)
def test_arguments_that_may_be_omitted_are_optional(schema: dict[str, Any], signature: str) -> None:
    """Ours: `f()` is valid if nothing is required."""
    capability = Capability(name="f", description="", input_schema=schema, output_schema={"type": "string"})
    assert declaration_of(capability) == f"declare function {signature}: Promise<string>;"


def test_descriptions_cannot_end_the_comment() -> None:
    """Ours: a tool author's text stays inside the comment."""
    capability = Capability(
        name="f",
        description="Does */ things.\nIn one line.\n\nNot shown.",
        input_schema={
            "type": "object",
            "properties": {"a": {"type": "string", "description": "The a.\n*/ x"}, "*/": {"type": "string"}},
        },
    )
    text = declaration_of(capability)
    assert text.startswith(
        "/**\n * Does * / things. In one line.\n * @param args.a The a. * / x\n */\ndeclare"
    )
    assert text.count("*/") == 2  # the end of the comment, and a quoted key


def test_the_compiler_is_given_both_call_forms(functions: Any) -> None:
    """Ours: positional arguments are valid too."""
    assert overloads_of(functions.capability("add")).splitlines() == [
        "declare function add(args: { a: number; b?: number }): Promise<number>;",
        "declare function add(arg0: number, arg1?: number): Promise<number>;",
    ]


def test_every_declaration_is_valid_typescript(functions: Any) -> None:
    """Ours: the parser of programs accepts the text, and removes all of it."""
    read = read_script(declarations(map(functions.capability, functions.names())))
    assert set(read.javascript) <= set("; \n/*.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert read.bound == frozenset()
