"""One cell on the QuickJS engine: from its code to a pause, from answer to answer, to its end.

Theory of operation
-------------------
A worker enters the guest and lets it do all that needs nothing from outside. What it tells then are the
calls that the code has made, and whether it waits for some. So a cell always stands between two entries, and
what it waits for is in the guest: a suspended cell is the guest's memory, and what this file knows of it.

A cell that waits lends its place among the workers: when another session needs it, the guest's memory is kept
here, and becomes a guest again with the next answer.

Rules
-----
1. Answers are given one at a time, in the order in which they come; the code goes as far as it can with each.
2. A call that is answered on the spot has no number and is not counted. `SystemExit` is not given to the
   code, which could catch it: the run ends where it stands, and keeps what it has bound.
3. A cell ends when its code has, and every call that it made is answered. Timers that are left are dropped.
4. Code that throws ends with what it has bound; a limit, a stop or a crash ends it with nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from standfast.errors import Code, EngineFailed, ErrorObject, InvalidArgument, ValueTooLarge
from standfast.model.bounds import check_json_bounds
from standfast.model.call import GuestException
from standfast.model.canonical import Json, read_json
from standfast.ports.code_engine import (
    SLEEP,
    CallAnswer,
    CellCall,
    CellEnd,
    CellOutput,
    CellPause,
    CellRequest,
    CellStep,
)
from standfast.sandbox.monty.values import not_serializable, result_too_large
from standfast.sandbox.output import Output
from standfast.sandbox.quickjs.failures import Source, stopped_error, syntax_error, thrown_error
from standfast.sandbox.quickjs.frames import (
    Answer,
    Bounds,
    Call,
    Finish,
    Image,
    Open,
    Poll,
    Reply,
    Run,
    Surroundings,
    Thrown,
    decode_poll,
)
from standfast.sandbox.quickjs.inputs import (
    MAX_FREE,
    asked_names,
    bridge_inputs,
    free_names,
    loaded,
    named_arguments,
)
from standfast.sandbox.quickjs.seat import Seat, Stopped
from standfast.sandbox.quickjs.state import (
    PausedCell,
    SessionState,
    corrupt,
    decode_cell,
    decode_state,
    encode_cell,
    encode_state,
    other_build,
)
from standfast.sandbox.quickjs.workers import Workers
from standfast.sandbox.run_errors import (
    argument_not_json,
    calls_error,
    cancelled_error,
    deadlock_error,
    request_too_large,
    wall_error,
)
from standfast.sandbox.typescript.script import Script, ScriptRefused, read_script
from standfast.sandbox.watchdog import Watchdog
from standfast.sandbox.worker_process import WorkerDied

EXIT: Final = "SystemExit"
_WALL_GRACE_S: Final = 0.5
_MAX_LINES: Final = 10_000
_MAX_MEMORY: Final = (1 << 32) - (1 << 20)


@dataclass(frozen=True, slots=True)
class CellHost:
    """What cells share. `live` are those that have begun and not ended."""

    workers: Workers
    watchdog: Watchdog
    live: set[QuickJsCellRun]


@dataclass(slots=True)
class Used:
    """What a cell has used so far."""

    wall_ms: int = 0
    cpu_us: int = 0
    instructions: int = 0
    memory_bytes: int = 0

    def add(self, reply: Reply) -> None:
        self.cpu_us += reply.cpu_us
        self.instructions += reply.instructions
        self.memory_bytes = max(self.memory_bytes, reply.memory_bytes)


@dataclass(slots=True)
class Standing:
    """The calls of a cell: those that wait, by their numbers, and how many there were."""

    made: int = 0
    waiting: dict[int, int] = field(default_factory=dict)
    new: list[CellCall] = field(default_factory=list)


class QuickJsCellRun:
    """One cell. One thread at a time uses it; `stop` and `hand_back` may come from others."""

    def __init__(self, request: CellRequest, host: CellHost) -> None:
        paused = decode_cell(request.paused) if request.paused else None
        self._request = request
        self._host = host
        self._limits = request.limits
        self._before = decode_state(request.state)
        self._lines = paused.lines if paused else self._before.lines
        self._free = list(paused.free if paused else self._before.free)
        self._asked = list(paused.asked if paused else self._before.asked)
        self._given: dict[str, str] = {}
        self._lazy: list[str] = []
        self._now_ms = max(request.now_ms, paused.now_ms if paused else 0)
        self._calls = Standing(paused.calls_made, dict(paused.calls)) if paused else Standing()
        self._ready: list[bytes] = list(paused.ready) if paused else []
        self._image = paused.image if paused else None
        self._used = _used_by(paused)
        self._output = Output(
            self._limits.max_stdout_bytes,
            lambda: None,
            *((paused.stdout, paused.stderr) if paused else ("", "")),
        )
        self._output.truncated = bool(paused and paused.truncated)
        self._source: Source | None = None
        self._seat = Seat(host.workers, request.key, request.load)
        self._is_open = False
        self._computing = False
        self._result: CellEnd | None = None
        self._using = threading.Lock()
        self._started = time.monotonic()

    # ── what the port asks ───────────────────────────────────────────────────────────────────────

    def start(self) -> CellStep:
        """Run from the beginning, or stand where the cell was suspended."""
        with self._using:
            self._host.live.add(self)
            try:
                if not self._request.paused:
                    self._open_here()  # waiting for a place is not the cell's time
                self._source = self._read()
            except ScriptRefused as refused:
                return self._over(refused.error_object())
            except BaseException:
                self._leave()
                raise
            self._started = time.monotonic()
            self._watch()
            if self._request.paused:
                return CellPause()
            step = self._go_on(self._first)
        return self._lending(step)

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        """Give the cell the result of one of its calls, and let it go on."""
        with self._using:
            if self._result is not None:
                return self._result
            if (call_id := self._calls.waiting.pop(number, None)) is None:
                raise InvalidArgument(f"the cell has no call {number} that waits for an answer")
            self._now_ms = max(self._now_ms, answer.at_ms)
            self._host.workers.reclaim(self)
            step = self._go_on(lambda: self._answered(call_id, answer))
        return self._lending(step)

    def printed(self) -> CellOutput:
        return self._output.so_far()

    def suspend(self) -> bytes:
        """The cell as bytes; its worker is free."""
        with self._using:
            if self._result is not None:
                raise InvalidArgument("a cell that has ended cannot be suspended")
            if (stopped := self._seat.stopped) is not None:
                raise EngineFailed(f"the cell was stopped: {stopped.message}")
            self._host.workers.reclaim(self)
            try:
                self._put_aside()
                return encode_cell(self._paused())
            finally:
                self._leave()

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error*, wherever it stands. Harmless once it has ended."""
        self._seat.stop(error)

    def close(self) -> None:
        """Give the cell up."""
        with self._using:
            self._host.workers.reclaim(self)
            self._leave()

    def hand_back(self) -> None:
        """Free the slot for another session while the cell waits. Harmless if it does not."""
        if not self._using.acquire(blocking=False):
            return
        try:
            if self._seat.taken and self._result is None and not self._computing:
                self._put_aside()
        except EngineFailed:
            self._seat.release()
        finally:
            self._using.release()

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def _go_on(self, first: Callable[[], CellStep | Reply]) -> CellStep:
        """Let the code run until it waits or has ended."""
        self._computing = True
        try:
            step = first()
            while isinstance(step, Reply):
                step = self._take_in(step)
            return step
        except (Stopped, WorkerDied):
            return self._died()
        except BaseException:
            self._leave()
            raise
        finally:
            self._computing = False

    def _open_here(self) -> None:
        """Let a worker that holds the session make ready, while the code is still being read."""
        if self._seat.holds(self._request.state):
            with contextlib.suppress(Stopped, WorkerDied):  # `_first` finds out
                self._seat.open(self._opening(None))
                self._is_open = True

    def _first(self) -> Reply:
        """Run the code. If the worker does not hold the session, or died while it was idle, in another."""
        run = self._run()
        if self._is_open:
            try:
                reply = self._seat.ask(run)
                if reply.stop != "gone":
                    return reply
            except WorkerDied:
                if self._seat.stopped is not None:
                    raise
        self._seat.open(self._opening(self._before.image))
        return self._seat.ask(run)

    def _opening(self, image: Image | None) -> Open:
        functions = msgspec.json.encode(list(self._request.functions.names()))
        return Open(image=image, functions=functions, around=self._around(), bounds=self._bounds())

    def _run(self) -> Run:
        source = self._source
        assert source is not None
        return Run(
            code="\n" * self._lines + source.script.javascript,
            inputs=self._given,
            lazy=self._lazy,
            binds_result=source.script.binds_result,
            bounds=self._bounds(),
            early=self._request.through is not None,
        )

    def _take_in(self, reply: Reply) -> CellStep | Reply:
        """What a reply means: a pause, an end, or answers to be given at once."""
        self._used.add(reply)
        source = self._source
        assert source is not None
        poll = self._polled(reply)
        if reply.stop == "version":
            raise other_build()
        if reply.stop == "corrupt":
            raise corrupt("session's state", reply.detail[0])
        if reply.stop == "syntax":
            return self._over(syntax_error(reply.detail, source))
        if reply.stop:
            return self._over(stopped_error(reply, source), hard=True)
        if poll.outcome == "waits":
            return self._wait(poll)
        return self._finish(poll, reply)

    def _wait(self, poll: Poll) -> CellStep | Reply:
        """Number the new calls, and answer those that can be answered on the spot."""
        for call in poll.calls:
            made = self._call(call)
            answer = self._answer_now(made)
            if answer is not None:
                if answer.exception is not None and answer.exception.type == EXIT:
                    return self._exit(answer)
                self._now_ms = max(self._now_ms, answer.at_ms)
                self._ready.append(_settlement(call[0], answer))
                continue
            if self._calls.made >= self._limits.max_external_calls:
                return self._over(calls_error(self._limits), hard=True)
            self._calls.made += 1
            self._calls.waiting[self._calls.made] = call[0]
            self._calls.new.append(made)
        if self._ready:
            return self._seat.ask(self._answers())
        calls, self._calls.new = tuple(self._calls.new), []
        return CellPause(calls)

    def _answer_now(self, call: CellCall) -> CallAnswer | None:
        if call.name != SLEEP and call.name not in self._request.functions:
            return _not_there(call.name)
        now = self._request.answer_now
        return now(call) if now is not None else None

    def _call(self, call: Call) -> CellCall:
        """A call that the guest made, as one of the cell's."""
        _, name, raw, problem = call
        number = self._calls.made + 1
        if name is None:
            seconds = float(msgspec.json.decode(raw))
            return CellCall(number=number, name=SLEEP, kwargs={"seconds": max(0.0, seconds)})
        if problem is not None:
            return CellCall(number=number, name=name, problem=argument_not_json(name, problem))
        functions = self._request.functions
        if name not in functions:  # its arguments are not looked at
            return CellCall(number=number, name=name)
        capability = functions.capability(name)
        try:
            check_json_bounds(raw, max_bytes=capability.limits.max_request_bytes)
        except ValueTooLarge as error:
            return CellCall(number=number, name=name, problem=request_too_large(name, error.limit))
        args = _read_arguments(raw)
        named = named_arguments(args, capability)
        if named is not None:
            return CellCall(number=number, name=name, kwargs=named)
        return CellCall(number=number, name=name, args=args)

    def _answered(self, call_id: int, answer: CallAnswer) -> CellStep | Reply:
        if answer.exception is not None and answer.exception.type == EXIT:
            return self._exit(answer)
        self._ready.append(_settlement(call_id, answer))
        return self._seat.ask(self._answers())

    def _answers(self) -> Answer:
        ready, self._ready = self._ready, []
        early = self._request.through is not None
        return Answer(ready, self._taken_image(), self._around(), self._bounds(), early)

    def _exit(self, answer: CallAnswer) -> CellEnd:
        """End the code where it stands."""
        assert answer.exception is not None
        reply = self._seat.ask(Finish(image=self._taken_image(), bounds=self._bounds()))
        self._used.add(reply)
        if reply.stop:
            assert self._source is not None
            return self._over(stopped_error(reply, self._source), hard=True)
        message = f"{EXIT}: {answer.exception.message}"
        return self._kept(reply, answer.error or ErrorObject(code=Code.RUNTIME_ERROR, message=message), None)

    def _taken_image(self) -> Image | None:
        """The guest, if it is here and not in the worker."""
        image, self._image = self._image, None
        return image

    def _put_aside(self) -> None:
        """Keep the guest here, and free the slot. A cell that has none stays as it is."""
        if not self._seat.taken or self._seat.worker is None:
            return
        if self._image is None and self._seat.stopped is None:
            self._image = self._seat.dump()
        self._seat.release()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _finish(self, poll: Poll, reply: Reply) -> CellEnd:
        """The code ended: find its result, and what it left."""
        if poll.outcome == "stuck":
            return self._over(deadlock_error(), hard=True)
        error, result = self._outcome(poll)
        if self._request.through is not None:
            self._request.through(self._end_of(error, result=result))
        return self._kept(reply, error, poll.names, result)

    def _outcome(self, poll: Poll) -> tuple[ErrorObject | None, Json]:
        """What the code ended with: an error, or a value."""
        assert self._source is not None
        if poll.outcome == "error":
            return thrown_error(_decoded(poll.detail), self._source), None
        if poll.outcome == "foreign":
            return not_serializable(msgspec.json.decode(poll.detail, type=str)), None
        try:
            check_json_bounds(poll.detail)
        except ValueTooLarge as error:
            return result_too_large(error.limit), None
        return None, read_json(poll.detail)

    def _kept(
        self, reply: Reply, error: ErrorObject | None, names: list[str] | None, result: Json = None
    ) -> CellEnd:
        """End with what the code left, which the worker has told or tells now."""
        left = reply
        if reply.more:
            left = self._seat.hear_more()
            self._used.add(left)
        if left.stop:
            assert self._source is not None
            return self._over(stopped_error(left, self._source), hard=True)
        bound = msgspec.json.decode(left.names, type=list[str]) if names is None else names
        return self._over(error, state=self._state(left, bound), result=result)

    def _state(self, reply: Reply, bound: list[str]) -> bytes:
        """What the code left; the worker holds just that."""
        assert reply.image is not None
        assert self._source is not None
        names = sorted(bound)
        lines = self._lines + self._source.script.javascript.count("\n") + 2
        known = set(names)
        free = [name for name in self._free if name not in known][-MAX_FREE:]
        asked = [name for name in self._asked if name not in known][-MAX_FREE:]
        state = SessionState(reply.image, names, lines if lines < _MAX_LINES else 1, free, asked)
        data = encode_state(state)
        if self._seat.worker is not None:
            self._seat.worker.version = data
        return data

    def _over(
        self,
        error: ErrorObject | None,
        *,
        hard: bool = False,
        state: bytes | None = None,
        result: Json = None,
    ) -> CellEnd:
        if (stopped := self._seat.end()) is not None:
            error, hard, state, result = stopped, True, None, None
        self._result = self._end_of(error, hard=hard, state=state, result=result)
        self._forget()
        self._seat.leave()
        return self._result

    def _end_of(
        self,
        error: ErrorObject | None,
        *,
        hard: bool = False,
        state: bytes | None = None,
        result: Json = None,
    ) -> CellEnd:
        return CellEnd(
            result=result,
            error=error,
            hard=hard,
            stdout=self._output.stdout,
            stderr=self._output.stderr,
            truncated=self._output.truncated,
            state=state,
            calls_made=self._calls.made,
            duration_ms=self._duration_ms(),
            memory_peak_bytes=self._used.memory_bytes or None,
            instructions=self._used.instructions,
        )

    def _died(self) -> CellEnd:
        """The worker is gone: it was killed by a stop, or it crashed."""
        self._seat.drop()
        died = ErrorObject(code=Code.INTERRUPTED, message="the process that ran the code died")
        return self._over(died, hard=True)

    def _leave(self) -> None:
        """Be over without an end: suspended, given up, or broken."""
        if self._result is not None:
            return
        self._result = CellEnd(error=cancelled_error(), hard=True, calls_made=self._calls.made)
        self._forget()
        self._seat.release()

    def _forget(self) -> None:
        self._seat.end()
        self._host.watchdog.forget(self)
        self._host.live.discard(self)

    # ── parts ────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> Source:
        """Read the code, and find out what it may want from outside."""
        request = self._request
        script = read_script(request.code)
        if not request.paused:
            self._given = bridge_inputs(request.inputs)
            if request.load is not None or request.inputs:
                self._look_outside(script)
        return Source(script, self._lines, self._limits, request.functions)

    def _look_outside(self, script: Script) -> None:
        """Names that are read and nowhere bound may be values outside, which are fetched when they are read.

        Only where code asks the type of a name does it have to be known before whether there is a value.
        """
        known = {*self._before.names, *self._request.functions.names()}
        new = free_names(script, known.union(self._free))
        self._free = [name for name in [*self._free, *new] if name not in known]
        new = asked_names(script, self._free)
        self._asked = [name for name in dict.fromkeys([*self._asked, *new]) if name not in known]
        if self._request.load is None:
            return
        self._lazy = [name for name in self._free if name not in {*self._given, *self._asked}]
        for name in self._asked:
            if name not in self._given and (text := loaded(self._request.load, name)):
                self._given[name] = text

    def _polled(self, reply: Reply) -> Poll:
        """What the bridge told, with what was printed taken in."""
        try:
            poll = decode_poll(reply.poll) if reply.poll else _NOTHING
        except msgspec.DecodeError as error:
            raise EngineFailed(f"the guest broke its protocol: {error}") from None
        if poll.stdout:
            self._output("stdout", poll.stdout)
        if poll.stderr:
            self._output("stderr", poll.stderr)
        if poll.printed > self._limits.max_stdout_bytes:
            self._output.truncated = True
        return poll

    def _around(self) -> Surroundings:
        return Surroundings(self._now_ms, self._request.seed)

    def _bounds(self) -> Bounds:
        limits = self._limits
        return Bounds(
            memory_bytes=min(limits.memory_mb << 20, _MAX_MEMORY),
            cpu_ms=max(1, limits.cpu_ms - self._used.cpu_us // 1000),
            wall_ms=max(1, limits.wall_ms - self._duration_ms()),
            depth=limits.max_stack_depth,
            stdout_chars=limits.max_stdout_bytes,
        )

    def _duration_ms(self) -> int:
        """Wall time so far, not counting time suspended."""
        return self._used.wall_ms + max(0, int((time.monotonic() - self._started) * 1000))

    def _watch(self) -> None:
        """Have the cell stopped when its time is over.

        A worker that computes stops by itself, and tells what was printed; it is killed if it does not.
        """
        wall_s = max(1, self._limits.wall_ms - self._used.wall_ms) / 1000
        self._host.watchdog.watch(self, wall_s, self._late)

    def _late(self) -> None:
        error = wall_error(self._limits)
        if self._computing:
            self._host.watchdog.watch(self, _WALL_GRACE_S, lambda: self.stop(error))
        else:
            self.stop(error)

    def _lending(self, step: CellStep) -> CellStep:
        """Lend the slot of a cell that waits. Not under its lock: whoever needs the slot needs the lock."""
        if isinstance(step, CellPause):
            self._host.workers.lend(self)
        return step

    def _paused(self) -> PausedCell:
        if self._image is None:
            raise EngineFailed("the cell cannot be suspended: it is nowhere")
        return PausedCell(
            image=self._image,
            calls=self._calls.waiting,
            ready=self._ready,
            lines=self._lines,
            free=self._free,
            asked=self._asked,
            calls_made=self._calls.made,
            now_ms=self._now_ms,
            stdout=self._output.stdout,
            stderr=self._output.stderr,
            truncated=self._output.truncated,
            wall_used_ms=self._duration_ms(),
            cpu_used_us=self._used.cpu_us,
            instructions=self._used.instructions,
            memory_peak_bytes=self._used.memory_bytes,
        )


_read_arguments: Final = msgspec.json.Decoder(list).decode
_NOTHING: Final = Poll([], "", "", 0, "stuck")


def _used_by(paused: PausedCell | None) -> Used:
    if paused is None:
        return Used()
    return Used(paused.wall_used_ms, paused.cpu_used_us, paused.instructions, paused.memory_peak_bytes)


def _settlement(call_id: int, answer: CallAnswer) -> bytes:
    """An answer as the bridge reads it."""
    seen = answer.exception
    if seen is None:
        return msgspec.json.encode((call_id, 0, answer.value))
    code = answer.error.code if answer.error is not None else None
    return msgspec.json.encode((call_id, 1, (seen.type, seen.message, code, answer.error)))


def _not_there(name: str) -> CallAnswer:
    """The answer to a call of a function that the session knew before, and that is gone."""
    error = ErrorObject(code=Code.UNKNOWN_TOOL, message=f"{name}() is not a capability any more")
    return CallAnswer(exception=GuestException(type="ReferenceError", message=error.message), error=error)


def _decoded(detail: msgspec.Raw) -> Thrown:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(detail, type=Thrown)
    return Thrown("Error", "the code threw something that cannot be told", "")
