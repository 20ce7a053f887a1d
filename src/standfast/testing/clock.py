"""A clock that moves only when a test moves it."""

from __future__ import annotations


class FakeClock:
    """A fake `clock=` for `Sandbox` or `Runtime`: approvals, timers, sessions expire when a test says so.

    Limits on real work, such as `timeout_ms` and `wall_ms`, still use real time.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms
        self._set_ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.boot_ms() / 1000

    def boot_ms(self) -> int:
        return self.ms - self._set_ms

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self.ms += int(seconds * 1000)

    def set(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative, as an operator or NTP does. No time passes."""
        self.ms += int(seconds * 1000)
        self._set_ms += int(seconds * 1000)
