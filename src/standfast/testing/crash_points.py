"""Points at which a process kills itself, so that a test can check the state after a crash there.

Wrap the store and the model of a program, and call `point` before and after every effect of its tools. Each
pass of a point gets the next number. Run the program with `STANDFAST_CRASH_AT=1`, then 2, then 3, and so on:
every run ends with SIGKILL one point later than the previous one, until one reaches its end.

A write has three points: before it, inside its transaction between the last write and the commit (databases
only), and between the commit and the return to the caller. Every method of a store that is not listed as a
read counts as a write.

    points = CrashPoints.from_environment()
    async with Runtime(points.store(open_store("standfast.db"))) as runtime:
        session = await runtime.session("s", agent=Agent(points.model(model), tools=[...]))
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded
from standfast.ports.session_store import SessionStore

CRASH_AT: Final = "STANDFAST_CRASH_AT"
"""The environment variable that holds the number of the point to die at."""

_READS: Final = (
    "head", "heads", "frame", "path", "turn", "turns", "open_turn", "open_turn_journal", "unfinished",
    "turn_journal", "inputs", "blob", "state", "turn_states", "approvals", "approval", "plugin_record",
    "plugin_records", "close", "children", "with_queued", "task", "tasks", "trigger", "triggers",
    "offer", "announce", "turn_counts", "survey",
    "usage_by_day", "cancelled", "outlines",
)  # fmt: skip


class CrashPoints:
    """The crash points of one process. Without `crash_at` it passes all of them and records their names.

    With `stops` the process is stopped (SIGSTOP) instead of killed: it loses its lease, and resumes after
    SIGCONT. There are then no points inside transactions, because a process stopped in one would lock the
    file for all others.
    """

    def __init__(self, crash_at: int | None = None, *, stops: bool = False) -> None:
        self.crash_at = crash_at
        self._signal = signal.SIGSTOP if stops else signal.SIGKILL
        self.passed: list[str] = []
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> CrashPoints:
        """Read the number of the point from `STANDFAST_CRASH_AT`."""
        given = os.environ.get(CRASH_AT)
        return cls(int(given) if given else None)

    def point(self, name: str) -> None:
        """Pass a point, or die there. Thread-safe."""
        with self._lock:
            self.passed.append(name)
            if len(self.passed) == self.crash_at:
                os.kill(os.getpid(), self._signal)

    def store(self, store: SessionStore) -> SessionStore:
        """Wrap *store* with points around each write."""
        database = getattr(store, "database", None)
        if database is not None and self._signal == signal.SIGKILL:
            database.write_soon = self._passing(database.write_soon)
            if hasattr(database._group, "run_at_once"):  # SQLite
                database._group.run_at_once = self._passing(database._group.run_at_once)
            guarded = getattr(database._group, "guarded", None)
            if guarded is not None:  # PostgreSQL: such a write is sent instead of run here
                launch = guarded.launch

                def launch_and_pass(jobs: list[Any]) -> Any:
                    left = launch(jobs)
                    if len(left) < len(jobs):
                        self.point("sent, not answered")
                    return left

                guarded.launch = launch_and_pass
        return cast(SessionStore, _CrashingStore(store, self))

    def _passing(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return *write* with a point between what its job writes and the commit."""

        def write_and_pass(job: Callable[[Any], Any], *about: Any) -> Any:
            def written(connection: Any) -> Any:
                result = job(connection)
                self.point("written, not committed")
                return result

            return write(written, *about)

        return write_and_pass

    def model(self, model: ModelProvider) -> ModelProvider:
        """Wrap *model* with a point before each call, and one before its reply is delivered."""
        return _CrashingModel(model, self)


class _CrashingStore:
    """A store whose writes pass points."""

    def __init__(self, store: SessionStore, points: CrashPoints) -> None:
        self._store = store
        self._points = points

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _READS or name == "listen" or not callable(found):
            return found

        async def write(*args: Any, **kwargs: Any) -> Any:
            self._points.point(f"before {name}")
            result = await found(*args, **kwargs)
            self._points.point(f"after {name}")
            return result

        return write


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
