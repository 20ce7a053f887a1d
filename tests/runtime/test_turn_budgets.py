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
    """Take a turn under these limits and return how it stopped; check that the session still answers."""
    async with place.runtime() as runtime:
        session = await runtime.session("s", agent=agent)
        with pytest.raises(TurnStopped) as caught:
            await session.turn("hi", limits=limits)
        assert await session.unfinished() is None
        return caught.value


def test_a_turn_asks_the_model_a_limited_number_of_times(place: Place) -> None:
    """Seed: a turn that uses up its budget is stopped."""
    script = [asks(("look", {"key": str(number)})) for number in range(9)]
    agent = agent_of(*script, tools=[look])
    error = asyncio.run(stopped(place, agent, UsageLimits(max_iterations=3)))
    assert (error.reason, error.code) == (StopReason.TURN_BUDGET, "TURN_BUDGET")
    assert results(error.messages) == ["seen 0", "seen 1", "seen 2"]
    assert error.hint is not None


def test_the_last_iteration_may_give_the_answer(place: Place) -> None:
    """Ours: a limit of two permits two iterations."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = agent_of(asks(("look", {"key": "a"})), "end", tools=[look])
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("hi", limits=UsageLimits(max_iterations=2))).output == "end"

    asyncio.run(main())


def test_a_turn_uses_a_limited_number_of_tokens(place: Place) -> None:
    """Seed: the budgets are iterations, no progress, tokens and wall time."""
    spent = {"usage": {"input": 60, "output": 40}}
    script = [{**asks(("look", {"key": str(number)})), **spent} for number in range(9)]
    error = asyncio.run(stopped(place, agent_of(*script, tools=[look]), UsageLimits(max_tokens=200)))
    assert error.reason is StopReason.TURN_BUDGET
    assert error.result.usage.total == 200
    assert error.result.usage.calls == 2


def test_a_turn_takes_a_limited_time(place: Place) -> None:
    """Seed: the wall time of a turn ends a model call that hangs."""

    async def main() -> None:
        error = await stopped(place, Agent(HeldModel()), UsageLimits(max_wall_ms=20))
        assert (error.reason, error.code) == (StopReason.TURN_BUDGET, "TURN_BUDGET")
        assert "20 ms" in error.message

    asyncio.run(main())


def test_time_that_is_over_ends_a_tool_that_hangs(place: Place) -> None:
    """Ours: every call has a result, however the turn ends."""

    async def hang() -> None:
        await asyncio.Event().wait()

    agent = agent_of(asks(("hang", {})), "end", tools=[hang])
    error = asyncio.run(stopped(place, agent, UsageLimits(max_wall_ms=20)))
    assert error.reason is StopReason.TURN_BUDGET
    assert results(error.messages) == ["CANCELLED"]


def test_calls_that_only_repeat_themselves_are_not_progress(place: Place) -> None:
    """Seed: the no-progress budget ends a loop."""
    agent = agent_of(*[asks(("look", {"key": "a"}))] * 9, tools=[look])
    error = asyncio.run(stopped(place, agent, UsageLimits(max_no_progress=2)))
    assert (error.reason, error.code) == (StopReason.NO_PROGRESS, "NO_PROGRESS")
    assert results(error.messages) == ["seen a"] * 3


def test_calls_that_only_fail_are_not_progress(place: Place) -> None:
    """Seed: a model that repeats a failing request for ever is stopped."""
    agent = agent_of(*[asks(("look", {}), ("nosuch", {}))] * 9, tools=[look])
    error = asyncio.run(stopped(place, agent, UsageLimits(max_no_progress=3)))
    assert error.reason is StopReason.NO_PROGRESS
    assert results(error.messages) == ["INVALID_ARGUMENT", "UNKNOWN_TOOL"] * 3


def test_something_new_is_progress(place: Place) -> None:
    """Ours: one successful call among failing ones resets the count."""

    async def main() -> None:
        bad, good = asks(("look", {})), asks(("look", {"key": "a"}))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(bad, good, bad, "end", tools=[look]))
            assert (await session.turn("hi", limits=UsageLimits(max_no_progress=2))).output == "end"

    asyncio.run(main())


def test_the_session_stays_usable_after_a_budget_is_gone(place: Place) -> None:
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
def test_a_limit_that_makes_no_sense_is_refused(limits: dict[str, Any]) -> None:
    """Ours: the error is raised when the limit is made, not in the middle of a turn."""
    with pytest.raises(InvalidArgument):
        UsageLimits(**limits)


def test_a_wrong_limit_for_one_turn_is_refused(memory: Place) -> None:
    """Bug: the wrong limit broke the turn after its input was on disk."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of("hello"))
            with pytest.raises(InvalidArgument, match="UsageLimits"):
                session.turn("hi", limits={"max_tokens": 5})  # type: ignore[arg-type]
            assert await session.turns() == []

    asyncio.run(main())
