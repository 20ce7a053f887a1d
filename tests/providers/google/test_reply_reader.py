"""Gemini's stream of chunks: text, thoughts, calls, ends and failures."""

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


def test_text_comes_piece_by_piece_and_whole_at_the_end() -> None:
    """Ours: the reply has the text that was streamed."""
    deltas = read(chunk(text("Hel")), chunk(text("lo")), chunk(text("."), finish="STOP"))
    assert deltas[:3] == [TextArrived("Hel"), TextArrived("lo"), TextArrived(".")]
    assert deltas[3] == ReplyEnded(text="Hello.", model="gemini-3-flash", usage=Usage(calls=1))


def test_the_end_names_the_serving_model_and_the_usage() -> None:
    """Ours: of five buckets, input excludes cached tokens and output includes thoughts."""
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


def test_usage_of_an_earlier_chunk_counts_if_the_last_has_none() -> None:
    """Ours: the reply ends with the finish reason, even if its last chunk has no usage."""
    counted = {"promptTokenCount": 5, "candidatesTokenCount": 2}
    assert ended(chunk(text("a"), usageMetadata=counted), chunk(finish="STOP")).usage == Usage(
        input=5, output=2, calls=1
    )


def test_what_follows_the_end_is_passed_over() -> None:
    """Ours: a reply ends once, even if a token count or a duplicate follows."""
    last = chunk(text("a"), finish="STOP")
    deltas = read(last, last, {"usageMetadata": {"promptTokenCount": 1}})
    assert [type(delta) for delta in deltas] == [TextArrived, ReplyEnded]


def test_calls_come_whole_in_one_chunk_or_in_several() -> None:
    """Ours: a reply may have several calls, whose arguments keep their text."""
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


def test_a_call_without_id_and_arguments_gets_an_id_from_its_place_and_no_arguments() -> None:
    """Ours: the id is the same if the reply is read again, and unique in the session."""
    parts = chunk(call("now"), call("now", None), finish="STOP")
    assert ended(parts).calls == ended(parts).calls
    assert [(made.provider_id, made.arguments) for made in ended(parts).calls] == [
        ("call_7_1", "{}"),
        ("call_7_2", "{}"),
    ]


def test_arguments_keep_every_digit() -> None:
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


def test_a_signature_is_kept_with_the_part_that_it_came_with() -> None:
    """Ours: Gemini 3 refuses a call that comes back without its signature."""
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


def test_a_signed_thought_and_a_part_that_is_only_a_signature_are_kept_as_well() -> None:
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


def test_a_call_in_pieces_is_not_taken_for_a_whole_one() -> None:
    """Ours: only a special endpoint sends calls in pieces, and a retry would not help."""
    piece = {"functionCall": {"name": "order", "partialArgs": [], "willContinue": True}}
    with pytest.raises(ModelError, match="in pieces") as caught:
        read(chunk(piece))
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [("STOP", "end"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("LANGUAGE", "LANGUAGE")],
)
def test_a_finish_reason_becomes_the_ports_word(reason: str, stop_reason: str) -> None:
    """Ours: the port's stop reasons are used, and Google's where the port has none."""
    assert ended(chunk(text("So"), finish=reason)).stop_reason == stop_reason


def test_a_reason_that_is_not_specified_ends_nothing() -> None:
    """Bug: some endpoints send it in every chunk but the last."""
    assert read(chunk(text("a"), finish="FINISH_REASON_UNSPECIFIED")) == [TextArrived("a")]


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"])
def test_a_blocked_reply_says_what_was_blocked_if_it_says_nothing_else(reason: str) -> None:
    """Ours: the user never gets an empty answer."""
    said = f"The reply was blocked: {reason}."
    assert read(chunk(finish=reason))[0] == TextArrived(said)
    assert ended(chunk(finish=reason)).text == said
    assert ended(chunk(text("So far")), chunk(finish=reason)).text == "So far"


def test_calls_of_a_blocked_reply_are_not_made() -> None:
    """Ours: content stopped by a filter is not executed."""
    end = ended(chunk(call("order", {"id": 1}, thoughtSignature="cw==")), chunk(finish="SAFETY"))
    assert end.calls == ()


def test_a_blocked_prompt_is_a_refusal_in_words() -> None:
    """Ours: the text is the vendor's message."""
    deltas = read({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "modelVersion": "g"})
    assert deltas[0] == TextArrived("The prompt was blocked: PROHIBITED_CONTENT.")
    end = deltas[1]
    assert isinstance(end, ReplyEnded)
    assert (end.stop_reason, end.text) == ("refusal", "The prompt was blocked: PROHIBITED_CONTENT.")


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_a_malformed_call_is_worth_another_attempt(reason: str) -> None:
    """Ours: none of such a reply is used."""
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
def test_an_error_in_the_stream_is_a_failure_of_the_call(error: Any, retryable: bool) -> None:
    """Ours: an incomplete reply is discarded, and the vendor says whether to retry."""
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
def test_a_stream_that_makes_no_sense_is_worth_another_attempt(broken: bytes) -> None:
    """Ours: with garbage, a call without a name or a duplicate id, no call runs."""
    with pytest.raises(ModelError, match="is invalid") as caught:
        read(broken)
    assert caught.value.retryable


def test_what_is_not_known_and_not_needed_is_passed_over() -> None:
    """Ours: unknown candidates, parts and fields, nulls, and the end mark of some proxies are ignored."""
    strange = {"executableCode": {"code": "1"}, "thoughtSignature": "cw=="}
    other = {"candidates": [{"index": 1, "content": {"parts": [text("no")]}}]}
    nulls = {"candidates": None, "promptFeedback": None, "usageMetadata": None, "error": None}
    end = ended(chunk(strange), other, nulls, {"x": 1}, b"[DONE]", chunk(text("yes"), finish="STOP", y=[]))
    assert (end.text, end.reasoning) == ("yes", ())
