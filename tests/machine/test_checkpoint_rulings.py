"""Rulings of plugins at checkpoints, before injected messages are delivered."""

from __future__ import annotations

from typing import Any

import pytest
from machine_turns import (
    BROKEN,
    ENOUGH,
    NOTE,
    SPENT,
    Turn,
    answered,
    calls,
    cancelled,
    misfit,
    passed,
    prepared,
    ran,
    ruled,
    said,
    settled,
    started,
)

from standfast.errors import ErrorObject, InternalError
from standfast.machine import Checkpoint, Input, Phase, RunHooks
from standfast.machine.inputs import HookStage
from standfast.model.limits import Usage, UsageEntry
from standfast.model.outcome import Finished, StopReason
from standfast.model.ruling import Ruling

REACHED: dict[HookStage, tuple[Input, ...]] = {
    "after_work": (calls("a"), settled(1, "r")),
    "before_completion": (answered("42"),),
}


def at(kind: HookStage) -> Turn:
    return Turn(started(stages=("checkpoint",)), *REACHED[kind])


@pytest.mark.parametrize("kind", REACHED)
def test_plugins_rule_at_a_checkpoint_before_it_is_passed(kind: HookStage) -> None:
    """Seed: checkpoint hooks run after work and before completion, and recovery runs them again."""
    turn = at(kind)
    assert turn.machine.phase is Phase.PASSING
    assert turn.machine.outstanding() == [RunHooks(kind, 1)]
    assert turn.recovered() == [f"hooks.{kind}.1"]
    assert turn.tell(ran(kind)) == [f"{kind}.1"]
    assert turn.recovered() == [f"{kind}.1"]


@pytest.mark.parametrize("kind", REACHED)
def test_a_checkpoint_cannot_be_passed_before_plugins_have_ruled(kind: HookStage) -> None:
    """Bug: a journal without a stage was read as one with an empty ruling."""
    with pytest.raises(InternalError, match=f"CheckpointPassed while at checkpoint {kind}"):
        at(kind).feed(passed(kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "other"), [("after_work", "before_completion"), ("before_completion", "after_work")]
)
def test_a_ruling_for_another_checkpoint_is_refused(kind: HookStage, other: HookStage) -> None:
    """Bug: a ruling for another checkpoint was applied to the one that was reached."""
    with pytest.raises(InternalError, match="HooksRan while passing"):
        at(kind).feed(ran(other))


def test_a_checkpoint_is_ruled_on_once() -> None:
    """Ours: a repeated ruling must not reach the model twice."""
    turn = at("after_work")
    turn.feed(ran("after_work", messages=(said("x"),)))
    with pytest.raises(InternalError, match="HooksRan while passing"):
        turn.feed(ran("after_work", messages=(said("x"),)))


def test_each_checkpoint_has_its_own_number() -> None:
    """Ours: the number distinguishes the rulings of one turn in the journal."""
    turn = at("after_work")
    turn.feed(ran("after_work"), passed("after_work"))
    assert turn.tell(answered()) == ["hooks.before_completion.2"]
    assert turn.tell(ran("before_completion", 2)) == ["before_completion.2"]


def test_plugins_messages_after_work_precede_injected_messages() -> None:
    """Ours: the order is the same whether the plugin or the person was faster."""
    turn = at("after_work")
    assert turn.tell(ran("after_work", messages=(said("plugin"),), events=(NOTE,))) == ["after_work.1"]
    assert turn.tell(passed("after_work", said("person"))) == ["model.2"]
    assert turn.history()[2:] == ["tool 1: r", "p note", "user: plugin", "user: person"]


def test_messages_of_plugins_before_completion_keep_the_turn_running() -> None:
    """Seed: a checkpoint hook that injects a message continues the turn."""
    turn = at("before_completion")
    (command,) = turn.feed(ran("before_completion", messages=(said("not yet"),)))
    assert command == Checkpoint("before_completion", 1, "42", held=True)
    assert turn.recovered() == ["before_completion.1 held"]
    assert turn.tell(passed("before_completion")) == ["model.2"]
    assert turn.talk() == ["user: hello", "assistant: 42", "user: not yet"]
    turn.feed(answered("43"), ran("before_completion", 2), passed("before_completion"))
    assert turn.machine.outcome == Finished(text="43")


def test_events_alone_do_not_keep_the_turn_running() -> None:
    """Ours: only a message gives the model something to answer."""
    turn = at("before_completion")
    assert turn.tell(ran("before_completion", events=(NOTE,), usage=(SPENT,))) == ["before_completion.1"]
    assert turn.tell(passed("before_completion")) == ["commit finished"]
    assert turn.history() == ["user: hello", "assistant: 42", "p note"]


def test_a_plugins_message_takes_precedence_over_an_invalid_answer() -> None:
    """Ours: after a message, from a plugin or injected, the answer is not final."""
    turn = at("before_completion")
    turn.feed(ran("before_completion", messages=(said("shorter"),)))
    assert turn.tell(misfit()) == ["model.2"]
    assert turn.talk()[-1] == "user: shorter"


@pytest.mark.parametrize("kind", REACHED)
@pytest.mark.parametrize(("how", "error"), [("abort", ENOUGH), ("failure", BROKEN)])
def test_a_plugin_that_aborts_or_fails_at_a_checkpoint_ends_the_turn(
    kind: HookStage, how: str, error: ErrorObject
) -> None:
    """Seed: AbortTurn at a checkpoint; a failing hook ends the turn."""
    turn = at(kind)
    assert turn.tell(ran(kind, 1, **{how: error}, events=(NOTE,))) == ["stop", "commit plugin_abort"]
    assert (turn.stopped().reason, turn.stopped().error) == (StopReason.PLUGIN_ABORT, error)
    assert turn.history()[-2:] == ["p note", "ended plugin_abort"]


@pytest.mark.parametrize("kind", REACHED)
def test_a_turn_can_be_cancelled_while_plugins_rule_at_a_checkpoint(kind: HookStage) -> None:
    """Ours: a caller that cancels a turn does not wait for a plugin."""
    assert at(kind).tell(cancelled()) == ["stop", "commit cancelled"]


# Model calls of plugins


def test_plugins_model_calls_are_in_the_ledger_under_their_names() -> None:
    """Seed: usage by plugins is usage of the session, distinguished by its source."""
    turn = Turn(started(stages=("before_turn", "prepare", "before_tool_call", "checkpoint", "after_turn")))
    spent: dict[str, Any] = {"usage": (SPENT,), "model_calls": 1}
    turn.feed(ran("before_turn", **spent), prepared(1, ruling=Ruling(**spent)))
    turn.feed(answered(usage=Usage(input=100, output=10), model="m"), ran("before_completion", **spent))
    turn.feed(ran("after_turn", **spent), passed("before_completion"))
    assert turn.machine.account.usage == Usage(input=128, output=10, calls=5)
    assert turn.machine.account.ledger("turn") == (
        UsageEntry(source="turn", model="m", usage=Usage(input=100, output=10, calls=1)),
        UsageEntry(source="p", model="m", usage=Usage(input=28, calls=4)),
    )
    assert turn.machine.account.model_calls == 5


def test_usage_of_rulings_on_calls_and_results_counts_too() -> None:
    """Ours: model calls of hooks count in every stage."""
    turn = Turn(started(stages=("before_tool_call",)), calls("a"))
    turn.feed(ruled(1, usage=(SPENT,), model_calls=1), settled(1, usage=(SPENT,), model_calls=2))
    assert turn.machine.account.ledger("turn")[-1].usage == Usage(input=14, calls=2)
    assert turn.machine.account.model_calls == 4
    (command,) = turn.feed(passed("after_work"))
    assert command.key == "model.5"


def test_model_calls_without_usage_are_counted_too() -> None:
    """Ours: the numbers of model calls stay unique in the session."""
    turn = Turn(started(stages=("before_turn",)))
    assert turn.tell(ran("before_turn", model_calls=2)) == ["model.3"]
    assert turn.machine.account.ledger("turn") == ()
