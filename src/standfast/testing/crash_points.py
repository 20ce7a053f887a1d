"""Points at which a process kills itself, so that a test can ask what a crash there leaves behind.

Theory of operation
-------------------
Wrap the store and the model of a program, and call `point` before and after every effect of its tools. Each
passing of a point gets the next number. Run the program with `STANDFAST_CRASH_AT=1`, then 2, then 3, and so
on: every run ends with SIGKILL one point later than the one before, until one lives to its end. Nobody has to
know the points.

Rules
-----
1. A write has three points: before it, inside its transaction when everything is written and nothing is
   committed (SQLite only), and between the commit and the moment at which the caller hears of it.
2. Whatever a store does and is not known to only read counts as a write.
3. The kill is SIGKILL: no handler, no `finally`, no flush.

    points = CrashPoints.from_environment()
    async with Runtime(points.store(open_store("standfast.db"))) as runtime:
        session = await runtime.session("s", agent=Agent(points.model(model), tools=[...]))
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded
from standfast.ports.session_store import SessionStore

T = TypeVar("T")

CRASH_AT: Final = "STANDFAST_CRASH_AT"
"""The environment variable that holds the number of the point to die at."""

_READS: Final = (
    "head", "heads", "frame", "path", "turn", "turns", "open_turn", "journal", "unfinished", "inputs",
    "blob", "state", "approvals", "approval", "shelf_get", "shelf_list", "close", "children", "with_queued",
    "task", "tasks", "trigger", "triggers",
)  # fmt: skip


class CrashPoints:
    """The points of one process. Without `crash_at` it passes all of them, and only remembers their names.

    With `stops` the process is stopped there (SIGSTOP) instead of killed: it loses its lease, and goes on
    when somebody sends it SIGCONT. There are no points inside transactions then, because whoever is stopped
    in one keeps the whole file from everybody.
    """

    def __init__(self, crash_at: int | None = None, *, stops: bool = False) -> None:
        self.crash_at = crash_at
        self._signal = signal.SIGSTOP if stops else signal.SIGKILL
        self.passed: list[str] = []
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> CrashPoints:
        """As `STANDFAST_CRASH_AT` says."""
        given = os.environ.get(CRASH_AT)
        return cls(int(given) if given else None)

    def point(self, name: str) -> None:
        """Pass a point, or die there. May be called on any thread."""
        with self._lock:
            self.passed.append(name)
            if len(self.passed) == self.crash_at:
                os.kill(os.getpid(), self._signal)

    def store(self, store: SessionStore) -> SessionStore:
        """The store with points around each write."""
        database = getattr(store, "database", None)
        if database is not None and self._signal == signal.SIGKILL:
            database.write_soon = _in_transaction(database.write_soon, self)
        return cast(SessionStore, _CrashingStore(store, self))

    def model(self, model: ModelProvider) -> ModelProvider:
        """The model with a point before each call, and one when the reply is there and nobody has it yet."""
        return _CrashingModel(model, self)


class _CrashingStore:
    """Passes everything on; writes pass points."""

    def __init__(self, store: SessionStore, points: CrashPoints) -> None:
        self._store = store
        self._points = points

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _READS or not callable(found):
            return found
        return self._around(name, found)

    def _around(self, name: str, write: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def around(*args: Any, **kwargs: Any) -> T:
            self._points.point(f"before {name}")
            answer = await write(*args, **kwargs)
            self._points.point(f"after {name}")
            return answer

        return around


class _CrashingModel:
    """A `ModelProvider` whose calls pass points."""

    def __init__(self, model: ModelProvider, points: CrashPoints) -> None:
        self.model_id = model.model_id
        self._model = model
        self._points = points

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self._points.point(f"before model call {request.call_number}")
        async for delta in self._model.stream(request):
            if isinstance(delta, ReplyEnded):
                self._points.point(f"after model call {request.call_number}")
            yield delta

    async def close(self) -> None:
        await self._model.close()


def _in_transaction(
    write_soon: Callable[[Callable[[Any], T]], Awaitable[T]], points: CrashPoints
) -> Callable[[Callable[[Any], T]], Awaitable[T]]:
    """A database's `write_soon` whose jobs pass a point when they have written and not committed."""

    def around(job: Callable[[Any], T]) -> Awaitable[T]:
        def written(connection: Any) -> T:
            answer = job(connection)
            points.point("written, not committed")
            return answer

        return write_soon(written)

    return around
