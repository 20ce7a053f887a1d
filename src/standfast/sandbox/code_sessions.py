"""Sessions of guest code, with approvals and snapshots over a store, whatever engine runs them.

Theory of operation
-------------------
A session is a `LiveSession` here and a `StoredSession` in the store; the epoch tells whether the two
agree. A run holds its session, is driven by its engine on the calling thread, and is concluded: result, new
state, one write. A run that needs a person is parked instead: the engine's state, signed, together
with its approval requests, in one write. A decision loads it again, anywhere.

Rules
-----
1. The stored state changes only when a run has ended; until then it is the state before the run.
2. A waiting run is continued by the process that claimed it; its decisions were made before, once.
3. A restored snapshot asks again: decisions belong to the approvals they were made for.
4. Language and engine of a session are fixed when it is made. Its own engine continues it, whatever this
   sandbox would choose for a new one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import (
    ApprovalAlreadyDecided,
    Code,
    ErrorObject,
    InvalidArgument,
    SessionNotFound,
    SessionWaiting,
    StandfastError,
    ValueTooLarge,
)
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.canonical import Json, to_json
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.model.ids import SessionId
from standfast.model.language import Language
from standfast.model.limits import SessionLimits
from standfast.model.run import Metrics, RunRequest, RunResult, RunStatus
from standfast.model.session import SessionInfo
from standfast.ports.sandbox_store import SandboxStore, WaitingRun
from standfast.sandbox.approval_desk import ApprovalDesk
from standfast.sandbox.conclusion import Concluder, waiting_error
from standfast.sandbox.config import SandboxConfig
from standfast.sandbox.engines import kind_of, usual_engine
from standfast.sandbox.live import LiveSession
from standfast.sandbox.pump import Driven, finish
from standfast.sandbox.run_calls import RunHost
from standfast.sandbox.run_errors import cancelled_error
from standfast.sandbox.run_journal import RunJournal
from standfast.sandbox.run_order import RunOrder, new_run_id
from standfast.sandbox.run_ticket import RunTicket
from standfast.sandbox.services import SandboxServices
from standfast.sandbox.session_engine import Parked, SessionRun
from standfast.sandbox.session_table import NewSession, SessionTable, is_open
from standfast.tools.registry import ToolRegistry

_CLOSE_PATIENCE_S: Final = 2.0
"""How long closing waits for a run to notice that it was cancelled."""


class CodeSessions:
    """The sessions of one sandbox. Every method blocks, and may be called from any thread."""

    def __init__(self, registry: ToolRegistry, store: SandboxStore, config: SandboxConfig) -> None:
        self.services = SandboxServices.of(registry, store, config)
        self._config = config
        self._store = store
        self._clock = config.clock
        self._asked = {kind_of(config.engine).language: config.engine} if config.engine else {}
        self._sessions = SessionTable(self.services)
        self._desk = ApprovalDesk(self.services)
        self._concluder = Concluder(self.services, self._sessions, self._desk)

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
        except StandfastError as error:
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
        live = self._sessions.find(session_id)
        if live is None:
            live = self._sessions.find_or_make(session_id, self._new(request.language))
        with live.lock, self._store.hold(session_id):
            waits = self._sessions.refresh(live)
            self._must_fit(live, request.language)
            if waits:
                yield from self._must_not_wait(live, ticket)
            return (yield from self._drive(live, self._order(live, request), ticket, {}))

    def _drive(
        self, live: LiveSession, order: RunOrder, ticket: RunTicket, decided: dict[int, Approval]
    ) -> Driven[RunResult]:
        """Drive a run to its end, store what it left, and let its worker go, whatever happens."""
        order.session_limits = live.meta.limits
        run = live.engine.open(order, live.state, live.version, self._run_host(order, ticket))
        stored = False
        try:
            ticket.admit(run)
            result = yield from self._concluded(live, order, run, decided)
            stored = True
        finally:
            live.current = None
            run.leave(live.version if stored else None)
        self._sessions.used(live)
        return result

    def _concluded(
        self, live: LiveSession, order: RunOrder, run: SessionRun, decided: dict[int, Approval]
    ) -> Driven[RunResult]:
        live.current = run
        outcome = yield from run.drive(decided)
        if isinstance(outcome, Parked):
            return self._concluder.park(live, order, outcome)
        return self._concluder.conclude(live, order, outcome)

    def _resume(self, live: LiveSession, waiting: WaitingRun, ticket: RunTicket) -> Driven[RunResult]:
        """Continue a parked run with whatever has been decided. The session is held."""
        order, decided = self._claimed(waiting)
        assert order.paused is not None
        if not decided:
            self._desk.release(waiting)
            failed = RunResult.failed(waiting_error(order.paused.pending))
            return msgspec.structs.replace(failed, snapshot_id=waiting.snapshot_id)
        try:
            return (yield from self._drive(live, order, ticket, decided))
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
        live = self._sessions.seen(SessionId(request.session_id))
        limits = request.limits or self._config.limits
        if live is not None:
            self._must_fit(live, request.language)
            engine, state = live.engine, live.state
        else:
            engine, state = self.services.engines.get(self._new(request.language).engine), None
        diagnostics = engine.check(
            request.code, state, list(request.inputs), request.timeout_ms or limits.wall_ms
        )
        error = _first_error(diagnostics)
        return RunResult(
            status=RunStatus.OK if error is None else RunStatus.VALIDATION_ERROR,
            diagnostics=diagnostics,
            metrics=Metrics(duration_ms=int((self._clock.monotonic() - started) * 1000)),
            error=error,
        )

    def _new(self, language: Language, limits: SessionLimits | None = None) -> NewSession:
        """What a new session is like."""
        language = Language(language)
        engine = self._asked.get(language) or usual_engine(language)
        return NewSession(language, engine, limits or self._config.limits)

    def _must_fit(self, live: LiveSession, language: Language) -> None:
        """Refuse to run another language, or on another engine, than the session's own."""
        wanted, spoken = self._asked.get(language), live.meta.language
        if spoken == language and (wanted is None or wanted == live.engine.name):
            return
        asked = language if spoken != language else f"{language} on {wanted}"
        raise InvalidArgument(
            f"session {live.meta.id!r} is {spoken} on {live.engine.name}, not {asked}",
            hint="language and engine of a session are fixed; choose another session, or destroy this one",
        )

    def _check_request(self, request: RunRequest) -> None:
        if len(request.code) <= self._config.max_code_bytes and not request.code.isascii():
            try:
                size = len(request.code.encode())
            except UnicodeEncodeError:
                raise InvalidArgument("the code holds a lone surrogate") from None
        else:
            size = len(request.code)
        if size > self._config.max_code_bytes:
            raise _TooLarge(f"the code is {size} bytes, the limit is {self._config.max_code_bytes}")
        if request.inputs:
            self._check_inputs(request.inputs)

    def _check_inputs(self, inputs: dict[str, Json]) -> None:
        limit = self._config.max_input_bytes
        try:
            _, size = to_json(inputs, limit)
        except ValueTooLarge as error:
            raise _TooLarge(f"the inputs are too large: {error.limit}") from None
        if size > limit:
            raise _TooLarge(f"the inputs are {size} bytes, the limit is {limit}")

    @staticmethod
    def _order(live: LiveSession, request: RunRequest) -> RunOrder:
        limits = request.limits or live.meta.limits
        if request.timeout_ms is not None:
            limits = msgspec.structs.replace(limits, wall_ms=request.timeout_ms)
        return RunOrder(request.session_id, request.code, limits, request.inputs, request.return_snapshot)

    def _run_host(self, order: RunOrder, ticket: RunTicket) -> RunHost:
        return RunHost(
            self.services.dispatcher,
            self.services.watchdog,
            RunJournal(self._store, order) if self._store.durable else None,
            ticket.go_on,
        )

    def _claimed(self, waiting: WaitingRun) -> tuple[RunOrder, dict[int, Approval]]:
        """Take a waiting run over and read what it needs to go on."""
        paused, data = self._desk.paused(waiting)
        self._desk.expire(waiting.run_id)
        decided = self._desk.decided(waiting)
        self._desk.claim(waiting)
        return RunOrder.going_on(waiting.session_id, waiting.run_id, paused, data), {
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
        self,
        session_id: SessionId,
        limits: SessionLimits | None = None,
        *,
        language: Language = Language.PYTHON,
        ttl_ms: int | None = None,
    ) -> None:
        """Make an empty session; one that exists is refused."""
        self._must_be_new(session_id)
        self._sessions.find_or_make(session_id, self._new(language, limits), ttl_ms)

    def destroy_session(self, session_id: SessionId) -> bool:
        """Forget a session, its state and its waiting run; false if there was none."""
        try:
            with self._sessions.held(session_id):
                self._sessions.forget(session_id)
                return self._store.delete_session(session_id)
        except SessionNotFound:
            return False
        except StandfastError:  # it cannot be read; then it can at least be removed
            return self._store.delete_session(session_id)

    def list_sessions(self) -> list[SessionId]:
        return [SessionId(info.meta.id) for info in self.sessions()]

    def sessions(self) -> list[SessionInfo]:
        """All sessions that have not expired, oldest first."""
        return self._sessions.infos()

    def session(self, session_id: SessionId) -> SessionInfo:
        found = [info for info in self.sessions() if info.meta.id == session_id]
        if not found:
            raise SessionNotFound(session_id, sandbox=True)
        return found[0]

    def reset_session(self, session_id: SessionId) -> None:
        """Forget a session's variables and its waiting run; its limits stay."""
        self._sessions.empty(session_id)

    def fork_session(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        """A new session with the same variables. Of a session that waits, those before the waiting run."""
        with self._sessions.held(session_id) as live:
            state = live.state
            new = NewSession(live.meta.language, live.engine.name, live.meta.limits)
        self._must_be_new(new_id)
        with self._sessions.held(new_id, make=new) as fork:
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
        engine = self.services.engines.get(header.engine)
        new = NewSession(header.meta.language, engine.name, header.meta.limits)
        state = engine.before(data) if header.paused else engine.decode(data)
        with self._sessions.held(target, make=new) as live:
            if live.engine is not engine:
                raise InvalidArgument(
                    f"session {target!r} is {live.meta.language} on {live.engine.name}, and the snapshot "
                    f"{new.language} on {new.engine}",
                    hint="restore it into another session",
                )
            self._replace(live, state, limits=new.limits)
            if header.paused is not None:
                self._concluder.park_again(live, new_run_id(), Parked(data, header.paused))
        return target

    def can_restore_snapshot(self, snapshot: bytes) -> bool:
        try:
            self.services.unseal(snapshot)
        except StandfastError:
            return False
        return True

    def _must_be_new(self, session_id: SessionId) -> None:
        if self._sessions.find(session_id) is not None:
            raise InvalidArgument(
                f"session {session_id!r} exists already",
                hint="reset or destroy it first, or choose another id",
            )

    def _replace(self, live: LiveSession, state: object, limits: SessionLimits | None = None) -> None:
        """Give a held session another state; a waiting run of it is over."""
        live.engine.forget(live.meta.id)
        if (run := self._store.waiting_run(live.meta.id)) is not None:
            self._store.drop_run(run.run_id)
        if limits is not None:
            live.meta = msgspec.structs.replace(live.meta, limits=limits)
        live.replace_state(state)
        self._sessions.save(live)


def _first_error(diagnostics: list[Diagnostic]) -> ErrorObject | None:
    for item in diagnostics:
        if item.severity is Severity.ERROR:
            return ErrorObject(code=item.code, message=item.message, hint=item.hint, span=item.span)
    return None


class _TooLarge(StandfastError):
    code = Code.REQUEST_TOO_LARGE
