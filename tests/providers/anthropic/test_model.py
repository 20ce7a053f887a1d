"""The model end to end: agents over HTTP against a server that answers and refuses as the vendor does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Attachment, ModelError, Runtime, TurnStopped, tool
from standfast.errors import Code, ProviderUnconfigured, TurnCode
from standfast.model.events import ReasoningStreamed, TextStreamed
from standfast.model.message import AssistantMessage, UserMessage
from standfast.ports.model_provider import ModelRequest, ReplyEnded
from standfast.providers.anthropic import AnthropicModel
from standfast.testing.servers.anthropic_server import AnthropicServer, signature_of
from standfast.testing.servers.http_server import Fault, ServedReply

OLDER, NEWER = "claude-sonnet-4-5", "claude-opus-5"
KEY = "sk-ant-api03-0123456789-planted"


@tool(side_effect="read")
def weather(city: str) -> str:
    """The weather of a city."""
    return f"dry in {city}"


@tool(approval="manual")
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@dataclass
class Mood:
    word: str
    score: int


def asks(*cities: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": "weather", "arguments": {"city": city}} for city in cities], **more}


def model_of(server: AnthropicServer, model: str = NEWER) -> AnthropicModel:
    return AnthropicModel(model, api_key=KEY, base_url=server.base_url)


def played(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(play, 30))


async def ended(model: AnthropicModel, **request: Any) -> ReplyEnded:
    """Return the end of a reply to a short question."""
    last = None
    async for delta in model.stream(ModelRequest(messages=[UserMessage(content="Hm?")], **request)):
        last = delta
    assert isinstance(last, ReplyEnded)
    return last


def test_a_ten_line_agent_answers() -> None:
    """Ours: text is streamed, and the reply names the model that served it."""

    async def main() -> None:
        usage = {"input": 5, "cache_read": 100, "cache_write": 20, "output": 9, "reasoning": 4}
        async with AnthropicServer([{"text": "Hello you", "chunk_size": 3, "usage": usage}]) as server:
            turn = Agent(model_of(server), instructions="Be brief.").run_stream("Hi")
            events = [event async for event in turn]
            result = await turn
        assert [one.text for one in events if isinstance(one, TextStreamed)] == ["Hel", "lo ", "you"]
        reply = result.messages[-1]
        assert isinstance(reply, AssistantMessage)
        assert (reply.text, reply.model, reply.response_id) == ("Hello you", NEWER, "msg_0001")
        assert {name: getattr(reply.usage, name) for name in usage} == usage
        (seen,) = server.requests
        assert seen.headers["x-api-key"] == KEY
        assert seen.headers["anthropic-version"] == "2023-06-01"

    played(main())


def test_calls_run_and_their_results_are_sent_back_in_one_message() -> None:
    """Ours: several calls in one reply, with streamed arguments."""

    async def main() -> None:
        async with AnthropicServer([asks("Oslo", "Rome", text="Let me see."), "Dry."]) as server:
            result = await Agent(model_of(server), tools=[weather]).run("Rain?")
        assert result.output == "Dry."
        assert [block["type"] for block in server.requests[1].body["messages"][1]["content"]] == [
            "text",
            "tool_use",
            "tool_use",
        ]
        told = server.requests[1].body["messages"][2]["content"]
        assert [block["content"] for block in told] == ["dry in Oslo", "dry in Rome"]
        assert [block["tool_use_id"] for block in told] == ["toolu_0001_1", "toolu_0001_2"]

    played(main())


@pytest.mark.parametrize("arguments", ['{"city": "Os', "[1]"])
def test_the_model_is_shown_that_its_arguments_are_invalid(arguments: str) -> None:
    """Ours: a malformed call does not run and does not break the conversation."""

    async def main() -> None:
        call = {"name": "weather", "arguments": arguments}
        async with AnthropicServer([{"tool_calls": [call]}, "Sorry."]) as server:
            result = await Agent(model_of(server), tools=[weather]).run("Rain?")
        assert result.output == "Sorry."
        (told,) = server.requests[1].body["messages"][2]["content"]
        assert told["is_error"]

    played(main())


def test_structured_output_is_requested_and_validated() -> None:
    """Ours: structured output works together with real tools."""

    async def main() -> None:
        replies: list[Any] = [asks("Oslo"), '{"word": "glad", "score": 3}']
        async with AnthropicServer(replies) as server:
            result = await Agent(model_of(server), tools=[weather], output_type=Mood).run("Mood?")
        assert result.output == Mood("glad", 3)
        form = server.requests[0].body["output_config"]["format"]
        assert form["type"] == "json_schema"

    played(main())


def test_an_image_is_read_from_the_store_and_sent_inline() -> None:
    """Ours: media is stored by digest and sent inline."""

    async def main() -> None:
        async with AnthropicServer(["A dot."]) as server:
            await Agent(model_of(server)).run(["What is this?", Attachment(b"\x89PNG", "image/png")])
        (text, image) = server.requests[0].body["messages"][0]["content"]
        assert text == {"type": "text", "text": "What is this?"}
        assert image["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}

    played(main())


@pytest.mark.parametrize("model", [OLDER, NEWER])
def test_reasoning_is_streamed_and_sent_back_unchanged(model: str) -> None:
    """Ours: the server refuses thinking whose text does not match its signature."""

    async def main() -> None:
        async with AnthropicServer([asks("Oslo", reasoning="I must look."), "Dry."]) as server:
            agent = Agent(model_of(server, model), tools=[weather], settings={"reasoning": "low"})
            turn = agent.run_stream("Rain?")
            events = [event async for event in turn]
            assert (await turn).output == "Dry."
        assert "".join(one.text for one in events if isinstance(one, ReasoningStreamed)) == "I must look."
        assert server.requests[1].body["messages"][1]["content"][0] == {
            "type": "thinking",
            "thinking": "I must look.",
            "signature": signature_of("I must look."),
        }

    played(main())


def test_reasoning_is_not_sent_to_another_model() -> None:
    """Ours: a signature is valid only for the model that issued it; another model gets none."""

    async def main() -> None:
        settings = {"reasoning": "low"}
        async with (
            AnthropicServer([asks("Oslo", reasoning="I must look."), "Dry.", "Still dry."]) as server,
            Runtime() as runtime,
        ):
            first = Agent(model_of(server, NEWER), tools=[weather], settings=settings)
            await (await runtime.session("s", agent=first)).turn("Rain?")
            messages = await (await runtime.session("s")).messages()
            model = model_of(server, OLDER)
            request = ModelRequest(
                messages=[*messages, UserMessage(content="Sure?")],
                settings=settings,
            )
            assert [delta async for delta in model.stream(request)][-1].text == "Still dry."
        sent = [block["type"] for turn in server.requests[2].body["messages"] for block in turn["content"]]
        assert "thinking" not in sent

    played(main())


def test_a_cancelled_turn_closes_its_connection() -> None:
    """Ours: cancelling in the middle of a stream ends it immediately, and the server notices."""

    async def main() -> None:
        reply = ServedReply(text="Hello you", chunk_size=1, fault=Fault(stall_at=900))
        async with AnthropicServer([reply]) as server, Runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model_of(server)))
            turn = session.turn("Hi")
            turn.start()
            await server.stalled.wait()
            assert await turn.cancel()
            await server.hung_up.wait()

    played(main())


def test_another_runtime_resumes_a_waiting_turn(tmp_path: Path) -> None:
    """Ours: a turn that waits for a person resumes in another process, its thinking included."""

    async def main() -> None:
        paying = {"reasoning": "Pay?", "tool_calls": [{"name": "pay", "arguments": {"cents": 5}}]}
        async with AnthropicServer([paying, "Paid."]) as server:

            def agent() -> Agent[Any, Any]:
                return Agent(model_of(server, OLDER), tools=[pay], settings={"reasoning": "low"})

            async with Runtime(tmp_path / "h.db") as first:
                waiting = await (await first.session("s", agent=agent())).turn("Pay it.")
            async with Runtime(tmp_path / "h.db") as second:
                session = await second.session("s", agent=agent())
                result = await session.approve(waiting.waits[0].wait_id)
        assert result.output == "Paid."
        assert server.requests[1].body["messages"][1]["content"][0]["signature"] == signature_of("Pay?")

    played(main())


def test_resuming_an_interrupted_turn_repeats_its_request(tmp_path: Path) -> None:
    """Ours: the partial reply is lost with the process, and the same request is sent again."""

    async def main() -> None:
        halted = ServedReply(text="Hello you", chunk_size=1, fault=Fault(stall_at=900))
        async with AnthropicServer([halted, "Hello you"]) as server:
            async with Runtime(tmp_path / "h.db") as first:
                session = await first.session("s", agent=Agent(model_of(server)))
                session.turn("Hi").start()
                await server.stalled.wait()
            async with Runtime(tmp_path / "h.db") as second:
                session = await second.session("s", agent=Agent(model_of(server)))
                turn = await session.resume()
                assert turn is not None
                assert (await turn).output == "Hello you"
        assert server.requests[0].body == server.requests[1].body

    played(main())


def test_a_call_that_was_cut_off_does_not_run() -> None:
    """Ours: incomplete arguments are not JSON, and a call that was cut off before them has none."""

    async def main() -> None:
        call = {"name": "weather", "arguments": '{"city": "Os'}
        async with AnthropicServer([{"tool_calls": [call], "stop_reason": "length"}]) as server:
            found = await ended(model_of(server))
        assert (found.stop_reason, found.calls[0].arguments) == ("length", '{"city": "Os')

    played(main())


def test_a_refusal_is_a_reply_with_the_vendors_text() -> None:
    """Ours: a refusal is a reply, not an error."""

    async def main() -> None:
        async with AnthropicServer([{"text": "I will not.", "stop_reason": "refusal"}]) as server:
            found = await ended(model_of(server))
        assert (found.text, found.stop_reason) == ("I will not.", "refusal")

    played(main())


@pytest.mark.parametrize(
    ("status", "message", "code", "retryable"),
    [
        (529, "Overloaded", TurnCode.PROVIDER_ERROR, True),
        (429, "Slow down", Code.RATE_LIMITED, True),
        (401, f"invalid x-api-key {KEY}", TurnCode.PROVIDER_ERROR, False),
        (400, "prompt is too long: 9 tokens > 8 maximum", TurnCode.CONTEXT_OVERFLOW, False),
    ],
)
def test_an_error_has_the_vendors_message_without_the_key(
    status: int, message: str, code: str, retryable: bool
) -> None:
    """Ours: vendors repeat keys in their error messages."""

    async def main() -> None:
        fault = Fault(status=status, message=message, headers={"retry-after": "2"})
        async with AnthropicServer([ServedReply(fault=fault)]) as server:
            with pytest.raises(ModelError) as failed:
                await ended(model_of(server))
        error = failed.value
        assert (error.code, error.retryable, error.retry_after_ms) == (code, retryable, 2000)
        assert message.split(KEY)[0].strip() in error.message
        assert KEY not in str(error)

    played(main())


@pytest.mark.parametrize("order", ["duplicate:0", "duplicate:2", "drop:2", "swap:2", "drop:8", "garbage:3"])
def test_a_stream_out_of_order_is_a_retryable_failure(order: str) -> None:
    """Ours: the reply fails, and none of it is used."""

    async def main() -> None:
        async with AnthropicServer([asks("Oslo", fault={"order": order})]) as server:
            with pytest.raises(ModelError) as failed:
                await ended(model_of(server), tools=(weather.capability,))
        assert failed.value.retryable

    played(main())


def test_vendor_specific_settings_are_sent_unchanged() -> None:
    """Ours: extra fields and headers override ours."""

    async def main() -> None:
        extras = {"extra_body": {"service_tier": "auto"}, "extra_headers": {"anthropic-beta": "x-1"}}
        async with AnthropicServer(["Hi"]) as server:
            await ended(model_of(server), settings=extras)
        (seen,) = server.requests
        assert seen.body["service_tier"] == "auto"
        assert seen.headers["anthropic-beta"] == "x-1"

    played(main())


def test_a_turn_whose_request_is_refused_stops_with_the_vendors_message() -> None:
    """Ours: a request that cannot succeed is not retried."""

    async def main() -> None:
        async with AnthropicServer(["never"]) as server:
            agent = Agent(model_of(server), settings={"extra_body": {"colour": "red"}})
            with pytest.raises(TurnStopped, match="colour: Extra inputs are not permitted"):
                await agent.run("Hi")
        assert len(server.requests) == 1

    played(main())


def test_the_key_and_the_base_url_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: the usual variables are read, and a missing key is an error when the model is created."""
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ProviderUnconfigured, match="ANTHROPIC_API_KEY"):
        AnthropicModel(NEWER)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert AnthropicModel(NEWER).base_url == "https://api.anthropic.com"
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/")
    model = AnthropicModel(NEWER)
    assert (model.base_url, model.model_id) == ("http://127.0.0.1:9", f"anthropic:{NEWER}")
    assert KEY not in repr(model)
