"""Rulings of plugins on calls before execution and on results after it."""

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


# Before execution


def test_each_call_is_marked_until_plugins_have_ruled_on_it() -> None:
    """Seed: before_tool_call runs once per call; recovery never runs a hook twice."""
    turn = Turn(started(stages=("before_tool_call",)))
    assert turn.tell(calls("a", "b")) == ["tool.1.1?", "tool.2.1?"]
    turn.feed(ruled(1))
    assert turn.recovered() == ["tool.1.1", "tool.2.1?"]
    turn.feed(ruled(2))
    assert turn.recovered() == ["tool.1.1", "tool.2.1"]


def test_calls_of_a_turn_without_before_tool_call_hooks_need_no_ruling() -> None:
    """Ours: without plugins, commands keep their earlier form, and golden histories still replay."""
    (command,) = Turn(started(stages=("checkpoint", "after_turn"))).feed(calls("a"))
    assert isinstance(command, RunTool)
    assert command.ruled


def test_replaced_arguments_are_passed_with_the_call_and_recorded_with_its_result() -> None:
    """Seed: ReplaceToolArgs; the history keeps the model's arguments and the executed ones."""
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


def test_a_persons_edits_override_arguments_that_plugins_replaced() -> None:
    """Ours: the person saw the replaced arguments and changed them."""
    turn = acting("a")
    turn.feed(ruled(1, arguments={"n": 2}), waits(1))
    assert turn.tell(ended("w1", Approved(arguments={"n": 3}))) == ["tool.1.2"]
    turn.feed(settled(1, "r"))
    assert result(turn).edited_arguments == {"n": 3}


def test_an_approval_without_edits_keeps_arguments_that_plugins_replaced() -> None:
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


def test_a_ruling_after_the_result_is_ignored() -> None:
    """Bug: rulings on a settled call were still applied."""
    turn = acting("a", "b")
    turn.feed(settled(1, "r"))
    assert turn.tell(ruled(1, messages=(said("x"),), abort=ENOUGH)) == []
    assert turn.machine.next_messages() == ()


def test_an_unreadable_call_is_not_ruled_on() -> None:
    """Ours: a call whose arguments cannot be parsed has already failed, so there is nothing to rule on."""
    turn = Turn(started(stages=("before_tool_call",)))
    assert turn.tell(asked_for(call("a", "["), call("b"))) == ["tool.2.1?"]
    assert turn.tell(ruled(1, arguments={"n": 1})) == []


def test_an_abort_in_a_ruling_ends_the_turn_and_every_call_has_its_result() -> None:
    """Seed: AbortTurn before a tool call; machine rule 3."""
    turn = acting("a", "b")
    assert turn.tell(ruled(1), ruled(2, abort=ENOUGH, events=(NOTE,))) == ["stop", "commit plugin_abort"]
    assert turn.results() == [(1, "CANCELLED"), (2, "CANCELLED")]
    assert (turn.stopped().reason, turn.stopped().error) == (StopReason.PLUGIN_ABORT, ENOUGH)


def test_a_hook_that_fails_on_a_call_fails_the_call_but_not_the_turn() -> None:
    """Seed: guards fail closed; the driver, which ran the hooks, settles the call with the error."""
    turn = acting("a", "b")
    assert turn.tell(ruled(1, failure=BROKEN)) == []
    assert turn.tell(settled(1, error=BROKEN), ruled(2), settled(2, "r")) == ["after_work.1"]
    assert turn.results() == [(1, "PLUGIN_ERROR"), (2, "r")]


def test_messages_of_rulings_are_delivered_at_the_next_checkpoint() -> None:
    """Seed: InjectTurnInput is delivered at the next checkpoint, before messages that people injected."""
    turn = acting("a", "b")
    turn.feed(ruled(1, messages=(said("one"),), events=(NOTE,)), ruled(2, messages=(said("two"),)))
    turn.feed(settled(2, "r2"), settled(1, "r1"))
    assert turn.talk()[2:] == ["tool 1: r1", "tool 2: r2"]
    assert turn.tell(passed("after_work", said("person"))) == ["model.2"]
    assert turn.talk()[4:] == ["user: one", "user: two", "user: person"]
    assert turn.history()[2] == "p note"


# After execution


def test_messages_about_a_result_are_delivered_at_the_next_checkpoint() -> None:
    """Seed: after_tool_call may inject a message."""
    turn = Turn(started(), calls("a", "b"))
    turn.feed(settled(2, "r2", messages=(said("nice"),), events=(NOTE,)))
    assert turn.tell(settled(1, "r1")) == ["after_work.1"]
    turn.feed(passed("after_work"))
    assert turn.history() == [
        "user: hello", "assistant: a b", "p note", "tool 1: r1", "tool 2: r2", "user: nice",
    ]  # fmt: skip


def test_an_abort_after_a_result_ends_the_turn_and_keeps_the_result() -> None:
    """Seed: AbortTurn after a tool call; the other calls are stopped."""
    turn = Turn(started(), calls("a", "b"))
    assert turn.tell(settled(1, "r", abort=ENOUGH)) == ["stop", "commit plugin_abort"]
    assert turn.results() == [(1, "r"), (2, "CANCELLED")]
    assert turn.stopped().error == ENOUGH


def test_an_abort_after_the_last_result_ends_the_turn_too() -> None:
    """Ours: the turn ends without the checkpoint after work."""
    turn = Turn(started(), calls("a"))
    assert turn.tell(settled(1, "r", abort=ENOUGH)) == ["stop", "commit plugin_abort"]
    assert turn.results() == [(1, "r")]


def test_messages_about_a_late_result_are_ignored() -> None:
    """Ours: machine rule 5, the ruling on a duplicate result is ignored like the result."""
    turn = Turn(started(), calls("a", "b"), settled(1, "r"))
    assert turn.tell(settled(1, "again", messages=(said("x"),), abort=ENOUGH, usage=(SPENT,))) == []
    turn.feed(settled(2), passed("after_work"))
    assert turn.talk()[-1] == "tool 2: None"
    assert turn.machine.account.usage.input == 0


def test_messages_of_plugins_without_a_further_checkpoint_go_to_the_next_turn() -> None:
    """Ours: if a frame opens after the calls, there is no checkpoint that could deliver them."""
    turn = Turn(started(), calls("a"), switched())
    turn.feed(settled(1, "r", messages=(said("later"),)))
    assert turn.commands[-1].outcome.switch == SWITCH
    assert turn.machine.next_messages() == (said("later"),)


@pytest.mark.parametrize("stages", [(), ("before_tool_call",)])
def test_rulings_on_results_alone_do_not_keep_a_turn_from_parking(stages: tuple[str, ...]) -> None:
    """Ours: a result may settle while another call waits."""
    turn = Turn(started(stages=stages), calls("a", "b"), waits(1))  # type: ignore[arg-type]
    assert turn.tell(settled(2, "r", messages=(said("x"),))) == ["park w1"]
    assert turn.machine.next_messages() == (said("x"),)
    turn.feed(ended("w1"), settled(1))
    assert turn.tell(passed("after_work")) == ["model.2"]
    assert turn.talk()[-1] == "user: x"
