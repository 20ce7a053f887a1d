"""A clock that moves only when a test moves it."""

from __future__ import annotations


class FakeClock:
    """Pass it as `clock=` to `Sandbox` or `Runtime`: approvals, timers and sessions then expire when the test
    says so.

    Limits on real work, such as `timeout_ms` and `wall_ms`, are kept in real time all the same.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def advance(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)
