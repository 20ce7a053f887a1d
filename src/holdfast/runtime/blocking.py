"""`BlockingSandbox`: the same sandbox for scripts that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

from holdfast.model.approval import Approval
from holdfast.model.canonical import Json
from holdfast.model.capability import Capability
from holdfast.model.limits import SessionLimits
from holdfast.model.run import RunRequest, RunResult
from holdfast.model.session import SessionInfo
from holdfast.runtime.sandbox import Sandbox, SandboxOptions

T = TypeVar("T")


class _LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* on the loop and wait. An interrupt of the waiting thread cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=1)
        if not self._thread.is_alive():
            self.loop.close()


class BlockingSandbox:
    """A `Sandbox` whose methods return when they are done.

    Its loop runs on a thread of its own, and async tools on another, so that one that blocks is timed out.
    """

    def __init__(self, options: SandboxOptions | None = None, /, **settings: Any) -> None:
        self._sandbox = Sandbox(options, **settings)
        self._loop: _LoopThread | None = None
        self._tools: _LoopThread | None = None

    def __enter__(self) -> Self:
        self._loop = _LoopThread("holdfast-loop")
        if any(tool.async_mode for tool in self._sandbox.registry):
            self._tools = _LoopThread("holdfast-tools")
            self._sandbox._tool_loop = self._tools.loop
        try:
            self._call(self._sandbox.__aenter__())
        except BaseException:
            self._stop_loops()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._call(self._sandbox.__aexit__(*exc))
        finally:
            self._stop_loops()

    def run(
        self,
        code: str,
        *,
        session: str = "default",
        inputs: Mapping[str, Json] | None = None,
        timeout_ms: int | None = None,
        limits: SessionLimits | Mapping[str, int] | None = None,
        snapshot: bool = False,
    ) -> RunResult:
        return self._call(
            self._sandbox.run(
                code, session=session, inputs=inputs, timeout_ms=timeout_ms, limits=limits, snapshot=snapshot
            )
        )

    def validate(
        self, code: str, *, session: str = "default", inputs: Mapping[str, Json] | None = None
    ) -> RunResult:
        return self._call(self._sandbox.validate(code, session=session, inputs=inputs))

    def execute(self, request: RunRequest) -> RunResult:
        return self._call(self._sandbox.execute(request))

    def cancel(self, session: str) -> bool:
        return self._call(self._sandbox.cancel(session))

    def resume(self, session: str) -> RunResult:
        return self._call(self._sandbox.resume(session))

    def approvals(self, *, session: str | None = None, pending: bool = False) -> list[Approval]:
        return self._call(self._sandbox.approvals(session=session, pending=pending))

    def approval(self, approval_id: str) -> Approval:
        return self._call(self._sandbox.approval(approval_id))

    def approval_host(self, approval_id: str) -> dict[str, Json]:
        return self._call(self._sandbox.approval_host(approval_id))

    def approve(
        self,
        approval_id: str,
        *,
        args: Sequence[Json] | None = None,
        kwargs: Mapping[str, Json] | None = None,
        reason: str | None = None,
    ) -> RunResult:
        return self._call(self._sandbox.approve(approval_id, args=args, kwargs=kwargs, reason=reason))

    def deny(self, approval_id: str, *, reason: str | None = None) -> RunResult:
        return self._call(self._sandbox.deny(approval_id, reason=reason))

    def create(
        self,
        session: str,
        *,
        limits: SessionLimits | Mapping[str, int] | None = None,
        ttl_s: float | None = None,
    ) -> SessionInfo:
        return self._call(self._sandbox.create(session, limits=limits, ttl_s=ttl_s))

    def sessions(self) -> list[SessionInfo]:
        return self._call(self._sandbox.sessions())

    def session(self, session: str) -> SessionInfo:
        return self._call(self._sandbox.session(session))

    def snapshot(self, session: str) -> str:
        return self._call(self._sandbox.snapshot(session))

    def export_snapshot(self, session_or_id: str) -> bytes:
        return self._call(self._sandbox.export_snapshot(session_or_id))

    def restore(self, snapshot: str | bytes, *, session: str | None = None) -> str:
        return self._call(self._sandbox.restore(snapshot, session=session))

    def can_restore(self, snapshot: bytes) -> bool:
        return self._sandbox.can_restore(snapshot)

    def fork(self, session: str, new_session: str) -> str:
        return self._call(self._sandbox.fork(session, new_session))

    def reset(self, session: str) -> None:
        self._call(self._sandbox.reset(session))

    def destroy(self, session: str) -> bool:
        return self._call(self._sandbox.destroy(session))

    def capabilities(self) -> list[Capability]:
        return self._sandbox.capabilities()

    def policy(self) -> dict[str, Json]:
        return self._sandbox.policy()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            from holdfast.errors import InvalidArgument

            raise InvalidArgument("this sandbox is not open", hint="use `with BlockingSandbox(...) as box:`")
        return self._loop.call(work)

    def _stop_loops(self) -> None:
        for thread in (self._loop, self._tools):
            if thread is not None:
                thread.stop()
        self._loop = self._tools = None
