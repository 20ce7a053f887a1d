"""The scripted model: which reply it selects, how it streams, and when it raises."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import (
    ErrorObject,
    InvalidArgument,
    ModelError,
    RepliesLeftOver,
    StandfastError,
    UnexpectedModelCall,
)
from standfast.model.capability import Capability
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, Message, Reasoning, TextPart, ToolMessage, UserMessage
from standfast.ports.model_provider import (
    ModelDelta,
    ModelProvider,
    ModelRequest,
    ReasoningArrived,
    ReplyEnded,
    RequestedCall,
    TextArrived,
)
from standfast.providers.request_digest import request_digest
from standfast.providers.resolve import resolve_model
from standfast.providers.scripted import Reply, ScriptedModel

ORDER, REFUND = (Capability(name=name, description="") for name in ("order", "refund"))


def request(said: str | Message = "hi", number: int = 1, *, tools: Sequence[Capability] = ()) -> ModelRequest:
    last = UserMessage(content=said) if isinstance(said, str) else said
    earlier = UserMessage(content="I said this first")
    return ModelRequest(
        messages=[earlier, last], call_number=number, tools=tuple(tools), instructions="Be kind."
    )


def deltas(model: ModelProvider, asked: ModelRequest | None = None) -> list[ModelDelta]:
    async def collect() -> list[ModelDelta]:
        return [delta async for delta in model.stream(asked or request())]

    return asyncio.run(collect())


def ended(model: ModelProvider, asked: ModelRequest | None = None) -> ReplyEnded:
    last = deltas(model, asked)[-1]
    assert isinstance(last, ReplyEnded)
    return last


def scripted(*replies: dict[str, Any] | str, strict: bool = True) -> ScriptedModel:
    return ScriptedModel(replies, strict=strict)


def close(model: ModelProvider) -> None:
    asyncio.run(model.close())


def written(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# Selecting a reply


def test_the_number_of_the_call_selects_the_reply() -> None:
    """Ours: the model is stateless, so one script serves many sessions and works after a restart."""
    model = scripted("one", "two")
    assert [ended(model, request(number=n)).text for n in (2, 1, 2)] == ["two", "one", "two"]


def test_a_call_past_the_end_of_the_script_is_refused_with_its_number_and_last_message() -> None:
    """Seed: the stand-in model raises on a call that it did not expect."""
    with pytest.raises(UnexpectedModelCall) as raised:
        deltas(scripted("one"), request("where is " + "my " * 50 + "order?", number=2))
    assert "call 2" in raised.value.message
    assert "has 1 replies" in raised.value.message
    assert "where is my my" in raised.value.message
    assert len(raised.value.message) < 200
    assert (raised.value.code, raised.value.retryable) == ("PROVIDER_ERROR", False)


def test_a_call_without_messages_past_the_end_is_refused_with_a_clear_error() -> None:
    """Ours: the error is never an IndexError."""
    with pytest.raises(UnexpectedModelCall, match="nothing"):
        deltas(scripted(), ModelRequest(messages=[]))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (AssistantMessage(text="my own words"), "my own words"),
        (ToolMessage(call_id=1, name="order", value={"id": 1}), '{"id":1}'),
        (ToolMessage(call_id=1, name="order", value="plain"), "plain"),
        (ToolMessage(call_id=1, name="order", error=ErrorObject(code="X", message="no such")), "no such"),
        (UserMessage(content=(TextPart(text="in parts"),)), "in parts"),
    ],
)
def test_the_last_message_is_shown_whatever_its_role(message: Message, shown: str) -> None:
    """Ours: the message shows what the model was asked."""
    with pytest.raises(UnexpectedModelCall) as raised:
        deltas(scripted(), request(message))
    assert shown in raised.value.message


# Unused replies


def test_closing_with_unused_replies_reports_their_number_and_the_first() -> None:
    """Seed: the stand-in model raises if replies are left over."""
    model = scripted("one", "two", "three")
    deltas(model)
    with pytest.raises(RepliesLeftOver, match=r"2 of the 3 replies .* reply 2: 'two'"):
        close(model)


def test_closing_twice_raises_only_once() -> None:
    """Ours: closing again in a finally block must not hide the first error."""
    model = scripted("one")
    with pytest.raises(RepliesLeftOver):
        close(model)
    close(model)


def test_a_script_that_was_used_to_its_end_closes_without_an_error() -> None:
    """Ours: replies before the first call belong to an earlier process."""
    model = scripted("one", "two")
    deltas(model, request(number=2))
    close(model)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ({"failure": {"message": "on fire"}}, "failure: on fire"),
        ({"tool_calls": [{"name": "order"}]}, "calls order"),
    ],
)
def test_an_unused_reply_without_text_is_described_by_its_content(reply: dict[str, Any], shown: str) -> None:
    """Ours: the message identifies a reply without text."""
    with pytest.raises(RepliesLeftOver, match=shown):
        close(scripted(reply))


def test_a_lenient_script_may_have_unused_replies() -> None:
    """Ours: a demo does not end at a known point."""
    close(scripted("one", strict=False))


# Streaming


def test_text_is_one_chunk_followed_by_the_whole_reply() -> None:
    """Ours: the port requires deltas, then exactly one `ReplyEnded`."""
    end = ReplyEnded(text="hello there", usage=Usage(input=1, output=2, calls=1), model="scripted:script")
    assert deltas(scripted("hello there")) == [TextArrived("hello there"), end]


@pytest.mark.parametrize("how", [{"chunks": ["ab", "cd", "e"]}, {"text": "abcde", "chunk_size": 2}])
def test_chunks_are_listed_or_cut_by_size(how: dict[str, Any]) -> None:
    """Ours: a streamed reply can be written in two ways."""
    found = deltas(scripted(how))
    assert found[:-1] == [TextArrived("ab"), TextArrived("cd"), TextArrived("e")]
    assert isinstance(found[-1], ReplyEnded)
    assert found[-1].text == "abcde"


def test_reasoning_comes_before_the_text() -> None:
    """Ours: models reason before they answer."""
    assert deltas(scripted({"reasoning": "hm", "text": "yes"}))[:2] == [
        ReasoningArrived("hm"),
        TextArrived("yes"),
    ]


def test_tool_calls_have_their_arguments_as_text_and_an_id() -> None:
    """Ours: objects are encoded, strings are passed on, so that malformed JSON can be scripted."""
    calls = [
        {"name": "order", "arguments": {"order_id": "A1"}},
        {"name": "order", "arguments": "{not json", "id": "mine"},
        {"name": "order"},
    ]
    end = ended(scripted({"tool_calls": calls}))
    assert end.calls == (
        RequestedCall(name="order", arguments='{"order_id":"A1"}', provider_id="call_1_1"),
        RequestedCall(name="order", arguments="{not json", provider_id="mine"),
        RequestedCall(name="order", arguments="{}", provider_id="call_1_3"),
    )
    assert (end.text, end.stop_reason) == ("", "tool_calls")


def test_usage_and_stop_reason_come_from_the_script_but_each_reply_counts_as_one_call() -> None:
    """Ours: the ledger counts calls, whatever a script claims."""
    end = ended(scripted({"text": "x", "usage": {"input": 9, "calls": 7}, "stop_reason": "length"}))
    assert (end.usage, end.stop_reason) == (Usage(input=9, calls=1), "length")


def test_a_failure_comes_after_the_given_number_of_chunks() -> None:
    """Ours: a stream that fails in the middle can be scripted."""
    failure = {"code": "RATE_LIMITED", "message": "slow down", "retryable": True, "retry_after_ms": 5}
    model = scripted({"chunks": ["a", "b", "c"], "failure": {**failure, "after_chunks": 2}})
    seen: list[ModelDelta] = []

    async def collect() -> None:
        async for delta in model.stream(request()):
            seen.append(delta)

    with pytest.raises(ModelError) as raised:
        asyncio.run(collect())
    assert seen == [TextArrived("a"), TextArrived("b")]
    error = raised.value
    assert (error.code, error.message) == ("RATE_LIMITED", "slow down")
    assert (error.retryable, error.retry_after_ms) == (True, 5)
    close(model)


def test_delays_pass_before_the_first_chunk_and_between_chunks() -> None:
    """Ours: `delay_ms` and `chunk_delay_ms` are measured on the loop's own clock."""
    model = scripted({"chunks": ["a", "b", "c"], "delay_ms": 8, "chunk_delay_ms": 4})
    started = time.monotonic()
    assert len(deltas(model)) == 4
    assert time.monotonic() - started >= 0.016


def test_a_chunk_costs_less_than_a_microsecond() -> None:
    """Ours: the model must not dominate a benchmark; the bound is generous for a busy machine."""
    model = scripted({"text": "x" * 20_000, "chunk_size": 1})

    async def count() -> float:
        started = time.process_time()
        async for _ in model.stream(request()):
            pass
        return time.process_time() - started

    assert min(asyncio.run(count()) for _ in range(5)) / 20_000 < 1e-6


# Expectations


@pytest.mark.parametrize(
    ("expect", "complaint"),
    [
        ({"last_contains": "refund"}, "should contain 'refund'"),
        ({"instructions_contain": "rude"}, "instructions should contain 'rude'"),
        ({"tools": ["refund"]}, r"should be \['refund'\], not \['order'\]"),
    ],
)
def test_a_request_that_differs_from_the_expectation_is_refused(
    expect: dict[str, Any], complaint: str
) -> None:
    """Ours: a script can check the requests."""
    model = scripted({"text": "x", "expect": expect})
    with pytest.raises(UnexpectedModelCall, match=complaint):
        deltas(model, request("hello", tools=[ORDER]))


def test_a_request_that_meets_the_expectation_is_answered() -> None:
    """Ours: tools may be in any order."""
    expect = {"last_contains": "ell", "instructions_contain": "kind", "tools": ["refund", "order"]}
    model = scripted({"text": "x", "expect": expect})
    assert ended(model, request("hello", tools=[ORDER, REFUND])).text == "x"


def test_the_request_selects_one_of_several_replies_to_the_same_call() -> None:
    """Ours: a recording of several sessions has several first calls."""
    first, second = request("one"), request("two")
    expecting = [{"request": request_digest(asked)} for asked in (first, second)]
    model = scripted(
        {"text": "to one", "call": 1, "expect": expecting[0]},
        {"text": "to two", "call": 1, "expect": expecting[1]},
        {"text": "to one again", "call": 1, "expect": expecting[0]},
    )
    assert [ended(model, asked).text for asked in (second, first, first, first)] == [
        "to two",
        "to one",
        "to one again",
        "to one again",
    ]
    with pytest.raises(UnexpectedModelCall, match="the request differs from the recorded one"):
        deltas(model, request("three"))
    close(model)


def test_a_reply_can_name_the_call_it_answers() -> None:
    """Ours: a recording may begin in the middle of a session; unused replies are still counted."""
    model = scripted({"text": "third", "call": 3}, {"text": "fourth", "call": 4})
    assert ended(model, request(number=3)).text == "third"
    with pytest.raises(UnexpectedModelCall, match="the script has 2 replies"):
        deltas(model, request(number=1))
    with pytest.raises(RepliesLeftOver, match=r"1 of the 2 replies .* 'fourth'"):
        close(model)


def test_a_reply_can_have_a_served_model_and_opaque_reasoning() -> None:
    """Ours: a replayed session has the metadata of the real one."""
    part = {"origin": "p https://p m", "text": "hm", "opaque": {"signature": "s"}}
    model = scripted(
        {"text": "x", "model": "m-2026", "response_id": "r1", "reasoning": "hm", "reasoning_parts": [part]}
    )
    reply = ended(model)
    assert (reply.model, reply.response_id) == ("m-2026", "r1")
    assert reply.reasoning == (Reasoning(origin="p https://p m", text="hm", opaque={"signature": "s"}),)


# Files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", {"replies": [{"text": "one"}, "two"], "strict": True}),
        ("a.json", [{"text": "one"}, {"text": "two"}]),
        ("a.jsonl", '{"text": "one"}\n\n"two"\n'),
    ],
)
def test_a_script_can_be_read_from_json_and_json_lines(tmp_path: Path, name: str, content: object) -> None:
    """Ours: each form yields the same script, strict by default."""
    path = written(tmp_path / name, content)
    model = resolve_model(f"scripted:{path}")
    assert model.model_id == f"scripted:{path}"
    assert ended(model, request(number=1)).text == "one"
    with pytest.raises(RepliesLeftOver, match="two"):
        close(model)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.txt", "[]", "neither a .json nor a .jsonl"),
        ("missing/a.json", None, "cannot be read: No such file"),
        ("a.json", '[{"text": "x"},\n {"text": }]', r"a\.json is not JSON: .*line 2, column 11"),
        ("a.json", '[{"usage": NaN}]', "NaN is not a JSON value"),
        ("a.json", "[" * 100_000, "not JSON"),
        ("a.json", "7", "neither a list of replies nor"),
        ("a.json", {"replies": [], "rules": []}, "neither a list of replies nor"),
        ("a.json", {"replies": [], "strict": 1}, '"strict" must be'),
        ("a.json", {"replies": [], "extra": 1}, "unknown field 'extra'"),
        ("a.json", {"replies": {}}, '"replies" must be a list'),
        ("a.json", {"rules": {}}, '"rules" must be a list'),
        ("a.json", ["x", {"txet": "y"}], "reply 2: .*unknown field `txet`"),
        ("a.json", [{"usage": {"tokens": 1}}], "reply 1: .*unknown field `tokens`"),
        ("a.json", [{"chunk_size": 0}], "reply 1: .*>= 1.*chunk_size"),
        ("a.json", [{"chunks": ["a"], "chunk_size": 1}], "reply 1: give .* not both"),
        ("a.json", [{"chunks": ["a"], "text": "b"}], "reply 1: .* do not add up"),
        ("a.json", {"rules": [{}, 5]}, "rule 2: Expected `object`"),
        ("a.jsonl", '{"text": "x"}\n{"text": 5}', r"a\.jsonl, line 2: .*str.*text"),
        ("a.jsonl", '{"text": "x"}\n\n{"text', r"a\.jsonl, line 3 is not JSON"),
    ],
)
def test_a_malformed_script_is_refused_with_its_path_and_the_position(
    tmp_path: Path, name: str, content: object, complaint: str
) -> None:
    """Ours: the error shows the author where the script is wrong."""
    path = tmp_path / name if content is None else written(tmp_path / name, content)
    with pytest.raises(InvalidArgument, match=complaint) as raised:
        resolve_model(f"scripted:{path}")
    assert str(path) in raised.value.message


def test_a_script_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Ours: a binary file is not a script."""
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="it is not UTF-8"):
        ScriptedModel.from_file(path)


def test_replies_may_be_python_values() -> None:
    """Ours: tests write replies as values."""
    assert ended(ScriptedModel([Reply(text="made")], name="mine")).model == "scripted:mine"


# Rules


def ruled(tmp_path: Path, *rules: dict[str, Any], strict: bool = True) -> ScriptedModel:
    return ScriptedModel.from_file(written(tmp_path / "rules.json", {"rules": list(rules), "strict": strict}))


def test_the_first_rule_that_matches_answers_and_rules_are_never_used_up(tmp_path: Path) -> None:
    """Ours: rules are stateless; case is ignored, and all words of a list must occur."""
    both, one, default = (
        {"when": ["Refund", "a1"], "text": "both"},
        {"when": "refund", "text": "one"},
        {"text": "?"},
    )
    model = ruled(tmp_path, both, one, default)
    said = ["a REFUND for A1", "refund", "A1", "refund"]
    assert [ended(model, request(words, number=9)).text for words in said] == ["both", "one", "?", "one"]
    close(model)


def test_a_rule_for_a_tool_matches_only_that_tools_result(tmp_path: Path) -> None:
    """Ours: a user's words must not match a tool's result, or the model would call it for ever."""
    model = ruled(
        tmp_path,
        {"when": "first", "text": "asked"},
        {"when_tool": "order", "when": "nothing of this", "text": "not this"},
        {"when_tool": "order", "when": "said this", "text": "{value} for {text} {other}"},
        {"text": "?"},
    )
    result = ToolMessage(call_id=1, name="order", value={"cents": [1, 2]})
    assert ended(model, request(result)).text == '{"cents":[1,2]} for I said this first {other}'
    assert ended(model, request(ToolMessage(call_id=1, name="refund"))).text == "?"


def test_substituted_text_is_not_expanded_again(tmp_path: Path) -> None:
    """Ours: a user who writes {value} gets it back unchanged."""
    model = ruled(tmp_path, {"text": "{text} {value}."})
    assert ended(model, request("{value} {text}")).text == "{value} {text} ."


def test_a_rule_whose_tool_is_not_offered_does_not_match(tmp_path: Path) -> None:
    """Ours: the demo works with any set of tools."""
    model = ruled(tmp_path, {"tool_calls": [{"name": "order"}]}, {"text": "no tool"})
    assert ended(model, request(tools=[REFUND])).text == "no tool"
    assert ended(model, request(tools=[REFUND, ORDER])).calls[0].name == "order"


def test_a_rule_can_depend_on_the_instructions(tmp_path: Path) -> None:
    """Ours: one script serves several protocols, whose instructions differ."""
    model = ruled(tmp_path, {"when_told": "write Python", "text": "```python```"}, {"text": "plain"})
    told = ModelRequest(messages=[UserMessage(content="go")], instructions="Please write Python.")
    assert (ended(model, told).text, ended(model, request("go")).text) == ("```python```", "plain")


@pytest.mark.parametrize("asked", [request("hello"), ModelRequest(messages=[])])
def test_a_request_that_no_rule_matches_is_refused(tmp_path: Path, asked: ModelRequest) -> None:
    """Ours: rules without a default raise as replies do."""
    model = ruled(tmp_path, {"when": "refund", "text": "{text}"}, {"when_tool": "order", "text": "x"})
    with pytest.raises(UnexpectedModelCall, match="no rule of the script matches"):
        deltas(model, asked)


def test_a_default_rule_answers_a_request_without_messages(tmp_path: Path) -> None:
    """Ours: an empty history is valid."""
    model = ruled(tmp_path, {"text": "[{text}{value}]"})
    assert ended(model, ModelRequest(messages=[])).text == "[]"


# Names


@pytest.mark.parametrize("name", ["demo", "scripted:demo"])
def test_the_demo_is_part_of_the_package_and_says_that_it_is_scripted(name: str) -> None:
    """Ours: a first try needs no key, and the user does not mistake the script for a model."""
    model = resolve_model(name)
    assert model.model_id == "scripted:demo"
    for words in ("hello", "help", "what is this?"):
        assert "not a real model" in ended(model, request(words)).text
    close(model)


def test_the_demo_calls_the_tools_it_is_offered() -> None:
    """Ours: `order` and `refund` are called with valid arguments."""
    model = resolve_model("demo")
    tools = [ORDER, REFUND]
    order = ended(model, request("show me order A1", tools=tools)).calls
    refund = ended(model, request("Refund A1, please", tools=tools)).calls
    assert [(call.name, json.loads(call.arguments)) for call in order + refund] == [
        ("order", {"order_id": "A1"}),
        ("refund", {"order_id": "A1", "cents": 1999}),
    ]
    assert ended(model, request("order A1")).calls == ()
    paid = ToolMessage(call_id=1, name="refund", value=1999)
    assert "1999" in ended(model, request(paid, tools=tools)).text


def test_a_provider_is_returned_unchanged_and_other_values_are_refused() -> None:
    """Ours: `Agent(model=...)` accepts both names and models."""
    model = scripted()
    assert resolve_model(model) is model
    with pytest.raises(StandfastError, match="got int"):
        resolve_model(5)  # type: ignore[arg-type]
