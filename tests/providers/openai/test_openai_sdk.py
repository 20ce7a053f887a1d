"""OpenAI's SDK against our server, which must behave as the vendor does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from standfast.testing.servers.http_server import Fault, ServedReply
from standfast.testing.servers.openai_server import OpenAIServer

pytestmark = pytest.mark.slow

CALL = {"name": "weather", "arguments": {"city": "Bern"}, "id": "call_x"}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
FULL = {
    "reasoning": "Hm.",
    "text": "Hello",
    "chunk_size": 2,
    "tool_calls": [CALL],
    "usage": {"input": 3, "cache_read": 4, "output": 5, "reasoning": 2},
}
SEAL: Any = ["reasoning.encrypted_content"]


def with_sdk(replies: list[Any], use: Callable[[Any, OpenAIServer], Awaitable[None]]) -> None:
    """Run a function with the SDK's client and a server."""
    import openai

    async def main() -> None:
        async with OpenAIServer(replies) as server:
            client = openai.AsyncOpenAI(api_key="sk-x", base_url=server.base_url, max_retries=0)
            async with client:
                await use(client, server)

    asyncio.run(main())


def check(response: Any) -> None:
    """Check the full reply as the SDK sees it, streamed or not."""
    thought, message, call = response.output
    assert (thought.type, thought.summary[0].text) == ("reasoning", "Hm.")
    assert thought.encrypted_content
    assert (message.type, response.output_text) == ("message", "Hello")
    assert (call.type, call.call_id, call.arguments) == ("function_call", "call_x", '{"city":"Bern"}')
    assert response.status == "completed"
    assert response.usage.input_tokens == 7
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.output_tokens_details.reasoning_tokens == 2


def test_the_sdk_reads_a_whole_response() -> None:
    """Ours: the server is faithful without streaming, too."""

    async def use(client: Any, server: OpenAIServer) -> None:
        check(await client.responses.create(model="gpt-5.2", input="hi", tools=[TOOL], include=SEAL))

    with_sdk([FULL], use)


def test_the_sdk_reads_a_stream_and_gets_the_same_response() -> None:
    """Ours: the SDK knows every event, and the events add up to the response."""

    async def use(client: Any, server: OpenAIServer) -> None:
        kinds: list[str] = []
        text = ""
        async with client.responses.stream(model="gpt-5.2", input="hi", tools=[TOOL], include=SEAL) as stream:
            async for event in stream:
                assert type(event).__name__ != "BaseModel"
                kinds.append(event.type)
                text += event.delta if event.type == "response.output_text.delta" else ""
            check(await stream.get_final_response())
        assert text == "Hello"
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        assert "response.function_call_arguments.done" in kinds

    with_sdk([FULL], use)


def test_the_server_accepts_the_items_that_the_sdk_sends_back() -> None:
    """Ours: the items that the SDK builds from a reply pass our checks, including results."""

    async def use(client: Any, server: OpenAIServer) -> None:
        said: Any = {"role": "user", "content": "hi"}
        first = await client.responses.create(
            model="gpt-5.2", input=[said], tools=[TOOL], include=SEAL, store=False
        )
        back = [item.model_dump(exclude_none=True) for item in first.output if item.type != "message"]
        result = {"type": "function_call_output", "call_id": "call_x", "output": "3 degrees"}
        second = await client.responses.create(
            model="gpt-5.2", input=[said, *back, result], tools=[TOOL], include=SEAL, store=False
        )
        assert second.output_text == "Cold."

    with_sdk([FULL, "Cold."], use)


def test_the_sdk_recognizes_refusals_and_truncated_replies() -> None:
    """Ours: the ends of replies have the vendor's form."""

    async def use(client: Any, server: OpenAIServer) -> None:
        refused = await client.responses.create(model="gpt-4.1", input="hi")
        assert refused.output[0].content[0].refusal == "I cannot."
        async with client.responses.stream(model="gpt-4.1", input="hi") as stream:
            events = [event async for event in stream]
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.incomplete_details.reason == "max_output_tokens"

    with_sdk([{"text": "I cannot.", "stop_reason": "refusal"}, {"text": "Hal", "stop_reason": "length"}], use)


def test_the_sdk_raises_its_usual_exceptions_for_our_errors() -> None:
    """Ours: error bodies have the vendor's form and codes."""
    import openai

    async def use(client: Any, server: OpenAIServer) -> None:
        with pytest.raises(openai.AuthenticationError) as wrong:
            await client.responses.create(model="gpt-4.1", input="hi")
        assert wrong.value.code == "invalid_api_key"
        with pytest.raises(openai.RateLimitError) as slow:
            await client.responses.create(model="gpt-4.1", input="hi", stream=True)
        assert slow.value.code == "rate_limit_exceeded"
        with pytest.raises(openai.BadRequestError, match="Tool choice"):
            await client.responses.create(model="gpt-4.1", input="hi", tool_choice="auto")
        with pytest.raises(openai.InternalServerError, match="not expected"):
            await client.responses.create(model="gpt-4.1", input="hi")

    faults = [Fault(status=401, message="Incorrect API key."), Fault(status=429, message="Slow down.")]
    with_sdk([*(ServedReply(text="", fault=fault) for fault in faults), "unused"], use)
