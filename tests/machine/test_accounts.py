"""The account of a turn: usage by model, the records of its calls, its entries and their times."""

from __future__ import annotations

import pytest
from machine_turns import (
    Turn,
    answered,
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

from standfast.machine import CallModel, Checkpoint, Input, ModelReplied, RunTool
from standfast.model.limits import Usage, UsageEntry
from standfast.model.message import AssistantMessage, RequestedCall, ToolCall
from standfast.model.outcome import Finished, Waiting
from standfast.model.session import FrameOpened, TurnEnded


def _reply(model: str, output: int) -> ModelReplied:
    usage = Usage(input=1, output=output, calls=7)
    return ModelReplied(at_ms=0, calls=(RequestedCall(name="a"),), usage=usage, model=model)


def test_usage_is_added_up_by_model_and_for_the_turn() -> None:
    """Ours: the ledger lists usage per model; a reply counts as one call."""
    turn = Turn(started(), _reply("small", 10), settled(1), passed("after_work"))
    turn.feed(_reply("big", 100), settled(2, 2), passed("after_work"))
    turn.feed(answered(usage=Usage(input=1, output=1_000), model="small"))
    assert turn.machine.account.usage == Usage(input=3, output=1_110, calls=3)
    assert turn.machine.account.ledger("turn") == (
        UsageEntry(source="turn", model="small", usage=Usage(input=2, output=1_010, calls=2)),
        UsageEntry(source="turn", model="big", usage=Usage(input=1, output=100, calls=1)),
    )


def test_a_failed_model_call_counts_but_belongs_to_no_model() -> None:
    """Ours: the turn counts the model calls it made; the usage of a failed call is unknown."""
    turn = Turn(started(), failed(retryable=True), failed())
    assert turn.machine.account.usage == Usage(calls=2)
    assert turn.machine.account.model_calls == 2
    assert turn.machine.account.ledger("turn") == ()


def test_the_summary_has_the_outcome_the_usage_and_the_records_in_order_of_arrival() -> None:
    """Ours: the summary is kept in addition to the history."""
    turn = Turn(started(), calls("a", "b", "c"), recorded(3), settled(2), recorded(1))
    turn.feed(passed("after_work"), answered(usage=Usage(output=5)), passed("before_completion"))
    outcome = turn.machine.outcome
    assert outcome == Finished(text="done")
    summary = turn.machine.summary(outcome)
    assert (summary.outcome, summary.usage) == (outcome, Usage(output=5, calls=2))
    assert [record.request_digest for record in summary.calls] == ["d3", "d1"]


def test_a_parked_turn_has_a_summary_too() -> None:
    """Ours: users see what a turn did before it began to wait."""
    turn = Turn(started(), calls("a", "b"), recorded(1))
    opened = waits(2)
    turn.feed(opened)
    waiting = Waiting(waits=(opened.wait,))
    assert turn.machine.summary(waiting).outcome == waiting
    assert len(turn.machine.summary(waiting).calls) == 1


def test_a_late_result_leaves_no_record() -> None:
    """Ours: a call leaves one record, however often its result arrives."""
    turn = Turn(started(), calls("a", "b"), recorded(1), recorded(1), recorded(9))
    assert len(turn.machine.calls.records) == 1


def test_every_entry_has_the_time_of_the_input_that_made_it() -> None:
    """Ours: times come from the journal, so a replay gives the same entries."""
    turn = Turn(started(said("before")), calls("a"), settled(1), passed("after_work", said("x")), cancelled())
    assert [entry.at_ms for entry in turn.machine.entries] == [0, 0, 1_000, 2_000, 3_000, 4_000]


@pytest.mark.parametrize(
    ("last", "payload"),
    [(failed(), TurnEnded), (cancelled(), TurnEnded), (switched(), FrameOpened)],
    ids=["failed", "cancelled", "switched"],
)
def test_the_messages_are_the_entries_without_the_end_of_the_turn(last: Input, payload: type) -> None:
    """Ours: events are for readers of the history, not for the model."""
    turn = Turn(started(), last)
    entries = [entry.payload for entry in turn.machine.entries]
    assert entries[:-1] == turn.machine.messages
    assert isinstance(entries[-1], payload)


def test_a_finished_turn_adds_only_its_messages() -> None:
    """Ours: an answer ends the turn by itself, so the history needs no separate entry for the end."""
    turn = Turn(started(), answered(), passed("before_completion"))
    assert [entry.payload for entry in turn.machine.entries] == turn.machine.messages
    assert isinstance(turn.machine.messages[-1], AssistantMessage)


def test_the_machine_knows_its_turn_id() -> None:
    """Ours: the turn's id comes with the first input."""
    assert Turn(started()).machine.turn_id == "t_1"


def test_every_effect_of_a_turn_has_a_unique_key() -> None:
    """Ours: the journal looks up completed effects by these keys."""
    call = ToolCall(call_id=3, name="a")
    assert CallModel(2).key == "model.2"
    assert RunTool(call, 2).key == "tool.3.2"
    assert Checkpoint("after_work", 4).key == "checkpoint.4"
    turn = Turn(
        started(), failed(retryable=True), calls("a", "b"), waits(1), settled(2), ended("w1"), settled(1)
    )
    turn.feed(passed("after_work"), answered(), passed("before_completion", said("x")))
    effects = [one.key for one in turn.commands if isinstance(one, CallModel | RunTool | Checkpoint)]
    assert len(effects) == len(set(effects)) == 9
