"""The vendor's SDK against our server, which shows that the server is faithful."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from standfast.testing.servers.chat_server import ChatServer
from standfast.testing.servers.http_server import Fault, Served, ServedReply

if TYPE_CHECKING:
    from openai import AsyncOpenAI

pytestmark = pytest.mark.slow

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
LOOK = {"name": "look", "arguments": {"at": "the sky above the port"}, "id": "call_x"}


def play(scene: Callable[[ChatServer, AsyncOpenAI], Coroutine[Any, Any, None]], *replies: Served) -> None:
    """Run a scenario with a server and a client of the SDK."""
    from openai import AsyncOpenAI

    async def main() -> None:
        async with (
            ChatServer(replies) as server,
            AsyncOpenAI(base_url=server.base_url, api_key="sk-test", max_retries=0) as client,
        ):
            await scene(server, client)

    asyncio.run(main())


def test_the_sdk_reads_a_whole_response() -> None:
    """Ours: the response has text, calls, usage and finish reason without streaming, too."""

    async def scene(server: ChatServer, client: AsyncOpenAI) -> None:
        first = await client.chat.completions.create(model="m", messages=HI)
        assert (first.choices[0].message.content, first.choices[0].finish_reason) == ("Hello", "stop")
        assert first.usage is not None
        assert first.usage.prompt_tokens == 12
        assert first.usage.prompt_tokens_details is not None
        assert first.usage.prompt_tokens_details.cached_tokens == 2
        second = await client.chat.completions.create(model="m", messages=HI, tools=[TOOL])
        (call,) = second.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.arguments == '{"at":"the sky above the port"}'
        assert second.choices[0].finish_reason == "tool_calls"
        third = await client.chat.completions.create(model="m", messages=HI)
        assert third.choices[0].message.refusal == "No."

    used = {"input": 10, "cache_read": 2, "output": 3}
    play(
        scene,
        {"text": "Hello", "usage": used},
        {"tool_calls": [LOOK]},
        {"text": "No.", "stop_reason": "refusal"},
    )


def test_the_sdk_assembles_a_stream() -> None:
    """Ours: the SDK's helper joins the pieces of text and of several calls."""

    async def scene(server: ChatServer, client: AsyncOpenAI) -> None:
        async with client.chat.completions.stream(
            model="m", messages=HI, tools=[TOOL], stream_options={"include_usage": True}
        ) as stream:
            kinds = {event.type async for event in stream}
            whole = await stream.get_final_completion()
        message = whole.choices[0].message
        assert message.content == "I look twice."
        assert [call.id for call in message.tool_calls or ()] == ["call_x", "call_y"]
        assert [call.function.arguments for call in message.tool_calls or ()] == [
            '{"at":"the sky above the port"}',
            '{"at":"sea"}',
        ]
        assert whole.choices[0].finish_reason == "tool_calls"
        assert whole.usage is not None
        assert {"chunk", "content.delta", "tool_calls.function.arguments.delta"} <= kinds

    calls = [LOOK, {"name": "look", "arguments": {"at": "sea"}, "id": "call_y"}]
    play(scene, {"text": "I look twice.", "chunk_size": 3, "tool_calls": calls})


def test_usage_is_streamed_only_on_request() -> None:
    """Ours: OpenAI sends token counts only if the request asks for them."""

    async def scene(server: ChatServer, client: AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        chunks = [chunk async for chunk in stream]
        assert all(chunk.usage is None for chunk in chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
        assert chunks[-1].choices[0].finish_reason == "stop"

    play(scene, "Hello")


def test_the_sdk_recognizes_our_errors() -> None:
    """Ours: errors have the vendor's statuses, codes and messages."""
    import openai

    async def scene(server: ChatServer, client: AsyncOpenAI) -> None:
        kinds: list[type[openai.APIStatusError]] = [
            openai.RateLimitError,
            openai.AuthenticationError,
            openai.InternalServerError,
            openai.BadRequestError,
            openai.InternalServerError,
        ]
        for kind in kinds:
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(model="m", messages=HI if kind is not kinds[3] else [])
            assert isinstance(caught.value.body, dict)
            assert caught.value.body["message"]

    faults = [ServedReply(text="", fault=Fault(status=status, message="no")) for status in (429, 401, 503)]
    play(scene, *faults, "never sent")


def test_a_conversation_with_tools_continues() -> None:
    """Ours: the SDK's reply can be sent back."""

    async def scene(server: ChatServer, client: AsyncOpenAI) -> None:
        first = await client.chat.completions.create(model="m", messages=HI, tools=[TOOL])
        reply: Any = first.choices[0].message.model_dump(exclude_none=True)
        result: Any = {"role": "tool", "tool_call_id": "call_x", "content": "blue"}
        second = await client.chat.completions.create(model="m", messages=[*HI, reply, result], tools=[TOOL])
        assert second.choices[0].message.content == "Blue."

    play(scene, {"tool_calls": [LOOK]}, "Blue.")


CALLED: Any = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": [CALLED, HI[0]]}, "must be followed by tool messages"),
        ({"messages": [CALLED]}, "must be followed by tool messages"),
        ({"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]}, "must be a response"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": None}]}, "got null"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, "known type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "URL",
        ),
        ({"messages": HI, "tools": []}, "empty array"),
        ({"messages": HI, "tool_choice": "auto"}, "tools"),
        ({"messages": HI, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "name"),
        (
            {
                "messages": HI,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
            },
            "object",
        ),
    ],
)
def test_requests_that_openai_refuses_are_refused(options: Any, words: str) -> None:
    """Ours: no test passes with a request that the real vendor would refuse."""
    import openai

    async def scene(server: ChatServer, client: AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match=words):
            await client.chat.completions.create(model="m", **options)

    play(scene, "never sent")
