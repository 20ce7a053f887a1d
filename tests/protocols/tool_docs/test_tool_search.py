"""Finding a tool among many."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from standfast import RegisteredTool, RunContext, tool
from standfast.errors import StandfastError, ToolOrphaned, UnknownTool
from standfast.model.capability import (
    SideEffect,
    ToolAvailability,
    ToolCallContext,
    ToolManifest,
    auto_approval,
)
from standfast.protocols.tool_docs.tool_guide import MAX_RESULTS, ToolIndex, discovery
from standfast.tools.registry import CatalogTool, ToolCatalog


def entry(name: str, description: str = "", at: ToolAvailability = ToolAvailability.SHOWCASED) -> CatalogTool:
    manifest = ToolManifest(id=name, name=name, description=description, side_effect=SideEffect.NONE)
    return CatalogTool(manifest, at)


SHOP = [
    entry("refund_order", "Pay an order back."),
    entry("find_customers", "Look customers up by their e-mail address."),
    entry("createGitHubIssue", "Open a ticket."),
    entry("send_mail", "Send a message to a customer about an order."),
    entry("list_categories", "All categories."),
    entry("weather", "The forecast."),
]


def names(query: str, limit: int = 10, tools: list[CatalogTool] = SHOP) -> list[str]:
    return [found.name for found in ToolIndex(tools).search(query, limit)]


# Search


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("refund", "refund_order"),
        ("REFUNDS", "refund_order"),
        ("pay an order back", "refund_order"),
        ("customer", "find_customers"),
        ("github issue", "createGitHubIssue"),
        ("create_git_hub_issue", "createGitHubIssue"),
        ("createGitHubIssue", "createGitHubIssue"),
        ("category", "list_categories"),
        ("fore", "weather"),
        ("cast", "weather"),
        ("message", "send_mail"),
        ("how do I send a message", "send_mail"),
    ],
)
def test_a_tool_is_found_by_its_words(query: str, best: str) -> None:
    """Ours: plurals, case, parts of words and of camelCase names all match."""
    assert names(query)[0] == best


def test_a_match_in_the_name_ranks_above_one_in_the_description() -> None:
    """Ours: a tool named `order` is more about orders than one that mentions them."""
    assert names("order") == ["refund_order", "send_mail"]
    assert names("customer") == ["find_customers", "send_mail"]


def test_whole_words_rank_above_prefixes_and_prefixes_above_substrings() -> None:
    """Ours: the closer the match, the earlier the tool is listed."""
    tools = [entry("recording"), entry("cordless"), entry("cord"), entry("x")]
    assert names("cord", tools=tools) == ["cord", "cordless", "recording"]
    assert names("co", tools=tools) == ["cordless", "cord"]


def test_ties_keep_the_catalogs_order_and_the_limit_applies() -> None:
    """Ours: the same query always gives the same list."""
    tools = [entry(f"tool_{n}") for n in (3, 1, 2, 9, 4)]
    assert names("tool", tools=tools) == ["tool_3", "tool_1", "tool_2", "tool_9", "tool_4"]
    assert names("tool", 2, tools) == ["tool_3", "tool_1"]
    assert names("tool", 0, tools) == []


@pytest.mark.parametrize("query", ["", "  ", "?!", "_"])
def test_an_empty_query_lists_the_first_tools(query: str) -> None:
    """Ours: a model may explore without knowing a word to search for."""
    assert names(query, 2) == ["refund_order", "find_customers"]


def test_words_that_no_tool_has_find_nothing() -> None:
    """Ours: a query without matches returns nothing instead of a guess."""
    assert names("zebra") == []
    assert names("x", tools=[]) == []


@pytest.mark.parametrize("query", ["\ud800", "é", "a" * 100_000, "the", ".*", "\n", "日本"])
def test_any_text_can_be_searched(query: str) -> None:
    """Ours: a model may search for any text."""
    ToolIndex(SHOP).search(query)


def test_ten_thousand_tools_are_searched_quickly() -> None:
    """Ours: a search uses an index; the bound is generous, so that a busy machine passes."""
    dice = random.Random(1)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(3, 9))) for _ in range(3_000)]
    tools = [
        entry(f"{dice.choice(words)}_{dice.choice(words)}_{n}", " ".join(dice.choices(words, k=12)))
        for n in range(10_000)
    ]
    index = ToolIndex(tools)
    queries = [" ".join(dice.choices(words, k=3)) for _ in range(20)]
    begun = time.perf_counter()
    assert all(index.search(query) for query in queries)
    assert (time.perf_counter() - begun) / len(queries) < 0.1


# As tools


@tool(side_effect="network", approval="manual")
def transfer(cents: int) -> str:
    """Send money.

    It cannot be called back.
    """
    return ""


@tool(side_effect="read", approval=auto_approval("True"))
def balance() -> int:
    """Look at the money."""
    return 1


@tool(side_effect="none")
def gone() -> None:
    """Money that was there."""


def resolve(name: str) -> RegisteredTool:
    if name == "gone":
        raise ToolOrphaned("gone", "a server")
    return {"transfer": transfer.registered, "balance": balance.registered}[name]


CATALOG = ToolCatalog(
    (
        entry("transfer", transfer.capability.description, ToolAvailability.SEARCHABLE),
        entry("balance", "Look at the money.", ToolAvailability.CALLABLE),
        entry("gone", "Money that was there."),
    )
)


def call(name: str, *args: Any) -> Any:
    found = {each.name: each for each in discovery(CATALOG, resolve)}[name]
    assert found.capability.side_effect == "none"
    value = made(found, *args)
    found.check_output(value)
    return value


def made(found: RegisteredTool, *args: Any) -> Any:
    """Call a tool outside any session."""
    bound = found.bind(ToolCallContext(name=found.name, args=list(args)))
    if not found.takes_context:
        return found.handler(*bound.args, **bound.kwargs)

    async def main() -> Any:
        return await found.handler(RunContext(None), *bound.args, **bound.kwargs)

    return asyncio.run(main())


def test_search_tools_shows_how_to_call_each_result() -> None:
    """Ours: the signature in a search result is usually enough to make the call."""
    assert call("search_tools", "send money")[0] == {
        "name": "transfer",
        "signature": "def transfer(cents: int) -> str",
        "description": "Send money.",
        "may_call": False,
    }
    assert [hit["may_call"] for hit in call("search_tools", "look money", 3)] == [True, False, True]


def test_a_tool_whose_source_is_gone_does_not_break_the_search() -> None:
    """Ours: a tool that cannot be resolved must not fail the search."""
    (hit,) = call("search_tools", "gone")
    assert hit["signature"].startswith("gone() is not available: ")


@pytest.mark.parametrize(("limit", "count"), [(-3, 1), (0, 1), (2, 2), (10**9, 3)])
def test_the_number_of_results_is_limited(limit: int, count: int) -> None:
    """Ours: a limit of any size returns at most MAX_RESULTS tools."""
    assert len(call("search_tools", "money", limit)) == count <= MAX_RESULTS


def test_describe_tool_shows_the_whole_contract() -> None:
    """Seed: `describe_tool(name)` returns the whole contract."""
    described = call("describe_tool", "transfer")
    assert described["signature"].startswith("def transfer(cents: int) -> str:\n")
    assert described["description"] == "Send money.\n\nIt cannot be called back."
    assert described["input_schema"]["properties"] == {"cents": {"type": "integer"}}
    assert described["output_schema"] == {"type": "string"}
    assert (described["side_effect"], described["approval"]) == ("network", "manual")
    assert described["may_call"] is False
    assert call("describe_tool", "balance")["approval"] == "auto"


def test_an_unknown_name_suggests_close_ones() -> None:
    """Ours: a typo gets a suggestion."""
    with pytest.raises(UnknownTool) as raised:
        call("describe_tool", "transfers")
    assert raised.value.hint == "did you mean transfer?"
    with pytest.raises(UnknownTool) as raised:
        call("describe_tool", "\ud800" * 1_000)
    assert "search_tools" in str(raised.value.hint)


def test_a_tool_outside_the_catalog_cannot_be_described() -> None:
    """Ours: a tool that a session may not use cannot be described in it."""
    found = {each.name: each for each in discovery(ToolCatalog(), resolve)}
    with pytest.raises(StandfastError):
        made(found["describe_tool"], "transfer")
    assert made(found["search_tools"], "money") == []
    assert made(found["list_tools"]) == []


def test_list_tools_names_every_tool() -> None:
    """Seed: `list_tools()` lists the tools."""
    assert call("list_tools") == [
        {"name": "transfer", "description": "Send money."},
        {"name": "balance", "description": "Look at the money."},
        {"name": "gone", "description": "Money that was there."},
    ]
