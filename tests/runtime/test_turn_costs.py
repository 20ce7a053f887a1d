"""The cost of a turn: in its result, in the ledger, and as a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from stand_ins import Place, StagedModel, agent_of, asks, of_kind, requested, results

from standfast import Agent, CompleteLater, Plugin, RunContext, TurnStopped, UsageLimits, hook, tool
from standfast.errors import NotConfigured
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage
from standfast.model.outcome import StopReason
from standfast.model.session import TurnState
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded

PRICES = {"staged:one": {"input": 2, "output": 8}}
A_CENT = 10_000_000


@tool
async def look(key: str) -> str:
    """Look."""
    return f"seen {key}"


@tool
async def ponder(ctx: RunContext[None], times: int) -> str:
    """Ask the model `times` times."""
    return " ".join([await ctx.complete(f"number {number}") for number in range(times)])


@tool
async def later(ctx: RunContext[None]) -> CompleteLater:
    """Leave the answer to an outside system."""
    return CompleteLater(ctx.completion_token())


def staged(
    used: Usage, *, model: str = "", calls: int = 0, asking: tuple[str, str] | None = None
) -> StagedModel:
    """Return a model with this usage per reply, whose first *calls* replies request a tool."""

    async def play(request: ModelRequest) -> AsyncIterator[ModelDelta]:
        number = len(staging.requests)
        name, arguments = asking or ("look", f'{{"key": "{number}"}}')
        ended = requested(name, arguments) if number <= calls else ReplyEnded(text="done")
        yield ReplyEnded(text=ended.text, calls=ended.calls, usage=used, model=model)

    staging = StagedModel(play)
    return staging


def test_the_cost_of_a_reply_is_in_the_result_the_message_and_the_ledger(place: Place) -> None:
    """Ours: the ledger has the cost, which is journaled with the reply and counted once."""

    async def main() -> None:
        used = Usage(input=1000, output=500)
        agent = Agent(staged(used, calls=1), tools=[look])
        async with place.runtime(prices=PRICES) as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("hi")
            assert result.usage == Usage(input=2000, output=1000, calls=2, cost_nano_usd=12_000_000, priced=2)
            assert result.usage.cost_usd == Decimal("0.012")
            replies = of_kind(AssistantMessage, result.messages)
            assert [one.usage.cost_nano_usd for one in replies] == [6_000_000] * 2
        async with place.runtime() as later:
            (line,) = await (await later.session("s", agent=agent)).usage()
            assert (line.model, line.usage) == ("staged:one", result.usage)

    asyncio.run(main())


def test_an_unknown_cost_is_not_shown_as_free(memory: Place) -> None:
    """Ours: a line of the ledger whose cost is unknown says so."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(staged(Usage(input=5))))
            result = await session.turn("hi")
            assert (result.usage.cost_nano_usd, result.usage.cost_is_known) == (0, False)
            (line,) = await session.usage()
            assert line.usage == Usage(input=5, calls=1)

    asyncio.run(main())


def test_a_provider_may_report_the_cost_itself(memory: Place) -> None:
    """Ours: a cost that the provider reports is used."""

    async def main() -> None:
        async with memory.runtime(prices=PRICES) as runtime:
            session = await runtime.session(
                "s", agent=Agent(staged(Usage(input=5, cost_nano_usd=3, priced=1)))
            )
            assert (await session.turn("hi")).usage.cost_nano_usd == 3

    asyncio.run(main())


def test_a_cost_limit_without_a_known_price_is_refused_before_the_turn_begins(memory: Place) -> None:
    """Ours: without a price a cost limit fails closed, with a hint."""

    async def main() -> None:
        model = staged(Usage(input=5))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            with pytest.raises(NotConfigured, match="needs the price of staged:one") as caught:
                await session.turn("hi", limits=UsageLimits(max_cost_usd=1))
            assert "Runtime(prices={'staged:one'" in (caught.value.hint or "")
            assert "standfast[prices]" in (caught.value.hint or "")
            assert (await session.turns(), model.requests) == ([], [])
            assert (await session.turn("hi")).output == "done"

    asyncio.run(main())


def test_a_turn_taken_over_where_no_price_is_known_stays_unfinished(place: Place) -> None:
    """Ours: the limit is stored with the turn, and the process that resumes it must enforce it."""

    @tool(approval="manual")
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def main() -> None:
        agent = Agent(staged(Usage(input=5), asking=("pay", "{}"), calls=1), tools=[pay])
        async with place.runtime(prices=PRICES) as first:
            session = await first.session("s", agent=agent)
            assert (await session.turn("hi", limits=UsageLimits(max_cost_usd=1))).status == "waiting"
        async with place.runtime() as second:
            session = await second.session("s", agent=agent)
            (approval,) = await session.approvals()
            with pytest.raises(NotConfigured, match="needs the price of"):
                await session.approve(approval.approval_id)
            assert [one.state for one in await session.turns()] != [TurnState.ENDED]
        async with place.runtime(prices=PRICES) as third:
            session = await third.session("s", agent=agent)
            turn = await session.resume()
            assert turn is not None
            assert (await turn).output == "done"

    asyncio.run(main())


def test_a_turn_that_no_longer_has_a_price_can_be_cancelled(place: Place) -> None:
    """Ours: a turn that cannot resume must not make its session unusable."""

    async def main() -> None:
        agent = Agent(staged(Usage(input=5), asking=("later", "{}"), calls=1), tools=[later])
        async with place.runtime(prices=PRICES) as first:
            session = await first.session("s", agent=agent)
            assert (await session.turn("hi", limits=UsageLimits(max_cost_usd=1))).status == "waiting"
        async with place.runtime() as second:
            session = await second.session("s", agent=agent)
            assert await session.cancel()
            assert (await session.turn("again")).output == "done"

    asyncio.run(main())


def test_a_turn_over_its_cost_limit_makes_no_further_model_call(memory: Place) -> None:
    """Ours: limits are enforced before a call is made."""

    async def main() -> None:
        model = staged(Usage(input=5000), calls=99)  # one cent each
        async with memory.runtime(prices=PRICES) as runtime:
            session = await runtime.session("s", agent=Agent(model, tools=[look]))
            with pytest.raises(TurnStopped) as caught:
                await session.turn("hi", limits=UsageLimits(max_cost_usd=0.025))
            assert caught.value.reason is StopReason.TURN_BUDGET
            assert caught.value.message == "the turn cost $0.03, the limit is $0.025"
            assert caught.value.result.usage.cost_nano_usd == 3 * A_CENT
            assert len(model.requests) == 3

    asyncio.run(main())


def test_the_price_of_the_requested_model_is_used_for_an_unknown_model_name(memory: Place) -> None:
    """Ours: providers serve dated versions of the requested model."""

    async def main() -> None:
        model = staged(Usage(input=5000), model="one-2031-01-01")
        async with memory.runtime(prices=PRICES) as runtime:
            session = await runtime.session("s", agent=Agent(model))
            assert (await session.turn("hi")).usage.cost_nano_usd == A_CENT
            (line,) = await session.usage()
            assert line.model == "one-2031-01-01"

    asyncio.run(main())


def test_failed_calls_and_model_calls_of_tools_count_against_max_calls(memory: Place) -> None:
    """Ours: a tool's model call beyond the limit fails with an error."""

    async def main() -> None:
        script = [{"failure": {"retryable": True}}, asks(("ponder", {"times": 5})), "one", "two", "never"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[ponder]))
            with pytest.raises(TurnStopped) as caught:
                await session.turn("hi", limits=UsageLimits(max_calls=4))
            assert caught.value.message == "the turn made 4 model calls, the limit is 4"
            assert results(await session.messages()) == ["TURN_BUDGET"]
            assert caught.value.result.usage.calls == 4

    asyncio.run(main())


def test_concurrent_questions_cannot_exceed_max_calls(memory: Place) -> None:
    """Ours: calls that are still running count, too."""

    @tool
    async def at_once(ctx: RunContext[None]) -> list[str]:
        """Ask five questions."""
        asked = await asyncio.gather(*(ctx.complete("?") for _ in range(5)), return_exceptions=True)
        return [str(one) for one in asked]

    async def main() -> None:
        script = [asks(("at_once", {})), "a", "b", "c"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[at_once]))
            result = await session.turn("hi", limits=UsageLimits(max_calls=3)).settled()
            (answers,) = results(result.messages)
            assert answers[:2] == ["a", "b"]
            assert all("the limit is 3" in one for one in answers[2:])
            assert result.usage.calls == 3

    asyncio.run(main())


def test_money_spent_by_tools_counts_at_once(memory: Place) -> None:
    """Ours: a tool that calls the model repeatedly is stopped within its call."""

    async def main() -> None:
        model = staged(Usage(input=5000), asking=("ponder", '{"times": 50}'), calls=1)
        async with memory.runtime(prices=PRICES) as runtime:
            session = await runtime.session("s", agent=Agent(model, tools=[ponder]))
            result = await session.turn("hi", limits=UsageLimits(max_cost_usd=0.05)).settled()
            assert results(result.messages) == ["TURN_BUDGET"]
            assert len(model.requests) == 5

    asyncio.run(main())


def test_model_calls_of_plugins_count_against_the_turns_limits(memory: Place) -> None:
    """Ours: hooks share the budget of the turn."""

    class Curious(Plugin):
        id = "curious"

        @hook("before_turn")
        async def wonder(self, ctx: Any) -> None:
            for _ in range(3):
                await ctx.complete([], instructions="why?")

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = agent_of("a", "b", plugins=[Curious()])
            session = await runtime.session("s", agent=agent)
            with pytest.raises(TurnStopped) as caught:
                await session.turn("hi", limits=UsageLimits(max_calls=2))
            assert "the limit is 2" in caught.value.message

    asyncio.run(main())
