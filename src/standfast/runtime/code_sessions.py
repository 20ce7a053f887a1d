"""Sessions without a model: their turns are code. What `Sandbox` and `BlockingSandbox` are made of.

Theory of operation
-------------------
A session is one of the store's like any other, with `SessionHead.code`. A run is a turn: it begins with one
transaction (its input, the lease) and ends with one (its report, the variables). What this process knows of a
session, its variables above all, is kept from run to run and read again if another process has moved them.

Rules
-----
1. One run of a session at a time: in this process by a lock, among processes by the lease.
2. A turn that was left unfinished comes first. One that waits for a person is in the way until it is decided,
   has expired, or is cancelled.
3. A restored snapshot asks again: decisions belong to the approvals they were made for.
4. Language and engine of a session are fixed when it is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections import OrderedDict
from typing import Any, Final, Literal, TypeVar

import msgspec

from standfast.durable.driver import Committed, Driven
from standfast.durable.journal import replay
from standfast.errors import (
    ApprovalAlreadyDecided,
    ApprovalNotFound,
    Code,
    ErrorObject,
    InvalidArgument,
    LeaseLost,
    SessionBusy,
    SessionNotFound,
    SessionWaiting,
    SnapshotRefused,
    StandfastError,
    TurnNotFound,
    TurnUnfinished,
    ValueTooLarge,
)
from standfast.machine.inputs import TurnStarted, WaitOpened, decode_input, encode_input
from standfast.model.approval import Approval, ApprovalState, Decision, bind_approval
from standfast.model.canonical import Json, digest_bytes, to_json
from standfast.model.capability import CallStatus, ExternalCallRecord, SettledCall
from standfast.model.cell import CellReport, CodeInput
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.model.language import Language
from standfast.model.limits import SessionLimits
from standfast.model.message import AssistantMessage, ToolMessage
from standfast.model.outcome import Stopped, Waiting
from standfast.model.plugin_state import PluginSnapshotEntry, SessionState, encode_state
from standfast.model.run import Metrics, RunRequest, RunResult, RunStatus, status_of_code
from standfast.model.session import (
    SANDBOX_AGENT,
    CodeSettings,
    SessionHead,
    SessionId,
    SessionInfo,
    SessionMeta,
    TurnRecord,
    TurnState,
)
from standfast.plugins.plugin_states import ExecutionMemory, read_execution
from standfast.ports.code_engine import SLEEP
from standfast.ports.session_store import (
    Begun,
    Claimant,
    JournalEntry,
    NewTurn,
    QueuedInput,
    Repeated,
    Save,
    SessionStore,
    StateRecord,
    Takeover,
)
from standfast.protocols.code.cell_history import cells_of
from standfast.runtime.code_executor import SandboxExecutor, variables_in
from standfast.runtime.code_turns import CodeTurn
from standfast.runtime.process_identity import new_owner, retire
from standfast.runtime.sandbox_services import SandboxServices, check_within
from standfast.runtime.sessions.materialize import fetch_blobs, journaled_states, read_state
from standfast.sandbox.run_errors import cancelled_error, under_way_error
from standfast.sandbox.snapshots import PausedTurn, SnapshotHeader, snapshot_id
from standfast.tools.blocking_loop import run_blocking
from standfast.tools.settlement import request_digest, settle_failure

T = TypeVar("T")

_CACHED_SESSIONS: Final = 256
_UNREAD: Final = "unread"
"""The state of a session whose variables were not read."""
_CLOSE_PATIENCE_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.1
_MAX_DIAGNOSTICS: Final = 200


class RunControl:
    """A way to cancel a run that may not have begun yet, from another thread."""

    __slots__ = ("_lock", "_turn", "cancelled")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn: CodeTurn | None = None
        self.cancelled = False

    def admit(self, turn: CodeTurn) -> None:
        """The turn begins: from now on cancelling stops it."""
        with self._lock:
            self._turn = turn

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._turn is not None:
                self._turn.request_cancel()


class CodeSession:
    """A session as this process knows it. It is used by the thread that holds `lock`."""

    __slots__ = ("current", "executor", "head", "lock", "memory", "settings", "state_id")

    def __init__(self, head: SessionHead, settings: CodeSettings, executor: SandboxExecutor) -> None:
        self.head = head
        self.settings = settings
        self.executor = executor
        self.memory = ExecutionMemory(executor, "sandbox")
        self.state_id: str | None = None
        """The stored state that `executor` holds."""
        self.current: CodeTurn | None = None
        self.lock = threading.Lock()


class CodeSessions:
    """The sessions of one sandbox. Every method blocks, and may be called from any thread without a loop."""

    def __init__(self, services: SandboxServices) -> None:
        self.services = services
        self._store: SessionStore = services.store
        self._config = services.config
        self._clock = services.config.clock
        self._sessions: OrderedDict[str, CodeSession] = OrderedDict()
        self._opening = threading.Lock()

    def close(self) -> None:
        """End runs and worker processes. What is stored stays."""
        sessions = list(self._sessions.values())
        for session in sessions:
            if (current := session.current) is not None:
                current.request_cancel()
        for session in sessions:
            if session.lock.acquire(timeout=_CLOSE_PATIENCE_S):
                session.lock.release()
        self.services.close()

    # Runs

    def run(self, request: RunRequest, control: RunControl | None = None) -> RunResult:
        """Run code, or only check it, on the calling thread. Failures of any kind are in the result."""
        try:
            self._check_request(request)
            if request.validate_only:
                return self._validate(request)
            return run_blocking(self._run(request, control or RunControl()))
        except StandfastError as error:
            return RunResult.failed(error.error_object())
        except KeyboardInterrupt:  # the run is over, wherever it was
            run_blocking(self._cancel(SessionId(request.session_id)))
            raise

    def resume(self, session_id: SessionId, control: RunControl | None = None) -> RunResult:
        """Continue the session's waiting run as far as decisions allow."""
        return run_blocking(self._resume(session_id, control or RunControl()))

    def cancel(self, session_id: SessionId) -> bool:
        """End the session's run, running or waiting; false if there is none."""
        session = self._sessions.get(session_id)
        if session is not None and (current := session.current) is not None:
            current.request_cancel()
            return True
        return run_blocking(self._cancel(session_id))

    async def _run(self, request: RunRequest, control: RunControl) -> RunResult:
        session_id = SessionId(request.session_id)
        while True:
            session = await self._open(session_id, request.language)
            with session.lock:
                if control.cancelled:  # while it waited for another run
                    return RunResult.failed(cancelled_error())
                try:
                    self._must_fit(session, request.language)
                    begun, started = await self._begin(session, request, control)
                    if isinstance(begun, Repeated):
                        return await self._repeat(session, begun.record, control)
                except SessionNotFound:  # another process has deleted it
                    self._forget(session_id)
                    continue
                return await self._drive(session, begun, started, control)

    async def _begin(
        self, session: CodeSession, request: RunRequest, control: RunControl
    ) -> tuple[Begun | Repeated, TurnStarted]:
        limits = request.limits or session.settings.limits
        if request.timeout_ms is not None:
            limits = msgspec.structs.replace(limits, wall_ms=request.timeout_ms)
        random = secrets.token_hex(22)
        started = TurnStarted(
            at_ms=self._clock.now_ms(),
            turn_id=f"t_{random[:20]}",
            code=CodeInput(
                code=request.code, limits=limits, inputs=request.inputs, snapshot=request.return_snapshot
            ),
            nonce=random[20:],
        )
        if session.head.host != self._config.host:
            await self._describe(session)
        return await self._claim(session, started, control, request.idempotency_key), started

    async def _claim(
        self, session: CodeSession, started: TurnStarted, control: RunControl, key: str | None = None
    ) -> Begun | Repeated:
        """Make the turn durable once the session is free, unless *key* names a turn that has begun before."""
        session_id = session.head.session_id

        def make_input(head: SessionHead, claimed: tuple[QueuedInput, ...]) -> bytes:
            return encode_input(started)

        new = NewTurn(
            session_id=session_id,
            turn_id=started.turn_id,
            agent=SANDBOX_AGENT,
            make_input=make_input,
            input_digest=digest_bytes(msgspec.json.encode(started.code)) if key else "",
            idempotency_key=key,
        )
        pause_s = _FIRST_PAUSE_S
        while True:
            owner = new_owner(self.services.epoch)
            try:
                begun = await self._store.begin(new, self._claimant(owner))
                if isinstance(begun, Repeated):
                    retire(owner)
                return begun
            except TurnUnfinished as unfinished:
                retire(owner)
                if unfinished.waits and not await self._can_go_on(unfinished.turn_id):
                    await self._refresh(session, session.head, ())  # raises if another engine build stored it
                    raise SessionWaiting(session_id, await self._open_approvals(unfinished.turn_id)) from None
                await self._take_up(session, unfinished.turn_id, control)
            except SessionBusy:
                retire(owner)
                if control.cancelled:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except BaseException:
                retire(owner)
                raise

    async def _repeat(self, session: CodeSession, record: TurnRecord, control: RunControl) -> RunResult:
        """Return the result of the turn that a repeated request names; wait for it if it still runs."""
        pause_s = _FIRST_PAUSE_S
        while record.state is TurnState.RUNNING:
            with contextlib.suppress(SessionBusy, TurnNotFound):  # its owner lives, or it has just ended
                return await self._take_up(session, record.turn_id, control)
            if control.cancelled:
                return RunResult.failed(cancelled_error())
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            found = await self._store.turn(record.turn_id)
            if found is None:
                raise TurnNotFound(record.turn_id)
            record = found
        if record.state is TurnState.WAITING:
            return await self._go_on(session, record, control)
        return await self._stored_result(session, record)

    async def _stored_result(self, session: CodeSession, record: TurnRecord) -> RunResult:
        """Rebuild the result of a turn that has ended from the session's history."""
        head, summary = await self._store.head(session.head.session_id), record.summary
        assert head is not None
        assert summary is not None
        segments = await self._store.path(head.leaf) if head.leaf is not None else []
        said = [
            entry.payload
            for segment in segments
            if segment.segment_id == record.turn_id
            for entry in segment.entries
            if isinstance(entry.payload, (AssistantMessage, ToolMessage))
        ]
        cell = next(iter(cells_of(said)), None)
        report = None if cell is None else cell.report
        if cell is not None and cell.whole is not None and (data := await self._store.blob(cell.whole)):
            report = msgspec.json.decode(data, type=CellReport)
        if report is None:
            error = cell.error if cell is not None else None
            if isinstance(summary.outcome, Stopped):
                error = summary.outcome.error
            report = CellReport(index=0, error=error, hard=isinstance(summary.outcome, Stopped))
        records = dict(enumerate(summary.calls))
        return _result(head.session_id, session.settings.limits, report, records, None)

    async def _resume(self, session_id: SessionId, control: RunControl) -> RunResult:
        session = await self._known(session_id)
        with session.lock:
            record = await self._store.open_turn(session_id)
            if record is None:
                raise InvalidArgument(f"session {session_id!r} has no run that waits")
            return await self._go_on(session, record, control)

    async def _go_on(self, session: CodeSession, record: TurnRecord, control: RunControl) -> RunResult:
        """Continue a turn that waits, or tell what it waits for."""
        if record.state is TurnState.WAITING and not await self._can_go_on(record.turn_id):
            return await self._still_waiting(record)
        return await self._take_up(session, record.turn_id, control)

    async def _take_up(self, session: CodeSession, turn_id: str, control: RunControl) -> RunResult:
        owner = new_owner(self.services.epoch)
        try:
            taken = await self._store.take_over(turn_id, self._claimant(owner))
        except BaseException:
            retire(owner)
            raise
        return await self._drive(session, taken, None, control)

    async def _drive(
        self,
        session: CodeSession,
        begun: Begun | Takeover,
        started: TurnStarted | None,
        control: RunControl,
        *,
        abandoned: bool = False,
        restored: bool = False,
    ) -> RunResult:
        """Drive a turn to its end or its next wait. If it breaks, it stays unfinished, for another attempt.

        One that is *abandoned* only ends. Of one that was *restored*, the executor knows already.
        """
        leases = self.services.leases
        turn: CodeTurn | None = None
        try:
            journal = begun.journal if isinstance(begun, Takeover) else ()
            if not abandoned and not restored:
                await self._refresh(session, begun.head, journal)
            turn = self.services.turns.open(begun, started, session.executor, session.memory)
            session.current = turn
            control.admit(turn)
            leases.hold(turn)
            commands = turn.commands
            if isinstance(begun, Takeover):
                ended = await self._store.ended_waits(turn.turn_id, self._clock.now_ms())
                cancelled = abandoned or begun.record.cancel_requested or control.cancelled
                commands = turn.driver.resume(ended, cancelled=cancelled)
            driven = await turn.drive(commands)
        except BaseException as error:
            self._forget(session.head.session_id)
            if not isinstance(error, LeaseLost):
                await leases.give_back(begun.lease)
            raise
        finally:
            session.current = None
            if turn is not None:
                leases.let_go(turn)
            retire(begun.lease.owner)
        result = await self._conclude(session, turn, driven)
        if abandoned:
            session.state_id = _UNREAD
        return result

    async def _conclude(self, session: CodeSession, turn: CodeTurn, driven: Driven) -> RunResult:
        machine, executor = turn.machine, session.executor
        outcome = driven.summary.outcome
        records = machine.records_by_call()
        if isinstance(driven, Committed):
            session.head, session.state_id = driven.head, driven.head.state
            self._used(session)
            report, error = executor.report, None
            if report is None:
                last = machine.messages[-1]
                error = outcome.error if isinstance(outcome, Stopped) else getattr(last, "error", None)
                report = CellReport(index=0, error=error, hard=isinstance(outcome, Stopped))
            for call in machine.given_up:
                tool = self.services.registry.get(call.name)
                if tool is not None:
                    digest = request_digest(call.name, list(call.args), call.arguments or {})
                    records[call.call_id] = settle_failure(tool, digest, under_way_error(call.name)).record
            code = machine.code
            assert code is not None
            name = None
            if code.snapshot and report.error is None:
                name = await self._store_snapshot(session)
            return _result(session.head.session_id, code.limits, report, records, name)
        assert isinstance(outcome, Waiting)
        return await self._waiting_result(session, turn, records)

    async def _waiting_result(
        self, session: CodeSession, turn: CodeTurn, records: dict[int, ExternalCallRecord]
    ) -> RunResult:
        executor, session_id = session.executor, session.head.session_id
        code = turn.machine.code
        assert code is not None
        pending = await self._pending(turn.turn_id)
        for approval in pending:
            tool = self.services.registry.require(approval.capability)
            records[approval.call_id] = ExternalCallRecord(
                name=approval.capability,
                side_effect=tool.capability.side_effect,
                duration_ms=0,
                status=CallStatus.APPROVAL_PENDING,
                request_digest=request_digest(approval.capability, approval.args, approval.kwargs),
            )
        report = CellReport(
            index=0,
            stdout=executor.printed.stdout,
            stderr=executor.printed.stderr,
            truncated=executor.printed.truncated,
            error=_waiting_error(pending),
            duration_ms=executor.wall_used_ms,
            calls_made=executor.calls_made,
        )
        name = await self._store_snapshot(session)
        return _result(session_id, code.limits, report, records, name)

    async def _still_waiting(self, record: TurnRecord) -> RunResult:
        return RunResult.failed(_waiting_error(await self._pending(record.turn_id)))

    async def _cancel(self, session_id: SessionId) -> bool:
        record = await self._store.open_turn(session_id)
        if record is None or not await self._store.cancel(record.turn_id):
            return False
        session = await self._known(session_id)
        with session.lock:
            await self._end_open_turn(session)
        return True

    async def _end_open_turn(self, session: CodeSession) -> None:
        """End the turn that waits or was left, without running any more of it."""
        record = await self._store.open_turn(session.head.session_id)
        if record is None:
            return
        owner = new_owner(self.services.epoch)
        try:
            taken = await self._store.take_over(record.turn_id, self._claimant(owner))
        except TurnNotFound:
            retire(owner)
            return
        await self._drive(session, taken, None, RunControl(), abandoned=True)

    def recover(self, session_id: str | None = None) -> dict[str, RunResult]:
        """Go on with the turns that dead processes have left, or whose waits are over; results by session."""
        return run_blocking(self._recover(session_id))

    async def _recover(self, session_id: str | None) -> dict[str, RunResult]:
        now, lease_now = self._clock.now_ms(), self.services.leases.now_ms()
        results = {}
        for record in await self._store.unfinished(now, lease_now_ms=lease_now):
            if record.agent != SANDBOX_AGENT or session_id not in (None, record.session_id):
                continue
            session = await self._known(SessionId(record.session_id))
            with session.lock, contextlib.suppress(SessionBusy, TurnNotFound):  # another process was faster
                results[record.session_id] = await self._take_up(session, record.turn_id, RunControl())
        return results

    # Approvals

    def approvals(self, session_id: str | None = None) -> list[Approval]:
        """All approval requests, oldest first; those past their time count as expired."""
        now = self._clock.now_ms()
        found = run_blocking(self._store.approvals(session_id=session_id))
        return [_as_of(item, now) for item in found]

    def approval(self, approval_id: str) -> Approval:
        return run_blocking(self._approval(approval_id))

    def host_of(self, approval_id: str) -> dict[str, Json]:
        """What the process that asked had for tools, so that another can be set up alike."""
        approval = self.approval(approval_id)
        head = run_blocking(self._store.head(approval.session_id))
        return {} if head is None else head.host

    def decide(self, approval_id: str, decision: Decision, control: RunControl | None = None) -> RunResult:
        """Decide a request, once, and continue its run on the calling thread."""
        return run_blocking(self._decide(approval_id, decision, control or RunControl()))

    async def _approval(self, approval_id: str) -> Approval:
        found = await self._store.approval(approval_id)
        if found is None:
            raise ApprovalNotFound(approval_id)
        return _as_of(found, self._clock.now_ms())

    async def _decide(self, approval_id: str, decision: Decision, control: RunControl) -> RunResult:
        approval = await self._approval(approval_id)
        session = await self._known(SessionId(approval.session_id))
        with session.lock:
            if decision.approved:
                self._check_contract(approval)
            edited = None
            if decision.args is not None or decision.kwargs is not None:
                edited = self._check_edited(approval, decision)
            try:
                await self._store.decide(
                    approval_id, decision, now_ms=self._clock.now_ms(), edited_digest=edited
                )
            except ApprovalAlreadyDecided:
                if not await self._was_left(approval):
                    raise
            record = await self._store.open_turn(approval.session_id)
            if record is None or record.turn_id != approval.run_id:
                raise ApprovalAlreadyDecided(approval_id, ApprovalState.CANCELLED)
            return await self._go_on(session, record, control)

    def _check_contract(self, approval: Approval) -> None:
        """Refuse to approve a call of a tool whose contract has changed, before the decision is spent."""
        tool = self.services.registry.get(approval.capability)
        if tool is None or approval.binding != bind_approval(approval, tool.digest):
            raise SnapshotRefused(
                Code.SNAPSHOT_CAPABILITY_MISMATCH,
                f"{approval.capability}() is not registered with the contract that the approval is for",
                hint="register the tools the run was started with (on the command line: --tools, --mount, "
                "--allow-host)",
            )

    def _check_edited(self, approval: Approval, decision: Decision) -> str:
        """Refuse arguments that the tool would refuse, before the decision is spent; their digest."""
        args = approval.args if decision.args is None else decision.args
        kwargs = approval.kwargs if decision.kwargs is None else decision.kwargs
        checked = self.services.dispatcher.check(
            self.services.registry.require(approval.capability),
            args,
            kwargs,
            session_id=approval.session_id,
            call_id=approval.call_id,
        )
        if isinstance(checked, SettledCall) and checked.record.error is not None:
            raise InvalidArgument(f"the edited arguments do not fit: {checked.record.error.message}")
        return request_digest(approval.capability, args, kwargs)

    async def _was_left(self, approval: Approval) -> bool:
        """Whether the turn was decided by a process that died before it continued it."""
        unfinished = await self._store.unfinished(
            self._clock.now_ms(), lease_now_ms=self.services.leases.now_ms()
        )
        return approval.decided_at is not None and any(
            record.turn_id == approval.run_id for record in unfinished
        )

    async def _can_go_on(self, turn_id: str) -> bool:
        record = await self._store.turn(turn_id)
        if record is not None and record.cancel_requested:
            return True
        return bool(await self._store.ended_waits(turn_id, self._clock.now_ms()))

    async def _pending(self, turn_id: str) -> list[Approval]:
        now = self._clock.now_ms()
        found = await self._store.approvals(turn_id=turn_id)
        return [one for one in found if _as_of(one, now).state is ApprovalState.PENDING]

    async def _open_approvals(self, turn_id: str) -> list[str]:
        return [one.approval_id for one in await self._pending(turn_id)]

    # Sessions

    def create_session(
        self,
        session_id: SessionId,
        limits: SessionLimits | None = None,
        *,
        language: Language = Language.PYTHON,
        ttl_ms: int | None = None,
    ) -> None:
        """Make an empty session; one that exists is refused."""
        run_blocking(self._create(session_id, self._new_settings(language, limits, ttl_ms)))

    async def _create(self, session_id: SessionId, settings: CodeSettings) -> CodeSession:
        if await self._find(session_id) is not None:
            raise _exists(session_id)
        return await self._make(session_id, settings)

    def destroy_session(self, session_id: SessionId) -> bool:
        """Forget a session, its variables and its waiting run; false if there was none."""
        return run_blocking(self._destroy(session_id))

    async def _destroy(self, session_id: SessionId) -> bool:
        session = self._sessions.get(session_id)
        with contextlib.nullcontext() if session is None else session.lock:
            head = await self._store.head(session_id)
            if head is not None and head.code is None:
                raise _not_code(session_id)
            self._forget(session_id)
            return await self._store.delete_session(session_id)

    def list_sessions(self) -> list[SessionId]:
        return [SessionId(info.meta.id) for info in self.sessions()]

    def sessions(self) -> list[SessionInfo]:
        """All sessions that have not expired, oldest first."""
        return run_blocking(self._infos())

    def session(self, session_id: SessionId) -> SessionInfo:
        found = [info for info in self.sessions() if info.meta.id == session_id]
        if not found:
            raise SessionNotFound(session_id)
        return found[0]

    async def _infos(self) -> list[SessionInfo]:
        heads = sorted(await self._store.heads(), key=lambda head: (head.created_at, head.session_id))
        found = []
        for head in heads:
            if head.code is None:
                continue
            if self._is_past(head.code):
                await self._store.delete_session(head.session_id)
            else:
                found.append(await self._info(head, head.code))
        return found

    async def _info(self, head: SessionHead, code: CodeSettings) -> SessionInfo:
        record = await self._store.open_turn(head.session_id)
        waits = record is not None and record.state is TurnState.WAITING
        state: Literal["idle", "waiting_for_approval"] = "waiting_for_approval" if waits else "idle"
        approvals = await self._open_approvals(record.turn_id) if record is not None and waits else []
        return SessionInfo(
            meta=_meta(head, code),
            engine=code.engine,
            state=state,
            state_bytes=len(await stored_variables(self._store, head)),
            expires_at=code.expires_at,
            approvals=approvals,
        )

    def reset_session(self, session_id: SessionId) -> None:
        """Forget a session's variables and its waiting run; its limits stay."""
        run_blocking(self._reset(session_id))

    async def _reset(self, session_id: SessionId) -> None:
        session = await self._unread(session_id)
        with session.lock:
            await self._end_open_turn(session)
            await self._replace_state(session, b"")
            self._forget(session_id)  # its executor may have no engine

    def fork_session(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        """A new session with the same variables. Of a session that waits, those before the waiting run."""
        return run_blocking(self._fork(session_id, new_id))

    async def _fork(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        await self._known(session_id)
        if await self._find(new_id) is not None:
            raise _exists(new_id)
        await self._store.fork(session_id, new_id, None, self._clock.now_ms())
        return new_id

    # Snapshots

    def snapshot_session(self, session_id: SessionId) -> bytes:
        """The session as signed bytes; of a session that waits, the run that stands at its call."""
        return self.stored_snapshot(self.snapshot(session_id))

    def snapshot(self, session_id: SessionId) -> str:
        """Store a snapshot and return its id."""
        return run_blocking(self._snapshot(session_id))

    async def _snapshot(self, session_id: SessionId) -> str:
        session = await self._known(session_id)
        with session.lock:
            return await self._store_snapshot(session)

    def stored_snapshot(self, name: str) -> bytes:
        """The bytes of a stored snapshot."""
        data = run_blocking(self._store.snapshot(name))
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
        return run_blocking(self._restore(snapshot, session_id))

    def can_restore_snapshot(self, snapshot: bytes) -> bool:
        try:
            self.services.unseal(snapshot)
        except StandfastError:
            return False
        return True

    async def _store_snapshot(self, session: CodeSession) -> str:
        head = session.head
        in_progress = await self._store.open_turn_journal(head.session_id)
        variables = await stored_variables(self._store, head)
        paused = None
        if in_progress is not None and in_progress.record.state is TurnState.WAITING:
            paused = PausedTurn(
                input=in_progress.input,
                journal=list(in_progress.journal),
                blobs=await fetch_blobs(
                    self._store, _entries(journaled_states(head, in_progress.journal).execution)
                ),
            )
        data = self.services.seal(_meta(head, session.settings), session.settings.engine, variables, paused)
        name = snapshot_id(data)
        await self._store.put_snapshot(name, head.session_id, data, self._clock.now_ms())
        return name

    async def _restore(self, snapshot: bytes, session_id: SessionId | None) -> SessionId:
        header, variables, paused = self.services.unseal(snapshot)
        target = session_id or SessionId(header.meta.id)
        engine = self.services.engines.get(header.engine)
        if variables:
            engine.cells.names(variables)  # refuses what it cannot read
        wanted = CodeSettings(language=header.meta.language, engine=header.engine, limits=header.meta.limits)
        session = await self._find(target) or await self._make(target, wanted)
        with session.lock:
            if session.settings.engine != header.engine:
                known = session.settings
                raise InvalidArgument(
                    f"session {target!r} is {known.language} on {known.engine}, and the snapshot "
                    f"{wanted.language} on {wanted.engine}",
                    hint="restore it into another session",
                )
            await self._end_open_turn(session)
            self.services.engines.forget(target)
            session.settings = msgspec.structs.replace(session.settings, limits=wanted.limits)
            await self._describe(session)
            await self._replace_state(session, variables)
            if paused is not None:
                await self._park_again(session, header, paused)
        return target

    async def _park_again(self, session: CodeSession, header: SnapshotHeader, paused: PausedTurn) -> None:
        """Begin a turn that stands where the snapshot's does, and ask for its approvals anew."""
        started = decode_input(paused.input)
        assert isinstance(started, TurnStarted)
        turn_id = f"t_{secrets.token_hex(10)}"
        first = msgspec.structs.replace(started, turn_id=turn_id)
        begun = await self._claim(session, first, RunControl())
        assert isinstance(begun, Begun)
        journal = _without_open_waits(started.turn_id, paused)
        journal = [entry for entry in journal if entry.key != "execution"]
        entry = journaled_states(session.head, paused.journal).execution
        if entry is not None:
            session.executor.restore_execution_state(read_execution(entry, paused.blobs))
            session.executor.rename_suspended(turn_id)
        taken = Takeover(
            lease=begun.lease, head=begun.head, record=begun.record, input=begun.input, journal=tuple(journal)
        )
        await self._store.save(begun.lease, Save(turn_id=turn_id, entries=taken.journal))
        session.state_id = begun.head.state
        await self._drive(session, taken, None, RunControl(), restored=True)

    # Small things

    async def _open(self, session_id: SessionId, language: Language) -> CodeSession:
        """The session, made for *language* if there is none."""
        found = await self._find(session_id)
        return found or await self._make(session_id, self._new_settings(language))

    async def _known(self, session_id: SessionId) -> CodeSession:
        found = await self._find(session_id)
        if found is None:
            raise SessionNotFound(session_id)
        return found

    async def _find(self, session_id: SessionId) -> CodeSession | None:
        session = self._sessions.get(session_id)
        if session is not None and not self._is_past(session.settings):
            return session
        head = await self._store.head(session_id)
        if head is None:
            return None
        if head.code is None:
            raise _not_code(session_id)
        if self._is_past(head.code):
            self._forget(session_id)
            await self._store.delete_session(session_id)
            return None
        return self._keep(head, head.code)

    async def _make(self, session_id: SessionId, settings: CodeSettings) -> CodeSession:
        self.services.engines.get(settings.engine)  # nothing is stored that cannot run here
        now = self._clock.now_ms()
        head = await self._store.open_session(
            SessionHead(
                session_id=session_id,
                created_at=now,
                updated_at=now,
                agent=SANDBOX_AGENT,
                host=dict(self._config.host),
                code=settings,
            )
        )
        if head.code is None:
            raise _not_code(session_id)
        return self._keep(head, head.code)

    def _keep(self, head: SessionHead, settings: CodeSettings) -> CodeSession:
        engine = self.services.engines.get(settings.engine)
        made = CodeSession(head, settings, SandboxExecutor(engine.cells, settings))
        with self._opening:
            return self._sessions.setdefault(head.session_id, made)

    async def _unread(self, session_id: SessionId) -> CodeSession:
        """The session, whether its engine is here or not, and with no look at its variables."""
        head = await self._store.head(session_id)
        if head is None or head.code is None:
            raise SessionNotFound(session_id)
        known = self._sessions.get(session_id)
        if known is not None:
            return known
        absent: Any = None
        return CodeSession(head, head.code, SandboxExecutor(absent, head.code))

    async def _refresh(
        self, session: CodeSession, head: SessionHead, journal: tuple[JournalEntry, ...]
    ) -> None:
        """Have the executor hold the variables that hold at *head*, or in the middle of the turn."""
        session.head = head
        states = journaled_states(head, journal) if journal else None
        if states is None and session.state_id == head.state:
            return
        entry = states.execution if states is not None else None
        if entry is None:
            entry = (await read_state(self._store, head)).execution
        engine = self.services.engines.get(session.settings.engine)
        session.executor = SandboxExecutor(engine.cells, session.settings)
        session.memory = ExecutionMemory(session.executor, "sandbox")
        session.memory.restore(entry, await fetch_blobs(self._store, _entries(entry)))
        session.state_id = head.state

    async def _replace_state(self, session: CodeSession, variables: bytes) -> None:
        session.executor.replace_state(variables)
        changed = session.memory.changed()
        assert changed is not None
        entry, blobs = changed
        record = StateRecord(
            body=encode_state(SessionState(execution=entry)), blobs=tuple(entry.artifacts.values())
        )
        now = self._clock.now_ms()
        session.head = await self._store.set_state(session.head.session_id, record, blobs, now)
        session.state_id = session.head.state

    async def _describe(self, session: CodeSession) -> None:
        """Record the settings of the session, and which tools this process has."""
        await self._store.describe(
            session.head.session_id,
            agent=SANDBOX_AGENT,
            model="",
            host=dict(self._config.host),
            code=session.settings,
        )
        session.head = msgspec.structs.replace(
            session.head, host=dict(self._config.host), code=session.settings
        )

    def _forget(self, session_id: str) -> None:
        """Drop what this process has of a session."""
        self.services.engines.forget(session_id)
        self._sessions.pop(session_id, None)

    def _used(self, session: CodeSession) -> None:
        """Let go of the session that was not used for longest, if there are many."""
        session_id = session.head.session_id
        with self._opening:
            self._sessions[session_id] = session
            self._sessions.move_to_end(session_id)
            if len(self._sessions) <= _CACHED_SESSIONS:
                return
            idle_id, idle = next(iter(self._sessions.items()))
            if idle.lock.acquire(blocking=False):
                del self._sessions[idle_id]
                idle.lock.release()

    def _new_settings(
        self, language: Language, limits: SessionLimits | None = None, ttl_ms: int | None = None
    ) -> CodeSettings:
        language = Language(language)
        return CodeSettings(
            language=language,
            engine=self.services.engine_for(language),
            limits=limits or self._config.limits,
            expires_at=None if ttl_ms is None else self._clock.now_ms() + ttl_ms,
        )

    def _must_fit(self, session: CodeSession, language: Language) -> None:
        """Refuse to run another language, or on another engine, than the session's own."""
        settings = session.settings
        wanted = self.services.asked_engine(language)
        if settings.language == language and wanted in (None, settings.engine):
            return
        asked = language if settings.language != language else f"{language} on {wanted}"
        raise InvalidArgument(
            f"session {session.head.session_id!r} is {settings.language} on {settings.engine}, not {asked}",
            hint="language and engine of a session are fixed; choose another session, or delete this one",
        )

    def _claimant(self, owner: str) -> Claimant:
        return Claimant(
            owner=owner,
            now_ms=self._clock.now_ms(),
            lease_ms=self.services.leases.lease_ms,
            lease_now_ms=self.services.leases.now_ms(),
        )

    def _is_past(self, settings: CodeSettings) -> bool:
        return settings.expires_at is not None and settings.expires_at <= self._clock.now_ms()

    def _validate(self, request: RunRequest) -> RunResult:
        """Check code without running any of it."""
        started = self._clock.monotonic()
        session = run_blocking(self._find(SessionId(request.session_id)))
        limits = request.limits or self._config.limits
        if session is None:
            engine, state = self.services.engines.get(self.services.engine_for(request.language)), b""
        else:
            self._must_fit(session, request.language)
            engine = self.services.engines.get(session.settings.engine)
            state = run_blocking(stored_variables(self._store, session.head))
        diagnostics = check_within(
            request.timeout_ms or limits.wall_ms,
            lambda: engine.cells.check(
                request.code,
                state=state,
                functions=self.services.turns.functions,
                inputs=list(request.inputs),
                check="session",
            ),
        )[:_MAX_DIAGNOSTICS]
        error = next(
            (
                ErrorObject(code=one.code, message=one.message, hint=one.hint, span=one.span)
                for one in diagnostics
                if one.severity is Severity.ERROR
            ),
            None,
        )
        return RunResult(
            status=RunStatus.OK if error is None else RunStatus.VALIDATION_ERROR,
            diagnostics=diagnostics,
            metrics=Metrics(duration_ms=int((self._clock.monotonic() - started) * 1000)),
            error=error,
        )

    def _check_request(self, request: RunRequest) -> None:
        config, code = self._config, request.code
        size = len(code)
        if size <= config.max_code_bytes and not code.isascii():
            try:
                size = len(code.encode())
            except UnicodeEncodeError:
                raise InvalidArgument("the code holds a lone surrogate") from None
        if size > config.max_code_bytes:
            raise RequestTooLarge(f"the code is {size} bytes, the limit is {config.max_code_bytes}")
        if not request.inputs:
            return
        limit = config.max_input_bytes
        try:
            _, size = to_json(request.inputs, limit)
        except ValueTooLarge as error:
            raise RequestTooLarge(f"the inputs are too large: {error.limit}") from None
        if size > limit:
            raise RequestTooLarge(f"the inputs are {size} bytes, the limit is {limit}")


async def stored_variables(store: SessionStore, head: SessionHead) -> bytes:
    """Read the engine's bytes that hold at *head*; none if no variable was ever set."""
    entry = (await read_state(store, head)).execution
    if entry is None:
        return b""
    return variables_in(read_execution(entry, await fetch_blobs(store, [entry])))


class RequestTooLarge(StandfastError):
    """The code or the inputs of a run are larger than the sandbox takes."""

    code = Code.REQUEST_TOO_LARGE


def _result(
    session_id: str,
    limits: SessionLimits,
    report: CellReport,
    records: dict[int, ExternalCallRecord],
    snapshot: str | None,
) -> RunResult:
    """What a caller is told about a run."""
    error = report.error
    diagnostics = [] if error is None else [Diagnostic.error(error)]
    if report.truncated:
        diagnostics.append(
            Diagnostic(
                severity=Severity.WARNING,
                code="OUTPUT_TRUNCATED",
                message=f"output past {limits.max_stdout_bytes} bytes was dropped",
                hint="raise max_stdout_bytes, or print less",
            )
        )
    diagnostics += [Diagnostic(code="ENGINE_NOTE", message=note) for note in report.notes]
    if report.hard:
        diagnostics.append(
            Diagnostic(
                severity=Severity.WARNING,
                code="SESSION_ROLLED_BACK",
                message=f"session {session_id!r} is as it was before this run",
            )
        )
    return RunResult(
        status=RunStatus.OK if error is None else status_of_code(error.code),
        result=report.result,
        stdout=report.stdout,
        stderr=report.stderr,
        diagnostics=diagnostics,
        external_calls=[records[call_id] for call_id in sorted(records) if records[call_id].name != SLEEP],
        snapshot_id=snapshot,
        metrics=Metrics(
            duration_ms=report.duration_ms or 0,
            memory_peak_bytes=report.memory_peak_bytes,
            instructions=report.instructions,
            external_calls_count=report.calls_made,
        ),
        error=error,
    )


def _waiting_error(pending: list[Approval]) -> ErrorObject:
    calls = ", ".join(f"{one.capability}() as {one.approval_id}" for one in pending)
    first = pending[0].approval_id if pending else "ID"
    return ErrorObject(
        code=Code.WAITING_FOR_APPROVAL,
        message=f"the run waits for a person to approve {calls}",
        hint=f"standfast approvals approve {first}, or deny {first} --reason ...",
    )


def _as_of(approval: Approval, now: int) -> Approval:
    """The request as it counts now: past its time it has expired, whether or not that is written yet."""
    if approval.state is ApprovalState.PENDING and now >= approval.expires_at:
        return msgspec.structs.replace(approval, state=ApprovalState.EXPIRED)
    return approval


def _meta(head: SessionHead, settings: CodeSettings) -> SessionMeta:
    return SessionMeta(
        id=head.session_id,
        created_at=head.created_at,
        last_used_at=head.updated_at,
        language=settings.language,
        limits=settings.limits,
    )


def _entries(entry: PluginSnapshotEntry | None) -> list[PluginSnapshotEntry]:
    return [] if entry is None else [entry]


def _without_open_waits(turn_id: str, paused: PausedTurn) -> list[JournalEntry]:
    """The journal of a turn as if it had not asked yet for what it waits for."""
    machine = replay(turn_id, paused.input, tuple(paused.journal)).machine
    open_waits = {wait.wait_id for wait in machine.waits()}
    kept = []
    for entry in paused.journal:
        given = decode_input(entry.body) if entry.kind == "input" else None
        if not isinstance(given, WaitOpened) or given.wait.wait_id not in open_waits:
            kept.append(entry)
    return kept


def _exists(session_id: str) -> InvalidArgument:
    return InvalidArgument(
        f"session {session_id!r} exists already", hint="reset or delete it first, or choose another id"
    )


def _not_code(session_id: str) -> InvalidArgument:
    return InvalidArgument(
        f"session {session_id!r} is an agent's, and a sandbox runs code in sessions without a model",
        hint="choose another session",
    )
