"""`BlockingSandbox`: the same sandbox for scripts that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self

import msgspec

from standfast.errors import Code, InvalidArgument
from standfast.model.approval import Approval, Decision
from standfast.model.canonical import Json
from standfast.model.code import Diagnostic
from standfast.model.limits import SessionLimits
from standfast.model.run import RunRequest, RunResult, RunStatus
from standfast.model.session import SessionId, SessionInfo
from standfast.runtime.code_runs import CodeRuns, RunControl
from standfast.runtime.sandbox import SandboxFacade, SandboxOptions, open_runs
from standfast.runtime.sessions.approvals import approving
from standfast.sandbox.run_errors import cancelled_error
from standfast.tools.threads import interruptible_result, run_blocking

if TYPE_CHECKING:
    from typing import Unpack

    from standfast.runtime.sandbox import CheckSettings, RunSettings, SandboxSettings


class BlockingSandbox(SandboxFacade):
    """A sandbox with blocking methods. Threads may share it.

    Runs are driven on the calling thread, which is fastest; Ctrl-C then takes effect when guest code calls
    the host or ends. With `interruptible=True` they run on another thread, and Ctrl-C ends guest code
    immediately. Async tools run on an event loop of their own.
    """

    def __init__(
        self,
        options: SandboxOptions | None = None,
        /,
        *,
        interruptible: bool = False,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        super().__init__(options, settings)
        self._interruptible = interruptible
        self._opened: CodeRuns | None = None

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise InvalidArgument("this sandbox is already open")
        self._opened = open_runs(self.options, self.registry)
        return self

    def __exit__(self, *exc: object) -> None:
        runs, self._opened = self._opened, None
        if runs is not None:
            runs.close()
        for source, _ in self.registry.connected.values():  # on a thread, which has no running loop
            closing = threading.Thread(target=asyncio.run, args=(source.close(),))
            closing.start()
            closing.join()

    def run(self, code: str, **settings: Unpack[RunSettings]) -> RunResult:
        """Run *code* in a session and return its result, which also reports failures of the code.

        Repeating a call with the same *idempotency_key* returns the stored result without running the code.
        """
        request = self.options.request(code, **settings)
        return self.execute(request) if isinstance(request, RunRequest) else request

    def validate(self, code: str, **settings: Unpack[CheckSettings]) -> RunResult:
        """Check *code* without running any of it: syntax, types, unknown calls, unsupported features."""
        request = self.options.request(code, **settings, validate_only=True)
        return self.execute(request) if isinstance(request, RunRequest) else request

    def execute(self, request: RunRequest) -> RunResult:
        """Run or check the code of a `RunRequest`."""
        if not self._interruptible:
            return (self._opened or self._runs).run(request)
        return self._interruptibly(lambda control: self._runs.run(request, control))

    def cancel(self, session: str) -> bool:
        """Cancel the session's running or waiting run; return False if there is none."""
        return run_blocking(self._runs.cancel(SessionId(session)))

    def resume(self, session: str) -> RunResult:
        """Continue the session's waiting run until it ends or needs another decision."""
        name = SessionId(session)
        return self._interruptibly(lambda control: run_blocking(self._runs.resume(name, control)))

    def recover(self, session: str | None = None) -> dict[str, RunResult]:
        """Continue the runs of dead processes and those whose waits are over; return results by session."""
        return run_blocking(self._runs.recover(session))

    def approvals(self, *, session: str | None = None, pending: bool = False) -> list[Approval]:
        """Return approval requests, oldest first; with *pending*, only those that can still be decided."""
        return run_blocking(self._runs.approvals(session=session, pending=pending))

    def approval(self, approval_id: str) -> Approval:
        """Return one approval request."""
        return run_blocking(self._runs.approval(approval_id))

    def approval_host(self, approval_id: str) -> dict[str, Json]:
        """Return the description of the process that made the request (`BlockingSandbox(host=...)`)."""
        return run_blocking(self._runs.approval_host(approval_id))

    def approve(
        self,
        approval_id: str,
        *,
        args: Sequence[Json] | None = None,
        kwargs: Mapping[str, Json] | None = None,
        reason: str | None = None,
        decided_by: str | None = None,
    ) -> RunResult:
        """Approve a call, with other arguments if given, and continue its run. *decided_by* is stored."""
        return self._decide(approval_id, approving(args, kwargs, reason, decided_by))

    def deny(
        self, approval_id: str, *, reason: str | None = None, decided_by: str | None = None
    ) -> RunResult:
        """Deny a call and continue its run, which gets a PermissionError."""
        decision = Decision(approved=False, reason=reason, decided_by=decided_by)
        return self._decide(approval_id, decision)

    def create(
        self,
        session: str,
        *,
        limits: SessionLimits | Mapping[str, int] | None = None,
        ttl_s: float | None = None,
        language: str | None = None,
    ) -> SessionInfo:
        """Create an empty session with limits of its own; after *ttl_s* seconds it is deleted."""
        sessions = self._runs.sessions
        settings = self.options.session_settings(sessions, limits, ttl_s, language)
        run_blocking(sessions.create(SessionId(session), settings))
        return self.session(session)

    def sessions(self) -> list[SessionInfo]:
        """Return all sessions, oldest first."""
        return run_blocking(self._runs.sessions.infos())

    def session(self, session: str) -> SessionInfo:
        return run_blocking(self._runs.sessions.info(SessionId(session)))

    def snapshot(self, session: str) -> str:
        """Store a snapshot of the session and return its id."""
        return run_blocking(self._runs.snapshot(SessionId(session)))

    def export_snapshot(self, session_or_id: str) -> bytes:
        """Return the signed bytes of a stored snapshot (`snap_…`), or of a session's current state."""
        return run_blocking(self._runs.export_snapshot(session_or_id))

    def restore(self, snapshot: str | bytes, *, session: str | None = None) -> str:
        """Restore a snapshot, given by id or as bytes, into its own session or another; return its id."""
        return run_blocking(self._runs.restore(snapshot, session))

    def snapshot_host(self, snapshot: str | bytes) -> dict[str, Json]:
        """Return the description of the process that made a snapshot (`BlockingSandbox(host=...)`)."""
        return run_blocking(self._runs.snapshots.host_of(snapshot))

    def can_restore(self, snapshot: bytes) -> bool:
        """Return whether `restore` would accept these bytes."""
        return self._runs.snapshots.can_open(snapshot)

    def fork(self, session: str, new_session: str) -> str:
        """Create a session with the same variables."""
        return run_blocking(self._runs.sessions.fork(SessionId(session), SessionId(new_session)))

    def reset(self, session: str) -> None:
        """Delete the session's variables and its waiting run."""
        run_blocking(self._runs.reset(SessionId(session)))

    def destroy(self, session: str) -> bool:
        """Delete the session; return False if it does not exist."""
        return run_blocking(self._runs.sessions.destroy(SessionId(session)))

    @property
    def _runs(self) -> CodeRuns:
        if self._opened is None:
            raise InvalidArgument("this sandbox is not open", hint="use `with BlockingSandbox(...) as box:`")
        return self._opened

    def _decide(self, approval_id: str, decision: Decision) -> RunResult:
        return self._interruptibly(
            lambda control: run_blocking(self._runs.decide(approval_id, decision, control))
        )

    def _interruptibly(self, work: Callable[[RunControl], RunResult]) -> RunResult:
        """Call *work* on another thread and wait; Ctrl-C cancels the run, whose result is returned."""
        future: Future[RunResult] = Future()
        control = RunControl()

        def job() -> None:
            try:
                future.set_result(work(control))
            except BaseException as error:
                future.set_exception(error)

        self._runs.services.jobs.start(job)
        try:
            return interruptible_result(future)
        except KeyboardInterrupt:
            control.cancel()
            result = future.result()
        if result.status is not RunStatus.INTERRUPTED:
            return result
        # A terminal sends Ctrl-C to the worker process as well: if that ended the run, report it as
        # cancelled.
        error = cancelled_error()
        others = [item for item in result.diagnostics if item.code != Code.INTERRUPTED]
        return msgspec.structs.replace(
            result, status=RunStatus.CANCELLED, error=error, diagnostics=[Diagnostic.error(error), *others]
        )
