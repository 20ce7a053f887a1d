"""Reading replies: event sequences as the vendor sends them, and broken ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from standfast.errors import Code, ModelError, TurnCode
from standfast.model.limits import Usage
from standfast.model.message import Reasoning, RequestedCall
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.anthropic.reply_reader import AnthropicReplyReader
from standfast.providers.http.dialect import PreparedRequest, ServerEvent
from standfast.providers.settings import ModelSettings

ORIGIN = "anthropic https://api.anthropic.com claude-opus-5"
PREPARED = PreparedRequest("claude-sonnet-4-5", ModelRequest(messages=[]), ModelSettings(), {}, ORIGIN)
Event = dict[str, Any]


def begin(**usage: Any) -> Event:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5",
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 9, "output_tokens": 1, **usage},
    }
    return {"type": "message_start", "message": message}


def start(index: int, kind: str, **block: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **block}}


def grow(index: int, kind: str, **delta: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}


def stop(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def ending(reason: str, output: int = 7, **usage: Any) -> Event:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output, **usage}}


END: Event = {"type": "message_stop"}
SAID = [start(0, "text", text=""), grow(0, "text_delta", text="Hi"), stop(0)]


def call(index: int, *pieces: str, name: str = "weather") -> list[Event]:
    opened = start(index, "tool_use", id=f"toolu_{index}", name=name, input={})
    return [opened, *(grow(index, "input_json_delta", partial_json=piece) for piece in pieces), stop(index)]


def read(events: Iterable[Event]) -> list[ModelDelta]:
    reader = AnthropicReplyReader(PREPARED)
    found: list[ModelDelta] = []
    for event in events:
        found += reader.feed(ServerEvent(event["type"], json.dumps(event).encode()))
    return found


def ended(events: Iterable[Event]) -> ReplyEnded:
    last = read(events)[-1]
    assert isinstance(last, ReplyEnded)
    return last


def test_text_is_streamed_and_the_reply_ends_with_the_whole_text() -> None:
    """Ours: the end of a reply has the served model, the id and the usage."""
    pieces = [grow(0, "text_delta", text="Hi"), grow(0, "text_delta", text=""), {"type": "ping"}]
    events = [begin(), start(0, "text", text=""), *pieces, grow(0, "text_delta", text=" you"), stop(0)]
    assert read([*events, ending("end_turn"), END]) == [
        TextArrived("Hi"),
        TextArrived(" you"),
        ReplyEnded(
            text="Hi you",
            usage=Usage(input=9, output=7, calls=1),
            model="claude-opus-5",
            stop_reason="end",
            response_id="msg_1",
        ),
    ]


def test_streamed_arguments_are_joined_for_each_call() -> None:
    """Ours: arguments are streamed in pieces; a finished call without any has {}."""
    found = ended([begin(), *SAID, *call(1, '{"city":', ' "Oslo"}'), *call(2), ending("tool_use"), END])
    assert found.calls == (
        RequestedCall(name="weather", arguments='{"city": "Oslo"}', provider_id="toolu_1"),
        RequestedCall(name="weather", arguments="{}", provider_id="toolu_2"),
    )
    assert (found.text, found.stop_reason) == ("Hi", "tool_calls")


def test_thinking_is_kept_with_its_signature() -> None:
    """Ours: thinking goes back unchanged, and names its origin."""
    events = [
        begin(),
        start(0, "thinking", thinking="", signature=""),
        grow(0, "thinking_delta", thinking="Let me"),
        grow(0, "thinking_delta", thinking=" see."),
        grow(0, "signature_delta", signature="c2ln"),
        stop(0),
        start(1, "redacted_thinking", data="ZGF0YQ=="),
        stop(1),
        start(2, "text", text=""),
        grow(2, "text_delta", text="Hi"),
        grow(2, "citations_delta", citation={"type": "char_location"}),
        stop(2),
        ending("end_turn", output_tokens_details={"thinking_tokens": 5}),
        END,
    ]
    found = read(events)
    assert found[:2] == [ReasoningArrived("Let me"), ReasoningArrived(" see.")]
    last = found[-1]
    assert isinstance(last, ReplyEnded)
    assert last.reasoning == (
        Reasoning(origin=ORIGIN, text="Let me see.", opaque={"type": "thinking", "signature": "c2ln"}),
        Reasoning(origin=ORIGIN, opaque={"type": "redacted_thinking", "data": "ZGF0YQ=="}),
    )
    assert last.usage == Usage(input=9, output=7, reasoning=5, calls=1)


def test_thinking_that_was_cut_off_is_kept_but_not_sent_back() -> None:
    """Ours: without its signature the vendor refuses it."""
    events = [begin(), start(0, "thinking", thinking=""), grow(0, "thinking_delta", thinking="Hm")]
    found = ended([*events, stop(0), ending("max_tokens"), END])
    assert found.reasoning == (Reasoning(origin=ORIGIN, text="Hm"),)


def test_usage_is_cumulative_and_cached_tokens_are_counted_separately() -> None:
    """Ours: the last count covers the whole reply; it may repeat or omit the input."""
    opened = begin(cache_read_input_tokens=100, cache_creation_input_tokens=20)
    found = ended([opened, *SAID, ending("end_turn", 30, input_tokens=11, cache_read_input_tokens=None), END])
    assert found.usage == Usage(input=11, cache_read=100, cache_write=20, output=30, calls=1)


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("end_turn", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("stop_sequence", "stop_sequence"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("something_new", "something_new"),
    ],
)
def test_stop_reasons_are_translated_to_the_ports(reason: str, word: str) -> None:
    """Ours: a stop reason that the port does not define is passed on unchanged."""
    assert ended([begin(), *SAID, ending(reason), END]).stop_reason == word


@pytest.mark.parametrize("pieces", [(), ('{"city": "Os',)])
def test_a_call_that_was_cut_off_keeps_the_arguments_received(pieces: tuple[str, ...]) -> None:
    """Ours: no partial call runs; without arguments it has none, not {}."""
    found = ended([begin(), *call(0), *call(1, *pieces), ending("max_tokens"), END])
    assert [given.arguments for given in found.calls] == ["{}", "".join(pieces)]
    assert found.stop_reason == "length"


def test_a_refused_reply_has_the_vendors_explanation_and_no_calls() -> None:
    """Ours: the calls of a reply that a classifier stopped do not run."""
    refused = ending("refusal")
    refused["delta"]["stop_details"] = {"type": "refusal", "category": None, "explanation": "Not this."}
    found = read([begin(), *call(0, "{}"), refused, END])
    assert found[0] == TextArrived("Not this.")
    assert isinstance(found[1], ReplyEnded)
    assert (found[1].text, found[1].calls, found[1].stop_reason) == ("Not this.", (), "refusal")


def test_arguments_may_arrive_with_the_start_of_the_block() -> None:
    """Ours: some servers with this format do not stream arguments."""
    opened = start(0, "tool_use", id="toolu_1", name="weather", input={"city": "Oslo"})
    found = ended([begin(), opened, stop(0), ending("tool_use"), END])
    assert found.calls[0].arguments == '{"city":"Oslo"}'


def test_unknown_events_blocks_and_deltas_are_ignored() -> None:
    """Ours: the vendor adds events, blocks and deltas within a version."""
    new = [
        {"type": "weather_report", "index": "three"},
        start(1, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        grow(1, "input_json_delta", partial_json='{"query": "x"}'),
        grow(1, "colour_delta", colour="red"),
        stop(1),
    ]
    assert ended([begin(), *SAID, *new, ending("end_turn"), END]).text == "Hi"


@pytest.mark.parametrize(
    "events",
    [
        [begin(), begin()],
        [*SAID],
        [begin(), SAID[0], SAID[0]],
        [begin(), grow(0, "text_delta", text="x")],
        [begin(), *call(0), grow(0, "input_json_delta", partial_json="x")],
        [begin(), SAID[0], grow(0, "input_json_delta", partial_json="x")],
        [begin(), stop(3)],
        [begin(), *SAID, END],
        [ending("end_turn"), END],
        [begin(), *call(0, "{}")[:-1], ending("tool_use"), END],
        [begin(), *SAID, ending("tool_use"), END],
        [begin(), {"type": "content_block_delta", "index": 0, "delta": "x"}],
    ],
    ids=str,
)
def test_lost_and_repeated_events_are_a_retryable_failure(events: list[Event]) -> None:
    """Ours: an event that would corrupt the reply fails it."""
    with pytest.raises(ModelError, match="is invalid") as failed:
        read(events)
    assert failed.value.retryable


def test_an_event_that_is_not_json_is_a_retryable_failure() -> None:
    """Ours: half an event cannot be used."""
    with pytest.raises(ModelError, match="not JSON") as failed:
        AnthropicReplyReader(PREPARED).feed(ServerEvent("message_start", b'{"type": "mess'))
    assert failed.value.retryable


def test_a_repeated_stop_event_is_harmless() -> None:
    """Ours: duplicates are tolerated where they corrupt nothing."""
    assert ended([begin(), *SAID, stop(0), ending("end_turn"), ending("end_turn"), END]).text == "Hi"


@pytest.mark.parametrize(
    ("kind", "retryable", "code"),
    [
        ("overloaded_error", True, TurnCode.PROVIDER_ERROR),
        ("rate_limit_error", True, Code.RATE_LIMITED),
        ("api_error", True, TurnCode.PROVIDER_ERROR),
        ("invalid_request_error", False, TurnCode.PROVIDER_ERROR),
        ("new_error", True, TurnCode.PROVIDER_ERROR),
    ],
)
def test_an_error_in_the_middle_of_a_stream_fails_the_reply(kind: str, retryable: bool, code: str) -> None:
    """Ours: the error has the vendor's message, and the vendor's error type decides whether to retry."""
    error = {"type": "error", "error": {"type": kind, "message": "Too much."}, "request_id": "req_1"}
    with pytest.raises(ModelError) as failed:
        read([begin(), *SAID, error])
    assert failed.value.message == f"{kind}: Too much. (request req_1)"
    assert (failed.value.retryable, failed.value.code) == (retryable, code)
