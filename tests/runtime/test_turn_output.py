"""Typed answers: validated, corrected by the model, returned as values."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from stand_ins import EchoModel, HeldModel, Place, agent_of, said

from standfast import Agent, TurnStopped, UsageLimits
from standfast.model.outcome import StopReason


@dataclass
class Refund:
    order: str
    cents: int


class Order(BaseModel):
    order: str
    cents: int


class Choosy(msgspec.Struct):
    """A type that refuses a value with its own exception."""

    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise RuntimeError("no debts")


@pytest.mark.parametrize(
    ("output_type", "answer", "output"),
    [
        (int, "42", 42),
        (list[str], '["a", "b"]', ["a", "b"]),
        (Refund, '{"order": "A1", "cents": 5}', Refund("A1", 5)),
        (Order, '{"order": "A1", "cents": 5}', Order(order="A1", cents=5)),
        (bool, "```json\ntrue\n```", True),
        (Refund, '```\n{"order": "A1", "cents": 5}\n```\n', Refund("A1", 5)),
        (int | None, "null", None),
    ],
)
def test_an_answer_is_a_value_of_the_output_type(output_type: Any, answer: str, output: Any) -> None:
    """Seed: `result.output` is text, or a validated `output_type`."""
    result = agent_of(answer, output_type=output_type).run_sync("hi")
    assert result.output == output
    assert result.text == answer


def test_the_model_is_shown_the_schema() -> None:
    """Ours: the provider can enforce the schema."""

    async def main() -> None:
        model = HeldModel(answer="5")
        model.go.set()
        await Agent(model, output_type=int).run("hi")
        assert model.requests[0].output_schema == {"type": "integer"}
        echo = EchoModel()
        await Agent(echo).run("hi")
        assert echo.requests[0].output_schema is None

    asyncio.run(main())


def test_the_model_learns_why_its_answer_does_not_match(place: Place) -> None:
    """Seed: the answer is validated, and the model reads why it does not match."""

    async def main() -> None:
        script = ["five", '{"order": "A1", "cents": "five"}', '{"order": "A1", "cents": 5}']
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, output_type=Refund))
            result = await session.turn("hi")
            assert result.output == Refund("A1", 5)
            asked = said(result.messages)
            assert asked[0] == "hi"
            assert "JSON" in asked[1]
            assert "cents" in asked[2]

    asyncio.run(main())


def test_the_number_of_corrections_is_limited(place: Place) -> None:
    """Ours: after the last retry the turn stops, with all messages in the result."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = agent_of("one", "two", "three", "7", output_type=int)
            session = await runtime.session("s", agent=agent)
            with pytest.raises(TurnStopped) as caught:
                await session.turn("hi", limits=UsageLimits(max_output_retries=2))
            assert (caught.value.reason, caught.value.code) == (StopReason.OUTPUT_INVALID, "OUTPUT_INVALID")
            assert len(said(caught.value.messages)) == 3
            assert (await session.turn("again")).output == 7

    asyncio.run(main())


def test_without_retries_the_first_answer_counts() -> None:
    """Ours: a limit of zero permits no retry."""
    with pytest.raises(TurnStopped):
        agent_of("no", "5", output_type=int, limits=UsageLimits(max_output_retries=0)).run_sync("hi")


@pytest.mark.parametrize("answer", ["", "NaN", '{"a": 1', "42 apples", "[" * 5000, '"\\ud800"'])
def test_an_answer_that_is_not_json_does_not_match(answer: str) -> None:
    """Ours: whatever a model writes, the error goes to the model and is never raised."""
    assert agent_of(answer, "5", output_type=int).run_sync("hi").output == 5


def test_any_exception_of_the_output_type_means_that_the_answer_does_not_match(place: Place) -> None:
    """Bug: the exception broke the turn, and every attempt to resume it."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = agent_of('{"cents": -1}', '{"cents": 1}', output_type=Choosy)
            session = await runtime.session("s", agent=agent)
            result = await session.turn("hi")
            assert result.output == Choosy(1)
            assert "no debts" in said(result.messages)[1]

    asyncio.run(main())


def test_a_typed_answer_survives_a_restart(place: Place) -> None:
    """Ours: the same key returns the same typed answer in another process."""

    async def main() -> None:
        for _ in range(2):
            async with place.runtime() as runtime:
                agent = agent_of('{"order": "A1", "cents": 5}', output_type=Refund)
                session = await runtime.session("s", agent=agent)
                assert (await session.turn("hi", idempotency_key="k")).output == Refund("A1", 5)

    asyncio.run(main())


def test_an_injected_message_is_delivered_before_an_answer_is_checked(memory: Place) -> None:
    """Ours: a message that makes the model answer again costs no retry."""

    async def main() -> None:
        model = HeldModel("5", answer="not yet")
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, output_type=int))
            turn = session.turn("hi", limits=UsageLimits(max_output_retries=0))
            turn.start()
            await model.started.wait()
            await session.inject("in digits")
            model.go.set()
            assert (await turn).output == 5

    asyncio.run(main())
