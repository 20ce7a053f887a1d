"""How a run ends: its result, what it left in the session, and what is stored of both."""

from __future__ import annotations

import msgspec

from standfast.errors import Code, ErrorObject
from standfast.model.canonical import Json
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.model.run import Metrics, RunResult, RunStatus, status_of_code
from standfast.ports.journal import PendingCall
from standfast.ports.sandbox_store import WaitingRun
from standfast.sandbox.approval_desk import ApprovalDesk
from standfast.sandbox.live import LiveSession
from standfast.sandbox.run_order import RunOrder
from standfast.sandbox.services import SandboxServices
from standfast.sandbox.session_engine import Ended, Parked
from standfast.sandbox.session_table import SessionTable
from standfast.sandbox.snapshots import PausedRun, snapshot_id


class Concluder:
    """Ends runs: `conclude` those that are over, `park` those that wait."""

    def __init__(self, services: SandboxServices, sessions: SessionTable, desk: ApprovalDesk) -> None:
        self._services = services
        self._sessions = sessions
        self._desk = desk

    def conclude(self, live: LiveSession, order: RunOrder, ended: Ended) -> RunResult:
        """Make the result of a run that is over and store what it left.

        A run that changed nothing, was never parked and has nothing in the journal leaves nothing to store.
        """
        known = order.run_id_if_known
        if ended.changed:
            live.replace_state(ended.state)
        if ended.changed or known is not None:
            self._sessions.save(live, finished_run=known)
        else:
            live.meta = msgspec.structs.replace(live.meta, last_used_at=self._services.clock.now_ms())
        name = self.store_snapshot(live) if order.return_snapshot and ended.error is None else None
        return result_of(order, ended, ended.value, ended.error, name)

    def park(self, live: LiveSession, order: RunOrder, parked: Parked) -> RunResult:
        """Store a run that waits for a person: its snapshot and its requests in one write."""
        waiting, paused = self._store_parked(live, order.run_id, parked)
        return result_of(order, paused, None, waiting_error(paused.pending), waiting.snapshot_id)

    def park_again(self, live: LiveSession, run_id: str, parked: Parked) -> None:
        """Park a restored run under new approval requests."""
        unasked = [msgspec.structs.replace(call, approval_id="") for call in parked.paused.pending]
        paused = msgspec.structs.replace(parked.paused, run_id=run_id, pending=unasked)
        self._store_parked(live, run_id, Parked(parked.parked, paused))

    def store_snapshot(self, live: LiveSession) -> str:
        """Store a snapshot of an idle session and return its id."""
        data = self._services.seal(live.meta, live.engine, live.engine.encode(live.state))
        name = snapshot_id(data)
        self._services.store.put_snapshot(name, live.meta.id, data, self._services.clock.now_ms())
        return name

    def _store_parked(self, live: LiveSession, run_id: str, parked: Parked) -> tuple[WaitingRun, PausedRun]:
        pending, approvals = self._desk.ask(parked.paused.pending, run_id, live.meta.id)
        paused = msgspec.structs.replace(parked.paused, pending=pending)
        data = self._services.seal(live.meta, live.engine, parked.parked, paused)
        waiting = WaitingRun(
            run_id=run_id,
            session_id=live.meta.id,
            snapshot_id=snapshot_id(data),
            created_at=self._services.clock.now_ms(),
            host=self._services.config.host,
        )
        self._services.store.park(waiting, data, approvals)
        return waiting, paused


def result_of(
    order: RunOrder, run: Ended | PausedRun, value: Json, error: ErrorObject | None, snapshot: str | None
) -> RunResult:
    """What is told about a run."""
    ended = run if isinstance(run, Ended) else None
    return RunResult(
        status=status_of_code(error.code) if error else RunStatus.OK,
        result=value,
        stdout=run.stdout,
        stderr=run.stderr,
        diagnostics=_diagnostics(order, run, error),
        external_calls=[run.records[call_id] for call_id in sorted(run.records)],
        snapshot_id=snapshot,
        metrics=Metrics(
            duration_ms=run.wall_used_ms,
            memory_peak_bytes=run.memory_peak_bytes,
            instructions=ended.instructions if ended else None,
            external_calls_count=run.calls_made,
        ),
        error=error,
    )


def waiting_error(pending: list[PendingCall]) -> ErrorObject:
    calls = ", ".join(f"{call.name}() as {call.approval_id}" for call in pending)
    first = pending[0].approval_id if pending else "ID"
    return ErrorObject(
        code=Code.WAITING_FOR_APPROVAL,
        message=f"the run waits for a person to approve {calls}",
        hint=f"standfast approvals approve {first}, or deny {first} --reason ...",
    )


def _diagnostics(order: RunOrder, run: Ended | PausedRun, error: ErrorObject | None) -> list[Diagnostic]:
    found = [Diagnostic.error(error)] if error is not None else []
    if run.truncated:
        found.append(_truncated(order.limits.max_stdout_bytes))
    if isinstance(run, Ended):
        found += [Diagnostic(code="ENGINE_NOTE", message=note) for note in run.notes]
        if run.hard:
            found.append(_rolled_back(order.session_id))
    return found


def _truncated(max_stdout_bytes: int) -> Diagnostic:
    return Diagnostic(
        severity=Severity.WARNING,
        code="OUTPUT_TRUNCATED",
        message=f"output past {max_stdout_bytes} bytes was dropped",
        hint="raise max_stdout_bytes, or print less",
    )


def _rolled_back(session_id: str) -> Diagnostic:
    return Diagnostic(
        severity=Severity.WARNING,
        code="SESSION_ROLLED_BACK",
        message=f"session {session_id!r} is as it was before this run",
    )
