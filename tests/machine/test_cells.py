"""Cells: calls that make calls themselves."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import msgspec
import pytest
from machine_turns import (
    BROKEN,
    ENOUGH,
    NO_SUCH,
    Turn,
    aborted,
    calls,
    cancelled,
    ended,
    finish,
    in_a_cell,
    in_short,
    out_of_time,
    passed,
    paused,
    recorded,
    resumed,
    ruled,
    said,
    settled,
    started,
    waits,
)

from standfast.machine import (
    CellCalled,
    CellPaused,
    Command,
    ContinueCell,
    Input,
    Phase,
    RunTool,
    ToolSettled,
    TurnMachine,
    decode_input,
    encode_input,
)
from standfast.model.capability import GuestException
from standfast.model.message import AttachmentPart, ToolCall, ToolMessage
from standfast.model.outcome import Approved, Elapsed


def cell_of(commands: list[Command]) -> ContinueCell:
    (command,) = [one for one in commands if isinstance(one, ContinueCell)]
    return command


def picture(name: str) -> AttachmentPart:
    return AttachmentPart(digest=name, media_type="image/png", size=1, name=name)


def with_picture(given: ToolSettled, name: str) -> ToolSettled:
    return msgspec.structs.replace(given, attachments=(picture(name),))


def results(turn: Turn) -> list[ToolMessage]:
    return [message for message in turn.machine.messages if isinstance(message, ToolMessage)]


# Calls that a cell makes


def test_the_calls_of_a_cell_run_concurrently_under_ids_of_the_turn() -> None:
    """Seed: each call of a cell is an effect in the journal, like a native call."""
    turn = in_a_cell()
    assert turn.tell(paused(1, 1, "look", "pay", "look")) == ["tool.2.1", "tool.3.1", "tool.4.1"]
    assert turn.machine.calls.under_way() == [2, 3, 4]
    assert not turn.machine.calls.one_runs()
    assert [turn.machine.calls.runs(call_id) for call_id in (1, 2, 9)] == [False, True, False]


def test_a_turn_reports_whether_a_cell_is_in_progress() -> None:
    """Ours: only an agent that runs code can resume a cell; one without calls can still be rejected."""
    turn = in_a_cell()
    assert not turn.machine.calls.any_cells()
    turn.feed(paused(1, 1, "look"))
    assert turn.machine.calls.any_cells()
    turn.feed(settled(2))
    assert turn.machine.calls.any_cells()
    turn.feed(settled(1))
    assert not turn.machine.calls.any_cells()


def test_a_cells_call_names_its_cell_and_keeps_its_arguments() -> None:
    """Ours: the host that executes it knows that code made it, and which arguments were positional."""
    made = CellCalled(name="look", arguments={"deep": True}, args=(1, [2]))
    (command,) = in_a_cell().feed(CellPaused(at_ms=1, call_id=1, number=1, calls=(made,)))
    assert isinstance(command, RunTool)
    assert command.call == ToolCall(call_id=2, name="look", arguments={"deep": True}, args=(1, [2]), parent=1)


def test_the_ids_of_a_cells_calls_and_of_a_later_reply_do_not_collide() -> None:
    """Ours: a call id names one call of the turn, whether the model or code made the call."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2), settled(3), settled(1), passed("after_work"))
    assert turn.tell(calls("look")) == ["tool.4.1"]
    assert turn.tell(settled(2, "late")) == []


def test_plugins_rule_on_a_cells_calls_as_on_any_call() -> None:
    """Seed: calls of code take the same steps as native calls."""
    turn = Turn(started(stages=("before_tool_call",)), calls("run_code"), ruled(1))
    assert turn.tell(paused(1, 1, "a", "b")) == ["tool.2.1?", "tool.3.1?"]
    turn.feed(ruled(3, arguments={"n": 2}))
    assert in_short(turn.machine.outstanding()) == ["tool.2.1?", "tool.3.1"]
    turn.feed(settled(3, "ok"))
    assert turn.tell(ruled(2, abort=ENOUGH)) == ["stop", "commit plugin_abort"]


def test_a_ruling_on_the_result_of_a_cells_call_takes_effect() -> None:
    """Ours: the plugins' messages reach the model, and their abort ends the turn."""
    turn = in_a_cell(paused(1, 1, "a", "b"))
    assert turn.tell(settled(2, messages=(said("psst"),))) == ["cell.1 hears 2"]
    assert turn.tell(settled(3, abort=ENOUGH)) == ["stop", "commit plugin_abort"]
    assert turn.results() == [(1, "CANCELLED")]


def test_a_call_that_cannot_be_executed_is_answered_at_once() -> None:
    """Ours: such a call starts no effect, and the code receives the error."""
    turn = in_a_cell()
    commands = turn.feed(paused(1, 1, "lok!"))
    assert in_short(commands) == ["cell.1 hears 2"]
    (answer,) = cell_of(commands).answers
    assert (answer.call_id, answer.error, answer.at_ms) == (2, NO_SUCH, 2_000)


def test_calls_that_can_and_cannot_be_executed_may_be_mixed() -> None:
    """Ours: one invalid call does not affect the others."""
    turn = in_a_cell()
    assert turn.tell(paused(1, 1, "a", "b!", "c!")) == ["tool.2.1", "cell.1 hears 3"]
    assert turn.tell(paused(1, 2)) == ["cell.1 hears 3 4"]
    assert turn.tell(paused(1, 3)) == []
    assert turn.tell(settled(2)) == ["cell.1 hears 3 4 2"]


# Results that a cell receives


@pytest.mark.parametrize("order", list(itertools.permutations((2, 3, 4))), ids=str)
def test_a_cell_receives_one_result_per_pause_in_order_of_arrival(order: tuple[int, ...]) -> None:
    """Ours: calls rule 2; a cell that is run again therefore makes the same calls."""
    turn = in_a_cell(paused(1, 1, "a", "b", "c"))
    first, second, third = order
    assert turn.tell(settled(first)) == [f"cell.1 hears {first}"]
    assert turn.tell(settled(second)) == []
    assert turn.tell(settled(third)) == []
    assert turn.tell(paused(1, 2)) == [f"cell.1 hears {first} {second}"]
    assert turn.tell(paused(1, 3)) == [f"cell.1 hears {first} {second} {third}"]
    assert turn.tell(settled(1, "all")) == ["after_work.1"]


def test_a_result_that_arrives_while_the_cell_computes_is_kept_until_it_pauses() -> None:
    """Ours: results are delivered only at pauses, so a replay delivers them at the same points."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2))
    assert turn.tell(settled(3)) == []
    assert turn.recovered() == ["cell.1 hears 2"]
    assert turn.tell(paused(1, 2, "c")) == ["tool.4.1", "cell.1 hears 2 3"]


def test_a_cell_that_pauses_without_a_new_result_waits_for_its_running_calls() -> None:
    """Ours: the cell is neither rerun nor abandoned."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2))
    assert turn.tell(paused(1, 2)) == []
    assert (turn.machine.phase, turn.machine.calls.under_way()) == (Phase.ACTING, [3])
    assert turn.tell(settled(3)) == ["cell.1 hears 2 3"]


def test_a_cell_receives_results_as_they_are_journaled() -> None:
    """Ours: the cell receives the value, or the error as code sees it, and the time of the result."""
    seen = GuestException(type="KeyError", message="'A1'")
    failed = msgspec.structs.replace(settled(3, error=BROKEN), exception=seen)
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2, {"n": 1}))
    turn.feed(failed)
    heard = cell_of(turn.feed(paused(1, 2)))
    assert heard.count == 2
    assert [(one.value, one.error, one.exception, one.at_ms) for one in heard.answers] == [
        ({"n": 1}, None, None, 3_000),
        (None, BROKEN, seen, 4_000),
    ]
    assert [one.name for one in heard.made] == ["a", "b"]
    assert all(isinstance(one, ToolCall) and one.parent == 1 for one in heard.made)


def test_a_cell_receives_a_duplicate_result_once() -> None:
    """Ours: machine rule 5, a duplicate result is ignored."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2, "first"))
    assert turn.tell(settled(2, "second")) == []
    assert turn.tell(paused(1, 2)) == []
    heard = cell_of(turn.feed(settled(3)))
    assert [one.value for one in heard.answers] == ["first", None]


def test_each_of_two_cells_receives_only_results_of_its_own_calls() -> None:
    """Ours: the machine does not limit how many cells a reply may have."""
    turn = Turn(started(), calls("run_code", "run_code"))
    turn.feed(paused(1, 1, "a"), paused(2, 1, "b", "c"))
    assert turn.tell(settled(4)) == ["cell.2 hears 4"]
    assert turn.tell(settled(3)) == ["cell.1 hears 3"]
    assert turn.tell(settled(1, "one")) == []
    assert turn.tell(settled(5)) == []
    assert turn.tell(settled(2, "two")) == ["after_work.1"]
    assert turn.results() == [(1, "one"), (2, "two")]


def test_a_cell_in_a_cell_receives_results_of_its_own_calls_too() -> None:
    """Ours: any call that makes calls is a cell, whether the model or a cell made it."""
    turn = in_a_cell(paused(1, 1, "run_code"))
    assert turn.tell(paused(2, 1, "look")) == ["tool.3.1"]
    assert turn.tell(with_picture(settled(3), "deep.png")) == ["cell.2 hears 3"]
    assert turn.tell(settled(2, "inner")) == ["cell.1 hears 2"]
    assert turn.tell(settled(1, "outer")) == ["after_work.1"]
    assert turn.results() == [(1, "outer")]
    assert results(turn)[0].attachments == (picture("deep.png"),)


def test_a_cell_resumes_with_the_arguments_that_it_started_with() -> None:
    """Bug: after a restart, a cell that a person had edited was rerun with the model's original code."""
    edited = {"code": "look()"}
    turn = in_a_cell(waits(1), ended("w1", Approved(arguments=edited)), paused(1, 1, "look"))
    assert cell_of(turn.feed(settled(2))).arguments == edited
    turn = Turn(started(stages=("before_tool_call",)), calls("run_code"), ruled(1, arguments=edited))
    turn.feed(paused(1, 1, "look"))
    assert cell_of(turn.feed(settled(2))).arguments == edited


# Invalid pauses


@pytest.mark.parametrize("number", [0, 2, 9])
def test_a_first_pause_with_a_wrong_number_is_ignored(number: int) -> None:
    """Bug: from then on the call counted as a cell that had paused, although it had not."""
    turn = in_a_cell()
    assert turn.tell(paused(1, number, "a")) == []
    assert in_short(turn.machine.outstanding()) == ["tool.1.1"]
    assert turn.tell(paused(1, 1, "a")) == ["tool.2.1"]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_later_pause_with_a_wrong_number_is_ignored(number: int) -> None:
    """Ours: the pauses of a rerun cell are already journaled."""
    turn = in_a_cell(paused(1, 1, "a"), settled(2))
    assert turn.tell(paused(1, number, "b")) == []
    assert turn.recovered() == ["cell.1 hears 2"]
    assert turn.tell(paused(1, 2, "b")) == ["tool.3.1"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_paused_cell_cannot_pause_again(number: int) -> None:
    """Ours: a paused cell does not run."""
    turn = in_a_cell(paused(1, 1, "a"))
    assert turn.tell(paused(1, number, "b")) == []
    assert turn.recovered() == ["tool.2.1"]


def test_a_settled_or_unknown_call_cannot_pause() -> None:
    """Ours: machine rule 5, an input about a settled or unknown call is ignored."""
    turn = Turn(started(), calls("run_code", "look"), settled(1, "over"))
    assert turn.tell(paused(1, 1, "a")) == []
    assert turn.tell(paused(9, 1, "a")) == []
    assert turn.machine.calls.under_way() == [2]
    assert turn.machine.calls.one_runs()


def test_a_call_that_waits_for_a_person_cannot_pause() -> None:
    """Bug: its calls ran before it was approved, in a turn that stayed parked."""
    turn = in_a_cell(waits(1))
    assert turn.tell(paused(1, 1, "a")) == []
    assert turn.machine.phase is Phase.PARKED
    assert turn.tell(ended("w1")) == ["tool.1.2"]
    assert turn.tell(paused(1, 1, "a")) == ["tool.2.1"]


def test_a_pause_without_running_calls_is_ignored() -> None:
    """Bug: the iteration ended and the model was called without the cell's result."""
    turn = in_a_cell()
    assert turn.tell(paused(1, 1)) == []
    assert turn.recovered() == ["tool.1.1"]
    turn.feed(paused(1, 1, "a"), settled(2))
    assert turn.tell(paused(1, 2)) == []
    assert turn.recovered() == ["cell.1 hears 2"]
    assert turn.tell(settled(1, "over")) == ["after_work.1"]
    assert turn.results() == [(1, "over")]


def test_a_cell_itself_cannot_start_to_wait() -> None:
    """Bug: after the wait the cell was rerun, and its first pause was taken for a journaled one."""
    turn = in_a_cell(paused(1, 1, "a"))
    assert turn.tell(waits(1)) == []
    assert turn.tell(settled(2)) == ["cell.1 hears 2"]
    assert turn.tell(waits(1)) == []
    assert turn.recovered() == ["cell.1 hears 2"]


# The end of a cell


def test_only_the_cells_result_is_sent_to_the_model() -> None:
    """Seed: the model reads the observation of the cell, not the calls that the cell made."""
    turn = in_a_cell(paused(1, 1, "a", "b"), recorded(2), recorded(3), paused(1, 2), settled(1, "both"))
    assert turn.talk() == ["user: hello", "assistant: run_code", "tool 1: both"]
    assert turn.history() == turn.talk()


def test_the_calls_of_a_cell_are_in_the_records_of_the_turn() -> None:
    """Seed: calls are recorded in the order of execution, whatever the model is shown."""
    turn = in_a_cell(paused(1, 1, "a", "b"), recorded(3, "b"), recorded(2, "a"), paused(1, 2), recorded(1))
    assert [record.request_digest for record in turn.machine.calls.records] == ["d3", "d2", "d1"]


def test_the_attachments_of_a_cells_calls_are_kept_with_the_cells_result() -> None:
    """Ours: an attachment that no result names is pruned; code has only its name."""
    turn = in_a_cell(paused(1, 1, "a", "b", "c!"))
    turn.feed(with_picture(settled(3), "b.png"), with_picture(settled(2), "a.png"))
    turn.feed(with_picture(settled(1), "cell.png"))
    (message,) = results(turn)
    assert [part.name for part in message.attachments] == ["cell.png", "a.png", "b.png"]


def test_the_attachment_of_a_call_that_outlives_its_cell_is_kept_too() -> None:
    """Bug: only results from before the end of the cell were kept."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2), settled(1))
    turn.feed(with_picture(settled(3), "late.png"))
    assert results(turn)[0].attachments == (picture("late.png"),)


def test_an_iteration_waits_for_calls_that_outlive_their_cell() -> None:
    """Ours: running calls are awaited, because they may have effects."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2))
    assert turn.tell(settled(1, "early")) == []
    assert turn.recovered() == ["tool.3.1"]
    assert turn.tell(recorded(3)) == ["after_work.1"]
    assert turn.results() == [(1, "early")]
    assert len(turn.machine.calls.records) == 1


def test_a_waiting_call_is_abandoned_when_its_cell_ends() -> None:
    """Ours: calls rule 3, no code is left that could receive the person's decision."""
    turn = in_a_cell(paused(1, 1, "a", "pay"), waits(3), settled(2))
    assert turn.tell(settled(1, "early")) == ["after_work.1"]
    assert turn.results() == [(1, "early")]
    assert turn.tell(ended("w3")) == []
    assert turn.machine.phase is Phase.PASSING


def test_a_call_that_starts_to_wait_after_its_cell_has_ended_is_abandoned() -> None:
    """Ours: calls rule 3 also holds if the wait opens after the cell has ended."""
    turn = in_a_cell(paused(1, 1, "a", "pay", "b"), settled(2), settled(1, "early"))
    assert turn.tell(waits(3)) == []
    assert turn.recovered() == ["tool.4.1"]
    assert turn.tell(waits(4, kind="timer")) == ["after_work.1"]
    assert turn.tell(ended("w3")) == []


def test_an_abandoned_call_is_neither_reported_nor_recorded() -> None:
    """Ours: the call was never executed, and the code that made it has ended."""
    turn = in_a_cell(paused(1, 1, "a", "pay"), waits(3))
    heard = cell_of(turn.feed(settled(2)))
    turn.feed(settled(1, "early"))
    assert [one.call_id for one in heard.answers] == [2]
    assert turn.machine.calls.records == []


def test_a_turn_reports_whether_a_call_still_lacks_its_result() -> None:
    """Ours: a cell's state is kept only with an accepted result."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2))
    assert [turn.machine.calls.lacks_result(one) for one in (1, 2, 3, 9)] == [True, False, True, False]
    turn.feed(cancelled())
    assert not any(turn.machine.calls.lacks_result(one) for one in (1, 2, 3, 9))


def test_a_cell_may_fail_while_it_is_paused() -> None:
    """Ours: the host may end a cell from outside, for instance when its time is up."""
    turn = in_a_cell(paused(1, 1, "a"))
    assert turn.tell(settled(1, error=BROKEN)) == []
    assert turn.tell(settled(2)) == ["after_work.1"]
    assert turn.results() == [(1, "PLUGIN_ERROR")]


def test_a_cell_may_run_beside_other_calls() -> None:
    """Ours: with code mode in the standard protocol, results keep the order of the calls."""
    turn = Turn(started(), calls("look", "run_code"))
    assert turn.tell(paused(2, 1, "pay")) == ["tool.3.1"]
    assert turn.tell(settled(3)) == ["cell.2 hears 3"]
    assert turn.tell(settled(2, "cell")) == []
    assert turn.tell(settled(1, "seen")) == ["after_work.1"]
    assert turn.results() == [(1, "seen"), (2, "cell")]


# Waiting in a cell


def test_a_turn_parks_in_a_cell_only_when_the_cell_is_paused_and_nothing_runs() -> None:
    """Seed: the worker process is released and the turn is waiting."""
    turn = in_a_cell(paused(1, 1, "a", "pay"))
    assert turn.tell(waits(3)) == []
    assert turn.tell(settled(2)) == ["cell.1 hears 2"]
    assert turn.tell(paused(1, 2, "b")) == ["tool.4.1"]
    assert turn.tell(settled(4)) == ["cell.1 hears 2 4"]
    assert turn.tell(paused(1, 3)) == ["park w3"]
    assert turn.machine.phase is Phase.PARKED


def test_a_call_that_waits_while_the_cell_computes_does_not_park_the_turn() -> None:
    """Ours: code that is still computing may make more calls."""
    turn = in_a_cell(paused(1, 1, "a", "pay"), settled(2))
    assert turn.tell(waits(3)) == []
    assert turn.recovered() == ["cell.1 hears 2"]
    assert turn.tell(paused(1, 2)) == ["park w3"]


def test_a_turn_does_not_park_while_another_call_runs() -> None:
    """Ours: a cell that waits does not delay the other calls of the iteration."""
    turn = Turn(started(), calls("run_code", "look"), paused(1, 1, "pay"))
    assert turn.tell(waits(3)) == []
    assert turn.tell(settled(2)) == ["park w3"]


def test_when_a_wait_ends_the_call_runs_and_then_the_cell_resumes() -> None:
    """Seed: a decision in any process resumes the cell."""
    turn = in_a_cell(paused(1, 1, "sleep"), waits(2, kind="timer"))
    assert turn.recovered() == ["park w2"]
    (command,) = turn.feed(ended("w2", Elapsed()))
    assert isinstance(command, RunTool)
    assert (command.key, command.granted, command.call.parent) == ("tool.2.2", Elapsed(), 1)
    assert turn.recovered() == ["tool.2.2"]
    assert turn.tell(settled(2, "slept")) == ["cell.1 hears 2"]
    assert turn.tell(settled(1, "done")) == ["after_work.1"]


@pytest.mark.parametrize("order", [(2, 3), (3, 2)], ids=str)
def test_waits_of_one_cell_may_end_in_any_order(order: tuple[int, int]) -> None:
    """Ours: of two approvals gathered by one cell, either may be decided first."""
    turn = in_a_cell(paused(1, 1, "pay", "pay"), waits(2), waits(3))
    first, second = order
    assert turn.machine.phase is Phase.PARKED
    assert turn.tell(ended(f"w{first}")) == [f"tool.{first}.2"]
    assert turn.tell(settled(first)) == [f"cell.1 hears {first}"]
    assert turn.tell(paused(1, 2)) == [f"park w{second}"]
    assert turn.tell(ended(f"w{second}")) == [f"tool.{second}.2"]
    assert turn.tell(settled(second)) == [f"cell.1 hears {first} {second}"]


def test_a_result_for_a_parked_cell_restarts_the_turns_clock() -> None:
    """Bug: the turn's clock stood still while the cell ran again."""
    turn = in_a_cell(paused(1, 1, "pay"), waits(2), limit_ms=10_000)
    assert turn.machine.account.deadline_ms is None
    assert turn.tell(settled(2)) == ["cell.1 hears 2"]
    assert turn.machine.phase is Phase.ACTING
    assert turn.machine.account.deadline_ms == 4_000 + 10_000 - 3_000


# Recovery


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ((), ["tool.1.1"]),
        ((paused(1, 1, "a", "b"),), ["tool.2.1", "tool.3.1"]),
        ((paused(1, 1, "a", "b"), settled(3)), ["cell.1 hears 3", "tool.2.1"]),
        ((paused(1, 1, "a", "b"), settled(3), settled(2)), ["cell.1 hears 3"]),
        ((paused(1, 1, "a", "b"), settled(3), settled(2), paused(1, 2)), ["cell.1 hears 3 2"]),
        ((paused(1, 1, "a", "b"), settled(3), paused(1, 2, "c")), ["tool.2.1", "tool.4.1"]),
        ((paused(1, 1, "a", "b"), waits(2), settled(3)), ["cell.1 hears 3"]),
        ((paused(1, 1, "a", "b"), waits(2), settled(3), paused(1, 2)), ["park w2"]),
        ((paused(1, 1, "a", "b"), settled(3), settled(1)), ["tool.2.1"]),
        ((paused(1, 1, "a"), settled(2), finish(1), settled(1)), ["before_completion.1"]),
    ],
    ids=[
        "never paused", "paused, calls run", "computes, a call runs", "computes, a result is kept",
        "computes after all answers", "paused again", "computes, a call waits", "parked",
        "ended before a call", "finished",
    ],
)  # fmt: skip
def test_a_fresh_machine_repeats_only_the_unanswered_commands(
    more: tuple[Input, ...], asked: list[str]
) -> None:
    """Seed: after a crash in the middle of a cell, finished calls are not repeated."""
    turn = in_a_cell(*more, resumed())
    assert turn.recovered() == asked


def test_a_process_that_takes_over_a_cell_gets_its_calls_and_results() -> None:
    """Ours: a cell that this process has not run is run again, with the same results in the same order."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(3, "B"), paused(1, 2, "c"), settled(2, "A"))
    fresh = TurnMachine()
    for one in turn.inputs:
        fresh.feed(decode_input(encode_input(one)))
    command = cell_of(fresh.outstanding())
    assert [(one.call_id, one.name) for one in command.made] == [(2, "a"), (3, "b"), (4, "c")]
    assert [one.value for one in command.answers] == ["B", "A"]
    assert (command.count, command.call.name) == (2, "run_code")


# Turns that end during a cell


ENDS: dict[str, tuple[Callable[[], Input], str]] = {
    "cancelled": (cancelled, "commit cancelled"),
    "out of time": (out_of_time, "commit turn_budget"),
    "aborted": (aborted, "commit plugin_abort"),
}


@pytest.mark.parametrize(("end", "commit"), ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize(
    "more",
    [
        (),
        (paused(1, 1, "a", "b"),),
        (paused(1, 1, "a", "b"), settled(2)),
        (paused(1, 1, "a", "b"), waits(2), waits(3)),
        (paused(1, 1, "a", "b"), waits(2), settled(3)),
        (paused(1, 1, "a", "b"), settled(2), finish(1)),
        (paused(1, 1, "a", "run_code"), paused(3, 1, "c"), waits(4)),
    ],
    ids=["begun", "paused", "resumed", "parked", "a call waits", "about to finish", "a cell in a cell"],
)
def test_a_turn_that_ends_in_a_cell_has_one_result_for_the_model(
    more: tuple[Input, ...], end: Callable[[], Input], commit: str
) -> None:
    """Ours: machine rule 3, a call without a result when the turn ends gets CANCELLED."""
    turn = in_a_cell(*more)
    assert turn.tell(end()) == ["stop", commit]
    assert turn.results() == [(1, "CANCELLED")]
    assert turn.talk()[-1] == "tool 1: CANCELLED"
    before = turn.talk(), turn.machine.outcome
    late = (paused(1, 2, "z"), settled(2), settled(1), ended("w2"), finish(1), waits(3))
    assert [turn.tell(one) for one in late] == [[]] * len(late)
    assert (turn.talk(), turn.machine.outcome) == before


def test_a_cell_that_has_its_result_keeps_it_when_the_turn_ends() -> None:
    """Ours: only the call that still runs is cancelled; no code is left to read its result."""
    turn = in_a_cell(paused(1, 1, "a", "b"), settled(2), settled(1, "early"), cancelled())
    assert turn.results() == [(1, "early")]


def test_time_counts_while_a_cell_computes() -> None:
    """Ours: a cell that never ends is stopped by the time limit of its turn."""
    turn = in_a_cell(paused(1, 1, "a"), settled(2), limit_ms=10_000)
    assert turn.machine.account.deadline_ms == 10_000
    assert turn.tell(out_of_time()) == ["stop", "commit turn_budget"]


def test_the_cost_of_a_cells_call_does_not_grow_with_the_number_of_earlier_calls() -> None:
    """Bug: every call of a cell looked at all calls before it."""
    turn = in_a_cell()

    def steps_of(number: int) -> int:
        steps = 0

        def count(frame: object, event: str, given: object) -> None:
            nonlocal steps
            steps += event == "call"

        pausing, settling = paused(1, number, "look"), settled(number + 1)
        sys.setprofile(count)
        try:
            turn.machine.feed(pausing)
            turn.machine.feed(settling)
        finally:
            sys.setprofile(None)
        return steps

    counted = [steps_of(number) for number in range(1, 1_001)]
    assert counted[-1] == counted[1]
