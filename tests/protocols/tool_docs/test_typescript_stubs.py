"""Tools as TypeScript declarations, in the prompt of a model that writes TypeScript."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from typing import Any, Literal

import pytest
import tree_sitter_typescript
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tool_guide import catalog_of, many, raw
from tree_sitter import Language as Grammar
from tree_sitter import Node, Parser

from standfast import RunContext, tool
from standfast.model.capability import ToolAvailability, auto_approval
from standfast.model.code import Language
from standfast.protocols.tool_docs.stub_writer import TypeScriptWriter
from standfast.protocols.tool_docs.tool_guide import discovery, guide, signature_of
from standfast.tools.stubs import declaration_of, declarations, overloads_of, type_of

TYPESCRIPT = Language.TYPESCRIPT


@tool(side_effect="external_system", approval="manual")
def refund(order_id: str, cents: int) -> str:
    """Pay an order back."""
    return ""


@dataclasses.dataclass
class Line:
    product: str
    count: int = 1


@dataclasses.dataclass
class Order:
    """What a customer has ordered."""

    number: str
    lines: list[Line]
    parent: Order | None = None


@tool(side_effect="read")
def find_orders(text: str, *, state: Literal["open", "paid"] = "open", limit: int = 10) -> list[Order]:
    """Find orders.

    Only describe_tool shows this.

    Args:
        text: words of the order
            or its number
    """
    return []


@tool(side_effect="write", approval=auto_approval("True"))
def store_order(order: Order) -> None:
    """Store an order."""


def faults_of(text: str) -> list[str]:
    """Return the errors that the TypeScript grammar finds in a text."""
    tree = Parser(Grammar(tree_sitter_typescript.language_typescript())).parse(text.encode())
    return [_describe(node) for node in _walk(tree.root_node) if node.is_error or node.is_missing]


def _walk(node: Node) -> list[Node]:
    return [node, *(inner for child in node.children for inner in _walk(child))]


def _describe(node: Node) -> str:
    return f"{node.start_point.row + 1}:{node.start_point.column + 1} {node.text!r}"


def functions_of(text: str) -> list[str]:
    return re.findall(r"^declare function (\w+)\(", text, re.M)


def signature(schema: Any, output: Any = None) -> str:
    """Return the stub of a function `f` with one parameter `x` of this schema."""
    inputs = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return signature_of(raw("f", inputs, output=output), TYPESCRIPT)


# Signatures


def test_a_tool_is_a_declared_function_with_a_comment() -> None:
    """Seed: tools are functions with typed stubs in the prompt, as `.d.ts` for TypeScript."""
    assert signature_of(refund.registered, TYPESCRIPT) == (
        "/** Pay an order back. A person is asked first. */\n"
        "declare function refund(args: { order_id: string; cents: number }): Promise<string>;"
    )


def test_objects_are_interfaces_and_parameters_are_described() -> None:
    """Ours: the stub shows the fields of arguments and results, including optional ones."""
    assert (
        signature_of(find_orders.registered, TYPESCRIPT)
        == """\
/** What a customer has ordered. */
interface Order {
  number: string;
  lines: Line[];
  parent?: Order | null;
}

interface Line {
  product: string;
  count?: number;
}

/**
 * Find orders.
 * @param args.text words of the order or its number
 * @param [args.state="open"]
 * @param [args.limit=10]
 */
declare function find_orders(args: {
  text: string;
  state?: "open" | "paid";
  limit?: number;
}): Promise<Order[]>;"""
    )


def test_an_interface_is_written_only_once() -> None:
    """Ours: every character of the prompt costs tokens."""
    writer = TypeScriptWriter()
    assert "interface Order {" in writer.write(find_orders.registered)
    assert writer.write(store_order.registered) == (
        "/** Store an order. May ask a person first. */\n"
        "declare function store_order(args: { order: Order }): Promise<null>;"
    )


def test_two_types_with_the_same_name_get_different_names() -> None:
    """Ours: tools from different sources may use the same type name."""

    def item(kind: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"item": {"$ref": "#/$defs/Item"}},
            "$defs": {
                "Item": {"type": "object", "properties": {"id": {"$ref": "#/$defs/Id"}}},
                "Id": {"type": kind},
            },
        }

    writer = TypeScriptWriter()
    texts = [
        writer.write(raw(name, item(kind)))
        for name, kind in [("a", "string"), ("b", "integer"), ("c", "string")]
    ]
    assert "interface Item {" in texts[0]
    assert "interface BItem {" in texts[1]
    assert texts[2] == "declare function c(args?: { item?: Item }): Promise<any>;"


def test_an_interface_does_not_take_the_name_of_a_built_in() -> None:
    """Ours: an interface named Date would be merged with the built-in one."""
    date = {
        "type": "object",
        "title": "Date",
        "properties": {"day": {"type": "string", "description": "1-31"}},
    }
    assert signature(date) == (
        "interface FDate {\n  day?: string;  // 1-31\n}\n\n"
        "declare function f(args: { x: FDate }): Promise<any>;"
    )


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "number"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"anyOf": [{"type": "string"}, {}]}, "any"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "number"),
        ({"allOf": [{"type": "integer"}]}, "number"),
        ({"allOf": [{"type": "string"}, {"enum": ["a", "b"]}]}, 'string & ("a" | "b")'),
        ({"const": 3}, "3"),
        ({"enum": ["a", 'b"', None, True]}, '"a" | "b\\"" | null | true'),
        ({"enum": [str(n) for n in range(200)]}, "string"),
        ({"enum": [0.5, -1]}, "0.5 | -1"),
        ({"type": "string", "nullable": True}, "string | null"),
        ({"enum": [{"a": 1}]}, "any"),
        ({"type": "array"}, "any[]"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "(string | null)[]"),
        ({"type": "array", "items": {"enum": ["a | b"]}}, '"a | b"[]'),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "string[][]"),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, "[number]"),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, "[number, ...any[]]"),
        ({"items": {"type": "string"}}, "string[]"),
        ({"type": "object"}, "Record<string, any>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "Record<string, number>"),
        ({"$ref": "#/$defs/Missing"}, "any"),
        ({"$ref": "#"}, "any"),
        ({"type": "odd"}, "any"),
        (True, "any"),
    ],
    ids=str,
)
def test_schemas_are_shown_as_typescript_types(schema: Any, kind: str) -> None:
    """Ours: the known parts of a type are shown, the rest is any."""
    assert signature(schema, output=schema if isinstance(schema, dict) else {}) == (
        f"declare function f(args: {{ x: {kind} }}): Promise<{kind if isinstance(schema, dict) else 'any'}>;"
    )


def test_recursive_types_are_supported() -> None:
    """Bug: a recursive schema must not recurse for ever, and neither must a long chain of definitions."""
    tree = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/Tree"}}]}
    chain = {
        f"C{n}": {"type": "object", "properties": {"next": {"$ref": f"#/$defs/C{(n + 1) % 600}"}}}
        for n in range(600)
    }
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/Tree"}, "chain": {"$ref": "#/$defs/C0"}},
        "$defs": {"Tree": tree, **chain},
    }
    text = signature_of(raw("f", schema), TYPESCRIPT)
    assert faults_of(text) == []
    assert "declare function f(args?: { tree?: string | any[]; chain?: C0 }): Promise<any>;" in text
    assert "interface C599 {\n  next?: C0;\n}" in text


def test_definitions_that_refer_to_each_other_often_are_not_expanded_without_bound() -> None:
    """Bug: without type names, ten levels of five fields each are ten million fields."""
    levels = {
        f"L{n}": {"type": "object", "properties": {f"f{k}": {"$ref": f"#/$defs/L{n + 1}"} for k in range(5)}}
        for n in range(12)
    }
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/L0"}}, "$defs": levels}
    text = declaration_of(raw("f", schema).capability)
    assert len(text) < 200_000
    assert faults_of(text) == []


@pytest.mark.parametrize("name", ["class", "a-b", "1st", "a b", "", '"', "é", "constructor", "__proto__"])
def test_any_property_name_still_yields_valid_typescript(name: str) -> None:
    """Ours: a JSON property name may be any text."""
    inner = {"type": "object", "properties": {name: {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {name: inner, "ok": {"$ref": f"#/$defs/{name}"}},
        "$defs": {name: {**inner, "title": name}},
    }
    assert faults_of(signature_of(raw("f", schema), TYPESCRIPT)) == []
    assert faults_of(declaration_of(raw("f", schema).capability)) == []


@pytest.mark.parametrize("text", ["*/ x", "`${1}`", '"', "\\", "\x00\n\x0b", "a\n\nb", "//", "'''\u2028"])
def test_any_description_still_yields_valid_typescript(text: str) -> None:
    """Ours: descriptions come from outside."""
    field = {"type": "string", "description": text, "default": text}
    inner = {"type": "object", "properties": {"x": field}, "description": text, "title": text}
    schema = {"type": "object", "properties": {"x": field, "y": inner, "z": {"enum": [text]}}}
    assert faults_of(signature_of(raw("f", schema, description=text), TYPESCRIPT)) == []


def test_a_tool_with_a_reserved_name_is_shown_as_it_can_be_called() -> None:
    """Ours: `delete` is a valid name for a Python tool, and an operator in TypeScript."""
    tools = [raw("delete"), raw("keep")]
    assert signature_of(tools[0], TYPESCRIPT) == 'declare const globalThis: { "delete"(): Promise<any> };'
    assert declarations(each.capability for each in tools) == "declare function keep(): Promise<any>;"


@pytest.mark.parametrize(
    ("schema", "parameters"),
    [
        ({"type": "array"}, "...args: any[]"),
        ({"type": "object", "properties": {}}, ""),
        ({"type": "object", "additionalProperties": True}, "args?: { [key: string]: any }"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, "args?: { a?: null }"),
    ],
    ids=str,
)
def test_the_parameters_of_a_function_follow_from_its_contract(schema: Any, parameters: str) -> None:
    """Ours: one object of named arguments, which is optional if all of them are."""
    expected = f"declare function f({parameters}): Promise<any>;"
    assert signature_of(raw("f", schema), TYPESCRIPT) == expected
    assert declaration_of(raw("f", schema).capability) == expected


def test_an_object_that_allows_more_properties_says_so() -> None:
    """Ours: rule 2 of declarations, a declared type is wider than the schema, never narrower."""
    more = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True}
    assert type_of(more) == "{ a?: string; [key: string]: any }"
    assert signature(more).startswith("interface FX {\n  a?: string;\n  [key: string]: any;\n}\n")


def test_the_compiler_accepts_both_ways_to_call_a_function() -> None:
    """Ours: arguments may be given by position, and code that runs has no type errors."""
    assert overloads_of(find_orders.capability).splitlines()[1] == (
        'declare function find_orders(arg0: string, arg1?: "open" | "paid", arg2?: number): '
        "Promise<{ number: string; lines: { product: string; count?: number }[]; parent?: any }[]>;"
    )
    assert overloads_of(raw("f").capability) == "declare function f(): Promise<any>;"


# Guides


def test_all_tools_are_shown_if_they_fit() -> None:
    """Ours: a model that sees the signature need not look it up."""
    text = guide(
        *catalog_of(refund.registered, find_orders.registered, store_order.registered), language=TYPESCRIPT
    )
    assert text.startswith("Functions that you can call:\n\n```typescript\n/** Pay an order back.")
    assert functions_of(text) == ["refund", "find_orders", "store_order"]
    assert text.count("interface Order {") == 1
    assert faults_of(text.partition("typescript\n")[2].removesuffix("```")) == []


def test_many_tools_are_grouped_and_looked_up_with_promises() -> None:
    """Ours: the prompt's examples work in the session's language."""
    text = guide(*many(200), budget_chars=8_000, language=TYPESCRIPT)
    kept = len(functions_of(text))
    assert text.startswith(f"You can call 200 functions. The first {kept} of them:\n\n```typescript\n")
    assert (
        "The others, by group. `await search_tools({query})` finds functions by what they do, "
        "`await describe_tool({name})` shows how to call one.\n- crm"
    ) in text
    hidden, resolve = catalog_of(raw("a"), raw("b"), at=ToolAvailability.SEARCHABLE)
    assert (
        guide(hidden, resolve, language=TYPESCRIPT)
        == "2 tools can be found with `await search_tools({query})`."
    )


def test_a_stub_that_is_too_long_is_shown_without_its_parameters() -> None:
    """Ours: one huge schema must not hide all other tools, and none of its types remain."""
    fields = {f"field_{n}": {"type": "object", "properties": {f"x{n}": {}}} for n in range(100)}
    huge = raw("huge", {"type": "object", "properties": fields}, description="Does a lot.")
    text = guide(*catalog_of(huge, refund.registered), budget_chars=4_000, language=TYPESCRIPT)
    assert (
        "/**\n"
        " * Does a lot.\n"
        ' * await describe_tool({name: "huge"}) shows its parameters.\n'
        " */\n"
        "declare function huge(args: Record<string, any>): Promise<any>;"
    ) in text
    assert "interface" not in text


@settings(max_examples=3 * settings.default.max_examples // 5, deadline=None)
@given(st.integers(0, 120), st.integers(-5, 6_000))
def test_the_budget_is_never_exceeded(count: int, budget: int) -> None:
    """Ours: a prompt must not grow without bound with its tools."""
    catalog, resolve = many(count)
    assert len(guide(catalog, resolve, budget_chars=budget, language=TYPESCRIPT)) <= max(0, budget)


# Looking tools up


def test_tools_are_found_and_described_in_typescript() -> None:
    """Seed: search_tools and describe_tool return signatures. Ours: in the session's language."""
    catalog, resolve = catalog_of(refund.registered, find_orders.registered)
    search, describe, _ = discovery(catalog, resolve, TYPESCRIPT)
    ctx = RunContext(None)
    (hit,) = asyncio.run(search.handler(ctx, "pay back"))
    assert hit["signature"] == (
        "declare function refund(args: { order_id: string; cents: number }): Promise<string>;"
    )
    (found,) = asyncio.run(search.handler(ctx, "find"))
    assert found["signature"] == (
        'declare function find_orders(args: { text: string; state?: "open" | "paid"; limit?: number }): '
        "Promise<Record<string, any>[]>;"
    )
    assert declaration_of(find_orders.capability).endswith(
        "Promise<{ number: string; lines: { product: string; count?: number }[]; parent?: any }[]>;"
    )
    assert asyncio.run(describe.handler(ctx, "refund"))["signature"] == signature_of(
        refund.registered, TYPESCRIPT
    )
