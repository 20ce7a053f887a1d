"""Instructions as a function of `RunContext`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import EchoModel, HeldModel, Place, until

from standfast import Agent, RunContext
from standfast.errors import InstructionsFailed, InvalidArgument
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot
from standfast.model.session import TurnState


def greet(ctx: RunContext[str]) -> str:
    return f"You help {ctx.deps} in {ctx.session_id}."


async def greet_later(ctx: RunContext[str]) -> str:
    await asyncio.sleep(0)
    return greet(ctx)


class Greeter:
    async def __call__(self, ctx: RunContext[str]) -> str:
        return greet(ctx)


@pytest.mark.parametrize("function", [greet, greet_later, lambda ctx: greet_later(ctx), Greeter()])
def test_instructions_may_be_a_function_of_the_run_context(function: Any) -> None:
    """Ours: a plain or async function replaces a fixed text."""
    model = EchoModel()
    agent = Agent(model, instructions=function, deps_type=str, system=["Be brief."])
    agent.run_sync("hi", deps="Ada")
    assert model.requests[0].instructions == "You help Ada in run.\n\nBe brief."


def test_the_function_is_called_once_per_turn(memory: Place) -> None:
    """Ours: the text is stored with the turn's input."""
    model = EchoModel()
    asked: list[str] = []

    def counting(ctx: RunContext[Any]) -> str:
        asked.append(ctx.turn_id)
        return f"turn {len(asked)}"

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, instructions=counting))
            await session.turn("a")
            await session.turn("b")
            assert asked == [one.turn_id for one in await session.turns()]

    asyncio.run(main())
    assert [one.instructions for one in model.requests] == ["turn 1", "turn 2"]


def test_a_resumed_turn_has_the_instructions_it_began_with(place: Place) -> None:
    """Ours: the text is journaled with the turn's input, so that a replay is deterministic."""

    async def main() -> None:
        held = HeldModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(held, instructions=lambda ctx: "as it was"))
            session.turn("hi").start()
            await held.started.wait()
        model = HeldModel()
        model.go.set()
        later = Agent(model, instructions=lambda ctx: "as it is now")
        async with place.runtime(agents=[later]) as runtime:

            async def over() -> bool:
                return (await runtime.store.turns("s"))[-1].state is TurnState.ENDED

            await until(over)
        assert [one.instructions for one in model.requests] == ["as it was"]

    asyncio.run(main())


def test_instructions_given_for_one_turn_replace_the_function_too(memory: Place) -> None:
    """Ours: the function is not called, just as a fixed text is not used."""
    model = EchoModel()
    own = PromptLayer(
        contributions=(PromptContribution(content="only this", slot=PromptSlot.INTRO),),
        replaces=frozenset({PromptSlot.INTRO}),
    )

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, instructions=greet))  # type: ignore[arg-type]
            await session.turn("hi", system=own)
            await session.turn("hi", system=["and this"])

    asyncio.run(main())
    assert [one.instructions for one in model.requests] == ["only this", "You help None in s.\n\nand this"]


@pytest.mark.parametrize(
    ("function", "problem"),
    [(lambda ctx: 1 / 0, "ZeroDivisionError"), (lambda ctx: 5, "must return a str, got int")],
)
def test_a_failing_function_keeps_the_turn_from_beginning(memory: Place, function: Any, problem: str) -> None:
    """Ours: no turn is stored if its instructions fail."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel(), instructions=function))
            with pytest.raises(InstructionsFailed, match=problem):
                await session.turn("hi")
            assert await session.turns() == []

    asyncio.run(main())


def test_instructions_that_are_neither_text_nor_a_function_are_refused() -> None:
    """Ours: the error is raised when the agent is created."""
    with pytest.raises(InvalidArgument, match="must be a str or a function"):
        Agent(EchoModel(), instructions=5)  # type: ignore[call-overload]
