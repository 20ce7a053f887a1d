"""The seed's `LanguageRuntime`: the sessions of `CodeSessions`, awaited.

Every call is carried out on a thread, so that guest code never blocks the event loop. A cancelled await
cancels the run it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from standfast.model.approval import Decision
from standfast.model.language import Language
from standfast.model.limits import SessionLimits
from standfast.model.run import RunRequest, RunResult
from standfast.model.session import SessionId
from standfast.runtime.code_sessions import CodeSessions, RunControl

T = TypeVar("T")


class CodeRuntime:
    """A `LanguageRuntime` over sessions that block. New sessions are of its language."""

    def __init__(self, sessions: CodeSessions, language: Language = Language.PYTHON) -> None:
        self.sessions = sessions
        self.language = language
        self._threads = sessions.services.threads

    async def call(self, job: Callable[[], T]) -> T:
        """Await something that `sessions` does."""
        return await self._threads.run(job)

    async def run(self, request: RunRequest) -> RunResult:
        return await self._controlled(lambda control: self.sessions.run(request, control))

    async def resume(self, session_id: SessionId) -> RunResult:
        return await self._controlled(lambda control: self.sessions.resume(session_id, control))

    async def decide(self, approval_id: str, decision: Decision) -> RunResult:
        return await self._controlled(lambda control: self.sessions.decide(approval_id, decision, control))

    async def cancel(self, session_id: SessionId) -> bool:
        return await self.call(lambda: self.sessions.cancel(session_id))

    async def create_session(self, session_id: SessionId, limits: SessionLimits | None = None) -> None:
        await self.call(lambda: self.sessions.create_session(session_id, limits, language=self.language))

    async def fork_session(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        return await self.call(lambda: self.sessions.fork_session(session_id, new_id))

    async def destroy_session(self, session_id: SessionId) -> bool:
        return await self.call(lambda: self.sessions.destroy_session(session_id))

    async def list_sessions(self) -> list[SessionId]:
        return await self.call(self.sessions.list_sessions)

    async def snapshot_session(self, session_id: SessionId) -> bytes:
        return await self.call(lambda: self.sessions.snapshot_session(session_id))

    async def restore_session(self, snapshot: bytes, session_id: SessionId | None = None) -> SessionId:
        return await self.call(lambda: self.sessions.restore_session(snapshot, session_id))

    def can_restore_snapshot(self, snapshot: bytes) -> bool:
        return self.sessions.can_restore_snapshot(snapshot)

    async def close(self) -> None:
        await self.call(self.sessions.close)

    async def _controlled(self, work: Callable[[RunControl], RunResult]) -> RunResult:
        """Do *work* on a thread of ours; a cancelled await cancels the run."""
        control = RunControl()
        try:
            return await self._threads.run(lambda: work(control))
        except asyncio.CancelledError:
            control.cancel()
            raise
