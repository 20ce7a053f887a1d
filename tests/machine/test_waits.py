"""Calls that wait: for a person, a timer, or a result from outside."""

from __future__ import annotations

import itertools

import pytest
from machine_turns import DENIED, Turn, calls, ended, passed, settled, started, switched, waits

from standfast.errors import ErrorObject
from standfast.machine import Park, Phase, RunTool
from standfast.model.outcome import (
    Approved,
    Completed,
    Denied,
    Elapsed,
    Expired,
    Failed,
    Wait,
    Waiting,
    WaitOutcome,
)

OUTCOMES: dict[str, WaitOutcome] = {
    "approved": Approved(),
    "approved with other arguments": Approved(arguments={"cents": 1}),
    "denied": Denied(reason="too much"),
    "expired": Expired(),
    "elapsed": Elapsed(),
    "completed": Completed(value=[1]),
    "failed outside": Failed(error=ErrorObject(code="X", message="x")),
}


def test_a_turn_whose_only_call_waits_parks() -> None:
    """Ours: SPEC §7, the outcome is `waiting`, and the worker is free for other turns."""
    turn = Turn(started(), calls("pay"))
    opened = waits(1)
    assert turn.feed(opened) == [Park(Waiting(waits=(opened.wait,)))]
    assert turn.machine.phase is Phase.PARKED
    assert turn.machine.outstanding() == [Park(Waiting(waits=(opened.wait,)))]


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_call_resumes_with_the_outcome_of_its_wait(outcome: WaitOutcome) -> None:
    """Ours: the host that executes the call decides what a denial or a timer means for it."""
    opened = waits(1)
    turn = Turn(started(), calls("pay"), opened)
    (command,) = turn.feed(ended("w1", outcome))
    assert isinstance(command, RunTool)
    assert (command.key, command.call.name) == ("tool.1.2", "pay")
    assert (command.waited, command.granted) == (opened.wait, outcome)
    assert turn.machine.outstanding() == [command]


def test_a_turn_parks_only_when_no_call_is_running() -> None:
    """Ours: SPEC §12, approvals can be combined with parallel calls."""
    turn = Turn(started(), calls("pay", "look", "look"))
    assert turn.tell(waits(1)) == []
    assert turn.tell(settled(3)) == []
    assert turn.tell(settled(2)) == ["park w1"]


def test_a_call_can_resume_while_others_still_run() -> None:
    """Ours: a quick decision need not wait for slow tools."""
    turn = Turn(started(), calls("pay", "look"), waits(1))
    assert turn.tell(ended("w1")) == ["tool.1.2"]
    assert turn.machine.phase is Phase.ACTING
    assert turn.tell(settled(1, "paid")) == []
    assert turn.tell(settled(2, "seen")) == ["after_work.1"]
    assert turn.results() == [(1, "paid"), (2, "seen")]


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))), ids=str)
def test_waits_may_end_in_any_order(order: tuple[int, ...]) -> None:
    """Ours: several people may decide, in any order."""
    turn = Turn(started(), calls("a", "b", "c"), waits(1), waits(2), waits(3))
    left = [1, 2, 3]
    for call_id in order:
        left.remove(call_id)
        assert turn.tell(ended(f"w{call_id}")) == [f"tool.{call_id}.2"]
        parks = " ".join(["park", *(f"w{one}" for one in left)])
        assert turn.tell(settled(call_id, call_id)) == [parks if left else "after_work.1"]
    assert turn.results() == [(1, 1), (2, 2), (3, 3)]


def test_several_waits_may_end_before_the_first_call_finishes() -> None:
    """Ours: a second decision may arrive while the first resumed call still runs."""
    turn = Turn(started(), calls("a", "b"), waits(1), waits(2))
    assert turn.tell(ended("w2")) == ["tool.2.2"]
    assert turn.tell(ended("w1")) == ["tool.1.2"]
    assert [command.key for command in turn.machine.outstanding() if isinstance(command, RunTool)] == [
        "tool.1.2",
        "tool.2.2",
    ]


def test_a_call_may_wait_more_than_once() -> None:
    """Ours: a tool may ask for approval and then sleep."""
    turn = Turn(started(), calls("a"), waits(1), ended("w1"))
    assert turn.tell(waits(1, "nap", "timer")) == ["park nap"]
    (command,) = turn.feed(ended("nap", Elapsed()))
    assert isinstance(command, RunTool)
    assert (command.key, command.granted) == ("tool.1.3", Elapsed())
    assert command.waited == waits(1, "nap", "timer").wait


def test_a_wait_ends_only_once() -> None:
    """Ours: a decision that arrives twice runs the call once."""
    turn = Turn(started(), calls("a"), waits(1), ended("w1"))
    assert turn.tell(ended("w1", Denied())) == []
    (command,) = turn.machine.outstanding()
    assert isinstance(command, RunTool)
    assert (command.key, command.granted) == ("tool.1.2", Approved())


@pytest.mark.parametrize("wait_id", ["", "w2", "W1", "w1 "])
def test_the_end_of_an_unknown_wait_is_ignored(wait_id: str) -> None:
    """Ours: stale decisions and timers are ignored."""
    turn = Turn(started(), calls("a"), waits(1))
    assert turn.tell(ended(wait_id)) == []
    assert turn.machine.phase is Phase.PARKED


def test_a_wait_for_a_settled_call_is_ignored() -> None:
    """Ours: machine rule 5, a settled call cannot wait."""
    turn = Turn(started(), calls("a", "b"), settled(1, "A"))
    assert turn.tell(waits(1)) == []
    assert turn.tell(ended("w1")) == []
    assert turn.tell(settled(2)) == ["after_work.1"]


def test_a_result_that_arrives_after_another_ended_the_wait_is_ignored() -> None:
    """Ours: a call gets one result, the first."""
    turn = Turn(started(), calls("a", "b"), waits(1), ended("w1", Denied()))
    turn.feed(settled(1, error=DENIED), settled(1, "late"), settled(2))
    assert turn.results() == [(1, "PERMISSION_DENIED"), (2, None)]


def test_the_end_of_a_wait_after_the_call_settled_is_ignored() -> None:
    """Ours: a call that has its result does not run again."""
    turn = Turn(started(), calls("a", "b"), waits(1), settled(1, "somehow"))
    assert turn.tell(ended("w1")) == []
    assert turn.tell(settled(2)) == ["after_work.1"]


def test_reopening_a_wait_replaces_the_previous_one() -> None:
    """Ours: a call waits for one thing at a time."""
    turn = Turn(started(), calls("a"), waits(1, "old"))
    assert turn.tell(waits(1, "new")) == ["park new"]
    assert turn.tell(ended("old")) == []
    assert turn.tell(ended("new")) == ["tool.1.2"]


def test_a_frame_requested_while_the_turn_is_parked_opens_after_the_calls() -> None:
    """Ours: no call is left without its result."""
    turn = Turn(started(), calls("a"), waits(1), switched())
    assert turn.tell(ended("w1")) == ["tool.1.2"]
    assert turn.tell(settled(1, "A")) == ["commit switched to f_2"]
    assert turn.results() == [(1, "A")]


def test_the_waits_of_a_turn_are_listed_in_the_order_of_the_calls() -> None:
    """Ours: lists shown to people have a stable order."""
    turn = Turn(started(), calls("a", "b", "c"), waits(3), waits(1), settled(2))
    (park,) = turn.machine.outstanding()
    assert isinstance(park, Park)
    assert [wait.call_id for wait in park.outcome.waits] == [1, 3]
    assert park.outcome.waits[0] == Wait(wait_id="w1", kind="approval", call_id=1, due_at=9_000_000)


def test_iterations_after_a_wait_are_unaffected_by_it() -> None:
    """Ours: no state of a wait is left when its iteration is over."""
    turn = Turn(started(), calls("a"), waits(1), ended("w1"), settled(1), passed("after_work"))
    assert turn.feed(calls("a"))[0].key == "tool.2.1"
    assert turn.tell(settled(2, "x")) == ["after_work.2"]
