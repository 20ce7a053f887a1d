"""The CPython engine, which runs cells in jailed processes, and the stepper of one cell.

A process cannot be stored in the middle of a run, so a cell that was put aside is replayed: its code runs
again in another process and gets the recorded answers.

Every message of the guest is validated. An invalid one ends the guest's process and the cell. Inputs and
loaded values are part of the dump, so that replayed code sees the same values.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from standfast.errors import Code, EngineFailed, ErrorObject, InvalidArgument, ValueTooLarge
from standfast.model.canonical import MAX_VALUE_BYTES, Json, count_json_nodes, encode_json
from standfast.model.code import Diagnostic, Language
from standfast.ports.cell_stepper import (
    CellFailed,
    CellStopped,
    EngineCall,
    Step,
    StepBlocked,
    StepEnded,
    StepperHost,
)
from standfast.ports.code_engine import SLEEP, CallAnswer, CellFunctions, CellRequest, Check
from standfast.sandbox import run_errors
from standfast.sandbox.cell_lifecycle import SteppedCell, SteppedCells, text_problem
from standfast.sandbox.cpython import failures, messages, state
from standfast.sandbox.cpython.analysis import UNTYPED, awaited_sites, check_cell, leaves_unchanged
from standfast.sandbox.cpython.failures import ExceptionReader
from standfast.sandbox.cpython.guest import TRIED_BYTES
from standfast.sandbox.cpython.jail import Jail, JailKind
from standfast.sandbox.cpython.state import decode_state, read_cell
from standfast.sandbox.cpython.workers import LOADING_MS, CPythonWorker, CPythonWorkers
from standfast.sandbox.monty.cell_check import names_touched
from standfast.sandbox.worker_process import WorkerDied
from standfast.sandbox.workers import SlotStepper, Watchdog


class CPythonCells(SteppedCells):
    """Runs the cells of many sessions in jails of *kind*, or of the best kind that works here.

    Code may import *packages*.
    """

    language = Language.PYTHON
    touched = staticmethod(names_touched)
    former_cell = staticmethod(read_cell)

    def __init__(
        self, *, capacity: int = 8, packages: Sequence[str] = (), kind: JailKind | None = None
    ) -> None:
        super().__init__()
        self._capacity = capacity
        self._packages = tuple(packages)
        self._kind = kind
        self._opening = threading.Lock()
        self._workers: CPythonWorkers | None = None
        self._closed = False

    def open(self, request: CellRequest) -> SteppedCell:
        self._started()
        return super().open(request)

    def stepper(self, host: StepperHost, dump: bytes) -> CPythonStepper:
        return CPythonStepper(host, self._started(), self.watchdog, self._packages, dump)

    def names(self, state: bytes) -> list[str]:
        known = decode_state(state)
        return list(known.names) if known else []

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        if (problem := text_problem(code)) is not None:
            return [problem]
        found = check_cell(code, frozenset(self.names(state)), functions, inputs, self._packages)
        return [*found, UNTYPED] if check != "calls" else found

    def prepare(self) -> None:
        self._started().prepare()

    def close(self) -> None:
        """End every cell and every process."""
        with self._opening:
            self._closed = True
        super().close()

    def _started(self) -> CPythonWorkers:
        """Return the workers; the first call finds a kind of jail that this machine supports."""
        with self._opening:
            if self._closed:
                raise InvalidArgument("the sandbox is closed")
            if self._workers is None:
                self.slots = self._workers = CPythonWorkers(Jail(self._kind, self._packages), self._capacity)
            return self._workers


_LOOK_S: Final = 0.02
_LONG_S: Final = 0.05
_SLACK_BYTES: Final = 1_000
_MAX_LOADED: Final = 10_000
_MAX_NOTES: Final = 100
_LOADED_BY_USED: Final = 2
"""Loaded values take at most twice the memory of the packed ones: containers may be over-allocated."""
_LOADED_BY_PACKED: Final = 16
"""Many references to one number become many numbers: 3 bytes each in the pickle, up to 41 when loaded."""


class GuestDied(CellFailed):
    """The guest's process exited or was killed by the system."""


class CPythonStepper(SlotStepper[CPythonWorker]):
    """A `CellStepper`. `packages` are those that guest code may import."""

    replayed = True

    def __init__(
        self,
        host: StepperHost,
        workers: CPythonWorkers,
        watchdog: Watchdog,
        packages: tuple[str, ...],
        dump: bytes,
    ) -> None:
        request = host.request
        super().__init__(host, workers)
        self._workers = workers
        self._watchdog = watchdog
        new = state.CPythonDump(
            code=request.code, state=request.state, inputs={}, loaded={}, seed=request.seed
        )
        self._cell = state.decode_dump(dump) if dump else new
        self._before = state.decode_state(self._cell.state)
        self._inputs = self._cell.inputs if dump else None
        self._loaded_values = dict(self._cell.loaded)
        self._exceptions = ExceptionReader(self._cell.code, self._limits, request.functions, packages)
        self._called = False
        self._loading = self._packing = False
        self._waiting_since = 0.0
        self._watch_key = object()
        self._end: tuple[messages.RunEnded, bytes] | None = None

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Step:
        """Send the run to a worker that holds the session, or to an empty one, and read its messages."""
        if self._inputs is None:
            try:
                given = self._host.request.inputs.items()
                self._inputs = {name: messages.encode_tagged(value) for name, value in given}
            except (InvalidArgument, OverflowError) as error:
                message = f"an input cannot be passed: {error}"
                raise CellFailed(ErrorObject(code=Code.INVALID_ARGUMENT, message=message)) from None
        self.prepare()
        if self._host.stopped is not None:
            raise CellStopped
        worker = self.worker
        if worker is None or not worker.holds(self._cell.state) or not self._taken(worker):
            self.drop_worker()
            worker = self._fresh()
            if not self._taken(worker):
                raise self._death(worker)
        self._loading, self._packing = worker.version != self._cell.state, False
        self._watchdog.watch(self._watch_key, _LOOK_S, self._look)
        try:
            self._send(self._run_message(worker, self._inputs))
            return self.proceed()
        except (GuestDied, messages.OfAnotherRun) as error:
            if not worker.warm or self._called:
                raise failures.broken() if isinstance(error, messages.OfAnotherRun) else error from None
        self.drop_worker()  # it died while idle, or an earlier run left messages; this run had no effect yet
        self._host.output.forget()
        return self.begin()

    def _run_message(self, worker: CPythonWorker, inputs: dict[str, bytes]) -> bytes:
        request, before = self._host.request, self._before
        loaded = before if worker.version != self._cell.state else None
        message = {
            "nonce": worker.begin(),
            "code": self._cell.code,
            "inputs": {name: msgspec.Raw(data) for name, data in inputs.items()},
            "functions": list(request.functions.names()),
            "later": awaited_sites(self._cell.code),
            "loads": request.load is not None or bool(self._loaded_values),
            "now": self._host.now_ms,
            "seed": self._cell.seed,
            "depth": self._limits.max_stack_depth,
            "stdout_cap": self._limits.max_stdout_bytes,
            "pure": leaves_unchanged(self._cell.code, before),
        }
        text = encode_json(message)
        return text if loaded is None else messages.with_bytes(text, loaded.payload)

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        message: dict[str, Any] = {"id": call_id, "now": self._host.now_ms}
        if answer.exception is not None:
            if answer.error is not None:
                self._exceptions.remember(answer.exception, answer.error)
            message["x"] = [answer.exception.type, answer.exception.message]
        else:
            message["v"] = answer.value
        self._send(encode_json(message))
        return self.proceed()

    def proceed(self) -> Step:
        """Read the guest's messages until it makes a call, waits or has ended."""
        try:
            while (step := self._take_message()) is None:
                pass
            return step
        except messages.OfAnotherRun:
            if not self._called:
                raise  # `begin` handles it
            raise failures.broken() from None
        except messages.UnreadableMessage:
            raise failures.broken() from None

    def _take_message(self) -> Step | None:
        """Wait for one message and handle it; return the step that it represents, if any."""
        worker, limits = self._worker(), self._limits
        try:
            frame = worker.process.receive()
        except WorkerDied:
            raise self._death(worker) from None
        message, data = messages.read_message(frame, worker.nonce)
        match message:
            case messages.GuestCalled():
                self._called = True
                return self._engine_call(message)
            case messages.GuestBlocked():
                self._waiting_since = time.monotonic()
                return StepBlocked()
            case messages.RunEnded():
                return self._ended(message, data)
            case messages.GuestPrinted():
                self._host.output(message.stream, message.text)
            case messages.SessionLoaded() if self._loading:  # measure only the code from here on
                try:
                    worker.meter.begin(limits)
                except WorkerDied:
                    raise self._death(worker) from None
                if worker.meter.needs_more_than(limits):
                    raise CellFailed(failures.not_loaded_error(limits))
                self._loading = False
                self._send(b"{}")
            case messages.ValueRequested():
                self._send_value(message.name)
            case messages.CodeEnded():
                self._packing = True  # packing the session may use more memory than the code may
                if worker.meter.needs_more_than(limits, message.peak):
                    raise CellFailed(run_errors.memory_error(limits))
            case messages.OutOfMemory():
                if self._loading:
                    raise CellFailed(failures.not_loaded_error(limits))
                kept = failures.not_kept_error if self._packing else run_errors.memory_error
                raise CellFailed(kept(limits))
            case _:
                raise messages.UnreadableMessage
        return None

    def _engine_call(self, called: messages.GuestCalled) -> EngineCall:
        """Convert a call, checking its name and size before its arguments are decoded."""
        request = self._host.request
        sleeps = called.name == SLEEP and SLEEP not in request.functions
        if self._loading or self._packing or not (sleeps or called.name in request.functions):
            raise messages.UnreadableMessage  # an unmodified guest never sends this
        self._waiting_since = time.monotonic()
        size = len(memoryview(called.args)) + len(memoryview(called.kwargs))
        limit = 0 if sleeps else request.functions.capability(called.name).limits.max_request_bytes
        problem: ErrorObject | None = None
        if called.problem is not None:
            explain = run_errors.request_too_large if called.too_large else run_errors.argument_not_json
            problem = explain(called.name, called.problem)
        elif size > limit + limit // 4 + _SLACK_BYTES:  # the guest writes some numbers with more digits
            problem = run_errors.request_too_large(called.name, f"the limit is {limit} bytes as JSON")
        args: Json = []
        kwargs: Json = {}
        values = 0
        if problem is None:
            values = count_json_nodes(called.args) + count_json_nodes(called.kwargs)
            try:
                args, kwargs = messages.read_value(called.args), messages.read_value(called.kwargs)
            except ValueTooLarge as error:
                problem = run_errors.request_too_large(called.name, error.limit)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise messages.UnreadableMessage
        if sleeps:
            seconds = kwargs.get("seconds")
            if args or len(kwargs) != 1 or not isinstance(seconds, (int, float)):
                raise messages.UnreadableMessage
            if not 0 <= seconds <= sys.float_info.max:
                raise messages.UnreadableMessage
        later, wrong = b"1" if called.later else b"0", (called.problem or "").encode()
        text = b"\0".join([called.name.encode(), later, called.args, called.kwargs, wrong])
        return EngineCall(
            id=called.id,
            name=called.name,
            args=args,
            kwargs=kwargs,
            problem=problem,
            stands=not called.later,
            digest=hashlib.blake2b(text, digest_size=16).digest(),
            argument_bytes=size if values else 0,
            argument_values=values,
            line=called.line,
        )

    def _send_value(self, name: str) -> None:
        """Send the guest the value of *name*; a replay gets the value that the first run got."""
        if name not in self._loaded_values:
            if len(self._loaded_values) >= _MAX_LOADED:
                raise messages.UnreadableMessage
            try:
                self._loaded_values[name] = messages.encode_tagged(self._host.load(name))
            except LookupError:
                self._loaded_values[name] = None
        data = self._loaded_values[name]
        answer: dict[str, Any] = {"now": self._host.now_ms}
        self._send(encode_json(answer if data is None else {**answer, "value": msgspec.Raw(data)}))

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def _send(self, data: bytes) -> None:
        worker = self._worker()
        try:
            worker.process.send(data)
        except WorkerDied:
            raise self._death(worker) from None

    def _worker(self) -> CPythonWorker:
        worker = self.worker
        if worker is None or self._host.stopped is not None:
            raise CellStopped
        return worker

    def _death(self, worker: CPythonWorker) -> Exception:
        """Return the exception for a dead process: `CellStopped` if the host killed it, else `GuestDied`."""
        if self._host.stopped is not None:
            return CellStopped()
        worker.meter.peak.bytes()  # read and cached while the process still exists
        worker.end()
        return GuestDied(run_errors.died_error(worker.process.status))

    def _taken(self, worker: CPythonWorker) -> bool:
        """Put the worker into the cell's slot; return False if it died while it was idle."""
        worker.wake()
        self.put_worker(worker)
        try:
            worker.meter.begin(self._limits)
        except WorkerDied:
            return False
        return True

    def _fresh(self) -> CPythonWorker:
        """Return a worker with an empty session; stopping the cell ends the wait for it."""
        try:
            return self._workers.fresh(self.beside)
        except EngineFailed:
            if self._host.stopped is not None:
                raise CellStopped from None
            raise

    def _look(self) -> None:
        """Stop the cell if it exceeds a limit; otherwise schedule the next check."""
        worker = self.worker
        if worker is None:
            return
        try:
            exceeded = worker.meter.exceeded(self._limits, loading=self._loading, packing=self._packing)
        except Exception:  # the process is ending, as the reading thread will notice
            exceeded = None
        if exceeded is not None:
            self._host.stop(exceeded)
        else:
            self._watchdog.watch(self._watch_key, _LOOK_S, self._look)

    def put_aside(self) -> None:
        """Do nothing: the record of the calls is all that a replayed cell needs."""

    def dump(self) -> bytes:
        cell = msgspec.structs.replace(self._cell, inputs=self._inputs or {}, loaded=self._loaded_values)
        return state.encode_dump(cell)

    def load(self) -> Step:
        raise EngineFailed("a cell of CPython cannot be loaded, only replayed")

    def is_in_worker(self) -> bool:
        """Return whether the process is alive; assume so, without checking, if it has just begun to wait."""
        worker = self.worker
        return worker is not None and (
            time.monotonic() - self._waiting_since <= _LONG_S or worker.process.is_alive()
        )

    def memory_peak_bytes(self) -> int | None:
        worker = self.worker
        return worker.meter.peak.bytes() if worker is not None else None

    def release(self, *, warm: bool) -> None:
        self._watchdog.forget(self._watch_key)
        super().release(warm=warm)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _ended(self, ended: messages.RunEnded, data: bytes) -> StepEnded:
        """Convert the end of the run into a step with its value or its error."""
        if (lost := messages.read_error(ended.lost)) is not None:
            raise CellFailed(failures.lost_error(lost))
        if ended.too_large is not None:
            raise CellFailed(failures.too_large_error(ended.too_large))
        value: Json = None
        error: ErrorObject | None = None
        size = ended.size or len(memoryview(ended.result))
        if (raised := messages.read_error(ended.error)) is not None:
            error = self._exceptions.convert(raised)
        elif ended.foreign is not None:
            error = run_errors.not_serializable(ended.foreign)
        elif size > MAX_VALUE_BYTES:
            error = run_errors.result_too_large(f"it is {size} bytes as JSON, the limit is {MAX_VALUE_BYTES}")
        else:
            try:
                value = messages.read_value(ended.result)
            except ValueTooLarge as large:
                error = run_errors.result_too_large(large.limit)
        notes = messages.read_names(ended.notes) or []
        self._end = ended, data
        return StepEnded(result=value, error=error, notes=tuple(notes[:_MAX_NOTES]))

    def keep(self) -> bytes | None:
        """Return the new state, after a trial load if it might not load within a run's memory limit."""
        assert self._end is not None
        ended, payload = self._end
        worker, before = self._worker(), self._before
        try:
            names = messages.read_names(ended.names)
        except messages.UnreadableMessage:
            raise failures.broken() from None
        new: bytes | None = None
        unchanged = before is not None and before.payload == payload and before.names == names
        if names is not None and not unchanged:
            new = state.encode_state(state.CPythonState(payload=payload, names=names, plain=ended.plain))
            most = _LOADED_BY_USED * worker.meter.used_bytes() + _LOADED_BY_PACKED * len(payload)
            untried = not ended.plain and len(payload) > TRIED_BYTES
            if untried or most > self._limits.memory_mb << 20:
                self._try_loading(payload)
        busy = ended.threads or worker.process.has_unread()
        worker.version = None if busy else self._cell.state if new is None else new
        return new

    def _try_loading(self, payload: bytes) -> None:
        """Load *payload* in a separate process; raise `CellFailed` if a later run could not load it.

        Blocks.
        """
        # Some memory and time must remain: loading may need more elsewhere, and code must be able to run.
        worker, limits = self._fresh(), self._limits
        try:
            with self.beside(worker):
                worker.meter.begin(limits)
                worker.process.send(messages.with_bytes(encode_json({"nonce": worker.begin()}), payload))
                message, _ = messages.read_message(worker.process.receive(), worker.nonce)
                lost = messages.read_error(message.lost) if isinstance(message, messages.RunEnded) else None
                computed_ms = worker.meter.computed_ms()
                worker.meter.begin(limits)  # measure what remains in memory after all copies are freed
                used = worker.meter.used_bytes()
        except WorkerDied:
            if self._host.stopped is not None:
                raise CellStopped from None
            raise CellFailed(failures.not_loadable_error("the process that loaded it died")) from None
        except messages.UnreadableMessage:
            raise failures.broken() from None
        finally:
            self._workers.drop(worker)
        if lost is not None:
            raise CellFailed(failures.not_loadable_error(lost.message))
        if computed_ms > limits.cpu_ms + LOADING_MS // 2:
            raise CellFailed(failures.not_loadable_error(f"loading it takes {computed_ms:.0f} ms"))
        if not isinstance(message, messages.SessionLoaded) or used > (limits.memory_mb << 20) * 15 // 16:
            raise CellFailed(failures.not_kept_error(limits))
