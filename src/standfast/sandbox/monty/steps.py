"""What a step of the engine can end with."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from standfast.errors import ValueTooLarge
from standfast.model.bounds import MAX_VALUE_BYTES
from standfast.ports.cell_stepper import EngineCall, StepBlocked
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.dump import check_arguments
from standfast.sandbox.monty.workers import MontyWorker


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that is not taken over from the engine: what it holds is *foreign* to JSON, or *too_large*."""

    foreign: str | None = None
    too_large: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The code ran to its end, and its last expression has this value, which may be *unread*."""

    value: object
    unread: bool = False


def read_arguments(
    snapshot: engine.FunctionSnapshot, worker: MontyWorker, *, small: bool, max_bytes: int = MAX_VALUE_BYTES
) -> tuple[tuple[Any, ...], dict[str, Any]] | Unreadable:
    """Take the arguments of a call over from the engine, unless they are too large or not JSON.

    The engine makes Python objects of them in one go, holding the GIL. Unless they are known to be *small*, a
    dump tells first how many parts they have and what would be hashed.
    """
    if not small:
        try:
            foreign = check_arguments(worker.dump(snapshot), max_bytes)
        except ValueTooLarge as error:
            return Unreadable(too_large=error.limit)
        if foreign is not None:
            return Unreadable(foreign=foreign)
    given: Any = read_value(lambda: (snapshot.args, snapshot.kwargs))
    return given  # type: ignore[no-any-return]


def read_value(read: Callable[[], object]) -> object:
    """What *read* takes over from the engine, which hashes keys and items of sets on the way."""
    pauses = gc.isenabled()
    if pauses:  # it would look at all the new objects again and again
        gc.disable()
    try:
        return read()
    except TypeError:  # an instance of a guest's class has no hash here
        return Unreadable(foreign="dict or set with objects as keys")
    finally:
        if pauses:
            gc.enable()


EngineStep = EngineCall | StepBlocked | Finished
