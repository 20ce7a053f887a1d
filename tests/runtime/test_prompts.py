"""The prompts of a turn, read back from the store: the exact bytes that the model received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast import Agent, Attachment, Plugin, RunContext, Runtime, hook, tool
from standfast.errors import JournalNotKept, ModelError
from standfast.model.message import UserMessage
from standfast.model.prompt_record import ModelPrompt
from standfast.plugins.contexts import PromptHookContext
from standfast.plugins.shipped import Plan
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, RequestedCall


def as_bytes(one: ModelRequest | ModelPrompt) -> bytes:
    """Return everything in a request that a model reads, as bytes."""
    return msgspec.json.encode(
        {
            "instructions": one.instructions,
            "messages": list(one.messages),
            "tools": list(one.tools),
            "output_schema": one.output_schema,
            "settings": one.settings,
        }
    )


class RecordingModel:
    """A model that records the bytes of each request, and returns or raises its replies in order."""

    model_id = "test:recording"

    def __init__(self, *replies: ReplyEnded | Exception) -> None:
        self.replies = list(replies)
        self.received: list[bytes] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.received.append(as_bytes(request))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        yield reply

    async def close(self) -> None:
        pass


def calls(name: str, arguments: str) -> ReplyEnded:
    return ReplyEnded(text="", calls=(RequestedCall(name=name, arguments=arguments),))


def says(text: str) -> ReplyEnded:
    return ReplyEnded(text=text)


@tool(side_effect="read")
def order(order_id: str) -> dict[str, Any]:
    """Look an order up."""
    return {"id": order_id, "cents": 1999}


@tool(side_effect="read")
async def photo(ctx: RunContext[Any], order_id: str) -> str:
    """Return the photo of an order."""
    ctx.attachments.keep(b"\x89PNG", media_type="image/png", name="photo.png", shown=True)
    return "attached"


class Counting(Plugin):
    """A plugin that adds the number of calls to each prompt, and shows the model only the last messages."""

    id = "counting"
    calls = 0

    @hook("prompt_contributor")
    async def count(self, ctx: PromptHookContext) -> str:
        self.calls += 1
        return f"This is call {self.calls}."

    @hook("context_transform")
    async def cut(self, ctx: Any, messages: list[Any]) -> list[Any]:
        return messages[-3:] if isinstance(messages[-3:][0], UserMessage) else messages


AGENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "instructed": {"instructions": "Be brief.", "tools": [order, photo]},
    "code": {"instructions": "Be brief.", "tools": [order], "protocol": "code"},
    "plugins": {"instructions": "Be brief.", "tools": [order], "plugins": [Counting(), Plan()]},
}
REPLIES: dict[str, list[ReplyEnded | Exception]] = {
    "plain": [says("one"), ModelError("busy", retryable=True, retry_after_ms=0), says("two"), says("three")],
    "instructed": [
        calls("order", '{"order_id": "A1"}'),
        calls("photo", '{"order_id": "A1"}'),
        says("one"),
        calls("order", '{"order_id": "none"}'),
        says("two"),
        says("three"),
    ],
    "code": [
        says("I look.\n\n```python\nfound = order('A1')\nfound['cents']\n```"),
        says("one"),
        says("```python\nfound\n```"),
        says("two"),
        says("three"),
    ],
    "plugins": [
        says("one"),
        calls("plan.update", '{"items": [{"text": "look", "status": "active"}]}'),
        calls("order", '{"order_id": "A1"}'),
        says("two"),
        says("three"),
    ],
}


@pytest.mark.parametrize("kind", AGENTS)
def test_stored_prompts_are_byte_for_byte_what_the_model_received(kind: str, tmp_path: Path) -> None:
    """Ours: this holds for any agent, and after a restart."""
    model = RecordingModel(*REPLIES[kind])
    agent = Agent(model, name="clerk", **AGENTS[kind])

    async def work() -> list[str]:
        async with Runtime(tmp_path / "s.db", agents=[agent]) as runtime:
            session = await runtime.session("s", agent=agent)
            return [
                (await session.turn("first")).turn_id,
                (await session.turn(["second", Attachment(b"a,b", "text/csv", "t.csv")])).turn_id,
                (await session.turn("third", system=["Answer in German."])).turn_id,
            ]

    async def read(turns: list[str]) -> list[ModelPrompt]:
        async with Runtime(tmp_path / "s.db") as runtime:  # in a process that does not know the agent
            session = runtime.session_handle("s")
            return [one for turn_id in turns for one in await session.prompts(turn_id)]

    found = asyncio.run(read(asyncio.run(work())))
    assert [as_bytes(one) for one in found] == model.received
    for one in found:
        assert "\n\n".join(part.content for part in one.parts) == one.instructions


def test_each_part_of_a_prompt_names_its_contributor(tmp_path: Path) -> None:
    """Ours: a reader can see where each part comes from."""
    model = RecordingModel(says("one"), says("two"))
    agent = Agent(model, name="clerk", instructions="Be brief.", tools=[order], plugins=[Counting()])

    async def work() -> list[ModelPrompt]:
        async with Runtime(tmp_path / "s.db", agents=[agent], system=["Be kind."]) as runtime:
            session = await runtime.session("s", agent=agent)
            first = await session.turn("first")
            second = await session.turn("second", system=["In German."])
            return [*await session.prompts(first.turn_id), *await session.prompts(second.turn_id)]

    first, second = asyncio.run(work())
    assert [(part.by, part.content) for part in second.parts] == [
        ("instructions", "Be brief."),
        ("runtime", "Be kind."),
        ("turn", "In German."),
        ("counting", "This is call 2."),
    ]
    assert "turn" not in [part.by for part in first.parts]


def test_calls_with_the_same_prompt_share_one_record(tmp_path: Path) -> None:
    """Ours: a prompt and its tools are stored once, however many calls and sessions use them."""
    model = RecordingModel(*(says("x") for _ in range(20)))
    agent = Agent(model, name="clerk", instructions="Be brief. " * 500, tools=[order])

    async def work() -> int:
        async with Runtime(tmp_path / "s.db", agents=[agent]) as runtime:
            for number in range(10):
                session = await runtime.session(f"s{number}", agent=agent)
                await session.turn("first")
                await session.turn("second")
            return (await runtime.operations()).rows["blobs"]

    assert asyncio.run(work()) == 1


def test_without_kept_journals_no_prompts_are_stored(tmp_path: Path) -> None:
    """Ours: without journals, no records of prompts are written."""
    agent = Agent(RecordingModel(says("x")), name="clerk", instructions="Be brief.")

    async def work() -> None:
        async with Runtime(tmp_path / "s.db", agents=[agent], keep_journals=0) as runtime:
            session = await runtime.session("s", agent=agent)
            turn = await session.turn("first")
            assert (await runtime.operations()).rows["blobs"] == 0
            with pytest.raises(JournalNotKept):
                await session.prompts(turn.turn_id)

    asyncio.run(work())
