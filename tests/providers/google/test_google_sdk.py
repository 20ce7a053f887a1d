"""Google's SDK against our server, which shows that the server behaves like Gemini."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from standfast.providers.script import Reply, ScriptedCall
from standfast.testing.servers.google_server import GoogleServer
from standfast.testing.servers.http_server import Fault, Served, ServedReply

if TYPE_CHECKING:
    from google.genai.client import AsyncClient

pytestmark = pytest.mark.slow

MODEL = "gemini-3-flash-preview"
ORDER = {
    "name": "order",
    "description": "An order.",
    "parameters_json_schema": {"type": "object", "properties": {"id": {"type": "integer"}}},
}
LOOKUP = Reply(
    text="Let me see.",
    reasoning="I must look.",
    tool_calls=(
        ScriptedCall(name="order", arguments={"id": 1}),
        ScriptedCall(name="order", arguments={"id": 2}),
    ),
)


def talk(*replies: Served, say: Callable[[AsyncClient, GoogleServer], Awaitable[None]]) -> GoogleServer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the SDK itself, at import and at exit
        from google import genai

        async def main() -> GoogleServer:
            async with GoogleServer(replies) as server:
                options: Any = {"base_url": server.base_url, "retry_options": {"attempts": 1}}
                client = genai.Client(api_key="key-of-a-test", http_options=options)
                try:
                    await say(client.aio, server)
                finally:
                    await client.aio.aclose()
                    client.close()
                return server

        return asyncio.run(main())


def test_the_sdk_reads_a_whole_response() -> None:
    """Ours: the response has text, finish reason, token counts, model and id."""

    async def say(client: AsyncClient, server: GoogleServer) -> None:
        answer = await client.models.generate_content(model=MODEL, contents="Hi.")
        assert answer.text == "Hello."
        assert answer.candidates is not None
        assert answer.candidates[0].finish_reason == "STOP"
        assert (answer.model_version, answer.response_id) == (MODEL, "response-1")
        assert answer.usage_metadata is not None
        assert answer.usage_metadata.prompt_token_count == 10
        assert answer.usage_metadata.thoughts_token_count == 2

    talk({"text": "Hello.", "usage": {"input": 10, "output": 5, "reasoning": 2}}, say=say)


def test_the_sdk_reads_a_stream() -> None:
    """Ours: every piece is a chunk, and the last one has the finish reason."""

    async def say(client: AsyncClient, server: GoogleServer) -> None:
        stream = await client.models.generate_content_stream(model=MODEL, contents="Hi.")
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.text or "" for chunk in chunks) == "Hello."
        assert chunks[-1].candidates is not None
        assert chunks[-1].candidates[0].finish_reason == "STOP"

    server = talk({"chunks": ["Hel", "lo."]}, say=say)
    assert server.requests[0].path.endswith(":streamGenerateContent?alt=sse")


@pytest.mark.parametrize("streamed", [False, True])
def test_the_sdk_calls_functions_and_sends_the_reply_back_unchanged(streamed: bool) -> None:
    """Ours: thoughts, signatures, ids and results pass the server's checks, part by part."""

    async def say(client: AsyncClient, server: GoogleServer) -> None:
        from google.genai import types

        config = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=[types.FunctionDeclaration.model_validate(ORDER)])],
            thinking_config=types.ThinkingConfig(
                include_thoughts=True, thinking_level=types.ThinkingLevel.LOW
            ),
            temperature=0.5,
            system_instruction="Be kind.",
        )
        asked = types.Content(role="user", parts=[types.Part(text="Orders 1 and 2?")])
        parts = await _parts(client, asked, config, streamed=streamed)
        made = [part.function_call for part in parts if part.function_call]
        assert [(call.name, call.args) for call in made] == [("order", {"id": 1}), ("order", {"id": 2})]
        assert "".join(part.text or "" for part in parts if part.thought) == "I must look."
        results = [
            types.Part(
                function_response=types.FunctionResponse(id=call.id, name=call.name, response={"result": 1})
            )
            for call in made
        ]
        answer = await client.models.generate_content(
            model=MODEL,
            contents=[
                asked,
                types.Content(role="model", parts=[part for part in parts if not part.thought]),
                types.Content(role="user", parts=results),
            ],
            config=config,
        )
        assert answer.text == "Both late."

    talk(LOOKUP, "Both late.", say=say)


async def _parts(client: AsyncClient, asked: Any, config: Any, *, streamed: bool) -> list[Any]:
    """Return all parts of a reply except the empty one at its end."""
    if not streamed:
        chunks = [await client.models.generate_content(model=MODEL, contents=asked, config=config)]
    else:
        stream = await client.models.generate_content_stream(model=MODEL, contents=asked, config=config)
        chunks = [chunk async for chunk in stream]
    contents = [(chunk.candidates or [])[0].content for chunk in chunks]
    parts = [part for content in contents for part in (content and content.parts) or ()]
    return [part for part in parts if part.text != ""]


def test_the_sdk_requests_json_and_sends_media() -> None:
    """Ours: our server accepts the SDK's form of a schema and an image."""

    async def say(client: AsyncClient, server: GoogleServer) -> None:
        from google.genai import types

        answer = await client.models.generate_content(
            model=MODEL,
            contents=[types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png"), "What is it?"],
            config=types.GenerateContentConfig(
                response_mime_type="application/json", response_json_schema={"type": "object"}
            ),
        )
        assert answer.parsed == {"n": 1}

    server = talk('{"n": 1}', say=say)
    assert server.requests[0].body["contents"][0]["parts"][0]["inlineData"]["mime_type"] == "image/png"


def test_the_sdk_reads_a_blocked_prompt() -> None:
    """Ours: there are no candidates, and the prompt feedback has the reason."""

    async def say(client: AsyncClient, server: GoogleServer) -> None:
        answer = await client.models.generate_content(model=MODEL, contents="Hi.")
        assert not answer.candidates
        assert answer.prompt_feedback is not None
        assert answer.prompt_feedback.block_reason == "PROHIBITED_CONTENT"

    talk(Reply(stop_reason="refusal"), say=say)


@pytest.mark.parametrize(("status", "name"), [(429, "RESOURCE_EXHAUSTED"), (503, "UNAVAILABLE")])
def test_the_sdk_reads_an_error(status: int, name: str) -> None:
    """Ours: code, status and message are where the SDK looks for them, streamed or not."""

    async def say(client: AsyncClient, server: GoogleServer) -> None:
        from google.genai import errors

        with pytest.raises(errors.APIError) as caught:
            await client.models.generate_content(model=MODEL, contents="Hi.")
        assert (caught.value.code, caught.value.status, caught.value.message) == (status, name, "No.")
        stream = await client.models.generate_content_stream(model=MODEL, contents="Hi.")
        with pytest.raises(errors.APIError, match=name):
            await anext(stream)

    fault = ServedReply(fault=Fault(status=status, message="No."))
    talk(fault, fault, say=say)


def test_the_server_refuses_invalid_requests_from_the_sdk() -> None:
    """Ours: a call without its result is refused."""

    async def say(client: AsyncClient, server: GoogleServer) -> None:
        from google.genai import errors, types

        call = types.Part(function_call=types.FunctionCall(name="order", args={}))
        with pytest.raises(errors.ClientError, match="number of function response parts"):
            await client.models.generate_content(
                model="gemini-2.5-flash",
                contents=[
                    types.Content(role="user", parts=[types.Part(text="Hi.")]),
                    types.Content(role="model", parts=[call]),
                    types.Content(role="user", parts=[types.Part(text="And?")]),
                ],
            )

    talk("never", say=say)
