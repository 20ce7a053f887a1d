"""The tools of a session: their settings, where these are stored, and sources that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from plugin_stand_ins import Builds, ObedientModel, Source, call, context_of, named_tool
from stand_ins import Place, results

from standfast import Agent, Session, tool
from standfast.errors import (
    GenerationMismatch,
    InvalidArgument,
    SessionBusy,
    StandfastError,
    ToolConflict,
    UnknownTool,
)
from standfast.model.capability import ToolAvailability
from standfast.plugins.contexts import ToolCatalogContext


def clerk(*tools: Any, heard: list[ToolCatalogContext] | None = None) -> Agent[Any, Any]:
    given = tools or (named_tool("one"), named_tool("two"))
    return Agent(ObedientModel(), name="clerk", tools=given, plugins=[Builds([] if heard is None else heard)])


def model_of(session: Session[Any]) -> ObedientModel:
    staff = session._live.prepared
    assert staff is not None
    model = staff.agent.model
    assert isinstance(model, ObedientModel)
    return model


async def offered(session: Session[Any]) -> list[str]:
    """Return the tools that a turn would offer to the model."""
    await session.turn("hello")
    return model_of(session).offered


async def problem(session: Session[Any], name: str) -> str:
    """Return the error that the model reads when it calls this tool."""
    (found,) = await call(session, name)
    assert found.error is not None, found.value
    assert found.error.code in ("UNKNOWN_TOOL", "TOOL_ORPHANED")
    return found.error.message


# Availability and membership


def test_a_tool_that_is_off_is_not_offered_and_cannot_be_called(memory: Place) -> None:
    """Seed: calling a tool whose ToolAvailability is off gives an error that the model reads."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.tools.set_availability("one", ToolAvailability.OFF)
            assert await offered(session) == ["two"]
            assert await problem(session, "one") == "the tool 'one' is off"
            assert [one["name"] for one in await session.tools.catalog()] == ["two"]

    asyncio.run(main())


def test_a_searchable_tool_is_known_but_neither_offered_nor_callable(memory: Place) -> None:
    """Seed: the levels are off < searchable < callable < showcased."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.tools.set_availability(["one"], "searchable")
            assert await offered(session) == ["two", "search_tools"]
            assert await problem(session, "one") == "tool 'one' is not offered in this session"
            assert [one["availability"] for one in await session.tools.catalog()] == [
                "searchable",
                "showcased",
            ]

    asyncio.run(main())


def test_a_callable_tool_is_not_offered_but_may_be_called(memory: Place) -> None:
    """Seed: callable is below showcased."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.tools.set_availability("one", "callable")
            assert await offered(session) == ["two"]
            assert [one.value for one in await call(session, "one")] == ["one"]

    asyncio.run(main())


def test_none_clears_an_availability_override(memory: Place) -> None:
    """Seed: None clears an override."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.tools.set_availability(["one", "two"], "off")
            assert await offered(session) == []
            await session.tools.set_availability(["one"], None)
            assert await offered(session) == ["one"]
            state = await session.tools.state()
            assert [state.tools[name].availability for name in ("one", "two")] == [None, ToolAvailability.OFF]

    asyncio.run(main())


def test_one_unknown_name_fails_the_whole_call(place: Place) -> None:
    """Seed: nothing is changed."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            before, head = await session.tools.state(), await session.head()
            with pytest.raises(UnknownTool, match="'nope'"):
                await session.tools.set_availability(["one", "nope", "two"], "off")
            with pytest.raises(UnknownTool, match="'nope'"):
                await session.tools.set_members(["one", "nope"], False)
            assert await session.tools.state() == before
            assert await session.head() == head
            assert await offered(session) == ["one", "two"]

    asyncio.run(main())


def test_an_invalid_availability_is_refused(memory: Place) -> None:
    """Ours: an invalid availability must not enable the tool."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            with pytest.raises(InvalidArgument, match="'enabled'"):
                await session.tools.set_availability("one", "enabled")
            assert await offered(session) == ["one", "two"]

    asyncio.run(main())


def test_a_tool_removed_from_the_catalog_is_remembered_and_can_be_put_back(memory: Place) -> None:
    """Seed: a tool that is not a member keeps its override."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.tools.set_availability("one", "callable")
            await session.tools.set_members("one", False)
            assert await problem(session, "one") == "the tool 'one' is not in the catalog"
            await session.tools.set_members(["one"], True)
            assert await offered(session) == ["two"]
            assert [one.value for one in await call(session, "one")] == ["one"]

    asyncio.run(main())


def test_a_stale_tool_state_is_refused(memory: Place) -> None:
    """Seed: a state of another generation raises GenerationMismatch{expected, actual}."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            stale = await session.tools.state()
            generation = await session.tools.set_availability("one", "off")
            assert generation == stale.generation + 1
            with pytest.raises(GenerationMismatch) as caught:
                await session.tools.apply_state(stale.with_availability(["two"], ToolAvailability.OFF))
            assert (caught.value.expected, caught.value.actual) == (stale.generation, generation)
            assert await offered(session) == ["two"]
            fresh = await session.tools.state()
            assert await session.tools.apply_state(fresh.with_members(["two"], False)) == generation + 1
            assert await offered(session) == []

    asyncio.run(main())


def test_a_tool_state_with_an_unknown_tool_is_refused(memory: Place) -> None:
    """Seed: applying a state is all or nothing."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            state = await session.tools.state()
            made_up = {**state.tools, "ghost": state.tools["one"]}
            with pytest.raises(UnknownTool, match="'ghost'"):
                await session.tools.apply_state(msgspec.structs.replace(state, tools=made_up))
            assert await session.tools.state() == state

    asyncio.run(main())


# Storage


def test_tool_settings_are_durable_when_the_call_returns(place: Place) -> None:
    """Ours: settings can be changed before the first turn."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.tools.set_availability("one", "off")
            generation = await session.tools.generation()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            assert await session.tools.generation() == generation
            assert await offered(session) == ["two"]
            await session.tools.set_availability("one", None)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            assert await offered(session) == ["one", "two"]

    asyncio.run(main())


def test_tool_settings_follow_forks_and_rewinds(place: Place) -> None:
    """Ours: tool settings belong to their node of the history."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.turn("first")
            first = (await session.head()).leaf
            await session.tools.set_availability("one", "off")
            await session.turn("second")
            fork = await session.fork("later")
            early = await session.fork("early", at=first)
            await session.tools.set_availability("two", "off")
            assert (await offered(session), await offered(fork)) == ([], ["two"])
            assert await offered(early) == ["two"]  # it was set at the node itself
            await session.turn("third")
            await session.rewind()
        async with place.runtime() as runtime:
            found = [await runtime.session(name, agent=clerk()) for name in ("s", "later", "early")]
            assert [await offered(one) for one in found] == [[], ["two"], ["two"]]

    asyncio.run(main())


def test_tool_settings_changed_during_a_turn_are_written_with_that_turn(place: Place) -> None:
    """Ours: a tool may change tools in its turn; it applies to the next call and after a restart."""
    sessions: list[Session[Any]] = []

    @tool(loop="runtime")
    async def switch() -> str:
        """Turn another tool off."""
        await sessions[-1].tools.set_availability("one", "off")
        return "switched"

    @tool(approval="manual")
    async def refund() -> str:
        """Needs a person."""
        return "paid"

    async def open_it(runtime: Any) -> Session[Any]:
        sessions.append(await runtime.session("s", agent=clerk(named_tool("one"), switch, refund)))
        return sessions[-1]

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await open_it(runtime)
            assert (await session.turn("call switch refund").settled()).status == "waiting"
        async with place.runtime() as runtime:
            session = await open_it(runtime)
            (approval,) = await session.approvals(pending=True)
            done = await session.approve(approval.approval_id)
            assert results(done.messages) == ["switched", "paid"]
            assert await problem(session, "one") == "the tool 'one' is off"
        async with place.runtime() as runtime:
            assert await offered(await open_it(runtime)) == ["refund", "switch"]

    asyncio.run(main())


def test_tool_settings_cannot_be_changed_while_a_turn_waits(place: Place) -> None:
    """Ours: the resumed turn would overwrite the change."""

    @tool(approval="manual")
    async def refund() -> str:
        """Needs a person."""
        return "paid"

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(refund))
            assert (await session.turn("call refund").settled()).status == "waiting"
            with pytest.raises(SessionBusy):
                await session.tools.set_availability("refund", "off")
            with pytest.raises(SessionBusy):
                await session.tools.add_source("live", Source("extra"))
            assert [one["name"] for one in await session.tools.catalog()] == ["refund"]

    asyncio.run(main())


# Adding and removing sources


def test_a_source_can_be_added_and_removed_during_a_session(memory: Place) -> None:
    """Ours: the tools of a removed source are orphans, and calling one says so."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            assert await offered(session) == ["one", "two"]
            await session.tools.add_source("live", Source("extra"))
            assert await offered(session) == ["extra", "one", "two"]
            assert [one.value for one in await call(session, "extra")] == ["extra"]
            await session.tools.set_availability("extra", "callable")
            await session.tools.remove_source("live")
            assert await offered(session) == ["one", "two"]
            assert "its source 'live' no longer offers it" in await problem(session, "extra")
            assert "extra" in (await session.tools.state()).tools
            await session.tools.add_source("live", Source("extra"))
            assert await offered(session) == ["one", "two"]
            assert [one.value for one in await call(session, "extra")] == ["extra"]

    asyncio.run(main())


def test_tools_of_a_source_missing_after_a_restart_are_orphans_until_it_returns(place: Place) -> None:
    """Ours: an orphan is hidden, and rebound with its settings after restarts."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.tools.add_source("live", Source("extra", "more"))
            await session.tools.set_availability("more", "off")
            assert await offered(session) == ["extra", "one", "two"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            assert await offered(session) == ["one", "two"]
            assert "its source 'live' no longer offers it" in await problem(session, "extra")
            assert set((await context_of(session)).tool_registry.orphans()) == {"extra", "more"}
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            generation = await session.tools.generation()
            assert await session.tools.add_source("other", Source("extra", "more")) == generation + 3
            assert await offered(session) == ["extra", "one", "two"]
            assert await problem(session, "more") == "the tool 'more' is off"
            assert (await session.tools.state()).tools["extra"].source == "other"

    asyncio.run(main())


def test_a_source_may_be_removed_while_a_turn_runs(memory: Place) -> None:
    """Ours: the model reads that an offered tool is no longer available."""
    sessions: list[Session[Any]] = []

    @tool(loop="runtime")
    async def unplug() -> str:
        """Remove the source, and have its tool called."""
        await sessions[0].tools.remove_source("live")
        await sessions[0].inject("call extra")
        return "gone"

    @tool(loop="runtime")
    async def plug() -> str:
        """Add a source."""
        await sessions[0].tools.add_source("live", Source("extra"))
        return "there"

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(unplug, plug))
            sessions.append(session)
            await session.tools.add_source("live", Source("extra"))
            done = await session.turn("call unplug")
            assert results(done.messages) == ["gone", "TOOL_ORPHANED"]
            assert model_of(session).offered == ["extra", "plug", "unplug"]
            assert await offered(session) == ["plug", "unplug"]
            assert results((await session.turn("call plug")).messages) == ["there"]
            assert await offered(session) == ["extra", "plug", "unplug"]

    asyncio.run(main())


def test_a_source_with_conflicting_tools_is_refused_and_changes_nothing(memory: Place) -> None:
    """Seed: an id or name owned by another bound source is a conflict that names both."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            before = await session.tools.state()
            with pytest.raises(ToolConflict, match=r"registered.*live"):
                await session.tools.add_source("live", Source("one"))
            assert await session.tools.state() == before
            session._live.forget()
            assert await offered(session) == ["one", "two"]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["context", "plugin:builds", "registered", ""])
def test_a_source_cannot_use_a_name_that_the_session_itself_uses(memory: Place, name: str) -> None:
    """Ours: it would replace tools of the agent, a plugin or the overlay."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            with pytest.raises(InvalidArgument):
                await session.tools.add_source(name, Source("extra"))
            assert await offered(session) == ["one", "two"]

    asyncio.run(main())


def test_a_missing_source_cannot_be_removed(memory: Place) -> None:
    """Ours: only a source that was added can be removed."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            for name in ("live", "registered"):
                with pytest.raises(InvalidArgument):
                    await session.tools.remove_source(name)
            assert await offered(session) == ["one", "two"]

    asyncio.run(main())


def test_a_source_that_is_added_again_has_its_current_tools(memory: Place) -> None:
    """Ours: a host adds a changed source again under its name."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            source = Source("extra")
            await session.tools.add_source("live", source)
            assert await offered(session) == ["extra", "one", "two"]
            source.tools = {"newer": named_tool("newer")}
            assert await offered(session) == ["extra", "one", "two"]
            await session.tools.add_source("live", source)
            assert await offered(session) == ["newer", "one", "two"]
            assert "no longer offers it" in await problem(session, "extra")

    asyncio.run(main())


def test_a_source_that_fails_when_its_tool_is_called_fails_only_the_call(memory: Place) -> None:
    """Ours: the call fails with a typed error."""

    class Moody(Source):
        def resolve(self, name: str) -> Any:
            super().resolve(name)
            raise OSError("no route")

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            source = Moody("extra", availability=ToolAvailability.CALLABLE)
            await session.tools.add_source("live", source)
            found = await call(session, "extra", "one")
            assert found[0].error is not None
            assert (found[0].error.code, found[1].value) == ("BAD_TOOL_SOURCE", "one")
            assert "no route" in found[0].error.message

    asyncio.run(main())


def test_a_source_that_cannot_resolve_a_listed_tool_fails_the_turn_and_not_the_session(memory: Place) -> None:
    """Ours: showcased tools are resolved when the catalog is built."""

    class Moody(Source):
        broken = True

        def resolve(self, name: str) -> Any:
            return None if self.broken else super().resolve(name)

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            source = Moody("extra")
            await session.tools.add_source("live", source)
            with pytest.raises(StandfastError, match="'live' lists the tool 'extra' but cannot resolve it"):
                await session.turn("hello")
            source.broken = False
            unfinished = await session.resume()
            if unfinished is not None:
                await unfinished
            assert await offered(session) == ["extra", "one", "two"]

    asyncio.run(main())


# Cost


def test_a_tool_is_resolved_once_when_it_is_needed(memory: Place) -> None:
    """Seed: showcased tools are resolved for the model call, others when they are called."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            shown = Source("shown")
            hidden = Source("called", "never", availability=ToolAvailability.CALLABLE)
            await session.tools.add_source("a", shown)
            await session.tools.add_source("b", hidden)
            assert (shown.resolved, hidden.resolved) == ([], [])
            await session.turn("hello")
            assert (shown.resolved, hidden.resolved) == (["shown"], [])
            generation = await session.tools.generation()
            await call(session, "called")
            await call(session, "called", "shown")
            assert (shown.resolved, hidden.resolved) == (["shown"], ["called"])
            assert await session.tools.generation() == generation + 1
            assert (shown.listed, hidden.listed) == (1, 1)

    asyncio.run(main())


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("availability", [ToolAvailability.SHOWCASED, ToolAvailability.CALLABLE])
def test_ten_thousand_tools_add_no_cost_to_a_second_turn(
    memory: Place, availability: ToolAvailability
) -> None:
    """Ours: the cached catalog calls no source and returns the same contracts."""

    async def main() -> None:
        heard: list[ToolCatalogContext] = []
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(heard=heard))
            assert len(heard) == 1
            many = Source(*(f"tool_{number}" for number in range(10_000)), availability=availability)
            await session.tools.add_source("many", many)
            await session.turn("hello")
            shown = 10_000 if availability is ToolAvailability.SHOWCASED else 0
            assert (many.listed, len(many.resolved), len(heard)) == (1, shown, 2)
            for _ in range(3):
                await session.turn("hello")
            assert (many.listed, len(many.resolved), len(heard)) == (1, shown, 2)
            requests = model_of(session).requests
            assert all(request.tools is requests[0].tools for request in requests)
            assert len(requests[0].tools) == shown + 2

    asyncio.run(main())


def test_sessions_with_the_same_tools_share_one_catalog_until_one_changes_it(memory: Place) -> None:
    """Ours: ten thousand tools are not stored once per session."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(ObedientModel(), tools=[named_tool(f"tool_{number}") for number in range(20)])
            one, other = await runtime.session("a", agent=agent), await runtime.session("b", agent=agent)
            await one.turn("hello")
            await other.turn("hello")
            first, second = await context_of(one), await context_of(other)
            assert first.artifact() is second.artifact()
            await other.tools.set_availability("tool_3", "off")
            assert [tool["name"] for tool in await one.tools.catalog()].count("tool_3") == 1
            assert [tool["name"] for tool in await other.tools.catalog()].count("tool_3") == 0
            third = await runtime.session("c", agent=agent)
            assert len(await third.tools.catalog()) == 20

    asyncio.run(main())
