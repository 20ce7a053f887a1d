"""The loop of native tool calls: run the requested calls, show the model the results, call it again."""

from __future__ import annotations

import itertools

import pytest
from machine_turns import Turn, answered, asked_for, call, calls, passed, settled, started, waits

from standfast.errors import ErrorObject
from standfast.machine import RunTool
from standfast.model.message import AssistantMessage, ToolCall, ToolMessage


def test_an_answer_without_calls_ends_the_turn() -> None:
    """Seed: the standard protocol finishes when the model requests no tool."""
    turn = Turn(started(), answered("42"))
    assert turn.tell(passed("before_completion")) == ["commit finished"]
    assert turn.machine.outcome == turn.machine.answer()
    assert turn.talk() == ["user: hello", "assistant: 42"]


def test_a_tool_runs_and_its_result_is_shown_to_the_model() -> None:
    """Seed: the standard protocol calls the model, runs the tools it requested, and calls it again."""
    turn = Turn(started())
    assert turn.tell(calls("look")) == ["tool.1.1"]
    assert turn.tell(settled(1, "grass")) == ["after_work.1"]
    assert turn.tell(passed("after_work")) == ["model.2"]
    assert turn.talk() == ["user: hello", "assistant: look", "tool 1: grass"]


def test_the_calls_of_a_reply_run_concurrently() -> None:
    """Ours: SPEC §8, the standard protocol runs the calls of one reply concurrently."""
    assert Turn(started()).tell(calls("a", "b", "c")) == ["tool.1.1", "tool.2.1", "tool.3.1"]


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))), ids=str)
def test_results_are_in_the_order_of_the_calls(order: tuple[int, ...]) -> None:
    """Ours: results are in source order, whatever the order in which they arrived."""
    turn = Turn(started(), calls("a", "b", "c"))
    turn.feed(*(settled(call_id, f"r{call_id}") for call_id in order))
    assert turn.results() == [(1, "r1"), (2, "r2"), (3, "r3")]


def test_the_model_is_called_again_only_after_every_call_has_its_result() -> None:
    """Ours: machine rule 3, every call has a result before the model is called again."""
    turn = Turn(started(), calls("a", "b"))
    assert turn.tell(settled(2)) == []
    assert turn.results() == []
    assert turn.tell(settled(1)) == ["after_work.1"]


def test_call_ids_are_numbered_across_the_whole_turn() -> None:
    """Ours: a call id names one call of the turn, so a late result cannot settle a call of a later reply."""
    turn = Turn(started(), calls("a", "b"), settled(1), settled(2), passed("after_work"))
    assert turn.tell(calls("a")) == ["tool.3.1"]
    assert turn.tell(settled(1, "late")) == []
    assert turn.tell(settled(3, "now")) == ["after_work.2"]


def test_a_duplicate_result_counts_once() -> None:
    """Ours: machine rule 5, a duplicate result is ignored."""
    turn = Turn(started(), calls("a", "b"), settled(1, "first"), settled(1, "second"), settled(2))
    assert turn.results() == [(1, "first"), (2, None)]


def test_a_failed_call_is_a_result_for_the_model() -> None:
    """Seed: a tool that fails does not fail the turn."""
    error = ErrorObject(code="OUT_OF_STOCK", message="none left")
    turn = Turn(started(), calls("buy"))
    assert turn.tell(settled(1, error=error)) == ["after_work.1"]
    assert turn.results() == [(1, "OUT_OF_STOCK")]


def test_calls_and_results_keep_the_providers_ids() -> None:
    """Ours: the provider expects its own ids, even for calls that never ran."""
    turn = Turn(started(), asked_for(call("a", "{}", "toolu_1"), call("b", "no", "toolu_2")), settled(1))
    assistant, *results = turn.machine.messages[1:]
    assert isinstance(assistant, AssistantMessage)
    assert [one.provider_id for one in assistant.tool_calls] == ["toolu_1", "toolu_2"]
    assert [one.provider_id for one in results if isinstance(one, ToolMessage)] == ["toolu_1", "toolu_2"]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("{}", {}),
        ("", {}),
        ('{"path": "a", "n": [1, 2.5, null]}', {"path": "a", "n": [1, 2.5, None]}),
        (' {"é": "\\u00e9"} ', {"é": "é"}),
        ('{"a": ' + "[" * 127 + "]" * 127 + "}", None),
    ],
    ids=["an empty object", "no text at all", "values of many kinds", "spaces around it", "128 levels"],
)
def test_arguments_that_are_an_object_are_accepted(text: str, arguments: dict[str, object] | None) -> None:
    """Ours: some providers send an empty string for a call without arguments."""
    (command,) = Turn(started()).feed(asked_for(call("look", text)))
    assert isinstance(command, RunTool)
    assert command.call.raw is None
    assert arguments is None or command.call == ToolCall(call_id=1, name="look", arguments=arguments)


UNREADABLE = {
    "cut off": '{"path": "a',
    "prose": "the file a",
    "a list": "[1]",
    "a string": '"{}"',
    "null": "null",
    "two objects": "{}{}",
    "not a number": '{"a": NaN}',
    "a lone surrogate": '{"a": "\\ud800"}',
    "text that is no text": '{"a": "\ud800"}',
    "129 levels": '{"a": ' + "[" * 128 + "]" * 128 + "}",
    "129 levels of objects": '{"a":' * 129 + "1" + "}" * 129,
    "far too deep": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_arguments_are_an_error_for_the_model_and_never_empty(text: str) -> None:
    """Ours: SPEC §8, arguments that are not JSON are an error for the model, never `{}`."""
    turn = Turn(started())
    assert turn.tell(asked_for(call("look", text))) == ["after_work.1"]
    assistant, result = turn.machine.messages[1:]
    assert isinstance(assistant, AssistantMessage)
    assert (assistant.tool_calls[0].arguments, assistant.tool_calls[0].raw) == (None, text)
    assert isinstance(result, ToolMessage)
    assert result.error is not None
    assert result.error.code == "INVALID_ARGUMENT"
    assert "look()" in result.error.message
    assert "JSON object" in (result.error.hint or "")


def _deep_in_the_stack(frames: int, text: str) -> list[str]:
    if frames:
        return _deep_in_the_stack(frames - 1, text)
    return Turn(started()).tell(asked_for(call("look", text)))


@pytest.mark.parametrize("levels", [100, 300, 600, 900])
def test_whether_arguments_can_be_read_does_not_depend_on_the_stack(levels: int) -> None:
    """Bug: arguments of 900 levels were read in one process and refused in another."""
    text = '{"a": ' + "[" * levels + "]" * levels + "}"
    assert _deep_in_the_stack(0, text) == _deep_in_the_stack(300, text)


def test_readable_calls_run_beside_unreadable_ones_and_all_results_are_in_order() -> None:
    """Ours: one invalid call does not affect the others."""
    turn = Turn(started())
    reply = asked_for(call("a", "?"), call("b"), call("c", "?"), call("d"))
    assert turn.tell(reply) == ["tool.2.1", "tool.4.1"]
    turn.feed(settled(4, "D"), settled(2, "B"))
    bad = "INVALID_ARGUMENT"
    assert turn.results() == [(1, bad), (2, "B"), (3, bad), (4, "D")]


def test_an_unreadable_call_accepts_no_further_input() -> None:
    """Ours: a settled call accepts neither another result nor a wait."""
    turn = Turn(started(), asked_for(call("a", "?"), call("b")))
    assert turn.tell(settled(1, "ran")) == []
    assert turn.tell(waits(1)) == []
    assert turn.tell(settled(2)) == ["after_work.1"]
    assert turn.results() == [(1, "INVALID_ARGUMENT"), (2, None)]


def test_the_text_of_a_reply_with_calls_is_kept() -> None:
    """Ours: the text, the model and its stop reason are part of the history."""
    turn = Turn(started(), answered("let me see", model="m"))
    reply = turn.machine.messages[-1]
    assert isinstance(reply, AssistantMessage)
    assert (reply.text, reply.model, reply.tool_calls) == ("let me see", "m", ())
