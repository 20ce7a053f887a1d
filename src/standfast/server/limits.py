"""Limits on what one credential may use at once, and on requests without a valid credential.

Theory of operation
-------------------
Requests are limited by a token bucket that refills at a fixed rate. Streams and turns count while they are
open. All counts are in memory: each process applies the limits separately.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal

import msgspec

from standfast.errors import Code, RequestRefused

_MAX_METERS: Final = 10_000


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of each credential.

    requests_per_s: the sustained request rate, with bursts of up to `burst`. body_bytes: the size of a JSON
    body; `attachment_bytes`, of an upload or a snapshot. streams: concurrently open event streams. turns:
    concurrent turns and code runs, whether a client waits for them or not. failures_per_min: requests without
    a valid credential from one address, and rejected requests of one address in the audit log.
    """

    requests_per_s: float = 200.0
    burst: int = 400
    body_bytes: int = 1 << 20
    attachment_bytes: int = 64 << 20
    streams: int = 256
    turns: int = 64
    failures_per_min: int = 60


class _Meter:
    """The current use of one credential or address."""

    __slots__ = ("at", "left", "open")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at
        self.open = {"streams": 0, "turns": 0}

    def take(self, rate: float, burst: float, now: float) -> float:
        """Take one token from the bucket; return 0, or the seconds to wait if it is empty."""
        self.left = min(burst, self.left + (now - self.at) * rate)
        self.at = now
        if self.left < 1:
            return (1 - self.left) / rate
        self.left -= 1
        return 0.0


class ResourceUse:
    """One open stream or turn. It counts until it is closed."""

    __slots__ = ("_counts", "_kind")

    def __init__(self, counts: dict[str, int], kind: str) -> None:
        self._counts = counts
        self._kind = kind
        counts[kind] += 1

    def close(self) -> None:
        """Stop counting it. Call this once."""
        self._counts[self._kind] -= 1

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CredentialLimiter:
    """Counts what credentials use. Use it on one event loop."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._meters: OrderedDict[str, _Meter] = OrderedDict()

    def admit(self, credential_id: str) -> None:
        """Count a request; raise 429 if the credential exceeds its rate."""
        rate, burst = self.limits.requests_per_s, float(self.limits.burst)
        wait_s = self._meter(credential_id, burst).take(rate, burst, self._clock())
        if wait_s:
            raise _too_many(f"requests: this credential may send {rate:g} a second", wait_s)

    def count_failure(self, address: str) -> None:
        """Count a request without a valid credential; raise 429 if too many came from *address*."""
        most, rate = float(self.limits.failures_per_min), self.limits.failures_per_min / 60
        wait_s = self._meter(f"?{address}", most).take(rate, most, self._clock())
        if wait_s:
            raise _too_many("requests without a valid credential from this address", wait_s)

    def may_record(self, address: str) -> bool:
        """Count a rejected request of *address*; return whether the audit log has room for it.

        Otherwise one address could fill the log until its older records, such as decisions, are deleted.
        """
        most, rate = float(self.limits.failures_per_min), self.limits.failures_per_min / 60
        return self._meter(f"~{address}", most).take(rate, most, self._clock()) == 0

    def use_stream(self, credential_id: str) -> ResourceUse:
        """Count an open stream until it is closed; raise 429 if the credential has too many."""
        return self._use(credential_id, "streams", self.limits.streams)

    def use_turn(self, credential_id: str) -> ResourceUse:
        """Count a turn or run until it is closed; raise 429 if the credential has too many."""
        return self._use(credential_id, "turns", self.limits.turns)

    def _use(self, credential_id: str, kind: Literal["streams", "turns"], most: int) -> ResourceUse:
        counts = self._meter(credential_id, float(self.limits.burst)).open
        if counts[kind] >= most:
            raise _too_many(f"{kind} at once: this credential may have {most}", 1.0)
        return ResourceUse(counts, kind)

    def _meter(self, key: str, full: float) -> _Meter:
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = _Meter(full, self._clock())
            if len(self._meters) > _MAX_METERS:
                idle = (name for name, one in self._meters.items() if not any(one.open.values()))
                del self._meters[next(idle)]  # least recently used; the new meter is idle, so one exists
        else:
            self._meters.move_to_end(key)
        return meter


def _too_many(what: str, wait_s: float) -> RequestRefused:
    return RequestRefused(
        429,
        Code.RATE_LIMITED,
        f"too many {what}",
        hint="wait as long as Retry-After says",
        headers={"retry-after": str(max(1, round(wait_s)))},
    )
