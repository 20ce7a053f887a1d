"""What the cell lifecycle asks of an engine: to step one cell from call to call.

Theory of operation
-------------------
`sandbox.cell_lifecycle` implements `CellRun` once, for every engine: it numbers the calls of a cell, keeps
answers until the code can take them, watches the time, stops, lends the worker, suspends, resumes and ends
the cell. The *stepper* of an engine knows how to run the code, and nothing else. Each of its methods runs
the code up to the next thing that needs a decision, a `Step`::

    prepare ─ begin ─► EngineCall(stands=True) ─ answer ─► EngineCall(stands=False) ─ proceed ─► StepBlocked
                                                                      answer ─► StepEnded ─ keep ┘

- `EngineCall`: the code has made a call. If it `stands`, the code waits for this call alone, and the
  lifecycle comes back with `answer`. If not, the code holds a promise and `proceed` lets it continue.
- `StepBlocked`: every task of the code waits for the answers of earlier calls.
- `StepEnded`: the code returned, raised an exception, or was refused before it ran.

A cell that waits can be put aside to free its worker (`put_aside`, then `release`), turned into bytes
(`dump`) and brought back (`load`). An engine that cannot store code in the middle of a call sets `replayed`:
the lifecycle records the calls and their answers, and runs the code again up to where it stood. Such a
stepper needs no `load`.

Rules
-----
1. A cell's behaviour follows from its code, state, inputs, `host.now_ms`, `host.request.seed` and the
   answers in their order. The code touches nothing outside except by calls.
2. A failure that undoes the cell (a limit, a crash) is raised as `CellFailed`. An exception of the language
   is the `error` of an `StepEnded`. A `StandfastError` ends the cell and reaches the caller.
3. `kill` comes from any thread and makes the method that is running raise `CellStopped`. A stepper that is
   killed before it computes raises `CellStopped` as soon as it would. Every other method is called by one
   thread at a time.
4. `release` is called after the end, after `put_aside`, and for a cell that is given up. It may be called
   twice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, Protocol

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.ports.code_engine import CallAnswer, CellRequest, LastCall


class CellStopped(Exception):
    """The cell was stopped from outside; `StepperHost.stopped` is the reason."""


class CellFailed(Exception):
    """The cell ends with `error`, and its session stays as it was before the cell."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


class EngineCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that the code has made. `id` is the stepper's own name for it; `problem` is as in `CellCall`.

    `answer` is the engine's own answer, for a call that must not reach the host. `digest` identifies the
    call when a replayed cell makes it again. `argument_bytes` and `argument_values` count towards the limit
    of what the calls of one pause may hold; an engine that checks the arguments itself leaves them at 0.
    `line` is as in `CellCall`.
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
    """The code waits. It can take the answers of the calls in `pending`; None means of any call."""

    pending: Collection[int] | None = None


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
    """Where a stepper puts what the code prints. `truncated` says that some of it was dropped."""

    truncated: bool

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None: ...

    def forget(self, stdout: str = "", stderr: str = "") -> None:
        """Discard what was printed: the code starts again."""


class StepperHost(Protocol):
    """The lifecycle, as its stepper sees it."""

    request: CellRequest
    now_ms: int
    """The time that the code sees. It changes only between two steps."""
    stopped: ErrorObject | None
    """Why the cell was stopped, if it was."""

    @property
    def output(self) -> PrintedText: ...

    def load(self, name: str) -> Any:
        """Load an outside value by its name; raise `LookupError` if there is none."""

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error*; for limits that the stepper watches. Callable from any thread."""

    def duration_ms(self) -> int:
        """Return the wall time used so far, not counting time suspended."""


class CellStepper(Protocol):
    """One cell inside an engine."""

    replayed: bool
    """Whether a cell that was put aside is run again from its beginning instead of being loaded."""
    wall_grace_s: float
    """How long the engine may take to end the cell once its wall time is over, before it is killed."""
    instructions: int | None
    """How much the engine has counted so far, if it counts."""

    def prepare(self) -> None:
        """Wait for a worker: what is not to count as the cell's time. Not called for a resumed cell."""

    def begin(self) -> Step:
        """Run the code from its beginning. A replayed cell may begin more than once."""

    def proceed(self) -> Step:
        """Continue after an `EngineCall` that the code does not stand at."""

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        """Continue with the answer of the call that the code stands at, or of one that it is blocked on."""

    def raises_at_call(self, answer: CallAnswer) -> bool:
        """Whether an immediate answer to a call that the code does not stand at is still given there."""

    def keep(self) -> bytes | None:
        """Return the session's state after the code has ended, None if it did not change."""

    def put_aside(self) -> None:
        """Take a waiting cell out of its worker, into the stepper; `EngineFailed` if `load` would fail."""

    def dump(self) -> bytes:
        """Return a cell that was put aside as bytes, from which the engine can make another stepper."""

    def load(self) -> Step:
        """Bring a cell that was put aside back into a worker; return the step that it waits at."""

    def is_in_worker(self) -> bool:
        """Whether a waiting cell that was not put aside can continue; if not, a replayed one is run again."""

    def memory_peak_bytes(self) -> int | None:
        """Return the largest amount of memory seen in the current worker, None if that is unknown."""

    def release(self, *, warm: bool) -> None:
        """Free the worker. If *warm* and it holds the session's state, keep it for the next cell."""

    def kill(self) -> None:
        """End whatever computes for the cell. Called from any thread."""
