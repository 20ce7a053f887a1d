"""The port between the cell lifecycle and an engine: runs one cell step by step, from call to call.

Theory of operation
-------------------
`sandbox.cell_lifecycle` implements `CellRun` once, for every engine: it numbers the calls of a cell, keeps
answers until the code can take them, watches the time, stops, lends the worker, suspends, resumes and ends
the cell. The *stepper* of an engine knows how to run the code, and nothing else. Each of its methods runs
the code up to the next point that needs a decision, a `Step`::

    prepare ─ begin ─► EngineCall(stands=True) ─ answer ─► EngineCall(stands=False) ─ proceed ─► StepBlocked
                                                                      answer ─► StepEnded ─ keep ┘

- `EngineCall`: the code has made a call. If it `stands`, the code is blocked at this call, and the
  lifecycle continues it with `answer`. If not, the code holds a promise and `proceed` lets it continue.
- `StepBlocked`: every task of the code waits for the answers of earlier calls.
- `StepEnded`: the code returned, raised an exception, or was refused before it ran.

A cell that waits can be put aside to free its worker (`put_aside`, then `release`), turned into bytes
(`dump`) and brought back (`load`). An engine that cannot store code in the middle of a call sets `replayed`:
the lifecycle records the calls and their answers, and reruns the code up to the point where it waited. Such
a stepper needs no `load`.

Rules
-----
1. A cell's behaviour is determined by its code, state, inputs, `host.now_ms`, `host.request.seed` and the
   answers in their order. The code reaches the outside only through calls.
2. A failure that undoes the cell (a limit, a crash) is raised as `CellFailed`. An exception of the language
   is the `error` of a `StepEnded`. A `StandfastError` ends the cell and reaches the caller.
3. `kill` may be called from any thread and makes the running method raise `CellStopped`. A stepper that is
   killed while it is idle raises `CellStopped` as soon as it is asked to compute. Every other method is
   called by one thread at a time.
4. `release` is called after the end, after `put_aside`, and for a cell that is abandoned. It may be called
   twice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, Protocol, final

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.ports.code_engine import CallAnswer, CellRequest, LastCall


class CellStopped(Exception):
    """The cell was stopped from outside; `StepperHost.stopped` is the reason."""


class CellFailed(Exception):
    """The cell ends with `error`, and its session keeps the state that it had before the cell."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


@final
class EngineCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that the code has made. `problem` and `line` are as in `CellCall`; the stepper assigns `id`.

    `answer` is the engine's own answer, for a call that must not reach the host. `digest` identifies the
    call when a replayed cell makes it again. `argument_bytes` and `argument_values` count towards the limit
    on the arguments of all calls of one pause; an engine that checks the arguments itself leaves them at 0.
    """

    id: int
    name: str
    args: list[Json] = []
    kwargs: dict[str, Json] = {}
    problem: ErrorObject | None = None
    stands: bool = True
    answer: CallAnswer | None = None
    digest: bytes = b""
    argument_bytes: int = 0
    argument_values: int = 0
    line: int | None = None


class StepBlocked(msgspec.Struct, frozen=True):
    """The code waits. It can take the answers to the calls in `pending`; None means to any call."""

    pending: Collection[int] | None = None


@final
class StepEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The code has ended: with `result`, with an exception (`error`), or with a call left to the host.

    Code that was `refused` before any of it ran leaves no state: `keep` is not called.
    """

    result: Json = None
    error: ErrorObject | None = None
    refused: bool = False
    last_call: LastCall | None = None
    notes: tuple[str, ...] = ()


Step = EngineCall | StepBlocked | StepEnded


class PrintedText(Protocol):
    """Collects the output of the code. `truncated` is set if some of it was dropped."""

    truncated: bool

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None: ...

    def forget(self, stdout: str = "", stderr: str = "") -> None:
        """Replace the output so far with *stdout* and *stderr*."""


class StepperHost(Protocol):
    """The lifecycle, as its stepper sees it."""

    request: CellRequest
    now_ms: int
    """The time that the code sees. It changes only between two steps."""
    stopped: ErrorObject | None
    """Why the cell was stopped; None if it was not."""

    @property
    def output(self) -> PrintedText: ...

    def load(self, name: str) -> Any:
        """Load an outside value by its name; raise `LookupError` for an unknown name."""

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error*, for limits that the stepper enforces. Callable from any thread."""

    def duration_ms(self) -> int:
        """Return the wall time used so far, excluding time spent suspended."""


class CellStepper(Protocol):
    """One cell inside an engine."""

    replayed: bool
    """Whether a cell that was put aside is rerun from its beginning instead of being loaded."""
    wall_grace_s: float
    """How long the engine may take to end the cell once its wall time is over, before it is killed."""
    instructions: int | None
    """The number of instructions executed so far; None if the engine does not count them."""

    def prepare(self) -> None:
        """Wait for a worker, outside the cell's measured time. Not called for a resumed cell."""

    def begin(self) -> Step:
        """Run the code from its beginning. A replayed cell may begin more than once."""

    def proceed(self) -> Step:
        """Continue after an `EngineCall` that does not stand."""

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        """Continue with the answer to the call that the code stands at, or to one that it is blocked on."""

    def raises_at_call(self, answer: CallAnswer) -> bool:
        """Return whether an immediate *answer* is raised at the call even if the call does not stand."""

    def keep(self) -> bytes | None:
        """Return the session's state after the code has ended; None if it did not change."""

    def put_aside(self) -> None:
        """Move a waiting cell from its worker into the stepper; raise `EngineFailed` if `load` would fail."""

    def dump(self) -> bytes:
        """Return a cell that was put aside as bytes, from which the engine can create another stepper."""

    def load(self) -> Step:
        """Load a cell that was put aside into a worker again; return the step that it waits at."""

    def is_in_worker(self) -> bool:
        """Return whether the worker still holds a cell that was not put aside; if not, it is replayed."""

    def memory_peak_bytes(self) -> int | None:
        """Return the peak memory of the current worker; None if that is unknown."""

    def release(self, *, warm: bool) -> None:
        """Free the worker. If *warm* and it holds the session's state, keep it for the next cell."""

    def kill(self) -> None:
        """End all computation for the cell. Callable from any thread."""
