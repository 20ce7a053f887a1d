"""Turns that are stopped by a tool or by crashing processes, and the records of their calls."""

from __future__ import annotations

import msgspec
from machine_turns import Turn, calls, recorded, resumed, settled, started, timed_out, waits

from standfast.errors import Code, ErrorObject
from standfast.machine.commands import Command, Commit, RunTool
from standfast.machine.turn_machine import MAX_RESUMES
from standfast.model.capability import MAX_TRACEBACKS
from standfast.model.outcome import Stopped, StopReason


def _reason(commands: list[Command]) -> StopReason:
    """Return the stop reason, read from the commands that end the turn."""
    (reason,) = (
        one.outcome.reason for one in commands if isinstance(one, Commit) and isinstance(one.outcome, Stopped)
    )
    return reason


def test_a_tool_may_end_its_turn_with_its_error() -> None:
    """Seed: the stop reason is `tool_error`."""
    error = ErrorObject(code=Code.TOOL_ERROR, message="the account is closed")
    turn = Turn(started(), calls("pay"))
    assert (
        _reason(turn.feed(msgspec.structs.replace(settled(1, error=error), ends_turn=True))) == "tool_error"
    )


def test_a_turn_that_crashes_every_process_is_stopped() -> None:
    """Seed: a turn that was resumed too often ends with the stop reason `interrupted`."""
    turn = Turn(started(), calls("pay"))
    for _ in range(MAX_RESUMES):
        assert turn.feed(resumed()) == []
    assert _reason(turn.feed(resumed())) == "interrupted"


def test_only_the_first_tracebacks_of_a_turn_are_kept() -> None:
    """Ours: a tool that always raises must not fill the journal."""
    count = MAX_TRACEBACKS + 1
    turn = Turn(started(), calls(*["look"] * count))
    for call_id in range(1, count + 1):
        given = recorded(call_id)
        assert given.record is not None
        turn.feed(
            msgspec.structs.replace(
                given, record=msgspec.structs.replace(given.record, traceback="Traceback")
            )
        )
    assert [bool(one.traceback) for one in turn.machine.calls.records] == [True] * MAX_TRACEBACKS + [False]


def test_a_timeout_may_have_no_record() -> None:
    """Ours: journals of other hosts need not keep records."""
    turn = Turn(started(), calls("pay"))
    turn.feed(msgspec.structs.replace(timed_out(1), record=None))
    assert turn.machine.calls.records == []


def test_the_tools_of_approved_and_started_calls_are_needed() -> None:
    """Ours: only an agent that has these tools may resume the turn."""
    turn = Turn(started(), calls("pay", "look"), waits(1))
    assert turn.machine.calls.needed_tools((), ()) == set()
    assert turn.machine.calls.needed_tools(("w1",), ()) == {"pay"}
    (look,) = [one.key for one in turn.machine.outstanding() if isinstance(one, RunTool)]
    assert turn.machine.calls.needed_tools((), (look,)) == {"look"}
