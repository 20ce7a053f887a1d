"""Tells the model that the budget of its turn runs out, while there is still something to do about it.

Theory of operation
-------------------
A turn may have limits on its steps, its tokens and its time. The one that is used up most decides. When its
share reaches 60, 90 or 100 %, the model is told once; a jump over several levels tells of the highest only.

Rules
-----
1. Equal numbers in an equal order give equal warnings: a turn that is replayed warns as it did before.
2. A level is told of once in a turn, whichever limit reaches it.
3. Shares are whole percents, rounded down: nothing is told of before it is so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.model.usage import UsageLimits

_ADVICE: Final = {
    100: "This is the last step: give your answer now, with what you have. After it the turn is stopped.",
    90: "Finish soon: do only what the answer still needs, then give it.",
    60: "Plan what is left so that you come to an answer in time.",
}
"""What each level means for the model, the highest level first."""


class BudgetWatch:
    """Which levels one turn has reached."""

    def __init__(self) -> None:
        self._told = 0

    @property
    def spent(self) -> bool:
        """Whether the model was told that this is its last step."""
        return self._told == 100

    def warning(self, limits: UsageLimits, *, iterations: int, tokens: int, wall_ms: int) -> str | None:
        """What the model is to be told now that so much is used; None if there is nothing new."""
        fullest = max(_accounts(limits, iterations, tokens, wall_ms), key=lambda one: one.percent)
        level = next((level for level in _ADVICE if fullest.percent >= level), 0)
        if level <= self._told:
            return None
        self._told = level
        return f"{fullest.words} used ({fullest.percent} %). {_ADVICE[level]}"


class _Account(NamedTuple):
    """How much of one limit is used."""

    percent: int
    words: str


def _accounts(limits: UsageLimits, iterations: int, tokens: int, wall_ms: int) -> list[_Account]:
    """The limits that are set. There is always one on the steps."""
    steps = limits.max_iterations
    found = [_account(iterations, steps, f"{iterations:,} of {steps:,} {'step' if steps == 1 else 'steps'}")]
    if (most := limits.max_tokens) is not None:
        found.append(_account(tokens, most, f"{tokens:,} of {most:,} tokens"))
    if (most := limits.max_wall_ms) is not None:
        found.append(_account(wall_ms, most, f"{_seconds(wall_ms)} of {_seconds(most)} seconds"))
    return found


def _account(used: int, limit: int, words: str) -> _Account:
    return _Account(used * 100 // limit, words)


def _seconds(ms: int) -> str:
    """With one decimal, if it is not zero."""
    return f"{ms / 1000:,.1f}".removesuffix(".0")
