"""Decides whether a model call that failed is tried again, and when.

Theory of operation
-------------------
A failure that may pass is tried again after half a second, then one, two and so on, up to a minute. What the
provider asks for (Retry-After) is the least that is waited. Up to a quarter more is added, so that sessions
that failed together do not come back together. `max_attempts` bounds the tries of one call, and
`max_retry_wait_ms` the time between them in all.

Rules
-----
1. The decision follows from its arguments alone, and these from journaled inputs: a replay decides alike.
   What is added comes from the *seed*, which is the turn's own; without one, nothing is added.
2. What the provider asks for is never shortened. If there is no time for it, the call is given up at once.
3. A provider that asks for no time at all (0) gets the next attempt at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from standfast.machine.inputs import ModelFailed
from standfast.model.canonical import digest_bytes
from standfast.model.limits import UsageLimits

_FIRST_MS: Final = 500
_LONGEST_MS: Final = 60_000
_MOST_DOUBLINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again, this long after the failure."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not try again. `why` says what stood against it, if it was not the failure itself."""

    why: str | None = None


def decide(
    failure: ModelFailed, *, attempt: int, waited_ms: int, limits: UsageLimits, seed: str
) -> Retry | GiveUp:
    """What to do about the failure of this *attempt*, if the ones before it cost *waited_ms* of waiting."""
    if not failure.retryable:
        return GiveUp()
    if attempt >= limits.max_attempts:
        return GiveUp(_tried(attempt))
    asked_ms = failure.retry_after_ms
    if asked_ms == 0:
        return Retry(0)
    least_ms = max(_backoff_ms(attempt), asked_ms or 0)
    left_ms = limits.max_retry_wait_ms - waited_ms
    if least_ms > left_ms:
        return GiveUp(_too_long(least_ms, asked_ms, waited_ms))
    return Retry(min(least_ms + _spread_ms(least_ms // 4, f"{seed}.{attempt}" if seed else ""), left_ms))


def _backoff_ms(attempt: int) -> int:
    return min(_FIRST_MS << min(attempt - 1, _MOST_DOUBLINGS), _LONGEST_MS)


def _spread_ms(most_ms: int, seed: str) -> int:
    """Some time up to *most_ms*, the same for the same seed."""
    return int(digest_bytes(seed.encode())[:12], 16) % (most_ms + 1) if seed else 0


def _tried(attempt: int) -> str | None:
    if attempt == 1:
        return None
    return f"it failed {attempt} times in a row; UsageLimits(max_attempts=...) allows more"


def _too_long(least_ms: int, asked_ms: int | None, waited_ms: int) -> str:
    asks = "the provider asks" if asked_ms == least_ms else "the next attempt has"
    before = f", after {_seconds(waited_ms)} already" if waited_ms else ""
    return f"{asks} to wait {_seconds(least_ms)}{before}; UsageLimits(max_retry_wait_ms=...) allows more"


def _seconds(ms: int) -> str:
    return f"{f'{ms / 1000:,.1f}'.removesuffix('.0')} s"
