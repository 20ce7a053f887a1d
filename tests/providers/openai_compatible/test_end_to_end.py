"""Agents with a model behind Chat Completions, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast import Agent, Runtime, tool
from standfast.errors import ModelError, TurnCode, TurnStopped
from standfast.model.limits import Usage, UsageLimits
from standfast.model.message import AssistantMessage, UserMessage
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.openai_compatible import OpenAICompatibleModel
from standfast.runtime.agent_session import Attachment
from standfast.testing.servers.chat_server import ChatServer
from standfast.testing.servers.http_server import Fault, Served, ServedReply

KEY = "sk-planted-0123456789"
ONE_TRY = UsageLimits(max_attempts=1)
HI = ModelRequest(messages=[UserMessage(content="hi")])

Scene = Callable[[ChatServer, OpenAICompatibleModel], Coroutine[Any, Any, None]]


def play(scene: Scene, *replies: Served, **options: Any) -> None:
    """Run a scenario with a server and a model connected to it."""

    async def main() -> None:
        async with ChatServer(replies, **options) as server:
            model = OpenAICompatibleModel("m", server.base_url, api_key=KEY)
            try:
                await scene(server, model)
            finally:
                await model.close()

    asyncio.run(main())


async def deltas_of(model: OpenAICompatibleModel, request: ModelRequest = HI) -> list[ModelDelta]:
    return [delta async for delta in model.stream(request)]


async def reply_of(model: OpenAICompatibleModel, request: ModelRequest = HI) -> ReplyEnded:
    last = (await deltas_of(model, request))[-1]
    assert isinstance(last, ReplyEnded)
    return last


def asks(*calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls], **more}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_a_ten_line_agent_answers() -> None:
    """Ours: the key is in its header and nowhere else."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        result = await Agent(model, instructions="Be brief.").run("hi")
        assert result.output == "Hello!"
        seen = server.requests[0]
        assert (seen.path, seen.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
        assert seen.body["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ]
        reply = result.messages[-1]
        assert isinstance(reply, AssistantMessage)
        assert (reply.model, reply.response_id, reply.stop_reason) == ("m", "chatcmpl-1", "end")

    play(scene, {"text": "Hello!", "chunk_size": 2})


def test_a_local_server_is_called_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a key for another host is not sent."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_COMPATIBLE_API_KEY", raising=False)

    async def main() -> None:
        async with ChatServer(["x"]) as server:
            model = OpenAICompatibleModel("m", server.base_url)
            await reply_of(model)
            await model.close()
            assert "authorization" not in server.requests[0].headers
            assert KEY not in str(server.requests)

    asyncio.run(main())


def test_tools_are_called_and_their_results_are_sent_back() -> None:
    """Ours: a reply may have several calls, each answered under its id."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        result = await Agent(model, tools=[add]).run("sum up")
        assert result.output == "3 and 7"
        _, reply, *results = server.requests[1].body["messages"]
        ids = [call["id"] for call in reply["tool_calls"]]
        assert ids == ["call_1_0", "call_1_1"]
        assert [(one["tool_call_id"], one["content"]) for one in results] == [(ids[0], "3"), (ids[1], "7")]
        assert server.requests[0].body["tools"][0]["function"]["name"] == "add"

    play(scene, asks(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})), "3 and 7")


def test_structured_output_is_requested_and_validated() -> None:
    """Ours: the server gets the schema, the caller gets the value."""

    @dataclass
    class Point:
        x: int
        y: int

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        result = await Agent(model, output_type=Point).run("where?")
        assert result.output == Point(1, 2)
        wanted = server.requests[0].body["response_format"]
        assert wanted["json_schema"]["schema"]["required"] == ["x", "y"]

    play(scene, '{"x": 1, "y": 2}')


def test_images_and_files_reach_the_server() -> None:
    """Ours: bytes are stored once and sent as base64."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        picture = Attachment(b"\x89PNG", "image/png", "a.png")
        await Agent(model).run(["what is it?", picture, Attachment(b"%PDF", "application/pdf", "b.pdf")])
        kinds = [part["type"] for part in server.requests[0].body["messages"][0]["content"]]
        assert kinds == ["text", "image_url", "file"]

    play(scene, "a dot")


def test_reasoning_is_sent_back_only_to_its_origin() -> None:
    """Ours: reasoning before a call is sent back with it, and never to another model."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        result = await Agent(model, tools=[add]).run("sum")
        sent = server.requests[1].body["messages"][1]
        assert sent["reasoning"] == "I add them up."
        other = OpenAICompatibleModel("other", server.base_url)
        await reply_of(other, ModelRequest(messages=list(result.messages)))
        await other.close()
        assert "I add them up." not in str(server.requests[2].body)

    first = asks(("add", {"a": 1, "b": 2}), reasoning="I add them up.")
    play(scene, first, "3", "other", reasoning_field="reasoning")


def test_reasoning_is_streamed_before_the_text() -> None:
    """Ours: reasoning has its own kind of delta."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        deltas = await deltas_of(model)
        thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningArrived))
        assert thought == "let me think about it"
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextArrived)) == "so"

    play(scene, {"text": "so", "reasoning": "let me think about it"})


def test_replies_have_usage_and_a_stop_reason() -> None:
    """Ours: usage has five buckets, and stop reasons are the port's, also for refusals."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        reply = await reply_of(model)
        assert reply.usage == Usage(input=5, cache_read=7, cache_write=2, output=9, reasoning=3, calls=1)
        assert (await reply_of(model)).stop_reason == "length"
        refusal = await reply_of(model)
        assert (refusal.text, refusal.stop_reason) == ("I will not.", "refusal")
        assert server.connections == 1  # events after the last text did not cost the connection

    used = {"input": 5, "cache_read": 7, "cache_write": 2, "output": 9, "reasoning": 3}
    play(
        scene,
        {"text": "x", "usage": used},
        {"text": "x", "stop_reason": "length"},
        {"text": "I will not.", "stop_reason": "refusal"},
    )


def test_a_cancelled_reply_closes_the_connection() -> None:
    """Ours: the server sees at once that the client has disconnected."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        asking = asyncio.create_task(deltas_of(model))
        await server.stalled.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(server.hung_up.wait(), 5)

    play(scene, ServedReply(text="a long story", chunk_size=1, fault=Fault(stall_at=600)))


def test_closing_the_iterator_in_the_middle_closes_the_connection() -> None:
    """Ours: closing the iterator ends the call."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        deltas: Any = model.stream(HI)
        assert await anext(deltas) == TextArrived("a")
        await deltas.aclose()
        await asyncio.wait_for(server.hung_up.wait(), 5)

    play(scene, ServedReply(text="a long story", chunk_size=1, fault=Fault(stall_at=600)))


def test_another_runtime_resumes_a_waiting_turn(tmp_path: Path) -> None:
    """Ours: the model is not called again, and its call keeps its id."""

    @tool(approval="manual")
    def pay(cents: int) -> str:
        """Pay."""
        return f"paid {cents}"

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        async with Runtime(tmp_path / "h.db") as first:
            session = await first.session("s", agent=Agent(model, tools=[pay]))
            assert (await session.turn("pay 5")).status == "waiting"
        again = OpenAICompatibleModel("m", server.base_url)
        async with Runtime(tmp_path / "h.db") as second:
            session = await second.session("s", agent=Agent(again, tools=[pay]))
            (approval,) = await session.approvals(pending=True)
            await session.approve(approval.approval_id)
            turn = await session.resume()
            if turn is None:
                turn = session.follow((await session.turns())[-1].turn_id)
            assert (await turn.settled()).output == "Done."
        await again.close()
        result = server.requests[1].body["messages"][-1]
        assert result == {"role": "tool", "tool_call_id": "call_1_0", "content": "paid 5"}

    play(scene, asks(("pay", {"cents": 5})), "Done.")


# How servers differ


def raw(*chunks: Any, done: bool = False, **fault: Any) -> ServedReply:
    """Return a stream with exactly these chunks."""
    blocks = [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks]
    body = b": keep-alive\n\n".join(blocks) + (b"data: [DONE]\n\n" if done else b"")
    return ServedReply(text="", fault=Fault(body=body, **fault))


def said(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "r", "model": "m", "choices": [{"delta": {"content": text}, "finish_reason": finish}]}


def test_a_stream_may_end_after_the_finish_reason() -> None:
    """Ours: after the finish reason, neither a token count nor `[DONE]` is needed."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        deltas = await deltas_of(model)
        assert deltas[:-1] == [TextArrived("he"), TextArrived("llo")]
        assert isinstance(deltas[-1], ReplyEnded)
        assert (deltas[-1].text, deltas[-1].usage) == ("hello", Usage(calls=1))

    play(scene, raw(said("he"), said("llo", "stop")))


def test_a_connection_that_breaks_after_the_finish_reason_loses_only_the_usage() -> None:
    """Ours: the reply is already complete."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        assert (await reply_of(model)).text == "hello"

    play(scene, raw(said("hello", "stop"), reset=True))


def test_silence_after_the_finish_reason_does_not_delay_the_reply() -> None:
    """Ours: the token count is awaited only briefly."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        model.usage_within_s = 0.02
        assert (await reply_of(model)).text == "hello"
        await asyncio.wait_for(server.hung_up.wait(), 5)

    play(scene, raw(said("hello", "stop"), stall_at=10_000))


def test_a_stream_that_ends_before_the_finish_reason_is_a_failure() -> None:
    """Ours: no partial reply is used, with or without `[DONE]`."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        for _ in range(2):
            with pytest.raises(ModelError) as caught:
                await deltas_of(model)
            assert caught.value.retryable

    play(scene, raw(said("he")), raw(said("he"), done=True))


def test_text_after_the_finish_reason_is_a_failure() -> None:
    """Ours: events in the wrong order fail the reply."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        with pytest.raises(ModelError, match="after its finish_reason"):
            await deltas_of(model)

    play(scene, raw(said("he", "stop"), said("llo"), done=True))


@pytest.mark.parametrize(
    ("order", "made"), [("drop:1", 0), ("swap:1", 0), ("garbage:1", 0), ("duplicate:1", 1)]
)
def test_a_call_whose_start_is_missing_or_late_is_a_failure(order: str, made: int) -> None:
    """Bug: the failure came after the finish reason and was taken for a broken connection."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        if made:
            assert len((await reply_of(model)).calls) == made
        else:
            with pytest.raises(ModelError) as caught:
                await deltas_of(model)
            assert caught.value.retryable

    calls = asks(("add", {"a": 1, "b": 2}))
    play(scene, {**calls, "fault": {"order": order}})


def test_an_error_in_the_stream_stops_the_turn_with_the_servers_message() -> None:
    """Ours: the error has the server's message without the key that it contains."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        with pytest.raises(TurnStopped) as caught:
            await Agent(model, limits=ONE_TRY).run("hi")
        assert "the GPU is on fire" in str(caught.value)
        assert KEY not in str(caught.value)

    play(scene, raw(said("he"), {"error": {"code": 502, "message": f"the GPU is on fire, {KEY}"}}))


def test_an_error_has_the_servers_message() -> None:
    """Ours: an error has the status, the code and the message."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        expected: list[tuple[str, bool, int | None]] = [
            ("RATE_LIMITED", True, 2000),
            ("PROVIDER_ERROR", False, None),
            (TurnCode.CONTEXT_OVERFLOW, False, None),
            ("PROVIDER_ERROR", True, None),
        ]
        for code, retryable, wait_ms in expected:
            with pytest.raises(ModelError) as caught:
                await deltas_of(model)
            error = caught.value
            assert (error.code, error.retryable, error.retry_after_ms) == (code, retryable, wait_ms)
            assert KEY not in str(error)

    play(
        scene,
        ServedReply(text="", fault=Fault(status=429, message="slow down", headers={"retry-after": "2"})),
        ServedReply(text="", fault=Fault(status=401, message=f"Incorrect API key provided: {KEY}")),
        ServedReply(text="", fault=Fault(status=400, message="maximum context length is 10 tokens")),
        ServedReply(text="", fault=Fault(status=503, message="loading the model")),
    )


def test_extra_settings_are_sent_unchanged() -> None:
    """Ours: some settings are known to one server only."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        settings = {"extra_body": {"min_p": 0.1}, "extra_headers": {"x-title": "t"}}
        await Agent(model, settings=settings).run("hi")
        assert server.requests[0].body["min_p"] == 0.1
        assert server.requests[0].headers["x-title"] == "t"

    play(scene, "ok")


def test_a_silent_server_times_out() -> None:
    """Ours: the deadline between chunks applies until the finish reason."""

    async def main() -> None:
        async with ChatServer([raw(said("he"), stall_at=10_000)]) as server:
            model = OpenAICompatibleModel("m", server.base_url, deadlines=Deadlines(between_chunks_s=0.05))
            with pytest.raises(ModelError) as caught:
                await deltas_of(model)
            assert caught.value.retryable
            await model.close()

    asyncio.run(main())


def test_a_megabyte_of_arguments_arrives_unchanged() -> None:
    """Ours: tool arguments may be 1 MB long."""

    async def scene(server: ChatServer, model: OpenAICompatibleModel) -> None:
        (call,) = (await reply_of(model)).calls
        assert msgspec.json.decode(call.arguments) == {"text": "x" * 1_000_000}

    play(scene, asks(("add", {"text": "x" * 1_000_000})))
