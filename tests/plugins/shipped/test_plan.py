"""The plugin `plan`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, events_of, of_kind, results

from standfast import Agent, tool
from standfast.errors import InvalidArgument, StandfastError
from standfast.model.events import PluginEventEmitted
from standfast.model.session import PluginNode
from standfast.plugins.shipped import Plan
from standfast.plugins.shipped.plan import PlanItem

TWO = [{"title": "look", "status": "done"}, {"title": "mend", "status": "in_progress"}]
DONE = [{"title": "look", "status": "done"}, {"title": "mend", "status": "done"}]


def writes(*items: Any) -> dict[str, Any]:
    return asks(("update_plan", {"items": list(items)}))


def expects(words: str, reply: dict[str, Any] | str = "end") -> dict[str, Any]:
    """Return a reply that expects these words in the prompt."""
    given = {"text": reply} if isinstance(reply, str) else reply
    return {**given, "expect": {"instructions_contain": words}}


def planner(*replies: Any, **options: Any) -> Agent[Any, Any]:
    return agent_of(*replies, plugins=[Plan()], **options)


async def shown(session: Any) -> Any:
    return await session.plugins.invoke("plan.show")


def test_the_model_keeps_a_plan_and_reads_it_in_its_next_prompt(memory: Place) -> None:
    """Ours: the plugin keeps a checklist for the model."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = planner(writes(*TWO), expects("[x] look\n[>] mend"), expects("[>] mend"))
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            assert results(result.messages) == ["1 of 2 done"]
            assert await shown(session) == TWO
            await session.turn("and now?")

    asyncio.run(main())


def test_an_observer_gets_an_event_only_when_the_plan_changes(memory: Place) -> None:
    """Ours: the user sees the plan; setting the same plan again emits no event."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = planner(writes(*TWO), writes(*TWO), writes(*DONE), "end")
            session = await runtime.session("s", agent=agent)
            events = of_kind(PluginEventEmitted, await events_of(session.turn("go")))
            assert [(one.plugin_id, one.kind, one.body) for one in events] == [
                ("plan", "plan_updated", {"items": TWO}),
                ("plan", "plan_updated", {"items": DONE}),
            ]
            nodes = [one.payload for one in await session.nodes() if isinstance(one.payload, PluginNode)]
            assert [one.body for one in nodes] == [{"items": TWO}, {"items": DONE}]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([{"title": "a", "status": "in_progress"}, {"title": "b", "status": "in_progress"}], "only one item"),
        ([{"title": f"step {number}"} for number in range(51)], "at most 50 items"),
        ([{"title": " \n "}], "empty title"),
        ([{"title": "a", "status": "begun"}], "status"),
        ([{"title": "a", "due": "today"}], "due"),
        ([{"title": "x" * 201}], "200"),
    ],
)
def test_an_invalid_plan_is_refused_and_the_old_one_is_kept(
    memory: Place, items: list[Any], problem: str
) -> None:
    """Ours: the model reads a clear error message."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=planner(writes(*TWO), writes(*items), "end"))
            result = await session.turn("go")
            assert results(result.messages) == ["1 of 2 done", "INVALID_ARGUMENT"]
            assert problem in str(result.messages[-2])
            assert await shown(session) == TWO

    asyncio.run(main())


def test_the_plan_survives_a_restart_between_turns_and_within_a_turn(place: Place) -> None:
    """Ours: a plugin's state is stored with the turn that changed it."""

    @tool(approval="manual")
    def pay() -> str:
        return "paid"

    script = (writes(*TWO), asks(("pay", {})), expects("[>] mend"), expects("[>] mend"))

    async def begin() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=planner(*script, tools=[pay]))
            assert (await session.turn("go")).status == "waiting"

    async def continue_turn() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=planner(*script, tools=[pay]))
            (asked,) = await session.approvals(pending=True)
            assert (await session.approve(asked.approval_id)).output == "end"
            assert await shown(session) == TWO
            await session.turn("again")

    async def look() -> None:
        async with place.runtime() as runtime:
            assert await shown(await runtime.session("s", agent=planner())) == TWO

    for main in (begin, continue_turn, look):
        asyncio.run(main())


def test_a_fork_copies_the_plan_and_a_rewind_restores_it(place: Place) -> None:
    """Ours: the plan belongs to a point in the history."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = planner("hello", writes(*TWO), "end", writes(*DONE), "end")
            session = await runtime.session("s", agent=agent)
            await session.turn("zero")
            await session.turn("one")
            fork = await session.fork("f")
            await session.turn("two")
            assert await shown(session) == DONE
            assert await shown(fork) == TWO
            await session.rewind(turns=1)
            assert await shown(session) == TWO
            await session.rewind(turns=1)
            assert await shown(session) == []

    asyncio.run(main())


def test_a_person_may_change_the_plan_between_turns(place: Place) -> None:
    """Ours: `plan.set` is durable when it returns, and the model reads it."""

    async def change() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=planner("end"))
            await session.turn("hello")
            items = [PlanItem(title="ask   first")]
            kept: list[PlanItem] = await session.plugins.call("plan.set", items, list[PlanItem])
            assert kept == [PlanItem(title="ask first", status="pending")]

    async def read() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=planner("end", expects("[ ] ask first")))
            await session.turn("go")

    asyncio.run(change())
    asyncio.run(read())


def test_the_maximum_length_of_a_plan_is_an_option(memory: Place) -> None:
    """Ours: an option is validated when it is given, in code or with a session."""
    for wrong in (0, True, "many"):
        with pytest.raises(InvalidArgument, match="max_items"):
            Plan(max_items=wrong)  # type: ignore[arg-type]

    async def main() -> None:
        async with memory.runtime() as runtime:
            with pytest.raises(StandfastError, match="max_items"):
                await (
                    await runtime.session("x", agent=planner("end"), options={"plan": {"max_items": 0}})
                ).turn("go")
            options = {"plan": {"max_items": 1}}
            session = await runtime.session("s", agent=planner(writes(*TWO), "end"), options=options)
            assert results((await session.turn("go")).messages) == ["INVALID_ARGUMENT"]

    asyncio.run(main())


def test_an_agent_can_refer_to_the_plugin_by_name() -> None:
    """Ours: shipped plugins are registered as entry points, so an agent can name them."""
    agent = Agent("scripted:demo", plugins=["plan"])
    assert [one.id for one in agent.plugins] == ["plan"]


@tool(approval="manual")
def pay() -> str:
    """Pay."""
    return "paid"


def test_a_query_while_a_turn_waits_is_answered_with_the_plan_of_that_turn(place: Place) -> None:
    """Bug: another process answered with the plan from before the turn."""

    def agent() -> Agent[Any, Any]:
        return planner(writes(*TWO), asks(("pay", {})), "end", tools=[pay])

    async def begin() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent())
            assert (await session.turn("go")).status == "waiting"
            assert await shown(session) == TWO

    async def look() -> None:
        async with place.runtime() as runtime:
            assert await shown(await runtime.session("s", agent=agent())) == TWO

    asyncio.run(begin())
    asyncio.run(look())


def test_an_invalid_argument_of_an_action_is_the_callers_mistake(memory: Place) -> None:
    """Bug: an invalid argument was reported as a failure of the plugin."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=planner())
            with pytest.raises(InvalidArgument):
                await session.plugins.invoke("plan.set", [{"title": "a", "status": "in_progress"}] * 2)

    asyncio.run(main())
