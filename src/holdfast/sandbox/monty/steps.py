"""What a step of the engine can end with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.sandbox.monty import engine
from holdfast.sandbox.monty.failures import Failure


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
class Finished:
    """The code ran to its end, and its last expression has this value."""

    value: object


Step = HostCall | Blocked | Finished | Failure
