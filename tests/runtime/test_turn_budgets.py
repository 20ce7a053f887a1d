"""The limits of a turn, and how it stops when they are reached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import HeldModel, Place, agent_of, asks, results

from standfast import Agent, TurnStopped, UsageLimits
from standfast.errors import InvalidArgument
from standfast.model.outcome import StopReason


def look(key: str) -> str:
    return f"seen {key}"


async def stopped(place: Place, agent: Agent[Any, Any], limits: UsageLimits) -> TurnStopped:
    """Run a turn under these limits and return how it stopped; check that the session still answers."""
    async with place.runtime() as runtime:
        session = await runtime.session("s", agent=agent)
        with pytest.raises(TurnStopped) as caught:
            await session.turn("hi", limits=limits)
        assert await session.unfinished() is None
        return caught.value


def test_the_number_of_model_calls_of_a_turn_is_limited(place: Place) -> None:
    """Seed: a turn that uses up its budget is stopped."""
    script = [asks(("look", {"key": str(number)})) for number in range(9)]
    agent = agent_of(*script, tools=[look])
    error = asyncio.run(stopped(place, agent, UsageLimits(max_iterations=3)))
    assert (error.reason, error.code) == (StopReason.TURN_BUDGET, "TURN_BUDGET")
    assert results(error.messages) == ["seen 0", "seen 1", "seen 2"]
    assert error.hint is not None


def test_the_last_permitted_iteration_may_give_the_answer(place: Place) -> None:
    """Ours: a limit of two permits two iterations."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = agent_of(asks(("look", {"key": "a"})), "end", tools=[look])
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("hi", limits=UsageLimits(max_iterations=2))).output == "end"

    asyncio.run(main())


def test_the_tokens_of_a_turn_are_limited(place: Place) -> None:
    """Seed: the budgets are iterations, no progress, tokens and wall time."""
    spent = {"usage": {"input": 60, "output": 40}}
    script = [{**asks(("look", {"key": str(number)})), **spent} for number in range(9)]
    error = asyncio.run(stopped(place, agent_of(*script, tools=[look]), UsageLimits(max_tokens=200)))
    assert error.reason is StopReason.TURN_BUDGET
    assert error.result.usage.total == 200
    assert error.result.usage.calls == 2


def test_the_wall_time_of_a_turn_is_limited(place: Place) -> None:
    """Seed: the limit also ends a model call that hangs."""

    async def main() -> None:
        error = await stopped(place, Agent(HeldModel()), UsageLimits(max_wall_ms=20))
        assert (error.reason, error.code) == (StopReason.TURN_BUDGET, "TURN_BUDGET")
        assert "20 ms" in error.message

    asyncio.run(main())


def test_exceeding_the_wall_time_ends_a_hanging_tool(place: Place) -> None:
    """Ours: every call has a result, however the turn ends."""

    async def hang() -> None:
        await asyncio.Event().wait()

    agent = agent_of(asks(("hang", {})), "end", tools=[hang])
    error = asyncio.run(stopped(place, agent, UsageLimits(max_wall_ms=20)))
    assert error.reason is StopReason.TURN_BUDGET
    assert results(error.messages) == ["CANCELLED"]


def test_repeating_the_same_calls_is_not_progress(place: Place) -> None:
    """Seed: the no-progress budget ends a loop."""
    agent = agent_of(*[asks(("look", {"key": "a"}))] * 9, tools=[look])
    error = asyncio.run(stopped(place, agent, UsageLimits(max_no_progress=2)))
    assert (error.reason, error.code) == (StopReason.NO_PROGRESS, "NO_PROGRESS")
    assert results(error.messages) == ["seen a"] * 3


def test_failing_calls_are_not_progress(place: Place) -> None:
    """Seed: a model that repeats a failing request forever is stopped."""
    agent = agent_of(*[asks(("look", {}), ("nosuch", {}))] * 9, tools=[look])
    error = asyncio.run(stopped(place, agent, UsageLimits(max_no_progress=3)))
    assert error.reason is StopReason.NO_PROGRESS
    assert results(error.messages) == ["INVALID_ARGUMENT", "UNKNOWN_TOOL"] * 3


def test_a_new_successful_call_is_progress(place: Place) -> None:
    """Ours: one successful call among failing ones resets the count."""

    async def main() -> None:
        bad, good = asks(("look", {})), asks(("look", {"key": "a"}))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(bad, good, bad, "end", tools=[look]))
            assert (await session.turn("hi", limits=UsageLimits(max_no_progress=2))).output == "end"

    asyncio.run(main())


def test_the_session_stays_usable_after_a_budget_is_exhausted(place: Place) -> None:
    """Seed: a stopped turn never makes its session unusable."""

    async def main() -> None:
        script = [asks(("look", {"key": "a"})), asks(("look", {"key": "b"})), "end"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[look]))
            with pytest.raises(TurnStopped):
                await session.turn("hi", limits=UsageLimits(max_iterations=1))
            assert (await session.turn("go on")).output == "end"
            assert results(await session.messages()) == ["seen a", "seen b"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "limits",
    [
        {"max_iterations": 0},
        {"max_tokens": -1},
        {"max_wall_ms": 0},
        {"max_attempts": True},
        {"max_tokens": "5"},
        {"max_calls": 0},
        {"max_retry_wait_ms": -1},
        {"max_retry_wait_ms": None},
        {"max_cost_usd": 0},
        {"max_cost_usd": -1.0},
        {"max_cost_usd": float("nan")},
        {"max_cost_usd": float("inf")},
        {"max_cost_usd": True},
        {"max_cost_usd": "1"},
    ],
)
def test_an_invalid_limit_is_refused(limits: dict[str, Any]) -> None:
    """Ours: the error is raised when the limit is created, not during a turn."""
    with pytest.raises(InvalidArgument):
        UsageLimits(**limits)


def test_an_invalid_limit_for_one_turn_is_refused(memory: Place) -> None:
    """Bug: the invalid limit broke the turn after its input was on disk."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of("hello"))
            with pytest.raises(InvalidArgument, match="UsageLimits"):
                session.turn("hi", limits={"max_tokens": 5})  # type: ignore[arg-type]
            assert await session.turns() == []

    asyncio.run(main())
