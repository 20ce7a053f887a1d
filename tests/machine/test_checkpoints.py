"""Checkpoints: where injected messages are delivered, and where the answer is validated."""

from __future__ import annotations

import pytest
from machine_turns import Turn, answered, calls, misfit, passed, said, settled, started

from standfast.errors import InternalError
from standfast.machine import Checkpoint, OutputCheck
from standfast.machine.inputs import CheckpointKind
from standfast.model.message import UserMessage
from standfast.model.outcome import Finished, StopReason


def test_messages_injected_into_an_idle_session_precede_the_next_turns_input() -> None:
    """Seed: inject_turn_input into an idle session waits for its next turn."""
    turn = Turn(started(said("first"), said("second")))
    assert turn.talk() == ["user: first", "user: second", "user: hello"]


def test_messages_delivered_after_work_follow_the_results() -> None:
    """Ours: SPEC §7, `inject` delivers at the next checkpoint of the running turn."""
    turn = Turn(started(), calls("a"), settled(1, "r"))
    assert turn.tell(passed("after_work", said("be quick"), said("please"))) == ["model.2"]
    assert turn.talk()[2:] == ["tool 1: r", "user: be quick", "user: please"]


def test_messages_before_completion_keep_the_turn_running() -> None:
    """Ours: a message that arrives before the last checkpoint is answered in this turn."""
    turn = Turn(started(), answered("done"))
    assert turn.tell(passed("before_completion", said("one more thing"))) == ["model.2"]
    assert turn.talk() == ["user: hello", "assistant: done", "user: one more thing"]
    turn.feed(answered("really done"), passed("before_completion"))
    assert turn.machine.outcome == Finished(text="really done")


def test_an_injected_message_keeps_its_id() -> None:
    """Ours: the id shows the sender that the message was delivered."""
    turn = Turn(started(), answered(), passed("before_completion", said("x", "i_7")))
    message = turn.machine.messages[-1]
    assert isinstance(message, UserMessage)
    assert message.input_id == "i_7"


def test_messages_take_precedence_over_an_invalid_answer() -> None:
    """Ours: after a message the answer is not final, so the model need not correct it."""
    turn = Turn(started(max_output_retries=0), answered("no"))
    output = OutputCheck(problem="no number")
    assert turn.tell(passed("before_completion", said("wait"), output=output)) == ["model.2"]
    assert turn.talk()[-1] == "user: wait"


def test_checkpoints_are_numbered_and_only_the_last_one_has_the_answer() -> None:
    """Ours: hooks that check the answer get it with the command."""
    turn = Turn(started(), calls("a"))
    assert turn.feed(settled(1)) == [Checkpoint("after_work", 1, "")]
    turn.feed(passed("after_work"))
    (last,) = turn.feed(answered("42"))
    assert last == Checkpoint("before_completion", 2, "42")
    assert turn.machine.checkpoints == 2
    assert last.key == "checkpoint.2"


@pytest.mark.parametrize(
    ("reached", "given"), [("after_work", "before_completion"), ("before_completion", "after_work")]
)
def test_passing_a_checkpoint_that_was_not_reached_is_refused(
    reached: CheckpointKind, given: CheckpointKind
) -> None:
    """Bug: a finished turn called the model again when a stale checkpoint was passed."""
    turn = Turn(started(), *((calls("a"), settled(1)) if reached == "after_work" else (answered(),)))
    with pytest.raises(InternalError, match=f"CheckpointPassed while at checkpoint {reached}"):
        turn.feed(passed(given))


def test_a_valid_answer_is_the_value_of_the_turn() -> None:
    """Ours: with output_type, an outcome has a value in addition to the text."""
    turn = Turn(started(), answered('{"n": 1}'))
    turn.feed(passed("before_completion", output=OutputCheck(value={"n": 1})))
    assert turn.machine.outcome == Finished(text='{"n": 1}', value={"n": 1})
    assert turn.machine.answer(5) == Finished(text='{"n": 1}', value=5)


def test_a_turn_without_a_reply_has_no_answer() -> None:
    """Ours: the query works at any time, even before the first reply."""
    assert Turn(started()).machine.answer() == Finished(text="")


def test_the_model_is_shown_why_its_answer_is_invalid() -> None:
    """Ours: the model can correct only the mistakes it reads about."""
    turn = Turn(started(), answered("many"))
    assert turn.tell(misfit("$.n is no number")) == ["model.2"]
    assert turn.talk()[1:] == [
        "assistant: many",
        "user: Your answer does not fit: $.n is no number. Answer again, corrected.",
    ]


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_an_answer_that_stays_invalid_ends_the_turn(retries: int) -> None:
    """Ours: UsageLimits.max_output_retries limits the corrections."""
    turn = Turn(started(max_output_retries=retries), *[answered(), misfit()] * retries)
    assert turn.machine.outcome is None
    assert turn.tell(answered("still wrong"), misfit("no number")) == ["commit output_invalid"]
    assert turn.stopped().reason is StopReason.OUTPUT_INVALID
    assert (turn.stopped().error.code, turn.stopped().error.message) == ("OUTPUT_INVALID", "no number")
    assert turn.talk()[-1] == "assistant: still wrong"
