"""Tools that a model finds by searching, and may call from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from code_stand_ins import RecordingModel, cell, outcomes
from stand_ins import Place

from standfast import Agent, Plugin, hook, tool
from standfast.errors import ToolNameTaken
from standfast.model.capability import ToolAvailability
from standfast.model.message import Message, ToolMessage
from standfast.plugins.contexts import ToolCatalogContext
from standfast.protocols.code.plugin import CodeMode, CodeProtocol
from standfast.providers.scripted import ScriptedModel
from standfast.tools.decorator import as_registered
from standfast.tools.registry import StaticTools, ToolCatalogContribution


@tool(side_effect="read")
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sun in {city}"


@tool(side_effect="read")
async def look() -> str:
    """Look around."""
    return "seen"


@tool(side_effect="read")
async def search_tools(query: str) -> str:
    """Search something else."""
    return query


class Far(Plugin):
    """A plugin that makes the tool searchable only."""

    @hook
    def tool_catalog(self, ctx: ToolCatalogContext) -> ToolCatalogContribution:
        return ToolCatalogContribution(availability={"weather": ToolAvailability.SEARCHABLE})


def asks(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def native(*replies: Any, **options: Any) -> tuple[RecordingModel, Agent[Any, Any]]:
    model = RecordingModel(ScriptedModel(replies, strict=False))
    return model, Agent(model, name="a", tools=[weather, look], **options)


def results(messages: Sequence[Message]) -> list[Any]:
    return [
        one.value if one.error is None else one.error.code for one in messages if isinstance(one, ToolMessage)
    ]


def offered(model: RecordingModel) -> list[list[str]]:
    return [[one.name for one in request.tools] for request in model.requests]


SEARCH = asks("search_tools", query="weather of a city")
CALL = asks("weather", city="Rome")


@pytest.mark.parametrize("made_far", ["by the session", "by a plugin", "by an overlay"])
def test_a_tool_that_a_model_finds_can_be_called_natively_for_the_rest_of_the_session(
    place: Place, made_far: str
) -> None:
    """Bug: a searchable tool could not be found in native calls, and was never callable once found."""
    plugins = [Far()] if made_far == "by a plugin" else []

    async def prepared(runtime: Any, agent: Agent[Any, Any]) -> Any:
        session = await runtime.session("s", agent=agent)
        if made_far == "by the session":
            await session.tools.set_availability("weather", "searchable")
        if made_far == "by an overlay":
            far = StaticTools([as_registered(weather)], availability=ToolAvailability.SEARCHABLE)
            await session.set_context_overlay([far])
        return session

    async def main() -> None:
        model, agent = native(CALL, SEARCH, CALL, "Sun.", plugins=plugins)
        async with place.runtime() as runtime:
            session = await prepared(runtime, agent)
            result = await session.turn("How is Rome?")
            refused, found, called = results(result.messages)
            assert refused == "UNKNOWN_TOOL"
            assert [(one["name"], one["may_call"]) for one in found] == [("weather", True)]
            assert called == "sun in Rome"
        assert offered(model) == [
            ["look", "search_tools"], ["look", "search_tools"], *[["look", "search_tools", "weather"]] * 2
        ]  # fmt: skip
        model, agent = native(*["said before"] * 4, CALL, "Sun.", plugins=plugins)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            if made_far == "by an overlay":
                await prepared(runtime, agent)
            assert results((await session.turn("And now?")).messages) == ["sun in Rome"], "it is durable"
            await session.tools.set_availability("weather", "searchable")
            names = {one["name"]: one["availability"] for one in await session.tools.catalog()}
            assert names["weather"] == "searchable", "a later decision of the host holds"

    asyncio.run(main())


@pytest.mark.parametrize("finds", ["search_tools", "describe_tool"])
@pytest.mark.parametrize("form", ["code", "typescript", "mode"])
def test_a_tool_that_code_finds_can_be_called_by_the_next_cell(memory: Place, form: str, finds: str) -> None:
    """Bug: `search_tools` listed tools with may_call=False, and nothing could change that."""
    typescript = form == "typescript"
    search = "search_tools('weather')" if finds == "search_tools" else "describe_tool('weather')"
    call = "weather('Rome')"
    if typescript:
        key = "query" if finds == "search_tools" else "name"
        search, call = f"await {finds}({{{key}: 'weather'}})", "await weather({city: 'Rome'})"

    def reply(code: str) -> Any:
        if form == "mode":
            return asks("run_code", code=code)
        return cell(code).replace("python", "typescript") if typescript else cell(code)

    async def main() -> None:
        options: dict[str, Any] = {"plugins": [CodeMode()]} if form == "mode" else {}
        if form != "mode":
            options["protocol"] = CodeProtocol(language="typescript" if typescript else "python")
        _, agent = native(*(reply(one) for one in (call, search, call)), "Sun.", **options)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.tools.set_availability("weather", "searchable")
            result = await session.turn("How is Rome?")
            assert outcomes(result.messages)[0] == "UNKNOWN_TOOL"
            assert outcomes(result.messages)[2] == "sun in Rome"
            found = outcomes(result.messages)[1]
            assert (found[0] if finds == "search_tools" else found)["may_call"] is True

    asyncio.run(main())


def test_searching_does_not_find_a_tool_that_is_off(memory: Place) -> None:
    """Ours: nor can the tool be called after the search."""

    async def main() -> None:
        _, agent = native(SEARCH, CALL, "Hm.")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.tools.set_availability("weather", "off")
            await session.tools.set_availability("look", "searchable")
            assert results((await session.turn("How is Rome?")).messages) == [[], "UNKNOWN_TOOL"]

    asyncio.run(main())


def test_two_concurrent_searches_make_both_tools_callable(memory: Place) -> None:
    """Ours: native calls run concurrently, and neither may undo the effect of the other."""
    both = {
        "tool_calls": [
            {"name": "search_tools", "arguments": {"query": "weather"}},
            {"name": "search_tools", "arguments": {"query": "look around"}},
        ]
    }

    async def main() -> None:
        model, agent = native(both, "Done.")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.tools.set_availability(["weather", "look"], "searchable")
            await session.turn("Find everything")
        assert offered(model) == [["search_tools"], ["search_tools", "look", "weather"]]

    asyncio.run(main())


def test_a_user_tool_with_the_name_of_the_search_tool_is_a_conflict(memory: Place) -> None:
    """Ours: a name belongs to one tool, and the error names both owners."""

    async def main() -> None:
        agent: Agent[Any, Any] = Agent(ScriptedModel(["Hi."]), tools=[weather, search_tools])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("hello")).output == "Hi.", "nothing is to be searched for"
            await session.tools.set_availability("weather", "searchable")
            with pytest.raises(ToolNameTaken, match="search_tools"):
                await session.turn("hello")

    asyncio.run(main())
