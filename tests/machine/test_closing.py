"""Plugins are notified of how a turn will end, and can change that only by failing."""

from __future__ import annotations

import pytest
from machine_turns import (
    BROKEN,
    ENOUGH,
    NOTE,
    STAGES,
    SWITCH,
    Turn,
    aborted,
    answered,
    at,
    calls,
    cancelled,
    failed,
    misfit,
    out_of_time,
    passed,
    prepared,
    ran,
    resumed,
    ruled,
    said,
    settled,
    started,
    switched,
)

from standfast.machine import Checkpoint, Commit, Input, Phase, RunHooks
from standfast.model.outcome import Ended, Finished, FrameSwitched, Stopped, StopReason

WORDS = {"messages": (said("next"),), "events": (NOTE,)}

ENDS: dict[str, tuple[Input, ...]] = {
    "provider_error": (failed(),),
    "context_overflow": (failed("CONTEXT_OVERFLOW"),),
    "cancelled": (cancelled(),),
    "turn_budget": (out_of_time(),),
    "plugin_abort": (aborted(),),
    "no_progress": (calls("a"), settled(1, error=BROKEN)),
    "output_invalid": (answered(), misfit()),
    "switched to f_2": (switched(),),
    "switched to f_2 after work": (calls("a"), switched(), settled(1, "r")),
}


def closing(*inputs: Input) -> Turn:
    return Turn(started(stages=("after_turn",), max_no_progress=1, max_output_retries=0), *inputs)


def asked(turn: Turn) -> RunHooks:
    (command,) = turn.machine.outstanding()
    assert isinstance(command, RunHooks)
    return command


@pytest.mark.parametrize("end", ENDS)
def test_plugins_are_notified_of_every_kind_of_end_before_the_commit(end: str) -> None:
    """Seed: after_turn hooks receive every kind of outcome."""
    turn = closing(*ENDS[end])
    assert turn.machine.phase is Phase.CLOSING
    command = asked(turn)
    assert command.stage == "after_turn"
    assert turn.recovered() == [command.key]
    assert turn.machine.outcome is None
    commit = Commit(command.outcome)  # type: ignore[arg-type]
    assert turn.feed(ran("after_turn", command.number)) == [commit]
    assert turn.tell(ran("after_turn", command.number)) == []
    assert turn.machine.outcome == command.outcome
    assert _name(command.outcome) == end.removesuffix(" after work")


def _name(outcome: Ended | None) -> str:
    return outcome.reason if isinstance(outcome, Stopped) else "switched to f_2"


@pytest.mark.parametrize("end", ENDS)
def test_events_at_the_end_precede_it_and_messages_go_to_the_next_turn(end: str) -> None:
    """Seed: AppendTurnMessages after a turn become the input of another; events stay in this one."""
    turn = closing(*ENDS[end])
    turn.feed(ran("after_turn", asked(turn).number, **WORDS))
    last = turn.history()[-2:]
    assert last[0] == "p note"
    assert last[1].startswith(("ended", "frame"))
    assert turn.machine.next_messages() == (said("next"),)
    assert turn.machine.whole() is turn.machine.entries


@pytest.mark.parametrize("end", ENDS)
def test_a_plugin_that_fails_at_the_end_turns_it_into_a_plugin_abort(end: str) -> None:
    """Seed: after_turn hooks are not observers; if one fails, the failure is reported."""
    turn = closing(*ENDS[end])
    assert turn.tell(ran("after_turn", asked(turn).number, failure=BROKEN)) == ["commit plugin_abort"]
    assert (turn.stopped().reason, turn.stopped().error) == (StopReason.PLUGIN_ABORT, BROKEN)
    assert turn.history()[-1] == "ended plugin_abort"
    assert not any(line.startswith("frame") for line in turn.history())


@pytest.mark.parametrize("given", [cancelled(), out_of_time(), aborted(), switched(), settled(1), resumed()])
def test_inputs_during_after_turn_do_not_change_the_outcome(given: Input) -> None:
    """Ours: the outcome is already decided, and after_turn hooks are not interrupted."""
    turn = closing(failed())
    assert turn.tell(given) == []
    assert turn.machine.phase is Phase.CLOSING
    assert turn.tell(ran("after_turn")) == ["commit provider_error"]


def test_time_does_not_count_during_after_turn() -> None:
    """Ours: a turn that is over cannot run out of time."""
    turn = Turn(started(stages=("after_turn",), max_wall_ms=9_000), failed())
    assert turn.machine.account.deadline_ms is None


# An end that can still be deferred


def test_plugins_are_notified_of_an_answer_before_the_turn_ends() -> None:
    """Ours: machine rule 6, the commit may be refused, so the checkpoint is passed last."""
    turn = closing()
    (checkpoint,) = turn.feed(answered("42"))
    assert checkpoint == Checkpoint("before_completion", 1, "42", closing=1)
    assert turn.recovered() == ["before_completion.1 closing 1"]
    assert turn.feed(ran("after_turn", 1, **WORDS)) == [Checkpoint("before_completion", 1, "42")]
    assert turn.recovered() == ["before_completion.1"]
    assert turn.tell(passed("before_completion")) == ["commit finished"]
    assert turn.machine.outcome == Finished(text="42")


def test_the_complete_turn_has_the_plugins_entries_before_it_has_ended() -> None:
    """Ours: the commit writes the complete turn, before the turn is marked as ended."""
    turn = closing(answered("42"))
    assert turn.history() == ["user: hello", "assistant: 42"]
    turn.feed(ran("after_turn", 1, **WORDS))
    assert [type(entry.payload).__name__ for entry in turn.machine.entries] == [
        "UserMessage",
        "AssistantMessage",
    ]
    assert turn.history() == ["user: hello", "assistant: 42", "p note"]
    assert turn.machine.next_messages() == (said("next"),)
    turn.feed(passed("before_completion"))
    assert turn.history() == ["user: hello", "assistant: 42", "p note"]
    assert turn.machine.next_messages() == (said("next"),)


def test_rulings_on_an_end_that_a_message_defers_are_discarded_and_asked_for_again() -> None:
    """Ours: machine rule 6, rulings on an end take effect only if the turn does end."""
    turn = closing(answered("42"), ran("after_turn", 1, **WORDS))
    assert turn.tell(passed("before_completion", said("wait"))) == ["model.2"]
    assert turn.history() == ["user: hello", "assistant: 42", "user: wait"]
    assert turn.machine.next_messages() == ()
    assert turn.tell(answered("43")) == ["before_completion.2 closing 2"]
    turn.feed(ran("after_turn", 2, messages=(said("other"),)), passed("before_completion"))
    assert turn.history() == ["user: hello", "assistant: 42", "user: wait", "assistant: 43"]
    assert turn.machine.next_messages() == (said("other"),)


@pytest.mark.parametrize(
    ("given", "reason"),
    [(cancelled(), "cancelled"), (out_of_time(), "turn_budget"), (aborted(), "plugin_abort")],
)
def test_plugins_are_notified_again_if_the_outcome_changes(given: Input, reason: str) -> None:
    """Ours: rulings on an answer are discarded if the turn ends without one."""
    turn = closing(answered(), ran("after_turn", 1, **WORDS))
    assert turn.tell(given) == ["stop", "hooks.after_turn.2"]
    assert turn.machine.next_messages() == ()
    assert turn.history() == ["user: hello", "assistant: done"]
    assert turn.tell(ran("after_turn", 2)) == [f"commit {reason}"]
    assert turn.history() == ["user: hello", "assistant: done", f"ended {reason}"]


def test_a_plugin_that_fails_on_an_answer_ends_the_turn_without_one() -> None:
    """Seed: a failing after_turn hook means plugin_abort."""
    turn = closing(answered())
    assert turn.tell(ran("after_turn", 1, failure=BROKEN, events=(NOTE,))) == ["commit plugin_abort"]
    assert turn.history() == ["user: hello", "assistant: done", "p note", "ended plugin_abort"]


def test_plugins_cannot_abort_a_turn_that_has_ended() -> None:
    """Ours: plugins can change the end of a turn only by failing."""
    turn = closing(answered())
    turn.feed(ran("after_turn", 1, abort=ENOUGH), passed("before_completion"))
    assert turn.machine.outcome == Finished(text="done")


def test_after_turn_does_not_run_while_a_plugin_keeps_the_turn_running() -> None:
    """Ours: such a turn does not end."""
    turn = Turn(started(stages=("checkpoint", "after_turn")), answered())
    assert turn.tell(ran("before_completion", messages=(said("no"),))) == ["before_completion.1 held"]
    turn.feed(passed("before_completion"), answered())
    assert turn.tell(ran("before_completion", 2)) == ["before_completion.2 closing 2"]


def test_a_turn_that_finishes_before_after_turn_has_run_waits_for_it() -> None:
    """Ours: no turn is committed before its after_turn hooks have run."""
    turn = closing(answered("42"))
    assert turn.tell(passed("before_completion")) == ["hooks.after_turn.2"]
    assert asked(turn).outcome == Finished(text="42")
    assert turn.tell(ran("after_turn", 2)) == ["commit finished"]


def test_an_invalid_answer_does_not_end_the_turn() -> None:
    """Ours: after_turn hooks see only a valid answer."""
    turn = Turn(started(stages=("after_turn",)), answered("many"))
    assert turn.tell(misfit()) == ["model.2"]
    assert turn.tell(answered("7")) == ["before_completion.2 closing 2"]


# All stages together


def test_a_turn_with_every_stage_runs_them_in_order() -> None:
    """Seed: the order of the hooks in a turn; SPEC §8."""
    turn = Turn()
    assert [
        turn.tell(given)
        for given in (
            started(stages=STAGES), ran("before_turn"), prepared(1), calls("a"), ruled(1), settled(1),
            ran("after_work"), passed("after_work"), prepared(2), answered(), ran("before_completion", 2),
            ran("after_turn", 2), passed("before_completion"),
        )
    ] == [
        ["hooks.before_turn.1"], ["prepare.1"], ["model.1"], ["tool.1.1?"], [], ["hooks.after_work.1"],
        ["after_work.1"], ["prepare.2"], ["model.2"], ["hooks.before_completion.2"],
        ["before_completion.2 closing 2"], ["before_completion.2"], ["commit finished"],
    ]  # fmt: skip


def test_plugins_are_notified_of_a_frame_opened_instead_of_a_call() -> None:
    """Seed: after_turn hooks also run if the turn ends with a frame switch."""
    turn = Turn(started(stages=("prepare", "after_turn")))
    assert turn.tell(prepared(1, switch=SWITCH)) == ["hooks.after_turn.1"]
    assert asked(turn).outcome == FrameSwitched(switch=SWITCH)


def test_an_entry_at_the_end_has_the_time_of_the_plugins_ruling() -> None:
    """Ours: the time of an entry is that of the input that caused it."""
    turn = closing(failed())
    turn.feed(at(77_000, ran("after_turn", 1, events=(NOTE,))))
    assert [entry.at_ms for entry in turn.machine.entries[-2:]] == [77_000, 77_000]
