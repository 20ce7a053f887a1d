"""Turns that end early: by a frame, a cancellation or an abort; and inputs after the end."""

from __future__ import annotations

import pytest
from machine_turns import (
    SWITCH,
    Turn,
    aborted,
    answered,
    asked_for,
    call,
    calls,
    cancelled,
    ended,
    failed,
    passed,
    recorded,
    said,
    settled,
    started,
    switched,
    waits,
)

from standfast.machine import Commit, Input, Phase, StopEffects
from standfast.model.frame import FrameSwitch
from standfast.model.message import ToolMessage
from standfast.model.outcome import FrameSwitched, Stopped, StopReason
from standfast.model.session import FrameOpened, TurnEnded

MIDDLES: dict[str, tuple[tuple[Input, ...], list[tuple[int, object]]]] = {
    "before it starts": ((), []),
    "while the model is asked": ((started(),), []),
    "while the model is asked again": ((started(), failed(retryable=True)), []),
    "while calls run": ((started(), calls("a", "b")), [(1, "CANCELLED"), (2, "CANCELLED")]),
    "with a round half settled": (
        (started(), calls("a", "b", "c"), settled(2, "B")),
        [(1, "CANCELLED"), (2, "B"), (3, "CANCELLED")],
    ),
    "with an unreadable call": (
        (started(), asked_for(call("a", "?"), call("b"))),
        [(1, "INVALID_ARGUMENT"), (2, "CANCELLED")],
    ),
    "while one runs and one waits": (
        (started(), calls("a", "b"), waits(1)),
        [(1, "CANCELLED"), (2, "CANCELLED")],
    ),
    "while it is parked": (
        (started(), calls("a", "b"), settled(1, "A"), waits(2)),
        [(1, "A"), (2, "CANCELLED")],
    ),
    "while a woken call runs": ((started(), calls("a"), waits(1), ended("w1")), [(1, "CANCELLED")]),
    "after work": ((started(), calls("a"), settled(1, "A")), [(1, "A")]),
    "before completion": ((started(), answered()), []),
    "with a frame about to open": ((started(), calls("a"), switched()), [(1, "CANCELLED")]),
}
"""Turns in progress, and the results of their calls if the turn ends there."""


@pytest.mark.parametrize(("inputs", "results"), MIDDLES.values(), ids=MIDDLES.keys())
def test_a_cancelled_turn_ends_at_once_and_every_call_has_a_result(
    inputs: tuple[Input, ...], results: list[tuple[int, object]]
) -> None:
    """Ours: SPEC §12, a cancelled tool must not leave the session unusable."""
    turn = Turn(*inputs)
    assert turn.tell(cancelled()) == ["stop", "commit cancelled"]
    assert turn.results() == results
    assert turn.stopped().error.code == "CANCELLED"
    assert turn.machine.outstanding() == []
    last = turn.machine.entries[-1].payload
    assert last == TurnEnded(outcome=turn.stopped(), usage=turn.machine.account.usage)


@pytest.mark.parametrize(("inputs", "results"), MIDDLES.values(), ids=MIDDLES.keys())
def test_an_aborted_turn_ends_with_the_hosts_reason_and_every_call_has_a_result(
    inputs: tuple[Input, ...], results: list[tuple[int, object]]
) -> None:
    """Ours: SPEC §8, AbortTurn; SPEC §12, every call in the history has a result."""
    turn = Turn(*inputs)
    given = aborted(StopReason.INTERRUPTED)
    assert turn.feed(given) == [
        StopEffects(),
        Commit(Stopped(reason=StopReason.INTERRUPTED, error=given.error)),
    ]
    assert turn.results() == results


@pytest.mark.parametrize(
    ("middle", "words"),
    [
        ((started(), calls("pay"), waits(1)), "before it was allowed to run"),
        ((started(), calls("pay"), waits(1, kind="timer")), "whether it took effect is unknown"),
        ((started(), calls("pay"), waits(1, kind="completion")), "whether it took effect is unknown"),
        ((started(), calls("pay")), "whether it took effect is unknown"),
        ((started(), calls("pay"), waits(1), ended("w1")), "whether it took effect is unknown"),
    ],
    ids=["unapproved", "sleeping", "waiting for an outside result", "running", "approved and running"],
)
def test_a_cancelled_call_says_whether_it_may_have_taken_effect(
    middle: tuple[Input, ...], words: str
) -> None:
    """Ours: the model must not assume that a payment was not made when it may have been."""
    turn = Turn(*middle, cancelled())
    result = turn.machine.messages[-1]
    assert isinstance(result, ToolMessage)
    assert result.error is not None
    assert words in result.error.message
    assert (result.error.hint is None) == ("allowed" in words)


def test_cancelling_keeps_the_results_and_the_order_of_a_half_settled_iteration() -> None:
    """Ours: settled calls keep their results and records."""
    turn = Turn(started(), calls("a", "b"), recorded(2), cancelled())
    assert [record.request_digest for record in turn.machine.calls.records] == ["d2"]
    assert turn.talk()[1:] == ["assistant: a b", "tool 1: CANCELLED", "tool 2: 2"]


# Frames


@pytest.mark.parametrize(
    "inputs",
    [(started(),), (started(), calls("a"), settled(1)), (started(), answered())],
    ids=["while the model is asked", "after work", "before completion"],
)
def test_a_frame_opens_at_once_if_no_call_is_running(inputs: tuple[Input, ...]) -> None:
    """Seed: `before_llm_call` may switch the frame; the model is not called."""
    turn = Turn(*inputs)
    assert turn.feed(switched()) == [StopEffects(), Commit(FrameSwitched(switch=SWITCH))]
    assert turn.machine.entries[-1].payload == FrameOpened(switch=SWITCH)


def test_a_frame_opens_only_after_running_calls_have_their_results() -> None:
    """Ours: machine rule 3, also for the call that requested the frame."""
    turn = Turn(started(), calls("continue_as", "look"))
    assert turn.tell(switched()) == []
    assert turn.tell(settled(1)) == []
    assert turn.tell(settled(2, "seen")) == ["commit switched to f_2"]
    assert turn.results() == [(1, None), (2, "seen")]
    assert isinstance(turn.machine.entries[-1].payload, FrameOpened)


def test_the_last_requested_frame_opens() -> None:
    """Ours: if two calls of an iteration each request a frame, the last request wins."""
    turn = Turn(started(), calls("a"), switched(), switched(FrameSwitch(frame_id="f_3")))
    assert turn.tell(settled(1)) == ["commit switched to f_3"]


def test_a_turn_that_opened_a_frame_is_not_marked_as_stopped() -> None:
    """Ours: a frame switch is a separate outcome."""
    turn = Turn(started(), switched())
    assert not any(isinstance(entry.payload, TurnEnded) for entry in turn.machine.entries)
    assert turn.machine.outcome == FrameSwitched(switch=SWITCH)


# After the end

ENDS: dict[str, tuple[Input, ...]] = {
    "finished": (started(), answered(), passed("before_completion")),
    "failed": (started(), failed()),
    "cancelled": (started(), calls("a"), cancelled()),
    "switched": (started(), switched()),
}

LATE: tuple[Input, ...] = (
    started(), answered(), calls("a"), failed(retryable=True), recorded(1), waits(1), ended("w1"),
    passed("after_work", said("x")), switched(), cancelled(), aborted(),
)  # fmt: skip


@pytest.mark.parametrize("inputs", ENDS.values(), ids=ENDS.keys())
def test_inputs_after_the_end_change_nothing(inputs: tuple[Input, ...]) -> None:
    """Ours: machine rule 5, a turn ends once, by whichever input comes first."""
    turn = Turn(*inputs)
    before = (
        turn.machine.outcome,
        list(turn.machine.entries),
        turn.machine.account.usage,
        list(turn.machine.calls.records),
    )
    for given in LATE:
        assert turn.feed(given) == []
    machine = turn.machine
    assert (machine.outcome, machine.entries, machine.account.usage, machine.calls.records) == before
    assert machine.phase is Phase.ENDED
    assert sum(isinstance(command, Commit) for command in turn.commands) == 1
