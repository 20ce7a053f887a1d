"""Native tool calls: from the model's request to a result that it can use."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from stand_ins import EchoModel, Place, agent_of, asks, events_of, of_kind, results, until

from standfast import Agent, CapabilityLimits, RunContext, ToolError, auto_approval, tool
from standfast.model.capability import CallStatus
from standfast.model.events import ToolCallSettled, ToolCallStarted
from standfast.model.message import AssistantMessage, ToolMessage
from standfast.runtime.result import TurnResult


def run(place: Place, *replies: Any, tools: list[Any], deps: Any = None) -> TurnResult[Any]:
    """Run one turn with a scripted model and return its result."""

    async def main() -> TurnResult[Any]:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*replies, tools=tools), deps=deps)
            return await session.turn("hi")

    return asyncio.run(main())


def outcome_of(place: Place, function: Any, **arguments: Any) -> Any:
    """Return the value of one call, or the code of its error."""
    name = getattr(function, "__name__", "")
    (found,) = results(run(place, asks((name, arguments)), "end", tools=[function]).messages)
    return found


# Kinds of tools


def test_tools_run_on_their_own_threads_unless_declared_to_run_on_the_loop(
    memory: Place,
) -> None:
    """Seed: sync functions run in a thread. Ours: async ones do, too, so that none can block the runtime."""
    where: dict[str, int] = {}

    def plain() -> None:
        where["plain"] = threading.get_ident()

    async def coroutine() -> None:
        assert asyncio.get_event_loop() is asyncio.get_running_loop()
        where["coroutine"] = threading.get_ident()

    @tool(loop="runtime")
    async def declared() -> None:
        where["declared"] = threading.get_ident()

    asked = asks(("plain", {}), ("coroutine", {}), ("declared", {}))
    run(memory, asked, "end", tools=[plain, coroutine, declared])
    assert where["declared"] == threading.get_ident()
    assert where["plain"] != threading.get_ident()
    assert where["coroutine"] != threading.get_ident()


def test_sync_functions_of_one_reply_run_concurrently(memory: Place) -> None:
    """Seed: the native calls of a reply run concurrently."""
    barrier = threading.Barrier(3, timeout=5)

    def meet(number: int) -> int:
        barrier.wait()
        return number

    result = run(memory, asks(*(("meet", {"number": n}) for n in range(3))), "end", tools=[meet])
    assert results(result.messages) == [0, 1, 2]


def test_results_have_the_models_call_ids(memory: Place) -> None:
    """Ours: a provider can match each result with its call."""

    def look() -> str:
        return "x"

    calls = [{"name": "look", "id": "call_a"}, {"name": "look", "id": "call_b"}]
    result = run(memory, {"tool_calls": calls}, "end", tools=[look])
    answers = [one for one in result.messages if isinstance(one, ToolMessage)]
    assert [(one.call_id, one.provider_id) for one in answers] == [(1, "call_a"), (2, "call_b")]


def test_one_tool_may_be_called_several_times_in_a_reply(memory: Place) -> None:
    """Ours: results are matched to calls by id, not by name."""

    async def echo(number: int) -> int:
        return number

    asked = asks(*(("echo", {"number": number}) for number in range(50)))
    result = run(memory, asked, "end", tools=[echo])
    assert results(result.messages) == list(range(50))
    assert len(result.calls) == 50


# Invalid requests of the model


def test_an_unknown_tool_is_an_error_for_the_model(memory: Place) -> None:
    """Seed: UNKNOWN_TOOL has close matches in its hint."""

    def order() -> str:
        return "x"

    result = run(memory, asks(("ordr", {})), "end", tools=[order])
    answer = result.messages[2]
    assert isinstance(answer, ToolMessage)
    assert answer.error is not None
    assert answer.error.code == "UNKNOWN_TOOL"
    assert "order" in f"{answer.error.message} {answer.error.hint}"
    assert result.output == "end"


@pytest.mark.parametrize("arguments", ["not json", "[1]", '"x"', "5", "null", '{"key": ', '{"a": NaN}'])
def test_arguments_that_are_not_an_object_are_never_taken_for_empty_ones(
    memory: Place, arguments: str
) -> None:
    """Seed: arguments that are not JSON are an error for the model, never `{}`."""
    ran: list[str] = []

    def note(key: str = "default") -> None:
        ran.append(key)

    result = run(memory, asks(("note", arguments)), "end", tools=[note])
    assert results(result.messages) == ["INVALID_ARGUMENT"]
    assert ran == []
    asked = result.messages[1]
    assert isinstance(asked, AssistantMessage)
    assert (asked.tool_calls[0].raw, asked.tool_calls[0].arguments) == (arguments, None)


def test_an_empty_text_means_no_arguments(memory: Place) -> None:
    """Ours: some models send an empty text for a tool without parameters."""

    def note() -> str:
        return "noted"

    assert results(run(memory, asks(("note", "")), "end", tools=[note]).messages) == ["noted"]


@pytest.mark.parametrize("arguments", [{}, {"cents": "many"}, {"cents": 5, "more": 1}, {"cents": None}])
def test_invalid_arguments_are_an_error_that_says_why(memory: Place, arguments: Any) -> None:
    """Seed: the input of a tool is validated."""

    def pay(cents: int) -> None:
        raise AssertionError("it ran")

    result = run(memory, asks(("pay", arguments)), "end", tools=[pay])
    assert results(result.messages) == ["INVALID_ARGUMENT"]
    assert [one.status for one in result.calls] == [CallStatus.ERROR]


# Behaviour of tools


def test_a_tool_that_raises_fails_its_call_but_not_the_turn(memory: Place) -> None:
    """Seed: a tool that raises becomes a typed failure."""

    def fails() -> None:
        raise ValueError("out of stock")

    result = run(memory, asks(("fails", {})), "end", tools=[fails])
    assert results(result.messages) == ["TOOL_ERROR"]
    assert "out of stock" in str(result.messages[2])
    assert result.output == "end"


def test_a_tool_may_fail_with_its_own_error_code(memory: Place) -> None:
    """Seed: a tool's author may choose the error code."""

    async def fails() -> None:
        raise ToolError("OUT_OF_STOCK", "none left")

    assert outcome_of(memory, fails) == "OUT_OF_STOCK"


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), MemoryError()])
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_no_exception_of_a_tool_leaves_its_call(memory: Place, error: BaseException, kind: str) -> None:
    """Seed: even a BaseException becomes a typed failure."""

    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    assert outcome_of(memory, plain if kind == "plain" else coroutine) == "TOOL_ERROR"


def test_a_tool_that_raises_cancelled_error_has_failed(memory: Place) -> None:
    """Ours: such a tool does not cancel its turn."""

    async def gives_up() -> None:
        raise asyncio.CancelledError

    assert outcome_of(memory, gives_up) == "TOOL_ERROR"


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_tool_that_hangs_times_out(memory: Place, kind: str) -> None:
    """Seed: a tool runs under `timeout_ms`, whatever it does."""
    release = threading.Event()

    @tool(name="hang", limits=CapabilityLimits(timeout_ms=20))
    def plain() -> None:
        release.wait(10)

    @tool(name="hang", limits=CapabilityLimits(timeout_ms=20))
    async def coroutine() -> None:
        await asyncio.Event().wait()

    result = run(memory, asks(("hang", {})), "end", tools=[plain if kind == "plain" else coroutine])
    release.set()
    assert results(result.messages) == ["TIMEOUT_TOOL"]
    assert [one.status for one in result.calls] == [CallStatus.TIMEOUT]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", object(), "\ud800", {1, 2}])
def test_a_result_that_is_not_json_is_a_failure(memory: Place, value: Any) -> None:
    """Seed: NaN, bytes or a lone surrogate becomes a typed failure."""

    def give() -> Any:
        return value

    found = outcome_of(memory, give)
    assert found in ("SERIALIZE_ERROR", [1, 2])


def test_a_cyclic_result_is_a_failure(memory: Place) -> None:
    """Seed: a cycle becomes a typed failure."""

    def give() -> Any:
        circle: list[Any] = []
        circle.append(circle)
        return circle

    assert outcome_of(memory, give) == "SERIALIZE_ERROR"


@pytest.mark.slow
def test_a_huge_result_is_refused(memory: Place) -> None:
    """Seed: a tool that returns 100 MB becomes a typed failure."""

    def give() -> str:
        return "x" * 100_000_000

    assert outcome_of(memory, give) == "RESPONSE_TOO_LARGE"


def test_huge_arguments_are_refused(memory: Place) -> None:
    """Seed: max_request_bytes limits the arguments."""

    @tool(limits=CapabilityLimits(max_request_bytes=100))
    def take(text: str) -> None:
        raise AssertionError("it ran")

    assert results(run(memory, asks(("take", {"text": "x" * 200})), "end", tools=[take]).messages) == [
        "REQUEST_TOO_LARGE"
    ]


def test_a_result_that_does_not_match_the_output_schema_is_a_failure(memory: Place) -> None:
    """Seed: a result is checked against the output schema."""

    def count() -> int:
        return "many"  # type: ignore[return-value]

    assert outcome_of(memory, count) == "TOOL_ERROR"


# Limits


def test_the_rate_limit_of_a_tool_is_enforced(memory: Place) -> None:
    """Seed: calls over rate_per_min are refused."""

    @tool(limits=CapabilityLimits(rate_per_min=2))
    def look(number: int) -> int:
        return number

    asked = asks(*(("look", {"number": number}) for number in range(3)))
    assert results(run(memory, asked, "end", tools=[look]).messages) == [0, 1, "RATE_LIMITED"]


def test_the_concurrency_limit_of_a_tool_is_enforced(memory: Place) -> None:
    """Seed: calls over the concurrency limit wait."""
    running = most = 0

    @tool(limits=CapabilityLimits(concurrency=2), loop="runtime")
    async def look(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return number

    asked = asks(*(("look", {"number": number}) for number in range(7)))
    assert results(run(memory, asked, "end", tools=[look]).messages) == list(range(7))
    assert most == 2


def test_all_sessions_share_the_limits_of_a_tool(memory: Place) -> None:
    """Ours: a limit that protects another system covers all sessions."""
    running = most = 0

    @tool(limits=CapabilityLimits(concurrency=1), loop="runtime")
    async def look() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async def main() -> None:
        agent = agent_of(asks(("look", {})), "end", tools=[look])
        async with memory.runtime() as runtime:
            sessions = [await runtime.session(f"s{number}", agent=agent) for number in range(5)]
            await asyncio.gather(*(session.turn("hi") for session in sessions))

    asyncio.run(main())
    assert most == 1


def test_a_call_waiting_for_a_slot_is_cancelled_with_its_turn(memory: Place) -> None:
    """Ours: a cancelled call leaves the queue, and the slot goes to the next call."""

    async def main() -> None:
        started, release = asyncio.Event(), asyncio.Event()

        @tool(limits=CapabilityLimits(concurrency=1), loop="runtime")
        async def look() -> str:
            started.set()
            await release.wait()
            return "seen"

        agent = agent_of(asks(("look", {}), ("look", {})), "end", "end", tools=[look])
        async with memory.runtime() as runtime:
            one, other = [await runtime.session(name, agent=agent) for name in ("a", "b")]
            first, second = one.turn("hi"), other.turn("hi")
            first.start()
            await started.wait()
            second.start()
            await until(lambda: runtime.live("b").driver is not None)
            assert await second.cancel()
            assert (await second.settled()).status == "stopped"
            release.set()
            assert results((await first).messages) == ["seen", "seen"]

    asyncio.run(main())


# Approval rules


def test_an_approval_rule_approves_what_it_allows_and_asks_about_the_rest(memory: Place) -> None:
    """Seed: the rule is evaluated in the sandbox: true approves, false asks a person."""

    @tool(approval=auto_approval("kwargs['cents'] < 100"))
    def pay(cents: int) -> str:
        return f"paid {cents}"

    @tool(approval=auto_approval("nonsense + 1"))
    def odd() -> str:
        return "odd"

    async def main() -> None:
        script = [asks(("pay", {"cents": 5}), ("pay", {"cents": 500}), ("odd", {})), "end"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[pay, odd]))
            waiting = await session.turn("hi")
            assert [one.name for one in waiting.calls] == ["pay"]
            asked = await session.approvals(pending=True)
            assert [(one.capability, one.kwargs) for one in asked] == [("pay", {"cents": 500}), ("odd", {})]
            await session.deny(asked[0].approval_id)
            result = await session.approve(asked[1].approval_id)
            assert results(result.messages) == ["paid 5", "PERMISSION_DENIED", "odd"]

    asyncio.run(main())


# Records and events


def test_every_call_has_a_record_without_its_payload(memory: Place) -> None:
    """Seed: the record is the seed's `ExternalCallRecord`, which has digests only."""

    @tool(side_effect="read")
    def look(key: str) -> str:
        return f"secret of {key}"

    result = run(memory, asks(("look", {"key": "a"})), "end", tools=[look])
    (record,) = result.calls
    assert (record.name, record.side_effect, record.status) == ("look", "read", CallStatus.OK)
    assert len(record.request_digest) == 64
    assert record.response_digest is not None
    assert "secret" not in str(record)


def test_events_report_every_call(memory: Place) -> None:
    """Ours: an observer sees each call start and end."""

    async def look(key: str) -> str:
        return key

    async def main() -> None:
        script = [asks(("look", {"key": "a"}), ("nosuch", {}), ("look", "no json")), "end"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[look]))
            events = await events_of(session.turn("hi"))
        assert [one.call.call_id for one in of_kind(ToolCallStarted, events)] == [1]
        settled = {one.call_id: one for one in of_kind(ToolCallSettled, events)}
        assert settled[1].value == "a"
        assert settled[2].error is not None

    asyncio.run(main())


def test_a_result_that_a_thread_returns_after_the_turn_is_dropped(memory: Place) -> None:
    """Seed: a result that arrives after the time-out is dropped."""

    async def main() -> None:
        release, returned = threading.Event(), threading.Event()

        @tool(limits=CapabilityLimits(timeout_ms=10))
        def hang() -> str:
            release.wait(10)
            returned.set()
            return "late"

        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("hang", {})), "end", tools=[hang]))
            assert results((await session.turn("hi")).messages) == ["TIMEOUT_TOOL"]
            release.set()
            await until(returned.is_set)
            assert results(await session.messages()) == ["TIMEOUT_TOOL"]

    asyncio.run(main())


def test_a_tool_may_run_another_session_of_its_runtime(memory: Place) -> None:
    """Ours: a turn of one session does not block another session."""

    async def main() -> None:
        @tool(loop="runtime")
        async def ask_other(ctx: RunContext[Any], text: str) -> str:
            other = await ctx.deps.session("other", agent=Agent(EchoModel()))
            return str((await other.turn(text)).output)

        async with memory.runtime() as runtime:
            agent = agent_of(asks(("ask_other", {"text": "who?"})), "end", tools=[ask_other])
            session = await runtime.session("s", agent=agent, deps=runtime)
            assert results((await session.turn("hi")).messages) == ["re: who?"]

    asyncio.run(main())
