"""Python sessions on the Monty engine, with approvals and snapshots over a store.

Theory of operation
-------------------
A session is a `LiveSession` here and a `StoredSession` in the store; the epoch tells whether the two agree. A run
holds the session (a lock in this process, `store.hold` against others), is driven by `MontyRun`, and is concluded
on the engine's thread: result, new state, one write. A run that needs a person is parked instead: the engine's
state, signed, together with its approval requests, in one write. A decision loads it again, anywhere.

Rules
-----
1. The stored state changes only when a run has ended; until then it is the state before the run.
2. A waiting run is continued by the process that claimed it. Its decisions were made by compare-and-set before.
3. A restored snapshot asks again: decisions belong to the approvals they were made for.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Literal

import msgspec

from holdfast.errors import (
    ApprovalAlreadyDecided,
    ApprovalNotFound,
    Code,
    ErrorObject,
    HoldfastError,
    InvalidArgument,
    SessionNotFound,
    SessionWaiting,
)
from holdfast.model.approval import Approval, ApprovalState, Decision
from holdfast.model.call import SettledCall
from holdfast.model.canonical import Json, digest_json, to_json
from holdfast.model.diagnostic import Diagnostic, Severity
from holdfast.model.ids import SessionId
from holdfast.model.language import Language
from holdfast.model.limits import SessionLimits
from holdfast.model.run import Metrics, RunRequest, RunResult, RunStatus, status_of_code
from holdfast.model.session import SessionInfo, SessionMeta
from holdfast.ports.journal import PendingCall
from holdfast.ports.sandbox_store import SandboxStore, StoredSession, WaitingRun
from holdfast.sandbox.config import SandboxConfig
from holdfast.sandbox.live import LiveSession
from holdfast.sandbox.monty.conclude import (
    find_stand_in,
    left_unchanged,
    settle_names,
    state_after,
    value_as_json,
)
from holdfast.sandbox.monty.failures import Failure
from holdfast.sandbox.monty.program import read_program
from holdfast.sandbox.monty.rules import RuleEvaluator
from holdfast.sandbox.monty.run import Finished, MontyRun, Parked, RunHost, RunPlan, cancelled_error
from holdfast.sandbox.monty.state import (
    ENGINE,
    ENGINE_VERSION,
    EngineState,
    PausedState,
    decode_paused,
    encode_paused,
)
from holdfast.sandbox.monty.validate import Validator, as_error
from holdfast.sandbox.monty.workers import Worker, Workers
from holdfast.sandbox.snapshots import (
    SnapshotCodec,
    SnapshotHeader,
    check_capabilities,
    check_engine,
    snapshot_id,
)
from holdfast.tools.dispatch import Dispatcher, request_digest
from holdfast.tools.registry import ToolRegistry
from holdfast.tools.threads import DaemonThreads

ALWAYS_THERE = frozenset({"list_tools", "describe_tool", "current_policy"})
"""Capabilities of every sandbox; snapshots do not depend on them."""

_LEFT_BEHIND_MS = 10_000
"""A decided run that nobody took up for this long may be taken up by whoever asks."""


class PythonRuntime:
    """The `LanguageRuntime` of Python. Use it on one event loop."""

    language = Language.PYTHON

    def __init__(self, registry: ToolRegistry, store: SandboxStore, config: SandboxConfig) -> None:
        self.registry = registry
        self.config = config
        self._store = store
        self._clock = config.clock
        self._threads = DaemonThreads("holdfast-sandbox")
        self._workers = Workers(config.workers, self._threads)
        self._codec = SnapshotCodec(config.snapshot_key)
        self._validator = Validator(self._workers, registry)
        self._live: dict[str, LiveSession] = {}
        self.dispatcher = Dispatcher(
            registry,
            threads=self._threads,
            clock=self._clock,
            evaluate_rule=RuleEvaluator(self._workers, self._threads),
        )

    async def close(self) -> None:
        """End runs and worker processes. What is stored stays."""
        for live in self._live.values():
            if live.current is not None:
                live.current.stop(cancelled_error())
        for live in self._live.values():
            async with live.lock:
                pass
        await self._threads.run(self._workers.close)
        await self._threads.run(self._store.close)
        self._threads.close()

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────

    async def run(self, request: RunRequest) -> RunResult:
        """Run code, or only check it. Failures of any kind are in the result."""
        try:
            self._check_request(request)
            if request.validate_only:
                return await self._validate(request)
            return await self._run(request)
        except HoldfastError as error:
            return RunResult.failed(error.error_object())

    async def resume(self, session_id: SessionId) -> RunResult:
        """Continue the session's waiting run as far as decisions allow."""
        async with self._entered(session_id) as live:
            run = await self._threads.run(lambda: self._store.waiting_run(session_id))
            if run is None:
                raise InvalidArgument(f"session {session_id!r} has no run that waits")
            return await self._resume(live, run)

    async def cancel(self, session_id: SessionId) -> bool:
        """End the session's run, running or waiting; false if there is none."""
        live = self._live.get(session_id)
        if live is not None and live.current is not None:
            live.current.stop(cancelled_error())
            return True
        run = await self._threads.run(lambda: self._store.waiting_run(session_id))
        return run is not None and await self._threads.run(lambda: self._store.drop_run(run.run_id))

    async def _run(self, request: RunRequest) -> RunResult:
        live = await self._open(SessionId(request.session_id))
        async with live.lock:
            while True:
                try:
                    return await self._run_once(live, request)
                except _Changed:
                    continue
                except SessionWaiting as waiting:
                    if not await self._settle_expired(live, waiting):
                        raise

    async def _run_once(self, live: LiveSession, request: RunRequest) -> RunResult:
        plan = self._plan(live, request)
        hold = self._store.hold(plan.session_id)
        entered = False

        def begin() -> Worker:
            nonlocal entered
            hold.__enter__()
            entered = True
            self._must_be_current(live)
            self._must_not_wait(plan.session_id)
            worker[0] = self._ready_worker(worker[0], live, plan.limits)
            return worker[0]

        worker = [await self._workers.take(plan.session_id)]
        run = MontyRun(plan, self._run_host(live, plan))
        try:
            return await self._drive(live, run, lambda: run.drive(begin), worker)
        finally:
            if entered:
                hold.__exit__(None, None, None)

    async def _drive(
        self, live: LiveSession, run: MontyRun, start: Callable[[], object], worker: list[Worker | None]
    ) -> RunResult:
        """Drive a run and see to its worker, whatever happens."""
        live.current = run
        try:
            result = await start()  # type: ignore[misc]
        except BaseException:
            live.current = None
            self._workers.give_back(worker[0])
            raise
        live.current = None
        held = worker[0]
        if held is not None and held.version is live.version:
            self._workers.keep(run.plan.session_id, held)
        else:
            self._workers.give_back(held)
        return result  # type: ignore[no-any-return]

    def _plan(self, live: LiveSession, request: RunRequest) -> RunPlan:
        state = live.state
        limits = request.limits or live.meta.limits
        if request.timeout_ms is not None:
            limits = msgspec.structs.replace(limits, wall_ms=request.timeout_ms)
        return RunPlan(
            run_id=f"run_{secrets.token_hex(12)}",
            session_id=request.session_id,
            program=read_program(request.code, result_may_be_bound=bool(state and state.result_later)),
            limits=limits,
            inputs=request.inputs,
            names=live.names,
            sites=state.sites if state else {},
            next_input=state.next_input if state else 0,
            return_snapshot=request.return_snapshot,
        )

    def _run_host(self, live: LiveSession, plan: RunPlan) -> RunHost:
        return RunHost(
            dispatcher=self.dispatcher,
            threads=self._threads,
            clock=self._clock,
            journal=_Journal(self._store, plan.run_id) if self._store.durable else None,
            conclude=lambda run, worker, outcome: self._conclude(live, run, worker, outcome),
            park=lambda run, parked: self._park(live, run, parked),
        )

    def _check_request(self, request: RunRequest) -> None:
        if request.language is not Language.PYTHON:
            raise InvalidArgument(f"this sandbox runs Python, not {request.language}")
        size = len(request.code.encode("utf-8", "surrogatepass"))
        if size > self.config.max_code_bytes:
            raise _TooLarge(f"the code is {size} bytes, the limit is {self.config.max_code_bytes}")
        try:
            request.code.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("the code holds a lone surrogate") from None
        to_json(request.inputs)

    async def _validate(self, request: RunRequest) -> RunResult:
        started = self._clock.monotonic()
        live = await self._open(SessionId(request.session_id), create=False)
        names = [*(live.names if live else ()), *request.inputs]
        diagnostics = await self._threads.run(lambda: self._validator.check(request.code, names))
        error = as_error(diagnostics)
        return RunResult(
            status=RunStatus.OK if error is None else RunStatus.VALIDATION_ERROR,
            diagnostics=diagnostics,
            metrics=Metrics(duration_ms=int((self._clock.monotonic() - started) * 1000)),
            error=error,
        )

    # ── on a thread, inside a run ────────────────────────────────────────────────────────────────

    def _must_be_current(self, live: LiveSession) -> None:
        """Another process may have run the session since: then take its state over and plan anew."""
        if not self._store.durable:
            return
        epoch = self._store.session_epoch(live.meta.id)
        if epoch == live.epoch:
            return
        stored = self._store.load_session(live.meta.id)
        if stored is None:  # destroyed elsewhere
            live.epoch = 0
            live.replace_state(None)
            self._save(live)
        else:
            live.adopt(stored)
        raise _Changed

    def _must_not_wait(self, session_id: str) -> None:
        run = self._store.waiting_run(session_id)
        if run is not None:
            approvals = self._store.approvals(run_id=run.run_id)
            raise SessionWaiting(session_id, [item.approval_id for item in approvals if _is_open(item)])

    def _ready_worker(self, worker: Worker | None, live: LiveSession, limits: SessionLimits) -> Worker:
        """The worker with the session loaded under these limits."""
        wanted = msgspec.structs.replace(limits, wall_ms=1, max_stdout_bytes=0, max_external_calls=0)
        if worker is not None:
            with worker.busy:
                usable = worker.version is live.version and worker.limits == wanted
            if usable:
                return worker
            worker.close()
        return self._workers.attach(live.state, wanted)

    def _conclude(
        self, live: LiveSession, run: MontyRun, worker: Worker | None, outcome: Finished | Failure
    ) -> RunResult:
        """Make the result of a run that has ended and store what it left."""
        hard = isinstance(outcome, Failure) and outcome.hard
        if worker is None or hard or left_unchanged(outcome):
            if worker is not None:
                worker.version = None  # what it holds is not the session any more
            self._end_waiting(live, run)
            return self._result(run, None, outcome if isinstance(outcome, Failure) else None)
        try:
            raw = settle_names(run, worker, outcome)
        except Exception as error:
            worker.version = None
            lost = ErrorObject(code=Code.INTERRUPTED, message=f"the run could not be completed: {error}")
            self._end_waiting(live, run)
            return self._result(run, None, Failure(lost, hard=True))
        value, failure = value_as_json(raw)
        if isinstance(outcome, Failure):
            value, failure = None, outcome
        if (
            self._store.durable
            or run.plan.return_snapshot
            or (value is not None
            and not isinstance(value, (int, float)))
        ):
            value, failure, snapshot = self._take_state(live, run, worker, value, failure)
            return self._result(run, value, failure, snapshot)
        worker.busy.acquire()
        live.version = worker.version = object()
        self._save_meta(live, run)
        self._threads.defer(lambda: self._take_state_later(live, run, worker))
        return self._result(run, value, failure)

    def _take_state(
        self, live: LiveSession, run: MontyRun, worker: Worker, value: Json, failure: Failure | None
    ) -> tuple[Json, Failure | None, str | None]:
        """Dump the session, look through its result, and store both."""
        state, compacted = state_after(run.plan, live.state, worker)
        functions = {*self.registry.names(), *state.names}
        if failure is None and (foreign := find_stand_in(value, run.plan, functions, state, self._workers)):
            value, failure = None, Failure(_not_serializable(foreign))
        live.replace_state(state)
        if not compacted:
            worker.version = live.version
        self._save(live, finished_run=run.plan.run_id)
        snapshot = self._store_snapshot(live) if run.plan.return_snapshot and failure is None else None
        return value, failure, snapshot

    def _take_state_later(self, live: LiveSession, run: MontyRun, worker: Worker) -> None:
        """Dump a session of the memory store after its result was handed over. The worker is held busy."""
        try:
            state, compacted = state_after(run.plan, live.state, worker)
            version = live.version
            live.replace_state(state)
            live.version = object() if compacted else version
        except Exception:
            live.version = object()  # the worker died meanwhile: the session stays at its last dump
        finally:
            worker.busy.release()

    def _result(
        self, run: MontyRun, value: Json, failure: Failure | None, snapshot: str | None = None
    ) -> RunResult:
        diagnostics = [Diagnostic.error(failure.error)] if failure else []
        if run.output.truncated:
            diagnostics.append(_truncated(run.plan.limits))
        if failure and failure.hard:
            diagnostics.append(_rolled_back(run.plan.session_id))
        return RunResult(
            status=status_of_code(failure.error.code) if failure else RunStatus.OK,
            result=value,
            stdout=run.output.stdout,
            stderr=run.output.stderr,
            diagnostics=diagnostics,
            external_calls=[run.records[call_id] for call_id in sorted(run.records)],
            snapshot_id=snapshot,
            metrics=Metrics(
                duration_ms=run.duration_ms(),
                memory_peak_bytes=run.memory_peak,
                external_calls_count=run.calls_made,
            ),
            error=failure.error if failure else None,
        )

    def _end_waiting(self, live: LiveSession, run: MontyRun) -> None:
        """A run that had been parked has ended without changing the session."""
        if run.plan.paused is not None or (self._store.durable and run.records):
            self._save_meta(live, run)

    def _park(self, live: LiveSession, run: MontyRun, parked: Parked) -> RunResult:
        """Store a run that waits for a person."""
        now = self._clock.now_ms()
        pending, approvals = self._ask(parked.paused.pending, run.plan.run_id, run.plan.session_id, now)
        paused = msgspec.structs.replace(parked.paused, pending=pending)
        state = PausedState(before=live.state, dump=parked.dump)
        data = self._codec.seal(self._header(live.meta, paused), encode_paused(state))
        name = snapshot_id(data)
        waiting = WaitingRun(
            run_id=run.plan.run_id,
            session_id=run.plan.session_id,
            snapshot_id=name,
            created_at=now,
            host=self.config.host,
        )
        self._store.park(waiting, data, approvals)
        error = _waiting_error(pending)
        return msgspec.structs.replace(self._result(run, None, Failure(error)), snapshot_id=name)

    def _ask(
        self, pending: list[PendingCall], run_id: str, session_id: str, now: int
    ) -> tuple[list[PendingCall], list[Approval]]:
        """Make approval requests for the calls that have none yet."""
        asked: list[PendingCall] = []
        approvals: list[Approval] = []
        for call in pending:
            if not call.approval_id:
                call = msgspec.structs.replace(call, approval_id=f"apr_{secrets.token_hex(10)}")
                approvals.append(
                    Approval(
                        approval_id=call.approval_id,
                        state=ApprovalState.PENDING,
                        session_id=session_id,
                        capability=call.name,
                        args=call.args,
                        kwargs=call.kwargs,
                        requested_at=now,
                        expires_at=now + self.config.approval_ttl_ms,
                        binding=_binding(call, session_id, run_id),
                        run_id=run_id,
                        call_id=call.call_id,
                    )
                )
            asked.append(call)
        return asked, approvals

    # ── approvals ────────────────────────────────────────────────────────────────────────────────

    async def approvals(self, session_id: str | None = None) -> list[Approval]:
        """All approval requests, oldest first; those past their time are marked expired."""
        listed = await self._threads.run(lambda: self._store.approvals(session_id=session_id))
        now = self._clock.now_ms()
        return [_as_of(item, now) for item in listed]

    async def approval(self, approval_id: str) -> Approval:
        found = await self._threads.run(lambda: self._store.approval(approval_id))
        if found is None:
            raise ApprovalNotFound(approval_id)
        return _as_of(found, self._clock.now_ms())

    async def host_of(self, approval_id: str) -> dict[str, Json]:
        """What the process that asked had for tools, so that another can be set up alike."""
        approval = await self.approval(approval_id)
        run = await self._threads.run(lambda: self._store.get_run(approval.run_id))
        return run.host if run is not None else {}

    async def decide(self, approval_id: str, decision: Decision) -> RunResult:
        """Decide a request once and continue its run."""
        approval = await self.approval(approval_id)
        async with self._entered(SessionId(approval.session_id)) as live:
            run = await self._threads.run(lambda: self._store.get_run(approval.run_id))
            if approval.state is ApprovalState.PENDING and run is not None:
                await self._threads.run(lambda: self._check_decision(approval, run, decision))
            try:
                await self._threads.run(lambda: self._decide(approval, decision))
            except ApprovalAlreadyDecided:
                if run is None or not self._left_behind(run, approval):
                    raise
            if run is None:
                raise ApprovalAlreadyDecided(approval_id, ApprovalState.CANCELLED)
            return await self._resume(live, run)

    def _decide(self, approval: Approval, decision: Decision) -> Approval:
        edited = None
        if decision.args is not None or decision.kwargs is not None:
            args = decision.args if decision.args is not None else approval.args
            kwargs = decision.kwargs if decision.kwargs is not None else approval.kwargs
            edited = request_digest(approval.capability, args, kwargs)
        return self._store.decide(
            approval.approval_id, decision, now_ms=self._clock.now_ms(), edited_digest=edited
        )

    def _check_decision(self, approval: Approval, run: WaitingRun, decision: Decision) -> None:
        """Refuse, before it is spent, a decision that could not be carried out."""
        header, _ = self._open_snapshot(run.snapshot_id)
        paused = header.paused
        call = (
            next((item for item in paused.pending if item.call_id == approval.call_id), None)
            if paused
            else None
        )
        if call is None or _binding(call, approval.session_id, run.run_id) != approval.binding:
            raise InvalidArgument(f"approval {approval.approval_id} does not belong to the call that waits")
        if decision.args is None and decision.kwargs is None:
            return
        checked = self.dispatcher.check(
            self.registry.require(call.name),
            decision.args if decision.args is not None else call.args,
            decision.kwargs if decision.kwargs is not None else call.kwargs,
            session_id=approval.session_id,
            call_id=call.call_id,
        )
        if isinstance(checked, SettledCall) and checked.record.error is not None:
            raise InvalidArgument(f"the edited arguments do not fit: {checked.record.error.message}")

    def _left_behind(self, run: WaitingRun, approval: Approval) -> bool:
        """Whether the run was decided by a process that died before it continued it."""
        if approval.decided_at is None:
            return False
        if run.owner is not None:
            return self.config.owner_is_dead(run.owner)
        return self._clock.now_ms() - approval.decided_at > _LEFT_BEHIND_MS

    async def _settle_expired(self, live: LiveSession, waiting: SessionWaiting) -> bool:
        """Continue a waiting run whose requests have all expired, so that it does not block the session."""
        session_id = live.meta.id
        run = await self._threads.run(lambda: self._store.waiting_run(session_id))
        if run is None:
            return True
        approvals = await self._threads.run(lambda: self._store.approvals(run_id=run.run_id))
        now = self._clock.now_ms()
        open_now = [item for item in approvals if item.state is ApprovalState.PENDING]
        if any(_as_of(item, now).state is ApprovalState.PENDING for item in open_now):
            return False
        with_hold = self._store.hold(session_id)
        await self._threads.run(with_hold.__enter__)
        try:
            await self._resume(live, run)
        finally:
            with_hold.__exit__(None, None, None)
        return True

    async def _resume(self, live: LiveSession, waiting: WaitingRun) -> RunResult:
        """Continue a parked run with whatever has been decided. The session is held."""
        plan, decided = await self._threads.run(lambda: self._claim(live, waiting))
        if not decided:
            await self._threads.run(lambda: self._store.release_run(waiting.run_id, self.config.owner))
            pending = plan.paused.pending if plan.paused else []
            return msgspec.structs.replace(
                RunResult.failed(_waiting_error(pending)), snapshot_id=waiting.snapshot_id
            )
        worker: list[Worker | None] = [await self._workers.take(plan.session_id)]

        def begin() -> Worker:
            if worker[0] is not None:
                worker[0].close()
            worker[0] = self._workers.attach_bare(plan.limits)
            return worker[0]

        run = MontyRun(plan, self._run_host(live, plan))
        return await self._drive(live, run, lambda: run.drive(begin, decided), worker)

    def _claim(self, live: LiveSession, waiting: WaitingRun) -> tuple[RunPlan, dict[int, Approval]]:
        """Take a waiting run over and read what it needs to go on."""
        header, data = self._open_snapshot(waiting.snapshot_id)
        paused = header.paused
        if paused is None:
            raise InvalidArgument(f"snapshot {waiting.snapshot_id} holds no run that waits")
        self._expire(waiting.run_id)
        decided = {
            item.call_id: item
            for item in self._store.approvals(run_id=waiting.run_id)
            if item.state is not ApprovalState.PENDING
        }
        previous = waiting.owner
        free = previous is None or previous == self.config.owner or self.config.owner_is_dead(previous)
        if not free or not self._store.claim_run(waiting.run_id, self.config.owner, previous):
            raise InvalidArgument(
                f"the run of session {waiting.session_id!r} is being continued by another process",
                hint="wait for it to finish",
            )
        state = live.state
        plan = RunPlan(
            run_id=waiting.run_id,
            session_id=waiting.session_id,
            program=read_program(paused.code, result_may_be_bound=bool(state and state.result_later)),
            limits=paused.limits,
            names=live.names,
            sites=state.sites if state else {},
            next_input=state.next_input if state else 0,
            paused=paused,
            paused_dump=decode_paused(data).dump,
            return_snapshot=paused.return_snapshot,
        )
        return plan, {
            call.call_id: decided[call.call_id] for call in paused.pending if call.call_id in decided
        }

    def _expire(self, run_id: str) -> None:
        now = self._clock.now_ms()
        for item in self._store.approvals(run_id=run_id):
            if item.state is ApprovalState.PENDING and now >= item.expires_at:
                self._store.decide(
                    item.approval_id,
                    Decision(approved=False, reason="expired"),
                    now_ms=now,
                    edited_digest=None,
                )

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────

    async def create_session(
        self, session_id: SessionId, limits: SessionLimits | None = None, *, ttl_ms: int | None = None
    ) -> None:
        """Make an empty session; one that exists is refused."""
        if await self._open(session_id, create=False) is not None:
            raise InvalidArgument(f"session {session_id!r} exists already", hint="reset or destroy it first")
        await self._open(session_id, limits=limits, ttl_ms=ttl_ms)

    async def destroy_session(self, session_id: SessionId) -> bool:
        """Forget a session, its state and its waiting run; false if there was none."""
        live = self._live.get(session_id)
        if live is None:
            return await self._threads.run(lambda: self._store.delete_session(session_id))
        async with self._entered(session_id, create=True):
            self._workers.forget(session_id)
            self._live.pop(session_id, None)
            return await self._threads.run(lambda: self._store.delete_session(session_id))

    async def list_sessions(self) -> list[SessionId]:
        return [SessionId(info.meta.id) for info in await self.sessions()]

    async def sessions(self) -> list[SessionInfo]:
        """All sessions that have not expired, oldest first."""
        return await self._threads.run(self._list)

    async def session(self, session_id: SessionId) -> SessionInfo:
        found = [info for info in await self.sessions() if info.meta.id == session_id]
        if not found:
            raise SessionNotFound(session_id)
        return found[0]

    async def reset_session(self, session_id: SessionId) -> None:
        """Forget a session's variables and its waiting run; its limits stay."""
        await self._replace(session_id, None, meta=None)

    async def fork_session(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        """A new session with the same variables. Of a session that waits, those before the waiting run."""
        async with self._entered(session_id) as live:
            state = await self._threads.run(lambda: self._settled_state(live))
            limits = live.meta.limits
        if await self._open(new_id, create=False) is not None:
            raise InvalidArgument(
                f"session {new_id!r} exists already", hint="destroy it first, or choose another id"
            )
        await self._open(new_id, limits=limits)
        await self._replace(new_id, state, meta=None)
        return new_id

    async def snapshot_session(self, session_id: SessionId) -> bytes:
        """The session as signed bytes; of a session that waits, the run that stands at its call."""
        data, _ = await self._snapshot(session_id)
        return data

    async def snapshot(self, session_id: SessionId) -> str:
        """Store a snapshot and return its id."""
        _, name = await self._snapshot(session_id)
        return name

    async def stored_snapshot(self, name: str) -> bytes:
        """The bytes of a stored snapshot."""
        data = await self._threads.run(lambda: self._store.get_snapshot(name))
        if data is None:
            raise InvalidArgument(f"there is no snapshot {name!r}")
        return data

    async def restore_session(self, snapshot: bytes, session_id: SessionId | None = None) -> SessionId:
        """Put a snapshot into its own session or another. A run that waited asks anew."""
        header, data = await self._threads.run(lambda: self._checked(snapshot))
        target = session_id or SessionId(header.meta.id)
        if header.paused is None:
            state = await self._threads.run(lambda: _only_state(data))
            await self._replace(target, state, meta=header.meta)
            return target
        paused_state = await self._threads.run(lambda: decode_paused(data))
        await self._replace(target, paused_state.before, meta=header.meta, header=header, paused=paused_state)
        return target

    def can_restore_snapshot(self, snapshot: bytes) -> bool:
        try:
            self._checked(snapshot)
        except HoldfastError:
            return False
        return True

    async def _snapshot(self, session_id: SessionId) -> tuple[bytes, str]:
        async with self._entered(session_id) as live:
            run = await self._threads.run(lambda: self._store.waiting_run(session_id))
            if run is not None:
                return await self.stored_snapshot(run.snapshot_id), run.snapshot_id
            await self._threads.run(lambda: self._settled_state(live))
            name = await self._threads.run(lambda: self._store_snapshot(live))
            return await self.stored_snapshot(name), name

    async def _replace(
        self,
        session_id: SessionId,
        state: EngineState | None,
        *,
        meta: SessionMeta | None,
        header: SnapshotHeader | None = None,
        paused: PausedState | None = None,
    ) -> None:
        """Give a session another state; a waiting run of it is over, and one in *paused* begins."""

        def replace() -> None:
            run = self._store.waiting_run(session_id)
            if run is not None:
                self._store.drop_run(run.run_id)
            if meta is not None:
                live.meta = msgspec.structs.replace(live.meta, limits=meta.limits)
            live.replace_state(state)
            self._save(live)
            if header is not None and paused is not None:
                self._park_again(live, header, paused)

        async with self._entered(session_id, create=meta is not None) as live:
            self._workers.forget(session_id)
            await self._threads.run(replace)

    def _park_again(self, live: LiveSession, header: SnapshotHeader, state: PausedState) -> None:
        """Park a restored run under new approval requests."""
        assert header.paused is not None
        now = self._clock.now_ms()
        run_id = f"run_{secrets.token_hex(12)}"
        unasked = [msgspec.structs.replace(call, approval_id="") for call in header.paused.pending]
        pending, approvals = self._ask(unasked, run_id, live.meta.id, now)
        paused = msgspec.structs.replace(header.paused, run_id=run_id, pending=pending)
        data = self._codec.seal(self._header(live.meta, paused), encode_paused(state))
        waiting = WaitingRun(
            run_id=run_id,
            session_id=live.meta.id,
            snapshot_id=snapshot_id(data),
            created_at=now,
            host=self.config.host,
        )
        self._store.park(waiting, data, approvals)

    async def _open(
        self,
        session_id: SessionId,
        *,
        create: bool = True,
        limits: SessionLimits | None = None,
        ttl_ms: int | None = None,
    ) -> LiveSession:
        """The session as this process has it; made if need be and allowed."""
        live = self._live.get(session_id)
        if live is not None and (live.expires_at is None or live.expires_at > self._clock.now_ms()):
            return live
        loaded = await self._threads.run(lambda: self._load_or_create(session_id, create, limits, ttl_ms))
        if live is not None:  # it has expired
            self._workers.forget(session_id)
            self._live.pop(session_id, None)
        if loaded is None:
            return None  # type: ignore[return-value]
        return self._live.setdefault(session_id, loaded)

    def _load_or_create(
        self, session_id: SessionId, create: bool, limits: SessionLimits | None, ttl_ms: int | None
    ) -> LiveSession | None:
        now = self._clock.now_ms()
        stored = self._store.load_session(session_id)
        if stored is not None and stored.expires_at is not None and stored.expires_at <= now:
            self._store.delete_session(session_id)
            stored = None
        if stored is None:
            if not create:
                return None
            with self._store.hold(session_id):
                stored = self._store.load_session(session_id) or self._store.save_session(
                    StoredSession(
                        meta=SessionMeta(
                            id=session_id,
                            created_at=now,
                            last_used_at=now,
                            limits=limits or self.config.limits,
                        ),
                        expires_at=now + ttl_ms if ttl_ms is not None else None,
                    )
                )
        return LiveSession.of(stored)

    @asynccontextmanager
    async def _entered(self, session_id: SessionId, *, create: bool = False) -> AsyncIterator[LiveSession]:
        """Hold an existing session, up to date, against everybody else."""
        live = await self._open(session_id, create=create)
        if live is None:
            raise SessionNotFound(session_id)
        async with live.lock:
            hold: AbstractContextManager[None] = self._store.hold(session_id)
            await self._threads.run(hold.__enter__)
            try:
                await self._threads.run(lambda: self._refresh(live))
                yield live
            finally:
                hold.__exit__(None, None, None)

    def _refresh(self, live: LiveSession) -> None:
        try:
            self._must_be_current(live)
        except _Changed:
            pass

    def _settled_state(self, live: LiveSession) -> EngineState | None:
        """The session's state, after a dump that may still be under way."""
        worker = self._workers.peek(live.meta.id)
        if worker is not None:
            with worker.busy:
                pass
        return live.state

    def _list(self) -> list[SessionInfo]:
        now = self._clock.now_ms()
        infos: list[SessionInfo] = []
        for stored in self._store.list_sessions():
            if stored.expires_at is not None and stored.expires_at <= now:
                self._store.delete_session(stored.meta.id)
                continue
            run = self._store.waiting_run(stored.meta.id)
            asked = self._store.approvals(run_id=run.run_id) if run else []
            live = self._live.get(stored.meta.id)
            size = self._store.session_state_bytes(stored.meta.id)
            if not self._store.durable and live is not None and live.state is not None:
                size = len(live.state.dump)
            state: Literal["idle", "waiting_for_approval"] = "waiting_for_approval" if run else "idle"
            infos.append(
                SessionInfo(
                    meta=stored.meta,
                    state=state,
                    state_bytes=size,
                    expires_at=stored.expires_at,
                    approvals=[item.approval_id for item in asked if _is_open(item)],
                )
            )
        return infos

    def _save(self, live: LiveSession, finished_run: str | None = None) -> None:
        """Write the session over the epoch that was read."""
        live.meta = msgspec.structs.replace(live.meta, last_used_at=self._clock.now_ms())
        stored = live.stored() if self._store.durable else _without_state(live)
        try:
            live.epoch = self._store.save_session(stored, finished_run=finished_run).epoch
        except HoldfastError:
            live.epoch = -1  # whatever is stored is the truth; the next run reads it
            raise

    def _save_meta(self, live: LiveSession, run: MontyRun) -> None:
        self._save(live, finished_run=run.plan.run_id)

    def _store_snapshot(self, live: LiveSession) -> str:
        from holdfast.sandbox.monty.state import encode_state

        data = self._codec.seal(self._header(live.meta, None), encode_state(live.state))
        name = snapshot_id(data)
        self._store.put_snapshot(name, live.meta.id, data, self._clock.now_ms())
        return name

    def _header(self, meta: SessionMeta, paused: object) -> SnapshotHeader:
        digests = {
            name: digest for name, digest in self.registry.digests().items() if name not in ALWAYS_THERE
        }
        return SnapshotHeader(
            meta=meta,
            engine=ENGINE,
            engine_version=ENGINE_VERSION,
            capabilities=digests,
            paused=paused,  # type: ignore[arg-type]
        )

    def _open_snapshot(self, name: str) -> tuple[SnapshotHeader, bytes]:
        data = self._store.get_snapshot(name)
        if data is None:
            raise InvalidArgument(f"there is no snapshot {name!r}")
        return self._checked(data)

    def _checked(self, data: bytes) -> tuple[SnapshotHeader, bytes]:
        header, state = self._codec.open(data)
        check_engine(header, ENGINE, ENGINE_VERSION)
        check_capabilities(header, self.registry.digests())
        return header, state


class _Changed(Exception):
    """The session was changed by another process; what was planned must be planned again."""


class _TooLarge(HoldfastError):
    code = Code.REQUEST_TOO_LARGE


class _Journal:
    """The journal of one run's calls."""

    def __init__(self, store: SandboxStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def intend(self, call_id: int, request_digest: str) -> None:
        self._store.intend(self._run_id, call_id, request_digest)

    def settle(self, call_id: int, settled: SettledCall) -> None:
        self._store.settle(self._run_id, call_id, settled)

    def found(self, call_id: int, request_digest: str) -> SettledCall | Literal[True] | None:
        return self._store.found(self._run_id, call_id, request_digest)


def _binding(call: PendingCall, session_id: str, run_id: str) -> str:
    """What an approval is bound to: contract, arguments, session and call."""
    return digest_json([call.contract, call.name, call.args, call.kwargs, session_id, run_id, call.call_id])


def _is_open(approval: Approval) -> bool:
    return approval.state is ApprovalState.PENDING


def _as_of(approval: Approval, now: int) -> Approval:
    """The approval as it counts now: one past its time has expired, whether or not that is written yet."""
    if approval.state is ApprovalState.PENDING and now >= approval.expires_at:
        return msgspec.structs.replace(approval, state=ApprovalState.EXPIRED)
    return approval


def _without_state(live: LiveSession) -> StoredSession:
    return StoredSession(meta=live.meta, epoch=live.epoch, expires_at=live.expires_at)


def _only_state(data: bytes) -> EngineState | None:
    from holdfast.sandbox.monty.state import decode_state

    return decode_state(data)


def _waiting_error(pending: list[PendingCall]) -> ErrorObject:
    calls = ", ".join(f"{call.name}() as {call.approval_id}" for call in pending)
    first = pending[0].approval_id if pending else "ID"
    return ErrorObject(
        code=Code.WAITING_FOR_APPROVAL,
        message=f"the run waits for a person to approve {calls}",
        hint=f"holdfast approvals approve {first}, or deny {first} --reason ...",
    )


def _not_serializable(type_name: str) -> ErrorObject:
    from holdfast.sandbox.monty.values import not_serializable

    return not_serializable(type_name)


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
