"""One run of guest code, from its first statement to its result or to the call it waits at.

Theory of operation
-------------------
The engine is stepped: it runs until guest code calls the host, and each answer runs it to the next call. One
thread drives a run from begin to end; handlers run elsewhere (a thread, an event loop) and their outcomes
arrive in the run's inbox::

    driver   begin ─ engine ─ HostCall ─ admit, start ─ wait ─ settle ─ engine ─ … ─ conclude
    handler                                └─ runs ───────┘

A plain call is answered with its value. A call that guest code awaits is answered with a future and runs
beside the others; when every guest task is blocked, whatever has settled is handed over. A call that needs a
person stops the run once nothing else can go on: the engine is dumped where it stands and the worker is free.

Rules
-----
1. A drive is a generator, so that it can change threads: a handler that runs on the driving thread and does
   not come back is left behind with that thread, and another takes the drive up where it stands.
2. Only the driver touches the engine. `stop` kills the worker's process and wakes the driver, no more.
3. A hard stop (limit, crash, cancel) leaves the session as it was before. A Python exception does not.
4. A run has one outcome; a stop that comes after the end does nothing.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import Code, ErrorObject, HoldfastError
from holdfast.model.approval import Approval, ApprovalState
from holdfast.model.call import CallStatus, ExternalCallRecord, SettledCall
from holdfast.model.canonical import Json
from holdfast.model.limits import SessionLimits
from holdfast.ports.journal import CallJournal, PendingCall
from holdfast.sandbox.monty import engine, shadow
from holdfast.sandbox.monty.dump import stand_ins
from holdfast.sandbox.monty.failures import Failure, describe_failure
from holdfast.sandbox.monty.program import MARK_NAME, Program, Site
from holdfast.sandbox.monty.values import may_hold_stand_ins, type_of_stand_in
from holdfast.sandbox.monty.workers import Worker
from holdfast.sandbox.output import Output
from holdfast.sandbox.snapshots import PausedRun
from holdfast.sandbox.watchdog import Watchdog
from holdfast.tools.dispatch import (
    Admitted,
    Arrived,
    Dispatcher,
    Inbox,
    NeedsApproval,
    RunningCall,
    settle_denied,
    settle_failure,
)

if TYPE_CHECKING:
    from pydantic_monty import FunctionSnapshot, FutureSnapshot

_SLEEPS: Final = ("system.sleep", "system.async_sleep")
_FILES_HINT: Final = "grant a mount and use read_text(), write_text() or list_dir()"
_SYSTEM_HINT: Final = "the sandbox shows guest code nothing of the machine; pass values as inputs"
_STUBS: dict[str, Callable[..., None]] = {}


class RunPlan:
    """What is to be run, and under what."""

    __slots__ = (
        "borrowed", "filename", "inputs", "kept", "limits", "names", "paused", "paused_dump", "program",
        "return_snapshot", "run_id_if_known", "session_id", "sites",
    )  # fmt: skip

    def __init__(
        self,
        *,
        session_id: str,
        program: Program,
        limits: SessionLimits,
        names: frozenset[str] = frozenset(),
        sites: dict[str, list[Site]],
        inputs: dict[str, Json] | None = None,
        paused: PausedRun | None = None,
        paused_dump: bytes = b"",
        return_snapshot: bool = False,
        run_id_if_known: str | None = None,
    ) -> None:
        self.session_id = session_id
        self.program = program
        self.limits = limits
        self.names = names
        self.sites = sites
        self.inputs = inputs
        self.paused = paused
        self.paused_dump = paused_dump
        self.return_snapshot = return_snapshot
        self.run_id_if_known = run_id_if_known
        self.borrowed: list[str] = self._find_borrowed()
        """Inputs whose names are given back when the run ends."""
        self.kept: list[str] = self._find_kept()
        """Names that had a value before the run and get it back."""
        self.filename = paused.filename if paused else ""
        """What the engine calls the source of this run; known when it begins."""

    @property
    def run_id(self) -> str:
        """Made when first asked for: most runs never need a name."""
        if self.run_id_if_known is None:
            self.run_id_if_known = new_run_id()
        return self.run_id_if_known

    @property
    def input_names(self) -> list[str]:
        return self.paused.input_names if self.paused else list(self.inputs or ())

    def _find_borrowed(self) -> list[str]:
        return [name for name in self.input_names if name not in self.program.bound]

    def _find_kept(self) -> list[str]:
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
    watchdog: Watchdog
    journal: CallJournal | None
    on_own_thread: bool = False
    """Whether the driving thread may be left to a handler that hangs; a caller's own thread may not."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """Guest code called a capability, or sleeps."""

    snapshot: FunctionSnapshot
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call_id: int
    awaited: bool
    foreign: str | None = None
    """The type of an argument that has no JSON form and arrived as its text."""


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


S = TypeVar("S")
T = TypeVar("T")
Driven = Generator[RunningCall, Arrived | None, T]
"""A part of a drive. It yields calls whose handlers are to be run by whoever drives; see `pump`."""

Outcome = Finished | Failure | Parked
Step = HostCall | Blocked | Finished | Failure


class MontyRun:
    """The state of one run. `drive` it once, on one thread; `stop` it from anywhere."""

    def __init__(self, plan: RunPlan, host: RunHost) -> None:
        self.plan = plan
        self._host = host
        self._dispatcher = host.dispatcher
        self._worker: Worker | None = None
        self._stopping = threading.Lock()
        self._stopped: ErrorObject | None = None
        self._ended = False
        paused = plan.paused
        printed = (paused.stdout, paused.stderr) if paused else ("", "")
        self.output = Output(plan.limits.max_stdout_bytes, self._flooded, *printed)
        self.output.truncated = bool(paused and paused.truncated)
        self.records: dict[int, ExternalCallRecord] = dict(paused.records) if paused else {}
        self.calls_made = paused.calls_made if paused else 0
        self.memory_peak: int | None = paused.memory_peak_bytes if paused else None
        self._wall_before_ms = paused.wall_used_ms if paused else 0
        self._settled: dict[int, SettledCall | None] = dict(paused.settled) if paused else {}
        self._running: dict[int, RunningCall] = {}
        self._sleeping: dict[int, float] = {}
        self._waiting: dict[int, PendingCall] = {}
        self._call_errors: dict[tuple[str, str], ErrorObject] = {}
        self._inbox: Inbox = queue.SimpleQueue()
        self._here: RunningCall | None = None
        self.go_on: Callable[[], None] | None = None
        """Continues the drive on another thread, when a handler keeps this one."""
        self._started = time.monotonic()

    def stop(self, error: ErrorObject) -> None:
        """End the run with *error*, wherever it stands. Harmless once it has ended."""
        with self._stopping:
            if self._ended or self._stopped is not None:
                return
            self._stopped = error
            if self._worker is not None:
                self._worker.kill()
        self._inbox.put(None)
        if (here := self._here) is not None:
            self._leave_behind(here)

    def duration_ms(self) -> int:
        """Wall time so far, not counting time parked."""
        return self._wall_before_ms + max(0, int((time.monotonic() - self._started) * 1000))

    def drive(
        self, begin: Callable[[], Worker], decided: dict[int, Approval] | None = None
    ) -> Driven[Outcome]:
        """Run to the end. *begin* gives the worker; *decided* continues a parked run."""
        wall_s = max(1, self.plan.limits.wall_ms - self._wall_before_ms) / 1000
        self._host.watchdog.watch(self, wall_s, lambda: self.stop(_wall_error(self.plan.limits)))
        try:
            outcome = yield from self._drive(begin, decided)
            self._end()
        except _StoppedRun:
            assert self._stopped is not None
            self._record_left()
            outcome = Failure(self._stopped, hard=True)
        finally:
            with self._stopping:
                self._ended = True
            self._host.watchdog.forget(self)
            for running in self._running.values():
                running.abandon()
        self._measure()
        return outcome

    def _end(self) -> None:
        """From here on a stop comes too late; one that came before has killed the worker."""
        with self._stopping:
            self._ended = True
            if self._stopped is not None:
                raise _StoppedRun

    def _drive(self, begin: Callable[[], Worker], decided: dict[int, Approval] | None) -> Driven[Outcome]:
        step: Step | Parked
        if self.plan.paused is None:
            step = self._in_engine(lambda: self._begin_twice(begin))
        else:
            step = self._in_engine(lambda: self._reload(begin))
            self._start_decided(self.plan.paused, decided or {})
        while True:
            if isinstance(step, HostCall):
                step = yield from self._on_call(step)
            elif isinstance(step, Blocked):
                step = self._on_blocked(step)
            else:
                return step

    def _in_engine(self, job: Callable[[], S]) -> S | Failure:
        """Step the engine; what it raises becomes the run's failure."""
        if self._stopped is not None:
            raise _StoppedRun
        try:
            return job()
        except HoldfastError:
            raise
        except Exception as error:
            if self._stopped is not None:
                raise _StoppedRun from None
            return describe_failure(error, self.plan.program, self.plan.limits, self._call_errors)

    # ── what guest code asks of the host ─────────────────────────────────────────────────────────

    def _on_call(self, call: HostCall) -> Driven[Step | Parked]:
        if call.name in _SLEEPS:
            return self._on_sleep(call)
        if call.call_id in self._waiting:  # a parked run, loaded at the call it still waits for
            return self._park(call.snapshot)
        if call.call_id in self._running or call.call_id in self._settled:
            return self._answer(call.snapshot, self._wait_for(call.call_id))
        if call.foreign is not None:
            return self._refuse_foreign(call, call.foreign)
        admission = self._dispatcher.admit(
            call.name, call.args, call.kwargs, session_id=self.plan.session_id, call_id=call.call_id
        )
        if isinstance(admission, SettledCall):
            return self._answer(call.snapshot, self._record(call.call_id, admission))
        if isinstance(admission, NeedsApproval):
            return self._on_approval_needed(call, admission.call)
        if not call.awaited and self._host.on_own_thread:
            settled = yield from self._call_here(admission)
            if settled is not None:
                return self._answer(call.snapshot, self._record(call.call_id, settled))
        self._start(admission)
        if call.awaited:
            return self._in_engine(lambda: self._advance(call.snapshot.resume({"future": ...})))
        return self._answer(call.snapshot, self._wait_for(call.call_id))

    def _call_here(self, call: Admitted) -> Driven[SettledCall | None]:
        """Have the handler run on the driving thread, which saves two changes of threads, if it can."""
        running = self._dispatcher.start_here(call, self._host.journal)
        if running is None or isinstance(running, SettledCall):
            return running
        self._here = running
        seconds = call.tool.capability.limits.timeout_ms / 1000
        self._host.watchdog.watch(running, seconds, lambda: self._leave_behind(running))
        arrived = yield running
        self._host.watchdog.forget(running)
        if self._stopped is not None:
            raise _StoppedRun
        self._here = None
        return self._dispatcher.settle_late(running) if arrived is None else self._settle(arrived)

    def _leave_behind(self, running: RunningCall) -> None:
        """Go on without a handler that does not come back, on another thread."""
        if running.abandon() and self.go_on is not None:
            self.go_on()

    def _refuse_foreign(self, call: HostCall, type_name: str) -> Step:
        tool = self._dispatcher.registry.require(call.name)
        message = f"an argument of {call.name}() is not JSON: it holds {type_name}"
        refused = settle_failure(tool, "", ErrorObject(code=Code.INVALID_ARGUMENT, message=message))
        return self._answer(call.snapshot, self._record(call.call_id, refused))

    def _on_approval_needed(self, call: HostCall, admitted: Admitted) -> Step | Parked:
        self._waiting[call.call_id] = PendingCall(
            call_id=call.call_id,
            name=call.name,
            args=admitted.context.args,
            kwargs=admitted.context.kwargs,
            approval_id="",
            contract=admitted.tool.digest,
            awaited=call.awaited,
        )
        self.records[call.call_id] = ExternalCallRecord(
            name=call.name,
            side_effect=admitted.tool.capability.side_effect,
            duration_ms=0,
            status=CallStatus.APPROVAL_PENDING,
            request_digest=admitted.request_digest,
        )
        if call.awaited:
            return self._in_engine(lambda: self._advance(call.snapshot.resume({"future": ...})))
        return self._park(call.snapshot)

    def _on_blocked(self, blocked: Blocked) -> Step | Parked:
        while True:
            if any(call_id in self._settled for call_id in blocked.pending):
                return self._in_engine(lambda: self._answer_ready(blocked))
            if self._running or self._sleeping:
                self._hear()
            elif self._waiting:
                return self._park(blocked.snapshot)
            else:
                return Failure(_deadlock_error(), hard=True)

    def _on_sleep(self, call: HostCall) -> Step:
        seconds = max(0.0, float(call.args[0])) if call.args else 0.0
        self._sleeping[call.call_id] = time.monotonic() + seconds
        if call.name == "system.async_sleep":
            return self._in_engine(lambda: self._advance(call.snapshot.resume({"future": ...})))
        while call.call_id in self._sleeping:
            self._hear()
        del self._settled[call.call_id]
        return self._in_engine(lambda: self._advance(call.snapshot.resume({"return_value": None})))

    def _start_decided(self, paused: PausedRun, decided: dict[int, Approval]) -> None:
        """Begin the calls that were approved and settle those that were not."""
        for pending in paused.pending:
            approval = decided.get(pending.call_id)
            if approval is None or approval.state is ApprovalState.PENDING:
                self._waiting[pending.call_id] = pending
                continue
            tool = self._dispatcher.registry.require(pending.name)
            checked = self._dispatcher.check(
                tool,
                approval.args,
                approval.kwargs,
                session_id=self.plan.session_id,
                call_id=pending.call_id,
            )
            if isinstance(checked, SettledCall):
                self._settled[pending.call_id] = self._record(pending.call_id, checked)
            elif approval.state is ApprovalState.APPROVED and tool.digest == pending.contract:
                self._start(checked)
            else:
                denied = settle_denied(checked, _denial(pending.name, approval))
                self._settled[pending.call_id] = self._record(pending.call_id, denied)

    # ── calls under way ──────────────────────────────────────────────────────────────────────────

    def _start(self, call: Admitted) -> None:
        try:
            started = self._dispatcher.start(call, self._inbox, self._host.journal)
        except HoldfastError as error:
            started = settle_failure(call.tool, call.request_digest, error.error_object())
        if isinstance(started, SettledCall):
            self._settled[call.call_id] = self._record(call.call_id, started)
        else:
            self._running[call.call_id] = started

    def _wait_for(self, call_id: int) -> SettledCall:
        while call_id not in self._settled:
            self._hear()
        settled = self._settled.pop(call_id)
        assert settled is not None
        return settled

    def _hear(self) -> None:
        """Wait for the next thing: an outcome, the end of a sleep or of a call's time, or a stop."""
        try:
            message = self._inbox.get(timeout=self._patience())
        except queue.Empty:
            self._expire()
            return
        if self._stopped is not None:
            raise _StoppedRun
        if isinstance(message, Arrived):
            call = message.running.call
            del self._running[call.call_id]
            self._settled[call.call_id] = self._record(call.call_id, self._settle(message))

    def _settle(self, arrived: Arrived) -> SettledCall:
        try:
            return self._dispatcher.settle(arrived)
        except HoldfastError as error:
            call = arrived.running.call
            return settle_failure(call.tool, call.request_digest, error.error_object())

    def _record_left(self) -> None:
        """Say of calls that are under way when the run is stopped that nobody knows what became of them."""
        left = [*self._running.values(), *([self._here] if self._here is not None else [])]
        for running in left:
            error = ErrorObject(
                code=Code.INTERRUPTED,
                message=f"{running.call.tool.name}() was under way when the run was stopped",
                hint="whether it took effect is unknown; look before calling again",
            )
            settled = settle_failure(running.call.tool, running.call.request_digest, error)
            self._record(running.call.call_id, settled)

    def _patience(self) -> float | None:
        """Seconds until something is due by itself."""
        due = [
            left
            for item in self._running.values()
            if (left := self._dispatcher.seconds_left(item)) is not None
        ]
        if self._sleeping:
            now = time.monotonic()
            due += [max(0.0, moment - now) for moment in self._sleeping.values()]
        return min(due, default=None)

    def _expire(self) -> None:
        now = time.monotonic()
        for call_id in [key for key, moment in self._sleeping.items() if moment <= now]:
            del self._sleeping[call_id]
            self._settled[call_id] = None
        for call_id, running in list(self._running.items()):
            if (settled := self._dispatcher.expire(running)) is not None:
                del self._running[call_id]
                self._settled[call_id] = self._record(call_id, settled)

    def _park(self, snapshot: FunctionSnapshot | FutureSnapshot) -> Parked | Failure:
        """Wait for calls in flight, then dump the engine where it stands."""
        while self._running or self._sleeping:
            self._hear()
        try:
            return self._dump_parked(snapshot)
        except Exception as error:
            if self._stopped is not None:
                raise _StoppedRun from None
            return Failure(
                ErrorObject(code=Code.INTERRUPTED, message=f"the engine failed: {error}"), hard=True
            )

    # ── the engine ───────────────────────────────────────────────────────────────────────────────

    def _begin_twice(self, begin: Callable[[], Worker]) -> Step:
        """Begin; if the worker turns out to have died while it was idle, with another.

        Nothing has reached the outside before the first step ends, so the second attempt repeats nothing.
        """
        try:
            return self._begin(begin)
        except engine.MontyCrashedError as error:
            worker = self._worker
            if self._stopped is not None or error.timed_out or worker is None or not worker.warm:
                raise
            worker.version = None
            self.output.forget()
            return self._begin(begin)

    def _begin(self, begin: Callable[[], Worker]) -> Step:
        worker = self._attach(begin)
        program, kept = self.plan.program, self.plan.kept
        marked = program.result_mode == "maybe" and program.reads_result
        if kept or marked:
            hide = "result" in kept and program.result_mode == "maybe" and not program.reads_result
            mark = f"{MARK_NAME} = []\n" if marked else ""
            feed_through(worker, mark + shadow.keep(kept, unbind=["result"] if hide else []))
        self.plan.filename = source_name(worker.next_input)
        worker.next_input += 1
        return self._advance(
            worker.session.feed_start(
                self.plan.program.fed, inputs=self.plan.inputs or None, print_callback=self.output
            )
        )

    def _attach(self, begin: Callable[[], Worker]) -> Worker:
        worker = begin()
        with self._stopping:
            self._worker = worker
            if self._stopped is not None:
                raise _StoppedRun
        worker.reset_peak()
        return worker

    def _reload(self, begin: Callable[[], Worker]) -> Step:
        worker = self._attach(begin)
        worker.next_input = source_number(self.plan.filename) + 1
        self.calls_made -= 1  # the call it stands at is announced again
        step = self._advance(worker.session.load_snapshot(self.plan.paused_dump, print_callback=self.output))
        if not isinstance(step, HostCall):
            self.calls_made += 1
        return step

    def _advance(self, snapshot: Any) -> Step:
        """Answer what needs no decision, up to the next thing that does."""
        while True:
            if isinstance(snapshot, engine.MontyComplete):
                return Finished(snapshot.output)
            if isinstance(snapshot, engine.FutureSnapshot):
                return Blocked(snapshot, snapshot.pending_call_ids)
            if isinstance(snapshot, engine.NameLookupSnapshot):
                name = snapshot.variable_name
                known = name in self._dispatcher.registry
                snapshot = snapshot.resume(value=stub(name)) if known else snapshot.resume()
                continue
            step = self._on_function(snapshot)
            if isinstance(step, (HostCall, Failure)):
                return step
            snapshot = step

    def _on_function(self, snapshot: FunctionSnapshot) -> Any:
        name = str(snapshot.function_name)
        if snapshot.is_os_function:
            if name in _SLEEPS:
                return HostCall(
                    snapshot, name, snapshot.args, {}, snapshot.call_id, awaited=name != _SLEEPS[0]
                )
            return self._refuse_system_call(snapshot, name)
        if name not in self._dispatcher.registry:
            return self._refuse_unknown(snapshot, name)
        if self.calls_made >= self.plan.limits.max_external_calls:
            return Failure(_calls_error(self.plan.limits), hard=True)
        self.calls_made += 1
        args, kwargs = snapshot.args, snapshot.kwargs
        return HostCall(
            snapshot,
            name,
            args,
            kwargs,
            snapshot.call_id,
            self._is_awaited(snapshot, name),
            self._stand_in_among(snapshot, args, kwargs),
        )

    def _stand_in_among(
        self, snapshot: FunctionSnapshot, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """The type of an argument that arrived as the mere text of something, if one did."""
        if not may_hold_stand_ins([*args, *kwargs.values()], self._dispatcher.registry):
            return None
        found = stand_ins(snapshot.dump())
        return type_of_stand_in(found[0]) if found else None

    def _refuse_system_call(self, snapshot: FunctionSnapshot, name: str) -> Any:
        if name.startswith("import"):
            return snapshot.resume_not_handled()
        error = ErrorObject(
            code=Code.PERMISSION_DENIED,
            message=f"guest code may not use {name}",
            hint=_FILES_HINT if name == "open" or name.startswith("Path.") else _SYSTEM_HINT,
        )
        self._call_errors["PermissionError", error.message] = error
        return snapshot.resume({"exc_type": "PermissionError", "message": error.message})

    def _refuse_unknown(self, snapshot: FunctionSnapshot, name: str) -> Any:
        message = f"name {name!r} is not defined"
        hint = self._dispatcher.registry.suggest(name) or "list_tools() names what can be called"
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
            tool = self._dispatcher.registry.get(name)
            return tool is not None and tool.async_mode
        return site in awaited

    def _answer(self, snapshot: FunctionSnapshot, settled: SettledCall) -> Step:
        result = self._engine_result(settled)
        return self._in_engine(lambda: self._advance(snapshot.resume(result)))

    def _answer_ready(self, blocked: Blocked) -> Step:
        ready = [call_id for call_id in blocked.pending if call_id in self._settled]
        results = {call_id: self._engine_result(self._settled.pop(call_id)) for call_id in ready}
        return self._advance(blocked.snapshot.resume(results))

    def _engine_result(self, settled: SettledCall | None) -> Any:
        if settled is None:
            return {"return_value": None}
        if settled.exception is None:
            return {"return_value": settled.value}
        seen = settled.exception
        if settled.record.error is not None:
            self._call_errors[seen.type, seen.message] = settled.record.error
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
            filename=plan.filename,
            limits=plan.limits,
            input_names=plan.input_names,
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
        """Called from inside the engine, in the middle of a step."""
        self.stop(_stdout_error(self.plan.limits))


class _StoppedRun(Exception):
    """The run was stopped while, or before, it was in the engine."""


def feed_through(worker: Worker, code: str, inputs: dict[str, Json] | None = None) -> object:
    """Run code of ours in the guest; it must call nothing. Names it does not find are not defined."""
    worker.next_input += 1
    snapshot: Any = worker.session.feed_start(code, inputs=inputs, print_callback=_unheard)
    while isinstance(snapshot, engine.NameLookupSnapshot):
        snapshot = snapshot.resume()
    if not isinstance(snapshot, engine.MontyComplete):
        raise TypeError(f"the engine answered with {snapshot!r}")
    return snapshot.output


def _unheard(stream: str, text: str) -> None:
    """What code of ours would print, nobody hears."""


def source_name(number: int) -> str:
    """What the engine calls the source that it is fed as this number."""
    return f"<python-input-{number}>"


def source_number(name: str) -> int:
    return int(name.removeprefix("<python-input-").removesuffix(">"))


def new_run_id() -> str:
    return f"run_{secrets.token_hex(12)}"


def cancelled_error() -> ErrorObject:
    return ErrorObject(code=Code.CANCELLED, message="the run was cancelled")


def stub(name: str) -> Callable[..., None]:
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
