"""Agents without a runtime: how they are created, run and read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from stand_ins import HeldModel, agent_of, asks, events_of, of_kind, said

from standfast import Agent, ContinueAs, Turn, TurnStopped, UsageLimits, tool
from standfast.errors import InvalidArgument, ModelError, RuntimeRequired, StandfastError, ToolNameTaken
from standfast.model.events import TextStreamed, TurnBegan, TurnCommitted
from standfast.model.outcome import StopReason
from standfast.providers.scripted import ScriptedModel


def test_an_agent_answers_without_a_runtime() -> None:
    """Seed: `agent.run_sync("…").output` works with no runtime at all."""
    result = agent_of("hello").run_sync("hi")
    assert (result.output, result.status, result.text) == ("hello", "finished", "hello")
    assert said(result.messages) == ["hi"]


def test_run_works_like_run_sync_inside_an_event_loop() -> None:
    """Seed: the methods have the names that Python users know."""
    assert asyncio.run(agent_of("hello").run("hi")).output == "hello"


def test_run_stream_is_iterated_over_and_then_awaited() -> None:
    """Seed: `async for event in turn`, then `(await turn).output`."""

    async def main() -> None:
        turn = agent_of({"text": "hello", "chunk_size": 2}).run_stream("hi")
        events = await events_of(turn)
        assert [one.text for one in of_kind(TextStreamed, events)] == ["he", "ll", "o"]
        assert isinstance(events[0], TurnBegan)
        assert isinstance(events[-1], TurnCommitted)
        assert (await turn).output == "hello"
        assert (await turn).output == "hello"

    asyncio.run(main())


def test_a_stream_need_not_be_read() -> None:
    """Ours: awaiting a stream runs the turn."""

    async def main() -> str:
        return str((await agent_of("hello").run_stream("hi")).output)

    assert asyncio.run(main()) == "hello"


def test_a_model_may_be_given_by_its_name(tmp_path: Path) -> None:
    """Seed: a model is a name "provider:model" or an object."""
    script = tmp_path / "replies.json"
    script.write_text(json.dumps(["one", "two"]))
    agent = Agent(f"scripted:{script}")
    assert agent.model_id == f"scripted:{script}"
    assert agent.run_sync("hi").output == "one"


@pytest.mark.parametrize("model", [None, 5, object(), {"scripted:demo"}, [5]])
def test_an_invalid_model_is_refused(model: Any) -> None:
    """Bug: a wrong model raised an AttributeError at the first turn."""
    with pytest.raises(InvalidArgument, match="is not a model") as caught:
        Agent(model)
    assert caught.value.hint is not None


@pytest.mark.parametrize("name", ["nosuch:model", "plain", "", "scripted:no-such-file.json"])
def test_a_model_that_cannot_be_opened_raises_a_typed_error(name: str) -> None:
    """Ours: the error for a wrong name says what to write instead."""
    with pytest.raises(StandfastError):
        Agent(name).run_sync("hi")


@pytest.mark.parametrize(
    "options",
    [
        {"tools": 5},
        {"tools": "order"},
        {"tools": [5]},
        {"name": "two words"},
        {"protocol": "telepathy"},
        {"limits": {"max_tokens": 5}},
        {"output_type": object},
    ],
)
def test_wrong_arguments_raise_typed_errors_with_hints(options: dict[str, Any]) -> None:
    """Ours: the error says what to write instead."""
    with pytest.raises(InvalidArgument) as caught:
        agent_of("hello", **options)
    assert caught.value.hint is not None


def test_two_tools_with_one_name_are_refused() -> None:
    """Seed: registering a name twice is an error that names both owners."""

    @tool(name="order")
    def one() -> str:
        return ""

    @tool(name="order")
    def other() -> str:
        return ""

    with pytest.raises(ToolNameTaken):
        agent_of("hello", tools=[one, other])


@pytest.mark.parametrize("prompt", [5, None, [], ["text", 5], "\ud800"])
def test_an_invalid_prompt_is_refused(prompt: Any) -> None:
    """Ours: an invalid prompt is the caller's error and raises before the turn begins."""
    with pytest.raises(InvalidArgument):
        agent_of("hello").run_sync(prompt)


def test_run_sync_inside_a_loop_raises_an_error_that_names_the_alternative() -> None:
    """Bug: the caller got asyncio's RuntimeError and a warning about a coroutine that was never awaited."""

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="event loop") as caught:
            agent_of("hello").run_sync("hi")
        assert "await agent.run" in str(caught.value)

    asyncio.run(main())


def test_a_stopped_turn_carries_its_history() -> None:
    """Seed: exceptions of a turn carry its history."""

    def fails() -> str:
        raise ValueError("no")

    agent = agent_of(asks(("fails", {})), {"failure": {"message": "gone", "code": "GONE"}}, tools=[fails])
    with pytest.raises(TurnStopped) as caught:
        agent.run_sync("hi")
    stopped = caught.value
    assert stopped.reason is StopReason.PROVIDER_ERROR
    assert (stopped.code, stopped.message) == ("GONE", "gone")
    assert stopped.result.status == "stopped"
    assert stopped.result.output is None
    assert len(stopped.messages) == 3
    assert stopped.messages == stopped.result.messages
    assert stopped.result.error is not None


def test_limits_of_one_run_replace_the_agents_limits() -> None:
    """Ours: the caller of a turn decides what it may cost."""

    def look() -> str:
        return "x"

    agent = agent_of(asks(("look", {})), "end", tools=[look], limits=UsageLimits(max_iterations=1))
    with pytest.raises(TurnStopped):
        agent.run_sync("hi")
    assert agent.run_sync("hi", limits=UsageLimits(max_iterations=2)).output == "end"


def test_a_run_can_be_cancelled_but_not_twice() -> None:
    """Bug: cancelling an ended run raised that the runtime is not open."""

    async def main() -> None:
        model = HeldModel()
        turn = Agent(model).run_stream("hi")
        turn.start()
        await model.started.wait()
        assert await turn.cancel()
        with pytest.raises(TurnStopped) as caught:
            await turn
        assert caught.value.reason is StopReason.CANCELLED
        assert not await turn.cancel()

    asyncio.run(main())


def test_a_run_that_has_not_begun_can_be_cancelled() -> None:
    """Bug: cancelling such a run raised that the runtime is not open."""

    async def main() -> None:
        model = ScriptedModel(["hello"])
        turn = Agent(model).run_stream("hi")
        assert await turn.cancel()
        with pytest.raises(TurnStopped, match="before it began"):
            await turn
        await Agent(model).run("hi")

    asyncio.run(main())


def test_one_agent_serves_many_runs_at_once() -> None:
    """Ours: an agent has no state."""

    async def main() -> None:
        agent = agent_of({"text": "hello", "expect": {"last_contains": "n"}})
        outcomes = await asyncio.gather(*(agent.run(f"n{number}") for number in range(20)))
        assert {one.output for one in outcomes} == {"hello"}
        assert len({one.turn_id for one in outcomes}) == 20

    asyncio.run(main())


def test_the_model_gets_the_instructions_the_tools_and_the_settings() -> None:
    """Ours: the agent's settings reach its model."""

    @tool(side_effect="read")
    def order(order_id: str) -> str:
        """Look an order up."""
        return order_id

    async def main() -> None:
        model = HeldModel()
        model.go.set()
        await Agent(model, instructions="be brief", tools=[order], settings={"temperature": 0}).run("hi")
        request = model.requests[0]
        assert request.instructions == "be brief"
        assert [one.name for one in request.tools] == ["order"]
        assert request.settings == {"temperature": 0}
        assert request.idempotency_key.endswith(".model.1")

    asyncio.run(main())


def test_a_providers_exception_ends_the_turn_with_a_typed_error() -> None:
    """Ours: it is not raised as an internal error."""
    with pytest.raises(TurnStopped) as caught:
        agent_of({"failure": {"message": "no credit", "code": "PAY"}}).run_sync("hi")
    assert caught.value.code == "PAY"
    assert not isinstance(caught.value, ModelError)


def test_a_run_without_a_runtime_that_has_to_wait_raises_an_error() -> None:
    """Ours: a caller without a runtime could not resume such a turn."""

    @tool(approval="manual")
    def pay(cents: int) -> str:
        return "paid"

    asking = {"tool_calls": [{"name": "pay", "arguments": {"cents": 5}}]}
    agent = Agent(ScriptedModel([asking], strict=False), tools=[pay])
    with pytest.raises(RuntimeRequired, match=r"has to wait \(approval\)"):
        agent.run_sync("pay")


@tool
def hand_over(task: str) -> ContinueAs:
    """Continue in a new frame."""
    return ContinueAs(task)


def handing_over(task: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": "hand_over", "arguments": {"task": task}}]}


def test_a_run_without_a_runtime_continues_in_the_frames_that_the_model_opens() -> None:
    """Bug: the task of the new frame was lost, and `output` was None without an error."""
    agent = Agent(ScriptedModel([handing_over("go on"), handing_over("end it"), "done"]), tools=[hand_over])
    result = agent.run_sync("begin")
    assert (result.status, result.output) == ("finished", "done")
    assert said(result.messages) == ["begin", "go on", "end it"]
    assert (result.usage.calls, len(result.calls)) == (3, 2)


def test_a_stream_shows_the_events_of_every_frame() -> None:
    """Ours: events and cancellation cover the whole run."""

    async def main() -> None:
        agent = Agent(ScriptedModel([handing_over("go on"), "done"]), tools=[hand_over])
        turn = agent.run_stream("begin")
        events = await events_of(turn)
        assert len(of_kind(TurnBegan, events)) == 2
        assert isinstance(events[-1], TurnCommitted)
        assert (await turn).output == "done"

    asyncio.run(main())


def test_the_limits_of_a_run_apply_to_all_its_frames_together() -> None:
    """Ours: limits must end a run that switches frames forever."""
    model = ScriptedModel([handing_over(f"step {n}") for n in range(9)], strict=False)
    agent = Agent(model, tools=[hand_over], limits=UsageLimits(max_iterations=3))
    with pytest.raises(TurnStopped, match="used up its limits") as caught:
        agent.run_sync("begin")
    assert (caught.value.code, caught.value.reason) == ("TURN_BUDGET", StopReason.TURN_BUDGET)
    assert caught.value.result.usage.calls == 3


def test_a_run_cancelled_in_a_later_frame_ends() -> None:
    """Ours: `cancel` reaches the turn of the current frame."""

    async def main() -> None:
        turns: list[Turn[str]] = []

        @tool
        async def stop() -> str:
            assert await turns[0].cancel()
            return "too late"

        asking = {"tool_calls": [{"name": "stop", "arguments": {}}]}
        model = ScriptedModel([handing_over("go on"), asking], strict=False)
        turns.append(Agent(model, tools=[hand_over, stop]).run_stream("begin"))
        with pytest.raises(TurnStopped) as caught:
            await turns[0]
        assert caught.value.reason is StopReason.CANCELLED

    asyncio.run(main())
