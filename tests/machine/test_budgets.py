"""Budgets: iterations, tokens, calls, cost, time, and iterations without progress."""

from __future__ import annotations

import pytest
from machine_turns import (
    DENIED,
    SPENT,
    Turn,
    answered,
    asked_for,
    at,
    call,
    calls,
    ended,
    failed,
    misfit,
    out_of_time,
    passed,
    prepared,
    resumed,
    said,
    settled,
    started,
    switched,
    waits,
)

from standfast.machine import Input, ModelReplied
from standfast.model.limits import Usage, UsageEntry, UsageLimits
from standfast.model.outcome import Denied, StopReason
from standfast.model.ruling import Ruling

AFTER_WORK = passed("after_work")


def _iteration(number: int, value: object) -> tuple[Input, ...]:
    """Return the inputs of one iteration whose only call returns `value`."""
    return calls("look"), settled(number, value), AFTER_WORK


def _failing(number: int) -> tuple[Input, ...]:
    return calls("pay"), settled(number, error=DENIED), AFTER_WORK


# Iterations and tokens


def test_a_turn_ends_when_its_iterations_are_used_up() -> None:
    """Ours: SPEC §7, the turn's budget limits how often the model is called."""
    turn = Turn(started(max_iterations=2), *_iteration(1, "a"), calls("look"), settled(2, "b"))
    assert turn.tell(AFTER_WORK) == ["commit turn_budget"]
    assert turn.stopped().error.code == "TURN_BUDGET"
    assert turn.stopped().error.message == "the turn asked the model 2 times without coming to an end"
    assert turn.results() == [(1, "a"), (2, "b")]


def test_a_turn_reports_its_limits() -> None:
    """Ours: the process that takes over the turn must know whether its model needs a price."""
    assert Turn(started(max_iterations=2)).machine.account.limits == UsageLimits(max_iterations=2)


def test_an_answer_in_the_last_iteration_still_counts() -> None:
    """Ours: the budget is checked before the model is called, never after it has answered."""
    turn = Turn(started(max_iterations=1, max_tokens=1), answered(usage=Usage(output=99)))
    assert turn.tell(passed("before_completion")) == ["commit finished"]


@pytest.mark.parametrize(
    "more", [passed("before_completion", said("and")), misfit()], ids=["a message", "an invalid answer"]
)
def test_calling_the_model_again_before_completion_uses_an_iteration(more: Input) -> None:
    """Ours: injected messages and corrections cannot keep a turn going for ever."""
    assert Turn(started(max_iterations=1), answered()).tell(more) == ["commit turn_budget"]


def test_a_turn_ends_when_its_tokens_are_used_up() -> None:
    """Ours: cached input counts; reasoning is part of the output."""
    usage = Usage(input=10, cache_read=20, cache_write=30, output=40, reasoning=25)
    reply = ModelReplied(at_ms=0, calls=(call(),), usage=usage)
    turn = Turn(started(max_tokens=100), reply, settled(1))
    assert turn.tell(AFTER_WORK) == ["commit turn_budget"]
    assert turn.stopped().error.message == "the turn used 100 tokens, the limit is 100"


def test_a_turn_continues_while_a_token_is_left() -> None:
    """Ours: a turn ends when the token limit is reached, not when it is close."""
    reply = ModelReplied(at_ms=0, calls=(call(),), usage=Usage(output=99))
    assert Turn(started(max_tokens=100), reply, settled(1)).tell(AFTER_WORK) == ["model.2"]


# Calls and cost


def _asks(cost: int = 0, priced: int = 1) -> ModelReplied:
    """Return a reply that requests a tool and cost `cost` nano-dollars."""
    usage = Usage(output=1, cost_nano_usd=cost, priced=priced)
    return ModelReplied(at_ms=0, calls=(call(),), usage=usage, model="m")


def test_a_turn_ends_when_its_model_calls_are_used_up() -> None:
    """Ours: UsageLimits.max_calls is checked before a call is made."""
    turn = Turn(started(max_calls=2), *_iteration(1, "a"), *_iteration(2, "b"))
    assert turn.stopped().reason is StopReason.TURN_BUDGET
    assert turn.stopped().error.message == "the turn made 2 model calls, the limit is 2"
    assert turn.machine.account.model_calls == 2


def test_a_failed_attempt_counts_as_a_model_call() -> None:
    """Ours: there is no retry beyond max_calls; the error has the original cause."""
    turn = Turn(started(max_calls=2), failed(retryable=True))
    assert turn.tell(failed(retryable=True)) == ["commit turn_budget"]
    assert turn.stopped().error.hint == "raise it in UsageLimits; the last call failed: no luck"
    assert turn.machine.account.usage.calls == 2


def test_a_permanent_failure_of_the_last_call_keeps_its_own_error() -> None:
    """Ours: an unrelated failure is not reported as a budget stop."""
    assert Turn(started(max_calls=1)).tell(failed()) == ["commit provider_error"]


def test_a_plugins_model_call_counts_as_a_model_call() -> None:
    """Ours: a compaction that uses the last model call leaves none for the turn."""
    turn = Turn(started(stages=("prepare",), max_calls=2), prepared(1), calls("a"), settled(1), AFTER_WORK)
    assert turn.tell(prepared(2, ruling=Ruling(usage=(SPENT,), model_calls=1))) == ["commit turn_budget"]


def test_a_turn_ends_when_its_cost_limit_is_reached() -> None:
    """Ours: UsageLimits.max_cost_usd is checked before a call is made."""
    turn = Turn(started(max_cost_usd=0.01), _asks(9_999_999), settled(1))
    assert turn.tell(AFTER_WORK) == ["model.2"]
    assert turn.tell(_asks(1), settled(2), AFTER_WORK) == ["commit turn_budget"]
    assert turn.stopped().error.message == "the turn cost $0.01, the limit is $0.01"


def test_a_reply_without_a_known_price_ends_a_turn_that_has_a_cost_limit() -> None:
    """Ours: fail closed; a model other than the requested one may have served it."""
    turn = Turn(started(max_cost_usd=1), _asks(5, priced=0), settled(1))
    assert turn.tell(AFTER_WORK) == ["commit turn_budget"]
    assert "the price of m is unknown" in turn.stopped().error.message
    assert "Runtime(prices={'m': " in (turn.stopped().error.hint or "")
    spent = Ruling(usage=(SPENT,), model_calls=1)
    turn = Turn(started(stages=("prepare",), max_cost_usd=1))
    assert turn.tell(prepared(1, ruling=spent)) == ["commit turn_budget"]


def test_an_answer_counts_whatever_its_cost() -> None:
    """Ours: a paid reply is not discarded."""
    dear = answered(usage=Usage(cost_nano_usd=10**12, priced=1))
    assert Turn(started(max_cost_usd=1, max_calls=1), dear).tell(passed("before_completion")) == [
        "commit finished"
    ]


def test_the_last_permitted_call_is_the_last_step() -> None:
    """Ours: the model is warned in time, and the limit is still enforced."""
    turn = Turn(started(warns=True, max_calls=2), *_iteration(1, "a"))
    assert turn.talk()[-1].startswith("user: 1 of 2 model calls used (50 %). This is the last step")
    assert turn.tell(*_iteration(2, "b")) == ["commit turn_budget"]


def test_a_spent_cost_limit_grants_no_last_step() -> None:
    """Ours: the cost of a step is not known in advance; the model is warned at 90 % at the latest."""
    turn = Turn(started(warns=True, max_cost_usd=1), _asks(950_000_000), settled(1), AFTER_WORK)
    assert turn.talk()[-1].startswith("user: $0.95 of $1.00 used (95 %). Finish soon")
    assert turn.tell(_asks(50_000_000), settled(2), AFTER_WORK) == ["commit turn_budget"]


def test_a_caller_that_may_not_call_a_model_within_the_turn_gets_the_reason() -> None:
    """Ours: calls of plugins, tools and code count against the turn, even before they are charged."""
    line = UsageEntry(source="llm", model="m", usage=Usage(output=5, calls=1, cost_nano_usd=10**9, priced=1))
    machine = Turn(started(max_calls=3, max_cost_usd=2, max_tokens=10), _asks(1)).machine
    assert machine.refuses_call(2, [line]) is None
    refusals = [
        machine.refuses_call(3, []),
        machine.refuses_call(2, [line] * 2),
        machine.refuses_call(2, [SPENT]),
    ]
    assert [one and one.message for one in refusals] == [
        "the turn made 3 model calls, the limit is 3",
        "the turn cost $2.000000001, the limit is $2.00",
        "the price of m is unknown, so max_cost_usd cannot be enforced",
    ]
    machine = Turn(started(max_tokens=10), _asks(1)).machine
    assert machine.refuses_call(2, [line, line]) is not None
    machine.feed(at(1, settled(1)))
    assert machine.refuses_call(2, [line, line]) is None  # plugins may end the turn


# No progress


def test_a_call_that_is_denied_repeatedly_ends_the_turn() -> None:
    """Ours: SPEC §12, a model must not retry for ever after its call was denied."""
    turn = Turn(started(max_no_progress=3), *_failing(1), *_failing(2), calls("pay"), waits(3))
    turn.feed(ended("w3", Denied()))
    assert turn.tell(settled(3, error=DENIED)) == ["commit no_progress"]
    assert turn.stopped().reason is StopReason.NO_PROGRESS
    assert turn.stopped().error.message.startswith("3 rounds of calls in a row")
    assert len(turn.results()) == 3


def test_repeating_a_call_with_the_same_result_is_not_progress() -> None:
    """Ours: a loop is a loop even if every call succeeds."""
    turn = Turn(started(max_no_progress=2), *_iteration(1, "same"), *_iteration(2, "same"), calls("look"))
    assert turn.tell(settled(3, "same")) == ["commit no_progress"]


def test_the_same_call_with_another_result_is_progress() -> None:
    """Ours: polling a status until it changes is legitimate."""
    turn = Turn(started(max_no_progress=1), *_iteration(1, "10 %"), *_iteration(2, "20 %"))
    assert turn.tell(*_iteration(3, "30 %")) == ["model.4"]


def test_a_different_call_with_the_same_result_is_progress() -> None:
    """Ours: two writes that both return null are two steps."""
    turn = Turn(started(max_no_progress=1))
    for number in (1, 2, 3):
        turn.feed(asked_for(call("write", f'{{"n": {number}}}')), settled(number), AFTER_WORK)
    assert turn.machine.outcome is None


def test_reordering_the_arguments_does_not_make_a_call_new() -> None:
    """Ours: repeated calls are recognized by the value of their arguments, not by their text."""
    turn = Turn(started(max_no_progress=1), asked_for(call("f", '{"a": 1, "b": 2}')), settled(1), AFTER_WORK)
    assert turn.tell(asked_for(call("f", '{"b": 2, "a": 1}')), settled(2)) == ["commit no_progress"]


def test_one_new_result_makes_an_iteration_count_as_progress() -> None:
    """Ours: an iteration is idle only if each of its calls repeats an earlier result."""
    turn = Turn(started(max_no_progress=1), calls("pay", "look"), settled(1, error=DENIED))
    assert turn.tell(settled(2, "new")) == ["after_work.1"]


def test_progress_resets_the_count() -> None:
    """Ours: only consecutive idle iterations count as a loop."""
    turn = Turn(started(max_no_progress=2), *_failing(1), *_iteration(2, "x"), *_failing(3))
    assert turn.machine.outcome is None
    assert turn.tell(calls("pay"), settled(4, error=DENIED)) == ["commit no_progress"]


def test_unreadable_arguments_are_not_progress() -> None:
    """Ours: a model that keeps writing invalid JSON is in a loop, too."""
    bad = asked_for(call(arguments="{"))
    assert Turn(started(max_no_progress=2), bad, AFTER_WORK).tell(bad) == ["commit no_progress"]


def test_a_frame_opens_even_if_the_last_iterations_made_no_progress() -> None:
    """Ours: a loop must not prevent the frame switch that would end it."""
    turn = Turn(started(max_no_progress=1), calls("pay"), switched())
    assert turn.tell(settled(1, error=DENIED)) == ["commit switched to f_2"]


# Time


def test_a_turn_without_a_limit_has_no_deadline() -> None:
    """Ours: without `max_wall_ms`, the driver needs no timer."""
    turn = Turn()
    assert turn.machine.account.deadline_ms is None
    turn.feed(started())
    assert turn.machine.account.deadline_ms is None


def test_the_deadline_counts_from_the_start_and_does_not_move_while_the_turn_runs() -> None:
    """Ours: max_wall_ms limits the time that the turn runs."""
    turn = Turn(at(5_000, started(max_wall_ms=10_000)))
    for given in (at(6_000, calls("a")), at(7_000, settled(1)), at(8_000, AFTER_WORK), at(9_000, answered())):
        assert turn.machine.account.deadline_ms == 15_000
        turn.feed(given)
    assert turn.machine.account.deadline_ms == 15_000


def test_a_turn_that_ended_has_no_deadline() -> None:
    """Ours: an ended turn needs no timer."""
    assert Turn(started(max_wall_ms=10_000), failed()).machine.account.deadline_ms is None


def test_when_time_runs_out_the_turn_ends_and_running_calls_are_cancelled() -> None:
    """Ours: SPEC §12, every call in the history has a result."""
    turn = Turn(started(max_wall_ms=10_000), calls("a", "b"), settled(2, "B"))
    assert turn.tell(out_of_time()) == ["stop", "commit turn_budget"]
    assert turn.stopped().error.message == "the turn took longer than 10000 ms"
    assert turn.results() == [(1, "CANCELLED"), (2, "B")]


def test_time_spent_waiting_for_a_person_does_not_count() -> None:
    """Ours: UsageLimits.max_wall_ms excludes the time spent waiting for people and timers."""
    turn = Turn(at(0, started(max_wall_ms=10_000)), at(1_000, calls("a")), at(2_000, waits(1)))
    assert turn.machine.account.deadline_ms is None
    turn.feed(at(902_000, ended("w1")))
    assert turn.machine.account.deadline_ms == 910_000


def test_time_counts_while_one_call_runs_and_another_waits() -> None:
    """Ours: a turn's clock runs as long as any of its calls runs."""
    turn = Turn(at(0, started(max_wall_ms=10_000)), at(1_000, calls("a", "b")), at(2_000, waits(1)))
    assert turn.machine.account.deadline_ms == 10_000
    turn.feed(at(4_000, ended("w1")))
    assert turn.machine.account.deadline_ms == 10_000


def test_every_wait_is_excluded_from_the_time() -> None:
    """Ours: with several waits in a row, max_wall_ms excludes each of them."""
    turn = Turn(at(0, started(max_wall_ms=10_000)), at(0, calls("a", "b")))
    turn.feed(at(1_000, waits(1)), at(2_000, waits(2)))
    turn.feed(at(50_000, ended("w2")), at(51_000, settled(2)))
    assert turn.machine.account.deadline_ms is None
    turn.feed(at(90_000, ended("w1")))
    assert turn.machine.account.deadline_ms == 97_000


def test_time_in_which_no_process_runs_the_turn_does_not_count() -> None:
    """Ours: after a crash overnight, a turn has as much time left as before."""
    turn = Turn(at(0, started(max_wall_ms=10_000)), at(3_000, calls("a")), at(80_000, resumed()))
    assert turn.machine.account.deadline_ms == 87_000
    turn.feed(at(81_000, settled(1)), at(200_000, resumed()), at(300_000, resumed()))
    assert turn.machine.account.deadline_ms == 306_000


def test_a_turn_that_is_taken_over_while_it_waits_keeps_its_time() -> None:
    """Bug: the time before the wait was counted again by each process that loaded the turn."""
    turn = Turn(at(0, started(max_wall_ms=10_000)), at(1_000, calls("a")), at(4_000, waits(1)))
    turn.feed(at(50_000, resumed()), at(60_000, resumed()))
    assert turn.machine.account.deadline_ms is None
    turn.feed(at(70_000, ended("w1")))
    assert turn.machine.account.deadline_ms == 76_000


def test_a_wait_that_is_replaced_while_the_turn_is_parked_does_not_count_twice() -> None:
    """Bug: each time the turn parked, the time before the first wait was counted again."""
    turn = Turn(at(0, started(max_wall_ms=10_000)), at(1_000, calls("a", "b")))
    turn.feed(at(2_000, waits(1)), at(4_000, waits(2)), at(5_000, waits(2, "again")), at(6_000, settled(1)))
    assert turn.machine.account.deadline_ms is None
    turn.feed(at(70_000, ended("again")))
    assert turn.machine.account.deadline_ms == 76_000


def test_a_parked_turn_whose_call_settles_resumes_with_the_time_it_had() -> None:
    """Bug: the time spent parked counted if a result, and not the end of the wait, woke the turn."""
    turn = Turn(at(0, started(max_wall_ms=10_000)), at(1_000, calls("a")), at(4_000, waits(1)))
    turn.feed(at(50_000, settled(1, "somehow")))
    assert turn.machine.account.deadline_ms == 56_000


def test_setting_the_clock_back_does_not_change_the_remaining_time() -> None:
    """Ours: times come from outside; a turn never gains or loses time by a jump backwards."""
    turn = Turn(at(50_000, started(max_wall_ms=10_000)), at(20_000, calls("a")), at(20_000, waits(1)))
    turn.feed(at(30_000, ended("w1")))
    assert turn.machine.account.deadline_ms == 40_000
