"""A limit on how many calls of a tool run at once. Waiting costs no thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Slots:
    """Grants a number of slots, in order; whoever gives one back starts the next in line."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()

    def take(self, granted: Callable[[], None]) -> None:
        """Call *granted* when there is a slot: now, or from the thread that gives one back."""
        with self._lock:
            if self._free == 0:
                self._queue.append(granted)
                return
            self._free -= 1
        granted()

    def take_now(self) -> bool:
        """Take a slot if there is one."""
        with self._lock:
            if self._free == 0:
                return False
            self._free -= 1
            return True

    def give_back(self) -> None:
        with self._lock:
            if not self._queue:
                self._free += 1
                return
            granted = self._queue.popleft()
        granted()
