"""Directives end to end: at every stage, where and when they take effect, and that they do so once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plugin_stand_ins import ObedientModel
from stand_ins import Place, agent_of, asks, events_of, go_on, observed, of_kind, results, said, until

from standfast import Agent, Plugin, RunContext, Session, hook, tool
from standfast.model.canonical import digest_json
from standfast.model.directive import (
    AbortTurn,
    CreateSession,
    EmitRuntimeEvents,
    EmitTrace,
    EnqueueMessages,
    PluginDirective,
    RuntimeEvent,
    SessionRequest,
    ShortCircuitTool,
    ask_person,
)
from standfast.model.events import NodeCommitted, PluginEventEmitted
from standfast.model.message import AssistantMessage, ToolMessage, UserMessage
from standfast.model.outcome import Stopped, StopReason
from standfast.model.session import PluginNode, TurnState
from standfast.model.trace_record import TraceRecord, span_id_of
from standfast.runtime.sessions.live_session import InputQueue

STAGES = (
    "before_turn",
    "before_tool_call",
    "after_tool_call",
    "after_work",
    "before_completion",
    "after_turn",
)
WITHIN = STAGES[:-1]


class At(Plugin):
    """A plugin that returns a directive at one stage, once, and logs its calls."""

    def __init__(self, stage: str, *answer: PluginDirective, asked: list[str] | None = None) -> None:
        self._stage = stage
        self._answers = list(answer)
        self._asked = [] if asked is None else asked

    def __deepcopy__(self, memo: Any) -> At:
        copy = type(self)(self._stage, asked=self._asked)
        copy._answers = self._answers
        return copy

    def _say(self, stage: str) -> list[PluginDirective]:
        self._asked.append(stage)
        if stage != self._stage:
            return []
        answers = list(self._answers)
        self._answers.clear()
        return answers

    @hook
    async def before_turn(self, ctx: Any) -> Any:
        return self._say("before_turn")

    @hook
    async def before_tool_call(self, ctx: Any) -> Any:
        return self._say("before_tool_call")

    @hook
    async def after_tool_call(self, ctx: Any) -> Any:
        return self._say("after_tool_call")

    @hook
    async def checkpoint(self, ctx: Any) -> Any:
        return self._say(ctx.checkpoint)

    @hook
    async def after_turn(self, ctx: Any) -> Any:
        return self._say("after_turn")


def effects() -> tuple[Any, list[str]]:
    """Return a tool, and the log of its calls."""
    done: list[str] = []

    @tool
    async def look(ctx: RunContext[None]) -> str:
        """Look."""
        done.append(ctx.session_id)
        return "seen"

    return look, done


def clerk(*plugins: object, tools: Any = None) -> Agent[Any, Any]:
    return Agent(
        ObedientModel(), name="clerk", tools=[effects()[0]] if tools is None else tools, plugins=plugins
    )


def enqueue(*texts: str) -> EnqueueMessages:
    return EnqueueMessages(messages=tuple(UserMessage(content=text) for text in texts))


async def transcript(session: Session[Any]) -> list[str]:
    """Return messages, calls, results and events, oldest first."""
    return [_line(node.payload) for node in await session.nodes()]


def _line(payload: Any) -> str:
    match payload:
        case UserMessage(content=content):
            return str(content)
        case AssistantMessage(text=text, tool_calls=calls):
            return text or f"calls {calls[0].name}"
        case ToolMessage(value=value, error=error):
            return str(value) if error is None else str(error.code)
        case PluginNode(kind=kind):
            return f"event {kind}"
        case _:
            return type(payload).__name__


async def settled(session: Session[Any]) -> None:
    """Wait until the turns of queued inputs have ended."""

    async def nothing_waits() -> bool:
        return not await session.inputs() and all(
            turn.state is TurnState.ENDED for turn in await session.turns()
        )

    await until(nothing_waits)


# Messages


PLAIN = ["call look", "calls look", "seen", "ok"]

APPEARS = {
    "before_turn": ["call look", "psst", "ok"],
    "before_tool_call": ["call look", "calls look", "seen", "psst", "ok"],
    "after_tool_call": ["call look", "calls look", "seen", "psst", "ok"],
    "after_work": ["call look", "calls look", "seen", "psst", "ok"],
    "before_completion": [*PLAIN, "psst", "ok"],
    "after_turn": [*PLAIN, "psst", "ok"],
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_plugins_message_is_delivered_according_to_its_stage(place: Place, stage: str) -> None:
    """Seed: at once before a turn, at the next checkpoint within one, after it in a separate turn."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(At(stage, enqueue("psst"))))
            done = await session.turn("call look")
            await settled(session)
            assert await transcript(session) == APPEARS[stage]
            assert len(await session.turns()) == (2 if stage == "after_turn" else 1)
            assert said(done.messages) == (["call look"] if stage == "after_turn" else ["call look", "psst"])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await settled(session)
            assert await transcript(session) == APPEARS[stage]

    asyncio.run(main())


def test_messages_of_several_plugins_are_delivered_in_the_order_of_their_hooks(memory: Place) -> None:
    """Seed: after_tool_call precedes the checkpoint, whatever the order of the plugins."""

    class Another(At):
        id = "another"

    async def main() -> None:
        async with memory.runtime() as runtime:
            plugins = [At("after_work", enqueue("one", "two")), Another("after_tool_call", enqueue("zero"))]
            session = await runtime.session("s", agent=clerk(*plugins))
            await session.turn("call look")
            assert said(await session.messages()) == ["call look", "zero", "one", "two"]

    asyncio.run(main())


def test_messages_for_after_a_turn_are_delivered_by_the_next_process_that_opens_the_session(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the input is queued in the commit, so it survives the process."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(At("after_turn", enqueue("one", "two"))))
            with monkeypatch.context() as patched:
                patched.setattr(InputQueue, "drain", lambda self: None)  # it dies before the queue is drained
                await session.turn("hello")
            assert await transcript(session) == ["hello", "ok"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await settled(session)
            assert await transcript(session) == ["hello", "ok", "one", "ok", "two", "ok"]
            assert len(await session.turns()) == 3

    asyncio.run(main())


def test_a_plugins_message_in_a_turn_that_then_stopped_starts_the_next_turn(memory: Place) -> None:
    """Ours: a message that misses the last checkpoint starts the next turn."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            plugin = At("after_tool_call", enqueue("psst"), AbortTurn(message="enough"))
            session = await runtime.session("s", agent=clerk(plugin))
            assert (await session.turn("call look").settled()).status == "stopped"
            await settled(session)
            assert (await transcript(session))[-2:] == ["psst", "ok"]
            assert len(await session.turns()) == 2

    asyncio.run(main())


# Ending the turn


@pytest.mark.parametrize("stage", WITHIN)
def test_a_plugin_can_abort_a_turn_at_any_stage_except_its_end(place: Place, stage: str) -> None:
    """Seed: AbortTurn gives running calls a result that says so, and the session stays usable."""
    look, done = effects()
    asked: list[str] = []

    async def main() -> None:
        async with place.runtime() as runtime:
            abort = AbortTurn(message="enough", code="TOO_MUCH", hint="rest")
            session = await runtime.session("s", agent=clerk(At(stage, abort, asked=asked), tools=[look]))
            stopped = await session.turn("call look").settled()
            assert isinstance(stopped.outcome, Stopped)
            error = stopped.outcome.error
            assert stopped.outcome.reason is StopReason.PLUGIN_ABORT
            assert error is not None
            assert (error.code, error.hint) == ("TOO_MUCH", "rest")
            assert error.message == "plugin 'at': enough"
            expected = {
                "before_turn": [],
                "before_tool_call": ["CANCELLED"],
            }
            assert results(stopped.messages) == expected.get(stage, ["seen"])
            assert len(done) == len([one for one in results(stopped.messages) if one == "seen"])
            assert asked[-1] == "after_turn"
            assert (await transcript(session))[-1] == "TurnEnded"
            assert results((await session.turn("call look")).messages) == ["seen"]

    asyncio.run(main())


def test_abort_turn_is_refused_in_after_turn(memory: Place) -> None:
    """Seed: AbortTurn is illegal in after_turn; an illegal directive is the plugin's error."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(At("after_turn", AbortTurn(message="no"))))
            stopped = await session.turn("hello").settled()
            assert stopped.error is not None
            assert stopped.error.code == "PLUGIN_ERROR"
            assert "it must not return AbortTurn" in stopped.error.message
            assert (await session.turn("hello")).output == "ok"

    asyncio.run(main())


# Sessions


@pytest.mark.parametrize("stage", STAGES)
def test_a_session_created_by_a_plugin_runs_its_first_input_by_itself(place: Place, stage: str) -> None:
    """Seed: CreateSession creates a session once, and its first input runs as a turn."""

    async def main() -> None:
        request = SessionRequest(session_id="kid", first_input=UserMessage(content="dig"))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(At(stage, CreateSession(request=request))))
            await session.turn("call look")
            assert await transcript(session) == PLAIN
            assert {head.session_id for head in await runtime.sessions()} == {"s", "kid"}
            kid = await runtime.session("kid", agent=clerk())
            await settled(kid)
            assert await transcript(kid) == ["dig", "ok"]
        async with place.runtime(agents=[clerk()]) as runtime:
            kid = await runtime.session("kid")
            await settled(kid)
            assert len(await kid.turns()) == 1
            assert (await kid.head()).agent == "clerk"

    asyncio.run(main())


def test_an_unnamed_session_gets_an_id_from_its_turn_and_one_without_input_waits(memory: Place) -> None:
    """Ours: two requests of one hook are two sessions, with the same ids on every attempt."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            empty = CreateSession(request=SessionRequest())
            session = await runtime.session("s", agent=clerk(At("before_turn", empty, empty)))
            await session.turn("hello")
            made = [head for head in await runtime.sessions() if head.session_id != "s"]
            assert len({head.session_id for head in made}) == 2
            assert all(head.session_id.startswith("s-") and head.depth == 0 for head in made)

    asyncio.run(main())


def test_a_session_can_be_created_for_another_agent(memory: Place) -> None:
    """Ours: the agent is found by name among the runtime's agents."""

    async def main() -> None:
        helper: Agent[Any, Any] = Agent(ObedientModel(), name="helper", instructions="help")
        request = SessionRequest(session_id="kid", agent="helper", first_input=UserMessage(content="dig"))
        async with memory.runtime(agents=[helper]) as runtime:
            session = await runtime.session(
                "s", agent=clerk(At("before_turn", CreateSession(request=request)))
            )
            await session.turn("hello")
            kid: Session[Any] = await runtime.session("kid")
            await settled(kid)
            assert (await kid.head()).agent == "helper"
            assert isinstance(helper.model, ObedientModel)
            assert helper.model.prompts == ["help"]

    asyncio.run(main())


def test_a_session_that_cannot_be_created_fails_the_turn(memory: Place) -> None:
    """Ours: a directive that cannot be executed fails the plugin and has no effect."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            plugin = At("before_turn", CreateSession(request=SessionRequest(agent="unknown")))
            session = await runtime.session("s", agent=clerk(plugin))
            stopped = await session.turn("hello").settled()
            assert stopped.error is not None
            assert stopped.error.code == "PLUGIN_ERROR"
            assert [head.session_id for head in await runtime.sessions()] == ["s"]
            assert (await session.turn("hello")).output == "ok"

    asyncio.run(main())


# Events and traces


SHOWS = {
    "before_turn": ["call look", "event felt", "calls look", "seen", "ok"],
    "before_tool_call": ["call look", "calls look", "event felt", "seen", "ok"],
    "after_tool_call": ["call look", "calls look", "event felt", "seen", "ok"],
    "after_work": ["call look", "calls look", "seen", "event felt", "ok"],
    "before_completion": [*PLAIN, "event felt"],
    "after_turn": [*PLAIN, "event felt"],
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_plugins_event_is_observed_live_and_stays_in_the_history(place: Place, stage: str) -> None:
    """Seed: EmitRuntimeEvents; observers see the event live, and later as a node."""

    async def main() -> None:
        event = EmitRuntimeEvents(events=(RuntimeEvent(kind="felt", body={"cold": True}),))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(At(stage, event)))
            turn = session.turn("call look")
            shown = of_kind(PluginEventEmitted, await events_of(turn))
            assert shown == [
                PluginEventEmitted(turn_id=turn.turn_id, plugin_id="at", kind="felt", body={"cold": True})
            ]
            assert await transcript(session) == SHOWS[stage]
            nodes = [one.payload for one in await session.nodes() if isinstance(one.payload, PluginNode)]
            assert nodes == [PluginNode(plugin_id="at", kind="felt", body={"cold": True})]
            seen = [one.event for one in await observed(session, 5)]
            assert [_line(one.payload) for one in of_kind(NodeCommitted, seen)] == SHOWS[stage]
            assert [type(one) for one in await session.messages()].count(UserMessage) == 1

    asyncio.run(main())


class Trace:
    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def record(self, record: TraceRecord) -> None:
        self.records.append(record)


@pytest.mark.parametrize("stage", STAGES)
def test_a_plugins_trace_goes_to_the_configured_sink(memory: Place, stage: str) -> None:
    """Seed: EmitTrace names the session, the turn and the plugin, and changes nothing."""

    async def main() -> None:
        trace = Trace()
        async with memory.runtime(trace=trace) as runtime:
            session = await runtime.session("s", agent=clerk(At(stage, EmitTrace(name="note", body=[1]))))
            done = await session.turn("call look")
            assert await transcript(session) == PLAIN
        within = "tool.1" if stage == "after_tool_call" else "turn"
        assert [one for one in trace.records if one.kind == "event" and one.plugin_id] == [
            TraceRecord(
                at_ms=memory.clock.now_ms(),
                name="note",
                session_id="s",
                turn_id=done.turn_id,
                parent_id=span_id_of(done.turn_id, within),
                plugin_id="at",
                body=[1],
            )
        ]

    asyncio.run(main())


# Approvals


def test_before_hooks_do_not_run_again_for_a_call_approved_at_a_plugins_request(place: Place) -> None:
    """Ours: no before-hook runs again after a restart and an approval."""
    look, done = effects()
    asked: list[str] = []

    def agent() -> Agent[Any, Any]:
        plugin = At("before_tool_call", ask_person("it is a lot"), asked=asked)
        return clerk(plugin, tools=[look])

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent())
            assert (await session.turn("call look").settled()).status == "waiting"
            assert asked == ["before_turn", "before_tool_call"]
        for _ in range(2):
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=agent())
                assert (await go_on(session)).status == "waiting"
                assert len(asked) == 2
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent())
            (approval,) = await session.approvals(pending=True)
            assert (approval.reason, approval.capability) == ("it is a lot", "look")
            finished = await session.approve(approval.approval_id)
            assert (results(finished.messages), done) == (["seen"], ["s"])
        assert asked[2:] == ["after_tool_call", "after_work", "before_completion", "after_turn"]

    asyncio.run(main())


def test_a_denied_call_is_not_made_and_plugins_see_its_result(place: Place) -> None:
    """Ours: a denial is a result like any other."""
    look, done = effects()
    asked: list[str] = []

    async def main() -> None:
        plugin = At("before_tool_call", ask_person("it is a lot"), asked=asked)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(plugin, tools=[look]))
            await session.turn("call look").settled()
            (approval,) = await session.approvals(pending=True)
            finished = await session.deny(approval.approval_id, reason="no")
            assert (results(finished.messages), done) == (["PERMISSION_DENIED"], [])
        assert asked.count("after_tool_call") == 1

    asyncio.run(main())


def test_hooks_run_in_the_order_of_the_turn(memory: Place) -> None:
    """Ours: one plugin sees all stages of a turn with one call."""
    asked: list[str] = []

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=clerk(At("", asked=asked)))
            await session.turn("call look")
        assert asked == list(STAGES)

    asyncio.run(main())


# Races


def test_after_turn_hooks_run_again_if_a_message_arrives_before_the_commit(memory: Place) -> None:
    """Ours: machine rule 6, rulings on an end that did not happen are discarded."""
    asked: list[str] = []
    sessions: list[Session[Any]] = []

    class Interrupts(At):
        id = "interrupts"
        loop = "runtime"

        @hook
        async def after_turn(self, ctx: Any) -> Any:
            if asked.count("after_turn") == 1:
                await sessions[0].inject("wait")
            return enqueue(f"after {len(said(ctx.messages))}") if asked.count("after_turn") < 3 else None

    async def main() -> None:
        async with memory.runtime() as runtime:
            plugins = [At("", asked=asked), Interrupts("")]
            session = await runtime.session("s", agent=clerk(*plugins))
            sessions.append(session)
            done = await session.turn("hello")
            assert said(done.messages) == ["hello", "wait"]
            await settled(session)
            assert said(await session.messages()) == ["hello", "wait", "after 2"]

    asyncio.run(main())


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("given", ["fresh", None, {"a": [1]}])
def test_the_record_of_a_replaced_result_has_the_digest_of_the_new_result(given: Any) -> None:
    """Bug: the audit record kept the digest of the result that an after-hook had replaced."""

    class Replaces(Plugin):
        id = "replaces"

        @hook
        async def after_tool_call(self, ctx: Any) -> Any:
            return [ShortCircuitTool(value=given)]

    agent = agent_of(asks(("look", {})), "end", tools=[look], plugins=[Replaces()])
    result = asyncio.run(agent.run("hi"))
    (record,) = result.calls
    assert record.response_digest == digest_json(given)


def test_the_record_of_a_call_that_a_hook_failed_has_no_digest() -> None:
    """Bug: the record kept the digest of a result that no caller received."""

    class Fails(Plugin):
        id = "fails"

        @hook
        async def after_tool_call(self, ctx: Any) -> Any:
            raise RuntimeError("no")

    agent = agent_of(asks(("look", {})), "end", tools=[look], plugins=[Fails()])
    (record,) = asyncio.run(agent.run("hi")).calls
    assert (record.status, record.response_digest) == ("error", None)
