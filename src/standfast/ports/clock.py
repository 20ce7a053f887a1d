"""The clock port, which tests replace with a clock that they advance themselves."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the time of day in milliseconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes backwards."""

    def boot_ms(self) -> int:
        """Return the milliseconds since boot, including suspended time. All processes see the same value."""


_BOOT_TIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's own clock."""

    _last_ms = 0

    def now_ms(self) -> int:
        now, last = time.time_ns() // 1_000_000, self._last_ms
        if now == last:
            return last  # the same int object, which the timestamps of one millisecond share in memory
        self._last_ms = now
        return now

    monotonic = staticmethod(time.monotonic)

    def boot_ms(self) -> int:
        if _BOOT_TIME is None:  # not Linux: the closest clock, although it may stop during suspension
            return time.monotonic_ns() // 1_000_000
        return time.clock_gettime_ns(_BOOT_TIME) // 1_000_000
