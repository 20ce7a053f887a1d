"""Event streams of the Responses API, complete and broken."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from standfast.errors import ModelError
from standfast.model.limits import Usage
from standfast.model.message import RequestedCall
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.http.dialect import PreparedRequest, ServerEvent
from standfast.providers.openai.reply_reader import OpenAIReplyReader
from standfast.providers.settings import ModelSettings

ORIGIN = "openai https://api.openai.com/v1 gpt-5.2"
Event = dict[str, Any]


def prepared(model: str, origin: str) -> PreparedRequest:
    return PreparedRequest(model, ModelRequest(messages=[]), ModelSettings(), {}, origin)


def event(kind: str, **fields: Any) -> Event:
    return {"type": f"response.{kind}", **fields}


def created() -> Event:
    return event("created", response={"id": "resp_1", "model": "gpt-5.2-2026", "output": []})


def added(index: int, kind: str, **fields: Any) -> Event:
    return event("output_item.added", output_index=index, item={"type": kind, "id": f"i{index}", **fields})


def done(index: int, kind: str, **fields: Any) -> Event:
    return event("output_item.done", output_index=index, item={"type": kind, "id": f"i{index}", **fields})


def text_delta(index: int, text: str) -> Event:
    return event("output_text.delta", output_index=index, content_index=0, item_id=f"i{index}", delta=text)


def words(text: str, **fields: Any) -> Event:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}], **fields}


def message(index: int, *pieces: str, **fields: Any) -> list[Event]:
    deltas = [text_delta(index, piece) for piece in pieces]
    return [added(index, "message"), *deltas, done(index, "message", **words("".join(pieces), **fields))]


def arguments_delta(index: int, text: str) -> Event:
    return event("function_call_arguments.delta", output_index=index, item_id=f"i{index}", delta=text)


def call(
    index: int, call_id: str, *pieces: str, name: str = "weather", status: str = "completed"
) -> list[Event]:
    whole = {"call_id": call_id, "name": name, "arguments": "".join(pieces), "status": status}
    return [
        added(index, "function_call", call_id=call_id, name=name, arguments=""),
        *(arguments_delta(index, piece) for piece in pieces),
        event("function_call_arguments.done", output_index=index, arguments="".join(pieces)),
        done(index, "function_call", **whole),
    ]


def thought(index: int, *summaries: str, secret: str | None = "AAA") -> list[Event]:
    deltas = [
        event("reasoning_summary_text.delta", output_index=index, summary_index=number, delta=summary)
        for number, summary in enumerate(summaries)
    ]
    summary = [{"type": "summary_text", "text": text} for text in summaries]
    return [
        added(index, "reasoning", summary=[]),
        *deltas,
        done(index, "reasoning", summary=summary, encrypted_content=secret),
    ]


USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 120,
}


def completed(*output: Event) -> Event:
    return event(
        "completed",
        response={
            "id": "resp_1",
            "model": "gpt-5.2-2026",
            "status": "completed",
            "output": list(output),
            "usage": USAGE,
        },
    )


def incomplete(reason: str) -> Event:
    return event(
        "incomplete",
        response={"id": "resp_1", "status": "incomplete", "incomplete_details": {"reason": reason}},
    )


def numbered(events: Iterable[Event]) -> list[Event]:
    return [{**each, "sequence_number": number} for number, each in enumerate(events)]


def read(*events: Event | list[Event], named: bool = True) -> list[ModelDelta]:
    reader = OpenAIReplyReader(prepared("gpt-5.2", ORIGIN))
    flat = [one for each in events for one in (each if isinstance(each, list) else [each])]
    found: list[ModelDelta] = []
    for each in flat:
        found += reader.feed(ServerEvent(each["type"] if named else "", json.dumps(each).encode()))
    return found


def ended(*events: Event | list[Event]) -> ReplyEnded:
    last = read(*events)[-1]
    assert isinstance(last, ReplyEnded)
    return last


def broken(*events: Event | list[Event]) -> str:
    with pytest.raises(ModelError) as caught:
        read(*events)
    assert caught.value.retryable
    return caught.value.message


def same_or_refused(events: list[Event], whole: ReplyEnded) -> bool:
    """Return whether the stream yields the same reply or fails with a retryable error."""
    try:
        found = read(events)
    except ModelError as error:
        return error.retryable
    last = found[-1] if found else None
    if not isinstance(last, ReplyEnded):
        return True
    shown = "".join(delta.text for delta in found if isinstance(delta, TextArrived))
    return shown == whole.text and (last.text, last.calls) == (whole.text, whole.calls)


def test_text_is_streamed_and_the_reply_ends_with_the_whole_text() -> None:
    """Ours: the end has the text, the five buckets, the served model and the response's id."""
    assert read(created(), message(0, "Hel", "lo"), completed()) == [
        TextArrived("Hel"),
        TextArrived("lo"),
        ReplyEnded(
            text="Hello",
            usage=Usage(input=30, cache_read=60, cache_write=10, output=20, reasoning=5, calls=1),
            model="gpt-5.2-2026",
            stop_reason="end",
            response_id="resp_1",
        ),
    ]


def test_events_without_a_name_are_recognized_by_their_type() -> None:
    """Ours: some servers omit the name, but the data has the type."""
    events = (created(), message(0, "Hello"), completed())
    assert read(*events, named=False) == read(*events)
    assert OpenAIReplyReader(prepared("", "")).feed(ServerEvent("", b"[DONE]")) == ()


def test_calls_are_returned_complete_and_in_order() -> None:
    """Seed: several calls in one reply, arguments streamed."""
    reply = ended(
        created(),
        message(0, "I look."),
        call(1, "c1", '{"city":', '"Bern"}'),
        call(2, "c2", '{"city":"Basel"}'),
        call(3, "c3", name="now"),
        completed(),
    )
    assert reply.calls == (
        RequestedCall(name="weather", arguments='{"city":"Bern"}', provider_id="c1"),
        RequestedCall(name="weather", arguments='{"city":"Basel"}', provider_id="c2"),
        RequestedCall(name="now", arguments="{}", provider_id="c3"),
    )
    assert (reply.text, reply.stop_reason, reply.reasoning) == ("I look.", "tool_calls", ())


def test_interleaved_items_are_assembled_by_index() -> None:
    """Ours: the calls of a reply may be interleaved."""
    first, second = call(0, "c1", "{", '"a":1}'), call(1, "c2", "{", '"b":2}')
    both = [event for pair in zip(first, second, strict=True) for event in pair]
    assert [each.arguments for each in ended(both, completed()).calls] == ['{"a":1}', '{"b":2}']


def test_reasoning_is_streamed_and_kept_with_the_outline_of_the_reply() -> None:
    """Ours: the vendor's own item is sent back, in its place among the others."""
    found = read(
        thought(0, "First.", "Then."), message(1, "Hm"), thought(2, secret="BBB"), call(3, "c1"), completed()
    )
    assert found[:3] == [ReasoningArrived("First."), ReasoningArrived("\n\nThen."), TextArrived("Hm")]
    assert isinstance(found[-1], ReplyEnded)
    (kept,) = found[-1].reasoning
    assert (kept.origin, kept.text) == (ORIGIN, "First.\n\nThen.")
    summary = [{"type": "summary_text", "text": text} for text in ("First.", "Then.")]
    assert kept.opaque == [
        {"type": "reasoning", "id": "i0", "summary": summary, "content": None, "encrypted_content": "AAA"},
        {"type": "message", "chars": 2},
        {"type": "reasoning", "id": "i2", "summary": [], "content": None, "encrypted_content": "BBB"},
        {"type": "function_call", "call_id": "c1"},
    ]


def test_reasoning_that_cannot_be_sent_back_is_kept_as_text() -> None:
    """Ours: the vendor stores nothing, so an item without its content is useless to it."""
    (kept,) = ended(thought(0, "Hm.", secret=None), message(1, "x"), completed()).reasoning
    assert (kept.text, kept.opaque) == ("Hm.", None)


def test_open_reasoning_is_streamed_and_sent_back() -> None:
    """Ours: models with open reasoning send it as text, and require it back in that form."""
    item = {"summary": [], "content": [{"type": "reasoning_text", "text": "I think."}]}
    found = read(
        added(0, "reasoning"),
        event("reasoning_text.delta", output_index=0, content_index=0, delta="I think."),
        done(0, "reasoning", **item),
        message(1, "x"),
        completed(),
    )
    assert found[0] == ReasoningArrived("I think.")
    assert isinstance(found[-1], ReplyEnded)
    kept: Any = found[-1].reasoning[0].opaque
    assert kept[0]["content"] == item["content"]


def test_two_messages_are_separated_and_keep_their_phases() -> None:
    """Ours: a commentary and an answer are separate texts."""
    found = read(
        message(0, "Let me see.", phase="commentary"), message(1, "4", "2", phase="final_answer"), completed()
    )
    assert found[:3] == [TextArrived("Let me see."), TextArrived("\n\n4"), TextArrived("2")]
    assert isinstance(found[-1], ReplyEnded)
    assert found[-1].text == "Let me see.\n\n42"
    assert found[-1].reasoning[0].opaque == [
        {"type": "message", "chars": 11, "phase": "commentary"},
        {"type": "message", "chars": 2, "phase": "final_answer"},
    ]


def test_a_refusal_is_text_with_the_stop_reason_refusal() -> None:
    """Ours: the vendor's message is shown, and is not taken for an answer."""
    refusal = {"type": "refusal", "refusal": "I cannot."}
    found = read(
        added(0, "message"),
        event("refusal.delta", output_index=0, delta="I can"),
        event("refusal.delta", output_index=0, delta="not."),
        event("refusal.done", output_index=0, refusal="I cannot."),
        done(0, "message", content=[refusal]),
        completed({"type": "message", "content": [refusal]}),
    )
    assert found[:2] == [TextArrived("I can"), TextArrived("not.")]
    assert isinstance(found[-1], ReplyEnded)
    assert (found[-1].text, found[-1].stop_reason) == ("I cannot.", "refusal")


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("odd", "odd")],
)
def test_a_truncated_reply_has_a_stop_reason(reason: str, stop: str) -> None:
    """Ours: the port's stop reasons are used, and the vendor's where the port has none."""
    reply = ended(added(0, "message"), text_delta(0, "Hal"), incomplete(reason))
    assert (reply.text, reply.stop_reason) == ("Hal", stop)


@pytest.mark.parametrize("status", ["in_progress", "incomplete", None])
@pytest.mark.parametrize("pieces", [(), ('{"city"',)])
def test_a_call_that_was_cut_off_keeps_the_arguments_received(
    status: str | None, pieces: tuple[str, ...]
) -> None:
    """Ours: partial arguments are not JSON, and missing ones are not an empty object."""
    events = call(0, "c1", *pieces, status=status or "")
    reply = ended(events if status else events[:-2], incomplete("max_output_tokens"))
    assert reply.calls == (RequestedCall(name="weather", arguments="".join(pieces), provider_id="c1"),)
    assert reply.stop_reason == "length"


def test_a_call_that_was_cut_off_is_never_completed() -> None:
    """Ours: an incomplete item does not supply what was not streamed."""
    item = {"call_id": "c1", "name": "weather", "arguments": "{}", "status": "incomplete"}
    begun = added(0, "function_call", call_id="c1", name="weather", arguments="")
    reply = ended(begun, done(0, "function_call", **item), incomplete("max_output_tokens"))
    assert reply.calls[0].arguments == ""


def test_the_final_item_must_match_the_streamed_deltas() -> None:
    """Ours: a stream that lost or changed something fails."""
    item = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'}
    events = call(0, "c1", '{"a":1}')
    assert ended(events, completed({"type": "reasoning"}, item)).calls[0].arguments == '{"a":1}'
    assert "not what its events said" in broken(events, completed({**item, "arguments": '{"a":2}'}))
    assert "not what its events said" in broken(events, completed(item, {**item, "call_id": "c2"}))
    assert "not what its events said" in broken(completed(item))
    assert "not what its events said" in broken(message(0, "x"), completed({"type": "message", **words("y")}))


def test_the_rest_of_a_message_is_read_from_its_final_item() -> None:
    """Ours: a completed item is used, whether or not it was streamed."""
    found = read(added(0, "message"), text_delta(0, "Hel"), done(0, "message", **words("Hello")), completed())
    assert found[:2] == [TextArrived("Hel"), TextArrived("lo")]
    assert isinstance(found[-1], ReplyEnded)
    assert found[-1].text == "Hello"


def test_misplaced_deltas_are_refused() -> None:
    """Ours: duplicated and misplaced events never make a reply that the model did not write."""
    begun, delta, ends = added(0, "message"), text_delta(0, "x"), done(0, "message", **words("x"))
    assert "has begun" in broken(delta)
    assert "has begun" in broken(begun, delta, ends, delta)
    assert "has begun" in broken(begun, arguments_delta(0, "{"))
    assert "started twice" in broken(begun, begun)
    assert "done before" in broken(begun, delta, ends, ends)
    assert "done before" in broken(ends)
    assert "deltas" in broken(begun, delta, delta, ends)


def test_a_call_whose_parts_disagree_is_refused() -> None:
    """Ours: such a call does not run."""
    events = call(0, "c1", "{", "}")
    assert "deltas" in broken(events[:2], events[-1])
    assert "deltas" in broken(events[:2], events[1:])
    other = done(0, "function_call", call_id="c1", name="delete", arguments="{}")
    assert "another" in broken(events[:3], other)
    assert "same id" in broken(call(0, "c1"), call(1, "c1"), completed())


def test_a_complete_response_has_no_unfinished_items() -> None:
    """Seed: no partial call runs."""
    assert "before all" in broken(call(0, "c1", "{}")[:-1], completed())
    assert "is not" in broken(call(0, "c1", "{}", status="in_progress"), completed())


def test_duplicated_or_swapped_events_are_harmless_or_refused() -> None:
    """Ours: events are numbered and read in order, so disorder yields the same reply or none."""
    events = numbered(
        [created(), *thought(0, "Hm."), *message(1, "a", "b", "c"), *call(2, "c1", "{", "}"), completed()]
    )
    whole = ended(events)
    for at in range(len(events) - 1):
        for changed in (
            [*events[: at + 1], *events[at:]],
            [*events[:at], events[at + 1], events[at], *events[at + 2 :]],
        ):
            assert same_or_refused(changed, whole)


def test_a_missing_event_never_changes_a_reply() -> None:
    """Ours: missing parts are detected, or are not needed."""
    output = [{"type": "message", **words("abc")}]
    output.append({"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'})
    events = [created(), *message(0, "a", "b", "c"), *call(1, "c1", "{", '"a":1}'), completed(*output)]
    whole = ended(events)
    for at in range(len(events) - 1):
        assert same_or_refused(events[:at] + events[at + 1 :], whole)


def test_unknown_events_and_items_are_ignored() -> None:
    """Ours: the vendor adds events and items all the time."""
    reply = ended(
        event("in_progress", response={}),
        event("brand_new.thing", x=[1]),
        thought(0),
        [added(1, "web_search_call", action=1), done(1, "web_search_call", content=7, status="completed")],
        message(2, "x"),
        completed(),
    )
    assert reply.text == "x"
    kept: Any = reply.reasoning[0].opaque
    assert [each["type"] for each in kept] == ["reasoning", "other", "message"]


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"delta": 1, "output_index": 0}', b'{"delta": "x"}']
)
@pytest.mark.parametrize("name", ["response.output_text.delta", "response.completed", ""])
def test_an_unreadable_event_is_a_retryable_failure(name: str, data: bytes) -> None:
    """Ours: an unreadable event is not guessed at."""
    reader = OpenAIReplyReader(prepared("m", ORIGIN))
    if not name and data.startswith(b'{"'):
        assert reader.feed(ServerEvent(name, data)) == ()
        return
    with pytest.raises(ModelError, match="cannot be read") as caught:
        reader.feed(ServerEvent(name, data))
    assert caught.value.retryable


def test_a_megabyte_of_arguments_arrives_unchanged() -> None:
    """Ours: 1 MB of arguments may be streamed in small pieces."""
    pieces = ['{"text":"', *["x" * 64] * 16_384, '"}']
    reply = ended(call(0, "c1", *pieces), completed())
    assert len(reply.calls[0].arguments) == 1_048_576 + 11
