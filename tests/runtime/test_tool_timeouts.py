"""Tools that exceed their time-out: what the model reads, and how the call is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from code_stand_ins import cell, coder, finish, reports
from stand_ins import Place, agent_of, asks, go_on, results

from standfast import (
    BlockingSandbox,
    Capability,
    CapabilityLimits,
    RegisteredTool,
    RunContext,
    SideEffect,
    tool,
)
from standfast.errors import InvalidArgument
from standfast.model.message import Message, ToolMessage
from standfast.tools.dispatch import Dispatcher, RunningCall

SHORT = CapabilityLimits(timeout_ms=250)
"""Long enough for a busy machine to start the call's thread: a call may time out before its tool begins."""

PROTOCOLS = ("standard", "code")


class Till:
    """A tool `charge` that hangs the first `hangs` times, and logs its calls."""

    def __init__(self, hangs: int, **options: Any) -> None:
        self.attempts: list[int] = []
        self.keys: set[str] = set()

        @tool(limits=SHORT, **options)
        async def charge(ctx: RunContext[None], cents: int = 5) -> str:
            """Charge."""
            self.attempts.append(ctx.attempt)
            self.keys.add(ctx.idempotency_key)
            if len(self.attempts) <= hangs:
                await asyncio.Event().wait()
            return f"charged {cents}"

        self.tool = charge

    def agent(self, protocol: str) -> Any:
        """Return an agent whose model calls the tool once, natively or in code."""
        if protocol == "standard":
            return agent_of(asks(("charge", {})), "end", tools=[self.tool])
        caught = "try:\n    got = charge()\nexcept TimeoutError as error:\n    got = str(error)"
        return coder(cell(caught), finish("got"), tools=[self.tool])


def outcome(result: Any, protocol: str) -> str:
    """Return the outcome of the call that the model or its code read."""
    if protocol == "code":
        return str(result.output)
    (message,) = (one for one in result.messages if isinstance(one, ToolMessage))
    return str(message.value) if message.error is None else f"{message.error.code}: {message.error.message}"


def unknown(text: str) -> bool:
    return "TIMEOUT_TOOL" in text and "whether it took effect is unknown" in text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_timed_out_call_that_is_not_idempotent_has_an_unknown_outcome(memory: Place, protocol: str) -> None:
    """Bug: the model read "did not answer within 5000 ms" as a failure and paid again."""
    till = Till(hangs=9)

    async def main() -> None:
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=till.agent(protocol))).turn("hi")
            assert unknown(outcome(result, protocol))
            assert till.attempts == [1]
            if protocol == "standard":
                assert "may have taken effect" in _hint(result.messages)
            else:
                assert any("unknown" in str(call) for one in reports(result.messages) for call in one.calls)

    asyncio.run(main())


def _hint(messages: Sequence[Message]) -> str:
    (error,) = (one.error for one in messages if isinstance(one, ToolMessage))
    return "" if error is None else error.hint or ""


def test_a_timed_out_idempotent_call_is_reported_as_a_plain_time_out(memory: Place) -> None:
    """Ours: an idempotent call may be repeated, so its outcome need not be known."""
    till = Till(hangs=9, idempotent=True, on_timeout="retry")

    async def main() -> None:
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=till.agent("standard"))).turn("hi")
            told = outcome(result, "standard")
            assert told == "TIMEOUT_TOOL: charge() did not answer within 250 ms"
            assert till.attempts == [1]

    asyncio.run(main())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tool_may_let_a_timed_out_call_be_repeated(place: Place, protocol: str) -> None:
    """Ours: `on_timeout="retry"` runs it again, under the same idempotency key."""
    till = Till(hangs=2, on_timeout="retry")

    async def main() -> None:
        async with place.runtime() as runtime:
            result = await (await runtime.session("s", agent=till.agent(protocol))).turn("hi")
            assert outcome(result, protocol) == "charged 5"
            assert (till.attempts, len(till.keys)) == ([1, 2, 3], 1)
            statuses = [record.status for record in result.calls if record.name == "charge"]
            assert statuses == ["timeout", "timeout", "ok"]

    asyncio.run(main())


def test_a_call_that_always_hangs_is_repeated_twice_and_then_has_an_unknown_outcome(memory: Place) -> None:
    """Ours: a tool that hangs does not hold its turn forever."""
    till = Till(hangs=99, on_timeout="retry")

    async def main() -> None:
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=till.agent("standard"))).turn("hi")
            assert unknown(outcome(result, "standard"))
            assert till.attempts == [1, 2, 3]

    asyncio.run(main())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("approve", [True, False])
def test_a_tool_may_let_a_person_decide_whether_to_repeat_a_timed_out_call(
    place: Place, protocol: str, approve: bool
) -> None:
    """Ours: `on_timeout="ask"` asks as `on_interrupted="ask"` does, and survives a restart."""
    till = Till(hangs=1, on_timeout="ask")

    async def main() -> None:
        async with place.runtime() as first:
            session = await first.session("s", agent=till.agent(protocol))
            assert (await session.turn("hi").settled()).status == "waiting"
        async with place.runtime() as second:
            session = await second.session("s", agent=till.agent(protocol))
            (asked,) = await session.approvals(pending=True)
            assert "timed out" in (asked.reason or "")
            assert till.attempts == [1]
            decide = session.approve if approve else session.deny
            told = outcome(await decide(asked.approval_id), protocol)
            assert told == "charged 5" if approve else unknown(told)
        assert till.attempts == ([1, 3] if approve else [1])

    asyncio.run(main())


def test_a_retry_refused_by_a_limit_is_reported_as_an_unknown_outcome(memory: Place) -> None:
    """Bug: the model read only about the rejected retry, not about the call before it."""
    ran: list[int] = []

    @tool(limits=CapabilityLimits(timeout_ms=250, rate_per_min=1), on_timeout="retry")
    async def charge() -> None:
        ran.append(1)
        await asyncio.Event().wait()

    async def main() -> None:
        agent = agent_of(asks(("charge", {})), "end", tools=[charge])
        async with memory.runtime() as runtime:
            result = await (await runtime.session("s", agent=agent)).turn("hi")
            assert unknown(outcome(result, "standard"))
        assert ran == [1]

    asyncio.run(main())


def test_a_crash_during_the_second_execution_is_an_interruption(place: Place) -> None:
    """Ours: SPEC §7 (3), each execution has its own intent, and `on_interrupted` applies to the last one."""
    ran: list[int] = []

    async def main() -> None:
        again = asyncio.Event()

        @tool(limits=SHORT, on_timeout="retry", loop="runtime")
        async def charge(ctx: RunContext[None]) -> None:
            ran.append(ctx.attempt)
            if len(ran) == 2:
                again.set()
            await asyncio.Event().wait()

        agent = agent_of(asks(("charge", {})), "end", tools=[charge])
        async with place.runtime() as first:
            (await first.session("s", agent=agent)).turn("hi").start()
            await again.wait()
        async with place.runtime() as second:
            result = await go_on(await second.session("s", agent=agent))
            assert results(result.messages) == ["INTERRUPTED"]
        assert ran == [1, 2]

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["no", "", None, True])
def test_an_unknown_reaction_is_refused_when_the_tool_is_created(wrong: Any) -> None:
    """Ours: a misspelt reaction must not be accepted."""
    contract = Capability(name="f", description="")
    for option in ("on_timeout", "on_interrupted"):
        with pytest.raises(InvalidArgument, match=option):
            tool(**{option: wrong})(harmless)
        with pytest.raises(InvalidArgument, match=option):
            RegisteredTool.sync(contract, lambda call: None, **{option: wrong})


def harmless() -> None:
    """Nothing."""


# Default time-outs


def test_by_default_an_agents_call_may_take_a_minute_and_a_sandboxs_call_five_seconds(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the limit of 5 s, right for code in a sandbox, also applied to an agent's tools."""
    seen: list[int] = []
    start = Dispatcher.start

    def watched(self: Dispatcher, running: RunningCall) -> None:
        seen.append(running.call.timeout_ms)
        start(self, running)

    monkeypatch.setattr(Dispatcher, "start", watched)

    @tool(limits=CapabilityLimits(max_response_bytes=100))
    async def by_default() -> int:
        return 1

    @tool(limits=CapabilityLimits(timeout_ms=7_000))
    async def by_contract() -> int:
        return 2

    both = asks(("by_default", {}), ("by_contract", {}))

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = agent_of(both, "end", tools=[by_default, by_contract])
            await (await runtime.session("s", agent=agent)).turn("hi")
            in_code = coder(cell("by_default()"), finish("by_contract()"), tools=[by_default, by_contract])
            await (await runtime.session("t", agent=in_code)).turn("hi")

    asyncio.run(main())
    assert seen == [60_000, 7_000, 60_000, 7_000]
    seen.clear()
    with BlockingSandbox(tools=[by_default, by_contract]) as box:
        assert box.run("by_default() + by_contract()").result == 3
    assert seen == [5_000, 7_000]


def test_code_in_a_sandbox_learns_that_the_outcome_is_unknown() -> None:
    """Bug: the guest's TimeoutError and the record looked like a failure."""
    contract = Capability(name="pay", description="", side_effect=SideEffect.EXTERNAL_SYSTEM, limits=SHORT)

    async def hang(call: Any) -> None:
        await asyncio.Event().wait()

    with BlockingSandbox(tools=[RegisteredTool.asynchronous(contract, hang)]) as box:
        result = box.run("try:\n    pay()\nexcept TimeoutError as error:\n    result = str(error)")
        assert unknown(str(result.result))
        (record,) = result.external_calls
        assert record.status == "timeout"
        assert record.error is not None
        assert unknown(f"{record.error.code} {record.error.message}")
