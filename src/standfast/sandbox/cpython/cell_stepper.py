"""One cell in a jailed CPython process, as the lifecycle steps it.

No process can be stored in the middle of a run, so a cell that was put aside is replayed: its code runs
again in another process, and gets the recorded answers.

Rules
-----
1. Whatever the guest sends is checked. A message that makes no sense ends its process, and the cell with it.
2. Inputs and loaded values are part of the dump, so code that runs again sees what it saw.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any, Final

import msgspec

from standfast.errors import EngineFailed, ErrorObject, InvalidArgument, ValueTooLarge
from standfast.model.bounds import MAX_VALUE_BYTES, count_json_nodes
from standfast.model.canonical import Json
from standfast.ports.cell_stepper import (
    CellFailed,
    CellStopped,
    EngineCall,
    Step,
    StepBlocked,
    StepEnded,
    StepperHost,
)
from standfast.ports.code_engine import SLEEP, CallAnswer
from standfast.sandbox.cpython import failures, messages, passing
from standfast.sandbox.cpython.failures import CallErrors, Circumstances
from standfast.sandbox.cpython.guest import TRIED_BYTES
from standfast.sandbox.cpython.jail import JailProcess
from standfast.sandbox.cpython.messages import (
    Called,
    Loaded,
    LoadName,
    OfAnotherRun,
    OutOfMemory,
    Printed,
    Ran,
    Unreadable,
    read_message,
    read_names,
    read_value,
    with_bytes,
)
from standfast.sandbox.cpython.reading import awaited_sites, leaves_unchanged
from standfast.sandbox.cpython.state import (
    CellDump,
    SessionState,
    decode_dump,
    decode_state,
    encode_dump,
    encode_state,
)
from standfast.sandbox.cpython.workers import Worker, Workers
from standfast.sandbox.run_errors import (
    argument_not_json,
    cpu_error,
    died_error,
    memory_error,
    not_serializable,
    request_too_large,
    result_too_large,
)
from standfast.sandbox.worker_process import WorkerDied
from standfast.sandbox.workers import Watchdog, WorkerSlot

_LOOK_S: Final = 0.02
_LOADING_MS: Final = 2_000
"""What loading the session may compute in addition to `cpu_ms`. It is none of the code's computing."""
_LONG_S: Final = 0.05
_SLACK_BYTES: Final = 1_000
_MAX_LOADED: Final = 10_000
_MAX_NOTES: Final = 100
_FOR_EVER_S: Final = sys.float_info.max
_LOADED_BY_USED: Final = 2
"""Loaded values take at most twice what they took when they were packed: containers may be a step larger."""
_LOADED_BY_PACKED: Final = 16
"""Numbers that were one object are many when they are loaded: 3 bytes of the pickle, and up to 41 each."""


class GuestDied(CellFailed):
    """Its process ended by itself."""


class CPythonStepper:
    """A `CellStepper`. `packages` are those that guest code may import."""

    replayed = True
    wall_grace_s = 0.0
    instructions: int | None = None

    def __init__(
        self,
        host: StepperHost,
        workers: Workers,
        watchdog: Watchdog,
        packages: tuple[str, ...],
        dump: bytes,
    ) -> None:
        request = host.request
        paused = decode_dump(dump) if dump else None
        self._host = host
        self._workers = workers
        self._watchdog = watchdog
        self._packages = packages
        self._limits = request.limits
        self._slot = WorkerSlot(workers, request.key)
        self._code = paused.code if paused else request.code
        self._state = paused.state if paused else request.state
        self._before = decode_state(self._state)
        self._inputs: dict[str, bytes] | None = paused.inputs if paused else None
        self._loaded_values: dict[str, bytes | None] = dict(paused.loaded) if paused else {}
        self._seed = paused.seed if paused else request.seed
        self._call_errors: CallErrors = {}
        self._called = False
        self._loading = self._packing = False
        self._stood_at = 0.0
        self._looking = object()
        self._end: tuple[messages.Ended, bytes] | None = None

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        self._slot.take()

    def begin(self) -> Step:
        """Send the run to a worker that holds the session, and listen."""
        if self._inputs is None:
            self._inputs = self._passed_inputs()
        self._slot.take()
        worker = self._attached()
        try:
            self._send(self._run_message(worker, self._inputs))
            return self._next()
        except (GuestDied, OfAnotherRun) as error:
            if not worker.warm or self._called:
                raise failures.broken() if isinstance(error, OfAnotherRun) else error from None
        self._slot.drop()  # an earlier run has spoiled it, or it died while idle; this one did nothing yet
        self._host.output.forget()
        return self.begin()

    def proceed(self) -> Step:
        return self._next()

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        message: dict[str, Any] = {"id": call_id, "now": self._host.now_ms}
        if answer.exception is not None:
            if answer.error is not None:
                failures.remember(self._call_errors, answer.exception, answer.error)
            message["x"] = [answer.exception.type, answer.exception.message]
        else:
            message["v"] = answer.value
        self._send(passing.encode(message))
        return self._next()

    def raises_at_call(self, answer: CallAnswer) -> bool:
        return False

    def _passed_inputs(self) -> dict[str, bytes]:
        try:
            return {name: passing.encode_tagged(value) for name, value in self._host.request.inputs.items()}
        except (InvalidArgument, OverflowError) as error:
            raise CellFailed(failures.not_passed_error(error)) from None

    def _run_message(self, worker: Worker, inputs: dict[str, bytes]) -> bytes:
        loads = worker.version != self._state and self._before is not None
        request = self._host.request
        message = {
            "nonce": worker.begin(),
            "code": self._code,
            "inputs": {name: msgspec.Raw(data) for name, data in inputs.items()},
            "functions": list(request.functions.names()),
            "later": awaited_sites(self._code),
            "loads": request.load is not None or bool(self._loaded_values),
            "now": self._host.now_ms,
            "seed": self._seed,
            "depth": self._limits.max_stack_depth,
            "stdout_cap": self._limits.max_stdout_bytes,
            "pure": leaves_unchanged(self._code, self._before),
        }
        text = passing.encode(message)
        return with_bytes(text, self._before.payload) if loads and self._before else text

    def _next(self) -> Step:
        """Listen to the guest until it makes a call, waits or has ended."""
        try:
            return self._listened()
        except OfAnotherRun:
            if not self._called:
                raise  # `begin` decides
            raise failures.broken() from None
        except Unreadable:
            raise failures.broken() from None

    def _listened(self) -> Step:
        while True:
            message, data = self._receive()
            match message:
                case Called():
                    self._called = True
                    return self._engine_call(message)
                case messages.Blocked():
                    self._stood_at = time.monotonic()
                    return StepBlocked()
                case messages.Ended():
                    return self._ended(message, data)
                case Printed():
                    self._host.output(message.stream, message.text)
                case Loaded():
                    self._on_loaded()
                case LoadName():
                    self._on_load(message.name)
                case Ran():
                    self._packing = True  # storing what the code left may take more memory than the code had
                    if self._worker().meter.needs_more_than(self._limits, message.peak):
                        raise CellFailed(memory_error(self._limits))
                case OutOfMemory():
                    raise CellFailed(self._memory_error())
                case _:
                    raise Unreadable

    def _engine_call(self, called: Called) -> EngineCall:
        """Convert a call. Its name and sizes are checked before its arguments are decoded."""
        request = self._host.request
        sleeps = called.name == SLEEP and SLEEP not in request.functions
        if self._loading or self._packing or not (sleeps or called.name in request.functions):
            raise Unreadable  # an honest guest knows what it may call
        self._stood_at = time.monotonic()
        size = len(memoryview(called.args)) + len(memoryview(called.kwargs))
        limit = 0 if sleeps else request.functions.capability(called.name).limits.max_request_bytes
        problem: ErrorObject | None = None
        if called.problem is not None:
            explain = request_too_large if called.too_large else argument_not_json
            problem = explain(called.name, called.problem)
        elif size > limit + limit // 4 + _SLACK_BYTES:  # the guest writes some numbers longer than we do
            problem = request_too_large(called.name, f"the limit is {limit} bytes as JSON")
        args: Json = []
        kwargs: Json = {}
        values = 0
        if problem is None:
            values = count_json_nodes(called.args) + count_json_nodes(called.kwargs)
            try:
                args, kwargs = read_value(called.args), read_value(called.kwargs)
            except ValueTooLarge as error:
                problem = request_too_large(called.name, error.limit)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise Unreadable
        if sleeps and not _is_sleep(args, kwargs):
            raise Unreadable
        return EngineCall(
            id=called.id,
            name=called.name,
            args=args,
            kwargs=kwargs,
            problem=problem,
            stands=not called.later,
            digest=_digest_of(called),
            argument_bytes=size if values else 0,
            argument_values=values,
        )

    def _on_loaded(self) -> None:
        """Let the code run in the loaded session. What the code uses is measured from here on."""
        worker = self._worker()
        if not self._loading:
            raise Unreadable
        try:
            worker.meter.begin(self._limits)
        except WorkerDied:
            raise self._death(worker) from None
        if worker.meter.needs_more_than(self._limits):
            raise CellFailed(failures.not_loaded_error(self._limits))
        self._loading = False
        self._send(b"{}")

    def _on_load(self, name: str) -> None:
        """Give the guest a value by its name, the same one as before if it runs again."""
        if name not in self._loaded_values:
            if len(self._loaded_values) >= _MAX_LOADED:
                raise Unreadable
            try:
                self._loaded_values[name] = passing.encode_tagged(self._host.load(name))
            except LookupError:
                self._loaded_values[name] = None
        data = self._loaded_values[name]
        answer: dict[str, Any] = {"now": self._host.now_ms}
        self._send(passing.encode(answer if data is None else {**answer, "value": msgspec.Raw(data)}))

    def _memory_error(self) -> ErrorObject:
        """What it means that the guest has run out of memory: that depends on what it was doing."""
        if self._loading:
            return failures.not_loaded_error(self._limits)
        return (failures.not_kept_error if self._packing else memory_error)(self._limits)

    # ── the guest ────────────────────────────────────────────────────────────────────────────────

    def _send(self, data: bytes) -> None:
        worker = self._worker()
        try:
            worker.process.send(data)
        except WorkerDied:
            raise self._death(worker) from None

    def _receive(self) -> tuple[messages.Message, bytes]:
        worker = self._worker()
        try:
            frame = worker.process.receive()
        except WorkerDied:
            raise self._death(worker) from None
        return read_message(frame, worker.nonce)

    def _worker(self) -> Worker:
        worker = self._slot.worker
        if worker is None or self._host.stopped is not None:
            raise CellStopped
        return worker

    def _death(self, worker: Worker) -> Exception:
        """What the end of the process means: a stop, or that it died of what it did."""
        if self._host.stopped is not None:
            return CellStopped()
        worker.meter.peak.bytes()  # remembered, for when the process is gone
        worker.end()
        return GuestDied(died_error(worker.process.status))

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def _attached(self) -> Worker:
        """Return a worker that holds the session's state, or nothing yet. The cell's process from here on."""
        if self._host.stopped is not None:
            raise CellStopped
        worker = self._slot.worker
        if worker is None or not worker.holds(self._state) or not self._begun(worker):
            self._slot.drop()
            worker = self._fresh()
            if not self._begun(worker):
                raise self._death(worker)
        self._loading = worker.version != self._state
        self._packing = False
        self._watchdog.watch(self._looking, _LOOK_S, self._look)
        return worker

    def _fresh(self) -> Worker:
        """Return a worker with an empty session. A stop ends the waiting for it."""
        starting: list[JailProcess] = []

        def started(process: JailProcess) -> None:
            starting.append(process)
            self._slot.add(process)

        try:
            return self._workers.fresh(started)
        except EngineFailed:
            if self._host.stopped is not None:
                raise CellStopped from None
            raise
        finally:
            for process in starting:
                self._slot.discard(process)

    def _begun(self, worker: Worker) -> bool:
        """Make the worker the cell's own; false if it died while it was idle."""
        worker.go_on()
        self._slot.put(worker)
        try:
            worker.meter.begin(self._limits)
        except WorkerDied:
            return False
        return True

    def _look(self) -> None:
        """Stop the cell if it uses more than it may; look again in a moment if not."""
        worker = self._slot.worker
        if worker is None:
            return
        try:
            used_up = self._used_up(worker)
        except Exception:  # it is ending; the thread that listens will know, and the watchdog must live
            used_up = None
        if used_up is not None:
            self._host.stop(used_up)
        else:
            self._watchdog.watch(self._looking, _LOOK_S, self._look)

    def _used_up(self, worker: Worker) -> ErrorObject | None:
        if worker.meter.computed_ms() > self._limits.cpu_ms + (_LOADING_MS if self._loading else 0):
            return cpu_error(self._limits)
        if not (self._loading or self._packing) and worker.meter.needs_more_than(self._limits):
            return memory_error(self._limits)
        if worker.meter.has_too_many_threads():
            return failures.threads_error()
        return failures.files_error() if worker.meter.files_too_large() else None

    def put_aside(self) -> None:
        """Nothing can be taken out of the process: the record of the calls is all that is needed."""

    def dump(self) -> bytes:
        return encode_dump(
            CellDump(
                code=self._code,
                state=self._state,
                inputs=self._inputs or {},
                loaded=self._loaded_values,
                seed=self._seed,
            )
        )

    def load(self) -> Step:
        raise EngineFailed("a cell of CPython is replayed, and not loaded")

    def is_in_worker(self) -> bool:
        """Whether the process is there. One that waited a moment ago is not looked at."""
        worker = self._slot.worker
        return worker is not None and (
            time.monotonic() - self._stood_at <= _LONG_S or worker.process.is_alive()
        )

    def memory_peak_bytes(self) -> int | None:
        worker = self._slot.worker
        return worker.meter.peak.bytes() if worker is not None else None

    def release(self, *, warm: bool) -> None:
        self._watchdog.forget(self._looking)
        self._slot.release(warm=warm)

    def kill(self) -> None:
        self._slot.kill()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _ended(self, ended: messages.Ended, data: bytes) -> StepEnded:
        if ended.lost is not None:
            raise CellFailed(failures.lost_error(ended.lost))
        if ended.too_large is not None:
            raise CellFailed(failures.too_large_error(ended.too_large))
        value, error = self._outcome(ended)
        notes = read_names(ended.notes) or []
        self._end = ended, data
        return StepEnded(result=value, error=error, notes=tuple(notes[:_MAX_NOTES]))

    def _outcome(self, ended: messages.Ended) -> tuple[Json, ErrorObject | None]:
        """Return the value of the code, or what is wrong with it."""
        if ended.error is not None:
            functions = self._host.request.functions
            known = Circumstances(self._code, self._limits, functions, self._call_errors, self._packages)
            return None, failures.describe(ended.error, known)
        if ended.foreign is not None:
            return None, not_serializable(ended.foreign)
        size = ended.size or len(memoryview(ended.result))
        if size > MAX_VALUE_BYTES:
            return None, result_too_large(f"it is {size} bytes as JSON, the limit is {MAX_VALUE_BYTES}")
        try:
            return read_value(ended.result), None
        except ValueTooLarge as error:
            return None, result_too_large(error.limit)

    def keep(self) -> bytes | None:
        assert self._end is not None
        ended, payload = self._end
        worker, before = self._worker(), self._before
        try:
            names = read_names(ended.names)
        except Unreadable:
            raise failures.broken() from None
        state: bytes | None = None
        if names is not None and not (
            before is not None and before.payload == payload and before.names == names
        ):
            state = encode_state(SessionState(payload=payload, names=names, plain=ended.plain))
            if self._may_not_load(worker, payload, ended.plain):
                self._try_loading(payload)
        busy = ended.threads or worker.process.has_unread()
        worker.version = None if busy else self._state if state is None else state
        return state

    def _may_not_load(self, worker: Worker, payload: bytes, plain: bool) -> bool:
        """Whether it must be tried if *payload* can be loaded within the memory that a run has."""
        if not plain and len(payload) > TRIED_BYTES:
            return True
        used = worker.meter.used_bytes()
        return _LOADED_BY_USED * used + _LOADED_BY_PACKED * len(payload) > self._limits.memory_mb << 20

    def _try_loading(self, payload: bytes) -> None:
        """Load *payload* in a process of its own; raise `CellFailed` if a later run could not. Blocking.

        A little memory and time must be left, so that what loads here loads everywhere, and code can run.
        """
        worker = self._fresh()
        try:
            with self._slot.beside(worker):
                worker.meter.begin(self._limits)
                worker.process.send(with_bytes(passing.encode({"nonce": worker.begin()}), payload))
                message, _ = read_message(worker.process.receive(), worker.nonce)
                computed_ms = worker.meter.computed_ms()
                worker.meter.begin(self._limits)  # what remains in memory now, all copies are freed
                used = worker.meter.used_bytes()
        except WorkerDied:
            if self._host.stopped is not None:
                raise CellStopped from None
            raise CellFailed(failures.not_loadable_error("the process that loaded it died")) from None
        except Unreadable:
            raise failures.broken() from None
        finally:
            self._workers.drop(worker)
        if isinstance(message, messages.Ended) and message.lost is not None:
            raise CellFailed(failures.not_loadable_error(message.lost.message))
        if computed_ms > self._limits.cpu_ms + _LOADING_MS // 2:
            raise CellFailed(failures.not_loadable_error(f"loading it takes {computed_ms:.0f} ms"))
        if not isinstance(message, Loaded) or used > (self._limits.memory_mb << 20) * 15 // 16:
            raise CellFailed(failures.not_kept_error(self._limits))


def _is_sleep(args: list[Json], kwargs: dict[str, Json]) -> bool:
    """Whether a call is one that sleeping makes."""
    seconds = kwargs.get("seconds")
    return not args and len(kwargs) == 1 and isinstance(seconds, (int, float)) and 0 <= seconds <= _FOR_EVER_S


def _digest_of(call: Called) -> bytes:
    """Name and arguments of a call, in short."""
    text = b"\0".join(
        [
            call.name.encode(),
            b"1" if call.later else b"0",
            call.args,
            call.kwargs,
            (call.problem or "").encode(),
        ]
    )
    return hashlib.blake2b(text, digest_size=16).digest()
