"""Tells the model that the budget of its turn runs out, while there is still something to do about it.

Theory of operation
-------------------
A turn may have limits on its steps, its tokens, its time, its model calls and what they cost. The one that
is used up most decides. When its share reaches 60, 90 or 100 %, the model is told once; a jump over several
levels tells of the highest only.

Who has used up steps or tokens gets one step more, to come to an end. Model calls and money are never given
on credit (`no_more_calls`): the last call that the limit allows is the last step, and money has none.

Rules
-----
1. Equal numbers in an equal order give equal warnings: a turn that is replayed warns as it did before.
2. A level is told of once in a turn, whichever limit reaches it.
3. Shares are whole percents, rounded down: nothing is told of before it is so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from standfast.errors import ErrorObject, TurnCode
from standfast.model.limits import UsageLimits, dollars

_ADVICE: Final = {
    100: "This is the last step: give your answer now, with what you have. After it the turn is stopped.",
    90: "Finish soon: do only what the answer still needs, then give it.",
    60: "Plan what is left so that you come to an answer in time.",
}
"""What each level means for the model, the highest level first."""


class Spent(NamedTuple):
    """What a turn has used so far."""

    iterations: int = 0
    tokens: int = 0
    wall_ms: int = 0
    calls: int = 0
    cost_nano_usd: int = 0


def no_more_calls(limits: UsageLimits, calls: int, cost_nano_usd: int, unpriced: str) -> ErrorObject | None:
    """Why no model may be asked any more; *unpriced* is a model that was, at a price that is not known."""
    if limits.max_calls is not None and calls >= limits.max_calls:
        return spent(f"the turn made {calls} model calls, the limit is {limits.max_calls}")
    most = limits.max_cost_nano_usd
    if most is None:
        return None
    if unpriced:
        return ErrorObject(
            code=TurnCode.TURN_BUDGET,
            message=f"what {unpriced} costs is not known, so that max_cost_usd cannot be kept",
            hint=f"give its price: Runtime(prices={{{unpriced!r}: {{'input': ..., 'output': ...}}}})",
        )
    if cost_nano_usd >= most:
        return spent(f"the turn cost {dollars(cost_nano_usd)}, the limit is {dollars(most)}")
    return None


def no_more_tokens(limits: UsageLimits, tokens: int) -> ErrorObject | None:
    """Why no model should be asked any more."""
    if limits.max_tokens is None or tokens < limits.max_tokens:
        return None
    return spent(f"the turn used {tokens} tokens, the limit is {limits.max_tokens}")


def spent(problem: str) -> ErrorObject:
    return ErrorObject(code=TurnCode.TURN_BUDGET, message=problem, hint="raise it in UsageLimits")


class BudgetWatch:
    """Which levels one turn has reached."""

    def __init__(self) -> None:
        self._told = 0

    @property
    def spent(self) -> bool:
        """Whether the model was told that this is its last step."""
        return self._told == 100

    def warning(self, limits: UsageLimits, spent: Spent) -> str | None:
        """What the model is to be told now that so much is used; None if there is nothing new."""
        fullest = max(_accounts(limits, spent), key=lambda one: (one.level, one.percent))
        if fullest.level <= self._told:
            return None
        self._told = fullest.level
        return f"{fullest.words()} used ({fullest.percent} %). {_ADVICE[fullest.level]}"


class _Account(NamedTuple):
    """How much of one limit is used."""

    percent: int
    words: Callable[[], str]
    level: int


def _accounts(limits: UsageLimits, spent: Spent) -> list[_Account]:
    """The limits that are set. There is always one on the steps."""
    found = [_account(spent.iterations, limits.max_iterations, _steps)]
    if limits.max_tokens is not None:
        found.append(_account(spent.tokens, limits.max_tokens, _tokens))
    if limits.max_wall_ms is not None:
        found.append(_account(spent.wall_ms, limits.max_wall_ms, _time))
    return found + _never_exceeded(limits, spent)


def _never_exceeded(limits: UsageLimits, spent: Spent) -> list[_Account]:
    """The limits that leave no step beyond them."""
    found = []
    if limits.max_calls is not None:
        one = _account(spent.calls, limits.max_calls, _model_calls)
        found.append(one._replace(level=100) if spent.calls + 1 >= limits.max_calls else one)
    if (most_nano := limits.max_cost_nano_usd) is not None:
        one = _account(spent.cost_nano_usd, most_nano, _money)
        found.append(one._replace(level=min(one.level, 90)))
    return found


def _account(used: int, most: int, words: Callable[[int, int], str]) -> _Account:
    percent = used * 100 // most
    return _Account(percent, lambda: words(used, most), next((one for one in _ADVICE if percent >= one), 0))


def _steps(used: int, most: int) -> str:
    return f"{used:,} of {most:,} {_counted(most, 'step')}"


def _tokens(used: int, most: int) -> str:
    return f"{used:,} of {most:,} tokens"


def _time(used: int, most: int) -> str:
    return f"{_seconds(used)} of {_seconds(most)} seconds"


def _model_calls(used: int, most: int) -> str:
    return f"{used:,} of {most:,} {_counted(most, 'model call')}"


def _money(used: int, most: int) -> str:
    return f"{dollars(used)} of {dollars(most)}"


def _counted(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def _seconds(ms: int) -> str:
    """With one decimal, if it is not zero."""
    return f"{ms / 1000:,.1f}".removesuffix(".0")
