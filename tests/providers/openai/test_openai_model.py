"""The model against a server that speaks the Responses API: agents, tools, media, reasoning, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Attachment, Runtime, tool
from standfast.errors import Code, InvalidArgument, ModelError, ProviderUnconfigured, TurnCode
from standfast.model.events import TextRetracted, TextStreamed
from standfast.model.message import AssistantMessage, UserMessage
from standfast.ports.model_provider import ModelRequest, ReplyEnded, TextArrived
from standfast.providers.openai import OpenAIModel
from standfast.runtime.turn import Turn
from standfast.testing.servers.http_server import Fault, SeenRequest, ServedReply
from standfast.testing.servers.openai_server import OpenAIServer

KEY = "sk-proj-planted-0123456789"


def model_of(server: OpenAIServer, name: str = "gpt-5.2") -> OpenAIModel:
    return OpenAIModel(name, api_key=KEY, base_url=server.base_url)


def weather(city: str) -> str:
    """The weather of a city."""
    return f"3 degrees in {city}"


@tool(approval="manual")
def pay(cents: int) -> str:
    return f"paid {cents}"


def kinds(body: Any) -> list[str]:
    """Return the role or the type of each item of a request."""
    return [item.get("role") or item["type"] for item in body["input"]]


async def reply_of(model: OpenAIModel, said: str = "hi") -> ReplyEnded:
    request = ModelRequest(messages=[UserMessage(content=said)])
    async for delta in model.stream(request):
        if isinstance(delta, ReplyEnded):
            return delta
    raise AssertionError("no reply")


async def failure_of(model: OpenAIModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await reply_of(model)
    return caught.value


def test_a_ten_line_agent_answers() -> None:
    """Ours: the smallest agent works over a real connection."""

    async def main() -> None:
        async with OpenAIServer(["Grüezi"]) as server:
            model = model_of(server, "gpt-4.1")
            result = await Agent(model, instructions="Be kind.").run("hello")
            assert result.output == "Grüezi"
            (seen,) = server.requests
            assert (seen.path, seen.headers["authorization"]) == ("/v1/responses", f"Bearer {KEY}")
            assert seen.body["instructions"] == "Be kind."
            (_, said) = result.messages
            assert isinstance(said, AssistantMessage)
            assert (said.model, said.response_id) == ("gpt-4.1-2026-01-01", "resp_1")
            await model.close()

    asyncio.run(main())


def test_text_is_streamed_and_usage_has_five_buckets() -> None:
    """Ours: deltas add up to the reply."""
    usage = {"input": 10, "cache_read": 20, "cache_write": 5, "output": 7, "reasoning": 3}

    async def main() -> None:
        async with OpenAIServer([{"text": "one two", "chunk_size": 2, "usage": usage}]) as server:
            model = model_of(server)
            deltas = [
                delta async for delta in model.stream(ModelRequest(messages=[UserMessage(content="x")]))
            ]
            await model.close()
        texts = [delta.text for delta in deltas if isinstance(delta, TextArrived)]
        assert texts == ["on", "e ", "tw", "o"]
        assert isinstance(deltas[-1], ReplyEnded)
        used = deltas[-1].usage
        assert (used.input, used.cache_read, used.cache_write, used.output) == (10, 20, 5, 7)
        assert (used.reasoning, used.calls) == (3, 1)

    asyncio.run(main())


def test_tools_are_called_in_parallel_and_their_results_are_sent_back() -> None:
    """Ours: two calls in one reply, with streamed arguments."""
    calls = [{"name": "weather", "arguments": {"city": city}} for city in ("Bern", "Basel")]

    async def main() -> None:
        async with OpenAIServer([{"text": "I look.", "tool_calls": calls}, "Cold."]) as server:
            model = model_of(server, "gpt-4.1")
            result = await Agent(model, tools=[weather]).run("And the weather?")
            assert result.output == "Cold."
            first, second = (seen.body for seen in server.requests)
            assert first["tools"][0]["strict"] is True
            assert second["input"][1:] == [
                {"type": "message", "role": "assistant", "content": "I look."},
                called("call_1_1", "Bern"),
                called("call_1_2", "Basel"),
                {"type": "function_call_output", "call_id": "call_1_1", "output": "3 degrees in Bern"},
                {"type": "function_call_output", "call_id": "call_1_2", "output": "3 degrees in Basel"},
            ]
            await model.close()

    asyncio.run(main())


def called(call_id: str, city: str) -> dict[str, str]:
    arguments = f'{{"city":"{city}"}}'
    return {"type": "function_call", "call_id": call_id, "name": "weather", "arguments": arguments}


def test_structured_output_uses_the_vendors_own_mode() -> None:
    """Ours: the JSON Schema mode is used; a list, which it does not support, is described in the prompt."""

    async def main() -> None:
        async with OpenAIServer(['{"a": 1}', "[1, 2]"]) as server:
            model = model_of(server, "gpt-4.1")
            assert (await Agent(model, output_type=dict[str, int]).run("go")).output == {"a": 1}
            assert (await Agent(model, output_type=list[int]).run("go")).output == [1, 2]
            first, second = (seen.body for seen in server.requests)
            assert first["text"]["format"]["type"] == "json_schema"
            assert "text" not in second
            await model.close()

    asyncio.run(main())


def test_an_image_is_sent_with_the_text_around_it() -> None:
    """Ours: media is stored once and sent with the message that refers to it."""

    async def main() -> None:
        async with OpenAIServer(["A dot."]) as server:
            model = model_of(server, "gpt-4.1")
            picture = Attachment(b"\x89PNG\r\n", "image/png", "dot.png")
            assert (await Agent(model).run(["What is this?", picture])).output == "A dot."
            parts = server.requests[0].body["input"][0]["content"]
            assert [part["type"] for part in parts] == ["input_text", "input_image"]
            assert parts[1]["image_url"] == "data:image/png;base64,iVBORw0K"
            await model.close()

    asyncio.run(main())


def test_reasoning_is_sent_back_only_to_its_origin() -> None:
    """Ours: provider, endpoint and model must match."""
    thinks = {
        "reasoning": "Hm.",
        "text": "I look.",
        "tool_calls": [{"name": "weather", "arguments": {"city": "B"}}],
    }

    async def main() -> None:
        async with OpenAIServer([thinks, "Cold.", "Still.", "Other."]) as server:
            model, other = model_of(server), model_of(server, "gpt-5.1")
            async with Runtime() as runtime:
                agent = Agent(model, tools=[weather], settings={"reasoning": "high"})
                session = await runtime.session("s", agent=agent)
                await session.turn("go")
                await session.turn("and now?")
                messages = await session.messages()
            async for _ in other.stream(ModelRequest(messages=messages)):
                pass
            bodies = [seen.body for seen in server.requests]
            row = ["user", "reasoning", "assistant", "function_call", "function_call_output"]
            assert kinds(bodies[1]) == row
            assert bodies[1]["input"][1]["summary"] == [{"type": "summary_text", "text": "Hm."}]
            assert kinds(bodies[2])[:5] == row
            assert "reasoning" not in kinds(bodies[3])
            await model.close()
            await other.close()

    asyncio.run(main())


def test_a_turn_resumes_in_another_runtime_with_its_reasoning(tmp_path: Path) -> None:
    """Seed: a turn that waits for a person outlives the process that started it."""
    asks = {"reasoning": "I must pay.", "tool_calls": [{"name": "pay", "arguments": {"cents": 5}}]}

    async def main() -> None:
        async with OpenAIServer([asks, "Paid."]) as server:
            model = model_of(server)
            async with Runtime(tmp_path / "h.db") as runtime:
                session = await runtime.session("s", agent=Agent(model, tools=[pay]))
                (wait,) = (await session.turn("pay")).waits
            again = model_of(server)
            async with Runtime(tmp_path / "h.db") as runtime:
                session = await runtime.session("s", agent=Agent(again, tools=[pay]))
                assert (await session.approve(wait.wait_id)).output == "Paid."
            assert kinds(server.requests[1].body) == [
                "user",
                "reasoning",
                "function_call",
                "function_call_output",
            ]
            await model.close()
            await again.close()

    asyncio.run(main())


async def seen(event: object, turn: Turn[str], server: OpenAIServer) -> bool:
    """Return whether the event is text; the turn is cancelled at the first one."""
    if isinstance(event, TextStreamed):
        await server.stalled.wait()
        assert not server.hung_up.is_set()
        assert await turn.cancel()
    return isinstance(event, TextStreamed | TextRetracted)


def test_a_turn_cancelled_in_the_middle_of_a_stream_closes_the_connection() -> None:
    """Ours: the server sees the client disconnect at once, and the session stays usable."""

    async def main() -> None:
        held = ServedReply(text="so far and on", chunk_size=6, fault=Fault(stall_at=1_900))
        async with OpenAIServer([held, "next"]) as server:
            model = model_of(server, "gpt-4.1")
            async with Runtime() as runtime:
                session = await runtime.session("s", agent=Agent(model))
                turn = session.turn("hi")
                shown = [event async for event in turn if await seen(event, turn, server)]
                assert [type(event) for event in shown] == [TextStreamed, TextRetracted]
                await server.hung_up.wait()
                assert (await session.turn("again")).output == "next"
            await model.close()

    asyncio.run(main())


def test_refusals_and_truncated_replies_have_their_own_stop_reasons() -> None:
    """Ours: stop reasons are the port's."""
    half = {"name": "weather", "arguments": '{"ci'}
    replies: list[dict[str, Any]] = [
        {"text": "I cannot.", "stop_reason": "refusal"},
        {"text": "Hal", "stop_reason": "length"},
        {"tool_calls": [half], "stop_reason": "length"},
        {"text": "x", "stop_reason": "content_filter"},
    ]

    async def main() -> None:
        async with OpenAIServer(replies) as server:
            model = model_of(server)
            found = [await reply_of(model) for _ in replies]
            await model.close()
        assert [reply.stop_reason for reply in found] == ["refusal", "length", "length", "content_filter"]
        assert [reply.text for reply in found] == ["I cannot.", "Hal", "", "x"]
        assert found[2].calls[0].arguments == '{"ci'

    asyncio.run(main())


def test_an_error_has_the_vendors_message_without_the_key() -> None:
    """Ours: the status, the code and the vendor's message decide what happens next."""

    async def main() -> None:
        faults = [
            Fault(status=401, message=f"Incorrect API key provided: {KEY}."),
            Fault(status=429, message="Slow down.", headers={"retry-after": "7"}),
            Fault(status=429, message="You exceeded your current quota."),
            Fault(status=400, message="Your input exceeds the context window of this model."),
            Fault(status=500, message="Oops."),
        ]
        async with OpenAIServer([ServedReply(text="", fault=fault) for fault in faults]) as server:
            model = model_of(server)
            wrong, slow, spent, large, oops = [await failure_of(model) for _ in faults]
            await model.close()
        assert "Incorrect API key" in wrong.message
        assert KEY not in str(wrong)
        assert "OPENAI_API_KEY" in str(wrong)
        assert (slow.retryable, slow.retry_after_ms, slow.code) == (True, 7_000, Code.RATE_LIMITED)
        assert spent.retryable is False
        assert (large.code, large.retryable) == (TurnCode.CONTEXT_OVERFLOW, False)
        assert oops.retryable is True

    asyncio.run(main())


@pytest.mark.parametrize("order", ["duplicate", "swap", "drop", "garbage"])
def test_disordered_events_never_change_a_reply(order: str) -> None:
    """Seed: the reply is as the vendor sent it, or the attempt fails."""
    reply = {"reasoning": "Hm.", "text": "abc", "chunk_size": 1}
    calls = [{"name": "weather", "arguments": {"city": "Bern"}, "id": "call_a"}]

    def served(at: int) -> dict[str, Any]:
        return {**reply, "tool_calls": calls, "fault": {"order": f"{order}:{at}"}}

    async def main() -> None:
        blocks = 23
        async with OpenAIServer([{**reply, "tool_calls": calls}, *map(served, range(blocks))]) as server:
            model = model_of(server)
            whole = await reply_of(model)
            found = await asyncio.gather(*(outcome(model) for _ in range(blocks)))
            await model.close()
        replies = [each for each in found if isinstance(each, ReplyEnded)]
        assert all((each.text, each.calls) == (whole.text, whole.calls) for each in replies)
        assert all(each.retryable for each in found if isinstance(each, ModelError))

    async def outcome(model: OpenAIModel) -> ReplyEnded | ModelError:
        try:
            return await reply_of(model)
        except ModelError as error:
            return error

    asyncio.run(main())


def test_the_server_refuses_invalid_requests() -> None:
    """Ours: the server is as strict as the vendor, so that these tests prove something."""
    bodies: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
        (lambda body: body.pop("model"), "'model'"),
        (lambda body: body.update(seed=1), "Unknown parameter: 'seed'"),
        (lambda body: body.update(input=[]), "'input'"),
        (lambda body: body.update(tool_choice="auto"), "Tool choice"),
        (
            lambda body: body["input"].append({"type": "function_call_output", "call_id": "x", "output": ""}),
            "x",
        ),
        (lambda body: body["input"].append({"type": "reasoning", "id": "rs_1", "summary": []}), "rs_1"),
        (lambda body: body.update(include=["reasoning.encrypted_content"]), "not supported"),
        (lambda body: body.update(tools=[{"type": "function", "name": "f", "parameters": {}}]), "schema"),
    ]
    server = OpenAIServer()
    for change, said in bodies:
        body: dict[str, Any] = {"model": "gpt-4.1", "input": [{"role": "user", "content": "hi"}]}
        assert server.checked(SeenRequest("POST", "/v1/responses", {}, body)) is None
        change(body)
        assert said in (server.checked(SeenRequest("POST", "/v1/responses", {}, body)) or "")


def test_the_key_and_the_base_url_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: arguments take precedence over the usual variables, and an error names a missing key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ProviderUnconfigured, match="OPENAI_API_KEY"):
        OpenAIModel("gpt-5.2")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert OpenAIModel("gpt-5.2").base_url == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1/")
    model = OpenAIModel("gpt-5.2")
    assert (model.model_id, model.base_url) == ("openai:gpt-5.2", "http://localhost:1/v1")
    assert OpenAIModel("x", base_url="http://localhost:2").base_url == "http://localhost:2"
    assert KEY not in repr(model)


def test_an_unknown_setting_stops_the_turn_before_anything_is_sent() -> None:
    """Ours: the user gets the error, and nothing is sent."""

    async def main() -> None:
        async with OpenAIServer() as server:
            model = model_of(server)
            request = ModelRequest(messages=[UserMessage(content="x")], settings={"seed": 1})
            with pytest.raises(InvalidArgument, match="seed"):
                await anext(aiter(model.stream(request)))
            assert server.requests == []
            await model.close()

    asyncio.run(main())
