"""Ends runs that are past their time, from outside of them.

A run cannot watch itself while the engine computes. One thread looks at all runs every few milliseconds
while there are any, and sleeps when there are none, so that starting a run wakes nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

_log: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.02
_IDLE_TICKS: Final = 100


class Watchdog:
    """Calls back when a moment has passed, unless it is told to forget it."""

    def __init__(self) -> None:
        self._watched: dict[object, tuple[float, Callable[[], None]]] = {}
        self._awake = threading.Event()
        self._started = threading.Lock()
        self._closed = False

    def watch(self, key: object, seconds: float, late: Callable[[], None]) -> None:
        """Call *late*, about that many seconds from now, from the watchdog's thread."""
        self._watched[key] = (time.monotonic() + seconds, late)
        if not self._awake.is_set():
            self._awake.set()
            if self._started.acquire(blocking=False):
                threading.Thread(target=self._look, name="standfast-watchdog", daemon=True).start()

    def forget(self, key: object) -> None:
        self._watched.pop(key, None)

    def close(self) -> None:
        self._closed = True
        self._awake.set()

    def _look(self) -> None:
        idle = 0
        while not self._closed:
            time.sleep(_TICK_S)
            self._call_late()
            idle = 0 if self._watched else idle + 1
            if idle > _IDLE_TICKS:
                self._awake.clear()
                if not self._watched:
                    self._awake.wait()
                idle = 0

    def _call_late(self) -> None:
        now = time.monotonic()
        for key, (moment, late) in list(self._watched.items()):
            if now >= moment and self._watched.pop(key, None) is not None:
                try:
                    late()
                except Exception:  # one run's end must not be the end of all watching
                    _log.exception("a run that is past its time could not be ended")
