"""A turn's usage, its limits, and the warnings that the model gets as the limits approach.

Theory of operation
-------------------
A turn may have limits on its steps, its tokens, its time, its model calls, their cost, and the rounds of
calls that make no progress. `TurnAccount` counts all of these.

Warnings follow the limit of which the largest share is used. When this share reaches 60, 90 or 100 %, the
model is warned once; if it jumps over several levels, only the highest is reported. A model that has used up
its steps or tokens gets one more step to give its answer. The limits on model calls and cost are never
exceeded for this (`no_more_calls`): the last call that `max_calls` allows is the last step, and a turn that
reaches its cost limit gets none.

A round of calls makes no progress if each of its calls failed, or repeated an earlier call of this turn with
the same result. A few such rounds in a row are a loop: for instance, a model that keeps requesting a call
that was denied.

Rules
-----
1. The same numbers in the same order give the same warnings, so a replayed turn warns as it did before.
2. A level is reported once in a turn, whichever limit reaches it.
3. Shares are whole percents, rounded down: a level is never reported early.
4. Time comes from the inputs. Time during which the turn is parked, or no process runs it, does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from standfast.errors import ErrorObject, TurnCode
from standfast.machine.inputs import ModelReplied
from standfast.model.canonical import digest_bytes, encode_sorted
from standfast.model.limits import NO_USAGE, Usage, UsageEntry, UsageLimits, add_to_ledger, dollars
from standfast.model.message import ToolCall, ToolMessage
from standfast.model.ruling import Ruling

_ADVICE: Final = {
    100: "This is the last step: give your answer now, with what you have. After it the turn is stopped.",
    90: "Finish soon: do only what the answer still needs, then give it.",
    60: "Plan what is left so that you come to an answer in time.",
}
"""The advice to the model at each level, the highest level first."""


class TurnAccount:
    """The usage of one turn, its limits and its time."""

    limits = UsageLimits()
    usage = NO_USAGE
    model_calls = 0
    iterations = 0
    _warnings: BudgetWatch | None = None
    _plugin_usage: tuple[UsageEntry, ...] = ()
    _unpriced = ""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self.progress = Progress()
        self._by_model: dict[str, Usage] = {}

    def start(self, limits: UsageLimits, at_ms: int, *, warns: bool) -> None:
        self.limits = limits
        self._warnings = BudgetWatch() if warns else None
        self.watch.start(at_ms)

    @property
    def deadline_ms(self) -> int | None:
        """When the turn will have used up its time, if it keeps running; None without a limit."""
        limit_ms = self.limits.max_wall_ms
        return None if limit_ms is None else self.watch.deadline(limit_ms)

    def add_reply(self, given: ModelReplied) -> None:
        usage, before = msgspec.structs.replace(given.usage, calls=1), self.usage
        self.usage = usage if before is NO_USAGE else before + usage
        if not usage.priced:
            self._unpriced = self._unpriced or given.model or "the model"
        known = self._by_model.get(given.model)
        total = self.usage if known is before else usage if known is None else known + usage
        self._by_model[given.model] = total

    def charge(self, ruling: Ruling) -> None:
        """Count the model calls that plugins made, and their usage."""
        self.model_calls += ruling.model_calls
        if ruling.usage:
            self._plugin_usage = add_to_ledger(self._plugin_usage, ruling.usage)
            self.usage = sum((line.usage for line in ruling.usage), self.usage)
            self._unpriced = self._unpriced or _unpriced_among(ruling.usage)

    def ledger(self, source: str) -> tuple[UsageEntry, ...]:
        """Return the turn's usage: a line per model under *source*, and the lines of the plugins' calls."""
        if not self._by_model:
            return self._plugin_usage
        own = [UsageEntry(source=source, model=model, usage=usage) for model, usage in self._by_model.items()]
        return add_to_ledger(tuple(own), self._plugin_usage) if self._plugin_usage else tuple(own)

    def no_more_calls(self, made: int, uncharged: Sequence[UsageEntry] = ()) -> ErrorObject | None:
        """Return why no model may be called after *made* calls and *uncharged* usage; None if one may."""
        limits = self.limits
        if limits.max_calls is not None and made >= limits.max_calls:
            return _spent(f"the turn made {made} model calls, the limit is {limits.max_calls}")
        if limits.max_cost_usd is None or (most := limits.max_cost_nano_usd) is None:
            return None
        if unpriced := self._unpriced or _unpriced_among(uncharged):
            return ErrorObject(
                code=TurnCode.TURN_BUDGET,
                message=f"the price of {unpriced} is unknown, so max_cost_usd cannot be enforced",
                hint=f"pass its price: Runtime(prices={{{unpriced!r}: {{'input': ..., 'output': ...}}}})",
            )
        cost = sum((line.usage for line in uncharged), self.usage).cost_nano_usd
        if cost >= most:
            return _spent(f"the turn cost {dollars(cost)}, the limit is {dollars(most)}")
        return None

    def no_more_tokens(self, uncharged: Sequence[UsageEntry] = ()) -> ErrorObject | None:
        """Return the error if the token limit is reached, *uncharged* usage included."""
        most = self.limits.max_tokens
        if most is None:
            return None
        tokens = sum((line.usage for line in uncharged), self.usage).total
        return None if tokens < most else _spent(f"the turn used {tokens} tokens, the limit is {most}")

    def over_budget(self) -> ErrorObject | None:
        """Return why the turn may take no more steps; None if it may."""
        if self.iterations >= self.limits.max_iterations:
            return _spent(f"the turn asked the model {self.iterations} times without coming to an end")
        return self.no_more_tokens()

    def warning(self) -> str | None:
        """Return the warning that the model gets now; None if no new level is reached."""
        if self._warnings is None:
            return None
        used = TurnSpending(
            iterations=self.iterations,
            tokens=self.usage.total,
            wall_ms=self.watch.ran_ms(),
            calls=self.model_calls,
            cost_nano_usd=self.usage.cost_nano_usd,
        )
        return self._warnings.warning(self.limits, used)

    def is_last_step(self) -> bool:
        """Return whether the model was told that this is its last step."""
        return self._warnings is not None and self._warnings.spent


def _unpriced_among(lines: Sequence[UsageEntry]) -> str:
    """Return a model in *lines* whose price is unknown; an empty string if there is none."""
    return next((line.model or "the model" for line in lines if not line.usage.cost_is_known), "")


def _spent(problem: str) -> ErrorObject:
    return ErrorObject(code=TurnCode.TURN_BUDGET, message=problem, hint="raise it in UsageLimits")


# Warnings


class TurnSpending(msgspec.Struct, frozen=True, gc=False):
    """The resources that a turn has used so far."""

    iterations: int = 0
    tokens: int = 0
    wall_ms: int = 0
    calls: int = 0
    cost_nano_usd: int = 0


class BudgetWatch:
    """The highest warning level that one turn has reached."""

    def __init__(self) -> None:
        self._level = 0

    @property
    def spent(self) -> bool:
        """Whether the model was told that its budget is used up."""
        return self._level == 100

    def warning(self, limits: UsageLimits, spent: TurnSpending) -> str | None:
        """Return the warning for the model after *spent*; None if no new level is reached."""
        fullest = max(_shares(limits, spent), key=lambda share: (share.level, share.percent))
        if fullest.level <= self._level:
            return None
        self._level = fullest.level
        return f"{fullest} used ({fullest.percent} %). {_ADVICE[fullest.level]}"


class _Share(msgspec.Struct, frozen=True, gc=False):
    """The used share of one limit."""

    unit: str
    used: int
    most: int
    percent: int
    level: int

    def __str__(self) -> str:
        match self.unit:
            case "ms":
                used, most = (f"{ms / 1000:,.1f}".removesuffix(".0") for ms in (self.used, self.most))
                return f"{used} of {most} seconds"
            case "$":
                return f"{dollars(self.used)} of {dollars(self.most)}"
            case "token":
                return f"{self.used:,} of {self.most:,} tokens"
            case _:
                return f"{self.used:,} of {self.most:,} {self.unit}{'' if self.most == 1 else 's'}"


def _shares(limits: UsageLimits, spent: TurnSpending) -> Iterator[_Share]:
    """Yield the share of each limit that is set; the limit on steps always is."""
    for unit, used, most in (
        ("step", spent.iterations, limits.max_iterations),
        ("token", spent.tokens, limits.max_tokens),
        ("ms", spent.wall_ms, limits.max_wall_ms),
        ("model call", spent.calls, limits.max_calls),
        ("$", spent.cost_nano_usd, limits.max_cost_nano_usd),
    ):
        if most is None:
            continue
        percent = used * 100 // most
        level = next((one for one in _ADVICE if percent >= one), 0)
        if unit == "model call" and used + 1 >= most:
            level = 100
        elif unit == "$":
            level = min(level, 90)
        yield _Share(unit, used, most, percent, level)


# Progress


class Progress:
    """A counter of consecutive rounds without progress."""

    idle_rounds = 0

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def round_over(self, calls: Sequence[tuple[ToolCall, ToolMessage]]) -> None:
        """Count a finished round."""
        self.idle_rounds += 1
        for call, result in calls:
            if result.error is None and (mark := _mark(call, result)) not in self._seen:
                self._seen.add(mark)
                self.idle_rounds = 0


def _mark(call: ToolCall, result: ToolMessage) -> str:
    """Return a digest of a call and its result, from the digests in its record if dispatch computed them."""
    record, value = result.record, result.value
    if record is not None and record.response_digest is not None:
        return f"{record.request_digest}:{record.response_digest}"
    if isinstance(value, dict) and "index" in value:  # a cell's report, compared without its numbers
        calls = value.get("calls")
        if isinstance(calls, list):
            calls = [{**made, "call_id": None} if isinstance(made, dict) else made for made in calls]
        value = {**value, "index": None, "calls": calls}
    return digest_bytes(encode_sorted([call.name, call.arguments, value]))


# Time


class Stopwatch:
    """The running time of a turn. `now_ms` is the time of the last input, `last_ms` of the one before."""

    now_ms = last_ms = 0
    _ran_ms = 0
    _since_ms: int | None = None

    def start(self, at_ms: int) -> None:
        """Count time from *at_ms*, unless time is being counted already."""
        if self._since_ms is None:
            self._since_ms = at_ms

    def stop(self) -> None:
        """Stop counting time until the next `start`."""
        self._count_until(self.now_ms)
        self._since_ms = None

    def resume(self, at_ms: int) -> None:
        """Exclude the time since the previous input: the process died after it."""
        self._count_until(self.last_ms)
        if self._since_ms is not None:
            self._since_ms = at_ms

    def ran_ms(self) -> int:
        """Return how long the turn has run so far."""
        running = 0 if self._since_ms is None else max(0, self.now_ms - self._since_ms)
        return self._ran_ms + running

    def deadline(self, limit_ms: int) -> int | None:
        """Return when *limit_ms* will be used up if the turn keeps running; None while it is stopped."""
        return None if self._since_ms is None else self._since_ms + limit_ms - self._ran_ms

    def _count_until(self, at_ms: int) -> None:
        if self._since_ms is not None:
            self._ran_ms += max(0, at_ms - self._since_ms)
