"""Decides whether a failed model call is retried, and when.

Theory of operation
-------------------
A retryable failure is retried after half a second, then one, two and so on, up to a minute; never before the
provider's Retry-After. Up to a quarter of the delay is added, so that sessions that failed together do not
retry together. `max_attempts` bounds the attempts of one call, `max_retry_wait_ms` all its delays together.

Rules
-----
1. The decision depends only on its arguments, and these only on journaled inputs, so a replay decides the
   same. The random part is derived from *seed*, which is the turn's own; without one, nothing is added.
2. Retry-After is never shortened. If it exceeds the time that is left, the call fails immediately.
3. A Retry-After of 0 means that the next attempt follows immediately.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.machine.inputs import ModelFailed
from standfast.model.canonical import digest_bytes
from standfast.model.limits import UsageLimits

_FIRST_MS: Final = 500
_LONGEST_MS: Final = 60_000
_MOST_DOUBLINGS: Final = 10


class Retry(msgspec.Struct, frozen=True):
    """Retry, this long after the failure."""

    delay_ms: int


class GiveUp(msgspec.Struct, frozen=True):
    """Do not retry. `why` says which limit forbids it; None if the failure needs no such explanation."""

    why: str | None = None


def decide(
    failure: ModelFailed, *, attempt: int, waited_ms: int, limits: UsageLimits, seed: str
) -> Retry | GiveUp:
    """Decide whether to retry after *attempt* failed; *waited_ms* is the sum of the delays before it."""
    if not failure.retryable:
        return GiveUp()
    if attempt >= limits.max_attempts:
        if attempt == 1:
            return GiveUp()
        return GiveUp(f"it failed {attempt} times in a row; UsageLimits(max_attempts=...) allows more")
    asked_ms = failure.retry_after_ms
    if asked_ms == 0:
        return Retry(0)
    backoff_ms = min(_FIRST_MS << min(attempt - 1, _MOST_DOUBLINGS), _LONGEST_MS)
    least_ms = max(backoff_ms, asked_ms or 0)
    left_ms = limits.max_retry_wait_ms - waited_ms
    if least_ms > left_ms:
        asks = "the provider asks" if asked_ms == least_ms else "the next attempt has"
        before = f", after {_seconds(waited_ms)} already" if waited_ms else ""
        return GiveUp(
            f"{asks} to wait {_seconds(least_ms)}{before}; UsageLimits(max_retry_wait_ms=...) allows more"
        )
    spread_ms = 0
    if seed:
        spread_ms = int(digest_bytes(f"{seed}.{attempt}".encode())[:12], 16) % (least_ms // 4 + 1)
    return Retry(min(least_ms + spread_ms, left_ms))


def _seconds(ms: int) -> str:
    return f"{f'{ms / 1000:,.1f}'.removesuffix('.0')} s"
