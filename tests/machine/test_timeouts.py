"""Calls that exceed their time-out and whose tool does not simply report it."""

from __future__ import annotations

from machine_turns import (
    Turn,
    calls,
    cancelled,
    ended,
    in_a_cell,
    passed,
    paused,
    settled,
    started,
    timed_out,
    waits,
)

from standfast.machine import RunTool
from standfast.model.message import ToolMessage
from standfast.model.outcome import Approved, Wait


def test_a_call_that_timed_out_is_prepared_again_and_says_so() -> None:
    """Ours: SPEC §4, `on_timeout` selects the reaction; the machine learns of the time-out by an input."""
    turn = Turn(started(), calls("pay"))
    (command,) = turn.feed(timed_out(1))
    assert isinstance(command, RunTool)
    assert (command.key, command.timeouts, command.timed_out) == ("tool.1.2", 1, True)
    assert turn.machine.outstanding() == [command]
    assert turn.recovered() == ["tool.1.2"]


def test_after_a_persons_answer_the_timeout_no_longer_counts() -> None:
    """Ours: the person's answer decides how to continue; the earlier time-out stays in the records."""
    turn = Turn(started(), calls("pay"), timed_out(1), waits(1))
    (command,) = turn.feed(ended("w1", Approved()))
    assert isinstance(command, RunTool)
    assert (command.key, command.timeouts, command.timed_out) == ("tool.1.3", 1, False)


def test_every_execution_is_recorded() -> None:
    """Ours: SPEC §4, each execution has a record, even if it is retried."""
    turn = Turn(started(), calls("pay"), timed_out(1), timed_out(1, 2), settled(1, "paid"))
    assert [record.status for record in turn.machine.calls.records] == ["timeout", "timeout"]
    turn.feed(timed_out(1, 3))
    assert len(turn.machine.calls.records) == 2


def test_a_cell_receives_only_the_last_execution_of_its_call() -> None:
    """Ours: code sees one result of each call it makes."""
    turn = in_a_cell(paused(1, 1, "pay"))
    assert turn.tell(timed_out(2)) == ["tool.2.2"]
    assert turn.tell(settled(2, "paid")) == ["cell.1 hears 2"]
    assert turn.tell(settled(1), passed("after_work")) == ["model.2"]


def test_a_cancelled_call_that_timed_out_before_may_have_taken_effect() -> None:
    """Bug: while a person decided about a retry, the call counted as never executed."""
    turn = Turn(started(), calls("pay"), timed_out(1), waits(1), cancelled())
    (result,) = (message for message in turn.machine.messages if isinstance(message, ToolMessage))
    assert result.error is not None
    assert (result.error.code, "unknown" in result.error.message) == ("CANCELLED", True)


def test_a_cancelled_call_that_a_crash_interrupted_may_have_taken_effect() -> None:
    """Bug: while a person was asked after a crash, the call counted as never executed."""
    asked = waits(1)
    wait = Wait(wait_id="w1", kind="approval", call_id=1, due_at=9_000_000, value={"interrupted": True})
    turn = Turn(
        started(), calls("pay", "look"), type(asked)(at_ms=asked.at_ms, wait=wait), waits(2), cancelled()
    )
    first, second = (message for message in turn.machine.messages if isinstance(message, ToolMessage))
    assert first.error is not None
    assert second.error is not None
    assert ["unknown" in first.error.message, "unknown" in second.error.message] == [True, False]
