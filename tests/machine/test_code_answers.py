"""Effects of code on its turn: giving the answer, making no progress, using up the budget."""

from __future__ import annotations

import msgspec
import pytest
from machine_turns import (
    Turn,
    answered,
    asked_for,
    at,
    call,
    calls,
    finish,
    in_a_cell,
    in_short,
    misfit,
    passed,
    paused,
    ran,
    said,
    settled,
    started,
    switched,
)

from standfast.machine import (
    CallModel,
    Checkpoint,
    Input,
    OutputCheck,
    RunTool,
    ToolSettled,
)
from standfast.model.canonical import Json
from standfast.model.message import AssistantMessage
from standfast.model.outcome import Finished, FrameSwitched, StopReason

# Finishing


def test_code_gives_the_answer_as_if_the_model_had_written_it() -> None:
    """Seed: `finish(value)` ends the turn."""
    turn = in_a_cell(paused(1, 1, "a"), settled(2))
    assert turn.tell(finish(1, "42")) == []
    assert turn.feed(settled(1, "finished")) == [Checkpoint("before_completion", 1, "42")]
    assert turn.machine.answer(42) == Finished(text="42", value=42)
    assert turn.tell(passed("before_completion", output=OutputCheck(value=42))) == ["commit finished"]
    assert turn.machine.outcome == Finished(text="42", value=42)
    assert turn.talk() == ["user: hello", "assistant: run_code", "tool 1: finished", "assistant: 42"]
    last = turn.machine.messages[-1]
    assert last == AssistantMessage(text="42")


def test_a_turn_finishes_once_running_calls_have_their_results() -> None:
    """Ours: running calls get their results before the turn ends."""
    turn = Turn(started(), calls("run_code", "look"), paused(1, 1, "a", "b"), settled(3))
    assert turn.tell(finish(1)) == []
    assert turn.tell(settled(1)) == []
    assert turn.tell(settled(4)) == []
    assert turn.tell(settled(2)) == ["before_completion.1"]


def test_a_message_before_completion_defers_the_end_and_a_second_finish_works() -> None:
    """Ours: a message that arrives before the last checkpoint is answered in this turn."""
    turn = in_a_cell(finish(1, "first"), settled(1))
    assert turn.tell(passed("before_completion", said("wait"))) == ["model.2"]
    assert turn.tell(calls("run_code")) == ["tool.2.1"]
    assert turn.tell(finish(2, "second"), settled(2)) == ["before_completion.2"]
    assert turn.tell(passed("before_completion")) == ["commit finished"]
    assert turn.machine.outcome == Finished(text="second")


def test_a_deferred_finish_does_not_end_the_next_iteration() -> None:
    """Ours: after the message the model is called again, so the earlier answer is discarded."""
    turn = in_a_cell(finish(1, "first"), settled(1), passed("before_completion", said("wait")))
    turn.feed(calls("look"))
    assert turn.tell(settled(2)) == ["after_work.2"]


def test_plugins_may_hold_back_an_answer_of_code() -> None:
    """Ours: checkpoint hooks run before completion, whether the model or code gives the answer."""
    turn = Turn(started(stages=("checkpoint",)), calls("run_code"), finish(1))
    assert turn.tell(settled(1)) == ["hooks.before_completion.1"]
    assert turn.tell(ran("before_completion", messages=(said("really?"),))) == ["before_completion.1 held"]
    assert turn.tell(passed("before_completion")) == ["model.2"]


def test_the_model_is_shown_that_an_answer_of_code_is_invalid() -> None:
    """Seed: the value is validated against `output_type`."""
    turn = in_a_cell(finish(1, "many"), settled(1))
    assert turn.tell(misfit("$ is no number")) == ["model.2"]
    assert turn.talk()[-2:] == [
        "assistant: many",
        "user: Your answer does not fit: $ is no number. Answer again, corrected.",
    ]
    turn.feed(calls("run_code"), finish(2, "7"), settled(2))
    assert turn.tell(passed("before_completion", output=OutputCheck(value=7))) == ["commit finished"]
    assert turn.machine.outcome == Finished(text="7", value=7)


def test_answers_of_code_that_stay_invalid_end_the_turn() -> None:
    """Ours: UsageLimits.max_output_retries limits the corrections, also for answers of code."""
    turn = Turn(started(max_output_retries=1), calls("run_code"), finish(1), settled(1), misfit())
    assert turn.tell(calls("run_code"), finish(2), settled(2), misfit()) == ["commit output_invalid"]
    assert turn.stopped().reason is StopReason.OUTPUT_INVALID


def test_a_requested_frame_takes_precedence_over_an_answer() -> None:
    """Ours: `continue_as` hands the work over, so there is no answer yet."""
    for order in ((finish(1), switched()), (switched(), finish(1))):
        turn = in_a_cell(*order)
        assert turn.tell(settled(1)) == ["commit switched to f_2"]
        assert isinstance(turn.machine.outcome, FrameSwitched)
        assert turn.talk()[-1].startswith("tool 1")


def test_the_first_of_two_answers_counts() -> None:
    """Ours: if code answers twice in one iteration, the first answer ends the turn."""
    turn = Turn(started(), calls("run_code", "run_code"), finish(1, "first"), finish(2, "second"))
    turn.feed(settled(2), settled(1))
    assert turn.machine.answer() == Finished(text="first")


@pytest.mark.parametrize(
    "before",
    [
        (started(),),
        (started(), answered("done")),
        (started(), calls("run_code", "look"), settled(1)),
        (started(), calls("look"), settled(1)),
    ],
    ids=["asking", "before completion", "after its result", "after its iteration"],
)
def test_an_answer_of_a_call_that_is_not_running_is_ignored(before: tuple[Input, ...]) -> None:
    """Bug: the answer was kept, and ended the turn after the next iteration."""
    turn = Turn(*before)
    assert turn.tell(finish(1, "late")) == []
    match turn.machine.outstanding():
        case [CallModel()]:
            turn.feed(calls("look"), settled(1))
        case [RunTool()]:
            turn.feed(settled(2))
        case [Checkpoint(kind="before_completion")]:
            turn.feed(passed("before_completion", said("more")), calls("look"), settled(1))
    assert in_short(turn.machine.outstanding())[0].startswith("after_work")


# Progress


def reports(call_id: int, index: int, **report: Json) -> ToolSettled:
    """Return the report of a cell, as the runtime stores it."""
    return settled(call_id, {"index": index, **report})


def test_a_cell_with_the_same_report_is_not_progress() -> None:
    """Ours: its position in the history and the ids of its calls differ, and do not count."""
    turn = Turn(started(max_no_progress=1), calls("run_code"), paused(1, 1, "look"), settled(2, "grass"))
    turn.feed(reports(1, 0, result="grass", calls=[{"call_id": 2, "name": "look"}]), passed("after_work"))
    turn.feed(calls("run_code"), paused(3, 1, "look"), settled(4, "grass"))
    again = reports(3, 1, result="grass", calls=[{"call_id": 4, "name": "look"}])
    assert turn.tell(again) == ["commit no_progress"]


@pytest.mark.parametrize(
    "report",
    [
        {"result": "hay"},
        {"result": "grass", "stdout": "x"},
        {"result": "grass", "calls": [{"call_id": 2, "name": "look"}]},
        {"result": "grass", "calls": ["look"]},
        {"result": "grass", "calls": "look"},
    ],
    ids=["another result", "other output", "a call more", "calls in other words", "no calls at all"],
)
def test_a_cell_with_a_different_report_is_progress(report: dict[str, Json]) -> None:
    """Ours: the same code may find that the outside world has changed."""
    turn = Turn(started(max_no_progress=1), calls("run_code"), reports(1, 0, result="grass"))
    assert turn.tell(passed("after_work"), calls("run_code"), reports(2, 1, **report)) == ["after_work.2"]


# Budgets


def test_the_model_is_warned_about_its_budget_and_gets_a_last_step() -> None:
    """Seed: the model is warned at 60, 90 and 100 % of its budget."""
    turn = Turn(started(warns=True, max_iterations=2))
    assert turn.tell(calls("run_code"), settled(1, 1), passed("after_work")) == ["model.2"]
    assert turn.tell(calls("run_code"), settled(2, 2), passed("after_work")) == ["model.3"]
    assert turn.talk()[-1].startswith("user: 2 of 2 steps used (100 %). This is the last step")
    assert turn.tell(calls("run_code"), settled(3, 3), passed("after_work")) == ["commit turn_budget"]
    assert sum("used (" in line for line in turn.talk()) == 1


def test_the_last_step_may_give_the_answer() -> None:
    """Seed: the warning arrives while the model can still react."""
    turn = Turn(started(warns=True, max_iterations=1), calls("run_code"), settled(1), passed("after_work"))
    turn.feed(calls("run_code"), finish(2, "in time"), settled(2))
    assert turn.tell(passed("before_completion")) == ["commit finished"]


def test_time_and_tokens_count_towards_the_warnings() -> None:
    """Ours: the limit with the largest share is named, and the time is that of the inputs."""
    turn = Turn(at(0, started(warns=True, max_wall_ms=10_000)), at(100, calls("run_code")))
    turn.feed(at(6_100, settled(1)), at(6_200, passed("after_work")))
    assert turn.talk()[-1].startswith("user: 6.2 of 10 seconds used (62 %)")


def test_a_turn_without_warnings_has_no_last_step() -> None:
    """Ours: a standard turn ends at its limit."""
    turn = Turn(started(max_iterations=1), calls("look"), settled(1))
    assert turn.tell(passed("after_work")) == ["commit turn_budget"]
    assert turn.talk()[-1] == "tool 1: None"


def test_a_reply_keeps_the_models_full_text_beside_its_prose() -> None:
    """Ours: the model sees its full text again, people see only the prose."""
    turn = Turn(started())
    turn.feed(msgspec.structs.replace(asked_for(call("run_code")), text="I look.", raw="I look. ```…```"))
    reply = turn.machine.messages[-1]
    assert isinstance(reply, AssistantMessage)
    assert (reply.text, reply.raw) == ("I look.", "I look. ```…```")
