"""Chunks of chat completions, as servers really send them."""

from __future__ import annotations

from typing import Any

import pytest
from chat_values import DONE, ORIGIN, asked, call_chunk, chunk, event, read, usage_chunk

from standfast.errors import ModelError, TurnCode
from standfast.model.limits import Usage
from standfast.model.message import Reasoning, RequestedCall
from standfast.ports.model_provider import ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.http.dialect import ServerEvent
from standfast.providers.openai_compatible.reply_reader import OpenAICompatibleReplyReader, ReplyFinished

STOP = chunk("stop")
CALLS = chunk("tool_calls")


def calls_of(*events: ServerEvent) -> list[tuple[str, str, str]]:
    """Return the calls of a reply that has these events and then ends."""
    return [(one.name, one.arguments, one.provider_id) for one in read(*events, CALLS, DONE)[1].calls]


def refused(*events: ServerEvent) -> ModelError:
    """Return the error that the events end with."""
    with pytest.raises(ModelError) as caught:
        read(*events)
    return caught.value


# Text and ends


def test_text_is_streamed() -> None:
    """Ours: OpenAI streams text in this form."""
    deltas, reply = read(
        chunk(role="assistant", content=""),
        chunk(content="Hel"),
        chunk(content="lo"),
        STOP,
        usage_chunk(),
        DONE,
    )
    assert deltas == [TextArrived("Hel"), TextArrived("lo")]
    assert reply == ReplyEnded(
        text="Hello",
        usage=Usage(input=10, output=5, calls=1),
        model="served",
        stop_reason="end",
        response_id="chatcmpl-1",
    )


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([STOP, DONE], id="no-usage"),
        pytest.param([STOP, usage_chunk()], id="usage-and-no-done"),
        pytest.param(
            [chunk("stop", usage={"prompt_tokens": 10, "completion_tokens": 5})], id="usage-with-the-end"
        ),
        pytest.param([usage_chunk(), STOP, DONE], id="usage-before-the-end"),
        pytest.param([STOP, chunk(role="assistant", content="", usage={"prompt_tokens": 10})], id="router"),
        pytest.param([STOP, STOP, DONE], id="twice"),
        pytest.param([chunk("stop", usage={"prompt_tokens": 0, "completion_tokens": 0}), DONE], id="zeros"),
        pytest.param([chunk("", content=""), STOP, DONE], id="empty-reason"),
    ],
)
def test_a_reply_ends_wherever_its_usage_is_sent(ends: list[ServerEvent]) -> None:
    """Ours: the usage may be in the last chunk, after it, in every chunk, or missing."""
    _, reply = read(chunk(content="x"), *ends)
    assert (reply.text, reply.stop_reason, reply.usage.calls) == ("x", "end", 1)


def test_the_last_usage_counts_if_every_chunk_has_one() -> None:
    """Ours: some servers send running totals."""
    used = [{"prompt_tokens": 7, "completion_tokens": n} for n in (1, 2)]
    _, reply = read(chunk(content="a", usage=used[0]), chunk("stop", content="b", usage=used[1]))
    assert reply.usage == Usage(input=7, output=2, calls=1)


def test_a_finished_reply_is_available_without_waiting_for_done() -> None:
    """Ours: without `[DONE]`, the end of the stream ends the reply."""
    reader = OpenAICompatibleReplyReader(asked())
    reader.feed(chunk(content="x"))
    (finished,) = reader.feed(STOP)
    assert isinstance(finished, ReplyFinished)
    (reply,) = finished.end()
    assert isinstance(reply, ReplyEnded)
    assert reply.text == "x"
    assert list(finished.end()) == []
    assert list(reader.feed(DONE)) == []


def test_done_without_a_finish_reason_is_a_failure() -> None:
    """Ours: failing servers also send [DONE]; no partial reply is used."""
    assert refused(chunk(content="x"), DONE).retryable
    assert refused(call_chunk(id="a", name="f", arguments="{}"), DONE).retryable


@pytest.mark.parametrize(
    "late", [chunk(content="more"), call_chunk(name="f"), chunk(function_call={"name": "f"})]
)
def test_content_after_the_finish_reason_is_a_failure(late: ServerEvent) -> None:
    """Ours: events in the wrong order fail the reply."""
    reader = OpenAICompatibleReplyReader(asked())
    (finished,) = reader.feed(STOP)
    with pytest.raises(ModelError):
        reader.feed(late)
    assert isinstance(finished, ReplyFinished)
    with pytest.raises(ModelError) as caught:
        finished.end()
    assert caught.value.retryable


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"choices": 5}', b"\xff", b'{"choices":[{"delta":{"content":7}}]}']
)
def test_a_malformed_event_is_a_failure(data: bytes) -> None:
    """Ours: none of the reply is used."""
    assert refused(chunk(content="x"), event(data)).retryable


def test_unused_fields_are_ignored() -> None:
    """Ours: unknown fields, other choices and empty keep-alives are ignored."""
    other = event({"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]})
    odd = event({"choices": [], "prompt_filter_results": [1], "object": "", "timings": {"a": 1}})
    deltas, reply = read(event(b""), odd, other, chunk(content="x"), STOP, DONE)
    assert deltas == [TextArrived("x")]
    assert reply.text == "x"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", "end"),
        ("eos_token", "end"),
        ("length", "length"),
        ("model_length", "length"),
        ("content_filter", "content_filter"),
        ("something_new", "something_new"),
    ],
)
def test_finish_reasons_are_translated_to_the_ports_stop_reasons(said: str, reason: str) -> None:
    """Ours: stop reasons are the same for all providers."""
    assert read(chunk(content="x"), chunk(said), DONE)[1].stop_reason == reason


@pytest.mark.parametrize("said", ["error", "abort", "insufficient_system_resource"])
def test_an_aborted_reply_is_a_failure(said: str) -> None:
    """Ours: OpenRouter, vLLM and DeepSeek end a failed reply with a special finish reason."""
    assert refused(chunk(content="x"), chunk(said)).retryable


def test_a_stop_sequence_is_reported_if_the_server_names_it() -> None:
    """Ours: vLLM names the stop sequence; a stop token is not one."""
    for given, reason in (("END", "stop_sequence"), (151645, "end"), (None, "end")):
        last = event({"choices": [{"delta": {}, "finish_reason": "stop", "stop_reason": given}]})
        assert read(chunk(content="x"), last, DONE, settings={"stop": ["END"]})[1].stop_reason == reason


def test_a_refusal_is_text_with_a_stop_reason() -> None:
    """Ours: the vendor's message is the text."""
    deltas, reply = read(chunk(refusal="I can"), chunk(refusal="not."), STOP, DONE)
    assert deltas == [TextArrived("I can"), TextArrived("not.")]
    assert (reply.text, reply.stop_reason) == ("I cannot.", "refusal")


def test_content_may_be_a_list_of_parts() -> None:
    """Ours: Mistral sends thoughts and text in this form."""
    parts: list[Any] = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "so"},
        "odd",
        {"type": "reference"},
    ]
    deltas, reply = read(chunk(content=parts), STOP, DONE)
    assert deltas == [ReasoningArrived("hm"), TextArrived("so")]
    assert reply.text == "so"
    assert reply.reasoning == (Reasoning(origin=ORIGIN, text="hm", opaque={"field": "thinking"}),)


# Calls


def test_calls_are_streamed() -> None:
    """Ours: OpenAI streams calls in this form, one after the other."""
    found = calls_of(
        call_chunk(0, "call_a", name="look", arguments=""),
        call_chunk(0, arguments='{"at"'),
        call_chunk(0, arguments=':"sky"}'),
        call_chunk(1, "call_b", name="leap", arguments=""),
        call_chunk(1, arguments="{}"),
    )
    assert found == [("look", '{"at":"sky"}', "call_a"), ("leap", "{}", "call_b")]


def test_fragments_of_two_calls_may_be_interleaved() -> None:
    """Ours: the index identifies the call."""
    found = calls_of(
        call_chunk(0, "a", name="f", arguments='{"x":'),
        call_chunk(1, "b", name="g", arguments='{"y":'),
        call_chunk(0, arguments="1}"),
        call_chunk(1, arguments="2}"),
    )
    assert found == [("f", '{"x":1}', "a"), ("g", '{"y":2}', "b")]


@pytest.mark.parametrize("index", [None, 0])
def test_whole_calls_may_arrive_together_without_distinct_indexes(index: int | None) -> None:
    """Ours: Ollama sends whole calls, without an index or all with 0."""
    found = calls_of(
        call_chunk(index, "a", name="f", arguments='{"x":1}'),
        call_chunk(index, "b", name="f", arguments='{"x":2}'),
        call_chunk(index, "c", name="g", arguments=None),
    )
    assert found == [("f", '{"x":1}', "a"), ("f", '{"x":2}', "b"), ("g", "{}", "c")]


@pytest.mark.parametrize("index", [None, 0])
def test_calls_without_ids_get_generated_ones(index: int | None) -> None:
    """Ours: a generated id contains the call's number in the session, so that it is unique."""
    events = [
        call_chunk(index, name="f", arguments='{"x":1}'),
        call_chunk(index, name="f", arguments='{"x":1}'),
    ]
    _, reply = read(*events, STOP, DONE, call_number=3)
    assert [one.provider_id for one in reply.calls] == ["call_3_1", "call_3_2"]
    assert reply.stop_reason == "tool_calls"


def test_a_duplicate_id_is_replaced() -> None:
    """Ours: results are matched to calls by id."""
    events = [call_chunk(0, "x", name="f", arguments="{}"), call_chunk(1, "x", name="g", arguments="{}")]
    assert [one[2] for one in calls_of(*events)] == ["x", "call_1_2"]


def test_the_id_and_the_name_may_be_repeated_in_every_fragment() -> None:
    """Ours: some servers repeat them."""
    pieces = ['{"x"', ":", "{}", "}"]
    assert calls_of(*(call_chunk(0, "a", name="f", arguments=p) for p in pieces)) == [("f", '{"x":{}}', "a")]
    assert calls_of(*(call_chunk(None, "a", name="f", arguments=p) for p in pieces)) == [
        ("f", '{"x":{}}', "a")
    ]
    assert calls_of(*(call_chunk(0, name="f", arguments=p) for p in pieces)) == [
        ("f", '{"x":{}}', "call_1_1")
    ]


def test_fragments_without_an_index_or_a_name_belong_to_the_last_call() -> None:
    """Ours: they cannot belong to any other call."""
    found = calls_of(call_chunk(None, "a", name="f", arguments='{"x"'), call_chunk(None, arguments=":1}"))
    assert found == [("f", '{"x":1}', "a")]


def test_arguments_may_be_null_empty_or_an_object() -> None:
    """Ours: a call without arguments has `{}`, and an object is encoded."""
    assert calls_of(call_chunk(id="a", name="f", arguments=None)) == [("f", "{}", "a")]
    assert calls_of(call_chunk(id="a", name="f", arguments="")) == [("f", "{}", "a")]
    assert calls_of(call_chunk(id="a", name="f")) == [("f", "{}", "a")]
    assert calls_of(call_chunk(id="a", name="f", arguments={"x": 1})) == [("f", '{"x":1}', "a")]


def test_a_legacy_function_call_is_a_call() -> None:
    """Ours: some servers send `function_call` and its finish reason."""
    events = [
        chunk(function_call={"name": "f", "arguments": '{"x"'}),
        chunk(function_call={"arguments": ":1}"}),
    ]
    _, reply = read(*events, chunk("function_call"), DONE)
    assert reply.calls == (RequestedCall(name="f", arguments='{"x":1}', provider_id="call_1_1"),)
    assert reply.stop_reason == "tool_calls"


def test_a_reply_with_calls_may_finish_with_stop() -> None:
    """Ours: several servers always send `stop`."""
    assert read(call_chunk(id="a", name="f", arguments="{}"), STOP, DONE)[1].stop_reason == "tool_calls"


@pytest.mark.parametrize("cut", ["", '{"x": "half'])
def test_a_call_that_was_cut_off_keeps_the_arguments_received(cut: str) -> None:
    """Ours: no partial call runs; its arguments are not JSON, and never `{}`."""
    whole = call_chunk(0, "a", name="f", arguments="")
    _, reply = read(whole, call_chunk(1, "b", name="g", arguments=cut), chunk("length"), DONE)
    assert [one.arguments for one in reply.calls] == ["{}", cut]
    assert reply.stop_reason == "length"


def test_a_call_that_was_cut_off_before_its_name_is_dropped() -> None:
    """Ours: without a name there is nothing to report."""
    assert read(chunk(content="x"), call_chunk(0, "a"), chunk("length"), DONE)[1].calls == ()


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([call_chunk(0, arguments='{"x":1}')], id="never-started"),
        pytest.param(
            [call_chunk(0, arguments="{"), call_chunk(0, "a", name="f", arguments="}")], id="started-late"
        ),
        pytest.param(
            [call_chunk(0, "a", name="f", arguments="{"), call_chunk(0, "b", name="f")], id="two-starts"
        ),
        pytest.param([call_chunk(0, "a", name="f"), call_chunk(0, "a", name="g")], id="two-names"),
        pytest.param([call_chunk(0, "a", name="f", arguments='{"x":1}')] * 2, id="whole-call-twice"),
        pytest.param(
            [call_chunk(0, "a", name="f"), *[call_chunk(0, arguments='{"x":1}')] * 2], id="piece-twice"
        ),
    ],
)
def test_fragments_that_match_no_call_are_a_failure(events: list[ServerEvent]) -> None:
    """Ours: duplicated and out-of-order events never make a call that the model did not make."""
    error = refused(*events, CALLS, DONE)
    assert error.retryable
    assert error.code == TurnCode.PROVIDER_ERROR


# Reasoning


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_streamed_and_kept(field: str) -> None:
    """Ours: DeepSeek and vLLM name the field `reasoning_content`, OpenRouter, Groq and Ollama `reasoning`."""
    deltas, reply = read(
        chunk(**{field: "h"}), chunk(**{field: "m", "content": None}), chunk(content="so"), STOP, DONE
    )
    assert deltas == [ReasoningArrived("h"), ReasoningArrived("m"), TextArrived("so")]
    assert reply.reasoning == (Reasoning(origin=ORIGIN, text="hm", opaque={"field": field}),)


def test_reasoning_in_two_fields_is_reported_once() -> None:
    """Ours: vLLM currently sends both fields."""
    deltas, reply = read(chunk(reasoning="hm", reasoning_content="hm"), STOP, DONE)
    assert deltas == [ReasoningArrived("hm")]
    assert reply.reasoning[0].text == "hm"


def test_empty_reasoning_is_kept() -> None:
    """Ours: DeepSeek requires the field back with every call, even if it is empty."""
    _, reply = read(chunk(reasoning_content=""), call_chunk(id="a", name="f"), CALLS, DONE)
    assert reply.reasoning == (Reasoning(origin=ORIGIN, opaque={"field": "reasoning_content"}),)


def test_reasoning_details_are_joined_and_kept() -> None:
    """Ours: OpenRouter streams details in pieces, and requires them back joined."""
    kind = {"type": "reasoning.text", "format": "f1", "index": 0}
    deltas, reply = read(
        chunk(reasoning="h", reasoning_details=[{**kind, "text": "h"}]),
        chunk(reasoning="m", reasoning_details=[{**kind, "text": "m", "signature": None}]),
        chunk(reasoning_details=[{**kind, "text": None, "signature": "s1"}]),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "e1", "index": 1}]),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "e2", "index": 2}]),
        chunk(content="so"),
        STOP,
        DONE,
    )
    assert deltas == [ReasoningArrived("h"), ReasoningArrived("m"), TextArrived("so")]
    assert reply.reasoning[0].text == "hm"
    assert reply.reasoning[0].opaque == {
        "reasoning_details": [
            {**kind, "text": "hm", "signature": "s1"},
            {"type": "reasoning.encrypted", "data": "e1", "index": 1},
            {"type": "reasoning.encrypted", "data": "e2", "index": 2},
        ]
    }


def test_text_found_only_in_reasoning_details_is_streamed() -> None:
    """Ours: some models send only a summary."""
    detail = {"type": "reasoning.summary", "summary": "in short", "index": 0}
    assert read(chunk(reasoning_details=[detail]), STOP, DONE)[0] == [ReasoningArrived("in short")]


# Usage


@pytest.mark.parametrize(
    ("counted", "usage"),
    [
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(input=30, cache_read=60, cache_write=10, output=50, reasoning=20, calls=1),
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 5, "prompt_cache_hit_tokens": 64},
            Usage(input=36, cache_read=64, output=5, calls=1),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 35,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(input=10, output=25, reasoning=20, calls=1),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None},
            Usage(input=5, calls=1),
        ),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(cache_read=5, calls=1)),
    ],
)
def test_tokens_are_counted_in_five_buckets(counted: dict[str, Any], usage: Usage) -> None:
    """Ours: input excludes cached tokens, and output includes reasoning, however a server counts."""
    assert read(STOP, event({"choices": [], "usage": counted}), DONE)[1].usage == usage


def test_groqs_own_usage_field_is_read() -> None:
    """Ours: Groq sends `x_groq.usage`."""
    last = event(
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": {"prompt_tokens": 3}}}
    )
    assert read(last)[1].usage == Usage(input=3, calls=1)


# Errors


@pytest.mark.parametrize(
    ("value", "words", "retryable"),
    [
        (
            {"error": {"code": 502, "message": "Provider returned error"}, "choices": []},
            "Provider returned error",
            True,
        ),
        ({"error": {"code": 429, "message": "slow down"}}, "slow down", True),
        ({"error": {"code": 400, "message": "bad"}}, "bad", False),
        ({"error": {"message": "over", "type": "overloaded_error"}}, "over", True),
        ({"error": {"message": "no", "type": "invalid_request_error"}}, "no", False),
        ({"error": {"message": "pay", "code": "insufficient_quota"}}, "pay", False),
        ({"error": "engine died"}, "engine died", True),
        ({"object": "error", "message": "cuda", "type": "InternalServerError", "code": 500}, "cuda", True),
    ],
)
def test_an_error_inside_the_stream_fails_the_reply(value: Any, words: str, retryable: bool) -> None:
    """Ours: OpenRouter, vLLM and others may fail in the middle of a stream."""
    error = refused(chunk(content="x"), event(value))
    assert words in str(error)
    assert error.retryable is retryable


def test_an_event_named_error_fails_the_reply() -> None:
    """Ours: some servers name the event `error`, and its data may not be JSON."""
    assert "boom" in str(refused(event({"message": "boom"}, "error")))
    assert "boom" in str(refused(event(b"boom", "error")))


def test_a_context_overflow_inside_the_stream_is_recognized() -> None:
    """Ours: compaction can then help."""
    error = refused(event({"error": {"message": "maximum context length is 8192 tokens", "code": 400}}))
    assert (error.code, error.retryable) == (TurnCode.CONTEXT_OVERFLOW, False)
