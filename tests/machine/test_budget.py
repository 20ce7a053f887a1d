"""Warnings to the model when a turn uses up its budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.machine.account import BudgetWatch, TurnSpending
from standfast.model.limits import UsageLimits


def _warned(limits: UsageLimits, **used: int) -> str | None:
    """Return the warning of a fresh `BudgetWatch`, or None."""
    return BudgetWatch().warning(limits, TurnSpending(**used))


def _level(limits: UsageLimits, **used: int) -> int:
    """Return the level that a fresh `BudgetWatch` warns about, read from its text."""
    said = _warned(limits, **used)
    if said is None:
        return 0
    return 100 if "last step" in said else 90 if "soon" in said else 60


STEPS = UsageLimits(max_iterations=1_000)


@pytest.mark.parametrize(
    ("used", "level"),
    [
        (0, 0),
        (1, 0),
        (599, 0),
        (600, 60),
        (601, 60),
        (899, 60),
        (900, 90),
        (999, 90),
        (1_000, 100),
        (5_000, 100),
    ],
)
def test_the_model_is_warned_when_a_level_is_reached_and_not_before(used: int, level: int) -> None:
    """Seed: the model is warned at 60, 90 and 100 %."""
    assert _level(STEPS, iterations=used) == level


def test_a_warning_names_the_budget_and_the_next_step() -> None:
    """Seed: the text differs for models with and without `finish`."""
    limits = UsageLimits(max_iterations=50, max_tokens=100_000, max_wall_ms=90_500)
    assert _warned(limits, iterations=30) == (
        "30 of 50 steps used (60 %). Plan what is left so that you come to an answer in time."
    )
    assert _warned(limits, tokens=95_900) == (
        "95,900 of 100,000 tokens used (95 %). "
        "Finish soon: do only what the answer still needs, then give it."
    )
    assert _warned(limits, wall_ms=90_500) == (
        "90.5 of 90.5 seconds used (100 %). "
        "This is the last step: give your answer now, with what you have. After it the turn is stopped."
    )


def test_a_share_is_never_rounded_up() -> None:
    """Ours: 59.99 % is not 60 %, and 99.99 % is not 100 %."""
    limits = UsageLimits(max_tokens=1_000_000)
    assert _warned(limits, tokens=599_999) is None
    said = _warned(limits, tokens=999_999)
    assert said is not None
    assert "(99 %)" in said
    assert "last step" not in said


def test_the_model_gets_each_warning_once() -> None:
    """Seed: a repeated warning would be ignored by the model."""
    watch = BudgetWatch()
    limits = UsageLimits(max_iterations=10)
    told = [watch.warning(limits, TurnSpending(iterations=used, tokens=0, wall_ms=0)) for used in range(13)]
    assert [used for used, said in enumerate(told) if said] == [6, 9, 10]


def test_a_jump_over_several_levels_causes_one_warning() -> None:
    """Seed: from 10 to 95 % there is one warning, and none for 60 % afterwards."""
    watch = BudgetWatch()
    limits = UsageLimits(max_iterations=100, max_tokens=100)
    assert watch.warning(limits, TurnSpending(iterations=10, tokens=10, wall_ms=0)) is None
    said = watch.warning(limits, TurnSpending(iterations=11, tokens=95, wall_ms=0))
    assert said is not None
    assert said.startswith("95 of 100 tokens used (95 %). Finish soon")
    assert watch.warning(limits, TurnSpending(iterations=65, tokens=95, wall_ms=0)) is None
    assert not watch.spent


def test_a_second_limit_at_the_same_level_causes_no_further_warning() -> None:
    """Ours: a warning level belongs to the turn, not to one limit."""
    watch = BudgetWatch()
    limits = UsageLimits(max_iterations=10, max_tokens=100, max_wall_ms=1_000)
    assert watch.warning(limits, TurnSpending(iterations=6, tokens=0, wall_ms=0))
    assert watch.warning(limits, TurnSpending(iterations=7, tokens=71, wall_ms=800)) is None


def test_the_warning_names_the_limit_with_the_largest_share() -> None:
    """Seed: if two budgets are used equally, steps come first."""
    limits = UsageLimits(max_iterations=10, max_tokens=100, max_wall_ms=10_000)
    assert str(_warned(limits, iterations=7, tokens=80, wall_ms=9_000)).startswith(
        "9 of 10 seconds used (90 %)"
    )
    assert str(_warned(limits, iterations=7, tokens=80)).startswith("80 of 100 tokens used (80 %)")
    assert str(_warned(limits, iterations=7, tokens=70)).startswith("7 of 10 steps used (70 %)")


def test_a_limit_that_is_not_set_causes_no_warning() -> None:
    """Ours: a limit of None is no limit."""
    assert _warned(UsageLimits(), iterations=1, tokens=10**12, wall_ms=10**12) is None


def test_a_limit_of_one_warns_of_the_last_step_first() -> None:
    """Ours: a limit of 1 causes no division by zero."""
    limits = UsageLimits(max_iterations=1, max_tokens=1, max_wall_ms=1)
    assert _warned(limits) is None
    assert str(_warned(limits, iterations=1)).startswith("1 of 1 step used (100 %). This is the last step")


def test_a_warning_shows_usage_beyond_the_limit() -> None:
    """Ours: one reply can use more tokens than were left, and the warning does not hide it."""
    watch = BudgetWatch()
    said = watch.warning(UsageLimits(max_tokens=1_000), TurnSpending(iterations=2, tokens=1_500, wall_ms=0))
    assert said is not None
    assert said.startswith("1,500 of 1,000 tokens used (150 %). This is the last step")
    assert watch.spent


def test_a_budget_is_spent_from_the_last_warning_on() -> None:
    """Seed: the driver uses this to grant exactly one more step."""
    watch = BudgetWatch()
    limits = UsageLimits(max_iterations=2)
    seen = []
    for used in (0, 1, 2, 3):
        watch.warning(limits, TurnSpending(iterations=used, tokens=0, wall_ms=0))
        seen.append(watch.spent)
    assert seen == [False, False, True, True]


def test_warnings_also_cover_model_calls_and_cost() -> None:
    """Ours: the last permitted call is the last step; a cost limit has no last step."""
    limits = UsageLimits(max_calls=10, max_cost_usd=0.5)
    assert _warned(limits, calls=6) == (
        "6 of 10 model calls used (60 %). Plan what is left so that you come to an answer in time."
    )
    assert [_level(limits, calls=used) for used in (0, 5, 8, 9, 10)] == [0, 0, 60, 100, 100]
    assert str(_warned(limits, cost_nano_usd=450_000_000)).startswith("$0.45 of $0.50 used (90 %)")
    assert [_level(limits, cost_nano_usd=used * 10**6) for used in (299, 300, 450, 500, 900)] == [
        0, 60, 90, 90, 90,
    ]  # fmt: skip
    assert str(_warned(UsageLimits(max_calls=1))).startswith("0 of 1 model call used (0 %). This is the last")


def test_the_warning_of_the_last_call_precedes_that_of_a_limit_with_a_larger_share() -> None:
    """Ours: that this is the last step matters more than which limit is used most."""
    limits = UsageLimits(max_calls=2, max_cost_usd=1)
    assert str(_warned(limits, calls=1, cost_nano_usd=990_000_000)).startswith("1 of 2 model calls")


_uses = st.lists(st.tuples(*[st.integers(0, 300)] * 3), max_size=12)


@given(_uses, st.integers(1, 200), st.none() | st.integers(1, 200), st.none() | st.integers(1, 200))
def test_levels_only_rise_and_the_same_numbers_give_the_same_text(
    uses: list[tuple[int, int, int]], steps: int, tokens: int | None, wall_ms: int | None
) -> None:
    """Ours: a replay yields the same warnings, at most three per turn."""
    limits = UsageLimits(max_iterations=steps, max_tokens=tokens, max_wall_ms=wall_ms)
    first, second = BudgetWatch(), BudgetWatch()
    told = []
    for step, token, ms in uses:
        said = first.warning(limits, TurnSpending(iterations=step, tokens=token, wall_ms=ms))
        assert said == second.warning(limits, TurnSpending(iterations=step, tokens=token, wall_ms=ms))
        pairs = [(step, steps), (token, tokens), (ms, wall_ms)]
        reached = [used / most for used, most in pairs if most]
        assert first.spent or max(reached) < 1
        told += [said] if said else []
    assert len(told) == len(set(told)) <= 3
