"""The tools of sessions, their history and the trace, as plugins and tools may change them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from host_stage import said, staged
from plugin_stand_ins import ObedientModel, call
from stand_ins import Place
from stand_ins import said as words

from standfast import Plugin, RunContext, hook, tool
from standfast.errors import GenerationMismatch, InvalidArgument, UnknownTool
from standfast.model.capability import ToolAvailability
from standfast.model.host_requests import Appended, AppendSessionNodesRequest, BranchIsStale
from standfast.model.message import UserMessage
from standfast.model.session import PluginNode
from standfast.model.trace_record import TraceRecord


def _note(body: str) -> PluginNode:
    return PluginNode(plugin_id="p", kind="note", body=body)


# Tools


def test_the_catalog_is_a_copy_of_the_tools_offered_to_the_model(place: Place) -> None:
    """Seed: ToolCatalogHost.tool_catalog; changing the returned catalog has no effect."""

    async def main() -> None:
        async with staged(place) as stage:
            catalog = await stage.host.tool_catalog("root")
            assert {"look", "put", "bump"} <= {one["name"] for one in catalog}
            for one in catalog:
                one.clear()
            catalog.clear()
            assert "look" in await stage.offered("root")

    asyncio.run(main())


def test_tool_state_is_read_changed_and_applied_within_its_generation(place: Place) -> None:
    """Seed: apply_tool_state refuses the state of an earlier generation."""

    async def main() -> None:
        async with staged(place) as stage:
            state = await stage.host.tool_state("root")
            hidden = state.with_availability(["look"], ToolAvailability.OFF)
            generation = await stage.host.apply_tool_state("root", hidden)
            assert generation == state.generation + 1
            assert "look" not in await stage.offered("root")
            with pytest.raises(GenerationMismatch):
                await stage.host.apply_tool_state("root", state)
        async with staged(place) as stage:
            assert "look" not in await stage.offered("root")

    asyncio.run(main())


def test_availability_is_set_for_all_named_tools_or_for_none(place: Place) -> None:
    """Seed: set_tools_availability is all or nothing; None clears the setting."""

    async def main() -> None:
        async with staged(place) as stage:
            with pytest.raises(UnknownTool):
                await stage.host.set_tools_availability("root", ["look", "gone"], ToolAvailability.OFF)
            assert "look" in await stage.offered("root")
            first = await stage.host.set_tools_availability("root", ["look", "put"], ToolAvailability.OFF)
            assert not {"look", "put"} & set(await stage.offered("root"))
            second = await stage.host.set_tool_availability("root", "look", None)
            assert second == first + 1
            assert "look" in await stage.offered("root")
            with pytest.raises(UnknownTool):
                await stage.host.set_tool_availability("root", "gone", None)

    asyncio.run(main())


class Switch(Plugin):
    """A plugin that turns a tool off before each turn."""

    @hook
    async def before_turn(self, ctx: Any) -> None:
        await ctx.host.set_tool_availability(ctx.session_id, "put", ToolAvailability.OFF)


def test_a_hook_may_turn_a_tool_off(place: Place) -> None:
    """Seed: TurnHookHost has the tool state, which is stored with the turn."""

    async def main() -> None:
        model = ObedientModel()
        async with staged(place, Switch(), model=model) as stage:
            await stage.session.turn("hello")
            assert "put" not in await stage.offered("root")
            await stage.session.turn("again")
            assert "put" not in model.offered
        async with staged(place, model=model) as stage:
            assert "put" not in await stage.offered("root")

    asyncio.run(main())


# The graph


def test_nodes_are_appended_under_the_leaf_or_the_branch_is_stale(place: Place) -> None:
    """Seed: append_session_nodes checks requires_ancestor_node_id."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.session.turn("one")
            leaf = (await stage.session.head()).leaf
            request = AppendSessionNodesRequest(
                nodes=(_note("a"), _note("b")), requires_ancestor_node_id=leaf
            )
            done = await stage.host.append_session_nodes("root", request)
            assert isinstance(done, Appended)
            nodes = await stage.session.nodes()
            assert [node.id for node in nodes[-2:]] == list(done.node_ids)
            assert done.leaf_node_id == nodes[-1].id
            assert [node.payload.body for node in nodes[-2:]] == ["a", "b"]
            await stage.session.rewind(leaf)
            stale = AppendSessionNodesRequest(
                nodes=(_note("c"),), requires_ancestor_node_id=done.leaf_node_id
            )
            answer = await stage.host.append_session_nodes("root", stale)
            assert answer == BranchIsStale(current_leaf_node_id=leaf)
            assert (await stage.session.head()).leaf == leaf
            assert msgspec.json.decode(msgspec.json.encode(answer))["status"] == "stale_branch"

    asyncio.run(main())


def test_appending_nothing_changes_nothing_and_invalid_nodes_are_refused(memory: Place) -> None:
    """Ours: the edge cases of append_session_nodes are defined."""

    async def main() -> None:
        async with staged(memory) as stage:
            await stage.session.turn("one")
            before = await stage.session.head()
            done = await stage.host.append_session_nodes("root", AppendSessionNodesRequest(nodes=()))
            assert done == Appended(node_ids=(), leaf_node_id=before.leaf or "")
            wrong: Any = AppendSessionNodesRequest(
                nodes=(PluginNode(plugin_id="p", kind="k", body=object()),)
            )
            with pytest.raises(InvalidArgument):
                await stage.host.append_session_nodes("root", wrong)
            assert (await stage.session.head()).leaf == before.leaf

    asyncio.run(main())


class Scribe(Plugin):
    """A plugin whose tool writes to the history and to the trace."""

    @tool(side_effect="write")
    async def write(self, ctx: RunContext[None], text: str) -> str:
        """Write something into the history."""
        message = UserMessage(content=text)
        done = await ctx.host.append_session_nodes(
            ctx.session_id, AppendSessionNodesRequest(nodes=(message,))
        )
        await ctx.host.emit_trace_event("written", {"text": text})
        await ctx.host.emit_trace_event("unspeakable", object())
        assert isinstance(done, Appended)
        return done.leaf_node_id


def test_a_tool_may_append_to_its_own_session_during_a_turn(place: Place) -> None:
    """Seed: ToolHookHost has the graph; the turn's own nodes come after the appended ones."""

    async def main() -> None:
        async with staged(place, Scribe(), model=ObedientModel()) as stage:
            (answer,) = await call(stage.session, 'write:{"text":"aside"}')
            assert isinstance(answer.value, str)
            assert words(await stage.session.messages()) == ["aside", 'call write:{"text":"aside"}']
            done = await stage.session.turn("and then")
            assert done.output == "ok"

    asyncio.run(main())


class Sink:
    """A trace sink that keeps its records."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def record(self, record: TraceRecord, /) -> None:
        self.records.append(record)

    def named(self, name: str) -> list[TraceRecord]:
        return [one for one in self.records if one.name == name]


def test_a_tool_may_add_records_to_the_trace_of_its_turn(memory: Place) -> None:
    """Seed: TraceHost never fails."""
    sink = Sink()

    async def main() -> None:
        async with staged(memory, Scribe(), model=ObedientModel(), trace=sink) as stage:
            await call(stage.session, 'write:{"text":"x"}')
            await stage.host.emit_trace_event("outside", [1])
            turns = await stage.session.turns()
            (record,) = sink.named("written")
            assert (record.session_id, record.turn_id, record.body) == (
                "root", turns[0].turn_id, {"text": "x"},
            )  # fmt: skip
            (outside,) = sink.named("outside")
            assert (outside.turn_id, outside.body) == ("", [1])
            (nothing,) = sink.named("unspeakable")
            assert nothing.body is None
            await stage.host.start_turn("root", said("more"))
        await stage.host.emit_trace_event("after the end")
        assert sink.named("after the end") == []

    asyncio.run(main())
