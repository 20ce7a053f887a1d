"""A `LanguageRuntime` of another package that runs the code of a `Sandbox`."""

from __future__ import annotations

import asyncio

import pytest

from standfast import RunRequest, RunResult, Sandbox, SessionId, SessionLimits
from standfast.errors import ServiceUnavailable, SessionNotFound
from standfast.model.code import Language
from standfast.model.run import RunStatus


class Calculator:
    """A language runtime that sums numbers, and keeps each session's total."""

    language = Language.PYTHON

    def __init__(self) -> None:
        self.totals: dict[SessionId, int] = {}

    async def create_session(self, session_id: SessionId, limits: SessionLimits | None = None) -> None:
        self.totals[session_id] = 0

    async def run(self, request: RunRequest) -> RunResult:
        session_id = SessionId(request.session_id)
        total = self.totals.get(session_id, 0) + sum(map(int, request.code.split("+")))
        if not request.validate_only:
            self.totals[session_id] = total
        return RunResult(status=RunStatus.OK, result=total)

    async def resume(self, session_id: SessionId) -> RunResult:
        raise SessionNotFound(session_id)

    async def cancel(self, session_id: SessionId) -> bool:
        return False

    async def fork_session(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        self.totals[new_id] = self.totals[session_id]
        return new_id

    async def destroy_session(self, session_id: SessionId) -> bool:
        return self.totals.pop(session_id, None) is not None

    async def list_sessions(self) -> list[SessionId]:
        return list(self.totals)

    async def snapshot_session(self, session_id: SessionId) -> bytes:
        return str(self.totals[session_id]).encode()

    async def restore_session(self, snapshot: bytes, session_id: SessionId | None = None) -> SessionId:
        target = session_id or SessionId("restored")
        self.totals[target] = int(snapshot)
        return target

    def can_restore_snapshot(self, snapshot: bytes) -> bool:
        return snapshot.isdigit()


def test_a_sandbox_runs_code_on_a_language_runtime_of_another_package() -> None:
    """Seed: `LanguageRuntime` is an interface; a host may bring its own."""

    async def main() -> None:
        async with Sandbox(runtime=Calculator()) as box:
            assert (await box.run("1+2", session="s")).result == 3
            assert (await box.validate("1", session="s")).result == 4
            assert await box.fork("s", "t") == "t"
            assert (await box.run("4", session="t")).result == 7
            data = await box.export_snapshot("t")
            assert box.can_restore(data)
            assert await box.restore(data, session="u") == "u"
            assert (await box.run("0", session="u")).result == 7
            assert await box.destroy("u")
            assert not await box.cancel("s")
            with pytest.raises(ServiceUnavailable):
                await box.approvals()

    asyncio.run(main())
