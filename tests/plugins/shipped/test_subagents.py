"""The plugin `subagents`, over a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from stand_ins import Place
from subagent_stage import EACH, Cast, Move, calls, errors, on, spawn, spawned, values

from standfast import Agent, Runtime, UsageLimits, tool
from standfast.errors import InvalidArgument
from standfast.model.message import UserMessage, text_of
from standfast.model.outcome import Finished, Stopped, StopReason
from standfast.model.session import TurnState
from standfast.model.task import TaskState
from standfast.plugins.shipped import Subagents
from standfast.ports.model_provider import ModelRequest

pytestmark = pytest.mark.slow

SUBAGENT_TOOLS = ["close", "send_input", "spawn_agent", "wait"]
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

Play = Callable[[Runtime, Any], Awaitable[None]]


@tool(side_effect="read")
def look(what: str = "") -> str:
    """Look at something."""
    return f"seen {what}"


@tool(side_effect="read")
def peek() -> str:
    """Look at something else."""
    return "peeked"


@tool(approval="manual")
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def team(
    cast: Cast, *, worker_tools: Any = (look, pay), limits: Any = None, **options: Any
) -> list[Agent[Any, Any]]:
    """Return a lead with the plugin and a worker without it, on one model."""
    options.setdefault("agents", ["worker"])
    lead = Agent(cast, name="lead", tools=[look, pay], plugins=[Subagents(**options)], limits=limits)
    return [lead, Agent(cast, name="worker", tools=list(worker_tools))]


def play(memory: Place, agents: list[Agent[Any, Any]], act: Play, **settings: Any) -> None:
    async def main() -> None:
        async with memory.runtime(agents=agents, **settings) as runtime:
            await act(runtime, await runtime.session("s", agent=agents[0]))

    asyncio.run(main())


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until another task has made the condition true."""
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def states(runtime: Runtime, session_id: str = "s") -> list[TaskState]:
    return [task.state for task in await runtime.store.tasks(session_id=session_id)]


def wait_all(request: ModelRequest) -> list[Any]:
    return calls(("wait", {"agent_ids": spawned(request), "timeout_s": 10}))


def told(request: ModelRequest) -> str:
    """Answer with the statuses that the last wait() reported."""
    return ", ".join(one["status"] for one in values(request, "wait")[-1])


# Concurrency


def test_subagents_run_concurrently_and_do_not_block_their_parent(memory: Place) -> None:
    """Seed: spawn_agent returns immediately, and subagents run concurrently."""
    met: list[str] = []
    both = asyncio.Event()

    def meet(name: str) -> Move:
        async def arrive(request: ModelRequest) -> str:
            met.append(name)
            if len(met) == 3:
                both.set()
            await both.wait()
            return f"{name} is done"

        return arrive

    def wait_for_both(request: ModelRequest) -> Any:
        assert len(spawned(request)) == 2
        met.append("lead")
        both.set() if len(met) == 3 else None
        return wait_all(request)

    cast = Cast(
        Lead=[calls(spawn("A.", agent="worker"), spawn("B.", agent="worker")), wait_for_both, told],
        **{"A.": [meet("A")], "B.": [meet("B")]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        result = await session.turn("Lead this.")
        assert result.output == "finished, finished"
        assert await states(runtime) == [TaskState.COMPLETED] * 2

    play(memory, team(cast), act)
    assert sorted(met) == ["A", "B", "lead"]


def test_a_subagent_uses_its_parents_agent_unless_another_is_named(memory: Place) -> None:
    """Seed: the child's agent is the parent's own, or one of `agents` by name."""
    cast = Cast(
        Lead=[calls(spawn("Twin."), spawn("Other.", agent="worker")), wait_all, told],
        **{"Twin.": ["same"], "Other.": ["else"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        heads = {head.agent: head for head in await runtime.sessions() if head.charter is not None}
        assert set(heads) == {"lead", "worker"}
        for head in heads.values():
            assert head.charter is not None
            assert (head.charter.parent_session_id, head.charter.depth) == ("s", 1)
            assert head.charter.subagent

    play(memory, team(cast), act)
    assert cast.tools_of("Twin.") == sorted(["look", "pay", *SUBAGENT_TOOLS])
    assert cast.tools_of("Other.") == ["look", "pay"]


def test_a_subagent_does_not_see_the_parents_conversation(memory: Place) -> None:
    """Ours: a subagent starts with its task and without the parent's history."""
    cast = Cast(Lead=[calls(spawn("Twin. Dig here.")), wait_all, told], **{"Twin.": ["dug"]})
    play(memory, team(cast), lambda runtime, session: session.turn("Lead this. The code is 4711."))
    [request] = cast.requests["Twin."]
    assert [text_of(one.content) for one in request.messages if isinstance(one, UserMessage)] == [
        "Twin. Dig here."
    ]
    assert "delegate parts of the work" in cast.requests["Lead"][0].instructions


def test_the_four_outcomes_of_subagents_are_distinguished(memory: Place) -> None:
    """Seed: one fails, one is cancelled, one waits for an approval, one succeeds."""
    never = asyncio.Event()

    def fail(request: ModelRequest) -> str:
        raise RuntimeError("the model is gone")

    def close_third(request: ModelRequest) -> Any:
        return calls(("close", {"agent_id": spawned(request)[2]}), *wait_all(request))

    cast = Cast(
        Lead=[
            calls(
                spawn("Good.", agent="worker"), spawn("Bad.", agent="worker"), spawn("Slow."), spawn("Payer.")
            ),
            close_third,
            told,
        ],
        **{
            "Good.": [calls(("look", {"what": "it"})), "all good"],
            "Bad.": [fail],
            "Slow.": [on(never, "late")],
            "Payer.": [calls(("pay", {"cents": 7})), "paid"],
        },
    )

    async def act(runtime: Runtime, session: Any) -> None:
        result = await session.turn("Lead this.")
        assert result.output == "finished, failed, cancelled, waiting"
        [reports] = values_of(await session.messages(), "wait")
        good, bad, slow, payer = reports
        assert (good["text"], good["usage"]["calls"]) == ("all good", 2)
        assert bad["error"]["code"] == "PROVIDER_ERROR"
        assert slow["error"]["code"] == "CANCELLED"
        [approval] = await runtime.approvals(pending=True)
        assert payer["waits"] == [{"id": approval.approval_id, "kind": "approval", "capability": "pay"}]
        assert await states(runtime) == [
            TaskState.COMPLETED,
            TaskState.FAILED,
            TaskState.CANCELLED,
            TaskState.RUNNING,
        ]
        await runtime.approve(approval.approval_id)
        await until(lambda: ended(runtime, 3))
        again = await session.plugins.invoke("subagents.show")
        assert [one["status"] for one in again] == ["finished", "failed", "cancelled", "finished"]
        assert again[3]["text"] == "paid"

    async def ended(runtime: Runtime, place: int) -> bool:
        return (await states(runtime))[place] is TaskState.COMPLETED

    play(memory, team(cast), act)


def values_of(messages: list[Any], name: str) -> list[Any]:
    return [one.value for one in messages if getattr(one, "name", None) == name and one.error is None]


def test_a_wait_that_times_out_reports_the_subagents_still_running(memory: Place) -> None:
    """Seed: wait returns when its time is over."""
    go = asyncio.Event()
    cast = Cast(
        Lead=[calls(spawn("Slow.", agent="worker")), calls(("wait", {"timeout_s": 0})), told],
        **{"Slow.": [on(go, "late")]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "running"
        go.set()
        await until(lambda: completed(runtime))

    async def completed(runtime: Runtime) -> bool:
        return await states(runtime) == [TaskState.COMPLETED]

    play(memory, team(cast), act)


def test_a_wait_can_include_subagents_that_wait_for_a_person(memory: Place) -> None:
    """Ours: a parent that needs the answer can wait for it in one call."""
    cast = Cast(
        Lead=[
            calls(spawn("Payer.", agent="worker")),
            calls(("wait", {"timeout_s": 20, "for_people": True})),
            told,
        ],
        **{"Payer.": [calls(("pay", {"cents": 7})), "paid"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        turn = session.turn("Lead this.")
        turn.start()
        await until(lambda: runtime.approvals(pending=True))
        [approval] = await runtime.approvals(pending=True)
        await runtime.deny(approval.approval_id)
        assert (await turn).output == "finished"

    play(memory, team(cast), act)


# Typed results


def test_an_answer_that_does_not_match_the_schema_is_requested_again(memory: Place) -> None:
    """Seed: results are typed; a subagent with the plugin reads what is wrong with its answer."""
    cast = Cast(
        Lead=[calls(spawn("Counter. Count.", output_schema=COUNT)), wait_all, told],
        **{"Counter.": ["three", '{"n": 3}']},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        [[report]] = values_of(await session.messages(), "wait")
        assert (report["status"], report["value"], report["usage"]["calls"]) == ("finished", {"n": 3}, 2)

    play(memory, team(cast), act)
    assert "JSON Schema" in text_of(cast.requests["Counter."][0].messages[0].content)


def test_the_schema_applies_to_an_agent_without_the_plugin_too(memory: Place) -> None:
    """Ours: the parent never accepts an invalid value."""
    cast = Cast(
        Lead=[calls(spawn("Counter.", agent="worker", output_schema=COUNT)), wait_all, told],
        **{"Counter.": ["three"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "failed"
        [[report]] = values_of(await session.messages(), "wait")
        assert (report["error"]["code"], report["text"]) == ("OUTPUT_INVALID", "three")

    play(memory, team(cast), act)


def test_a_typed_agents_answer_has_its_output_type(memory: Place) -> None:
    """Ours: the value of `output_type` is the report's value."""
    cast = Cast(Lead=[calls(spawn("Counter.", agent="typed")), wait_all, told], **{"Counter.": ["[1, 2]"]})
    lead = Agent(cast, name="lead", plugins=[Subagents(agents=["typed"])])
    typed = Agent(cast, name="typed", output_type=list[int])

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        [[report]] = values_of(await session.messages(), "wait")
        assert report["value"] == [1, 2]

    play(memory, [lead, typed], act)


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"description": "x" * 20_000}])
def test_an_invalid_schema_is_refused_before_a_subagent_starts(memory: Place, schema: Any) -> None:
    """Ours: the parent made the mistake, so the parent gets the error."""
    cast = Cast(Lead=[calls(spawn("Counter.", output_schema=schema)), "so be it"])

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        [error] = errors(await session.messages(), "spawn_agent")
        assert "output_schema" in error.message
        assert len(await runtime.sessions()) == 1

    play(memory, team(cast), act)


# Permissions


def test_a_subagent_never_has_a_tool_that_its_parent_lacks(memory: Place) -> None:
    """Seed: tool access is never wider than the parent's, for a subagent that no agent declared."""
    cast = Cast(
        Lead=[calls(spawn("Twin.", tools=["look", "spawn_agent"])), wait_all, told],
        **{"Twin.": [calls(spawn("Below.")), "fine"], "Below.": ["fine"]},
    )
    play(memory, team(cast, max_depth=3), lambda runtime, session: session.turn("Lead this."))
    assert cast.tools_of("Below.") == ["look", "spawn_agent"]


def test_requesting_a_tool_that_the_parent_lacks_is_refused(memory: Place) -> None:
    """Seed: a child that requests a tool the parent lacks does not get it."""
    cast = Cast(Lead=[calls(spawn("Twin.", tools=["look", "peek"])), "so be it"])

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        [error] = errors(await session.messages(), "spawn_agent")
        assert "'peek'" in error.message
        assert "look" in error.hint
        assert len(await runtime.sessions()) == 1

    play(memory, team(cast, worker_tools=(look, peek)), act)


@pytest.mark.parametrize(("given", "had"), [(["look"], ["look"]), ([], [])])
def test_a_subagent_can_be_given_fewer_tools(memory: Place, given: list[str], had: list[str]) -> None:
    """Ours: `tools=[...]` is exclusive, and an empty list means no tools."""
    cast = Cast(Lead=[calls(spawn("Twin.", tools=given)), wait_all, told], **{"Twin.": ["fine"]})
    play(memory, team(cast), lambda runtime, session: session.turn("Lead this."))
    assert cast.tools_of("Twin.") == had


def test_a_tool_that_is_off_for_the_parent_is_off_for_its_subagents(memory: Place) -> None:
    """Ours: a subagent like its parent cannot use a tool that is off in the parent's session."""
    cast = Cast(Lead=[calls(spawn("Twin.")), wait_all, told], **{"Twin.": ["fine"]})

    async def act(runtime: Runtime, session: Any) -> None:
        await session.tools.set_availability("pay", "off")
        await session.turn("Lead this.")

    play(memory, team(cast), act)
    assert cast.tools_of("Twin.") == sorted([*SUBAGENT_TOOLS, "look"])


def test_an_agent_at_the_deepest_level_has_no_subagent_tools(memory: Place) -> None:
    """Seed: the depth of subagents is limited."""
    cast = Cast(
        Lead=[calls(spawn("Below.")), wait_all, told],
        **{"Below.": [calls(spawn("Bottom.")), wait_all, told], "Bottom.": ["here"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "finished"
        depths = sorted(head.charter.depth for head in await runtime.sessions() if head.charter is not None)
        assert depths == [1, 2]

    play(memory, team(cast, max_depth=2), act)
    assert set(SUBAGENT_TOOLS) <= set(cast.tools_of("Below."))
    assert cast.tools_of("Bottom.") == ["look", "pay"]
    assert "delegate parts of the work" not in cast.requests["Bottom."][0].instructions


def test_the_number_of_running_subagents_is_limited(memory: Place) -> None:
    """Ours: max_children counts running subagents; one that has ended makes room for another."""
    go = asyncio.Event()

    def let_go(request: ModelRequest) -> Any:
        go.set()
        return wait_all(request)

    cast = Cast(
        Lead=[
            calls(spawn("A.", agent="worker"), spawn("B.", agent="worker")),
            let_go,
            calls(spawn("B.", agent="worker")),
            wait_all,
            told,
        ],
        **{"A.": [on(go, "a")], "B.": ["b"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "finished, finished"
        [error] = errors(await session.messages(), "spawn_agent")
        assert (error.code, "close()" in error.message) == ("TOO_MANY_SUBAGENTS", True)

    play(memory, team(cast, max_children=1), act)


@pytest.mark.parametrize("name", ["unknown", "lead"])
def test_an_undeclared_agent_cannot_be_a_subagent(memory: Place, name: str) -> None:
    """Ours: the model may choose only among the declared agents."""
    cast = Cast(Lead=[calls(spawn("X.", agent=name)), "so be it"])

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        [error] = errors(await session.messages(), "spawn_agent")
        assert "worker" in error.hint

    play(memory, team(cast), act)


def test_an_agent_cannot_reach_another_sessions_subagents(memory: Place) -> None:
    """Ours: the id of another session's subagent is unknown here."""
    cast = Cast(
        Lead=[calls(spawn("A.", agent="worker")), wait_all, told],
        Spy=[calls(("wait", {"agent_ids": ["sub-1"]}), ("close", {"agent_id": "s"})), "so be it"],
        **{"A.": ["a"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        spy = await runtime.session("spy", agent=team(cast)[0])
        await spy.turn("Spy on it.")
        assert len(errors(await spy.messages(), "wait")) == 1
        assert len(errors(await spy.messages(), "close")) == 1

    play(memory, team(cast), act)


def test_a_turn_started_before_a_crash_is_found_again(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a parent that died between starting the turn and recording it can still find the turn."""
    monkeypatch.setattr("standfast.plugins.shipped.subagent_tools._BEGINNING_S", 0)
    cast = Cast(
        Lead=[calls(spawn("A. Go.", agent="worker"), spawn("Payer.", agent="worker")), wait_all, told],
        **{"A.": [calls(("look", {})), "a"], "Payer.": [calls(("pay", {"cents": 7})), "paid"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "finished, waiting"
        tasks = await runtime.store.tasks(session_id="s")
        assert ["turn_id" in task.body for task in tasks] == [False, False]
        for task in tasks:
            assert len(await runtime.store.turns(task.id)) == 1

    play(memory, team(cast), act)


# Messages to subagents


def test_a_running_subagent_receives_input(memory: Place) -> None:
    """Seed: input is injected into a running subagent."""
    go = asyncio.Event()

    def send(request: ModelRequest) -> Any:
        return calls(("send_input", {"agent_id": spawned(request)[0], "text": "Hurry up."}))

    def let_go(request: ModelRequest) -> Any:
        go.set()
        return wait_all(request)

    cast = Cast(
        Lead=[calls(spawn("Slow.", agent="worker")), send, let_go, told],
        **{"Slow.": [on(go, calls(("look", {"what": "it"}))), "done"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "finished"
        assert [one["began"] for one in values_of(await session.messages(), "send_input")] == [False]

    play(memory, team(cast), act)
    heard = [
        text_of(one.content) for one in cast.requests["Slow."][1].messages if isinstance(one, UserMessage)
    ]
    assert heard == ["Slow.", "Hurry up."]


def test_an_ended_subagent_resumes_when_it_is_sent_input(memory: Place) -> None:
    """Seed: an idle child gets a follow-up turn with its history."""

    def send(request: ModelRequest) -> Any:
        return calls(("send_input", {"agent_id": spawned(request)[0], "text": "And now?"}))

    cast = Cast(
        Lead=[calls(spawn("Talker.", agent="worker")), wait_all, send, wait_all, told],
        **{"Talker.": ["first", "second"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "finished"
        first, second = values_of(await session.messages(), "wait")
        assert (first[0]["text"], second[0]["text"]) == ("first", "second")
        assert (first[0]["usage"]["calls"], second[0]["usage"]["calls"]) == (1, 2)
        assert [one["began"] for one in values_of(await session.messages(), "send_input")] == [True]
        assert await states(runtime) == [TaskState.COMPLETED]

    play(memory, team(cast), act)
    assert len(cast.requests["Talker."][1].messages) == 3


# Ending


def test_closing_one_subagent_does_not_affect_the_others(memory: Place) -> None:
    """Seed: closing one leaves the others running."""
    never, go = asyncio.Event(), asyncio.Event()

    def close_one(request: ModelRequest) -> Any:
        return calls(("close", {"agent_id": spawned(request)[0]}))

    def let_go(request: ModelRequest) -> Any:
        go.set()
        return wait_all(request)

    cast = Cast(
        Lead=[calls(spawn("A.", agent="worker"), spawn("B.", agent="worker")), close_one, let_go, told],
        **{"A.": [on(never, "a")], "B.": [on(go, "b")]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "cancelled, finished"
        [closed] = values_of(await session.messages(), "close")
        assert closed["status"] == "cancelled"
        assert await states(runtime) == [TaskState.CANCELLED, TaskState.COMPLETED]

    play(memory, team(cast), act)


def test_closing_a_subagent_closes_its_own_subagents(memory: Place) -> None:
    """Seed: close ends the child's subtree."""
    never, deep = asyncio.Event(), asyncio.Event()

    def dig(request: ModelRequest) -> Any:
        deep.set()
        return on(never, "x")(request)

    def close_one(request: ModelRequest) -> Any:
        return calls(("close", {"agent_id": spawned(request)[0]}))

    cast = Cast(
        Lead=[calls(spawn("Below.")), on(deep, close_one), "closed"],
        **{"Below.": [calls(spawn("Bottom.")), wait_all, told], "Bottom.": [dig]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        turns = [
            turn for head in await runtime.sessions() for turn in await runtime.store.turns(head.session_id)
        ]
        assert [turn.state for turn in turns] == [TurnState.ENDED] * 3
        found = [task.state for task in await runtime.store.tasks()]
        assert found == [TaskState.CANCELLED] * 2

    play(memory, team(cast), act)


def test_cancelling_a_turn_cancels_its_subagents(memory: Place) -> None:
    """Ours: no caller is left to wait for them; their history and usage are kept."""
    never, began = asyncio.Event(), asyncio.Event()

    def begin(request: ModelRequest) -> Any:
        began.set()
        return on(never, "x")(request)

    cast = Cast(Lead=[calls(spawn("Slow.", agent="worker")), wait_all], **{"Slow.": [begin]})

    async def act(runtime: Runtime, session: Any) -> None:
        turn = session.turn("Lead this.")
        turn.start()
        await began.wait()
        await until(lambda: has_task(runtime))
        await turn.cancel()
        result = await turn.settled()
        assert isinstance(result.outcome, Stopped)
        assert await states(runtime) == [TaskState.CANCELLED]
        [child] = [head.session_id for head in await runtime.sessions() if head.charter is not None]
        [record] = await runtime.store.turns(child)
        assert record.summary is not None
        assert record.summary.outcome.reason is StopReason.CANCELLED

    async def has_task(runtime: Runtime) -> bool:
        return len(await states(runtime)) == 1

    play(memory, team(cast), act)


def test_a_finished_turn_leaves_its_subagents_running(memory: Place) -> None:
    """Ours: the next turn of the session can wait for them."""
    go = asyncio.Event()
    cast = Cast(
        Lead=[calls(spawn("Slow.", agent="worker")), "It is under way.", calls(("wait", {})), told],
        **{"Slow.": [on(go, "late")]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "It is under way."
        assert await states(runtime) == [TaskState.RUNNING]
        turn = session.turn("And?")
        turn.start()
        go.set()
        assert (await turn).output == "finished"

    play(memory, team(cast), act)


def test_a_subagent_that_ends_cancels_its_own_subagents(memory: Place) -> None:
    """Ours: a subagent that has answered no longer waits for its own subagents."""
    never = asyncio.Event()
    cast = Cast(
        Lead=[calls(spawn("Below.")), wait_all, told],
        **{"Below.": [calls(spawn("Bottom.")), "I do not care"], "Bottom.": [on(never, "x")]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "finished"
        found = {task.session_id: task.state for task in await runtime.store.tasks()}
        assert found.pop("s") is TaskState.COMPLETED
        assert list(found.values()) == [TaskState.CANCELLED]

    play(memory, team(cast), act)


def test_a_subagent_that_waits_for_a_person_can_be_closed(memory: Place) -> None:
    """Ours: a person can no longer decide the approval of a closed subagent."""

    def close_one(request: ModelRequest) -> Any:
        return calls(("close", {"agent_id": spawned(request)[0]}))

    cast = Cast(
        Lead=[calls(spawn("Payer.", agent="worker")), wait_all, close_one, told],
        **{"Payer.": [calls(("pay", {"cents": 7})), "paid"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "waiting"
        [closed] = values_of(await session.messages(), "close")
        assert closed["status"] == "cancelled"
        assert await states(runtime) == [TaskState.CANCELLED]
        assert await runtime.approvals(pending=True) == []

    play(memory, team(cast), act)


def test_closing_the_runtime_leaves_subagents_to_the_next_runtime(tmp_path: Any) -> None:
    """Ours: a shutdown is not a failure; parent and subagent continue in the next runtime."""
    never, began = asyncio.Event(), asyncio.Event()

    def begin(request: ModelRequest) -> Any:
        began.set()
        return on(never, "x")(request)

    def script(slow: Move) -> Cast:
        return Cast(Lead=[calls(spawn("Slow.", agent="worker")), wait_all, told], **{"Slow.": [slow]})

    async def main() -> None:
        agents = team(script(begin))
        async with Runtime(tmp_path / "h.db", agents=agents) as runtime:
            session = await runtime.session("s", agent=agents[0])
            session.turn("Lead this.").start()
            await began.wait()
            await until(lambda: runtime.store.tasks(session_id="s"))
        agents = team(script("fine"))
        async with Runtime(tmp_path / "h.db", agents=agents) as runtime:
            session = await runtime.session("s", agent=agents[0])
            [record] = await session.turns()
            assert (await session.follow(record.turn_id)).output == "finished"
            await until(lambda: completed(runtime))

    async def completed(runtime: Runtime) -> bool:
        return await states(runtime) == [TaskState.COMPLETED]

    asyncio.run(main())


# Budgets and usage


def test_the_usage_of_all_sessions_adds_up(memory: Place) -> None:
    """Seed: usage is rolled up; every model call is in one ledger."""
    cast = Cast(
        Lead=[calls(spawn("Below."), spawn("Twin.")), wait_all, told],
        **{"Below.": [calls(spawn("Bottom.")), wait_all, told], "Bottom.": ["x"], "Twin.": ["y"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        [reports] = values_of(await session.messages(), "wait")
        assert [one["usage"]["calls"] for one in reports] == [4, 1]
        usage = await session.plugins.invoke("subagents.usage")
        assert [usage[name]["calls"] for name in ("own", "subagents", "total")] == [3, 5, 8]
        assert usage["total"]["input"] == 8 * EACH.input
        heads = await runtime.sessions()
        assert sum(line.usage.calls for head in heads for line in head.usage) == 8

    play(memory, team(cast), act)
    assert sum(len(asked) for asked in cast.requests.values()) == 8


def digging(request: ModelRequest) -> Any:
    """Call `look` repeatedly, without end."""
    return calls(("look", {"what": str(len(request.messages))}))


async def digging_slowly(request: ModelRequest) -> Any:
    """Call `look` without end, with a pause, as models are slower than the code that counts tokens."""
    for _ in range(50):
        await asyncio.sleep(0)
    return digging(request)


async def report_of_one(session: Any) -> Any:
    [[report]] = values_of(await session.messages(), "wait")
    return report


def test_a_subagent_is_stopped_when_the_budget_is_exhausted(memory: Place) -> None:
    """Seed: the budget is shared; of five calls the parent makes one and needs two more."""
    cast = Cast(Lead=[calls(spawn("Digger.", agent="worker")), wait_all, told], **{"Digger.": [digging]})

    async def act(runtime: Runtime, session: Any) -> None:
        result = await session.turn("Lead this.")
        report = await report_of_one(session)
        assert (report["status"], report["error"]["code"]) == ("failed", "TURN_BUDGET")
        assert report["usage"]["calls"] == 2
        assert result.output == "failed"

    play(memory, team(cast, limits=UsageLimits(max_calls=5)), act)
    assert sum(len(asked) for asked in cast.requests.values()) == 5
    last = [
        text_of(one.content) for one in cast.requests["Lead"][2].messages if isinstance(one, UserMessage)
    ][-1]
    assert "the turn and its subagents made 4 model calls, the limit is 5" in last


def test_subagents_that_exhaust_the_budget_together_are_stopped(memory: Place) -> None:
    """Seed: each subagent may use all that is left, but together they may not exceed it."""
    cast = Cast(
        Lead=[calls(spawn("A.", agent="worker"), spawn("B.", agent="worker")), wait_all, told],
        **{"A.": [digging_slowly], "B.": [digging_slowly]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "failed, failed"
        [reports] = values_of(await session.messages(), "wait")
        assert {one["error"]["code"] for one in reports} == {"TURN_BUDGET"}

    play(memory, team(cast, limits=UsageLimits(max_calls=15)), act)
    made = {role: len(asked) for role, asked in cast.requests.items()}
    assert made.pop("Lead") == 3
    assert sum(made.values()) <= 12


def test_a_subagent_starts_with_at_most_the_remaining_budget(memory: Place) -> None:
    """Seed: the remaining budget limits the subagent's own turn, wherever it runs."""
    cast = Cast(Lead=[calls(spawn("Digger.", agent="worker")), "I do not wait."], **{"Digger.": [digging]})

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        await until(lambda: over(runtime))
        [child] = [head.session_id for head in await runtime.sessions() if head.charter is not None]
        [record] = await runtime.store.turns(child)
        assert record.summary is not None
        assert record.summary.usage.calls <= 2

    async def over(runtime: Runtime) -> bool:
        return all(state.is_terminal for state in await states(runtime))

    play(memory, team(cast, limits=UsageLimits(max_calls=5)), act)


def test_a_parent_that_exceeds_the_budget_is_stopped(memory: Place) -> None:
    """Ours: subagents' usage counts against the turn, which ends after one more step."""
    cast = Cast(
        Lead=[calls(spawn("A.", agent="worker")), wait_all, digging],
        **{"A.": [digging, digging, "a"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        result = await session.turn("Lead this.").settled()
        assert isinstance(result.outcome, Stopped)
        assert (result.outcome.reason, result.outcome.error.code) == (StopReason.PLUGIN_ABORT, "TURN_BUDGET")
        assert "tokens, the limit is 55" in result.outcome.error.message

    play(memory, team(cast, limits=UsageLimits(max_tokens=55)), act)
    assert len(cast.requests["Lead"]) == 3


def test_no_subagent_starts_when_the_budget_is_exhausted(memory: Place) -> None:
    """Ours: the error tells the model which limit was reached."""
    cast = Cast(
        Lead=[calls(spawn("A.", agent="worker")), wait_all, calls(spawn("B.", agent="worker")), "enough"],
        **{"A.": ["a"], "B.": ["b"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        [error] = errors(await session.messages(), "spawn_agent")
        assert (error.code, "44 tokens" in error.message) == ("TURN_BUDGET", True)

    play(memory, team(cast, limits=UsageLimits(max_tokens=40)), act)
    assert "B." not in cast.requests


def test_nested_subagents_share_the_same_budget(memory: Place) -> None:
    """Seed: a subagent shares its budget with its own subagents."""
    cast = Cast(
        Lead=[calls(spawn("Below.")), wait_all, told],
        **{"Below.": [calls(spawn("Bottom.")), wait_all, told], "Bottom.": [digging]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        report = await report_of_one(session)
        assert report["usage"]["calls"] <= 7
        assert report["status"] == "finished"

    play(memory, team(cast, limits=UsageLimits(max_calls=10)), act)
    assert sum(len(asked) for asked in cast.requests.values()) <= 10


def test_a_subagent_keeps_its_own_limits(memory: Place) -> None:
    """Ours: sharing a budget narrows an agent's limits and never widens them."""
    cast = Cast(Lead=[calls(spawn("Digger.", agent="worker")), wait_all, told], **{"Digger.": [digging]})
    worker = Agent(cast, name="worker", tools=[look], limits=UsageLimits(max_calls=2))
    lead = Agent(
        cast,
        name="lead",
        tools=[look],
        plugins=[Subagents(agents=[worker])],
        limits=UsageLimits(max_calls=20),
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        report = await report_of_one(session)
        assert (report["status"], report["error"]["code"]) == ("failed", "TURN_BUDGET")

    play(memory, [lead, worker], act)
    assert len(cast.requests["Digger."]) == 2


def test_an_unshared_budget_does_not_limit_subagents(memory: Place) -> None:
    """Ours: with share_budget=False, subagents have only their agents' limits."""
    cast = Cast(
        Lead=[calls(spawn("A.", agent="worker")), wait_all, told],
        **{"A.": [digging, digging, digging, digging, "a"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        assert (await session.turn("Lead this.")).output == "finished"

    play(memory, team(cast, limits=UsageLimits(max_calls=4), share_budget=False), act)


def test_the_next_turn_has_its_full_budget_again(memory: Place) -> None:
    """Ours: limits apply per turn; usage delegated by earlier turns does not count."""
    cast = Cast(
        Lead=[
            calls(spawn("A.", agent="worker")),
            wait_all,
            "one",
            calls(spawn("A.", agent="worker")),
            lambda request: calls(("wait", {"agent_ids": spawned(request)[1:]})),
            told,
        ],
        **{"A.": [digging, "a"]},
    )

    async def act(runtime: Runtime, session: Any) -> None:
        await session.turn("Lead this.")
        assert (await session.turn("Again.")).output == "finished"

    play(memory, team(cast, limits=UsageLimits(max_calls=6)), act)


# In code


@pytest.mark.slow
def test_code_can_use_the_same_tools(memory: Place) -> None:
    """Seed: the tools work in the standard and in the code protocol."""
    cell = (
        "```python\n"
        "started = [spawn_agent(task)['agent_id'] for task in ('A.', 'B.')]\n"
        "found = wait(started)\n"
        "finish(', '.join(one['text'] for one in found))\n"
        "```"
    )
    done = "```python\nfinish('{}')\n```"
    cast = Cast(Lead=[cell], **{"A.": [done.format("a")], "B.": [done.format("b")]})
    lead = Agent(cast, name="lead", protocol="code", plugins=[Subagents()])

    async def act(runtime: Runtime, session: Any) -> None:
        result = await session.turn("Lead this.")
        assert isinstance(result.outcome, Finished)
        assert result.output == "a, b"

    play(memory, [lead], act)


# Options


@pytest.mark.parametrize(
    "options",
    [{"max_depth": 0}, {"max_children": "8"}, {"agents": "worker"}, {"agents": [7]}, {"max_depth": True}],
)
def test_invalid_options_are_refused_when_the_plugin_is_created(options: dict[str, Any]) -> None:
    """Ours: a developer who misconfigures the plugin gets the error immediately."""
    with pytest.raises(InvalidArgument):
        Subagents(**options)


def test_options_can_be_given_when_a_session_is_opened(memory: Place) -> None:
    """Ours: options of a session are JSON: names, numbers and flags."""
    cast = Cast(Lead=["fine"])
    lead = team(cast, agents=())[0]

    async def main() -> None:
        async with memory.runtime() as runtime:
            options = {"subagents": {"agents": ["worker", "typed"], "max_children": 2}}
            session = await runtime.session("s", agent=lead, options=options)
            await session.turn("Lead this.")

    asyncio.run(main())
    assert "worker, typed" in cast.requests["Lead"][0].instructions


def test_the_plugin_is_found_by_name() -> None:
    """Seed: shipped plugins have entry points."""
    from standfast.plugins import shipped

    assert "Subagents" in shipped.__all__
    assert Subagents.id == "subagents"
