"""Tools as functions in the prompt."""

from __future__ import annotations

import ast
import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast import Capability, RegisteredTool, tool
from standfast.model.capability import ToolAvailability, ToolManifest, auto_approval
from standfast.protocols.tool_docs.stub_writer import StubWriter
from standfast.protocols.tool_docs.tool_guide import group_names, guide, signature_of
from standfast.tools.registry import CatalogTool, ToolCatalog


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


def raw(
    name: str, schema: dict[str, Any] | None = None, *, description: str = "", output: Any = None
) -> RegisteredTool:
    """A tool with a schema of its own."""
    capability = Capability(
        name=name,
        description=description,
        input_schema=schema or {"type": "object", "properties": {}},
        output_schema=output or {},
    )
    return RegisteredTool.sync(capability, lambda context: None)


def catalog_of(
    *tools: RegisteredTool, at: ToolAvailability = ToolAvailability.SHOWCASED
) -> tuple[ToolCatalog, Callable[[str], RegisteredTool]]:
    """Return a catalog of these tools, and a function that resolves them."""
    entries = tuple(
        CatalogTool(
            ToolManifest(
                id=each.name,
                name=each.name,
                description=each.capability.description,
                side_effect=each.capability.side_effect,
            ),
            at,
        )
        for each in tools
    )
    return ToolCatalog(entries), {each.name: each for each in tools}.__getitem__


def code_of(text: str) -> ast.Module:
    """Return the stubs in a guide, and check that they are valid Python."""
    found = re.search(r"```python\n(.*)\n```", text, re.S)
    return ast.parse(found[1] if found else "")


def functions_of(text: str) -> list[str]:
    return [node.name for node in code_of(text).body if isinstance(node, ast.FunctionDef)]


# Signatures


def test_a_tool_is_a_typed_function_with_a_docstring() -> None:
    """Seed: tools are functions with typed stubs in the prompt."""
    assert signature_of(refund.registered) == (
        'def refund(order_id: str, cents: int) -> str:\n    """Pay an order back. A person is asked first."""'
    )


def test_objects_are_classes_and_parameters_are_described() -> None:
    """Ours: the stub shows the fields of arguments and results."""
    assert signature_of(find_orders.registered) == (
        "class Order(TypedDict):\n"
        '    """What a customer has ordered."""\n'
        "    number: str\n"
        "    lines: list[Line]\n"
        "    parent: NotRequired[Order | None]\n\n"
        "class Line(TypedDict):\n"
        "    product: str\n"
        "    count: NotRequired[int]\n\n"
        "def find_orders(\n"
        "    text: str,\n"
        "    *,\n"
        "    state: Literal['open', 'paid'] = 'open',\n"
        "    limit: int = 10,\n"
        ") -> list[Order]:\n"
        '    """Find orders.\n\n'
        "    text: words of the order or its number\n"
        '    """'
    )


def test_a_class_is_written_only_once() -> None:
    """Ours: every character of the prompt costs tokens."""
    writer = StubWriter()
    assert "class Order" in writer.write(find_orders.registered)
    assert writer.write(store_order.registered) == (
        'def store_order(order: Order) -> None:\n    """Store an order. May ask a person first."""'
    )


def test_two_types_with_the_same_name_get_different_names() -> None:
    """Ours: rule 1 of the module, tools from different sources may use the same type name."""

    def item(kind: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"item": {"$ref": "#/$defs/Item"}},
            "$defs": {
                "Item": {"type": "object", "properties": {"id": {"$ref": "#/$defs/Id"}}},
                "Id": {"type": kind},
            },
        }

    writer = StubWriter(taken=["find_item"])
    texts = [
        writer.write(raw(name, item(kind)))
        for name, kind in [("a", "string"), ("b", "integer"), ("c", "string")]
    ]
    assert "class Item(" in texts[0]
    assert "class BItem(" in texts[1]
    assert "item: BItem" in texts[1]
    assert texts[2] == "def c(item: Item = ...) -> Any: ..."


def test_an_anonymous_object_is_named_after_its_position() -> None:
    """Ours: schemas from other sources have no named definitions."""
    address = {"type": "object", "properties": {"street": {"type": "string", "description": "with\nnumber"}}}
    person = {"type": "object", "properties": {"home": address}, "required": ["home"]}
    schema = {"type": "object", "properties": {"person": person}, "required": ["person"]}
    text = signature_of(raw("move_in", schema, output={"type": "array", "items": person}))
    assert "class MoveInPerson(TypedDict):\n    home: MoveInPersonHome" in text
    assert "street: NotRequired[str]  # with number" in text
    assert text.endswith("def move_in(person: MoveInPerson) -> list[MoveInPerson]: ...")


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "string"}, {}]}, "Any"),
        ({"allOf": [{"type": "integer"}]}, "int"),
        ({"const": 3}, "Literal[3]"),
        ({"enum": [str(n) for n in range(200)]}, "str"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, "list[int | str]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"$ref": "#/$defs/Missing"}, "Any"),
        ({"$ref": "#"}, "Any"),
        ({"type": "odd"}, "Any"),
        (True, "Any"),
    ],
    ids=str,
)
def test_schemas_are_shown_as_python_types(schema: Any, kind: str) -> None:
    """Ours: the known parts of a type are shown, the rest is Any."""
    text = signature_of(raw("f", {"type": "object", "properties": {"x": schema}, "required": ["x"]}))
    assert text == f"def f(x: {kind}) -> Any: ..."


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
    text = signature_of(raw("f", schema))
    ast.parse(text)
    assert "tree: str | list[Any] = ..., chain: C0 = ..." in text
    assert "class C599(TypedDict):\n    next: NotRequired[C0]" in text


@pytest.mark.parametrize("name", ["from", "a-b", "1st", "a b", "", '"', "é"])
def test_property_names_that_are_not_identifiers_still_yield_valid_python(name: str) -> None:
    """Ours: rule 2 of the module, a JSON property name may be any text."""
    inner = {"type": "object", "properties": {name: {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {name: inner, "ok": {"$ref": f"#/$defs/{name}"}},
        "$defs": {name: {**inner, "title": name}},
    }
    ast.parse(signature_of(raw("f", schema)))


@pytest.mark.parametrize("text", ['"""', '"', "\\", "a\\", "\x00\n\x0b", "a\n\nb", "#", "'''\u2028"])
def test_any_description_still_yields_valid_python(text: str) -> None:
    """Ours: rule 2 of the module, descriptions come from outside."""
    field = {"type": "string", "description": text, "default": text}
    inner = {"type": "object", "properties": {"x": field}, "description": text, "title": text}
    schema = {"type": "object", "properties": {"x": field, "y": inner, "z": {"enum": [text]}}}
    written = signature_of(raw("f", schema, description=text))
    ast.parse(written)
    written.encode()


# Guides


def test_all_tools_are_shown_if_they_fit() -> None:
    """Ours: a model that sees the signature need not look it up."""
    text = guide(*catalog_of(refund.registered, find_orders.registered, store_order.registered))
    assert text.startswith("Functions that you can call:\n\n```python\ndef refund(")
    assert functions_of(text) == ["refund", "find_orders", "store_order"]
    assert text.count("class Order(") == 1
    assert "search_tools" not in text


def test_an_agent_without_tools_gets_no_guide() -> None:
    """Ours: such an agent has no section about tools."""
    assert guide(*catalog_of()) == ""


def test_searchable_tools_are_mentioned_but_not_shown() -> None:
    """Seed: searchable tools can be found, but are not shown."""
    hidden, _ = catalog_of(raw("a"), raw("b"), at=ToolAvailability.SEARCHABLE)
    quiet, _ = catalog_of(raw("c"), at=ToolAvailability.CALLABLE)
    shown, resolve = catalog_of(refund.registered)
    text = guide(ToolCatalog((*hidden.tools, *quiet.tools, *shown.tools)), resolve)
    assert text.endswith("\n\n3 more tools can be found with `search_tools(query)`.")
    assert functions_of(text) == ["refund"]
    assert guide(hidden, resolve) == "2 tools can be found with `search_tools(query)`."


def many(count: int) -> tuple[ToolCatalog, Callable[[str], RegisteredTool]]:
    verbs = ("github", "jira", "mail", "crm__x", "odd")
    schema = {"type": "object", "properties": {"number": {"type": "integer"}, "text": {"type": "string"}}}
    return catalog_of(
        *(
            raw(
                f"{verbs[n % 5]}_do_{n}" if n % 5 < 4 else f"single{n}",
                schema,
                description=f"Does thing {n}.",
            )
            for n in range(count)
        )
    )


def test_stubs_take_half_of_the_budget_and_other_tools_are_named_by_group() -> None:
    """Ours: when there are many tools they are grouped and searchable."""
    text = guide(*many(200), budget_chars=8_000)
    kept = len(functions_of(text))
    assert 3_000 < len(text.partition("```\n")[0]) < 4_200
    assert text.startswith(f"You can call 200 functions. The first {kept} of them:\n\n```python\n")
    assert functions_of(text)[:2] == ["github_do_0", "jira_do_1"]
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert [line.split()[1] for line in lines] == ["crm", "github", "jira", "mail", "other"]
    assert "`search_tools(query)`" in text
    assert "`describe_tool(name)`" in text
    named = [name for line in lines for name in line.partition(": ")[2].split(", ")]
    assert sorted(functions_of(text) + named) == sorted(many(200)[0].names)


def test_names_that_do_not_fit_are_counted() -> None:
    """Ours: the model must know that there are more tools than it sees."""
    text = guide(*many(2_000), budget_chars=3_000)
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    kept = len(functions_of(text))
    listed = 0
    for line in lines:
        names, _, more = line.partition(": ")[2].partition("… and ")
        listed += names.count(", ") + int(more.partition(" ")[0].replace(",", ""))
    assert listed + kept == 2_000
    assert 2_700 < len(text) <= 3_000


def test_a_stub_that_is_too_long_is_shown_without_its_parameters() -> None:
    """Ours: rule 2 of the module, one huge schema must not hide all other tools."""
    fields = {f"field_{n}": {"type": "object", "properties": {f"x{n}": {}}} for n in range(100)}
    huge = raw("huge", {"type": "object", "properties": fields}, description="Does a lot.")
    text = guide(*catalog_of(huge, refund.registered), budget_chars=4_000)
    assert functions_of(text) == ["huge", "refund"]
    assert 'Does a lot.\n\n    describe_tool("huge") shows its parameters.' in text
    assert "class" not in text


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(st.integers(0, 120), st.integers(-5, 6_000))
def test_the_budget_is_never_exceeded(count: int, budget: int) -> None:
    """Ours: rule 1 of the module, the guide is never longer than its budget."""
    catalog, resolve = many(count)
    text = guide(catalog, resolve, budget_chars=budget)
    assert len(text) <= max(0, budget)
    assert text == guide(catalog, resolve, budget_chars=budget)
    if count and budget > 1_000:
        assert len(functions_of(text)) == count or "- github" in text or "- other" in text


def test_a_guide_for_ten_thousand_tools_is_written_quickly() -> None:
    """Ours: rule 3 of the module; the bound is generous, so that a busy machine passes."""
    catalog, resolve = many(10_000)
    asked: list[str] = []

    def counting(name: str) -> RegisteredTool:
        asked.append(name)
        return resolve(name)

    begun = time.perf_counter()
    text = guide(catalog, counting, budget_chars=16_000)
    assert time.perf_counter() - begun < 3
    assert len(text) <= 16_000
    assert len(asked) < 300


def test_names_are_grouped_by_prefix() -> None:
    """Ours: tools of one source share a prefix."""
    names = [
        "mail_send",
        "git__a_b",
        "mail_read",
        "git__a_c",
        "search",
        "search_web",
        "_x",
        "lonely_one",
        "mailbox",
    ]
    assert group_names(names) == {
        "git": ["git__a_b", "git__a_c"],
        "mail": ["mail_send", "mail_read"],
        "search": ["search", "search_web"],
        "other": ["_x", "lonely_one", "mailbox"],
    }


def test_many_small_groups_are_merged() -> None:
    """Ours: a thousand lines of one name each would not help the model."""
    text = guide(
        *catalog_of(*(raw(f"g{n // 2}_{n}") for n in range(2_000)), *(raw(f"big_{n}") for n in range(9)))
    )
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert lines[0].startswith("- big (9): big_0, big_1, ")
    assert lines[-1].startswith("- other (1,")
    assert len(text) <= 16_000
