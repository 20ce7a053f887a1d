"""The port of engines, which run guest code.

Theory of operation
-------------------
A *cell* is code that runs in a session's state. It runs until it ends, or until it cannot continue without
the result of a call: then it *pauses* until its driver answers one of its calls. A paused cell can be
suspended to bytes and resumed by any process.

Rules
-----
1. A cell's behaviour is determined by its code, its state, its inputs, `now_ms`, `seed` and the answers in
   their order. Rerun with the same values, it makes the same calls: a crash costs only computation.
2. A cell reaches the outside only through calls.
3. Every method blocks, and is called on a thread that may block. Only `stop` may be called while another
   method runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, Protocol, final

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
        """Return the contract of the function *name*, which must exist."""

    def is_async(self, name: str) -> bool:
        """Return whether calls of the function are awaited, for code whose syntax does not show it."""

    def suggest(self, name: str) -> str | None:
        """Return a hint that names functions similar to the unknown *name*; None if there are none."""


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
    """The answer to a call at `at_ms`: its `value`, or the `exception` that the code sees for `error`."""

    value: Json = None
    exception: GuestException | None = None
    error: ErrorObject | None = None
    at_ms: int = 0


@final
class CellPause(msgspec.Struct, frozen=True):
    """The code cannot continue until a call is answered. `calls` are those made since the last pause."""

    calls: tuple[CellCall, ...] = ()


class LastCall(msgspec.Struct, frozen=True):
    """The call that the code ended with, and its place. It is left to the cell's driver to execute."""

    call: CellCall
    span: Span


@final
class CellEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The code ran to its end, or failed with `error`.

    `state` is the session's state after the cell, None if it did not change. It never changes after a `hard`
    failure: a limit, a crash or a stop, but not an exception of the language. `notes` are further messages to
    the author of the code; `instructions` is None if the engine does not count them.
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
"""Answers a call immediately, in the engine's thread; returns None to make the cell pause for it."""


class CellRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A cell to run. An engine keeps the worker of a session warm under `key`.

    `paused` is a suspended cell to resume; without it the code runs from its beginning. `inputs` are values
    that the code is known to need; `load` returns others by name when they are read, and raises `LookupError`
    for an unknown name. Neither becomes part of the state. `last` are functions that never return: if the
    code ends with a call of one, an engine may end the cell there and leave the call to the driver
    (`CellEnd.last_call`). After the code has ended and before its state is stored, an engine may call
    `through`, in its thread, with the expected `CellEnd` without its state. The peak memory of a cell that is
    not `measured` may stay unknown. `now_ms` is the time that the code sees until an answer brings a later
    one; `seed` seeds its random numbers.
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
    """The output of code. It is `truncated` if the code printed more than its limit."""

    stdout: str
    stderr: str
    truncated: bool


class CellRun(Protocol):
    """One cell while it runs."""

    def start(self) -> CellStep:
        """Run from the beginning; for a suspended cell, return a pause without new calls."""

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        """Continue a paused cell with the answer to call *number*. The order of the answers matters."""

    def printed(self) -> CellOutput:
        """Return the output of a paused cell so far."""

    def suspend(self) -> bytes:
        """Return a paused cell as bytes, end this run and free its worker."""

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error* as a hard failure; a paused cell ends when it is next answered."""

    def close(self) -> None:
        """Abandon a cell that has not ended. Harmless if it has."""


Check = Literal["calls", "types", "session"]
"""How closely code is checked before it runs.

`calls`: syntax, features that the engine lacks, unknown functions, arguments that a function does not take.
`types`: also the findings of a type checker, at about ten times the cost.
`session`: as `types`, for a session whose code may rebind the names of its inputs.
"""


class NamesRead(msgspec.Struct, frozen=True):
    """The outside names that code reads, each with the literal keys that it reads (None: any key)."""

    names: dict[str, frozenset[str] | None]


class CodeEngine(Protocol):
    """Runs cells of one language."""

    @property
    def language(self) -> Language: ...

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        """Return the problems of *code* without running any of it. *inputs* are read-only names."""

    def touched(self, code: str, names: Collection[str]) -> NamesRead:
        """Return which of *names* the code reads."""

    def names(self, state: bytes) -> list[str]:
        """Return the names that *state* binds."""

    def prepare(self) -> None:
        """Do the setup that the first run would otherwise wait for. Idempotent."""

    def open(self, request: CellRequest) -> CellRun: ...

    def forget(self, key: str) -> None:
        """End the worker that is kept warm under *key*: the next session with this key is a different one."""

    def close(self) -> None:
        """End the engine's processes."""
