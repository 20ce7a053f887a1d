"""Plugins rule on calls before they are executed and on results after it."""

from __future__ import annotations

import pytest
from machine_turns import (
    BROKEN,
    ENOUGH,
    NOTE,
    SPENT,
    SWITCH,
    Turn,
    asked_for,
    call,
    calls,
    ended,
    passed,
    ruled,
    said,
    settled,
    started,
    switched,
    waits,
)

from standfast.machine import RunTool
from standfast.model.message import ToolMessage
from standfast.model.outcome import Approved, StopReason


def acting(*names: str) -> Turn:
    return Turn(started(stages=("before_tool_call",)), calls(*names))


def result(turn: Turn) -> ToolMessage:
    message = turn.machine.messages[-1]
    assert isinstance(message, ToolMessage)
    return message


# Before


def test_each_call_is_marked_as_not_ruled_on_until_plugins_have_ruled() -> None:
    """Seed: before_tool_call runs once per call; recovery never runs a hook twice."""
    turn = Turn(started(stages=("before_tool_call",)))
    assert turn.tell(calls("a", "b")) == ["tool.1.1?", "tool.2.1?"]
    turn.feed(ruled(1))
    assert turn.recovered() == ["tool.1.1", "tool.2.1?"]
    turn.feed(ruled(2))
    assert turn.recovered() == ["tool.1.1", "tool.2.1"]


def test_calls_of_a_turn_without_such_plugins_need_no_ruling() -> None:
    """Ours: without plugins, commands keep their earlier form, and golden histories still replay."""
    (command,) = Turn(started(stages=("checkpoint", "after_turn"))).feed(calls("a"))
    assert isinstance(command, RunTool)
    assert command.ruled


def test_replaced_arguments_travel_with_the_call_and_are_recorded_with_its_result() -> None:
    """Seed: ReplaceToolArgs; the history keeps what the model asked and what was executed."""
    turn = acting("a")
    turn.feed(ruled(1, arguments={"n": 2}))
    (command,) = turn.machine.outstanding()
    assert isinstance(command, RunTool)
    assert (command.arguments, command.call.arguments) == ({"n": 2}, {})
    turn.feed(settled(1, "r"))
    assert result(turn).edited_arguments == {"n": 2}


def test_arguments_that_were_not_replaced_are_not_reported_again() -> None:
    """Ours: `edited_arguments` is set only if the arguments were changed."""
    turn = acting("a")
    turn.feed(ruled(1), settled(1, "r"))
    assert result(turn).edited_arguments is None


def test_what_a_person_edits_counts_more_than_what_plugins_replaced() -> None:
    """Ours: the person saw the replaced arguments and changed them."""
    turn = acting("a")
    turn.feed(ruled(1, arguments={"n": 2}), waits(1))
    assert turn.tell(ended("w1", Approved(arguments={"n": 3}))) == ["tool.1.2"]
    turn.feed(settled(1, "r"))
    assert result(turn).edited_arguments == {"n": 3}


def test_an_approval_without_edits_keeps_what_plugins_replaced() -> None:
    """Ours: a ruling survives a wait, and no hook runs twice."""
    turn = acting("a")
    turn.feed(ruled(1, arguments={"n": 2}), waits(1))
    (command,) = turn.feed(ended("w1", Approved()))
    assert isinstance(command, RunTool)
    assert (command.ruled, command.arguments) == (True, {"n": 2})


def test_a_call_is_ruled_on_once() -> None:
    """Ours: machine rule 5, a second ruling on the same call changes nothing."""
    turn = acting("a", "b")
    turn.feed(ruled(1, arguments={"n": 1}))
    assert turn.tell(ruled(1, arguments={"n": 2}, abort=ENOUGH, messages=(said("x"),), usage=(SPENT,))) == []
    turn.feed(settled(1), settled(2), passed("after_work"))
    assert turn.talk()[-1] == "tool 2: None"
    first = turn.machine.messages[-2]
    assert isinstance(first, ToolMessage)
    assert first.edited_arguments == {"n": 1}
    assert turn.machine.account.usage.input == 0


def test_a_ruling_that_comes_after_the_result_changes_nothing() -> None:
    """Bug: rulings on a settled call were still applied."""
    turn = acting("a", "b")
    turn.feed(settled(1, "r"))
    assert turn.tell(ruled(1, messages=(said("x"),), abort=ENOUGH)) == []
    assert turn.machine.next_messages() == ()


def test_a_call_that_cannot_be_read_is_not_ruled_on() -> None:
    """Ours: a call whose arguments cannot be parsed has already failed, so there is nothing to rule on."""
    turn = Turn(started(stages=("before_tool_call",)))
    assert turn.tell(asked_for(call("a", "["), call("b"))) == ["tool.2.1?"]
    assert turn.tell(ruled(1, arguments={"n": 1})) == []


def test_a_plugin_that_aborts_in_a_ruling_ends_the_turn_and_every_call_has_its_result() -> None:
    """Seed: AbortTurn before a tool call; machine rule 3."""
    turn = acting("a", "b")
    assert turn.tell(ruled(1), ruled(2, abort=ENOUGH, events=(NOTE,))) == ["stop", "commit plugin_abort"]
    assert turn.results() == [(1, "CANCELLED"), (2, "CANCELLED")]
    assert (turn.stopped().reason, turn.stopped().error) == (StopReason.PLUGIN_ABORT, ENOUGH)


def test_a_hook_that_fails_about_a_call_fails_the_call_and_not_the_turn() -> None:
    """Seed: guards fail closed; the driver, which asked the plugins, settles the call with the error."""
    turn = acting("a", "b")
    assert turn.tell(ruled(1, failure=BROKEN)) == []
    assert turn.tell(settled(1, error=BROKEN), ruled(2), settled(2, "r")) == ["after_work.1"]
    assert turn.results() == [(1, "PLUGIN_ERROR"), (2, "r")]


def test_what_plugins_say_about_calls_is_said_at_the_next_checkpoint() -> None:
    """Seed: InjectTurnInput is delivered at the next checkpoint, before what people injected."""
    turn = acting("a", "b")
    turn.feed(ruled(1, messages=(said("one"),), events=(NOTE,)), ruled(2, messages=(said("two"),)))
    turn.feed(settled(2, "r2"), settled(1, "r1"))
    assert turn.talk()[2:] == ["tool 1: r1", "tool 2: r2"]
    assert turn.tell(passed("after_work", said("person"))) == ["model.2"]
    assert turn.talk()[4:] == ["user: one", "user: two", "user: person"]
    assert turn.history()[2] == "p note"


# After


def test_what_plugins_say_about_a_result_is_said_at_the_next_checkpoint() -> None:
    """Seed: after_tool_call may inject a message."""
    turn = Turn(started(), calls("a", "b"))
    turn.feed(settled(2, "r2", messages=(said("nice"),), events=(NOTE,)))
    assert turn.tell(settled(1, "r1")) == ["after_work.1"]
    turn.feed(passed("after_work"))
    assert turn.history() == [
        "user: hello", "assistant: a b", "p note", "tool 1: r1", "tool 2: r2", "user: nice",
    ]  # fmt: skip


def test_a_plugin_that_aborts_over_a_result_ends_the_turn_and_the_result_stays() -> None:
    """Seed: AbortTurn after a tool call; the other calls are stopped."""
    turn = Turn(started(), calls("a", "b"))
    assert turn.tell(settled(1, "r", abort=ENOUGH)) == ["stop", "commit plugin_abort"]
    assert turn.results() == [(1, "r"), (2, "CANCELLED")]
    assert turn.stopped().error == ENOUGH


def test_an_abort_over_the_last_result_ends_the_turn_as_well() -> None:
    """Ours: the turn ends without the checkpoint after work."""
    turn = Turn(started(), calls("a"))
    assert turn.tell(settled(1, "r", abort=ENOUGH)) == ["stop", "commit plugin_abort"]
    assert turn.results() == [(1, "r")]


def test_what_is_said_about_a_result_that_came_too_late_is_not_heard() -> None:
    """Ours: machine rule 5, the ruling on a duplicate result is ignored like the result."""
    turn = Turn(started(), calls("a", "b"), settled(1, "r"))
    assert turn.tell(settled(1, "again", messages=(said("x"),), abort=ENOUGH, usage=(SPENT,))) == []
    turn.feed(settled(2), passed("after_work"))
    assert turn.talk()[-1] == "tool 2: None"
    assert turn.machine.account.usage.input == 0


def test_what_plugins_said_is_said_after_a_turn_that_passes_no_checkpoint_any_more() -> None:
    """Ours: if a frame opens after the calls, messages of plugins become input of the next turn."""
    turn = Turn(started(), calls("a"), switched())
    turn.feed(settled(1, "r", messages=(said("later"),)))
    assert turn.commands[-1].outcome.switch == SWITCH
    assert turn.machine.next_messages() == (said("later"),)


@pytest.mark.parametrize("stages", [(), ("before_tool_call",)])
def test_plugins_that_only_judge_results_do_not_hold_up_a_parked_turn(stages: tuple[str, ...]) -> None:
    """Ours: a result may settle while another call waits."""
    turn = Turn(started(stages=stages), calls("a", "b"), waits(1))  # type: ignore[arg-type]
    assert turn.tell(settled(2, "r", messages=(said("x"),))) == ["park w1"]
    assert turn.machine.next_messages() == (said("x"),)
    turn.feed(ended("w1"), settled(1))
    assert turn.tell(passed("after_work")) == ["model.2"]
    assert turn.talk()[-1] == "user: x"
