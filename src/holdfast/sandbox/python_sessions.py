"""Python sessions on the Monty engine, with approvals and snapshots over a store.

Theory of operation
-------------------
A session is a `LiveSession` here and a `StoredSession` in the store; the epoch tells whether the two
agree. A run holds its session, is driven by `MontyRun` on the calling thread, and is concluded: result, new
state, one write. A run that needs a person is parked instead: the engine's state, signed, together
with its approval requests, in one write. A decision loads it again, anywhere.

Rules
-----
1. The stored state changes only when a run has ended; until then it is the state before the run.
2. A waiting run is continued by the process that claimed it; its decisions were made before, once.
3. A restored snapshot asks again: decisions belong to the approvals they were made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.errors import (
    ApprovalAlreadyDecided,
    Code,
    HoldfastError,
    InvalidArgument,
    SessionNotFound,
    SessionWaiting,
)
from holdfast.model.approval import Approval, ApprovalState, Decision
from holdfast.model.canonical import Json, to_json
from holdfast.model.ids import SessionId
from holdfast.model.language import Language
from holdfast.model.limits import SessionLimits
from holdfast.model.run import Metrics, RunRequest, RunResult, RunStatus
from holdfast.model.session import SessionInfo, SessionMeta
from holdfast.ports.sandbox_store import SandboxStore, WaitingRun
from holdfast.sandbox.approval_desk import ApprovalDesk
from holdfast.sandbox.conclusion import Concluder, waiting_error, with_snapshot
from holdfast.sandbox.config import SandboxConfig
from holdfast.sandbox.live import LiveSession
from holdfast.sandbox.monty.functions import RegistryFunctions
from holdfast.sandbox.monty.plan import RunPlan, new_run_id
from holdfast.sandbox.monty.program import Program, read_program
from holdfast.sandbox.monty.run import Driven, MontyRun, RunHost
from holdfast.sandbox.monty.run_errors import cancelled_error
from holdfast.sandbox.monty.state import (
    EngineState,
    PausedState,
    decode_paused,
    decode_state,
    encode_paused,
)
from holdfast.sandbox.monty.steps import Parked
from holdfast.sandbox.monty.validate import Validator, as_error
from holdfast.sandbox.monty.workers import Worker
from holdfast.sandbox.pump import finish
from holdfast.sandbox.run_journal import RunJournal
from holdfast.sandbox.run_ticket import RunTicket, Slot
from holdfast.sandbox.services import SandboxServices
from holdfast.sandbox.session_table import SessionTable, is_open
from holdfast.sandbox.snapshots import PausedRun, snapshot_id
from holdfast.tools.registry import ToolRegistry

_CLOSE_PATIENCE_S: Final = 2.0
"""How long closing waits for a run to notice that it was cancelled."""


class PythonSessions:
    """The sessions of one sandbox. Every method blocks, and may be called from any thread."""

    language = Language.PYTHON

    def __init__(self, registry: ToolRegistry, store: SandboxStore, config: SandboxConfig) -> None:
        self.services = SandboxServices.of(registry, store, config)
        self._config = config
        self._store = store
        self._clock = config.clock
        self._workers = self.services.workers
        self._sessions = SessionTable(self.services)
        self._desk = ApprovalDesk(self.services)
        self._concluder = Concluder(self.services, self._sessions, self._desk)
        self._validator = Validator(self._workers, RegistryFunctions(registry), self.services.watchdog)

    def close(self) -> None:
        """End runs and worker processes. What is stored stays."""
        sessions = list(self._sessions.live.values())
        for live in sessions:
            if (current := live.current) is not None:
                current.stop(cancelled_error())
        for live in sessions:
            if live.lock.acquire(timeout=_CLOSE_PATIENCE_S):
                live.lock.release()
        self.services.close()

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, request: RunRequest) -> RunResult:
        """Run code, or only check it, on the calling thread. Failures of any kind are in the result."""
        return finish(self.driving_run(request, RunTicket()))

    def driving_run(self, request: RunRequest, ticket: RunTicket) -> Driven[RunResult]:
        """`run`, as something to be driven; *ticket* can cancel it."""
        try:
            self._check_request(request)
            if request.validate_only:
                return self._validate(request)
            return (yield from self._run(request, ticket))
        except HoldfastError as error:
            return RunResult.failed(error.error_object())

    def cancel(self, session_id: SessionId) -> bool:
        """End the session's run, running or waiting; false if there is none."""
        live = self._sessions.live.get(session_id)
        if live is not None and (current := live.current) is not None:
            current.stop(cancelled_error())
            return True
        run = self._store.waiting_run(session_id)
        return run is not None and self._store.drop_run(run.run_id)

    def resume(self, session_id: SessionId) -> RunResult:
        """Continue the session's waiting run as far as decisions allow, on the calling thread."""
        return finish(self.driving_resume(session_id, RunTicket()))

    def driving_resume(self, session_id: SessionId, ticket: RunTicket) -> Driven[RunResult]:
        """`resume`, as something to be driven."""
        with self._sessions.held(session_id) as live:
            run = self._store.waiting_run(session_id)
            if run is None:
                raise InvalidArgument(f"session {session_id!r} has no run that waits")
            return (yield from self._resume(live, run, ticket))

    def _run(self, request: RunRequest, ticket: RunTicket) -> Driven[RunResult]:
        session_id = SessionId(request.session_id)
        live = self._sessions.find_or_make(session_id)
        with live.lock, self._store.hold(session_id):
            if self._sessions.refresh(live):
                yield from self._must_not_wait(live, ticket)
            plan = self._plan(live, request)
            slot = Slot(self._workers.take(session_id))
            run = MontyRun(plan, self._run_host(plan, ticket))
            ticket.admit(run)
            return (
                yield from self._drive(
                    live, run, slot, lambda: slot.fill(self._ready_worker(slot.worker, live, plan.limits))
                )
            )

    def _drive(
        self,
        live: LiveSession,
        run: MontyRun,
        slot: Slot,
        begin: Callable[[], Worker],
        decided: dict[int, Approval] | None = None,
    ) -> Driven[RunResult]:
        """Drive a run to its end, store what it left, and see to its worker, whatever happens."""
        live.current = run
        try:
            outcome = yield from run.drive(begin, decided)
            if isinstance(outcome, Parked):
                if slot.worker is not None:
                    slot.worker.version = None  # it stands in the middle of a run
                result = self._concluder.park(live, run, outcome)
            else:
                result = self._concluder.conclude(live, run, slot.worker, outcome)
        except BaseException:
            self._workers.give_back(slot.worker)
            raise
        finally:
            live.current = None
        if slot.worker is not None and slot.worker.version is live.version:
            self._workers.keep(run.plan.session_id, slot.worker)
        else:
            self._workers.give_back(slot.worker)
        self._sessions.used(live)
        return result

    def _resume(self, live: LiveSession, waiting: WaitingRun, ticket: RunTicket) -> Driven[RunResult]:
        """Continue a parked run with whatever has been decided. The session is held."""
        plan, decided = self._claimed(live, waiting)
        assert plan.paused is not None
        if not decided:
            self._desk.release(waiting)
            return with_snapshot(RunResult.failed(waiting_error(plan.paused.pending)), waiting.snapshot_id)
        slot = Slot(self._workers.take(plan.session_id))

        def begin() -> Worker:
            if slot.worker is not None:
                slot.worker.close()
            return slot.fill(self._workers.attach_bare(plan.limits))

        run = MontyRun(plan, self._run_host(plan, ticket))
        ticket.admit(run)
        try:
            return (yield from self._drive(live, run, slot, begin, decided))
        except BaseException:
            self._desk.release(waiting)  # whoever comes next may try
            raise

    def _must_not_wait(self, live: LiveSession, ticket: RunTicket) -> Driven[None]:
        """Refuse a session whose run waits. One whose requests have all expired is continued first."""
        session_id = live.meta.id
        while (run := self._store.waiting_run(session_id)) is not None:
            if not self._desk.all_expired(run):
                approvals = self._store.approvals(run_id=run.run_id)
                raise SessionWaiting(session_id, [item.approval_id for item in approvals if is_open(item)])
            yield from self._resume(live, run, ticket)

    def _validate(self, request: RunRequest) -> RunResult:
        started = self._clock.monotonic()
        names = [*self._sessions.names(SessionId(request.session_id)), *request.inputs]
        limits = request.limits or self._config.limits
        diagnostics = self._validator.check(request.code, names, request.timeout_ms or limits.wall_ms)
        error = as_error(diagnostics)
        return RunResult(
            status=RunStatus.OK if error is None else RunStatus.VALIDATION_ERROR,
            diagnostics=diagnostics,
            metrics=Metrics(duration_ms=int((self._clock.monotonic() - started) * 1000)),
            error=error,
        )

    def _check_request(self, request: RunRequest) -> None:
        if request.language is not Language.PYTHON:
            raise InvalidArgument(f"this sandbox runs Python, not {request.language}")
        if not request.code.isascii():
            try:
                size = len(request.code.encode())
            except UnicodeEncodeError:
                raise InvalidArgument("the code holds a lone surrogate") from None
        else:
            size = len(request.code)
        if size > self._config.max_code_bytes:
            raise _TooLarge(f"the code is {size} bytes, the limit is {self._config.max_code_bytes}")
        if request.inputs and (size := to_json(request.inputs)[1]) > self._config.max_input_bytes:
            raise _TooLarge(f"the inputs are {size} bytes, the limit is {self._config.max_input_bytes}")

    def _plan(self, live: LiveSession, request: RunRequest) -> RunPlan:
        limits = request.limits or live.meta.limits
        if request.timeout_ms is not None:
            limits = msgspec.structs.replace(limits, wall_ms=request.timeout_ms)
        return RunPlan(
            session_id=request.session_id,
            program=self._program(live, request.code),
            limits=limits,
            names=live.names,
            sites=live.state.sites if live.state else {},
            inputs=request.inputs,
            return_snapshot=request.return_snapshot,
        )

    @staticmethod
    def _program(live: LiveSession, code: str) -> Program:
        return read_program(code, result_may_be_bound=live.state is not None and live.state.result_later)

    def _run_host(self, plan: RunPlan, ticket: RunTicket) -> RunHost:
        return RunHost(
            dispatcher=self.services.dispatcher,
            watchdog=self.services.watchdog,
            journal=RunJournal(self._store, plan) if self._store.durable else None,
            on_own_thread=ticket.go_on is not None,
        )

    def _ready_worker(self, worker: Worker | None, live: LiveSession, limits: SessionLimits) -> Worker:
        """The worker with the session loaded under these limits."""
        if worker is not None and worker.holds(live.version, limits):
            return worker
        if worker is not None:
            worker.close()
        worker = self._workers.attach(live.state, limits)
        worker.version = live.version
        return worker

    def _claimed(self, live: LiveSession, waiting: WaitingRun) -> tuple[RunPlan, dict[int, Approval]]:
        """Take a waiting run over and read what it needs to go on."""
        paused, data = self._desk.paused(waiting)
        self._desk.expire(waiting.run_id)
        decided = self._desk.decided(waiting)
        self._desk.claim(waiting)
        plan = RunPlan(
            session_id=waiting.session_id,
            program=self._program(live, paused.code),
            limits=paused.limits,
            names=live.names,
            sites=live.state.sites if live.state else {},
        ).going_on(paused, decode_paused(data).dump, waiting.run_id)
        return plan, {
            call.call_id: decided[call.call_id] for call in paused.pending if call.call_id in decided
        }

    # ── approvals ────────────────────────────────────────────────────────────────────────────────

    def approvals(self, session_id: str | None = None) -> list[Approval]:
        """All approval requests, oldest first; those past their time count as expired."""
        return self._desk.all(session_id)

    def approval(self, approval_id: str) -> Approval:
        return self._desk.get(approval_id)

    def host_of(self, approval_id: str) -> dict[str, Json]:
        """What the process that asked had for tools, so that another can be set up alike."""
        approval = self.approval(approval_id)
        run = self._store.get_run(approval.run_id)
        return run.host if run is not None else {}

    def decide(self, approval_id: str, decision: Decision) -> RunResult:
        """Decide a request, once, and continue its run on the calling thread."""
        return finish(self.driving_decide(approval_id, decision, RunTicket()))

    def driving_decide(self, approval_id: str, decision: Decision, ticket: RunTicket) -> Driven[RunResult]:
        """`decide`, as something to be driven."""
        approval = self.approval(approval_id)
        with self._sessions.held(SessionId(approval.session_id)) as live:
            run = self._store.get_run(approval.run_id)
            self._decide(approval, run, decision)
            if run is None:
                raise ApprovalAlreadyDecided(approval_id, ApprovalState.CANCELLED)
            return (yield from self._resume(live, run, ticket))

    def _decide(self, approval: Approval, run: WaitingRun | None, decision: Decision) -> None:
        if approval.state is ApprovalState.PENDING and run is not None:
            self._desk.check(approval, run, decision)
        try:
            self._desk.decide(approval, decision)
        except ApprovalAlreadyDecided:
            if run is None or not self._desk.left_behind(run, approval):
                raise

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────

    def create_session(
        self, session_id: SessionId, limits: SessionLimits | None = None, *, ttl_ms: int | None = None
    ) -> None:
        """Make an empty session; one that exists is refused."""
        self._must_be_new(session_id)
        self._sessions.find_or_make(session_id, limits, ttl_ms)

    def destroy_session(self, session_id: SessionId) -> bool:
        """Forget a session, its state and its waiting run; false if there was none."""
        try:
            with self._sessions.held(session_id):
                self._sessions.forget(session_id)
                return self._store.delete_session(session_id)
        except SessionNotFound:
            return False
        except HoldfastError:  # it cannot be read; then it can at least be removed
            return self._store.delete_session(session_id)

    def list_sessions(self) -> list[SessionId]:
        return [SessionId(info.meta.id) for info in self.sessions()]

    def sessions(self) -> list[SessionInfo]:
        """All sessions that have not expired, oldest first."""
        return self._sessions.infos()

    def session(self, session_id: SessionId) -> SessionInfo:
        found = [info for info in self.sessions() if info.meta.id == session_id]
        if not found:
            raise SessionNotFound(session_id)
        return found[0]

    def reset_session(self, session_id: SessionId) -> None:
        """Forget a session's variables and its waiting run; its limits stay."""
        with self._sessions.held(session_id) as live:
            self._replace(live, None)

    def fork_session(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        """A new session with the same variables. Of a session that waits, those before the waiting run."""
        with self._sessions.held(session_id) as live:
            state = live.state
            limits = live.meta.limits
        self.create_session(new_id, limits)
        with self._sessions.held(new_id) as fork:
            self._replace(fork, state)
        return new_id

    def snapshot_session(self, session_id: SessionId) -> bytes:
        """The session as signed bytes; of a session that waits, the run that stands at its call."""
        return self.stored_snapshot(self.snapshot(session_id))

    def snapshot(self, session_id: SessionId) -> str:
        """Store a snapshot and return its id."""
        with self._sessions.held(session_id) as live:
            run = self._store.waiting_run(session_id)
            if run is not None:
                return run.snapshot_id
            return self._concluder.store_snapshot(live)

    def stored_snapshot(self, name: str) -> bytes:
        """The bytes of a stored snapshot."""
        data = self._store.get_snapshot(name)
        if data is None:
            raise InvalidArgument(f"there is no snapshot {name!r}")
        return data

    def export_snapshot(self, session_or_id: str) -> bytes:
        """The bytes of a stored snapshot, or of a session as it is."""
        if session_or_id.startswith("snap_"):
            return self.stored_snapshot(session_or_id)
        return self.snapshot_session(SessionId(session_or_id))

    def snapshot_host(self, snapshot: str | bytes) -> dict[str, Json]:
        """What the process that made a snapshot had for tools; only its signature is checked."""
        data = self.stored_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
        return self.services.codec.open(data)[0].host

    def restore(self, snapshot: str | bytes, session_id: str | None) -> SessionId:
        """Restore a snapshot by its id or from its bytes."""
        data = self.stored_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
        return self.restore_session(data, SessionId(session_id) if session_id is not None else None)

    def restore_session(self, snapshot: bytes, session_id: SessionId | None = None) -> SessionId:
        """Put a snapshot into its own session or another. A run that waited asks anew."""
        header, data = self.services.unseal(snapshot)
        target = session_id or SessionId(header.meta.id)
        paused = decode_paused(data) if header.paused else None
        state = paused.before if paused else decode_state(data)
        with self._sessions.held(target, make=True) as live:
            self._replace(live, state, meta=header.meta)
            if paused is not None and header.paused is not None:
                self._park_again(live, header.paused, paused)
        return target

    def can_restore_snapshot(self, snapshot: bytes) -> bool:
        try:
            self.services.unseal(snapshot)
        except HoldfastError:
            return False
        return True

    def _must_be_new(self, session_id: SessionId) -> None:
        if self._sessions.find(session_id) is not None:
            raise InvalidArgument(
                f"session {session_id!r} exists already",
                hint="reset or destroy it first, or choose another id",
            )

    def _replace(self, live: LiveSession, state: EngineState | None, meta: SessionMeta | None = None) -> None:
        """Give a held session another state; a waiting run of it is over."""
        self._workers.forget(live.meta.id)
        if (run := self._store.waiting_run(live.meta.id)) is not None:
            self._store.drop_run(run.run_id)
        if meta is not None:
            live.meta = msgspec.structs.replace(live.meta, limits=meta.limits)
        live.replace_state(state)
        self._sessions.save(live)

    def _park_again(self, live: LiveSession, paused: PausedRun, state: PausedState) -> None:
        """Park a restored run under new approval requests."""
        run_id = new_run_id()
        unasked = [msgspec.structs.replace(call, approval_id="") for call in paused.pending]
        pending, approvals = self._desk.ask(unasked, run_id, live.meta.id)
        paused = msgspec.structs.replace(paused, run_id=run_id, pending=pending)
        data = self.services.seal(live.meta, encode_paused(state), paused)
        waiting = WaitingRun(
            run_id=run_id,
            session_id=live.meta.id,
            snapshot_id=snapshot_id(data),
            created_at=self._clock.now_ms(),
            host=self._config.host,
        )
        self._store.park(waiting, data, approvals)


class _TooLarge(HoldfastError):
    code = Code.REQUEST_TOO_LARGE
