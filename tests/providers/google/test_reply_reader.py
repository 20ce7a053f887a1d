"""Gemini's stream of chunks: text, thoughts, calls, finish reasons and failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standfast.errors import ModelError
from standfast.model.limits import Usage
from standfast.model.message import RequestedCall
from standfast.ports.model_provider import (
    ModelDelta,
    ModelRequest,
    ReasoningArrived,
    ReplyEnded,
    TextArrived,
)
from standfast.providers.google.model import GoogleDialect
from standfast.providers.http.dialect import PreparedRequest, ServerEvent
from standfast.providers.settings import ModelSettings

ORIGIN = "google https://example.test gemini-3-flash"


def chunk(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **more}


def read(*chunks: dict[str, Any] | bytes) -> list[ModelDelta]:
    asked = PreparedRequest(
        "gemini-3-flash", ModelRequest(messages=[], call_number=7), ModelSettings(), {}, ORIGIN
    )
    reader = GoogleDialect().reader(asked)
    datas = [entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in chunks]
    return [delta for data in datas for delta in reader.feed(ServerEvent("", data))]


def ended(*chunks: dict[str, Any] | bytes) -> ReplyEnded:
    last = read(*chunks)[-1]
    assert isinstance(last, ReplyEnded)
    return last


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"text": words, **more}


def call(name: str, args: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    made = {"name": name} if args is None else {"name": name, "args": args}
    call_id = more.pop("id", None)
    return {"functionCall": made if call_id is None else {**made, "id": call_id}, **more}


def test_text_is_streamed_and_the_reply_ends_with_the_whole_text() -> None:
    """Ours: the reply has the text that was streamed."""
    deltas = read(chunk(text("Hel")), chunk(text("lo")), chunk(text("."), finish="STOP"))
    assert deltas[:3] == [TextArrived("Hel"), TextArrived("lo"), TextArrived(".")]
    assert deltas[3] == ReplyEnded(text="Hello.", model="gemini-3-flash", usage=Usage(calls=1))


def test_the_end_has_the_served_model_and_the_usage() -> None:
    """Ours: usage has five buckets; input excludes cached tokens and output includes thoughts."""
    counted = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 30,
        "totalTokenCount": 137,
    }
    end = ended(
        chunk(text("a"), usageMetadata={"promptTokenCount": 100, "candidatesTokenCount": 1}),
        chunk(
            text("b"),
            finish="STOP",
            usageMetadata=counted,
            modelVersion="gemini-3-flash-002",
            responseId="r1",
        ),
    )
    assert end.usage == Usage(input=40, cache_read=60, output=37, reasoning=30, calls=1)
    assert (end.model, end.response_id, end.stop_reason) == ("gemini-3-flash-002", "r1", "end")


def test_usage_from_an_earlier_chunk_is_used_if_the_last_chunk_has_none() -> None:
    """Ours: the finish reason ends the reply, even if its chunk has no usage."""
    counted = {"promptTokenCount": 5, "candidatesTokenCount": 2}
    assert ended(chunk(text("a"), usageMetadata=counted), chunk(finish="STOP")).usage == Usage(
        input=5, output=2, calls=1
    )


def test_chunks_after_the_end_are_ignored() -> None:
    """Ours: a reply ends once, even if a token count or a duplicate follows."""
    last = chunk(text("a"), finish="STOP")
    deltas = read(last, last, {"usageMetadata": {"promptTokenCount": 1}})
    assert [type(delta) for delta in deltas] == [TextArrived, ReplyEnded]


def test_calls_may_arrive_in_one_chunk_or_in_several() -> None:
    """Ours: a reply may have several calls, whose arguments keep their original text."""
    end = ended(
        chunk(call("order", {"id": 12}, id="fc-1"), call("order", {"id": 13}, id="fc-2")),
        chunk(call("refund", {"why": "läuft"}, id="fc-3"), finish="STOP"),
    )
    assert end.stop_reason == "tool_calls"
    assert end.calls == (
        RequestedCall(name="order", arguments='{"id": 12}', provider_id="fc-1"),
        RequestedCall(name="order", arguments='{"id": 13}', provider_id="fc-2"),
        RequestedCall(name="refund", arguments='{"why": "l\\u00e4uft"}', provider_id="fc-3"),
    )


def test_a_call_without_an_id_or_arguments_gets_an_id_from_its_position_and_an_empty_object() -> None:
    """Ours: the id is the same if the reply is read again, and unique within the session."""
    parts = chunk(call("now"), call("now", None), finish="STOP")
    assert ended(parts).calls == ended(parts).calls
    assert [(made.provider_id, made.arguments) for made in ended(parts).calls] == [
        ("call_7_1", "{}"),
        ("call_7_2", "{}"),
    ]


def test_numbers_in_arguments_keep_every_digit() -> None:
    """Ours: numbers are not parsed and written again."""
    raw = b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"n":1.10,"m":1e400}}}]},'
    assert ended(raw + b'"finishReason":"STOP"}]}').calls[0].arguments == '{"n":1.10,"m":1e400}'


def test_thoughts_stream_as_reasoning() -> None:
    """Ours: thoughts are not part of the text."""
    deltas = read(
        chunk(text("Let me", thought=True)),
        chunk(text(" see.", thought=True)),
        chunk(text("4"), finish="STOP"),
    )
    assert deltas[:3] == [ReasoningArrived("Let me"), ReasoningArrived(" see."), TextArrived("4")]
    end = deltas[-1]
    assert isinstance(end, ReplyEnded)
    assert [(kept.origin, kept.text, kept.opaque) for kept in end.reasoning] == [
        (ORIGIN, "Let me see.", None)
    ]


def test_a_signature_is_kept_with_its_part() -> None:
    """Ours: Gemini 3 refuses a call that is sent back without its signature."""
    end = ended(
        chunk(text("I look"), text(" it up.")),
        chunk(call("order", {"id": 1}, id="a", thoughtSignature="c2lnMQ==")),
        chunk(call("order", {"id": 2}, id="b")),
        chunk(text("", thoughtSignature="c2lnMg=="), finish="STOP"),
    )
    assert end.text == "I look it up."
    assert end.reasoning[0].opaque["parts"] == [
        {"of": "text", "end": 13},
        {"of": "call", "call": "a", "signature": "c2lnMQ=="},
        {"of": "call", "call": "b"},
        {"of": "text", "start": 13, "end": 13, "signature": "c2lnMg=="},
    ]


def test_signed_thoughts_and_signature_only_parts_are_kept_too() -> None:
    """Ours: Gemini signs the first or the last part of a reply, whatever that is."""
    end = ended(
        chunk(text("Hm", thought=True), text("m.", thought=True, thoughtSignature="dA==")),
        chunk(text("Yes")),
        chunk({"thoughtSignature": "ZQ=="}, finish="STOP"),
    )
    assert end.reasoning[0].text == "Hmm."
    assert end.reasoning[0].opaque["parts"] == [
        {"of": "thought", "start": 2, "end": 4, "signature": "dA=="},
        {"of": "text", "end": 3},
        {"of": "text", "start": 3, "end": 3, "signature": "ZQ=="},
    ]


def test_a_partial_call_is_a_permanent_failure() -> None:
    """Ours: only a special endpoint sends calls in pieces, and a retry would not help."""
    piece = {"functionCall": {"name": "order", "partialArgs": [], "willContinue": True}}
    with pytest.raises(ModelError, match="in pieces") as caught:
        read(chunk(piece))
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [("STOP", "end"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("LANGUAGE", "LANGUAGE")],
)
def test_finish_reasons_are_translated_to_the_ports_stop_reasons(reason: str, stop_reason: str) -> None:
    """Ours: the port's stop reasons are used, and Google's where the port has none."""
    assert ended(chunk(text("So"), finish=reason)).stop_reason == stop_reason


def test_an_unspecified_finish_reason_does_not_end_the_reply() -> None:
    """Bug: some endpoints send it in every chunk but the last."""
    assert read(chunk(text("a"), finish="FINISH_REASON_UNSPECIFIED")) == [TextArrived("a")]


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"])
def test_a_blocked_reply_without_text_names_the_reason(reason: str) -> None:
    """Ours: the user never gets an empty answer."""
    said = f"The reply was blocked: {reason}."
    assert read(chunk(finish=reason))[0] == TextArrived(said)
    assert ended(chunk(finish=reason)).text == said
    assert ended(chunk(text("So far")), chunk(finish=reason)).text == "So far"


def test_calls_of_a_blocked_reply_do_not_run() -> None:
    """Ours: content stopped by a filter is not executed."""
    end = ended(chunk(call("order", {"id": 1}, thoughtSignature="cw==")), chunk(finish="SAFETY"))
    assert end.calls == ()


def test_a_blocked_prompt_is_a_refusal_with_text() -> None:
    """Ours: the text names the vendor's reason."""
    deltas = read({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "modelVersion": "g"})
    assert deltas[0] == TextArrived("The prompt was blocked: PROHIBITED_CONTENT.")
    end = deltas[1]
    assert isinstance(end, ReplyEnded)
    assert (end.stop_reason, end.text) == ("refusal", "The prompt was blocked: PROHIBITED_CONTENT.")


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_a_malformed_call_is_a_retryable_failure(reason: str) -> None:
    """Ours: no part of such a reply is used."""
    with pytest.raises(ModelError, match=reason) as caught:
        read(chunk(text("Let me")), chunk(finish=reason))
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ({"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}, True),
        ({"code": 500, "message": "An internal error has occurred.", "status": "INTERNAL"}, True),
        ({"code": 400, "message": "Bad.", "status": "INVALID_ARGUMENT"}, False),
        ("out of order", True),
    ],
)
def test_an_error_in_the_stream_fails_the_call(error: Any, retryable: bool) -> None:
    """Ours: an incomplete reply is discarded, and the vendor's error decides whether to retry."""
    said = error if isinstance(error, str) else error["message"]
    with pytest.raises(ModelError, match=said) as caught:
        read(chunk(text("Let me")), {"error": error})
    assert caught.value.retryable is retryable


@pytest.mark.parametrize(
    "broken",
    [
        b'{"candidates": [{"content"',
        b'{"candidates": 4}',
        b"\xff\xfe",
        json.dumps(chunk({"functionCall": {"args": {}}})).encode(),
        json.dumps(chunk(call("f", {}, id="a"), call("f", {}, id="a"))).encode(),
    ],
)
def test_an_invalid_chunk_is_a_retryable_failure(broken: bytes) -> None:
    """Ours: after garbage, a call without a name or a duplicate id, no call runs."""
    with pytest.raises(ModelError, match="is invalid") as caught:
        read(broken)
    assert caught.value.retryable


def test_unknown_content_is_ignored() -> None:
    """Ours: unknown candidates, parts and fields, nulls, and the end marker of some proxies are ignored."""
    strange = {"executableCode": {"code": "1"}, "thoughtSignature": "cw=="}
    other = {"candidates": [{"index": 1, "content": {"parts": [text("no")]}}]}
    nulls = {"candidates": None, "promptFeedback": None, "usageMetadata": None, "error": None}
    end = ended(chunk(strange), other, nulls, {"x": 1}, b"[DONE]", chunk(text("yes"), finish="STOP", y=[]))
    assert (end.text, end.reasoning) == ("yes", ())
