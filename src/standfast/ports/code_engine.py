"""The port of an engine that runs the code a model writes.

Theory of operation
-------------------
A *cell* is code that runs in a session's state. It runs until it ends, or until it cannot continue without
the result of a call: then it *pauses*, and its driver answers one of its calls, and so on. A paused cell can
be suspended to bytes and resumed by any process.

Rules
-----
1. A cell's behaviour follows from its code, its state, its inputs, `now_ms`, `seed` and the answers in their
   order. Run again with the same, it makes the same calls: a crash costs only computing.
2. A cell touches nothing outside. Everything that it needs from the outside is a call.
3. Every method blocks, and is called on a thread that may block. Only `stop` may be called while another
   method runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, Protocol

import msgspec

from standfast.errors import ErrorObject, Span
from standfast.model.canonical import Json
from standfast.model.capability import Capability, GuestException
from standfast.model.code import Diagnostic, Language
from standfast.model.limits import SessionLimits

SLEEP = "sleep"
"""The call that an engine makes for the sleep functions of its language: `sleep(seconds=...)`."""


class CellFunctions(Protocol):
    """The functions that code may call, by name."""

    def __contains__(self, name: object, /) -> bool: ...

    def names(self) -> Iterable[str]: ...

    def capability(self, name: str) -> Capability:
        """Return the contract of a function that exists."""

    def is_async(self, name: str) -> bool:
        """Return whether the function is awaited where the syntax of the code does not show it."""

    def suggest(self, name: str) -> str | None:
        """Return a hint for an unknown name: what might have been meant."""


class CellCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the code made. `number` counts the calls of the cell from 1.

    `problem` says why the call cannot be carried out: an argument has no JSON form, or the arguments are too
    large. `line` is the line of the cell's code that made the call, from 1; 0 if other code did, such as a
    function of an earlier cell; None if the engine cannot tell.
    """

    number: int
    name: str
    args: list[Json] = msgspec.field(default_factory=list)
    kwargs: dict[str, Json] = msgspec.field(default_factory=dict)
    problem: ErrorObject | None = None
    line: int | None = None


class CallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call, and its time: `value`, or the exception that the code sees for `error`."""

    value: Json = None
    exception: GuestException | None = None
    error: ErrorObject | None = None
    at_ms: int = 0


class CellPause(msgspec.Struct, frozen=True):
    """The code cannot continue until one of its calls is answered. `calls` are those since the last pause."""

    calls: tuple[CellCall, ...] = ()


class LastCall(msgspec.Struct, frozen=True):
    """A call that the code ended with, and its place. It was not made: that is up to the cell's driver."""

    call: CellCall
    span: Span


class CellEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The code ran to its end, or failed with `error`.

    `state` is the session's state after it, None if that did not change: always so after a `hard` failure (a
    limit, a crash, a stop), which an exception of the language is not. `notes` are further messages to the
    author of the code; `instructions` is the engine's own count, if it has one.
    """

    result: Json = None
    error: ErrorObject | None = None
    hard: bool = False
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    state: bytes | None = None
    last_call: LastCall | None = None
    calls_made: int = 0
    duration_ms: int = 0
    memory_peak_bytes: int | None = None
    instructions: int | None = None
    notes: tuple[str, ...] = ()


CellStep = CellPause | CellEnd

AnswerNow = Callable[[CellCall], CallAnswer | None]
"""Answers a call immediately, in the engine's thread; None if the cell is to pause for it."""


class CellRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A cell to run. An engine keeps the worker of a session warm under `key`.

    `paused` is a suspended cell to resume; without it the code runs from its beginning. `inputs` are values
    that the code is known to need; `load` returns others by name when they are read, and raises `LookupError`
    for an unknown name. Neither becomes part of the state. `last` are functions that never return: where the
    code ends with a call of one, an engine may end there and leave the call to the driver
    (`CellEnd.last_call`). An engine may call `through`, in its thread, after the code has ended and before
    its state is stored: with the end that follows if nothing fails, without its state. The peak memory of a
    cell that is not `measured` may stay unknown. `now_ms` is the time until an answer brings a later one;
    random numbers come from `seed`.
    """

    key: str
    code: str
    state: bytes = b""
    paused: bytes = b""
    limits: SessionLimits
    functions: CellFunctions
    inputs: dict[str, Any] = msgspec.field(default_factory=dict)
    load: Callable[[str], Any] | None = None
    answer_now: AnswerNow | None = None
    last: frozenset[str] = frozenset()
    through: Callable[[CellEnd], None] | None = None
    measured: bool = True
    now_ms: int = 0
    seed: str = ""


class CellOutput(msgspec.Struct, frozen=True):
    """What code has printed. It is `truncated` if the code printed more than it may."""

    stdout: str
    stderr: str
    truncated: bool


class CellRun(Protocol):
    """One cell while it runs."""

    def start(self) -> CellStep:
        """Run from the beginning; a suspended cell returns a pause without new calls."""

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        """Give a paused cell the result of one of its calls. The order of the answers counts."""

    def printed(self) -> CellOutput:
        """Return what a paused cell has printed so far."""

    def suspend(self) -> bytes:
        """Return a paused cell as bytes, end this run and free its worker."""

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error*, hard, from any thread; a paused one ends when it is next answered."""

    def close(self) -> None:
        """Abandon a cell that has not ended. Harmless if it has."""


Check = Literal["calls", "types", "session"]
"""How closely code is checked before it runs.

`calls`: syntax, what the language does not have, unknown functions, arguments that a function does not take.
`types`: all that, and what a type checker finds, which costs some ten times as much.
`session`: as `types`, for a session whose code may rebind the names of its inputs.
"""


class Touched(msgspec.Struct, frozen=True):
    """Which outside names code reads, and by which literal keys alone it reads from them (None: by any)."""

    names: dict[str, frozenset[str] | None]


class CodeEngine(Protocol):
    """Runs cells of one language."""

    @property
    def language(self) -> Language: ...

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        """Return what is wrong with the code, without running any of it. `inputs` are read-only."""

    def touched(self, code: str, names: Collection[str]) -> Touched:
        """Return which of *names* the code reads."""

    def names(self, state: bytes) -> list[str]:
        """Return the names that a state binds."""

    def prepare(self) -> None:
        """Do in advance what the first run would wait for. Idempotent."""

    def open(self, request: CellRequest) -> CellRun: ...

    def forget(self, key: str) -> None:
        """End the worker that is kept warm under *key*: the next session with this key is another one."""

    def close(self) -> None:
        """End the engine's processes."""
