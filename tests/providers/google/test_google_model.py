"""`GoogleModel` over HTTP, against a server that speaks Gemini's format and refuses what Gemini refuses."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Attachment, Runtime, TurnStopped, tool
from standfast.errors import Code, ModelError, ProviderUnconfigured, TurnCode
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, UserMessage
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.google import GoogleModel
from standfast.providers.script import Reply, ScriptedCall
from standfast.testing.servers.google_server import GoogleServer
from standfast.testing.servers.http_server import Fault, Served, ServedReply

KEY = "AIza-not-a-real-key-0123456789"
NEWER, OLDER = "gemini-3-flash-preview", "gemini-2.5-flash"
PNG = b"\x89PNG\r\n\x1a\n not much of a picture"


@tool(side_effect="read")
def order(order_id: str) -> dict[str, int]:
    """Look an order up."""
    return {"cents": 4200 + int(order_id)}


@tool(approval="manual")
def refund(cents: int) -> str:
    """Pay back."""
    return f"{cents} paid back"


@dataclass
class Late:
    order_id: str
    days: int


def calls(*made: tuple[str, dict[str, Any]], **more: Any) -> Reply:
    return Reply(tool_calls=tuple(ScriptedCall(name=name, arguments=given) for name, given in made), **more)


def served(
    *replies: Served, model: str = NEWER, play: Callable[[GoogleServer, GoogleModel], Awaitable[None]]
) -> GoogleServer:
    """Run a model against its server; return what the server received."""

    async def main() -> GoogleServer:
        async with GoogleServer(replies) as server:
            google = GoogleModel(model, api_key=KEY, base_url=server.base_url)
            try:
                await play(server, google)
            finally:
                await google.close()
            return server

    return asyncio.run(main())


def read(*replies: Served, model: str = NEWER, **request: Any) -> tuple[list[ModelDelta], GoogleServer]:
    """Return all deltas that answer one question."""
    deltas: list[ModelDelta] = []

    async def play(server: GoogleServer, google: GoogleModel) -> None:
        asked = ModelRequest(messages=[UserMessage(content="Hi.")], **request)
        deltas.extend([delta async for delta in google.stream(asked)])

    server = served(*replies, model=model, play=play)
    return deltas, server


def parts(server: GoogleServer, request: int, content: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.requests[request].body["contents"][content]["parts"]
    return found


def test_a_reply_streams_and_ends_with_its_metadata() -> None:
    """Ours: text is streamed, then the model, the response id and the usage are reported."""
    usage = {"input": 40, "cache_read": 60, "output": 37, "reasoning": 30}
    deltas, server = read({"chunks": ["Hel", "lo."], "usage": usage})
    assert deltas[:2] == [TextArrived("Hel"), TextArrived("lo.")]
    end = deltas[2]
    assert isinstance(end, ReplyEnded)
    assert end.usage == Usage(**usage, calls=1)
    assert (end.model, end.response_id, end.stop_reason) == (NEWER, "response-1", "end")
    seen = server.requests[0]
    assert seen.path == f"/v1beta/models/{NEWER}:streamGenerateContent?alt=sse"
    assert seen.headers["x-goog-api-key"] == KEY
    assert KEY not in seen.path


@pytest.mark.parametrize("model", [NEWER, OLDER])
def test_an_agent_calls_tools_in_parallel_and_answers(model: str) -> None:
    """Ours: the server refuses misplaced results and signatures."""

    async def play(server: GoogleServer, google: GoogleModel) -> None:
        result = await Agent(google, tools=[order]).run("Orders 1, 2 and 3?")
        assert result.output == "They are late."

    asked = calls(("order", {"order_id": "1"}), ("order", {"order_id": "2"}), ("order", {"order_id": "3"}))
    server = served(asked, "They are late.", model=model, play=play)
    responses = [part["functionResponse"]["response"]["result"]["cents"] for part in parts(server, 1, 2)]
    assert responses == [4201, 4202, 4203]
    assert [("thoughtSignature" in part) for part in parts(server, 1, 1)] == [model == NEWER, False, False]


def test_thoughts_are_shown_and_signatures_are_sent_back_over_several_steps() -> None:
    """Ours: every reply of the turn is sent back unchanged, which the server checks part by part."""

    async def play(server: GoogleServer, google: GoogleModel) -> None:
        agent = Agent(google, tools=[order], settings={"reasoning": "low"})
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("Order 1?")).output == "It is late."
            assert (await session.turn("Why?")).output == "Snow."
            kept = [one for one in await session.messages() if isinstance(one, AssistantMessage)]
            assert [one.reasoning[0].text for one in kept] == ["I must look.", "And again.", "", ""]
            assert {one.reasoning[0].origin for one in kept} == {f"google {server.base_url} {NEWER}"}

    server = served(
        calls(("order", {"order_id": "1"}), text="Let me see.", reasoning="I must look."),
        calls(("order", {"order_id": "2"}), reasoning="And again."),
        "It is late.",
        "Snow.",
        play=play,
    )
    assert [list(part) for part in parts(server, 3, 1)] == [["text"], ["functionCall", "thoughtSignature"]]
    assert parts(server, 3, 5)[0] == {"text": "It is late."}
    assert parts(server, 3, 5)[1]["text"] == ""
    assert "thoughtSignature" in parts(server, 3, 5)[1]


def test_thoughts_arrive_as_reasoning() -> None:
    """Ours: thoughts are requested by a setting, and streamed separately from the text."""
    deltas, _ = read(Reply(text="4", reasoning="2 and 2"), settings={"reasoning": "high"})
    thought = [delta.text for delta in deltas if isinstance(delta, ReasoningArrived)]
    assert "".join(thought) == "2 and 2"
    assert len(thought) == 2


def test_signatures_of_one_model_are_not_sent_to_another() -> None:
    """Ours: reasoning is sent back only if provider, endpoint and model match."""
    kept: list[AssistantMessage] = []

    async def asks(server: GoogleServer, google: GoogleModel) -> None:
        asked = ModelRequest(messages=[UserMessage(content="Hi.")])
        end = [delta async for delta in google.stream(asked)][-1]
        assert isinstance(end, ReplyEnded)
        kept.append(AssistantMessage(text=end.text, reasoning=end.reasoning))
        other = GoogleModel("gemini-3-pro-preview", api_key=KEY, base_url=server.base_url)
        again = ModelRequest(messages=[*asked.messages, kept[0], UserMessage(content="And?")])
        said = [delta async for delta in other.stream(again)]
        assert said[0] == TextArrived("Well.")
        await other.close()

    server = served("Hello.", "Well.", play=asks)
    assert kept[0].reasoning[0].opaque is not None
    assert parts(server, 1, 1) == [{"text": "Hello."}]


@pytest.mark.parametrize(("model", "tools"), [(NEWER, [order]), (OLDER, [order]), (OLDER, [])])
def test_an_answer_has_the_requested_type(model: str, tools: list[Any]) -> None:
    """Ours: the vendor's JSON mode is used, or a description in the prompt where JSON mode excludes tools."""

    async def play(server: GoogleServer, google: GoogleModel) -> None:
        result = await Agent(google, tools=tools, output_type=Late).run("Which one?")
        assert result.output == Late("A1", 6)

    server = served('{"order_id": "A1", "days": 6}', model=model, play=play)
    body = server.requests[0].body
    if model == OLDER and tools:
        assert '"days"' in body["systemInstruction"]["parts"][0]["text"]
    else:
        assert body["generationConfig"]["responseJsonSchema"]["required"] == ["order_id", "days"]


def test_an_image_and_a_file_reach_the_model() -> None:
    """Ours: the bytes are stored once by digest, and sent inline."""

    async def play(server: GoogleServer, google: GoogleModel) -> None:
        notes = Attachment(b"late", "text/plain", "notes.txt")
        result = await Agent(google).run(["What is this?", Attachment(PNG, "image/png"), notes])
        assert result.output == "A picture."

    server = served("A picture.", play=play)
    sent = parts(server, 0, 0)
    assert base64.b64decode(sent[1]["inlineData"]["data"]) == PNG
    assert sent[2] == {"text": "[file notes.txt]\nlate"}


def test_another_process_resumes_a_waiting_turn_with_its_signatures(tmp_path: Path) -> None:
    """Ours: signatures are stored, and the server accepts them afterwards."""

    async def play(server: GoogleServer, google: GoogleModel) -> None:
        async with Runtime(tmp_path / "standfast.db") as runtime:
            session = await runtime.session("s", agent=Agent(google, tools=[refund]))
            (waiting,) = (await session.turn("Pay 5 cents back.")).waits
        later = GoogleModel(NEWER, api_key=KEY, base_url=server.base_url)
        async with Runtime(tmp_path / "standfast.db") as runtime:
            session = await runtime.session("s", agent=Agent(later, tools=[refund]))
            assert (await session.approve(waiting.wait_id)).output == "Done."
        await later.close()

    server = served(calls(("refund", {"cents": 5}), reasoning="Hmm."), "Done.", play=play)
    assert "thoughtSignature" in parts(server, 1, 1)[0]


def test_a_cancelled_turn_disconnects_in_the_middle_of_the_stream() -> None:
    """Ours: closing the iterator ends the call at once; the server sees the connection close."""

    async def play(server: GoogleServer, google: GoogleModel) -> None:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=Agent(google))
            turn = session.turn("Hi.")
            turn.start()
            await server.stalled.wait()
            assert await turn.cancel()
            await server.hung_up.wait()
            with pytest.raises(TurnStopped):
                await turn
            assert (await session.turn("Again?")).output == "Here."

    served(ServedReply(text="So far so", chunk_size=3, fault=Fault(stall_at=300)), "Here.", play=play)


def test_a_reply_ends_even_if_the_connection_stays_open() -> None:
    """Ours: the finish reason ends a reply, whatever the server does afterwards."""
    end_of_stream = 10**6
    deltas, server = read(ServedReply(text="Hello.", fault=Fault(stall_at=end_of_stream)))
    assert isinstance(deltas[-1], ReplyEnded)
    assert server.stalled.is_set()


def test_a_stream_without_a_finish_reason_is_a_failure() -> None:
    """Ours: a truncated reply is discarded and retried."""
    with pytest.raises(ModelError) as caught:
        read(ServedReply(text="Hello.", fault=Fault(order="drop:1")))
    assert caught.value.retryable


def test_a_malformed_call_never_runs() -> None:
    """Ours: Gemini itself reports a malformed call."""
    bad = Reply(tool_calls=(ScriptedCall(name="order", arguments='{"order_id": '),))
    with pytest.raises(ModelError, match="MALFORMED_FUNCTION_CALL") as caught:
        read(bad)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("reply", "stop_reason", "text"),
    [
        (Reply(text="So", stop_reason="length"), "length", "So"),
        (Reply(text="", stop_reason="content_filter"), "content_filter", "The reply was blocked: SAFETY."),
        (Reply(stop_reason="refusal"), "refusal", "The prompt was blocked: PROHIBITED_CONTENT."),
    ],
)
def test_a_reply_has_a_stop_reason_and_a_text(reply: Reply, stop_reason: str, text: str) -> None:
    """Ours: stop reasons are the port's, and there is always a text."""
    deltas, _ = read(reply)
    end = deltas[-1]
    assert isinstance(end, ReplyEnded)
    assert (end.stop_reason, end.text) == (stop_reason, text)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextArrived)) == text


def test_a_rate_limit_is_reported_with_its_delay_and_without_the_key() -> None:
    """Ours: the error has Google's message and delay, but no secret."""
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}
    said = {"code": 429, "message": f"Too fast, {KEY}.", "status": "RESOURCE_EXHAUSTED", "details": [wait]}
    body = json.dumps([{"error": said}]).encode()
    fault = Fault(status=429, body=body, headers={"content-type": "application/json"})
    with pytest.raises(ModelError, match="Too fast") as caught:
        read(ServedReply(fault=fault))
    error = caught.value
    assert (error.code, error.retryable, error.retry_after_ms) == (Code.RATE_LIMITED, True, 37_000)
    assert KEY not in str(error) + repr(error)


def test_a_prompt_that_is_too_long_is_a_context_overflow() -> None:
    """Ours: the session can then be compacted."""
    words = "The input token count (1054016) exceeds the maximum number of tokens allowed (1048576)."
    with pytest.raises(ModelError) as caught:
        read(ServedReply(fault=Fault(status=400, message=words)))
    assert (caught.value.code, caught.value.retryable) == (TurnCode.CONTEXT_OVERFLOW, False)


def test_the_key_and_the_base_url_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: the usual variables are read; without a key the error names the variable."""
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ProviderUnconfigured, match="GEMINI_API_KEY"):
        GoogleModel(NEWER)
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    model = GoogleModel(f"models/{NEWER}")
    assert (model.model_id, model.base_url) == (
        f"google:{NEWER}",
        "https://generativelanguage.googleapis.com",
    )
    assert KEY not in repr(model) + repr(vars(model))
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "https://proxy.example.test/gemini")
    assert GoogleModel(NEWER, api_key="k").base_url == "https://proxy.example.test/gemini"
