"""One cell on the CPython engine: from its code to a pause, from answer to answer, to its end.

Theory of operation
-------------------
The guest runs until it cannot go on, and waits::

    start ─ guest ─ stands at f() ──────── answer ─ guest ─ waits for g(), h() ─ answer ─ guest ─ … ─ end
                    CellPause(f)                            CellPause(g, h)

No process can be stored in the middle of a run. A cell that is suspended, or whose place among the workers
another session needs, is the session before it, its code and the record of its calls (`ledger`); to go on,
the code is run again up to where it stood. What it prints on the way replaces what it printed before.

Rules
-----
1. Whatever the guest sends is checked. What makes no sense ends its process, and the run with it.
2. Time, chance and loaded values are part of the record, so code that runs again sees what it saw.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from standfast.errors import EngineFailed, ErrorObject, InvalidArgument, StandfastError, ValueTooLarge
from standfast.model.bounds import MAX_VALUE_BYTES, count_json_nodes
from standfast.model.canonical import Json
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
from standfast.sandbox.cpython import failures, passing
from standfast.sandbox.cpython.failures import CallErrors, Circumstances, Failure
from standfast.sandbox.cpython.guest import TRIED_BYTES
from standfast.sandbox.cpython.guest_run import CellHost, GuestDied, GuestRun, RunFailed, RunStopped
from standfast.sandbox.cpython.ledger import Diverged, Ledger, decode_answer
from standfast.sandbox.cpython.messages import (
    Blocked,
    Called,
    Ended,
    Loaded,
    LoadName,
    Message,
    OfAnotherRun,
    OutOfMemory,
    Printed,
    Ran,
    Unreadable,
    read_names,
    read_value,
    with_bytes,
)
from standfast.sandbox.cpython.reading import awaited_sites, leaves_unchanged
from standfast.sandbox.cpython.state import (
    PausedCell,
    SessionState,
    decode_cell,
    decode_state,
    encode_cell,
    encode_state,
)
from standfast.sandbox.cpython.workers import Worker
from standfast.sandbox.monty.values import not_serializable, result_too_large
from standfast.sandbox.run_errors import (
    argument_not_json,
    calls_error,
    cancelled_error,
    deadlock_error,
    memory_error,
    request_too_large,
)

_LONG_S: Final = 0.05
_MAX_ARGUMENTS: Final = 32 << 20
"""What the calls that are made before a pause may be given together: read, it takes many times as much."""
_MAX_ARGUMENT_NODES: Final = 1_000_000
_SLACK_BYTES: Final = 1_000
_MAX_LOADED: Final = 10_000
_MAX_NOTES: Final = 100
_FOR_EVER_S: Final = sys.float_info.max
_LOADED_BY_USED: Final = 2
"""Loaded values take at most twice what they took when they were packed: containers may be a step larger."""
_LOADED_BY_PACKED: Final = 16
"""Numbers that were one object are many when they are loaded: 3 bytes of the pickle, and up to 41 each."""


class CPythonCellRun(GuestRun):
    """One cell. One thread at a time uses it; `stop` and `hand_back` may come from others."""

    def __init__(self, request: CellRequest, host: CellHost) -> None:
        paused = decode_cell(request.paused) if request.paused else None
        super().__init__(request, host, paused)
        self._code = paused.code if paused else request.code
        self._state = paused.state if paused else request.state
        self._before = decode_state(self._state)
        self._inputs = paused.inputs if paused else {}
        self._loaded: dict[str, bytes | None] = dict(paused.loaded) if paused else {}
        self._began_ms = self._now_ms = paused.began_ms if paused else request.now_ms
        self._seed = paused.seed if paused else request.seed
        self._ledger = _ledger_of(paused) if paused else Ledger()
        self._call_errors: CallErrors = {}
        self._using = threading.Lock()
        self._stood_at = 0.0
        self._new: list[CellCall] = []
        self._argument_bytes = self._argument_nodes = 0
        self._result: CellEnd | None = None

    # ── what the port asks ───────────────────────────────────────────────────────────────────────

    def start(self) -> CellStep:
        """Run from the beginning, or stand where the cell was suspended."""
        with self._using:
            self._host.live.add(self)
            if not self._request.paused:
                self._take_slot()  # waiting for a place is not the cell's time
            self._started = time.monotonic()
            self._watch()
            if self._request.paused:
                return CellPause()
            step = self._guarded(self._begin)
        return self._lending(step)

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        """Give the cell the result of one of its calls, and let it go on."""
        with self._using:
            if self._result is not None:
                return self._result
            if number not in self._ledger.waiting:
                raise InvalidArgument(f"the cell has no call {number} that waits for an answer")
            if self._ledger.at not in (None, number) and self._stopped is None:
                self._hear(number, answer)
                self._ledger.answers.append((number, answer))
                return CellPause()
            self._host.workers.reclaim(self)
            step = self._guarded(lambda: self._answered(number, answer))
        return self._lending(step)

    def printed(self) -> CellOutput:
        return self.output.so_far()

    def suspend(self) -> bytes:
        """The cell as bytes; its worker is free."""
        with self._using:
            if self._result is not None:
                raise InvalidArgument("a cell that has ended cannot be suspended")
            if self._stopped is not None:
                raise EngineFailed(f"the cell was stopped: {self._stopped.message}")
            self._host.workers.reclaim(self)
            try:
                self._measure()
                return encode_cell(self._paused())
            finally:
                self._give_up()

    def close(self) -> None:
        """Give the cell up."""
        with self._using:
            self._host.workers.reclaim(self)
            self._give_up()

    def hand_back(self) -> None:
        """Free the slot for another session while the cell stands. Harmless if it does not."""
        if not self._using.acquire(blocking=False):
            return
        try:
            if self._has_slot and self._result is None:
                self._measure()
                self._release()
        finally:
            self._using.release()

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def _guarded(self, work: Callable[[], CellStep]) -> CellStep:
        """Do something with the guest; what goes wrong with it is the end of the run."""
        try:
            return work()
        except RunStopped:
            assert self._stopped is not None
            return self._over(Failure(self._stopped, hard=True))
        except RunFailed as failed:
            return self._over(failed.failure)
        except Diverged as diverged:
            return self._over(Failure(failures.diverged_error(str(diverged)), hard=True))
        except Unreadable:
            return self._over(Failure(failures.broken_error(), hard=True))
        except BaseException:
            self._give_up()
            raise

    def _begin(self) -> CellStep:
        """Send the run to a worker that holds the session, and listen."""
        if not self._inputs and not self._request.paused:
            self._inputs = self._pass_inputs()
        worker = self._attach(self._state)
        try:
            self._send(self._run_message(worker))
            return self._listen()
        except (GuestDied, OfAnotherRun):
            if not worker.warm or self._ledger.made:
                raise
        self._drop_worker()  # an earlier run has spoiled it, or it died while idle; this run did nothing yet
        self.output.forget()
        return self._begin()

    def _pass_inputs(self) -> dict[str, bytes]:
        try:
            return {name: passing.encode_tagged(value) for name, value in self._request.inputs.items()}
        except (InvalidArgument, OverflowError) as error:
            raise RunFailed(failures.not_passed_error(error)) from None

    def _run_message(self, worker: Worker) -> bytes:
        loads = worker.version != self._state and self._before is not None
        message = {
            "nonce": worker.begin(),
            "code": self._code,
            "inputs": {name: msgspec.Raw(data) for name, data in self._inputs.items()},
            "functions": list(self._request.functions.names()),
            "later": awaited_sites(self._code),
            "loads": self._request.load is not None or bool(self._loaded),
            "now": self._began_ms,
            "seed": self._seed,
            "depth": self._limits.max_stack_depth,
            "stdout_cap": self._limits.max_stdout_bytes,
            "pure": leaves_unchanged(self._code, self._before),
        }
        text = passing.encode(message)
        return with_bytes(text, self._before.payload) if loads and self._before else text

    def _listen(self) -> CellStep:
        """Hear the guest until it stands or has ended."""
        while True:
            message, data = self._receive()
            step = self._on_end(message, data) if isinstance(message, Ended) else self._on_message(message)
            if step is not None:
                return step

    def _on_message(self, message: Message) -> CellStep | None:
        match message:
            case Called():
                return self._on_call(message)
            case Blocked():
                return self._on_blocked()
            case Printed():
                self.output(message.stream, message.text)
            case Loaded():
                self._on_loaded()
            case LoadName():
                self._on_load(message.name)
            case Ran():
                self._on_ran(message)
            case OutOfMemory():
                raise RunFailed(self._memory_error())
            case _:
                raise Unreadable
        return None

    def _on_call(self, called: Called) -> CellPause | None:
        """Answer a call on the spot, or give it a number; a pause if the code stands at it."""
        ledger = self._ledger
        call = self._cell_call(called)
        if (answer := self._known_answer(called, call)) is not None:
            self._answer_now(called, answer)
            return None
        if ledger.count >= self._limits.max_external_calls:
            raise RunFailed(calls_error(self._limits))
        number = ledger.number(called)
        if not ledger.replays:
            self._new.append(call)
        return None if called.later else self._stand(number)

    def _cell_call(self, called: Called) -> CellCall:
        """A call of the cell's. Its name and sizes are checked before its arguments are decoded."""
        sleeps = called.name == SLEEP and SLEEP not in self._request.functions
        if self._loading or self._packing or not (sleeps or called.name in self._request.functions):
            raise Unreadable  # an honest guest knows what it may call
        problem = _problem_of(called) or self._too_large(called, sleeps)
        args: Json = []
        kwargs: Json = {}
        if problem is None:
            try:
                args, kwargs = read_value(called.args), read_value(called.kwargs)
            except ValueTooLarge as error:
                problem = request_too_large(called.name, error.limit)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise Unreadable
        if sleeps and not _is_sleep(args, kwargs):
            raise Unreadable
        number = self._ledger.count + 1
        return CellCall(number=number, name=called.name, args=args, kwargs=kwargs, problem=problem)

    def _too_large(self, called: Called, sleeps: bool) -> ErrorObject | None:
        """Why the arguments are not decoded, if so. Those of all calls before a pause have a limit, too."""
        size = len(memoryview(called.args)) + len(memoryview(called.kwargs))
        limit = 0 if sleeps else self._request.functions.capability(called.name).limits.max_request_bytes
        if size > limit + limit // 4 + _SLACK_BYTES:  # the guest writes some numbers longer than we do
            return request_too_large(called.name, f"the limit is {limit} bytes as JSON")
        self._argument_bytes += size
        self._argument_nodes += count_json_nodes(called.args) + count_json_nodes(called.kwargs)
        if self._argument_bytes > _MAX_ARGUMENTS or self._argument_nodes > _MAX_ARGUMENT_NODES:
            raise RunFailed(failures.arguments_error(_MAX_ARGUMENTS, _MAX_ARGUMENT_NODES))
        return None

    def _known_answer(self, called: Called, call: CellCall) -> CallAnswer | None:
        """The answer that is given on the spot, or was."""
        if self._ledger.replays:
            return self._ledger.note(called)
        now = self._request.answer_now
        answer = now(call) if now is not None else None
        self._ledger.record(called, answer)
        return answer

    def _answer_now(self, called: Called, answer: CallAnswer) -> None:
        self._take_note(answer)
        if called.later:
            self._ledger.ready.append((called.id, answer))
        else:
            self._send_answer(called.id, answer)

    def _on_blocked(self) -> CellPause | None:
        """Hand over the first answer that is there; a pause if there is none."""
        if (ready := self._ledger.take_ready()) is not None:
            self._send_answer(*ready)
            return None
        if not self._ledger.calls:
            raise RunFailed(deadlock_error())
        return self._stand(None)

    def _on_load(self, name: str) -> None:
        """Give the guest a value by its name, the same one as before if it runs again."""
        if name not in self._loaded:
            if self._ledger.replays:
                raise Diverged(f"it reads {name}, which it did not read before")
            if len(self._loaded) >= _MAX_LOADED:
                raise Unreadable
            self._loaded[name] = self._load(name)
        data = self._loaded[name]
        answer = {"now": self._now_ms} if data is None else {"now": self._now_ms, "value": msgspec.Raw(data)}
        self._send(passing.encode(answer))

    def _load(self, name: str) -> bytes | None:
        load = self._request.load
        if load is None:
            return None
        try:
            return passing.encode_tagged(load(name))
        except LookupError:
            return None
        except StandfastError:
            raise
        except Exception as error:
            raise EngineFailed(f"{name} could not be loaded: {error}") from error

    def _on_ran(self, ran: Ran) -> None:
        """The code has ended. Storing what it left may take more memory than the code had."""
        self._packing = True
        if self._attached().meter.needs_more_than(self._limits, ran.peak):
            raise RunFailed(memory_error(self._limits))

    def _memory_error(self) -> ErrorObject:
        """What it means that the guest has run out of memory: that depends on what it was doing."""
        if self._loading:
            return failures.not_loaded_error(self._limits)
        return (failures.not_kept_error if self._packing else memory_error)(self._limits)

    def _stood_long(self) -> bool:
        """Whether the process may have died without anybody hearing of it."""
        return time.monotonic() - self._stood_at > _LONG_S

    def _stand(self, at: int | None) -> CellPause:
        """Wait, and tell of the calls made since."""
        self._ledger.at = at
        self._stood_at = time.monotonic()
        calls, self._new = tuple(self._new), []
        self._argument_bytes = self._argument_nodes = 0
        return CellPause(calls)

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def _answered(self, number: int, answer: CallAnswer) -> CellStep:
        """Hand an answer over, in a process that stands where the cell does."""
        if self._stopped is not None:
            raise RunStopped
        if self._worker is None or (self._stood_long() and not self._worker.process.is_alive()):
            self._catch_up()
        self._ledger.answers.append((number, answer))
        return self._hand_over(number, answer)

    def _hand_over(self, number: int, answer: CallAnswer) -> CellStep:
        """Let the code go on that waits for this call, or for any."""
        ledger = self._ledger
        stands = ledger.at == number
        self._hear(number, answer)
        ready = ledger.ready.pop(-1 if stands else 0)
        ledger.at = None
        self._send_answer(*ready)
        return self._listen()

    def _hear(self, number: int, answer: CallAnswer) -> None:
        """Take note of an answer, which waits to be handed over."""
        self._take_note(answer)
        self._ledger.waiting.discard(number)
        self._ledger.ready.append((self._ledger.calls.pop(number, 0), answer))

    def _take_note(self, answer: CallAnswer) -> None:
        """Let time pass, which never goes back, and remember what an exception stands for."""
        self._now_ms = max(self._now_ms, answer.at_ms)
        if answer.exception is not None and answer.error is not None:
            failures.remember(self._call_errors, answer.exception, answer.error)

    def _send_answer(self, call_id: int, answer: CallAnswer) -> None:
        message: dict[str, Any] = {"id": call_id, "now": self._now_ms}
        if answer.exception is not None:
            message["x"] = [answer.exception.type, answer.exception.message]
        else:
            message["v"] = answer.value
        self._send(passing.encode(message))

    def _catch_up(self) -> None:
        """Run the code again, in another process, up to where the cell stands."""
        ledger = self._ledger
        at, waiting = ledger.at, set(ledger.waiting)
        self._drop_worker()
        self._take_slot()
        self.output.forget()
        self._now_ms = self._began_ms
        ledger.rewind()
        step = self._begin()
        for number, answer in ledger.answers:
            if number not in ledger.waiting or not isinstance(step, CellPause):
                raise Diverged("it waits for other calls than before")
            if ledger.at in (None, number):
                step = self._hand_over(number, answer)
            else:
                self._hear(number, answer)
        ledger.arrive(at, waiting)

    def _lending(self, step: CellStep) -> CellStep:
        """Lend the slot of a cell that stands. Not under its lock: whoever needs the slot needs the lock."""
        if isinstance(step, CellPause):
            self._host.workers.lend(self)
        return step

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _on_end(self, ended: Ended, data: bytes) -> CellEnd:
        """The run is over, unless it was stopped before."""
        if self._ledger.replays:
            raise Diverged("it ended earlier than before")
        if ended.lost is not None:
            raise RunFailed(failures.lost_error(ended.lost))
        if ended.too_large is not None:
            raise RunFailed(failures.too_large_error(ended.too_large))
        value, error = self._outcome(ended)
        names, notes = read_names(ended.names), read_names(ended.notes) or []
        worker = self._attached()
        state = self._state_left(ended, names, data)
        if state is not None and self._may_not_load(data, ended.plain):
            self._try_loading(data)
        with self._stopping:
            self._ended = True
            if self._stopped is not None:
                raise RunStopped
        busy = ended.threads or worker.process.has_unread()
        worker.version = None if busy else self._state if state is None else state
        failure = None if error is None else Failure(error)
        return self._over(failure, value, state, tuple(notes[:_MAX_NOTES]))

    def _outcome(self, ended: Ended) -> tuple[Json, ErrorObject | None]:
        """The value of the run, or what is wrong with it."""
        if ended.error is not None:
            functions, packages = self._request.functions, self._host.packages
            known = Circumstances(self._code, self._limits, functions, self._call_errors, packages)
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

    def _state_left(self, ended: Ended, names: list[str] | None, data: bytes) -> bytes | None:
        """What the code left; None if that is what there was."""
        if names is None:
            return None
        before = self._before
        if before is not None and before.payload == data and before.names == names:
            return None
        return encode_state(SessionState(payload=data, names=names, plain=ended.plain))

    def _may_not_load(self, payload: bytes, plain: bool) -> bool:
        """Whether it must be tried if *payload* can be loaded within the memory that a run has."""
        if not plain and len(payload) > TRIED_BYTES:
            return True
        used = self._attached().meter.used_bytes()
        return _LOADED_BY_USED * used + _LOADED_BY_PACKED * len(payload) > self._limits.memory_mb << 20

    def _over(
        self,
        failure: Failure | None,
        value: Json = None,
        state: bytes | None = None,
        notes: tuple[str, ...] = (),
    ) -> CellEnd:
        """End with this. A worker that a failure has left in the middle of something is not kept."""
        hard = failure is not None and failure.hard
        self._measure()
        if hard and self._worker is not None:
            self._worker.version = None
        self._result = CellEnd(
            result=value,
            error=failure.error if failure else None,
            hard=hard,
            stdout=self.output.stdout,
            stderr=self.output.stderr,
            truncated=self.output.truncated,
            state=state,
            calls_made=self._ledger.count,
            duration_ms=self.duration_ms(),
            memory_peak_bytes=self.memory_peak,
            notes=notes,
        )
        self._forget()
        self._free_worker()
        return self._result

    def _give_up(self) -> None:
        """Be over without an end: suspended, given up, or broken."""
        if self._result is not None:
            return
        self._result = CellEnd(error=cancelled_error(), hard=True, calls_made=self._ledger.count)
        self._forget()
        self._release()

    def _paused(self) -> PausedCell:
        ledger = self._ledger
        return PausedCell(
            code=self._code,
            state=self._state,
            inputs=self._inputs,
            loaded=self._loaded,
            began_ms=self._began_ms,
            seed=self._seed,
            made=ledger.made,
            answers=[(number, msgspec.json.encode(answer)) for number, answer in ledger.answers],
            waiting=sorted(ledger.waiting),
            at=ledger.at,
            calls_made=ledger.count,
            stdout=self.output.stdout,
            stderr=self.output.stderr,
            truncated=self.output.truncated,
            wall_used_ms=self.duration_ms(),
            memory_peak_bytes=self.memory_peak,
        )


def _is_sleep(args: list[Json], kwargs: dict[str, Json]) -> bool:
    """Whether a call is one that sleeping makes."""
    seconds = kwargs.get("seconds")
    return not args and len(kwargs) == 1 and isinstance(seconds, (int, float)) and 0 <= seconds <= _FOR_EVER_S


def _ledger_of(paused: PausedCell) -> Ledger:
    answers = [(number, decode_answer(data)) for number, data in paused.answers]
    return Ledger(
        made=list(paused.made),
        answers=answers,
        waiting=set(paused.waiting),
        at=paused.at,
        count=paused.calls_made,
    )


def _problem_of(called: Called) -> ErrorObject | None:
    """Why the guest could not send the arguments of a call."""
    if called.problem is None:
        return None
    explain = request_too_large if called.too_large else argument_not_json
    return explain(called.name, called.problem)
