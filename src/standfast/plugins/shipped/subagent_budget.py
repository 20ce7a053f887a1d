"""What a subagent may use: no more than its agent's own limits, and no more than its parent's turn has left.

Theory of operation
-------------------
Tokens, model calls, money and time are shared: a turn and the subagents that it gave work to draw on one
budget, the limits of that turn. A subagent begins with what is left at that moment. Rounds, attempts and the
like are not shared: they say how one agent works, so that each has its own.

Rules
-----
1. The last model calls are the turn's own: subagents cannot use up what it needs to hear of them and answer.
2. As for a turn alone, tokens and time leave it one step more, calls and money do not.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import ErrorObject, TurnCode
from standfast.model.limits import NANO, Usage, UsageLimits, dollars

KEPT_CALLS: Final = 2
"""So many model calls are kept back from a subagent that begins: one to wait for it, one to answer."""

SHARED: Final = ("max_tokens", "max_calls", "max_cost_usd", "max_wall_ms")
"""The limits of a turn that it shares with its subagents."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn has used, its subagents included."""

    usage: Usage = Usage()
    wall_ms: int = 0


def is_shared(limits: UsageLimits) -> bool:
    """Whether there is anything to share."""
    return any(getattr(limits, name) is not None for name in SHARED)


def no_credit(limits: UsageLimits, spent: Spent) -> ErrorObject | None:
    """Why the turn itself must not ask its model once more."""
    hard = UsageLimits(max_calls=limits.max_calls, max_cost_usd=limits.max_cost_usd)
    return used_up(hard, spent, kept_calls=0)


def used_up(limits: UsageLimits, spent: Spent, *, kept_calls: int) -> ErrorObject | None:
    """Why nothing more may be used, so many calls left alone; None if something is left of each limit."""
    usage = spent.usage
    if limits.max_tokens is not None and usage.total >= limits.max_tokens:
        return _over(f"used {usage.total:,} tokens, the limit is {limits.max_tokens:,}")
    if limits.max_calls is not None and usage.calls + kept_calls >= limits.max_calls:
        return _over(f"made {usage.calls:,} model calls, the limit is {limits.max_calls:,}")
    most = limits.max_cost_nano_usd
    if most is not None and usage.cost_nano_usd >= most:
        return _over(f"cost {dollars(usage.cost_nano_usd)}, the limit is {dollars(most)}")
    if limits.max_wall_ms is not None and spent.wall_ms >= limits.max_wall_ms:
        return _over(f"took {spent.wall_ms:,} ms, the limit is {limits.max_wall_ms:,}")
    return None


def allowance(shared: UsageLimits, spent: Spent, own: UsageLimits) -> UsageLimits:
    """The limits of a subagent that begins now; something must be left (`used_up`)."""
    usage = spent.usage
    left = {
        "max_tokens": _left(shared.max_tokens, usage.total),
        "max_calls": _left(shared.max_calls, usage.calls + KEPT_CALLS),
        "max_cost_usd": _left_usd(shared, usage),
        "max_wall_ms": _left(shared.max_wall_ms, spent.wall_ms),
    }
    return msgspec.structs.replace(
        own, **{name: _smaller(getattr(own, name), value) for name, value in left.items()}
    )


def less(usage: Usage, before: Usage) -> Usage:
    """What was used since it was *before*."""
    names = Usage.__struct_fields__
    return Usage(**{name: max(0, getattr(usage, name) - getattr(before, name)) for name in names})


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else limit - used


def _left_usd(limits: UsageLimits, usage: Usage) -> float | None:
    most = limits.max_cost_nano_usd
    return None if most is None else (most - usage.cost_nano_usd) / NANO


def _smaller(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return min(known) if known else None


def _over(problem: str) -> ErrorObject:
    return ErrorObject(
        code=TurnCode.TURN_BUDGET,
        message=f"the turn and its subagents {problem}",
        hint="raise it in UsageLimits, or answer with what there is",
    )
