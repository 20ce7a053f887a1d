"""Time and chance as code sees them: made of what the host says, so that a run can be repeated.

Rules
-----
1. The clock stands still while code computes; answers of the host move it, and never back.
2. Whatever of the standard library reads a clock or draws random bytes is made to ask here. What is compiled
   into an extension and asks the system itself is out of reach.
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


class Surroundings:
    """What the run sees of the world."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.seed = ""
        self.draws = 0
        self.used_chance = False

    def begin(self, now_ms: int, seed: str) -> None:
        self.now_ms, self.seed, self.draws = now_ms, seed, 0

    def pass_to(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def seconds(self) -> float:
        return self.now_ms / 1000

    def nanoseconds(self) -> int:
        return self.now_ms * 1_000_000

    def random_bytes(self, count: int) -> bytes:
        """The next so many bytes that nobody could guess without the seed."""
        if count < 0:
            raise ValueError("negative argument not allowed")
        if count > _MAX_DRAW:
            raise ValueError(f"at most {_MAX_DRAW} random bytes at once")
        self.draws += 1
        return hashlib.shake_256(f"{self.draws}:{self.seed}".encode("utf-8", "replace")).digest(count)


def install(around: Surroundings, sleep: Callable[[float], None]) -> None:
    """Put these surroundings in the place of the system's."""
    _install_clocks(around, sleep)
    _install_dates(around)
    _install_chance(around)


def start_chance(around: Surroundings) -> object:
    """Seed the generator that the module `random` shares; returns its state."""
    _seed_any(random._inst, around.random_bytes(32))
    around.draws = 0
    return random.getstate()


def _install_clocks(around: Surroundings, sleep: Callable[[float], None]) -> None:
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, around.seconds)
        setattr(time, f"{name}_ns", around.nanoseconds)

    def localtime(seconds: float | None = None, /) -> time.struct_time:
        return _localtime(around.seconds() if seconds is None else seconds)

    def gmtime(seconds: float | None = None, /) -> time.struct_time:
        return _gmtime(around.seconds() if seconds is None else seconds)

    def ctime(seconds: float | None = None, /) -> str:
        return _asctime(localtime(seconds))

    def asctime(moment: Any = None, /) -> str:
        return _asctime(localtime() if moment is None else moment)

    def strftime(form: str, moment: Any = None, /) -> str:
        return _strftime(form, localtime() if moment is None else moment)

    for replaced in (localtime, gmtime, ctime, asctime, strftime):
        setattr(time, replaced.__name__, replaced)
    time.clock_gettime = lambda which, /: around.seconds()
    time.clock_gettime_ns = lambda which, /: around.nanoseconds()
    time.sleep = sleep  # type: ignore[assignment]


def _install_dates(around: Surroundings) -> None:
    """Change the types themselves: they stay the types that everything else knows."""

    def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return cls.fromtimestamp(around.seconds(), tz)

    def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
        return now(cls, datetime.UTC).replace(tzinfo=None)

    def today(cls: type[datetime.date]) -> datetime.date:
        return cls.fromtimestamp(around.seconds())

    _change(datetime.datetime, now=now, utcnow=utcnow)
    _change(datetime.date, today=today)
    around.now_ms = 86_400_000
    if datetime.datetime.now().day != 2 or datetime.date.today().day != 2:
        raise RuntimeError("this Python's dates cannot be given another clock")


def _change(kind: type, **methods: Callable[..., Any]) -> None:
    names = gc.get_referents(kind.__dict__)[0]
    for name, method in methods.items():
        names[name] = classmethod(method)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _install_chance(around: Surroundings) -> None:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        _seed_any(self, around.random_bytes(32) if a is None else a, version)

    shared: Any = random
    os.urandom = around.random_bytes
    os.getrandom = lambda size, flags=0: around.random_bytes(size)
    shared._urandom = around.random_bytes
    shared.Random.seed = seed
    shared.seed = shared._inst.seed
    ids: Any = uuid
    ids._generate_time_safe = None
    ids._UuidCreate = None
    ids._node = _NODE
