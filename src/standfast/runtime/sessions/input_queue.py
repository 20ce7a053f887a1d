"""The queued inputs of one session: runs their turns, and records why a turn cannot run here.

A turn that cannot run is retried with doubling pauses. The reason is reported once, shown to observers, and
stored with the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from standfast.errors import (
    InputNotFound,
    LeaseLost,
    RuntimeClosed,
    SessionBusy,
    StandfastError,
    TurnNotRunnable,
    TurnUnfinished,
)
from standfast.model.events import Event, TurnBlocked
from standfast.model.session import Blocked, SessionHead
from standfast.plugins.runtime_services import RuntimeServices
from standfast.ports.session_store import QueuedInput
from standfast.runtime.turn import detached

_COMES_LATER: Final = (LeaseLost, RuntimeClosed, SessionBusy, TurnUnfinished)
"""Errors that mean that another turn comes first."""
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class _Refusal(NamedTuple):
    """Why a turn could not run, and when to retry it."""

    problem: str
    pause_s: float
    until: float


class InputQueue:
    """Runs the turns of queued inputs, one after the other. Used on the runtime's loop."""

    __slots__ = (
        "_blocked", "_more", "_publish", "_refusal", "_run", "_services", "_session_id", "draining", "stuck",
    )  # fmt: skip

    def __init__(
        self,
        session_id: str,
        services: RuntimeServices,
        run: Callable[[QueuedInput], Awaitable[object]],
        publish: Callable[[Event], None],
    ) -> None:
        self._session_id = session_id
        self._services = services
        self._run = run
        self._publish = publish
        self._more = False
        self._refusal: _Refusal | None = None
        self._blocked: _Refusal | None = None
        self.draining: asyncio.Task[None] | None = None
        self.stuck = False
        """Whether an input waits behind another turn."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to remember."""
        done = self.draining is None or self.draining.done()
        return done and not self.stuck and self._refusal is None and self._blocked is None

    def drain(self) -> None:
        """Start running what is queued."""
        self._more = True
        if self.draining is None or self.draining.done():
            self.draining = asyncio.get_running_loop().create_task(self._drain(), context=detached())

    def drain_if_due(self) -> None:
        """Start running what is queued, unless that is under way or the pause before a retry is not over."""
        if self.draining is not None and not self.draining.done():
            return
        if self._refusal is None or self._services.clock.monotonic() >= self._refusal.until:
            self.drain()

    async def _drain(self) -> None:
        """Run queued inputs in batches: reading all of them for each turn would be quadratic."""
        inputs = self._services.store.inputs
        while self._more:
            self._more = self.stuck = False
            while queued := [item for item in await inputs(self._session_id) if item.kind == "queue"]:
                for item in queued:
                    if not self.stuck:
                        await self._run_input(item)
                if self.stuck:
                    break

    async def _run_input(self, item: QueuedInput) -> None:
        try:
            await self._run(item)
        except InputNotFound:
            pass  # it was withdrawn, or another process took it
        except StandfastError as error:
            self.stuck = True  # it stays queued, mostly behind a turn that waits or was interrupted
            if not isinstance(error, _COMES_LATER):
                before = self._refusal
                problem = f"the turn of input {item.input_id} of {self._session_id} could not be run: {error}"
                self._refusal = self._refused(before, problem)
                is_new = before is None or before.problem != problem
                if is_new and isinstance(error, TurnNotRunnable):
                    await self._note_blocked(error, input_id=item.input_id)
            return
        self._refusal = None

    async def block(self, turn_id: str, error: TurnNotRunnable) -> None:
        """Record why a turn cannot be resumed here, and delay the next attempt."""
        before = self._blocked
        problem = f"turn {turn_id} of {self._session_id} is not resumed: {error}"
        self._blocked = self._refused(before, problem)
        if before is None or before.problem != problem:
            await self._note_blocked(error, turn_id=turn_id)

    def _refused(self, before: _Refusal | None, problem: str) -> _Refusal:
        """Report a new problem, and double the pause before the next attempt."""
        if before is None or before.problem != problem:
            self._services.report("", "queue", problem)
        pause_s = _FIRST_PAUSE_S if before is None else min(2 * before.pause_s, _LONGEST_PAUSE_S)
        return _Refusal(problem, pause_s, self._services.clock.monotonic() + pause_s)

    async def _note_blocked(self, error: StandfastError, *, turn_id: str = "", input_id: str = "") -> None:
        """Show observers why the next turn cannot run, and store it with the session."""
        why = error.error_object()
        self._publish(TurnBlocked(error=why, turn_id=turn_id, input_id=input_id))
        note = Blocked(error=why, at_ms=self._services.clock.now_ms(), turn_id=turn_id, input_id=input_id)
        await self._services.store.note_blocked(self._session_id, note)

    async def unblock(self, head: SessionHead) -> None:
        """Forget why a turn could not run: one runs now."""
        self._blocked = None
        if head.blocked is not None:
            await self._services.store.note_blocked(self._session_id, None)

    def retry_now(self) -> None:
        """Retry without a pause: the session was opened again, perhaps with what was missing."""
        self._blocked = self._refusal = None

    @property
    def is_blocked(self) -> bool:
        """Whether the pause before the next attempt to resume a turn is not over."""
        return self._blocked is not None and self._services.clock.monotonic() < self._blocked.until
