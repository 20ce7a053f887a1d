"""How a run ends: its result, what it left in the session, and what is stored of both."""

from __future__ import annotations

import msgspec

from holdfast.errors import Code, ErrorObject
from holdfast.model.canonical import Json
from holdfast.model.diagnostic import Diagnostic, Severity
from holdfast.model.limits import SessionLimits
from holdfast.model.run import Metrics, RunResult, RunStatus, status_of_code
from holdfast.ports.journal import PendingCall
from holdfast.ports.sandbox_store import WaitingRun
from holdfast.sandbox.approval_desk import ApprovalDesk
from holdfast.sandbox.live import LiveSession
from holdfast.sandbox.monty import engine
from holdfast.sandbox.monty.conclude import (
    fed_without_storing,
    find_stand_in,
    left_unchanged,
    not_kept,
    settle_names,
    state_after,
    value_as_json,
)
from holdfast.sandbox.monty.failures import Failure
from holdfast.sandbox.monty.run import MontyRun
from holdfast.sandbox.monty.state import EngineState, PausedState, encode_paused, encode_state
from holdfast.sandbox.monty.steps import Finished, Parked
from holdfast.sandbox.monty.values import not_serializable
from holdfast.sandbox.monty.workers import Worker
from holdfast.sandbox.services import SandboxServices
from holdfast.sandbox.session_table import SessionTable
from holdfast.sandbox.snapshots import snapshot_id


class Concluder:
    """Ends runs: `conclude` those that are over, `park` those that wait."""

    def __init__(self, services: SandboxServices, sessions: SessionTable, desk: ApprovalDesk) -> None:
        self._services = services
        self._sessions = sessions
        self._desk = desk

    def conclude(
        self, live: LiveSession, run: MontyRun, worker: Worker | None, outcome: Finished | Failure
    ) -> RunResult:
        """Make the result of a run that is over and store what it left."""
        failure = outcome if isinstance(outcome, Failure) else None
        if worker is None or left_unchanged(outcome) or (failure is not None and failure.hard):
            return self._unchanged(live, run, worker, failure)
        try:
            raw = settle_names(run.plan, worker, outcome)
        except Exception as error:
            lost = ErrorObject(code=Code.INTERRUPTED, message=f"the run could not be completed: {error}")
            return self._unchanged(live, run, worker, Failure(lost, hard=True))
        value: Json = None
        if failure is None:
            value, failure = value_as_json(raw)
        program = run.plan.program
        classes = live.state is not None and live.state.has_classes
        if program.changes_nothing(live.names, classes) and not run.plan.borrowed:
            return self._same_state(live, run, worker, value, failure)
        return self._new_state(live, run, worker, value, failure)

    def park(self, live: LiveSession, run: MontyRun, parked: Parked) -> RunResult:
        """Store a run that waits for a person: its snapshot and its requests in one write."""
        session_id, run_id = run.plan.session_id, run.plan.run_id
        pending, approvals = self._desk.ask(parked.paused.pending, run_id, session_id)
        paused = msgspec.structs.replace(parked.paused, pending=pending)
        state = encode_paused(PausedState(before=live.state, dump=parked.dump))
        data = self._services.seal(live.meta, state, paused)
        waiting = WaitingRun(
            run_id=run_id,
            session_id=session_id,
            snapshot_id=snapshot_id(data),
            created_at=self._services.clock.now_ms(),
            host=self._services.config.host,
        )
        self._services.store.park(waiting, data, approvals)
        return with_snapshot(result_of(run, None, Failure(waiting_error(pending))), waiting.snapshot_id)

    def store_snapshot(self, live: LiveSession) -> str:
        """Store a snapshot of an idle session and return its id."""
        data = self._services.seal(live.meta, encode_state(live.state))
        name = snapshot_id(data)
        self._services.store.put_snapshot(name, live.meta.id, data, self._services.clock.now_ms())
        return name

    def _unchanged(
        self, live: LiveSession, run: MontyRun, worker: Worker | None, failure: Failure | None
    ) -> RunResult:
        """The session stays as it was; what the worker holds is not the session any more."""
        if worker is not None:
            worker.version = None
        if run.plan.paused is not None or (self._services.store.durable and run.records):
            self._sessions.save(live, finished_run=run.plan.run_id)
        return result_of(run, None, failure)

    def _same_state(
        self, live: LiveSession, run: MontyRun, worker: Worker, value: Json, failure: Failure | None
    ) -> RunResult:
        """The run only computed a value: there is nothing to store."""
        live.meta = msgspec.structs.replace(live.meta, last_used_at=self._services.clock.now_ms())
        fed_without_storing(worker)
        value, failure = self._looked_through(run, value, failure, live.state)
        name = self.store_snapshot(live) if run.plan.return_snapshot and failure is None else None
        return with_snapshot(result_of(run, value, failure), name)

    def _new_state(
        self, live: LiveSession, run: MontyRun, worker: Worker, value: Json, failure: Failure | None
    ) -> RunResult:
        """Dump the session and store it."""
        try:
            state, compacted = state_after(run.plan, live.state, worker)
        except engine.MontyError as error:
            lost = not_kept(error, run.plan.limits)
            return self._unchanged(live, run, worker, Failure(lost, hard=True))
        value, failure = self._looked_through(run, value, failure, state)
        live.replace_state(state)
        worker.version = None if compacted else live.version
        worker.unsaved_feeds = 0
        self._sessions.save(live, finished_run=run.plan.run_id_if_known)
        name = self.store_snapshot(live) if run.plan.return_snapshot and failure is None else None
        return with_snapshot(result_of(run, value, failure), name)

    def _looked_through(
        self, run: MontyRun, value: Json, failure: Failure | None, state: EngineState | None
    ) -> tuple[Json, Failure | None]:
        """Refuse a result that holds the text of something that is not text."""
        if failure is not None or value is None or isinstance(value, (int, float)):
            return value, failure
        functions = {*self._services.registry.names(), *(state.names if state else ())}
        foreign = find_stand_in(value, run.plan.program, functions, state, self._services.workers)
        return (None, Failure(not_serializable(foreign))) if foreign else (value, failure)


def result_of(run: MontyRun, value: Json, failure: Failure | None) -> RunResult:
    """What is told about a run."""
    diagnostics: list[Diagnostic] = []
    if failure is not None:
        diagnostics.append(Diagnostic.error(failure.error))
    if run.output.truncated:
        diagnostics.append(_truncated(run.plan.limits))
    if failure is not None and failure.hard:
        diagnostics.append(_rolled_back(run.plan.session_id))
    return RunResult(
        status=status_of_code(failure.error.code) if failure else RunStatus.OK,
        result=value,
        stdout=run.output.stdout,
        stderr=run.output.stderr,
        diagnostics=diagnostics,
        external_calls=[run.records[call_id] for call_id in sorted(run.records)],
        metrics=Metrics(
            duration_ms=run.duration_ms(),
            memory_peak_bytes=run.memory_peak,
            external_calls_count=run.calls_made,
        ),
        error=failure.error if failure else None,
    )


def with_snapshot(result: RunResult, snapshot: str | None) -> RunResult:
    """The result with the name of its snapshot."""
    return result if snapshot is None else msgspec.structs.replace(result, snapshot_id=snapshot)


def waiting_error(pending: list[PendingCall]) -> ErrorObject:
    calls = ", ".join(f"{call.name}() as {call.approval_id}" for call in pending)
    first = pending[0].approval_id if pending else "ID"
    return ErrorObject(
        code=Code.WAITING_FOR_APPROVAL,
        message=f"the run waits for a person to approve {calls}",
        hint=f"holdfast approvals approve {first}, or deny {first} --reason ...",
    )


def _truncated(limits: SessionLimits) -> Diagnostic:
    return Diagnostic(
        severity=Severity.WARNING,
        code="OUTPUT_TRUNCATED",
        message=f"output past {limits.max_stdout_bytes} bytes was dropped",
        hint="raise max_stdout_bytes, or print less",
    )


def _rolled_back(session_id: str) -> Diagnostic:
    return Diagnostic(
        severity=Severity.WARNING,
        code="SESSION_ROLLED_BACK",
        message=f"session {session_id!r} is as it was before this run",
    )
