"""The runs of a sandbox, which are turns of sessions without a model.

Theory of operation
-------------------
A run is a turn: one transaction begins it (input, lease) and one ends it (report, variables). It claims its
session, is journaled, waits for approvals and is taken over exactly like an agent's turn.

Rules
-----
1. A session's unfinished turn is resumed first. A turn that waits for a person blocks the session until the
   request is decided or expires, or the turn is cancelled.
2. A restored snapshot requests its approvals again: a decision is valid only for the request it was made on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from standfast.durable.driver import Committed, Driven
from standfast.durable.journal import Backoff, new_owner, retire
from standfast.errors import (
    ApprovalAlreadyDecided,
    Code,
    ErrorObject,
    InvalidArgument,
    RequestTooLarge,
    SessionBusy,
    SessionNotFound,
    SessionWaiting,
    SnapshotRefused,
    StandfastError,
    TurnNotFound,
    TurnUnfinished,
    ValueTooLarge,
)
from standfast.machine.inputs import TurnStarted, decode_input, encode_input
from standfast.model.approval import Approval, ApprovalState, Decision, bind_approval
from standfast.model.canonical import Json, digest_bytes, to_json
from standfast.model.capability import CallStatus, ExternalCallRecord
from standfast.model.code import CellReport, CodeInput, Diagnostic, Language, Severity
from standfast.model.limits import SessionLimits
from standfast.model.outcome import Stopped, Waiting
from standfast.model.run import Metrics, RunRequest, RunResult, RunStatus, status_of_code
from standfast.model.session import SANDBOX_AGENT, CodeSettings, SessionHead, SessionId, TurnRecord, TurnState
from standfast.plugins.stored_states import journaled_states, read_execution
from standfast.ports.code_engine import SLEEP
from standfast.ports.session_store import Begun, NewTurn, QueuedInput, Save, SessionStore, Takeover
from standfast.runtime.code_sessions import (
    CodeSession,
    CodeSessions,
    CodeSnapshots,
    stored_variables,
    without_open_waits,
)
from standfast.runtime.code_turns import CodeTurn, SandboxServices
from standfast.runtime.sessions.approvals import (
    Arguments,
    checked_arguments,
    decide,
    get_approval,
    list_approvals,
)
from standfast.sandbox.engine_kinds import SandboxConfig
from standfast.sandbox.run_errors import cancelled_error, too_slow, under_way_error
from standfast.sandbox.snapshots import PausedTurn
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.settlement import request_digest, settle_failure
from standfast.tools.threads import run_blocking

T = TypeVar("T")

_UNREAD: Final = "unread"
"""A marker for `CodeSession.state_id`: the session's variables have not been read."""
_CLOSE_TIMEOUT_S: Final = 2.0
_MAX_DIAGNOSTICS: Final = 200


class RunControl:
    """A handle with which another thread can cancel a run, even before it begins."""

    cancelled = False
    _turn: CodeTurn | None = None

    def admit(self, turn: CodeTurn) -> None:
        """Attach *turn*, so that `cancel` stops it; if `cancel` was called before, stop it now."""
        self._turn = turn
        if self.cancelled:
            turn.request_cancel()

    def cancel(self) -> None:
        self.cancelled = True
        if (turn := self._turn) is not None:
            turn.request_cancel()


class CodeRuns:
    """The runs of one sandbox. Its coroutines run on a `BlockingLoop`, in any thread."""

    def __init__(self, services: SandboxServices) -> None:
        self.services = services
        self.sessions = CodeSessions(services)
        self.snapshots = CodeSnapshots(services)
        self._store: SessionStore = services.store
        self._clock = services.clock

    def close(self) -> None:
        """End runs and worker processes. Stored data is kept."""
        sessions = self.sessions.all_cached()
        for session in sessions:
            if (current := session.current) is not None:
                current.request_cancel()
        for session in sessions:
            if session.lock.acquire(timeout=_CLOSE_TIMEOUT_S):
                session.lock.release()
        self.services.close()

    def run(self, request: RunRequest, control: RunControl | None = None) -> RunResult:
        """Run code, or only check it, on the calling thread. Failures of any kind are in the result."""
        try:
            code = request.code
            if request.inputs or not code.isascii() or len(code) > self.services.config.max_code_bytes:
                _check_request(request, self.services.config)
            if request.validate_only:
                return run_blocking(self._validate(request))
            return run_blocking(self._run(request, control or RunControl()))
        except StandfastError as error:
            return RunResult.failed(error.error_object())
        except KeyboardInterrupt:  # the run is over, whatever it was doing
            run_blocking(self._cancel_stored(SessionId(request.session_id)))
            raise

    async def _run(self, request: RunRequest, control: RunControl) -> RunResult:
        while True:
            session = self.sessions.cached(request.session_id)
            if session is None or session.settings.expires_at is not None:
                session_id = SessionId(request.session_id)
                session = await self.sessions.find(session_id) or await self.sessions.open(
                    session_id, self.sessions.new_settings(request.language)
                )
            with session.lock:
                try:
                    if session.settings.language != request.language or self.services.engine_names:
                        session.require_fit(request.language)
                    if session.head.host != self.services.config.host:
                        await session.describe()
                    started, key = self._started(session, request), request.idempotency_key
                    return await self._begin(session, started, control, key=key)
                except SessionNotFound:  # another process has deleted the session
                    self.sessions.forget(request.session_id)

    def _started(self, session: CodeSession, request: RunRequest) -> TurnStarted:
        """Return the first input of a run."""
        limits = request.limits or session.settings.limits
        if request.timeout_ms is not None:
            limits = msgspec.structs.replace(limits, wall_ms=request.timeout_ms)
        random = os.urandom(22).hex()
        return TurnStarted(
            at_ms=self._clock.now_ms(),
            turn_id=f"t_{random[:20]}",
            code=CodeInput(
                code=request.code, limits=limits, inputs=request.inputs, snapshot=request.return_snapshot
            ),
            nonce=random[20:],
        )

    async def _begin(
        self,
        session: CodeSession,
        started: TurnStarted,
        control: RunControl,
        *,
        key: str | None = None,
        paused: PausedTurn | None = None,
    ) -> RunResult:
        """Begin a turn once the session is free, and drive it; if *paused* is given, from its point of pause.

        If an earlier turn has the same idempotency *key*, return that turn's result.
        """
        session_id, leases = session.head.session_id, self.services.leases

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
        if self.services.keeps_journals:
            await self.services.drop_journals()
        owner = new_owner(self.services.settings.epoch)
        try:
            try:
                begun = await leases.begin(
                    new,
                    owner,
                    None,
                    lambda: control.cancelled,
                    lambda turn_id: self._take_up(session, turn_id, control),
                )
            except TurnUnfinished as unfinished:
                if session.state_id != session.head.state:
                    await session.refresh(())  # raises if another engine build wrote the state
                waiting = await self._pending(unfinished.turn_id)
                raise SessionWaiting(session_id, [one.approval_id for one in waiting]) from None
            if begun is None:
                return RunResult.failed(cancelled_error())
            if isinstance(begun, Begun):
                if paused is None:
                    return await self._drive(session, begun, started, control)
                parked = await self._parked(session, begun, paused)
                return await self._drive(session, parked, None, control, restored=True)
        finally:
            retire(owner)
        return await self._repeat(session, begun.record, control)

    async def _repeat(self, session: CodeSession, record: TurnRecord, control: RunControl) -> RunResult:
        """Return the result of the earlier turn for a repeated request; wait if it is still running."""
        backoff = Backoff(math.inf)
        while record.state is TurnState.RUNNING:
            with contextlib.suppress(SessionBusy, TurnNotFound):  # its owner is alive, or it has just ended
                return await self._take_up(session, record.turn_id, control)
            if control.cancelled:
                return RunResult.failed(cancelled_error())
            await backoff.pause()
            found = await self._store.turn(record.turn_id)
            if found is None:
                raise TurnNotFound(record.turn_id)
            record = found
        if record.state is TurnState.WAITING:
            return await self._continue(session, record, control)
        return await self._stored_result(session, record)

    async def _stored_result(self, session: CodeSession, record: TurnRecord) -> RunResult:
        """Rebuild the result of a turn that has ended from the session's history."""
        from standfast.protocols.code.values import cells_of  # few runs are repeated
        from standfast.runtime.sessions.observation import messages_of_turn

        summary, session_id = record.summary, session.head.session_id
        assert summary is not None
        cell = next(iter(cells_of(await messages_of_turn(self._store, record))), None)
        report = None if cell is None else cell.report
        if cell is not None and cell.whole is not None and (data := await self._store.blob(cell.whole)):
            report = msgspec.json.decode(data, type=CellReport)
        if report is None:
            error = None if cell is None else cell.error
            if isinstance(summary.outcome, Stopped):
                error = summary.outcome.error
            report = CellReport(index=0, error=error, hard=isinstance(summary.outcome, Stopped))
        records = dict(enumerate(summary.calls))
        return _result(session_id, session.settings.limits, report, records, None)

    async def _take_up(
        self, session: CodeSession, turn_id: str, control: RunControl, *, abandoned: bool = False
    ) -> RunResult:
        """Take over an unfinished turn and drive it; if *abandoned*, only cancel it."""
        leases = self.services.leases
        with leases.owner() as owner:
            taken = await self._store.take_over(turn_id, leases.claimant(owner))
            return await self._drive(session, taken, None, control, abandoned=abandoned)

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
        """Drive a turn until it ends or waits. On an error it stays unfinished and can be resumed.

        If *abandoned*, only cancel it. If *restored* from a snapshot, its variables are already loaded.
        """
        leases = self.services.leases
        turn: CodeTurn | None = None
        try:
            taken = begun if type(begun) is Takeover else None
            if not abandoned and not restored:
                session.head = begun.head
                journal = () if taken is None else taken.journal
                if journal or session.state_id != begun.head.state:
                    await session.refresh(journal)
            turn = session.current = CodeTurn(self.services, begun, started, session.memory)
            control.admit(turn)
            leases.hold(turn)
            commands = turn.first
            if taken is not None:
                ended = await self._store.ended_waits(turn.turn_id, self._clock.now_ms())
                cancelled = abandoned or taken.record.cancel_requested or control.cancelled
                commands = turn.driver.resume(ended, cancelled=cancelled)
            driven = await turn.drive(commands)
        except BaseException as error:
            self.sessions.forget(session.head.session_id)
            await leases.give_back(begun.lease, error)
            raise
        finally:
            session.current = None
            if turn is not None:
                leases.let_go(turn)
        result = await self._conclude(session, turn, driven)
        if abandoned:
            session.state_id = _UNREAD
        return result

    async def _conclude(self, session: CodeSession, turn: CodeTurn, driven: Driven) -> RunResult:
        """Return the result of a turn that has ended or waits."""
        machine, executor = turn.machine, session.memory.executor
        outcome, session_id, name = driven.summary.outcome, session.head.session_id, None
        records, code = machine.calls.records_by_call(), machine.code
        assert code is not None
        if isinstance(driven, Committed):
            session.head, session.state_id = driven.head, driven.head.state
            if self.sessions.latest is not session:
                self.sessions.used(session)
            report = executor.report
            if report is None:  # the cell has not ended
                stopped = isinstance(outcome, Stopped)
                error = outcome.error if isinstance(outcome, Stopped) else None
                report = CellReport(
                    index=0, error=error or getattr(machine.messages[-1], "error", None), hard=stopped
                )
            for call in machine.calls.given_up:
                tool = self.services.registry.get(call.name)
                if tool is not None:
                    digest = request_digest(call.name, list(call.args), call.arguments or {})
                    records[call.call_id] = settle_failure(tool, digest, under_way_error(call.name)).record
            if code.snapshot and report.error is None:
                name = await self.snapshots.save(session)
            return _result(session_id, code.limits, report, records, name)
        assert isinstance(outcome, Waiting)
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
        report = executor.parked_report(_waiting_error(pending))
        return _result(session_id, code.limits, report, records, await self.snapshots.save(session))

    async def resume(self, session_id: SessionId, control: RunControl) -> RunResult:
        """Continue the session's waiting run as far as decisions allow."""
        session = await self.sessions.get(session_id)
        with session.lock:
            record = await self._store.open_turn(session_id)
            if record is None:
                raise InvalidArgument(f"session {session_id!r} has no waiting run")
            return await self._continue(session, record, control)

    async def _continue(self, session: CodeSession, record: TurnRecord, control: RunControl) -> RunResult:
        """Continue an unfinished turn; if it is still waiting, return a result that says for what."""
        waits = record.state is TurnState.WAITING
        if waits and not await self.services.leases.can_continue(record.turn_id):
            return RunResult.failed(_waiting_error(await self._pending(record.turn_id)))
        return await self._take_up(session, record.turn_id, control)

    async def recover(self, session_id: str | None = None) -> dict[str, RunResult]:
        """Continue turns of dead processes and those whose waits have ended; return results by session."""
        results = {}
        for record in await self._unfinished():
            if record.agent != SANDBOX_AGENT or session_id not in (None, record.session_id):
                continue
            session = await self.sessions.get(record.session_id)
            with session.lock, contextlib.suppress(SessionBusy, TurnNotFound):  # another process was faster
                results[record.session_id] = await self._take_up(session, record.turn_id, RunControl())
        return results

    async def _unfinished(self) -> list[TurnRecord]:
        lease_now = self.services.leases.now_ms()
        return await self._store.unfinished(self._clock.now_ms(), lease_now_ms=lease_now)

    async def cancel(self, session_id: SessionId) -> bool:
        """Cancel the session's running or waiting run; return False if there is none."""
        session = self.sessions.cached(session_id)
        if session is not None and (current := session.current) is not None:
            current.request_cancel()
            return True
        return await self._cancel_stored(session_id)

    async def _cancel_stored(self, session_id: SessionId) -> bool:
        record = await self._store.open_turn(session_id)
        if record is None or not await self._store.cancel(record.turn_id):
            return False
        session = await self.sessions.get(session_id)
        with session.lock:
            await self._end_open_turn(session)
        return True

    async def _end_open_turn(self, session: CodeSession) -> None:
        """Cancel the unfinished turn, if there is one, without running any more of its code."""
        record = await self._store.open_turn(session.head.session_id)
        if record is not None:
            with contextlib.suppress(TurnNotFound):
                await self._take_up(session, record.turn_id, RunControl(), abandoned=True)

    async def reset(self, session_id: SessionId) -> None:
        """Delete a session's variables and its waiting run, but keep its limits."""
        session = await self.sessions.get_unread(session_id)
        with session.lock:
            await self._end_open_turn(session)
            await session.replace_variables(b"")
            self.sessions.forget(session_id)  # the cached executor may lack its engine

    async def approvals(self, *, session: str | None = None, pending: bool = False) -> list[Approval]:
        """Return the requests, oldest first; with *pending*, those that can still be decided."""
        return await list_approvals(self._store, self._clock.now_ms(), session=session, pending=pending)

    async def approval(self, approval_id: str) -> Approval:
        return await get_approval(self._store, self._clock.now_ms(), approval_id)

    async def approval_host(self, approval_id: str) -> dict[str, Json]:
        """Return the description of the process that made the request."""
        head = await self._store.head((await self.approval(approval_id)).session_id)
        return {} if head is None else head.host

    async def decide(self, approval_id: str, decision: Decision, control: RunControl) -> RunResult:
        """Decide a request, once, and continue its run."""
        now, approval = self._clock.now_ms(), await self.approval(approval_id)
        session = await self.sessions.get(approval.session_id)
        with session.lock:
            if decision.approved and approval.state is ApprovalState.PENDING:
                _check_contract(self.services.registry.get(approval.capability), approval)
            decided: ApprovalAlreadyDecided | None = None
            try:
                await decide(self._store, now, approval, decision, self._edited)
            except ApprovalAlreadyDecided as error:  # the deciding process may have died before it resumed
                left = any(record.turn_id == approval.run_id for record in await self._unfinished())
                if approval.decided_at is None or not left:
                    raise
                decided = error
            record = await self._store.open_turn(approval.session_id)
            if record is None or record.turn_id != approval.run_id:
                raise decided or ApprovalAlreadyDecided(approval_id, ApprovalState.CANCELLED)
            try:
                return await self._continue(session, record, control)
            except (SessionBusy, TurnNotFound):  # another process has resumed the turn
                if decided is not None:
                    raise decided from None
                resumed = await self._store.turn(record.turn_id)
                if resumed is None:
                    raise
                return await self._repeat(session, resumed, control)

    async def _edited(self, approval: Approval, decision: Decision) -> Arguments:
        args = approval.args if decision.args is None else decision.args
        kwargs = approval.kwargs if decision.kwargs is None else decision.kwargs
        services = self.services
        tool = services.registry.require(approval.capability)
        return await checked_arguments(tool, approval, (args, kwargs), services.dispatcher, services.threads)

    async def _pending(self, turn_id: str) -> list[Approval]:
        return await list_approvals(self._store, self._clock.now_ms(), turn=turn_id, pending=True)

    async def snapshot(self, session_id: SessionId) -> str:
        """Store a snapshot of a session and return its id."""
        session = await self.sessions.get(session_id)
        with session.lock:
            return await self.snapshots.save(session)

    async def export_snapshot(self, session_or_id: str) -> bytes:
        """Return the bytes of a stored snapshot (`snap_…`), or of a session's current state."""
        stored = session_or_id.startswith("snap_")
        name = session_or_id if stored else await self.snapshot(SessionId(session_or_id))
        return await self.snapshots.read(name)

    async def restore(self, snapshot: str | bytes, session_id: str | None = None) -> SessionId:
        """Restore a snapshot, given by id or as bytes, into its own session or another.

        A waiting run in it requests its approvals again.
        """
        header, variables, paused = self.snapshots.open(await self.snapshots.read(snapshot))
        target = SessionId(header.meta.id if session_id is None else session_id)
        if variables:
            self.services.engines.get(header.engine).cells.names(variables)  # raises if it cannot read them
        wanted = CodeSettings(language=header.meta.language, engine=header.engine, limits=header.meta.limits)
        session = await self.sessions.open(target, wanted)
        with session.lock:
            known = session.settings
            if known.engine != header.engine:
                raise InvalidArgument(
                    f"session {target!r} runs {known.language} on {known.engine}, but the snapshot is of "
                    f"{wanted.language} on {wanted.engine}",
                    hint="restore it into another session",
                )
            await self._end_open_turn(session)
            self.services.engines.forget(target)
            session.settings = msgspec.structs.replace(known, limits=wanted.limits)
            await session.describe()
            await session.replace_variables(variables)
            if paused is not None:
                first = decode_input(paused.input)
                assert isinstance(first, TurnStarted)
                again = msgspec.structs.replace(first, turn_id=f"t_{os.urandom(10).hex()}")
                await self._begin(session, again, RunControl(), paused=paused)
        return target

    async def _parked(self, session: CodeSession, begun: Begun, paused: PausedTurn) -> Takeover:
        """Copy the journal of the *paused* turn, up to the calls it waits for, to a turn that has begun."""
        first, turn_id = decode_input(paused.input), begun.record.turn_id
        assert isinstance(first, TurnStarted)
        entry = journaled_states(session.head, paused.journal).execution
        if entry is not None:
            session.memory.executor.restore_execution_state(read_execution(entry, paused.blobs))
            session.memory.executor.rename_suspended(turn_id)
        journal = without_open_waits(first.turn_id, paused)
        await self._store.save(begun.lease, Save(turn_id=turn_id, entries=journal))
        session.state_id = begun.head.state
        return Takeover(
            lease=begun.lease, head=begun.head, record=begun.record, input=begun.input, journal=journal
        )

    async def _validate(self, request: RunRequest) -> RunResult:
        """Check code without running any of it."""
        started = self._clock.monotonic()
        session = await self.sessions.find(SessionId(request.session_id))
        limits = request.limits or self.services.config.limits
        state, engine = b"", self.services.engine_for(request.language)
        if session is not None:
            session.require_fit(request.language)
            state, engine = await stored_variables(self._store, session.head), session.settings.engine
        cells = self.services.engines.get(engine).cells
        diagnostics = _check_within(
            request.timeout_ms or limits.wall_ms,
            lambda: cells.check(
                request.code,
                state=state,
                functions=self.services.functions,
                inputs=list(request.inputs),
                check="session",
            ),
        )[:_MAX_DIAGNOSTICS]
        first = next((one for one in diagnostics if one.severity is Severity.ERROR), None)
        error = None
        if first is not None:
            error = ErrorObject(code=first.code, message=first.message, hint=first.hint, span=first.span)
        return RunResult(
            status=RunStatus.OK if error is None else RunStatus.VALIDATION_ERROR,
            diagnostics=diagnostics,
            metrics=Metrics(duration_ms=int((self._clock.monotonic() - started) * 1000)),
            error=error,
        )


def _check_request(request: RunRequest, config: SandboxConfig) -> None:
    """Raise if the code or the inputs are too large."""
    code, size = request.code, len(request.code)
    if size <= config.max_code_bytes and not code.isascii():
        try:
            size = len(code.encode())
        except UnicodeEncodeError:
            raise InvalidArgument("the code contains a lone surrogate") from None
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


def _check_contract(tool: RegisteredTool | None, approval: Approval) -> None:
    """Raise if the tool's contract has changed since the request, before the decision is stored."""
    if tool is None or approval.binding != bind_approval(approval, tool.digest):
        raise SnapshotRefused(
            Code.SNAPSHOT_CAPABILITY_MISMATCH,
            f"{approval.capability}() is not registered with the contract that the approval is for",
            hint="register the tools the run was started with (on the command line: --tools, --mount, "
            "--allow-host)",
        )


def _check_within(timeout_ms: int, check: Callable[[], list[Diagnostic]]) -> list[Diagnostic]:
    """Call *check* on a thread and return its findings; raise, and abandon the thread, if it times out."""
    answer: queue.SimpleQueue[list[Diagnostic] | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(check())
        except Exception as error:
            answer.put(error)

    threading.Thread(target=work, name="standfast-check", daemon=True).start()
    try:
        found = answer.get(timeout=timeout_ms / 1000)
    except queue.Empty:
        raise too_slow(timeout_ms) from None
    if isinstance(found, Exception):
        raise found
    return found


def _result(
    session_id: str,
    limits: SessionLimits,
    report: CellReport,
    records: dict[int, ExternalCallRecord],
    snapshot: str | None,
) -> RunResult:
    """Return the result of a run whose cell has this *report*."""
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
    if report.notes:
        diagnostics += [Diagnostic(code="ENGINE_NOTE", message=note) for note in report.notes]
    if report.hard:
        diagnostics.append(
            Diagnostic(
                severity=Severity.WARNING,
                code="SESSION_ROLLED_BACK",
                message=f"session {session_id!r} has the state it had before this run",
            )
        )
    calls = [] if not records else [one for _, one in sorted(records.items()) if one.name != SLEEP]
    return RunResult(
        status=RunStatus.OK if error is None else status_of_code(error.code),
        result=report.result,
        stdout=report.stdout,
        stderr=report.stderr,
        diagnostics=diagnostics,
        external_calls=calls,
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


class CodeRuntime:
    """The seed's `LanguageRuntime` over `CodeRuns`, on threads. A cancelled await cancels its run."""

    def __init__(self, runs: CodeRuns, language: Language = Language.PYTHON) -> None:
        self.runs = runs
        self.language = language
        self._sessions = runs.sessions
        self._threads = runs.services.jobs

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of `runs` on a thread and await its result."""
        return await self._threads.run(lambda: run_blocking(work))

    async def _controlled(self, work: Callable[[RunControl], RunResult]) -> RunResult:
        control = RunControl()
        try:
            return await self._threads.run(lambda: work(control))
        except asyncio.CancelledError:
            control.cancel()
            raise

    async def run(self, request: RunRequest) -> RunResult:
        return await self._controlled(lambda control: self.runs.run(request, control))

    async def resume(self, session_id: SessionId) -> RunResult:
        return await self._controlled(lambda control: run_blocking(self.runs.resume(session_id, control)))

    async def decide(self, approval_id: str, decision: Decision) -> RunResult:
        return await self._controlled(
            lambda control: run_blocking(self.runs.decide(approval_id, decision, control))
        )

    async def cancel(self, session_id: SessionId) -> bool:
        return await self.do(self.runs.cancel(session_id))

    async def create_session(self, session_id: SessionId, limits: SessionLimits | None = None) -> None:
        await self.do(self._sessions.create(session_id, self._sessions.new_settings(self.language, limits)))

    async def fork_session(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        return await self.do(self._sessions.fork(session_id, new_id))

    async def destroy_session(self, session_id: SessionId) -> bool:
        return await self.do(self._sessions.destroy(session_id))

    async def list_sessions(self) -> list[SessionId]:
        return [SessionId(info.meta.id) for info in await self.do(self._sessions.infos())]

    async def snapshot_session(self, session_id: SessionId) -> bytes:
        return await self.do(self.runs.export_snapshot(session_id))

    async def restore_session(self, snapshot: bytes, session_id: SessionId | None = None) -> SessionId:
        return await self.do(self.runs.restore(snapshot, session_id))

    def can_restore_snapshot(self, snapshot: bytes) -> bool:
        return self.runs.snapshots.can_open(snapshot)

    async def close(self) -> None:
        await self._threads.run(self.runs.close)
