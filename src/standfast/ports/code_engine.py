"""What a turn asks of an engine that runs the code a model writes.

Theory of operation
-------------------
A *cell* is code that runs in a session's state. It runs until it ends, or until it cannot go on without the
result of a call: then it *pauses*, and whoever drives it answers one of its calls, and so on. A paused cell
can be suspended to bytes and taken up again, by any process.

Rules
-----
1. What a cell does follows from its code, its state, its inputs, `now_ms`, `seed` and the answers in their
   order. Run again with the same, it makes the same calls: so a crash costs nothing but computing.
2. A cell touches nothing outside. Whatever it wants of the world is a call.
3. Every method blocks, and is called on a thread that may. Only `stop` may be called while another runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, Protocol

import msgspec

from standfast.errors import ErrorObject, Span
from standfast.model.canonical import Json
from standfast.model.capability import Capability, GuestException
from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.model.limits import SessionLimits

SLEEP = "sleep"
"""The call that an engine makes of whatever the language has for sleeping: `sleep(seconds=...)`."""


class CellFunctions(Protocol):
    """What code may call, by name."""

    def __contains__(self, name: object, /) -> bool: ...

    def names(self) -> Iterable[str]: ...

    def capability(self, name: str) -> Capability:
        """The contract of a function that there is."""

    def is_async(self, name: str) -> bool:
        """Whether the function is to be awaited where the code does not tell."""

    def suggest(self, name: str) -> str | None:
        """A hint for a name that there is not: what might have been meant."""


class CellCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the code made. `number` counts the calls of the cell from 1.

    `problem` says why the call cannot be carried out: an argument has no JSON form, or the arguments are too
    large.
    """

    number: int
    name: str
    args: list[Json] = msgspec.field(default_factory=list)
    kwargs: dict[str, Json] = msgspec.field(default_factory=dict)
    problem: ErrorObject | None = None


class CallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call, and when: `value`, or the exception that the code sees for `error`."""

    value: Json = None
    exception: GuestException | None = None
    error: ErrorObject | None = None
    at_ms: int = 0


class CellPause(msgspec.Struct, frozen=True):
    """The code cannot go on before one of its calls is answered. `calls` are those it has made since."""

    calls: tuple[CellCall, ...] = ()


class LastCall(msgspec.Struct, frozen=True):
    """A call that the code ended with, and where. It was not made: that is up to whoever drives the cell."""

    call: CellCall
    span: Span


class CellEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The code ran to its end, or failed with `error`.

    `state` is what it left, None if that is what there was before: always so after a `hard` failure (a limit,
    a crash, a stop), which an exception of the language is not. `notes` are what else whoever wrote the code
    should know; `instructions` is the engine's own count, where it has one.
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
"""Answers a call on the spot, in the engine's thread; None if the cell is to pause for it."""


class CellRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A cell to run. An engine keeps the worker of a session warm under `key`.

    `paused` is where a suspended cell goes on; without it the code runs from its beginning. `inputs` are
    values that the code is known to need, `load` gives others by name when they are touched and raises
    `LookupError` if there are none of that name; neither becomes part of the state. `last` are functions that
    never return: where the code ends with a call of one, an engine may end there and leave the call to others
    (`CellEnd.last_call`). `through` may be called, in the engine's thread, once the code is through and
    before what it left is stored: with the end that follows if nothing goes wrong, without its state.
    `now_ms` is the time, until an answer brings a later one; `seed` is what chance is made of.
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
    now_ms: int = 0
    seed: str = ""


class CellOutput(msgspec.Struct, frozen=True):
    """What code has printed. It is `truncated` if there was more than it may print."""

    stdout: str
    stderr: str
    truncated: bool


class CellRun(Protocol):
    """One cell while it runs."""

    def start(self) -> CellStep:
        """Run from the beginning, or from where the cell was suspended: that is a pause with no new calls."""

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        """Give a paused cell the result of one of its calls. The order of the answers counts."""

    def printed(self) -> CellOutput:
        """What a paused cell has printed so far."""

    def suspend(self) -> bytes:
        """A paused cell as bytes. This run is over then, and its worker is free."""

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error*, hard, from any thread; a paused one ends when it is next answered."""

    def close(self) -> None:
        """Give up a cell that has not ended. Harmless if it has."""


Check = Literal["calls", "types", "session"]
"""How closely code is looked at before it runs.

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
        """Everything that is wrong with the code, found without running any of it. `inputs` are read-only."""

    def touched(self, code: str, names: Collection[str]) -> Touched:
        """Which of *names* the code reads."""

    def names(self, state: bytes) -> list[str]:
        """The names that a state binds."""

    def prepare(self) -> None:
        """Do what a first run would wait for, so that it is not that run's time. Harmless if it is done."""

    def open(self, request: CellRequest) -> CellRun: ...

    def forget(self, key: str) -> None:
        """End what is kept warm under a key: whoever comes next under it is somebody else."""

    def close(self) -> None:
        """End the engine's processes."""
