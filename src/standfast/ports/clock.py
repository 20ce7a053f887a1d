"""The time, as something that tests can hold still."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def boot_ms(self) -> int:
        """Milliseconds since the machine started, suspension included: alike in all processes, never set."""


_BOOT_TIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's own clock."""

    _last_ms = 0

    def now_ms(self) -> int:
        now, last = time.time_ns() // 1_000_000, self._last_ms
        if now == last:
            return last  # records of one millisecond share one object: each has several times
        self._last_ms = now
        return now

    monotonic = staticmethod(time.monotonic)

    def boot_ms(self) -> int:
        if _BOOT_TIME is None:  # not Linux: as good as it gets, where suspension stops it
            return time.monotonic_ns() // 1_000_000
        return time.clock_gettime_ns(_BOOT_TIME) // 1_000_000
