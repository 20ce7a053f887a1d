"""Rulings before the first model call of a turn: plugins may add to the turn or end it."""

from __future__ import annotations

from typing import Any

import pytest
from machine_turns import (
    BROKEN,
    ENOUGH,
    NOTE,
    Turn,
    answered,
    cancelled,
    out_of_time,
    passed,
    ran,
    said,
    started,
    switched,
)

from standfast.errors import ErrorObject
from standfast.machine import Input, Phase, TurnMachine, TurnStarted
from standfast.model.outcome import StopReason
from standfast.model.prompt import PromptContribution, PromptLayer


def opening(**limits: Any) -> Turn:
    return Turn(started(stages=("before_turn",), **limits))


def test_before_turn_runs_before_the_first_model_call() -> None:
    """Seed: before_turn runs before the first model call."""
    turn = opening()
    assert turn.recovered() == ["hooks.before_turn.1"]
    assert turn.machine.phase is Phase.OPENING
    assert turn.tell(ran("before_turn")) == ["model.1"]
    assert turn.talk() == ["user: hello"]


def test_a_turn_without_before_turn_hooks_calls_the_model_at_once() -> None:
    """Ours: a stage without hooks is skipped."""
    assert Turn().tell(started(stages=("before_tool_call", "checkpoint", "after_turn"))) == ["model.1"]


def test_messages_of_plugins_follow_the_turns_input() -> None:
    """Seed: AppendTurnMessages before a turn are part of the request."""
    turn = opening()
    assert turn.tell(ran("before_turn", messages=(said("mind the gap"), said("and the step")))) == ["model.1"]
    assert turn.talk() == ["user: hello", "user: mind the gap", "user: and the step"]
    assert turn.machine.next_messages() == ()


def test_events_of_plugins_are_in_the_history_but_hidden_from_the_model() -> None:
    """Seed: EmitEvents writes to the history; only the plugin can interpret the events."""
    turn = opening()
    turn.feed(ran("before_turn", events=(NOTE, NOTE), messages=(said("psst"),)))
    assert turn.history() == ["user: hello", "p note", "p note", "user: psst"]
    assert turn.talk() == ["user: hello", "user: psst"]


@pytest.mark.parametrize(("how", "error"), [("abort", ENOUGH), ("failure", BROKEN)])
def test_a_plugin_that_aborts_or_fails_ends_the_turn_before_the_model_is_called(
    how: str, error: ErrorObject
) -> None:
    """Seed: AbortTurn, and a hook that fails ends the turn as plugin_abort."""
    turn = opening()
    assert turn.tell(ran("before_turn", 1, **{how: error}, events=(NOTE,))) == ["stop", "commit plugin_abort"]
    assert (turn.stopped().reason, turn.stopped().error) == (StopReason.PLUGIN_ABORT, error)
    assert turn.history() == ["user: hello", "p note", "ended plugin_abort"]
    assert turn.machine.account.model_calls == 0


def test_an_abort_takes_precedence_over_a_failure() -> None:
    """Ours: a plugin's deliberate abort is reported before another plugin's failure."""
    turn = opening()
    turn.feed(ran("before_turn", abort=ENOUGH, failure=BROKEN))
    assert turn.stopped().error == ENOUGH


def test_messages_of_plugins_that_end_the_turn_go_to_the_next_turn() -> None:
    """Ours: a plugin's message must not get lost, nor a person's."""
    turn = opening()
    turn.feed(ran("before_turn", abort=ENOUGH, messages=(said("later"),)))
    assert turn.talk() == ["user: hello"]
    assert turn.machine.next_messages() == (said("later"),)


@pytest.mark.parametrize(
    ("given", "commit"),
    [
        (cancelled(), "commit cancelled"),
        (out_of_time(), "commit turn_budget"),
        (switched(), "commit switched to f_2"),
    ],
)
def test_a_turn_can_end_while_before_turn_hooks_run(given: Input, commit: str) -> None:
    """Ours: a caller that cancels a turn does not wait for a plugin."""
    assert opening().tell(given) == ["stop", commit]


def test_the_time_of_plugins_counts_towards_the_turn() -> None:
    """Ours: max_wall_ms also limits a turn with slow plugins."""
    assert opening(max_wall_ms=500).machine.account.deadline_ms == 500


def test_the_protocols_extension_and_the_turns_prompt_survive_a_replay() -> None:
    """Seed: extensions of a turn are durable; SPEC §6, the turn is the last prompt layer."""
    layer = PromptLayer(contributions=(PromptContribution(content="be brief"),))
    machine = TurnMachine()
    machine.feed(TurnStarted(at_ms=1, turn_id="t_1", message=said("hi"), extension={"k": [1]}, prompt=layer))
    assert (machine.extension, machine.prompt_layer) == ({"k": [1]}, layer)
    assert (TurnMachine().extension, TurnMachine().prompt_layer) == (None, None)


def test_before_turn_runs_once() -> None:
    """Ours: before_turn hooks run once per turn, whatever the number of model calls."""
    turn = opening()
    turn.feed(ran("before_turn"), answered())
    assert turn.tell(passed("before_completion", said("and"))) == ["model.2"]
