"""The budget of a subagent, and how its answer is parsed: the parts that need no runtime."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.errors import ErrorObject
from standfast.model.frame import FrameSwitch
from standfast.model.host_requests import AssembledTurn
from standfast.model.limits import Usage, UsageLimits
from standfast.model.outcome import Finished, FrameSwitched, Outcome, Stopped, StopReason, Wait, Waiting
from standfast.model.task import TaskState
from standfast.plugins.shipped.subagent_budget import (
    SharedSpending,
    allowance,
    is_shared,
    less,
    no_credit,
    used_up,
)
from standfast.plugins.shipped.subagent_children import (
    is_schema,
    read_value,
    report_of,
    schema_in,
    status_of,
    task_state_of,
    task_words,
    waits_for_time,
)

SOME = SharedSpending(
    usage=Usage(input=60, output=10, calls=3, cost_nano_usd=400_000_000, priced=3), wall_ms=2_000
)
ASKS = Wait(wait_id="apr_1", kind="approval", call_id=2, due_at=9)
SLEEPS = Wait(wait_id="w", kind="timer", call_id=3, due_at=9)


def stopped(reason: StopReason) -> Stopped:
    return Stopped(reason=reason, error=ErrorObject(code="X", message="it stopped"))


def turn(outcome: Outcome, text: str = "") -> AssembledTurn:
    return AssembledTurn(turn_id="t", session_id="s", outcome=outcome, text=text)


# The budget


def test_a_subagent_gets_the_remainder_of_each_shared_limit() -> None:
    """Seed: a subagent shares the budget of its parent."""
    shared = UsageLimits(max_tokens=100, max_calls=10, max_cost_usd=1.0, max_wall_ms=10_000)
    given = allowance(shared, SOME, UsageLimits())
    assert (given.max_tokens, given.max_calls, given.max_wall_ms) == (30, 5, 8_000)
    assert given.max_cost_usd == pytest.approx(0.6)


def test_the_subagents_own_limits_apply_too() -> None:
    """Ours: sharing never gives an agent more than its own limits."""
    given = allowance(UsageLimits(max_tokens=100), SOME, UsageLimits(max_tokens=20, max_calls=4))
    assert (given.max_tokens, given.max_calls) == (20, 4)


def test_iterations_and_attempts_are_not_shared() -> None:
    """Ours: these limits describe how one agent works."""
    own = UsageLimits(max_iterations=7, max_attempts=2)
    given = allowance(UsageLimits(max_iterations=3, max_tokens=100), SOME, own)
    assert (given.max_iterations, given.max_attempts) == (7, 2)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (UsageLimits(max_tokens=70), "70 tokens"),
        (UsageLimits(max_calls=4), "3 model calls"),
        (UsageLimits(max_cost_usd=0.4), "$0.40"),
        (UsageLimits(max_wall_ms=2_000), "2,000 ms"),
    ],
)
def test_the_exhausted_limit_is_named(limits: UsageLimits, words: str) -> None:
    """Ours: the error tells the model which limit was reached."""
    problem = used_up(limits, SOME, kept_calls=1)
    assert problem is not None
    assert problem.code == "TURN_BUDGET"
    assert words in problem.message


def test_no_limit_is_exhausted_while_some_of_each_is_left() -> None:
    """Ours: a subagent may use the last token of each limit."""
    limits = UsageLimits(max_tokens=71, max_calls=5, max_cost_usd=0.41, max_wall_ms=2_001)
    assert used_up(limits, SOME, kept_calls=1) is None
    assert used_up(UsageLimits(), SOME, kept_calls=1) is None
    assert not is_shared(UsageLimits(max_iterations=3))


def test_calls_and_money_are_never_given_on_credit() -> None:
    """Ours: the kernel enforces calls and cost, and the last calls are reserved for the turn itself."""
    assert no_credit(UsageLimits(max_calls=4), SOME) is None
    assert no_credit(UsageLimits(max_tokens=1, max_wall_ms=1), SOME) is None
    assert no_credit(UsageLimits(max_calls=3), SOME) is not None
    assert no_credit(UsageLimits(max_cost_usd=0.4), SOME) is not None


def test_usage_since_an_earlier_reading_is_never_negative() -> None:
    """Ours: a ledger that was read too early must not give budget back."""
    assert less(Usage(input=5, calls=2), Usage(input=3, calls=2)) == Usage(input=2)
    assert less(Usage(), Usage(input=3)) == Usage()


# Reports


@pytest.mark.parametrize(
    ("outcome", "status", "state"),
    [
        (Finished(text="x"), "finished", TaskState.COMPLETED),
        (FrameSwitched(switch=FrameSwitch(frame_id="f", reason="r")), "finished", TaskState.COMPLETED),
        (stopped(StopReason.CANCELLED), "cancelled", TaskState.CANCELLED),
        (stopped(StopReason.PROVIDER_ERROR), "failed", TaskState.FAILED),
        (Waiting(waits=(ASKS,)), "waiting", TaskState.RUNNING),
    ],
)
def test_a_subagents_status_follows_its_turn(outcome: Outcome, status: str, state: TaskState) -> None:
    """Seed: finished, failed, cancelled or waiting; its task runs until its turn has ended."""
    found = status_of(outcome)
    assert (found, task_state_of(found)) == (status, state)


def test_only_timers_end_without_a_person() -> None:
    """Ours: the parent keeps waiting for a timer, and is notified of an approval."""
    assert waits_for_time(Waiting(waits=(SLEEPS,)))
    assert not waits_for_time(Waiting(waits=(SLEEPS, ASKS)))
    assert not waits_for_time(Finished(text="x"))


def test_a_report_names_what_the_subagent_waits_for() -> None:
    """Seed: the report names the approval and its tool."""
    report = report_of("a", turn(Waiting(waits=(ASKS, SLEEPS))), capabilities={"2": "pay"})
    assert [(one.id, one.kind, one.capability) for one in report.waits] == [
        ("apr_1", "approval", "pay"),
        ("w", "timer", None),
    ]


def test_a_subagent_without_a_settled_turn_is_running() -> None:
    """Ours: a subagent that is not done yet has no text, no value and no error."""
    report = report_of("a", None, usage=Usage(input=1))
    assert (report.status, report.text, report.value, report.error) == ("running", "", None, None)
    assert report.usage == Usage(input=1)


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize("text", ['{"n": 3}', '```json\n{"n": 3}\n```', ' {"n":3} '])
def test_an_answer_that_matches_the_schema_becomes_a_value(text: str) -> None:
    """Seed: results of subagents are typed."""
    report = report_of("a", turn(Finished(text=text), text), schema=SCHEMA)
    assert (report.status, report.value, report.error) == ("finished", {"n": 3}, None)


@pytest.mark.parametrize("text", ["three", '{"n": "3"}', "", "[" * 5_000, '{"n": NaN}'])
def test_an_answer_that_does_not_match_the_schema_is_a_failure_with_its_text(text: str) -> None:
    """Ours: a parent that requested a value never gets another type."""
    report = report_of("a", turn(Finished(text=text), text), schema=SCHEMA)
    assert (report.status, report.value, report.text) == ("failed", None, text)
    assert report.error is not None
    assert report.error.code == "OUTPUT_INVALID"


def test_a_typed_agents_value_is_used_unchanged() -> None:
    """Ours: an agent with an output_type has already validated its answer."""
    assert report_of("a", turn(Finished(text="7", value=7), "7")).value == 7


def test_the_task_states_the_required_schema() -> None:
    """Ours: an agent without the plugin reads the schema too."""
    assert task_words("Count.", None) == "Count."
    assert '"required":["n"]' in task_words("Count.", SCHEMA)
    assert schema_in(task_words("Count.", SCHEMA)) == SCHEMA
    assert schema_in("Count.") is None


def test_an_invalid_schema_is_found_before_a_subagent_starts() -> None:
    """Ours: a wrong schema is the parent's mistake, so the parent gets the error."""
    assert is_schema(SCHEMA)
    assert not is_schema({"type": "objekt"})
    assert read_value("1", {"type": "integer"}) == (1, None)
