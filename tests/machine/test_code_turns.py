"""Turns whose input is code: one cell, no model, the same calls, waits and results as in any turn."""

from __future__ import annotations

import msgspec
import pytest
from machine_turns import (
    ENOUGH,
    NO_TIME,
    Turn,
    aborted,
    cancelled,
    ended,
    out_of_time,
    passed,
    paused,
    ran,
    recorded,
    resumed,
    ruled,
    said,
    settled,
    switched,
    timed_out,
    waits,
)

from standfast.errors import Code, ErrorObject, InternalError
from standfast.machine import Input, Phase, RunTool, Stage, ToolSettled, TurnStarted
from standfast.model.code import RUN_CODE, CodeInput
from standfast.model.limits import SessionLimits, UsageLimits
from standfast.model.message import UserMessage
from standfast.model.outcome import Finished, StopReason

CODE = CodeInput(code="pay(2)", limits=SessionLimits(), inputs={"n": 1})


def code_started(
    *injected: UserMessage, stages: tuple[Stage, ...] = (), limit_ms: int | None = None
) -> TurnStarted:
    return TurnStarted(
        at_ms=NO_TIME,
        turn_id="t_1",
        code=CODE,
        injected=injected,
        stages=stages,
        limits=UsageLimits(max_wall_ms=limit_ms),
    )


def gives_up(call_id: int, code: str = Code.TIMEOUT_WALL) -> ToolSettled:
    """Return the result of a cell that was stopped and whose calls are not awaited."""
    given = settled(call_id, error=ErrorObject(code=code, message="stopped"))
    return msgspec.structs.replace(given, gives_up_calls=True)


SITUATIONS: dict[str, tuple[Input, ...]] = {
    "running": (code_started(),),
    "running, not ruled on": (code_started(stages=("before_tool_call",)),),
    "waits for a call": (code_started(), paused(1, 1, "pay")),
    "waits for two calls": (code_started(), paused(1, 1, "pay", "look")),
    "waits for two calls, knows one result": (code_started(), paused(1, 1, "pay", "look"), settled(3)),
    "parked": (code_started(), paused(1, 1, "pay"), waits(2)),
    "before completion": (code_started(), settled(1, 4)),
    "before completion, plugins not asked": (code_started(stages=("checkpoint",)), settled(1, 4)),
    "ended": (code_started(), settled(1, 4), passed("before_completion")),
}

TABLE: list[tuple[str, Input, list[str], Phase]] = [
    ("running", settled(1, 4), ["before_completion.1"], Phase.PASSING),
    ("running", settled(1, error=ENOUGH), ["before_completion.1"], Phase.PASSING),
    ("running", gives_up(1), ["before_completion.1"], Phase.PASSING),
    ("running", gives_up(1, Code.CANCELLED), ["commit cancelled"], Phase.ENDED),
    ("running", paused(1, 1, "pay", "look"), ["tool.2.1", "tool.3.1"], Phase.ACTING),
    ("running", cancelled(), ["stop", "commit cancelled"], Phase.ENDED),
    ("running", out_of_time(), ["stop", "commit turn_budget"], Phase.ENDED),
    ("running", aborted(StopReason.TOOL_ERROR), ["stop", "commit tool_error"], Phase.ENDED),
    ("running", resumed(), [], Phase.ACTING),
    ("running", switched(), [], Phase.ACTING),
    ("running, not ruled on", ruled(1), [], Phase.ACTING),
    ("running, not ruled on", ruled(1, abort=ENOUGH), ["stop", "commit plugin_abort"], Phase.ENDED),
    ("waits for a call", settled(2, "paid"), ["cell.1 hears 2"], Phase.ACTING),
    ("waits for a call", waits(2), ["park w2"], Phase.PARKED),
    ("waits for a call", timed_out(2), ["tool.2.2"], Phase.ACTING),
    ("waits for a call", gives_up(1), ["stop", "before_completion.1"], Phase.PASSING),
    ("waits for a call", gives_up(1, Code.CANCELLED), ["stop", "commit cancelled"], Phase.ENDED),
    ("waits for two calls", settled(3), ["cell.1 hears 3"], Phase.ACTING),
    ("waits for two calls, knows one result", settled(1, 4), [], Phase.ACTING),
    ("waits for two calls, knows one result", gives_up(1), ["stop", "before_completion.1"], Phase.PASSING),
    ("parked", ended("w2"), ["tool.2.2"], Phase.ACTING),
    ("parked", cancelled(), ["stop", "commit cancelled"], Phase.ENDED),
    ("before completion", passed("before_completion"), ["commit finished"], Phase.ENDED),
    ("before completion", passed("before_completion", said("late")), ["commit finished"], Phase.ENDED),
    ("before completion", cancelled(), ["stop", "commit cancelled"], Phase.ENDED),
    (
        "before completion, plugins not asked",
        ran("before_completion"),
        ["before_completion.1"],
        Phase.PASSING,
    ),
    ("ended", settled(2, "late"), [], Phase.ENDED),
    ("ended", cancelled(), [], Phase.ENDED),
]


@pytest.mark.parametrize(
    ("situation", "given", "commands", "phase"),
    TABLE,
    ids=[f"{situation}: {type(given).__name__}" for situation, given, _, _ in TABLE],
)
def test_transitions_of_a_code_turn(situation: str, given: Input, commands: list[str], phase: Phase) -> None:
    """Ours: the transition table of turns without a model."""
    turn = Turn(*SITUATIONS[situation])
    assert (turn.tell(given), turn.machine.phase) == (commands, phase)


def test_a_code_turn_starts_with_its_cell_and_calls_no_model() -> None:
    """Seed: a session without a model takes turns whose input is code."""
    turn = Turn()
    (command,) = turn.feed(code_started(said("first")))
    assert isinstance(command, RunTool)
    assert (command.key, command.call.name, command.call.arguments) == (
        "tool.1.1",
        RUN_CODE,
        {"code": "pay(2)"},
    )
    assert turn.machine.code is CODE
    assert turn.talk() == ["user: first", "assistant: run_code"]
    assert (turn.machine.account.model_calls, turn.machine.replied_at_ms) == (0, 0)
    assert turn.recovered() == ["tool.1.1"]


@pytest.mark.parametrize("stages", [("before_turn",), ("prepare",), ("before_turn", "prepare")], ids=str)
def test_hooks_for_model_calls_do_not_run_in_a_code_turn(stages: tuple[Stage, ...]) -> None:
    """Ours: a code turn has no model call to prepare."""
    assert Turn().tell(code_started(stages=stages)) == ["tool.1.1"]


def test_the_cells_result_is_the_turns_only_answer() -> None:
    """Ours: the outcome has neither text nor value; the runtime reads the report of the cell."""
    turn = Turn(code_started(), settled(1, {"index": 0}), passed("before_completion"))
    assert turn.machine.outcome == Finished(text="", value=None)
    assert turn.results() == [(1, {"index": 0})]
    assert turn.machine.account.ledger("agent") == ()


def test_a_message_at_the_checkpoint_is_stored_but_calls_no_model() -> None:
    """Ours: no model answers the message, but it is kept."""
    turn = Turn(code_started(), settled(1, 4), passed("before_completion", said("late")))
    assert turn.talk() == ["assistant: run_code", "tool 1: 4", "user: late"]


def test_calls_abandoned_by_a_stopped_cell_are_cancelled_and_listed() -> None:
    """Seed: every call has a result; an execution without a record is listed as abandoned."""
    turn = Turn(code_started(), paused(1, 1, "pay", "look", "ask"), recorded(3), waits(4), gives_up(1))
    assert [call.name for call in turn.machine.calls.given_up] == ["pay"]
    assert turn.machine.calls.under_way() == []
    assert turn.machine.calls.waits() == ()
    assert turn.results() == [(1, Code.TIMEOUT_WALL)]
    assert turn.tell(settled(2, "late")) == []


def test_an_abort_abandons_the_calls_of_the_cell_but_not_the_cell() -> None:
    """Ours: the cell has its own report, and its calls have none."""
    turn = Turn(code_started(), paused(1, 1, "pay", "look"), settled(3), cancelled())
    assert [call.name for call in turn.machine.calls.given_up] == ["pay"]
    assert turn.results() == [(1, Code.CANCELLED)]


def test_the_last_record_of_a_call_counts() -> None:
    """Ours: a call that timed out and was repeated has two records."""
    turn = Turn(code_started(), paused(1, 1, "pay", "look"), timed_out(2), recorded(3), recorded(2, "pay"))
    assert [record.request_digest for record in turn.machine.calls.records] == ["d2", "d3", "d2"]
    assert {call_id: record.status for call_id, record in turn.machine.calls.records_by_call().items()} == {
        2: "ok",
        3: "ok",
    }


def test_time_counts_while_code_runs_and_not_while_it_is_parked() -> None:
    """Ours: the time limit of a turn applies to code as to a model."""
    turn = Turn(code_started(limit_ms=10_000))
    assert turn.machine.account.deadline_ms == 10_000
    turn.feed(paused(1, 1, "pay"), waits(2))
    assert turn.machine.account.deadline_ms is None
    turn.feed(resumed(), ended("w2"))
    assert turn.machine.account.deadline_ms == 12_000


def test_plugins_are_notified_of_the_end_of_a_code_turn() -> None:
    """Ours: after_turn runs as after any other turn."""
    turn = Turn(code_started(stages=("after_turn",)))
    assert turn.tell(settled(1, 4)) == ["before_completion.1 closing 1"]
    assert turn.tell(ran("after_turn")) == ["before_completion.1"]
    assert turn.tell(passed("before_completion")) == ["commit finished"]


def test_a_code_turn_refuses_inputs_that_only_a_model_causes() -> None:
    """Ours: such an input belongs to another turn's journal."""
    with pytest.raises(InternalError, match="while acting"):
        Turn(code_started()).feed(passed("after_work"))
