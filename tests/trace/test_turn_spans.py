"""The spans of a turn in a trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from trace_stand_ins import Kept, agent_of, asks, path_of

from standfast import CompleteAfter, CompleteLater, RunContext, Runtime, UsageLimits, tool
from standfast.errors import ModelError, StoreUnavailable
from standfast.model.directive import EmitTrace
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.model.trace_record import TraceRecord, span_id_of
from standfast.plugins import Plugin, hook
from standfast.ports.trace import UNDER
from standfast.store.memory_sessions import MemorySessionStore
from standfast.testing.clock import FakeClock
from standfast.trace.tracer import Tracer


@tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"nothing at {place}"


@tool(approval="manual")
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


async def run(sink: Any, agent: Any, *, clock: FakeClock | None = None, **options: Any) -> Any:
    async with Runtime(trace=sink, clock=clock, **options) as runtime:
        return await (await runtime.session("s", agent=agent)).turn("go").settled()


def test_a_turn_a_model_call_and_a_tool_call_are_spans_with_parents() -> None:
    """Ours: each record names its parent span."""
    kept = Kept()
    done = asyncio.run(run(kept, agent_of(asks(("look", {"place": "A1"})), "end", tools=[look])))
    turn, call = kept.one("turn"), kept.one("tool_call")
    assert (turn.name, turn.session_id, turn.turn_id, turn.status) == ("agent", "s", done.turn_id, "ok")
    assert (call.name, call.parent_id, call.status) == ("look", turn.span_id, "ok")
    assert [path_of(one, kept.records) for one in kept.of("model_call")] == [["turn", "model_call"]] * 2
    assert kept.names("model_call") == ["scripted:script"] * 2
    assert turn.body["usage"]["calls"] == 2
    assert kept.one("usage").body["lines"][0]["source"] == "turn"
    assert len({one.span_id for one in kept.records if one.span_id}) == 4 + len(
        [one for one in kept.records if one.kind == "hook"]
    )
    assert len(turn.trace_id) == 32
    assert len(turn.span_id) == 16


def test_spans_have_the_times_of_the_events_they_cover(clock: FakeClock) -> None:
    """Ours: a span lasts from the event that started it to the event that ended it."""

    @tool
    async def slow() -> str:
        clock.advance(2)
        return "at last"

    kept, began = Kept(), clock.now_ms()
    asyncio.run(run(kept, agent_of(asks(("slow", {})), "end", tools=[slow]), clock=clock))
    call, turn = kept.one("tool_call"), kept.one("turn")
    assert (call.started_at_ms, call.duration_ms) == (began, 2000)
    assert (turn.started_at_ms, turn.duration_ms, turn.at_ms) == (began, 2000, began + 2000)


def test_messages_and_arguments_are_traced_only_on_request() -> None:
    """Ours: messages, arguments and results are left out, as the GenAI conventions advise."""
    plain, whole = Kept(), Kept(contents=True)
    agent = agent_of(asks(("look", {"place": "the-vault"})), "the-answer", tools=[look])
    asyncio.run(run([plain, whole], agent))
    assert not [one for one in plain.records if "the-vault" in str(one) or "the-answer" in str(one)]
    assert all("content" not in (one.body or {}) for one in plain.records)
    assert whole.one("turn").body["content"] == {"input": "go", "output": "the-answer"}
    assert whole.one("tool_call").body["content"] == {
        "arguments": {"place": "the-vault"},
        "result": "nothing at the-vault",
        "error": None,
    }
    assert len(plain.records) == len(whole.records)


def test_every_attempt_of_a_model_call_is_a_span() -> None:
    """Ours: retries are visible, each with its number."""

    class Flaky:
        model_id = "flaky:one"

        def __init__(self) -> None:
            self.asked = 0

        async def stream(self, request: Any) -> Any:
            from standfast.ports.model_provider import ReplyEnded

            self.asked += 1
            if self.asked < 3:
                raise ModelError("busy", retryable=True)
            yield ReplyEnded(text="end", response_id="r_1", model="flaky:one-b")

        async def close(self) -> None:
            """Do nothing: there is nothing to close."""

    async def no_pause(seconds: float) -> None:
        """Skip the pause."""

    from standfast import Agent

    kept = Kept()
    asyncio.run(run(kept, Agent(Flaky()), _sleep=no_pause))
    calls = kept.of("model_call")
    assert [(one.status, one.body["attempt"]) for one in calls] == [("error", 1), ("error", 2), ("ok", 3)]
    assert [one.body.get("error") for one in calls] == ["PROVIDER_ERROR", "PROVIDER_ERROR", None]
    assert (calls[2].body["served"], calls[2].body["response_id"]) == ("flaky:one-b", "r_1")
    assert len({one.span_id for one in calls}) == 3


def test_the_calls_of_a_cell_are_children_of_the_cell() -> None:
    """Ours: calls made by code are traced like native ones."""
    kept = Kept()
    code = "```python\na = look('A1')\nfinish(a + look('A2'))\n```"
    asyncio.run(run(kept, agent_of(code, tools=[look], protocol="code")))
    assert path_of(kept.one("cell"), kept.records) == ["turn", "cell"]
    assert [path_of(one, kept.records) for one in kept.of("tool_call")] == [["turn", "cell", "tool_call"]] * 2


def test_a_wait_span_lasts_from_its_opening_to_its_end_across_processes(clock: FakeClock) -> None:
    """Ours: a turn resumed by another process continues its trace, under the same ids."""
    first, second, store = Kept(), Kept(), MemorySessionStore(owner_is_dead=lambda owner: True)
    replies = (asks(("pay", {"cents": 5})), "end")

    async def main() -> str:
        async with Runtime(store, trace=first, clock=clock) as runtime:
            session = await runtime.session("s", agent=agent_of(*replies, tools=[pay]))
            waiting = await session.turn("pay").settled()
        clock.advance(3600)
        async with Runtime(store, trace=second, clock=clock) as runtime:
            session = await runtime.session("s", agent=agent_of(*replies, tools=[pay]))
            await session.approve(waiting.waits[0].wait_id)
        return str(waiting.turn_id)

    turn_id = asyncio.run(main())
    assert (first.of("turn"), first.of("wait"), first.of("tool_call")) == ([], [], [])
    assert first.names("event") == ["turn_began", "turn_parked"]
    wait, call, turn = second.one("wait"), second.one("tool_call"), second.one("turn")
    assert (wait.name, wait.duration_ms, wait.body["outcome"]) == ("approval", 3_600_000, "approved")
    assert (call.span_id, call.duration_ms) == (span_id_of(turn_id, "tool.1"), 3_600_000)
    assert path_of(wait, second.records) == ["turn", "tool_call", "wait"]
    assert first.of("model_call")[0].parent_id == turn.span_id == span_id_of(turn_id)
    assert turn.started_at_ms == clock.now_ms() - 3_600_000


@pytest.mark.parametrize(("kind", "outcome"), [("timer", "elapsed"), ("completion", "completed")])
def test_timers_and_completions_are_waits_and_their_tokens_stay_secret(
    clock: FakeClock, kind: str, outcome: str
) -> None:
    """Ours: a person with the token can end the wait, so no trace contains it."""

    @tool
    async def later(ctx: RunContext[None]) -> Any:
        if kind == "timer":
            return CompleteAfter(5, "now")
        return CompleteLater(ctx.completion_token())

    async def main() -> tuple[Kept, str]:
        kept = Kept(contents=True)
        async with Runtime(trace=kept, clock=clock) as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("later", {})), "end", tools=[later]))
            waiting = await session.turn("go").settled()
            token = waiting.waits[0].wait_id
            clock.advance(6)
            if kind == "completion":
                await runtime.complete(token, "done")
            turn = await session.resume()
            assert turn is not None
            await turn
        return kept, token

    kept, token = asyncio.run(main())
    wait = kept.one("wait")
    assert (wait.name, wait.body["outcome"], wait.duration_ms) == (kind, outcome, 6000)
    assert kind == "timer" or not [one for one in kept.records if token in str(one)]


def test_a_denied_call_has_the_status_denied(clock: FakeClock) -> None:
    """Ours: a span's status says how the call ended."""

    async def main() -> Kept:
        kept = Kept()
        async with Runtime(trace=kept, clock=clock) as runtime:
            agent = agent_of(asks(("pay", {"cents": 5})), "end", tools=[pay])
            session = await runtime.session("s", agent=agent)
            wait = (await session.turn("pay").settled()).waits[0]
            await session.deny(wait.wait_id, reason="no")
        return kept

    kept = asyncio.run(main())
    assert (kept.one("wait").status, kept.one("tool_call").status) == ("denied", "denied")
    assert kept.one("tool_call").body["error"] == "PERMISSION_DENIED"


def test_open_spans_end_when_the_turn_is_cancelled() -> None:
    """Ours: no span is left without an end."""

    async def main() -> Kept:
        kept, started = Kept(), asyncio.Event()

        @tool
        async def endless() -> str:
            started.set()
            await asyncio.Event().wait()
            return ""

        async with Runtime(trace=kept) as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("endless", {})), tools=[endless]))
            turn = session.turn("go")
            turn.start()
            await started.wait()
            await turn.cancel()
            await turn.settled()
        return kept

    kept = asyncio.run(main())
    assert (kept.one("tool_call").status, kept.one("turn").status) == ("cancelled", "cancelled")
    assert kept.one("turn").body["reason"] == "cancelled"


def test_a_call_with_unreadable_arguments_is_a_failed_span() -> None:
    """Ours: a call that the host does not execute is still traced."""
    kept = Kept()
    asyncio.run(run(kept, agent_of(asks(("look", "{oops")), "end", tools=[look])))
    assert (kept.one("tool_call").status, kept.one("tool_call").body["error"]) == (
        "error",
        "INVALID_ARGUMENT",
    )


def test_a_stopped_turn_has_the_reason() -> None:
    """Ours: the span has the reason and the error code."""
    kept = Kept()
    agent = agent_of(
        *[asks(("look", {"place": str(one)})) for one in range(3)],
        tools=[look],
        limits=UsageLimits(max_iterations=1),
    )

    async def main() -> None:
        async with Runtime(trace=kept) as runtime:
            await (await runtime.session("s", agent=agent)).turn("go").settled()

    asyncio.run(main())
    assert (kept.one("turn").status, kept.one("turn").body["reason"]) == ("error", "turn_budget")


class Telling(Plugin):
    """A plugin with hooks that succeed, one that fails, and a trace event."""

    id = "telling"

    @hook
    async def before_turn(self, ctx: Any) -> Any:
        return EmitTrace(name="note", body={"content": "mine"})

    @hook
    async def after_tool_call(self, ctx: Any) -> None:
        assert UNDER.get() is not None

    @hook
    async def turn_persisted(self, event: Any) -> None:
        raise ValueError("no")


def test_hooks_are_spans_below_the_turn_or_the_call_that_they_concern() -> None:
    """Ours: a hook span has the plugin and the status."""
    kept = Kept()
    asyncio.run(run(kept, agent_of(asks(("look", {"place": "A"})), "end", tools=[look], plugins=[Telling()])))
    spans = {one.name: one for one in kept.of("hook") if one.plugin_id == "telling"}
    assert {name: one.status for name, one in spans.items()} == {
        "before_turn": "ok",
        "after_tool_call": "ok",
        "turn_persisted": "error",
    }
    assert path_of(spans["before_turn"], kept.records) == ["turn", "hook"]
    assert path_of(spans["after_tool_call"], kept.records) == ["turn", "tool_call", "hook"]
    note = next(one for one in kept.records if one.name == "note")
    assert (note.kind, note.parent_id, note.body) == ("event", kept.one("turn").span_id, {"content": "mine"})


def test_a_model_call_of_a_hook_is_a_child_of_the_hook() -> None:
    """Ours: model calls outside the turn's own are spans too."""

    class Asking(Plugin):
        id = "asking"

        @hook
        async def before_turn(self, ctx: Any) -> None:
            from standfast.model.message import UserMessage

            await ctx.complete([UserMessage(content="summarize")])

    kept = Kept()
    asyncio.run(run(kept, agent_of("a summary", "end", plugins=[Asking()])))
    beside = next(one for one in kept.of("model_call") if path_of(one, kept.records)[1] == "hook")
    assert path_of(beside, kept.records) == ["turn", "hook", "model_call"]
    assert beside.status == "ok"
    assert len(kept.of("model_call")) == 2


def test_a_turn_started_by_a_tool_is_a_child_of_its_call() -> None:
    """Ours: a subagent's turn has the parent's tool call as its parent."""

    async def main() -> Kept:
        kept = Kept()
        async with Runtime(trace=kept) as runtime:

            @tool(loop="runtime")
            async def delegate() -> str:
                child = await runtime.session("child", agent=agent_of("done", name="helper"))
                return str((await child.turn("work")).output)

            parent = await runtime.session(
                "parent", agent=agent_of(asks(("delegate", {})), "end", tools=[delegate], name="boss")
            )
            await parent.turn("go")
            await parent.resume()
        return kept

    kept = asyncio.run(main())
    child, parent = (next(one for one in kept.of("turn") if one.name == name) for name in ("helper", "boss"))
    assert path_of(child, kept.records) == ["turn", "tool_call", "turn"]
    assert child.body["parent_turn_id"] == parent.turn_id
    assert parent.parent_id == ""


def test_a_turn_that_breaks_off_resumes_in_the_same_trace() -> None:
    """Ours: a store error leaves a turn unfinished, and the trace records it."""

    class Failing(MemorySessionStore):
        fails = True

        async def commit(self, *given: Any) -> Any:
            if self.fails:
                error = StoreUnavailable("closed")
                error.retryable = False
                raise error
            return await super().commit(*given)

    async def main() -> Kept:
        kept, store = Kept(), Failing(owner_is_dead=lambda owner: True)
        async with Runtime(store, trace=kept) as runtime:
            session = await runtime.session("s", agent=agent_of("end", "end"))
            with pytest.raises(StoreUnavailable):
                await session.turn("go")
            store.fails = False
            turn = await session.resume()
            assert turn is not None
            await turn
        return kept

    kept = asyncio.run(main())
    assert kept.names("event") == ["turn_began", "turn_left", "turn_taken_up"]
    assert kept.of("event")[1].body == {"error": StoreUnavailable("closed").code}
    assert kept.one("turn").status == "ok"


def test_a_failing_sink_does_not_fail_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    """Ours: no exception of a sink reaches a turn, and the other sinks still receive records."""

    class Broken:
        def record(self, record: TraceRecord) -> None:
            raise OSError("full")

    kept = Kept()
    done = asyncio.run(run([Broken(), kept], agent_of("end")))
    assert done.output == "end"
    assert kept.one("turn").status == "ok"
    assert "a trace sink raised an exception" in caplog.text


def test_without_a_sink_there_is_no_tracer() -> None:
    """Ours: a runtime without a trace has no overhead."""

    async def main() -> None:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=agent_of("end"))
            await session.turn("go")
            assert runtime._open.services.tracer is None

    asyncio.run(main())


def test_an_ended_task_is_a_span(clock: FakeClock) -> None:
    """Ours: tasks are in the trace of their session."""
    kept = Kept()
    Tracer(kept, clock).task(
        TaskRecord(
            session_id="s",
            id="watch",
            kind=TaskKind.MONITOR,
            state=TaskState.FAILED,
            created_at=1_000,
            updated_at=4_000,
            label="tail the log",
        )
    )
    span = kept.one("task")
    assert (span.name, span.started_at_ms, span.duration_ms) == ("tail the log", 1_000, 3_000)
    assert (span.status, span.body) == ("error", {"task_id": "watch", "kind": "monitor", "state": "failed"})
