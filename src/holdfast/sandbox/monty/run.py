"""One run of guest code, from its first statement to its result or to the call it waits at.

Theory of operation
-------------------
The engine is stepped: it runs until guest code calls the host, and each answer runs it to the next call.
Steps block, so they happen on threads; what happens between them is decided on the event loop::

    loop    begin ─┐        admit, approve, perform ─┐            result
    thread         └─ engine ─ HostCall ─┘           └─ engine ─ … conclude ┘

A plain call is answered with its value. A call that guest code awaits is answered with a future and runs
beside the others; when every guest task is blocked, whatever has settled is handed over. A call that needs a
person stops the run once nothing else can go on: the engine is dumped where it stands and the worker is free.

Rules
-----
1. Everything that touches the engine holds `_engine`, and after a stop nothing touches it again.
2. A hard stop (limit, crash, cancel) leaves the session as it was before the run. A Python exception does not.
3. A run has one outcome; the first to set it wins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import Code, ErrorObject, HoldfastError
from holdfast.model.approval import Approval, ApprovalState
from holdfast.model.call import CallStatus, ExternalCallRecord, SettledCall
from holdfast.model.canonical import Json
from holdfast.model.limits import SessionLimits
from holdfast.model.run import RunResult
from holdfast.ports.clock import Clock
from holdfast.ports.journal import CallJournal, PendingCall
from holdfast.sandbox.monty import shadow
from holdfast.sandbox.monty.failures import Failure, describe_failure
from holdfast.sandbox.monty.program import Program, Site
from holdfast.sandbox.monty.workers import Worker
from holdfast.sandbox.output import Output
from holdfast.sandbox.snapshots import PausedRun
from holdfast.tools.dispatch import Admitted, Dispatcher, NeedsApproval, settle_denied, settle_failure
from holdfast.tools.threads import DaemonThreads

if TYPE_CHECKING:
    from pydantic_monty import FunctionSnapshot, FutureSnapshot

_SLEEPS: Final = ("system.sleep", "system.async_sleep")
_STUBS: dict[str, Callable[..., None]] = {}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What is to be run, and under what."""

    run_id: str
    session_id: str
    program: Program
    limits: SessionLimits
    inputs: dict[str, Json] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    sites: dict[str, list[Site]] = field(default_factory=dict)
    next_input: int = 0
    paused: PausedRun | None = None
    paused_dump: bytes = b""
    return_snapshot: bool = False

    @property
    def filename(self) -> str:
        """What the engine calls the source of this run."""
        return f"<python-input-{self.next_input + (1 if self.kept else 0)}>"

    @property
    def borrowed(self) -> list[str]:
        """Inputs whose names are given back when the run ends."""
        names = self.paused.input_names if self.paused else list(self.inputs)
        return [name for name in names if name not in self.program.bound]

    @property
    def kept(self) -> list[str]:
        """Names that had a value before the run and get it back."""
        if self.paused:
            return self.paused.shadowed
        kept = [name for name in self.borrowed if name in self.names]
        if self.program.result_mode == "maybe" and "result" in self.names and "result" not in kept:
            kept.append("result")
        return kept


@dataclass(frozen=True, slots=True)
class RunHost:
    """What a run needs of the world around it."""

    dispatcher: Dispatcher
    threads: DaemonThreads
    clock: Clock
    journal: CallJournal | None
    conclude: Callable[[MontyRun, Worker | None, Finished | Failure], RunResult]
    """Makes the result and stores the session, on the engine's thread."""
    park: Callable[[MontyRun, Parked], RunResult]
    """Stores a run that waits, on the engine's thread."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """Guest code called a capability, or sleeps."""

    snapshot: FunctionSnapshot
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call_id: int
    awaited: bool


@dataclass(frozen=True, slots=True)
class Blocked:
    """Every guest task waits for a future."""

    snapshot: FutureSnapshot
    pending: list[int]


@dataclass(frozen=True, slots=True)
class Finished:
    """The code ran to its end, and its last expression has this value."""

    value: object


@dataclass(frozen=True, slots=True)
class Parked:
    """The run waits: the engine's dump, and what goes with it."""

    dump: bytes
    paused: PausedRun


Step = HostCall | Blocked | RunResult


class MontyRun:
    """The state of one run. `drive` it once; `stop` it from anywhere."""

    def __init__(self, plan: RunPlan, host: RunHost) -> None:
        self.plan = plan
        self._host = host
        self._engine = threading.Lock()
        self._worker: Worker | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stopped: ErrorObject | None = None
        self._ended = False
        paused = plan.paused
        self.output = Output(
            plan.limits.max_stdout_bytes,
            self._flooded,
            *((paused.stdout, paused.stderr) if paused else ("", "")),
        )
        self.output.truncated = bool(paused and paused.truncated)
        self.records: dict[int, ExternalCallRecord] = dict(paused.records) if paused else {}
        self.calls_made = paused.calls_made if paused else 0
        self.memory_peak: int | None = paused.memory_peak_bytes if paused else None
        self._wall_before_ms = paused.wall_used_ms if paused else 0
        self._settled: dict[int, SettledCall | None] = dict(paused.settled) if paused else {}
        self._running: dict[int, asyncio.Task[SettledCall | None]] = {}
        self._waiting: dict[int, PendingCall] = {}
        self._call_errors: dict[tuple[str, str], ErrorObject] = {}
        self._started = host.clock.monotonic()

    # ── on the loop ──────────────────────────────────────────────────────────────────────────────

    async def drive(
        self, begin: Callable[[], Worker], decided: dict[int, Approval] | None = None
    ) -> RunResult:
        """Run to the end. *begin* gives the worker, on a thread; *decided* continues a parked run."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        wall_ms = max(1, self.plan.limits.wall_ms - self._wall_before_ms)
        timer = loop.call_later(wall_ms / 1000, self.stop, _wall_error(self.plan.limits))
        try:
            return await self._drive(begin, decided)
        except asyncio.CancelledError:
            return await self._ended_early()
        except _StoppedRun:
            return await self._ended_early()
        finally:
            timer.cancel()
            self._ended = True
            for task in self._running.values():
                task.cancel()

    def stop(self, error: ErrorObject) -> None:
        """End the run with *error*, wherever it stands. Harmless once it has ended."""
        if self._ended or self._stopped is not None:
            return
        self._stopped = error
        if self._worker is not None:
            self._worker.kill()
        if self._task is not None:
            self._task.cancel()

    def duration_ms(self) -> int:
        """Wall time so far, not counting time parked."""
        return self._wall_before_ms + max(0, int((self._host.clock.monotonic() - self._started) * 1000))

    async def _drive(self, begin: Callable[[], Worker], decided: dict[int, Approval] | None) -> RunResult:
        if self.plan.paused is not None:
            step = await self._host.threads.run(lambda: self._locked(lambda: self._reload(begin)))
            self._start_decided(self.plan.paused, decided or {})
        else:
            step = await self._host.threads.run(lambda: self._locked(lambda: self._begin(begin)))
        while not isinstance(step, RunResult):
            step = await (self._on_call(step) if isinstance(step, HostCall) else self._on_blocked(step))
        return step

    async def _ended_early(self) -> RunResult:
        """The task was cancelled: by `stop`, or by whoever awaits the run."""
        by_us = self._stopped is not None
        if not by_us:
            self._stopped = cancelled_error()
            if self._worker is not None:
                self._worker.kill()
        elif self._task is not None:
            self._task.uncancel()
        result = await self._host.threads.run(self._conclude_stopped)
        if not by_us:
            raise asyncio.CancelledError
        return result

    async def _on_call(self, call: HostCall) -> Step:
        if call.name in _SLEEPS:
            return await self._on_sleep(call)
        if call.call_id in self._waiting:  # a parked run, loaded at the call it waits for
            return await self._park(call.snapshot)
        if call.call_id in self._running or call.call_id in self._settled:
            return await self._answer_decided(call)
        admission = await self._host.dispatcher.admit(
            call.name, call.args, call.kwargs, session_id=self.plan.session_id, call_id=call.call_id
        )
        match admission:
            case SettledCall():
                settled = admission
                return await self._step(
                    lambda: self._answer(call.snapshot, self._record(call.call_id, settled))
                )
            case NeedsApproval():
                return await self._on_approval_needed(call, admission.call)
            case Admitted():
                return await self._on_admitted(call, admission)

    async def _on_admitted(self, call: HostCall, admitted: Admitted) -> Step:
        if call.awaited:
            self._running[call.call_id] = asyncio.create_task(self._perform(admitted))
            return await self._step(lambda: self._advance(call.snapshot.resume({"future": ...})))

        def deliver(settled: SettledCall) -> Step:
            return self._locked(lambda: self._answer(call.snapshot, self._record(call.call_id, settled)))

        return await self._host.dispatcher.perform(admitted, deliver, self._host.journal)

    async def _on_approval_needed(self, call: HostCall, admitted: Admitted) -> Step:
        pending = PendingCall(
            call_id=call.call_id,
            name=call.name,
            args=admitted.context.args,
            kwargs=admitted.context.kwargs,
            approval_id="",
            contract=admitted.tool.digest,
            awaited=call.awaited,
        )
        self._waiting[call.call_id] = pending
        self.records[call.call_id] = ExternalCallRecord(
            name=call.name,
            side_effect=admitted.tool.capability.side_effect,
            duration_ms=0,
            status=CallStatus.APPROVAL_PENDING,
            request_digest=admitted.request_digest,
        )
        if call.awaited:
            return await self._step(lambda: self._advance(call.snapshot.resume({"future": ...})))
        return await self._park(call.snapshot)

    async def _on_blocked(self, blocked: Blocked) -> Step:
        while True:
            ready = [call_id for call_id in blocked.pending if call_id in self._settled]
            if ready:
                results = {call_id: self._engine_result(self._settled.pop(call_id)) for call_id in ready}
                return await self._step(lambda: self._advance(blocked.snapshot.resume(results)))
            if self._running:
                await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
                self._collect()
            elif self._waiting:
                return await self._park(blocked.snapshot)
            else:
                self._stopped = _deadlock_error()
                raise _StoppedRun

    async def _on_sleep(self, call: HostCall) -> Step:
        seconds = max(0.0, float(call.args[0])) if call.args else 0.0
        if call.name == "system.async_sleep":
            self._running[call.call_id] = asyncio.create_task(_sleep(seconds))
            return await self._step(lambda: self._advance(call.snapshot.resume({"future": ...})))
        await asyncio.sleep(seconds)
        return await self._step(lambda: self._advance(call.snapshot.resume({"return_value": None})))

    async def _answer_decided(self, call: HostCall) -> Step:
        """A plain call that a decision has freed: wait for its result and go on."""
        if (task := self._running.get(call.call_id)) is not None:
            await asyncio.wait((task,))
            self._collect()
        settled = self._settled.pop(call.call_id)
        assert settled is not None
        return await self._step(lambda: self._answer(call.snapshot, settled))

    def _start_decided(self, paused: PausedRun, decided: dict[int, Approval]) -> None:
        for pending in paused.pending:
            approval = decided.get(pending.call_id)
            if approval is None or approval.state is ApprovalState.PENDING:
                self._waiting[pending.call_id] = pending
                continue
            tool = self._host.dispatcher.registry.require(pending.name)
            checked = self._host.dispatcher.check(
                tool,
                approval.args,
                approval.kwargs,
                session_id=self.plan.session_id,
                call_id=pending.call_id,
            )
            if isinstance(checked, SettledCall):
                self._settled[pending.call_id] = self._record(pending.call_id, checked)
            elif approval.state is ApprovalState.APPROVED and tool.digest == pending.contract:
                self._running[pending.call_id] = asyncio.create_task(self._perform(checked))
            else:
                denied = settle_denied(checked, _denial(pending.name, approval))
                self._settled[pending.call_id] = self._record(pending.call_id, denied)

    async def _perform(self, admitted: Admitted) -> SettledCall:
        try:
            return await self._host.dispatcher.perform(admitted, _same, self._host.journal)
        except HoldfastError as error:
            return settle_failure(admitted.tool, admitted.request_digest, error.error_object())

    def _collect(self) -> None:
        """Move what has settled out of `_running`."""
        for call_id, task in list(self._running.items()):
            if not task.done():
                continue
            del self._running[call_id]
            settled = task.result()
            self._settled[call_id] = self._record(call_id, settled) if settled is not None else None

    async def _park(self, snapshot: FunctionSnapshot | FutureSnapshot) -> Step:
        """Wait for calls in flight, then dump the engine where it stands."""
        while self._running:
            await asyncio.wait(self._running.values())
            self._collect()
        return await self._host.threads.run(lambda: self._locked(lambda: self._dump_parked(snapshot)))

    async def _step(self, job: Callable[[], _Raw]) -> Step:
        return await self._host.threads.run(lambda: self._locked(job))

    # ── on a thread ──────────────────────────────────────────────────────────────────────────────

    def _locked(self, job: Callable[[], _Raw]) -> Step:
        with self._engine:
            if self._stopped is not None:
                raise _StoppedRun
            try:
                step = job()
            except HoldfastError:
                raise
            except Exception as error:
                if self._stopped is not None:
                    raise _StoppedRun from None
                step = describe_failure(error, self.plan.program, self.plan.limits, self._call_errors)
            return step if isinstance(step, (HostCall, Blocked)) else self._conclude(step)

    def _conclude(self, outcome: Finished | Failure | Parked) -> RunResult:
        self._ended = True
        self._measure()
        if isinstance(outcome, Parked):
            return self._host.park(self, outcome)
        return self._host.conclude(self, self._worker, outcome)

    def _conclude_stopped(self) -> RunResult:
        """Waits until no thread is inside the engine any more; what was there has been killed."""
        with self._engine:
            assert self._stopped is not None
            return self._conclude(Failure(self._stopped, hard=True))

    def _begin(self, begin: Callable[[], Worker]) -> _Raw:
        worker = self._worker = begin()
        worker.reset_peak()
        kept = self.plan.kept
        if kept:
            program = self.plan.program
            hide = "result" in kept and program.result_mode == "maybe" and not program.reads_result
            feed_through(worker, shadow.keep(kept, unbind=["result"] if hide else []))
        return self._advance(
            worker.session.feed_start(
                self.plan.program.fed, inputs=self.plan.inputs or None, print_callback=self.output
            )
        )

    def _reload(self, begin: Callable[[], Worker]) -> _Raw:
        worker = self._worker = begin()
        worker.reset_peak()
        assert self.plan.paused is not None
        self.calls_made -= 1  # the call it stands at is announced again
        step = self._advance(worker.session.load_snapshot(self.plan.paused_dump, print_callback=self.output))
        if not isinstance(step, HostCall):
            self.calls_made += 1
        return step

    def _advance(self, snapshot: Any) -> _Raw:
        """Answer what needs no decision, up to the next thing that does."""
        from pydantic_monty import FunctionSnapshot, FutureSnapshot, MontyComplete, NameLookupSnapshot

        while True:
            match snapshot:
                case MontyComplete():
                    return Finished(snapshot.output)
                case FunctionSnapshot():
                    step = self._on_function(snapshot)
                    if isinstance(step, (HostCall, Failure)):
                        return step
                    snapshot = step
                case NameLookupSnapshot():
                    name = snapshot.variable_name
                    known = name in self._host.dispatcher.registry
                    snapshot = snapshot.resume(value=_stub(name)) if known else snapshot.resume()
                case FutureSnapshot():
                    return Blocked(snapshot, snapshot.pending_call_ids)
                case _:
                    raise TypeError(f"the engine answered with {snapshot!r}")

    def _on_function(self, snapshot: FunctionSnapshot) -> Any:
        name = str(snapshot.function_name)
        if snapshot.is_os_function:
            if name in _SLEEPS:
                return HostCall(
                    snapshot, name, snapshot.args, {}, snapshot.call_id, awaited=name != _SLEEPS[0]
                )
            return self._refuse_system_call(snapshot, name)
        if name not in self._host.dispatcher.registry:
            return self._refuse_unknown(snapshot, name)
        if self.calls_made >= self.plan.limits.max_external_calls:
            return Failure(_calls_error(self.plan.limits), hard=True)
        self.calls_made += 1
        return HostCall(
            snapshot, name, snapshot.args, snapshot.kwargs, snapshot.call_id, self._is_awaited(snapshot, name)
        )

    def _refuse_system_call(self, snapshot: FunctionSnapshot, name: str) -> Any:
        if name.startswith("import"):
            return snapshot.resume_not_handled()
        error = ErrorObject(
            code=Code.PERMISSION_DENIED,
            message=f"guest code may not use {name}",
            hint="grant a mount and use read_text(), write_text() or list_dir()",
        )
        self._call_errors["PermissionError", error.message] = error
        return snapshot.resume({"exc_type": "PermissionError", "message": error.message})

    def _refuse_unknown(self, snapshot: FunctionSnapshot, name: str) -> Any:
        message = f"name {name!r} is not defined"
        hint = self._host.dispatcher.registry.suggest(name) or "list_tools() names what can be called"
        error = ErrorObject(
            code=Code.UNKNOWN_TOOL, message=f"{name}() is neither defined nor a capability", hint=hint
        )
        self._call_errors["NameError", message] = error
        return snapshot.resume({"exc_type": "NameError", "message": message})

    def _is_awaited(self, snapshot: FunctionSnapshot, name: str) -> bool:
        """Whether guest code will await the call, as its syntax tells."""
        if snapshot.allow_eager_await:
            return True
        place = snapshot.position
        site = (place.start, place.end)
        here = place.filename == self.plan.filename
        awaited = self.plan.program.awaited if here else self.plan.sites.get(place.filename, ())
        if awaited is None or place.filename == "<string>":
            tool = self._host.dispatcher.registry.get(name)
            return tool is not None and tool.async_mode
        return site in awaited

    def _answer(self, snapshot: FunctionSnapshot, settled: SettledCall) -> _Raw:
        return self._advance(snapshot.resume(self._engine_result(settled)))

    def _engine_result(self, settled: SettledCall | None) -> Any:
        if settled is None:
            return {"return_value": None}
        if settled.exception is None:
            return {"return_value": settled.value}
        seen = settled.exception
        if settled.record.error is not None:
            text = repr(seen.message) if seen.type == "KeyError" else seen.message
            self._call_errors[seen.type, text] = settled.record.error
        return {"exc_type": seen.type, "message": seen.message}

    def _record(self, call_id: int, settled: SettledCall) -> SettledCall:
        self.records[call_id] = settled.record
        return settled

    def _measure(self) -> None:
        if self._worker is not None and (peak := self._worker.peak_bytes()) is not None:
            self.memory_peak = max(peak, self.memory_peak or 0)

    def _dump_parked(self, snapshot: FunctionSnapshot | FutureSnapshot) -> Parked:
        dump = snapshot.dump()
        self._measure()
        plan = self.plan
        paused = PausedRun(
            run_id=plan.run_id,
            code=plan.program.code,
            limits=plan.limits,
            input_names=plan.paused.input_names if plan.paused else list(plan.inputs),
            shadowed=plan.kept,
            return_snapshot=plan.return_snapshot,
            pending=list(self._waiting.values()),
            settled=self._settled,
            records=self.records,
            calls_made=self.calls_made,
            stdout=self.output.stdout,
            stderr=self.output.stderr,
            truncated=self.output.truncated,
            wall_used_ms=self.duration_ms(),
            memory_peak_bytes=self.memory_peak,
        )
        return Parked(dump, paused)

    def _flooded(self) -> None:
        """Called from the engine's own thread, in the middle of a step."""
        if self._stopped is None and not self._ended:
            self._stopped = _stdout_error(self.plan.limits)
            if self._worker is not None:
                self._worker.kill()


_Raw = HostCall | Blocked | Finished | Failure | Parked
"""What the engine's thread found, before it is concluded."""


class _StoppedRun(Exception):
    """The run was stopped while, or before, it was in the engine."""


def feed_through(worker: Worker, code: str, inputs: dict[str, Json] | None = None) -> object:
    """Run code of ours in the guest; it must call nothing. Names it does not find are not defined."""
    from pydantic_monty import MontyComplete, NameLookupSnapshot

    snapshot: Any = worker.session.feed_start(code, inputs=inputs, print_callback=_unheard)
    while isinstance(snapshot, NameLookupSnapshot):
        snapshot = snapshot.resume()
    if not isinstance(snapshot, MontyComplete):
        raise TypeError(f"the engine answered with {snapshot!r}")
    return snapshot.output


def _unheard(stream: str, text: str) -> None:
    """What code of ours would print, nobody hears."""


def cancelled_error() -> ErrorObject:
    return ErrorObject(code=Code.CANCELLED, message="the run was cancelled")


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _same(settled: SettledCall) -> SettledCall:
    return settled


def _stub(name: str) -> Callable[..., None]:
    """A function of this name; the engine keeps only the name."""
    if (known := _STUBS.get(name)) is None:

        def known() -> None: ...

        known.__name__ = name
        _STUBS[name] = known
    return known


def _denial(name: str, approval: Approval) -> str:
    match approval.state:
        case ApprovalState.DENIED:
            why = f": {approval.reason}" if approval.reason else ""
            return f"{name}() was denied{why}"
        case ApprovalState.EXPIRED:
            return f"the approval of {name}() expired before anybody decided"
        case ApprovalState.APPROVED:
            return f"the contract of {name}() changed after it was approved"
    return f"the approval of {name}() was cancelled"


def _wall_error(limits: SessionLimits) -> ErrorObject:
    return ErrorObject(
        code=Code.TIMEOUT_WALL,
        message=f"the run took longer than {limits.wall_ms} ms",
        hint="raise timeout_ms (or wall_ms); time waiting for a person does not count",
    )


def _calls_error(limits: SessionLimits) -> ErrorObject:
    return ErrorObject(
        code=Code.EXTERNAL_CALLS_EXCEEDED,
        message=f"the run made {limits.max_external_calls} external calls and wanted another",
        hint="raise max_external_calls, or do less per run",
    )


def _deadlock_error() -> ErrorObject:
    return ErrorObject(code=Code.INTERRUPTED, message="guest code waits for calls that nobody answers")


def _stdout_error(limits: SessionLimits) -> ErrorObject:
    return ErrorObject(
        code=Code.STDOUT_EXCEEDED,
        message=f"the run printed more than 16 times the {limits.max_stdout_bytes} bytes that are kept",
        hint="print less, or raise max_stdout_bytes",
    )
