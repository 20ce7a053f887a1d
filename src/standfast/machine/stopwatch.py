"""How long a turn has run, told by the times of its inputs. Time spent waiting or dead does not count."""

from __future__ import annotations


class Stopwatch:
    """Knows no clock: `now_ms` is the time of the last input."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._ran_ms = 0
        self._since_ms: int | None = None
        self._last_ms = 0

    def tick(self, at_ms: int) -> None:
        """An input of this time arrived."""
        self._last_ms = self.now_ms
        self.now_ms = at_ms

    def start(self, at_ms: int) -> None:
        """Time counts from here on, if it did not already."""
        if self._since_ms is None:
            self._since_ms = at_ms

    def stop(self) -> None:
        """Time does not count until the next start."""
        self._count_until(self.now_ms)
        self._since_ms = None

    def resume(self, at_ms: int) -> None:
        """The process died after the input before this one; what lies between does not count."""
        self._count_until(self._last_ms)
        if self._since_ms is not None:
            self._since_ms = at_ms

    def ran_ms(self) -> int:
        """How long it has run so far."""
        running = 0 if self._since_ms is None else max(0, self.now_ms - self._since_ms)
        return self._ran_ms + running

    def deadline(self, limit_ms: int) -> int | None:
        """When *limit_ms* are used up if it runs on; None while time does not count."""
        return None if self._since_ms is None else self._since_ms + limit_ms - self._ran_ms

    def _count_until(self, at_ms: int) -> None:
        if self._since_ms is not None:
            self._ran_ms += max(0, at_ms - self._since_ms)
