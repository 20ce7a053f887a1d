"""Async tools that block or otherwise misbehave: their limits apply, and nothing else waits for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from stand_ins import Place, StagedModel, until

from standfast import Agent, RunContext, ScriptedModel, ToolMessage, UserMessage, tool
from standfast.model.host_requests import SessionCreateRequest, TurnInput
from standfast.model.limits import CapabilityLimits
from standfast.model.message import RequestedCall
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded
from standfast.tools.loop_threads import MAX_IDLE

SHORT = CapabilityLimits(timeout_ms=300)


def calls(*names: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": {}} for name in names]}


def results(messages: Any) -> list[ToolMessage]:
    return [one for one in messages if isinstance(one, ToolMessage)]


def answer_of(request: ModelRequest, name: str) -> ReplyEnded:
    """Return replies that request a tool, and end once it has answered."""
    if any(isinstance(message, ToolMessage) for message in request.messages):
        return ReplyEnded(text="end")
    return ReplyEnded(text="", calls=(RequestedCall(name=name, arguments="{}", provider_id="c"),))


def run(place: Place, *script: Any, tools: list[Any]) -> Any:
    """Return the messages of one turn."""

    async def main() -> Any:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(ScriptedModel(list(script)), tools=tools))
            return (await asyncio.wait_for(session.turn("go"), 30)).messages

    return asyncio.run(main())


def test_an_async_tool_that_sleeps_times_out_and_stalls_no_other_session(memory: Place) -> None:
    """Bug: `time.sleep(2)` in an async tool with a limit of 300 ms succeeded and stalled every session."""
    released = threading.Event()

    @tool(side_effect="read", limits=SHORT)
    async def block() -> str:
        """Block."""
        released.wait(20)
        return "late"

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(ScriptedModel([calls("block"), "end"]), tools=[block])
            other = await runtime.session("b", agent=Agent(ScriptedModel(["fine"] * 50)))
            turn = (await runtime.session("a", agent=agent)).turn("go")
            turn.start()
            for _ in range(50):
                assert (await asyncio.wait_for(other.turn("hi"), 10)).output == "fine"
            done = await asyncio.wait_for(turn, 10)
            (result,) = results(done.messages)
            assert result.error is not None
            assert result.error.code == "TIMEOUT_TOOL"
            assert not released.is_set()

    try:
        asyncio.run(main())
    finally:
        released.set()


def test_a_tool_that_computes_forever_times_out(memory: Place) -> None:
    """Bug: no call could be settled while an async tool kept the loop busy."""
    stop = threading.Event()

    @tool(side_effect="read", limits=SHORT)
    async def spin() -> str:
        """Compute."""
        while not stop.is_set():
            pass
        return "late"

    try:
        (result,) = results(run(memory, calls("spin"), "end", tools=[spin]))
    finally:
        stop.set()
    assert result.error is not None
    assert result.error.code == "TIMEOUT_TOOL"


def test_a_blocking_tool_delays_no_other_call_of_its_turn(memory: Place) -> None:
    """Bug: the calls of one reply waited for the one that blocked."""
    met = threading.Barrier(3, timeout=20)

    @tool(side_effect="read")
    async def meet() -> str:
        """Wait for the others, blocking."""
        met.wait()
        return "met"

    found = results(run(memory, calls("meet", "meet", "meet"), "end", tools=[meet]))
    assert [one.value for one in found] == ["met"] * 3


def test_a_tool_that_ignores_its_cancellation_is_abandoned(memory: Place) -> None:
    """Ours: the time limit applies whatever the tool does with its cancellation."""
    swallowed, stop = threading.Event(), threading.Event()

    @tool(side_effect="read", limits=SHORT)
    async def stubborn() -> str:
        """Keep running."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()
            stop.wait(20)  # and blocks, too
        return "late"

    try:
        (result,) = results(run(memory, calls("stubborn"), "end", tools=[stubborn]))
        assert result.error is not None
        assert result.error.code == "TIMEOUT_TOOL"
        assert swallowed.wait(10)
    finally:
        stop.set()


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("loop", ["own", "runtime"])
def test_any_exception_of_an_async_tool_fails_its_call(
    memory: Place, raised: type[BaseException], loop: Any
) -> None:
    """Seed: a tool that raises or exits produces a typed failure."""

    @tool(side_effect="read", loop=loop)
    async def broken() -> str:
        """Raise."""
        await asyncio.sleep(0)
        raise raised

    first, second = results(run(memory, calls("broken"), calls("broken"), "end", tools=[broken]))
    assert first.error is not None
    assert first.error.code == "TOOL_ERROR"
    assert second.error == first.error


def test_system_exit_in_a_task_of_a_tool_fails_the_call(memory: Place) -> None:
    """Ours: SystemExit in a task ends the loop that it runs on, which is the tool's own."""

    @tool(side_effect="read")
    async def broken() -> str:
        """Start something that exits."""

        async def leave() -> None:
            raise SystemExit(3)

        await asyncio.gather(leave(), asyncio.sleep(30))
        return "late"

    (result,) = results(run(memory, calls("broken"), "end", tools=[broken]))
    assert result.error is not None
    assert "SystemExit" in result.error.message


def test_tasks_and_generators_left_on_a_tools_loop_end_with_the_call(
    memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: tasks are cancelled, async generators closed, and no warning is left."""
    ended: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            ended.append("generator")

    async def background() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("task")

    @tool(side_effect="read")
    async def untidy() -> int:
        """Leave tasks and generators behind."""
        left.append(asyncio.create_task(background()))
        kept.append(numbers())
        async for number in kept[0]:
            await asyncio.sleep(0)
            return int(number)
        return 0

    left: list[Any] = []
    kept: list[Any] = []
    (result,) = results(run(memory, calls("untidy"), "end", tools=[untidy]))
    assert result.value == 1
    assert sorted(ended) == ["generator", "task"]
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_tool_awaits_the_runtimes_services_on_its_own_loop(memory: Place) -> None:
    """Ours: the host, the model and the events of a turn work on whichever loop the tool runs."""
    seen: dict[str, Any] = {}

    @tool(side_effect="external_system")
    async def ask(ctx: RunContext[None]) -> str:
        """Use the runtime."""
        seen["thread"] = threading.get_ident()
        await ctx.host.create_session(SessionCreateRequest(session_id="child"))
        started = await ctx.host.start_turn_stream("child", TurnInput(message=UserMessage(content="hi")))
        seen["events"] = [type(event).__name__ async for event in started.events]
        seen["turn"] = (await ctx.host.await_turn(started.turn_id)).outcome
        return await ctx.complete("what?")

    async def play(request: ModelRequest) -> AsyncIterator[ModelDelta]:
        if not request.tools:
            yield ReplyEnded(text="because")
        elif request.session_id == "child":
            yield ReplyEnded(text="from the child")
        else:
            yield answer_of(request, "ask")

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(play), tools=[ask]))
            (result,) = results((await session.turn("go")).messages)
            assert result.value == "because"

    asyncio.run(main())
    assert seen["thread"] != threading.get_ident()
    assert "TurnCommitted" in seen["events"]
    assert seen["turn"].text == "from the child"


def test_a_service_that_a_tool_waits_for_is_cancelled_with_the_tool(memory: Place) -> None:
    """Ours: a cancellation crosses from the tool's loop to the runtime's."""
    cancelled: list[str] = []

    async def play(request: ModelRequest) -> AsyncIterator[ModelDelta]:
        if request.tools:
            yield answer_of(request, "ask")
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("model")
            raise

    @tool(side_effect="read", limits=SHORT)
    async def ask(ctx: RunContext[None]) -> str:
        """Ask forever."""
        return await ctx.complete("what?")

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(play), tools=[ask]))
            (result,) = results((await session.turn("go")).messages)
            assert result.error is not None
            assert result.error.code == "TIMEOUT_TOOL"
            await until(lambda: cancelled == ["model"])

    asyncio.run(main())


def test_a_task_spawned_by_a_tool_may_block(memory: Place) -> None:
    """Ours: the task runs on its tool's thread, away from the runtime's loop."""
    where: dict[str, int] = {}
    release = threading.Event()

    @tool(side_effect="external_system")
    async def spawn(ctx: RunContext[None]) -> str:
        """Start a task that blocks."""

        async def work() -> str:
            where["task"] = threading.get_ident()
            release.wait(20)
            await ctx.host.await_hidden_tasks(ctx.session_id)
            return "done"

        await ctx.host.spawn_hidden_task(ctx.session_id, "blocks", work)
        return "spawned"

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(ScriptedModel([calls("spawn"), "end"]), tools=[spawn])
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go")).output == "end"
            other = await runtime.session("o", agent=Agent(ScriptedModel(["fine"])))
            assert (await asyncio.wait_for(other.turn("hi"), 10)).output == "fine"
            await until(lambda: "task" in where)
            release.set()
            await asyncio.wait_for(runtime.host("s").await_hidden_tasks("s"), 10)

    asyncio.run(main())
    assert where["task"] != threading.get_ident()


def test_a_blocking_tool_on_the_runtimes_loop_is_named_in_the_log_and_times_out_late(
    memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: with `loop="runtime"` a tool can stall everything, so the log names it and the line."""

    @tool(side_effect="read", limits=SHORT, loop="runtime")
    async def blocks() -> str:
        """Block."""
        time.sleep(0.6)  # noqa: ASYNC251 - that is the point
        return "late"

    with caplog.at_level("WARNING", logger="standfast.tools"):
        (result,) = results(run(memory, calls("blocks"), "end", tools=[blocks]))
    assert result.error is not None
    assert result.error.code == "TIMEOUT_TOOL"
    (record,) = [one for one in caplog.records if one.name == "standfast.tools"]
    assert "tool blocks() of session s, call 1," in record.getMessage()
    assert "time.sleep(0.6)" in record.getMessage()


def test_using_an_object_of_another_loop_fails_with_a_hint_that_names_the_option(memory: Place) -> None:
    """Ours: a connection pool of the application is bound to the application's loop."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        mine, other = loop.create_future(), loop.create_future()

        @tool(side_effect="read")
        async def wait() -> str:
            """Wait for a future of the application."""
            found: str = await mine
            return found

        @tool(side_effect="read", loop="runtime")
        async def wait_here() -> str:
            """Wait for it on the runtime's loop."""
            asyncio.get_running_loop().call_soon(other.set_result, "mine")
            found: str = await other
            return found

        async with memory.runtime() as runtime:
            model = ScriptedModel([calls("wait"), calls("wait_here"), "end"])
            session = await runtime.session("s", agent=Agent(model, tools=[wait, wait_here]))
            first, second = results((await session.turn("go")).messages)
        assert first.error is not None
        assert "attached to a different loop" in first.error.message
        assert first.error.hint is not None
        assert '@tool(loop="runtime")' in first.error.hint
        assert second.value == "mine"

    asyncio.run(main())


def test_each_of_many_concurrent_async_calls_has_its_own_loop(memory: Place) -> None:
    """Ours: a hundred calls wait on a hundred loops; idle threads are bounded afterwards."""

    @tool(side_effect="read", limits=CapabilityLimits(concurrency=100))
    async def look() -> int:
        """Wait a little."""
        await asyncio.sleep(0.2)
        return id(asyncio.get_running_loop())

    before = threading.active_count()
    found = results(run(memory, calls(*["look"] * 100), "end", tools=[look]))
    assert len({one.value for one in found}) == 100
    assert threading.active_count() <= before + MAX_IDLE + 10


def test_the_error_for_a_tool_that_uses_the_runtime_advises_running_on_its_loop(memory: Place) -> None:
    """Ours: sessions and turns belong to the loop on which the runtime was opened."""

    async def main() -> None:
        async with memory.runtime() as runtime:

            @tool(side_effect="read")
            async def count() -> int:
                """Count."""
                return len(await runtime.sessions())

            @tool(side_effect="read", loop="runtime")
            async def count_here() -> int:
                """Count."""
                return len(await runtime.sessions())

            @tool(side_effect="read")
            async def start() -> str:
                """Start a turn."""
                return str(await session.turn("again"))

            script: list[Any] = [calls("count", "start", "count_here"), "end"]
            agent = Agent(ScriptedModel(script), tools=[count, count_here, start])
            session = await runtime.session("s", agent=agent)
            first, second, third = results((await session.turn("go")).messages)
            for refused in (first, second):
                assert refused.error is not None
                assert "used on a different event loop" in refused.error.message
                assert '@tool(loop="runtime")' in (refused.error.hint or "")
            assert third.value == 1

    asyncio.run(main())
