"""The vendor's SDK against our server, which shows that the server is faithful.

The SDK sends a later version of the API than ours, and its key as a bearer token; the server accepts both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import ErrorObject
from standfast.model.capability import Capability
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    Reasoning,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.ports.model_provider import ModelRequest
from standfast.providers.anthropic.model import AnthropicDialect
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.settings import read_settings
from standfast.testing.servers.anthropic_server import AnthropicServer, signature_of
from standfast.testing.servers.http_server import Fault, ServedReply

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

pytestmark = pytest.mark.slow

MODEL = "claude-opus-5"
ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 4096,
    "messages": [{"role": "user", "content": "Rain?"}],
}
WEATHER: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLING: dict[str, Any] = {
    "text": "Let me see.",
    "reasoning": "I must look.",
    "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "weather"}],
}


def client_of(server: AnthropicServer) -> AsyncAnthropic:
    anthropic = pytest.importorskip("anthropic")
    client: AsyncAnthropic = anthropic.AsyncAnthropic(
        api_key="sk-ant-test", base_url=server.base_url, max_retries=0
    )
    return client


def played(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(play, 60))


def content_of(message: Any) -> list[dict[str, Any]]:
    return [block.model_dump(exclude_none=True) for block in message.content]


EXPECTED = [
    {"type": "thinking", "thinking": "I must look.", "signature": signature_of("I must look.")},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "id": "toolu_0001_1", "name": "weather", "input": {"city": "Oslo"}},
    {"type": "tool_use", "id": "toolu_0001_2", "name": "weather", "input": {}},
]


def test_the_sdk_reads_a_whole_message() -> None:
    """Ours: a response that is not streamed has the vendor's form."""

    async def main() -> None:
        usage = {"input": 5, "cache_read": 100, "cache_write": 20, "output": 9, "reasoning": 4}
        async with AnthropicServer([{**CALLING, "usage": usage}]) as server, client_of(server) as client:
            message = await client.messages.create(**ASKED, tools=[WEATHER])
        assert content_of(message) == EXPECTED
        assert (message.stop_reason, message.model, message.id) == ("tool_use", MODEL, "msg_0001")
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (5, 100)
        assert message.usage.output_tokens_details is not None
        assert message.usage.output_tokens_details.thinking_tokens == 4

    played(main())


def test_the_sdk_accumulates_a_stream_into_the_same_message() -> None:
    """Ours: a stream has the vendor's events in the vendor's order."""

    async def main() -> None:
        reply = {**CALLING, "chunk_size": 3}
        async with (
            AnthropicServer([reply]) as server,
            client_of(server) as client,
            client.messages.stream(**ASKED, tools=[WEATHER]) as stream,
        ):
            texts = [text async for text in stream.text_stream]
            message = await stream.get_final_message()
        assert texts == ["Let", " me", " se", "e."]
        assert content_of(message) == EXPECTED
        assert message.stop_reason == "tool_use"

    played(main())


def test_the_sdk_sends_results_and_thinking_back() -> None:
    """Ours: the server accepts the messages that the SDK builds from a reply."""

    async def main() -> None:
        async with AnthropicServer([CALLING, "Dry."]) as server, client_of(server) as client:
            message = await client.messages.create(**ASKED, tools=[WEATHER])
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": "dry"}
                for block in message.content
                if block.type == "tool_use"
            ]
            history = [
                *ASKED["messages"],
                {"role": "assistant", "content": content_of(message)},
                {"role": "user", "content": results},
            ]
            asked = {**ASKED, "messages": history, "thinking": {"type": "adaptive"}}
            answer = await client.messages.create(**asked, tools=[WEATHER])
        assert content_of(answer) == [{"type": "text", "text": "Dry."}]

    played(main())


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (401, "AuthenticationError", "authentication_error"),
        (404, "NotFoundError", "not_found_error"),
        (429, "RateLimitError", "rate_limit_error"),
        (500, "InternalServerError", "api_error"),
        (529, "OverloadedError", "overloaded_error"),
    ],
)
def test_the_sdk_recognizes_our_errors(status: int, name: str, kind: str) -> None:
    """Ours: an error has the vendor's form."""

    async def main() -> None:
        anthropic = pytest.importorskip("anthropic")
        fault = Fault(status=status, message="No.")
        async with (
            AnthropicServer([ServedReply(fault=fault)]) as server,
            client_of(server) as client,
        ):
            with pytest.raises(getattr(anthropic, name, anthropic.APIStatusError)) as failed:
                await client.messages.create(**ASKED)
        assert (failed.value.type, failed.value.api_message) == (kind, "No.")

    played(main())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"extra_body": {"temperature": 0.5}}, "temperature: Extra inputs"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.type.enabled"),
        ({"tool_choice": {"type": "any"}}, "tool_choice may only be specified"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "first message must use the user role"),
        ({"messages": [{"role": "user", "content": " "}]}, "must be non-empty"),
    ],
)
def test_the_server_refuses_invalid_requests_from_the_sdk(more: dict[str, Any], words: str) -> None:
    """Ours: the server is strict where the vendor is."""

    async def main() -> None:
        anthropic = pytest.importorskip("anthropic")
        async with AnthropicServer(["never"]) as server, client_of(server) as client:
            with pytest.raises(anthropic.BadRequestError, match=words):
                await client.messages.create(**{**ASKED, **more})

    played(main())


def test_our_requests_match_the_sdks_types() -> None:
    """Ours: each block of our request is validated against the SDK's types."""
    anthropic = pytest.importorskip("anthropic.types.message_create_params")
    pydantic = pytest.importorskip("pydantic")
    origin = f"anthropic https://api.anthropic.com {MODEL}"
    thought = Reasoning(origin=origin, text="Hm", opaque={"type": "thinking", "signature": "c2ln"})
    parts = (
        TextPart(text="Look:"),
        AttachmentPart(digest="a", media_type="image/png", size=1),
        AttachmentPart(digest="a", media_type="application/pdf", size=1, name="x.pdf"),
        AttachmentPart(digest="a", media_type="text/csv", size=1),
    )
    request = ModelRequest(
        messages=[
            UserMessage(content=parts),
            AssistantMessage(
                tool_calls=(ToolCall(call_id=1, name="weather", raw="x"),), reasoning=(thought,)
            ),
            ToolMessage(call_id=1, name="weather", error=ErrorObject(code="TOOL_ERROR", message="no")),
        ],
        instructions="Be brief.",
        tools=(Capability(name="weather", description="Weather.", input_schema=WEATHER["input_schema"]),),
        output_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
    )
    settings = read_settings({"reasoning": "high", "parallel_tool_calls": False, "stop": ["END"]})
    body = AnthropicDialect().call(PreparedRequest(MODEL, request, settings, {"a": b"x"}, origin)).body
    adapter = pydantic.TypeAdapter(anthropic.MessageCreateParamsStreaming)
    fitted = adapter.validate_python(body)  # the contents are validated during iteration
    assert fitted.keys() == body.keys()
    for sent, taken in zip(body["messages"], fitted["messages"], strict=True):
        assert list(taken["content"]) == sent["content"]
