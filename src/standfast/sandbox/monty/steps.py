"""What a step of the engine can end with."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from standfast.sandbox.monty import engine
from standfast.sandbox.monty.failures import Failure


@dataclass(frozen=True, slots=True)
class HostCall:
    """Guest code called a capability, or sleeps."""

    snapshot: engine.FunctionSnapshot
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call_id: int
    awaited: bool
    foreign: str | None = None
    """The type of an argument that has no JSON form and arrived as its text."""
    too_large: str | None = None
    """The limit that the arguments exceed; they are left out then."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Every guest task waits for a future."""

    snapshot: engine.FutureSnapshot
    pending: list[int]


@dataclass(frozen=True, slots=True)
class ForeignValue:
    """A value that cannot be read from the engine because it is not JSON; *kind* is what it holds."""

    kind: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The code ran to its end, and its last expression has this value, which may be *unread*."""

    value: object
    unread: bool = False


def read_value(read: Callable[[], object]) -> object:
    """What *read* takes over from the engine, which hashes keys and items of sets on the way."""
    pauses = gc.isenabled()
    if pauses:  # it would look at all the new objects again and again
        gc.disable()
    try:
        return read()
    except TypeError:  # an instance of a guest's class has no hash here
        return ForeignValue("dict or set with objects as keys")
    finally:
        if pauses:
            gc.enable()


Step = HostCall | Blocked | Finished | Failure
