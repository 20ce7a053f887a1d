"""The lifecycle of a cell on any engine: start, pause, answer, suspend, resume, lend, stop, end.

Theory of operation
-------------------
The engine's stepper (`ports.cell_stepper`) runs the code from call to call. The cell pauses when the code
cannot continue: it is blocked at a call (it *stands* there), or all of its tasks wait. A pause reports the
calls made since the previous one::

    start ─ step ─ stands at f() ──────── answer ─ step ─ waits for g(), h() ─ answer ─ step ─ … ─ end
                   CellPause(f)                           CellPause(g, h)

A cell that waits lends its worker: if another session needs the worker, the cell is put aside and loaded
again with the next answer. A suspended cell is a cell that was put aside, as bytes. If an engine cannot load
code in the middle of its execution, the cell is *replayed* instead: the code runs again, each call is
compared with the recorded one, and gets the recorded answer. The output of the replay replaces that of the
first run.

Rules
-----
1. The code gets one answer at a time. An answer that it cannot take yet (it stands at another call) is
   kept; as soon as the code waits, it gets the kept answers in the order of their arrival.
2. A call that is answered immediately (`CellRequest.answer_now`) has no number and is not counted.
3. A cell ends once. A stop after its end has no effect.
4. `stop` and `hand_back` may be called from any thread, all other methods by one thread at a time.

Layout of a suspended cell
--------------------------
magic `SFCELL1`, CRC-32 of the rest (u32), `PausedCell` as MessagePack. The layout is the same for every
engine, with the engine's own dump in it. Cells suspended before it existed have a format of their engine;
`read_former_cell` reads the part that those formats share.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar

import msgspec

from standfast.errors import Code, EngineFailed, ErrorObject, InvalidArgument, SnapshotRefused, StandfastError
from standfast.model.canonical import encode_json
from standfast.model.code import Diagnostic, Language, Severity
from standfast.ports.cell_stepper import (
    CellFailed,
    CellStepper,
    CellStopped,
    EngineCall,
    Step,
    StepBlocked,
    StepEnded,
    StepperHost,
)
from standfast.ports.code_engine import (
    CallAnswer,
    CellCall,
    CellEnd,
    CellFunctions,
    CellOutput,
    CellPause,
    CellRequest,
    CellStep,
    Check,
    NamesRead,
)
from standfast.sandbox import run_errors
from standfast.sandbox.workers import Watchdog, WorkerSlots

MAX_ARGUMENT_BYTES: Final = 32 << 20
"""The limit for the arguments of all calls of one pause together: decoded, they take far more memory."""
MAX_ARGUMENT_VALUES: Final = 1_000_000
NOTHING_PRINTED: Final = CellOutput("", "", False)
FLOOD_FACTOR: Final = 16
"""A run that prints more than the limit times this factor is ended."""
_MAGIC: Final = b"SFCELL1\n"
_HEAD: Final = struct.Struct("<8sI")
_SMALL_BYTES: Final = 64 << 10
_KNOWN_STATES: Final = 32

P = ParamSpec("P")
T = TypeVar("T")
Answered = tuple[int, CallAnswer]


class MadeCall(msgspec.Struct, frozen=True, array_like=True):
    """A recorded call of a replayed cell, with its answer as JSON if it was answered immediately."""

    digest: bytes
    answer: bytes | None = None


class PausedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that waits for calls.

    `calls` are the stepper's ids of unanswered calls, by number; `at` is the number of the call that the code
    stands at. `ready` are answers that the code could not take yet, by the stepper's ids. Answers are JSON
    because its integers have no limit. `made` and `answers` are the record of a replayed cell.
    """

    dump: bytes = b""
    calls: dict[int, int] = {}
    at: int | None = None
    ready: list[tuple[int, bytes]] = []
    made: list[MadeCall] = []
    answers: list[tuple[int, bytes]] = []
    calls_made: int = 0
    began_ms: int = 0
    now_ms: int = 0
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    wall_used_ms: int = 0
    memory_peak_bytes: int | None = None


def encode_cell(cell: PausedCell) -> bytes:
    body = msgspec.msgpack.encode(cell)
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def decode_cell(data: bytes) -> PausedCell | None:
    """Decode a cell that `encode_cell` wrote; return None if *data* has another format."""
    if not data.startswith(_MAGIC):
        return None
    body = data[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[1] != zlib.crc32(body):
        raise corrupt("suspended cell", "its checksum does not match")
    return decoded(PausedCell, body, "suspended cell")


def read_former_cell(data: bytes, dump: bytes) -> PausedCell:
    """Decode the common part of a former format; *dump* is the engine's part."""
    return msgspec.structs.replace(decoded(PausedCell, data, "suspended cell"), dump=dump)


def decode_answer(data: bytes) -> CallAnswer:
    """Decode an answer that was stored with a cell."""
    what = "recorded answer of a suspended cell"
    return decoded(CallAnswer, data, what, decode=msgspec.json.decode)


def decoded(
    kind: type[T], data: bytes | memoryview, what: str, *, decode: Callable[..., T] = msgspec.msgpack.decode
) -> T:
    """Decode stored bytes; raise `SnapshotRefused`, which names them *what*, if they are damaged."""
    # No `Decoder`: in most processes, creating one takes longer than all decoding.
    try:
        return decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise corrupt(what, str(error)) from None


def corrupt(what: str, why: str) -> SnapshotRefused:
    return SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the {what} cannot be read: {why}")


class StateReader(Generic[T]):
    """Decodes states and caches small ones: most cells begin with the state that the previous cell stored."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self.known: dict[bytes, T] = {}

    def __call__(self, data: bytes) -> T:
        if len(data) > _SMALL_BYTES:
            return self._decode(data)
        known = self.known.get(data)
        if known is None:
            known = self._decode(data)
            self.remember(data, known)
        return known

    def remember(self, data: bytes, state: T) -> None:
        """Cache *state*, which was encoded as *data*, if *data* is small."""
        if len(data) <= _SMALL_BYTES:
            if len(self.known) >= _KNOWN_STATES:
                self.known = {}
            self.known[data] = state


class Diverged(Exception):
    """A replayed cell did not repeat its first run."""


def text_problem(code: str) -> Diagnostic | None:
    """Return a diagnostic if *code* cannot be encoded as UTF-8."""
    if code.isascii():
        return None
    try:
        code.encode()
    except UnicodeEncodeError:
        message = "the code holds a lone surrogate"
        return Diagnostic(severity=Severity.ERROR, code=Code.SYNTAX_ERROR, message=message)
    return None


class Output:
    """Collects printed text; drops what exceeds *limit* bytes, and calls *on_flood* far above the limit."""

    truncated = False
    _kept = _bytes = 0

    def __init__(self, limit: int, on_flood: Callable[[], None] | None) -> None:
        self._limit = limit
        self.on_flood = on_flood
        self._parts: dict[str, list[str]] = {}

    def forget(self, stdout: str = "", stderr: str = "") -> None:
        """Discard the collected text and start with *stdout* and *stderr*."""
        self._parts = {"stdout": [stdout], "stderr": [stderr]}
        self._kept = self._bytes = len(stdout.encode()) + len(stderr.encode())
        self.truncated = False

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        data = text.encode("utf-8", "replace")
        self._bytes += len(data)
        room = self._limit - self._kept
        if len(data) <= room:
            self._parts.setdefault(stream, []).append(text)
            self._kept += len(data)
        else:
            self.truncated = True
            if room > 0:
                self._parts.setdefault(stream, []).append(data[:room].decode("utf-8", "ignore"))
                self._kept = self._limit
        if self._bytes > FLOOD_FACTOR * self._limit and self.on_flood is not None:
            self.on_flood()

    def so_far(self) -> CellOutput:
        if not self._bytes and not self.truncated:
            return NOTHING_PRINTED
        stdout, stderr = ("".join(self._parts.get(stream, ())) for stream in ("stdout", "stderr"))
        return CellOutput(stdout, stderr, self.truncated)


class SteppedCells(ABC):
    """A `CodeEngine` that runs cells with steppers; base class of every engine except `auto`.

    `slots` are the engine's worker slots, None if it has no workers. `live` are the cells that have started
    and not ended.
    """

    language: Language

    def __init__(self, slots: WorkerSlots[Any] | None = None) -> None:
        self.slots = slots
        self.watchdog = Watchdog()
        self.live: set[SteppedCell] = set()

    @abstractmethod
    def stepper(self, host: StepperHost, dump: bytes) -> CellStepper:
        """Create a stepper for a new or a suspended cell; raise `SnapshotRefused` if it cannot be read."""

    @abstractmethod
    def names(self, state: bytes) -> list[str]:
        """Return the names that *state* binds; raise `SnapshotRefused` if it cannot be read."""

    @abstractmethod
    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        """Return every problem that can be found in the code without running any of it."""

    @abstractmethod
    def touched(self, code: str, names: Collection[str]) -> NamesRead:
        """Return which of *names* the code reads."""

    @staticmethod
    def former_cell(data: bytes) -> PausedCell:
        """Read a cell suspended in a format that only this engine knows."""
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, "the suspended cell cannot be read: unknown format")

    def prepare(self) -> None:  # noqa: B027 - most engines have nothing to do
        """Do in advance the work that the first cell would wait for. Idempotent."""

    def open(self, request: CellRequest) -> SteppedCell:
        """Create a cell without starting it; raise if its code or state cannot be read."""
        if not request.code.isascii() and (problem := text_problem(request.code)) is not None:
            raise InvalidArgument(problem.message)
        return SteppedCell(request, self)

    def forget(self, key: str) -> None:
        """Close the worker that is kept warm under *key*."""
        if self.slots is not None:
            self.slots.forget(key)

    def close(self) -> None:
        """End every cell, and then every process."""
        for cell in list(self.live):
            cell.stop(run_errors.cancelled_error())
            cell.hand_back()  # also frees the workers of waiting cells
        self.watchdog.close()
        if self.slots is not None:
            self.slots.close()


class Record:
    """The calls of a replayed cell and their answers, in order. A replay compared the first `seen`."""

    def __init__(self, paused: PausedCell) -> None:
        self.made = list(paused.made)
        self.answers: list[Answered] = [(number, decode_answer(data)) for number, data in paused.answers]
        self.replaying = False
        self.seen = 0

    def add(self, call: EngineCall, answer: CallAnswer | None) -> None:
        self.made.append(MadeCall(_digest(call), None if answer is None else encode_json(answer)))

    def compare(self, call: EngineCall) -> CallAnswer | None:
        """Compare *call* with the next recorded one; return its answer if it was answered immediately."""
        if self.seen >= len(self.made):
            raise Diverged(f"{call.name}() was not called before")
        recorded = self.made[self.seen]
        self.seen += 1
        if recorded.digest != _digest(call):
            raise Diverged(f"call {self.seen} is another one, now of {call.name}()")
        return None if recorded.answer is None else decode_answer(recorded.answer)


def _digest(call: EngineCall) -> bytes:
    if call.digest:
        return call.digest
    text = encode_json((call.name, call.stands, call.args, call.kwargs))
    return hashlib.blake2b(text, digest_size=16).digest()


_NEW: Final = PausedCell()
_NO_RECORD: Final = Record(_NEW)
"""The record of every cell that is not replayed: nothing is added to it."""


class SteppedCell:
    """One cell: the `CellRun` of every engine, and the `StepperHost` of its stepper."""

    stopped: ErrorObject | None = None
    _ended = _computing = _in_worker = _was_paused = False
    _result: CellEnd | None = None
    _memory_peak: int | None = None
    _at: int | None = None
    _pending: Collection[int] | None = None
    _made = _argument_bytes = _argument_values = 0
    _wall_before_ms = 0
    _record = _NO_RECORD

    def __init__(self, request: CellRequest, engine: SteppedCells) -> None:
        self.request = request
        self._engine = engine
        self._limits = request.limits
        self.output = Output(
            request.limits.max_stdout_bytes, lambda: self.stop(run_errors.stdout_error(self._limits))
        )
        self._began_ms = self.now_ms = request.now_ms
        self._started = time.monotonic()  # until `start`, for limits that a worker is sent before it
        self._using = threading.Lock()
        self._stopping = threading.Lock()
        self._calls: dict[int, int] = {}
        self._ready: list[Answered] = []
        self._new: list[CellCall] = []
        paused = _NEW
        if request.paused:
            paused = decode_cell(request.paused) or engine.former_cell(request.paused)
            self._continue(paused)
        self._stepper = engine.stepper(self, paused.dump)
        if self._stepper.replayed:
            self._record = Record(paused)

    def _continue(self, paused: PausedCell) -> None:
        """Restore output, times, calls and kept answers of a suspended cell."""
        self._was_paused = True
        self.output.forget(paused.stdout, paused.stderr)
        self.output.truncated = paused.truncated
        self._began_ms, self.now_ms = paused.began_ms, max(self.now_ms, paused.now_ms)
        self._memory_peak, self._wall_before_ms = paused.memory_peak_bytes, paused.wall_used_ms
        self._made, self._at, self._calls = paused.calls_made, paused.at, dict(paused.calls)
        self._ready = [(call_id, decode_answer(data)) for call_id, data in paused.ready]

    # ── `CellRun` ────────────────────────────────────────────────────────────────────────────────

    def start(self) -> CellStep:
        """Run the code from the beginning, or continue to wait where the cell was suspended."""
        engine = self._engine
        with self._using:
            engine.live.add(self)
            if not self._was_paused:
                try:
                    self._stepper.prepare()  # waiting for a worker does not count as the cell's time
                except BaseException:
                    self._give_up()
                    raise
            self._started = time.monotonic()
            wall_s = max(1, self._limits.wall_ms - self._wall_before_ms) / 1000
            engine.watchdog.watch(self, wall_s, self._time_is_over)
            if self._was_paused:
                return CellPause()
            step = self._run(self._stepper.begin)
        if engine.slots is not None and type(step) is CellPause:
            engine.slots.lend(self)  # without the cell's lock, which the borrower takes
        return step

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        """Give the cell the result of one of its calls, and let it continue."""
        with self._using:
            if self._result is not None:
                return self._result
            if number not in self._calls:
                raise InvalidArgument(f"the cell has no call {number} that waits for an answer")
            if self._at not in (None, number) and self.stopped is None:
                if self._stepper.replayed:
                    self._record.answers.append((number, answer))
                self._keep_answer(number, answer)
                return CellPause()
            if (slots := self._engine.slots) is not None:
                slots.reclaim(self)
            step = self._run(self._answered, number, answer)
        if slots is not None and type(step) is CellPause:
            slots.lend(self)  # without the cell's lock, which the borrower takes
        return step

    def printed(self) -> CellOutput:
        return self.output.so_far()

    def suspend(self) -> bytes:
        """Suspend the cell: return it as bytes, and free its worker."""
        with self._using:
            if self._result is not None:
                raise InvalidArgument("a cell that has ended cannot be suspended")
            if self.stopped is not None:
                raise EngineFailed(f"the cell was stopped: {self.stopped.message}")
            self._reclaim()
            try:
                self._put_aside()
                return encode_cell(self._paused())
            finally:
                self._give_up()

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error*, from any thread. Harmless once it has ended."""
        with self._stopping:
            if not self._ended and self.stopped is None:
                self.stopped = error
                self._stepper.kill()

    def close(self) -> None:
        """Abandon the cell."""
        with self._using:
            self._reclaim()
            self._give_up()

    def hand_back(self) -> None:
        """Free the worker for another session while the cell waits; do nothing while it computes."""
        # A cell that cannot be put aside ends: keeping its worker could block the very call that it waits
        # for.
        if not self._using.acquire(blocking=False):
            return
        try:
            if self._result is None:
                self._put_aside()
        except EngineFailed as error:
            why = f"another session needed the process of this run, and {error.message}"
            self.stop(msgspec.structs.replace(error.error_object(), message=why))
            self._stepper.release(warm=False)
        finally:
            self._using.release()

    # ── `StepperHost` ────────────────────────────────────────────────────────────────────────────

    def load(self, name: str) -> Any:
        """Load an outside value; raise `Diverged` if a replay reads one that its first run did not read."""
        if self._record.replaying:
            raise Diverged(f"it reads {name}, which it did not read before")
        if self.request.load is None:
            raise LookupError(name)
        try:
            return self.request.load(name)
        except (LookupError, StandfastError):
            raise
        except Exception as error:
            raise EngineFailed(f"{name} could not be loaded: {error}") from error

    def duration_ms(self) -> int:
        return self._wall_before_ms + max(0, int((time.monotonic() - self._started) * 1000))

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def _run(self, first: Callable[P, Step | None], *args: P.args, **kwargs: P.kwargs) -> CellStep:
        """Take the *first* step and those that follow it; a failure ends the cell."""
        self._computing = True
        try:
            return self._advance(first(*args, **kwargs))
        except CellStopped:
            return self._over(StepEnded(error=run_errors.died_error()), hard=True)
        except CellFailed as failed:
            return self._over(StepEnded(error=failed.error), hard=True)
        except Diverged as diverged:
            return self._over(StepEnded(error=run_errors.diverged_error(str(diverged))), hard=True)
        except BaseException:
            self._give_up()
            raise
        finally:
            self._computing = False

    def _advance(self, step: Step | None) -> CellStep:
        """Step until the code waits (None) or has ended."""
        while step is not None:
            if type(step) is EngineCall:
                step = self._called(step)
            elif type(step) is StepEnded:
                return self._finish(step)
            else:
                step = self._blocked(step.pending)
        self._in_worker = True
        self._argument_bytes = self._argument_values = 0
        calls, self._new = tuple(self._new), []
        return CellPause(calls)

    def _called(self, made: EngineCall) -> Step | None:
        """Answer a call immediately, or give it a number; return None if the code is blocked at it."""
        stepper, record, number = self._stepper, self._record, self._made + 1
        call = CellCall(
            number=number,
            name=made.name,
            args=made.args,
            kwargs=made.kwargs,
            problem=made.problem,
            line=made.line,
        )
        if record.replaying:
            answer = record.compare(made)
        else:
            answer = made.answer
            if answer is None and self.request.answer_now is not None:
                answer = self.request.answer_now(call)
            if stepper.replayed:
                record.add(made, answer)
        if answer is not None:
            self.now_ms = max(self.now_ms, answer.at_ms)
            if made.stands or stepper.raises_at_call(answer):
                return stepper.answer(made.id, answer)
            self._ready.append((made.id, answer))
            return stepper.proceed()
        if number > self._limits.max_external_calls:
            raise CellFailed(run_errors.calls_error(self._limits))
        self._made = number
        self._calls[number] = made.id
        if not record.replaying:
            self._new.append(call)
            if made.argument_bytes:
                self._count_arguments(made)
        if not made.stands:
            return stepper.proceed()
        self._at = number
        return None

    def _count_arguments(self, made: EngineCall) -> None:
        self._argument_bytes += made.argument_bytes
        self._argument_values += made.argument_values
        if self._argument_bytes > MAX_ARGUMENT_BYTES or self._argument_values > MAX_ARGUMENT_VALUES:
            raise CellFailed(run_errors.arguments_error(MAX_ARGUMENT_BYTES, MAX_ARGUMENT_VALUES))

    def _blocked(self, pending: Collection[int] | None) -> Step | None:
        """Give the code the first answer that it can take; return None if there is none."""
        for index, (call_id, answer) in enumerate(self._ready):
            if pending is None or call_id in pending:
                del self._ready[index]
                return self._stepper.answer(call_id, answer)
        if not self._calls:
            raise CellFailed(run_errors.deadlock_error())
        self._at, self._pending = None, pending
        return None

    def _answered(self, number: int, answer: CallAnswer) -> Step | None:
        """Give the code an answer, after loading a cell that was put aside into a worker."""
        if self.stopped is not None:
            raise CellStopped
        if self._stepper.replayed:
            if not (self._in_worker and self._stepper.is_in_worker()):
                self._replay()
            self._record.answers.append((number, answer))
        elif not self._in_worker:
            step = self._stepper.load()
            self._pending = step.pending if isinstance(step, StepBlocked) else None
        return self._hand_over(number, answer)

    def _hand_over(self, number: int, answer: CallAnswer) -> Step | None:
        """Give the code an answer that it waits for."""
        if self._at is None:
            self._keep_answer(number, answer)
            return self._blocked(self._pending)
        self.now_ms = max(self.now_ms, answer.at_ms)
        self._at = None
        return self._stepper.answer(self._calls.pop(number), answer)

    def _keep_answer(self, number: int, answer: CallAnswer) -> None:
        self.now_ms = max(self.now_ms, answer.at_ms)
        self._ready.append((self._calls.pop(number), answer))

    def _replay(self) -> None:
        """Run the code again, up to the point where the cell waits."""
        record, at, waiting = self._record, self._at, set(self._calls)
        self.output.forget()
        self.now_ms, self._at, self._made = self._began_ms, None, 0
        self._calls, self._ready = {}, []
        record.seen, record.replaying = 0, True
        step = self._advance(self._stepper.begin())
        for number, answer in record.answers:
            if number not in self._calls or not isinstance(step, CellPause):
                raise Diverged("it waits for other calls than before")
            if self._at in (None, number):
                step = self._advance(self._hand_over(number, answer))
            else:
                self._keep_answer(number, answer)
        if record.seen != len(record.made) or self._at != at or set(self._calls) != waiting:
            raise Diverged("it waits for other calls than before")
        record.replaying = False

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def _reclaim(self) -> None:
        if self._engine.slots is not None:
            self._engine.slots.reclaim(self)

    def _put_aside(self) -> None:
        """Take a waiting cell out of its worker, unless it has been put aside already."""
        if not self._in_worker:
            return
        if self.stopped is None:
            self._stepper.put_aside()
        self._in_worker = False
        self._measure()
        self._stepper.release(warm=False)

    def _measure(self) -> None:
        if (peak := self._stepper.memory_peak_bytes()) is not None:
            self._memory_peak = max(peak, self._memory_peak or 0)

    def _time_is_over(self) -> None:
        error = run_errors.wall_error(self._limits)
        with self._stopping:
            if self._ended:
                return
            grace_s = self._stepper.wall_grace_s
        if self._computing and grace_s:
            self._engine.watchdog.watch(self, grace_s, lambda: self.stop(error))
        else:
            self.stop(error)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _finish(self, ended: StepEnded) -> CellEnd:
        """End the cell with the session's state after the code."""
        if self._record.replaying:
            raise Diverged("it ended earlier than before")
        if ended.refused:
            return self._over(ended)
        self._measure()
        if self.request.through is not None:
            self.request.through(self._end_of(ended))
        return self._over(ended, state=self._stepper.keep())

    def _over(self, ended: StepEnded, *, hard: bool = False, state: bytes | None = None) -> CellEnd:
        """End the cell with *ended*, or with the error that it was stopped with."""
        with self._stopping:
            self._ended = True
        if self.stopped is not None:
            ended, hard, state = StepEnded(error=self.stopped), True, None
        if hard or ended.refused:
            self._measure()
        self._result = self._end_of(ended, hard=hard, state=state)
        self._leave(warm=not hard)
        return self._result

    def _end_of(self, ended: StepEnded, *, hard: bool = False, state: bytes | None = None) -> CellEnd:
        printed = self.output.so_far()
        return CellEnd(
            result=ended.result,
            error=ended.error,
            hard=hard,
            stdout=printed.stdout,
            stderr=printed.stderr,
            truncated=printed.truncated,
            state=state,
            last_call=ended.last_call,
            calls_made=self._made,
            duration_ms=self.duration_ms(),
            memory_peak_bytes=self._memory_peak,
            instructions=self._stepper.instructions,
            notes=ended.notes,
        )

    def _give_up(self) -> None:
        """End a cell without a result, because it was suspended, abandoned or broken."""
        if self._result is None:
            self._result = CellEnd(error=run_errors.cancelled_error(), hard=True, calls_made=self._made)
            with self._stopping:
                self._ended = True
            self._leave(warm=False)

    def _leave(self, *, warm: bool) -> None:
        self._engine.watchdog.forget(self)
        self._engine.live.discard(self)
        self._stepper.release(warm=warm)
        # Both refer to the cell. Break the cycles, so that it is freed without the garbage collector.
        self.output.on_flood = None
        del self._stepper

    def _paused(self) -> PausedCell:
        encode, printed = encode_json, self.output.so_far()
        return PausedCell(
            dump=self._stepper.dump(),
            calls=self._calls,
            at=self._at,
            ready=[] if self._stepper.replayed else [(one, encode(answer)) for one, answer in self._ready],
            made=self._record.made,
            answers=[(number, encode(answer)) for number, answer in self._record.answers],
            calls_made=self._made,
            began_ms=self._began_ms,
            now_ms=self.now_ms,
            stdout=printed.stdout,
            stderr=printed.stderr,
            truncated=printed.truncated,
            wall_used_ms=self.duration_ms(),
            memory_peak_bytes=self._memory_peak,
        )
