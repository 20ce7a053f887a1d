"""The port of a language runtime: sessions that run code, independent of the engine."""

from __future__ import annotations

from typing import Protocol

from standfast.model.code import Language
from standfast.model.limits import SessionLimits
from standfast.model.run import RunRequest, RunResult
from standfast.model.session import SessionId


class LanguageRuntime(Protocol):
    """Sessions of one language. Failures are raised as `StandfastError`; those of a run are in its result."""

    @property
    def language(self) -> Language: ...

    async def create_session(self, session_id: SessionId, limits: SessionLimits | None = None) -> None: ...

    async def run(self, request: RunRequest) -> RunResult: ...

    async def resume(self, session_id: SessionId) -> RunResult:
        """Continue the session's waiting run until it ends or needs another decision."""

    async def cancel(self, session_id: SessionId) -> bool:
        """End the session's running or waiting run; return False if there is none."""

    async def fork_session(self, session_id: SessionId, new_id: SessionId) -> SessionId: ...

    async def destroy_session(self, session_id: SessionId) -> bool: ...

    async def list_sessions(self) -> list[SessionId]: ...

    async def snapshot_session(self, session_id: SessionId) -> bytes: ...

    async def restore_session(self, snapshot: bytes, session_id: SessionId | None = None) -> SessionId: ...

    def can_restore_snapshot(self, snapshot: bytes) -> bool: ...
