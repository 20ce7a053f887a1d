"""Time and randomness for guest code, derived from values that the host sends, so that runs can be replayed.

The clock stands still while code computes. The host's responses advance it and never move it back. Every
function of the standard library that reads a clock or generates random bytes is replaced by one that uses
this module. An extension module that asks the operating system directly cannot be intercepted.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import hashlib
import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

_MAX_DRAW: Final = 1 << 20
_NODE: Final = 0x020000000001
_seed_any: Final = random.Random.seed
_localtime, _gmtime, _strftime, _asctime = time.localtime, time.gmtime, time.strftime, time.asctime
real_sleep: Final = time.sleep


class RunClock:
    """The time that a run sees, and its random bytes."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.seed = ""
        self.draws = 0

    def begin(self, now_ms: int, seed: str) -> None:
        self.now_ms, self.seed, self.draws = now_ms, seed, 0

    def move_to(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def seconds(self) -> float:
        return self.now_ms / 1000

    def nanoseconds(self) -> int:
        return self.now_ms * 1_000_000

    def random_bytes(self, count: int) -> bytes:
        """Return *count* random bytes, which cannot be guessed without the seed."""
        if count < 0:
            raise ValueError("negative argument not allowed")
        if count > _MAX_DRAW:
            raise ValueError(f"at most {_MAX_DRAW} random bytes at once")
        self.draws += 1
        return hashlib.shake_256(f"{self.draws}:{self.seed}".encode("utf-8", "replace")).digest(count)

    def start_chance(self) -> object:
        """Seed the shared generator of the module `random`, and return its state."""
        _seed_any(random._inst, self.random_bytes(32))
        self.draws = 0
        return random.getstate()


def install_clocks(clock: RunClock, sleep: Callable[[float], None]) -> None:
    """Replace the functions of `time`."""
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, clock.seconds)
        setattr(time, f"{name}_ns", clock.nanoseconds)

    def localtime(seconds: float | None = None, /) -> time.struct_time:
        return _localtime(clock.seconds() if seconds is None else seconds)

    def gmtime(seconds: float | None = None, /) -> time.struct_time:
        return _gmtime(clock.seconds() if seconds is None else seconds)

    def ctime(seconds: float | None = None, /) -> str:
        return _asctime(localtime(seconds))

    def asctime(moment: Any = None, /) -> str:
        return _asctime(localtime() if moment is None else moment)

    def strftime(form: str, moment: Any = None, /) -> str:
        return _strftime(form, localtime() if moment is None else moment)

    for replaced in (localtime, gmtime, ctime, asctime, strftime):
        setattr(time, replaced.__name__, replaced)
    time.clock_gettime = lambda which, /: clock.seconds()
    time.clock_gettime_ns = lambda which, /: clock.nanoseconds()
    time.sleep = sleep  # type: ignore[assignment]


def install_dates(clock: RunClock) -> None:
    """Replace methods of the `datetime` types in place, so that existing references to the types work."""

    def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return cls.fromtimestamp(clock.seconds(), tz)

    def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
        return now(cls, datetime.UTC).replace(tzinfo=None)

    def today(cls: type[datetime.date]) -> datetime.date:
        return cls.fromtimestamp(clock.seconds())

    changes: dict[type, tuple[Callable[..., Any], ...]] = {
        datetime.datetime: (now, utcnow),
        datetime.date: (today,),
    }
    for kind, methods in changes.items():
        names = gc.get_referents(kind.__dict__)[0]
        names.update({method.__name__: classmethod(method) for method in methods})
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    clock.now_ms = 86_400_000
    if datetime.datetime.now().day != 2 or datetime.date.today().day != 2:
        raise RuntimeError("the clock of this Python's datetime types cannot be replaced")


def install_chance(clock: RunClock) -> None:
    """Replace the sources of randomness in `os`, `random` and `uuid`."""

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        _seed_any(self, clock.random_bytes(32) if a is None else a, version)

    shared: Any = random
    os.urandom = clock.random_bytes
    os.getrandom = lambda size, flags=0: clock.random_bytes(size)
    shared._urandom = clock.random_bytes
    shared.Random.seed = seed
    shared.seed = shared._inst.seed
    ids: Any = uuid
    ids._generate_time_safe = None
    ids._UuidCreate = None
    ids._node = _NODE
