"""The QuickJS engine, which runs TypeScript cells, and the stepper of one cell.

A worker enters the guest and runs it until it needs something from outside. The reply has the calls that the
code made, and whether it waits for any of them. So between two entries a cell always waits, and its whole
state is in the guest: a cell that was put aside is the guest's memory.

`SystemExit` is not passed to the code, which could catch it: the code ends where it is, and keeps the
variables it has bound. A cell ends when its code has ended and every call that it made is answered. Remaining
timers are dropped.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection
from typing import Final

import msgspec

from standfast.errors import Code, EngineFailed, ErrorObject, ScriptRefused, ValueTooLarge
from standfast.model.canonical import Json, check_json_bounds, encode_json, read_json
from standfast.model.capability import GuestException
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
from standfast.ports.code_engine import SLEEP, CallAnswer, CellFunctions, Check, NamesRead
from standfast.sandbox import run_errors
from standfast.sandbox.cell_lifecycle import SteppedCells, corrupt, text_problem
from standfast.sandbox.quickjs import frames, inputs, state
from standfast.sandbox.quickjs.failures import ErrorSource, line_of, stopped_error, syntax_error, thrown_error
from standfast.sandbox.quickjs.state import decode_state, read_cell
from standfast.sandbox.quickjs.workers import QuickJsWorker, QuickJsWorkers
from standfast.sandbox.typescript.checks import check_script, touched_names
from standfast.sandbox.typescript.script import Script, read_script
from standfast.sandbox.typescript.types import check_types
from standfast.sandbox.worker_process import WorkerDied
from standfast.sandbox.workers import SlotStepper


class QuickJsCells(SteppedCells):
    """Runs the cells of many sessions, from many threads. The first cell starts the engine's processes."""

    language = Language.TYPESCRIPT
    former_cell = staticmethod(read_cell)

    def __init__(self, *, capacity: int = 8) -> None:
        self._workers = QuickJsWorkers(capacity)
        super().__init__(self._workers)

    def stepper(self, host: StepperHost, dump: bytes) -> QuickJsStepper:
        return QuickJsStepper(host, self._workers, dump)

    def prepare(self) -> None:
        """Start a worker, which compiles the guest; without a cached result this takes seconds."""
        self._workers.prepare()

    def names(self, state: bytes) -> list[str]:
        return list(decode_state(state).names)

    def touched(self, code: str, names: Collection[str]) -> NamesRead:
        return NamesRead(touched_names(code, names) if text_problem(code) is None else {})

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        if (problem := text_problem(code)) is not None:
            return [problem]
        bound = frozenset(self.names(state))
        look = check_script if check == "calls" else check_types
        return look(code, bound=bound, functions=functions, inputs=inputs)


EXIT: Final = "SystemExit"
_MAX_LINES: Final = 10_000
_MAX_PLACES: Final = 1_000
_MAX_MEMORY: Final = (1 << 32) - (1 << 20)
_NO_POLL: Final = frames.Poll([], "", "", 0, "stuck")
_read_arguments: Final = msgspec.json.Decoder(list).decode


class QuickJsStepper(SlotStepper[QuickJsWorker]):
    """A `CellStepper`. `_image` is the guest's memory if the cell was put aside."""

    wall_grace_s = 0.5
    """How long a busy worker may take to stop by itself, and report its output, before it is killed."""

    def __init__(self, host: StepperHost, workers: QuickJsWorkers, dump: bytes) -> None:
        request = host.request
        paused = state.decode_dump(dump) if dump else None
        super().__init__(host, workers)
        self._workers = workers
        self._before = state.decode_state(request.state)
        known = paused or self._before
        self._lines = known.lines
        self._free, self._asked = list(known.free), list(known.asked)
        self._image = paused.image if paused else None
        self._cpu_us = paused.cpu_used_us if paused else 0
        self.instructions = paused.instructions if paused else 0
        self._memory_bytes = 0
        self._given: dict[str, str] = {}
        self._lazy: list[str] = []
        self._known_code: ErrorSource | None = None
        self._refused: ErrorObject | None = None
        self._is_open = False
        self._places: dict[tuple[str | None, str], int | None] = {}
        self._new_calls: deque[frames.Call] = deque()
        self._left: tuple[frames.GuestReply, list[str] | None] | None = None

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Let a worker that holds the session prepare the guest while this process parses the code."""
        super().prepare()
        worker, request = self.worker, self._host.request
        if worker is not None and not worker.is_alive():
            self.drop_worker()
        elif worker is not None and worker.version == request.state:
            with contextlib.suppress(CellStopped, WorkerDied):  # `begin` handles it
                self._open(None)
                self._is_open = True
        try:
            script = self._code.script
            self._given = inputs.bridge_inputs(request.inputs)
            if request.load is not None or request.inputs:
                self._find_outside_names(script)
        except ScriptRefused as refused:
            self._refused = refused.error_object()

    def begin(self) -> Step:
        """Run the code, in another worker if the first one does not hold the session or died while idle."""
        if self._refused is not None:
            return StepEnded(error=self._refused, refused=True)
        script = self._code.script
        run = frames.Run(
            code="\n" * self._lines + script.javascript,
            inputs=self._given,
            lazy=self._lazy,
            binds_result=script.binds_result,
            bounds=self._bounds(),
            early=self._host.request.through is not None,
        )
        if self._is_open:
            with contextlib.suppress(WorkerDied):
                reply = self._ask(run)
                if reply.stop != "gone":
                    return self._taken_in(reply)
        try:
            self._open(self._before.image)
        except WorkerDied:
            raise CellStopped from None
        return self._taken_in(self._ask(run, last=True))

    def proceed(self) -> Step:
        return self._engine_call(self._new_calls.popleft()) if self._new_calls else StepBlocked()

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        seen, error = answer.exception, answer.error
        if seen is not None and seen.type == EXIT:
            return self._exit(seen, error)
        settled: tuple[object, ...] = (call_id, 0, answer.value)
        if seen is not None:
            code = error.code if error is not None else None
            settled = (call_id, 1, (seen.type, seen.message, code, error))
        now_ms, request = self._host.now_ms, self._host.request
        early, answers = request.through is not None, [encode_json(settled)]
        image, self._image = self._image, None
        return self._taken_in(
            self._ask(frames.Settle(answers, image, now_ms, request.seed, self._bounds(), early))
        )

    def raises_at_call(self, answer: CallAnswer) -> bool:
        return answer.exception is not None and answer.exception.type == EXIT

    def _taken_in(self, reply: frames.GuestReply) -> Step:
        """Add the output in a worker's reply, and return its first call, its wait or its end as a step."""
        self._count(reply)
        try:
            poll = frames.decode_poll(reply.poll) if reply.poll else _NO_POLL
        except msgspec.DecodeError as problem:
            raise EngineFailed(f"the guest sent an invalid report: {problem}") from None
        if poll.stdout:
            self._host.output("stdout", poll.stdout)
        if poll.stderr:
            self._host.output("stderr", poll.stderr)
        if poll.printed > self._limits.max_stdout_bytes:
            self._host.output.truncated = True
        if reply.stop == "version":
            raise state.other_build()
        if reply.stop == "corrupt":
            raise corrupt("session's state", reply.detail[0])
        if reply.stop == "syntax":
            return StepEnded(error=syntax_error(reply.detail, self._code), refused=True)
        if reply.stop:
            raise CellFailed(stopped_error(reply, self._limits))
        if poll.outcome == "waits":
            self._new_calls.extend(poll.calls)
            return self.proceed()
        if poll.outcome == "stuck":
            raise CellFailed(run_errors.deadlock_error())
        self._left = reply, poll.names
        error, result = self._outcome(poll)
        return StepEnded(result=result, error=error)

    def _engine_call(self, call: frames.Call) -> EngineCall:
        call_id, name, raw, problem, place = call
        if (name, place) not in self._places:
            if len(self._places) >= _MAX_PLACES:
                self._places.clear()
            self._places[name, place] = line_of(place, name, self._code)
        line = self._places[name, place]
        if name is None:
            seconds = max(0.0, float(msgspec.json.decode(raw)))
            return EngineCall(id=call_id, name=SLEEP, kwargs={"seconds": seconds}, stands=False, line=line)
        functions = self._host.request.functions
        if name not in functions:  # a function that the session had earlier; its arguments are not decoded
            error = ErrorObject(code=Code.UNKNOWN_TOOL, message=f"{name}() is no longer a capability")
            seen = GuestException(type="ReferenceError", message=error.message)
            return EngineCall(
                id=call_id, name=name, stands=False, answer=CallAnswer(exception=seen, error=error)
            )
        if problem is not None:
            error = run_errors.argument_not_json(name, problem)
            return EngineCall(id=call_id, name=name, problem=error, stands=False, line=line)
        capability = functions.capability(name)
        try:
            check_json_bounds(raw, max_bytes=capability.limits.max_request_bytes)
        except ValueTooLarge as large:
            error = run_errors.request_too_large(name, large.limit)
            return EngineCall(id=call_id, name=name, problem=error, stands=False, line=line)
        args = _read_arguments(raw)
        if (named := inputs.named_arguments(args, capability)) is not None:
            return EngineCall(id=call_id, name=name, kwargs=named, stands=False, line=line)
        return EngineCall(id=call_id, name=name, args=args, stands=False, line=line)

    def _exit(self, exception: GuestException, known: ErrorObject | None) -> StepEnded:
        """End the code where it is, with the error of an exit."""
        self._new_calls.clear()
        image, self._image = self._image, None
        reply = self._ask(frames.Finish(image=image, bounds=self._bounds()))
        self._count(reply)
        if reply.stop:
            raise CellFailed(stopped_error(reply, self._limits))
        self._left = reply, None
        message = f"{EXIT}: {exception.message}"
        return StepEnded(error=known or ErrorObject(code=Code.RUNTIME_ERROR, message=message))

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def _open(self, image: frames.Image | None) -> None:
        """Make the worker prepare a guest for a run; raise `WorkerDied` if it cannot."""
        now_ms, request = self._host.now_ms, self._host.request
        functions = msgspec.json.encode(list(request.functions.names()))
        worker = self._worker()
        worker.runs += 1
        try:
            worker.send(frames.Open(image, functions, now_ms, request.seed, self._bounds()))
        except WorkerDied:
            self.drop_worker()
            raise

    def _ask(self, question: frames.Question, *, last: bool = False) -> frames.GuestReply:
        """Send the worker a request, supply the values that it requests, and return its reply."""
        # A worker's death ends the cell. One that dies before it runs code may have been dead before: then
        # `WorkerDied` is raised, so that the caller can use another worker, unless this is the *last*
        # attempt.
        worker = self._worker()
        worker.version = None
        try:
            got = worker.ask(question)
            while isinstance(got, frames.NameRequested):
                try:
                    value = inputs.loaded(self._host.load, got.name)
                except BaseException:
                    self.drop_worker()  # it is in the middle of a request
                    raise
                got = worker.ask(frames.Given(value))
        except WorkerDied:
            self.drop_worker()
            if self._host.stopped is None and isinstance(question, frames.Run) and not last:
                raise
            raise CellStopped from None
        if self._host.stopped is not None:
            raise CellStopped
        return got

    def _worker(self) -> QuickJsWorker:
        """Return the worker in the slot, starting one if there is none."""
        if self._host.stopped is not None:
            raise CellStopped
        if (worker := self.worker) is None:
            super().prepare()
            worker = self.put_worker(self.worker or self._workers.attach())
        return worker

    def put_aside(self) -> None:
        worker = self.worker
        if self._image is not None or worker is None:
            return
        try:
            reply = worker.ask(frames.Dump())
        except WorkerDied:
            raise EngineFailed("the cell cannot be suspended: its worker died") from None
        if not isinstance(reply, frames.GuestReply) or reply.image is None:
            raise EngineFailed("the cell cannot be suspended: its worker does not hold it")
        self._image = reply.image

    def dump(self) -> bytes:
        if self._image is None:
            raise EngineFailed("the cell cannot be suspended: its worker is gone")
        dump = state.QuickJsDump(
            image=self._image,
            lines=self._lines,
            free=self._free,
            asked=self._asked,
            cpu_used_us=self._cpu_us,
            instructions=self.instructions or 0,
        )
        return state.encode_dump(dump)

    def load(self) -> Step:
        """Report that the cell waits. The guest's memory is sent to the worker with the next answer."""
        return StepBlocked()

    def memory_peak_bytes(self) -> int | None:
        return self._memory_bytes or None

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _outcome(self, poll: frames.Poll) -> tuple[ErrorObject | None, Json]:
        """Return the error or the value that the code ended with."""
        if poll.outcome == "error":
            thrown = frames.Thrown("Error", "the code threw a value that cannot be described", "")
            with contextlib.suppress(msgspec.DecodeError):
                thrown = msgspec.json.decode(poll.detail, type=frames.Thrown)
            return thrown_error(thrown, self._code), None
        if poll.outcome == "foreign":
            return run_errors.not_serializable(msgspec.json.decode(poll.detail, type=str)), None
        try:
            check_json_bounds(poll.detail)
        except ValueTooLarge as error:
            return run_errors.result_too_large(error.limit), None
        return None, read_json(poll.detail)

    def keep(self) -> bytes:
        """Return the session's state, receiving it from the worker if it was not part of the reply."""
        assert self._left is not None
        reply, names = self._left
        worker = self._worker()
        if reply.more:
            try:
                received = worker.receive()
            except WorkerDied:
                self.drop_worker()
                raise CellStopped from None
            if self._host.stopped is not None or not isinstance(received, frames.GuestReply):
                raise CellStopped
            reply = received
            self._count(reply)
        if reply.stop:
            raise CellFailed(stopped_error(reply, self._limits))
        assert reply.image is not None
        bound = set(msgspec.json.decode(reply.names, type=list[str]) if names is None else names)
        lines = self._lines + self._code.script.javascript.count("\n") + 2
        free = [name for name in self._free if name not in bound][-inputs.MAX_FREE :]
        asked = [name for name in self._asked if name not in bound][-inputs.MAX_FREE :]
        next_line = lines if lines < _MAX_LINES else 1
        kept = state.QuickJsState(reply.image, sorted(bound), next_line, free, asked)
        worker.version = data = state.encode_state(kept)
        return data

    # ── parts ────────────────────────────────────────────────────────────────────────────────────

    @property
    def _code(self) -> ErrorSource:
        """The parsed code. The code of a resumed cell is parsed only when it is needed."""
        if self._known_code is None:
            script = read_script(self._host.request.code)
            self._known_code = ErrorSource(script, self._lines, self._limits, self._host.request.functions)
        return self._known_code

    def _find_outside_names(self, script: Script) -> None:
        """Find names that the code reads and nothing binds: outside values, which are loaded when read."""
        # For a name in a `typeof` expression, it must be known in advance whether there is a value.
        request = self._host.request
        known = {*self._before.names, *request.functions.names()}
        new = inputs.free_names(script, known.union(self._free))
        self._free = [name for name in [*self._free, *new] if name not in known]
        types_asked = set(inputs.TYPEOF.findall(script.code))  # `typeof` also accepts unbound names
        asked = [*self._asked, *(name for name in self._free if name in types_asked)]
        self._asked = [name for name in dict.fromkeys(asked) if name not in known]
        if request.load is None:
            return
        self._lazy = [name for name in self._free if name not in {*self._given, *self._asked}]
        for name in self._asked:
            if name not in self._given and (text := inputs.loaded(self._host.load, name)):
                self._given[name] = text

    def _count(self, reply: frames.GuestReply) -> None:
        self._cpu_us += reply.cpu_us
        self.instructions = (self.instructions or 0) + reply.instructions
        self._memory_bytes = max(self._memory_bytes, reply.memory_bytes)

    def _bounds(self) -> frames.Bounds:
        limits = self._limits
        return frames.Bounds(
            memory_bytes=min(limits.memory_mb << 20, _MAX_MEMORY),
            cpu_ms=max(1, limits.cpu_ms - self._cpu_us // 1000),
            wall_ms=max(1, limits.wall_ms - self._host.duration_ms()),
            depth=limits.max_stack_depth,
            stdout_chars=limits.max_stdout_bytes,
        )
