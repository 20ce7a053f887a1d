"""One cell while it runs: on a thread of the engine, or standing still until the turn has a result for it.

Theory of operation
-------------------
The engine computes on a thread until the code ends or stands still. Then the turn is asked for the next
result, and hands it over whenever it has it; both happen on the turn's loop, and the engine goes on at once::

    run ─ thread: check, start ─ loop: ask ─ … ─ loop: hear ─ thread: answer ─ loop: ask ─ … ─ through ─ end

When the code is through, the turn hears of it while the engine still stores what was left.

Rules
-----
1. Everything but the engine is touched on the turn's loop alone, except where it says so.
2. Once `finish` or `continue_as` was called, the code can call nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from standfast.errors import Code, ErrorObject
from standfast.model.call import GuestException
from standfast.model.canonical import Json
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.model.frame import FrameSwitch
from standfast.model.limits import SessionLimits
from standfast.model.message import UserMessage
from standfast.plugins.protocol import CodeExecutionContext, ExecRequest, OutputContract
from standfast.ports.code_engine import (
    CallAnswer,
    CellCall,
    CellEnd,
    CellPause,
    CellRequest,
    CellRun,
    CellStep,
    Check,
    CodeEngine,
)
from standfast.protocols.code.own_functions import CONTINUE_AS, FINISH
from standfast.protocols.code.values import ReadOnlyValues
from standfast.tools.settlement import GUEST_EXCEPTION

_MAX_ANSWER_BYTES: Final = 1 << 20
_LAST: Final = frozenset({FINISH})


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a cell ends its turn: with an answer, or with a task (and a seed) for a new frame."""

    value: Json
    frame_id: str | None = None

    def of(self, value: Json, output: OutputContract | None) -> str | FrameSwitch:
        """The same end with what plugins have left of its value."""
        if self.frame_id is None:
            return answer_text(value, output)
        task, seed = (value.get("task"), value.get("seed")) if isinstance(value, dict) else (value, None)
        seeds = () if seed is None else (UserMessage(content=answer_text(seed, None)),)
        return FrameSwitch(frame_id=self.frame_id, task=answer_text(task, None), seed=seeds)


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """A cell in the middle: which one it is, how many results it had, and the engine's bytes."""

    turn_id: str
    call_id: int
    heard: int
    data: bytes
    ending: Ending | None = None


class RunningCell:
    """One cell from its beginning, or from where it was suspended, to its end."""

    def __init__(
        self, ctx: CodeExecutionContext, request: ExecRequest, values: ReadOnlyValues, engine: CodeEngine
    ) -> None:
        self._ctx = ctx
        self._request = request
        self._values = values
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._through: asyncio.Future[CellEnd] = self._loop.create_future()
        self._ended: asyncio.Future[CellEnd] = self._loop.create_future()
        self._early: CellEnd | None = None
        self._run: CellRun | None = None
        self._computing = False
        self._given_up = False
        self._heard = 0
        self.ending: Ending | None = None

    async def run(
        self, state: bytes, suspended: Suspended | None, limits: SessionLimits, check: Check
    ) -> CellEnd:
        """Check the cell and run its code to the end. One that was suspended was checked before.

        What the code left may still be on its way to be stored: `end` waits for that.
        """
        inputs = await self._inputs()
        self._take_up(suspended)
        request = CellRequest(
            key=self._ctx.session_id,
            code=self._request.code,
            state=state,
            paused=b"" if suspended is None else suspended.data,
            limits=limits,
            functions=self._ctx.functions,
            inputs=inputs,
            load=self._load,
            answer_now=self._answer_now,
            last=_LAST if self._request.accept_finish else frozenset(),
            through=self._tell,
            now_ms=self._ctx.now_ms,
            seed=self._ctx.seed,
        )
        try:
            self._compute(lambda: self._begin(request, check))
            return await self._through
        except BaseException:
            self._give_up()
            raise

    async def end(self) -> CellEnd:
        """The end with what the cell left: the one that `run` told of, unless that could not be stored."""
        try:
            return await self._ended
        except BaseException:
            self._give_up()
            raise

    def left(self) -> bytes | None:
        """What the code left, once the cell has ended; None if that is what there was."""
        return self._ended.result().state

    def _begin(self, request: CellRequest, check: Check) -> CellStep:
        """Check and start the cell, in the engine's thread."""
        if not request.paused:
            names = self._values.names()
            found = self._engine.check(
                request.code, state=request.state, functions=request.functions, inputs=names, check=check
            )
            if (error := _first_error(found)) is not None:
                raise CheckFailed(error, found)
        run = self._run = self._engine.open(request)
        if self._given_up:
            run.stop(_cancelled())
        return run.start()

    async def _inputs(self) -> dict[str, Any]:
        """The values that the code is known to need."""
        code = self._request.code
        named = [name for name in self._values.names() if name in code]
        return await self._values.load_touched(self._engine.touched(code, named)) if named else {}

    async def suspend(self) -> Suspended:
        run, self._run = self._run, None
        assert run is not None
        data = await self._ctx.threads.run(run.suspend)
        return Suspended(
            turn_id=self._ctx.turn_id,
            call_id=self._ctx.call_id,
            heard=self._heard,
            data=data,
            ending=self.ending,
        )

    def _take_up(self, suspended: Suspended | None) -> None:
        if suspended is not None:
            self._heard = suspended.heard
            self.ending = suspended.ending
            self._ctx.heard(suspended.heard)

    def _compute(self, work: Callable[[], CellStep]) -> None:
        """Have the engine compute; what it comes to is heard on the loop."""
        self._computing = True
        self._ctx.threads.start(lambda: self._work(work))

    def _stands(self, step: CellPause) -> None:
        """Ask the turn for the next result."""
        try:
            self._ctx.ask(step.calls, self._hear)
        except Exception as error:
            self._fail(error)

    def _hear(self, number: int, answer: CallAnswer) -> None:
        run = self._run
        if run is None or self._given_up:  # it was suspended, or the turn is over
            return
        self._heard += 1
        self._compute(functools.partial(run.answer, number, answer))

    def _came_to(self, step: CellStep | None, error: BaseException | None) -> None:
        """The engine has stopped computing. Nobody waits for it once the turn was cancelled.

        A future is cancelled before the task that awaits it, which then gives the cell up.
        """
        self._computing = False
        if self._given_up:
            if isinstance(step, CellPause):
                self._close()  # `stop` came after its last step
            return
        if self._through.cancelled() or self._ended.cancelled():
            return
        if isinstance(step, CellPause):
            self._stands(step)
        elif step is not None:
            self._came_through(step)
            self._ended.set_result(step)
        else:
            assert error is not None
            self._fail(error)

    def _came_through(self, end: CellEnd) -> None:
        if not self._through.done():
            self._through.set_result(end)

    def _fail(self, error: BaseException) -> None:
        """Nobody waits for both: whoever has heard of the end waits for what is left of it."""
        waited = self._ended if self._through.done() else self._through
        waited.set_exception(error)

    def _give_up(self) -> None:
        """The turn goes on without the cell. One that computes is stopped, one that stands still closed."""
        self._given_up = True
        if not self._computing:
            self._close()
        elif self._run is not None:
            self._run.stop(_cancelled())

    def _close(self) -> None:
        if self._run is not None:
            self._ctx.threads.start(self._run.close)

    # Called in the engine's thread

    def _work(self, work: Callable[[], CellStep]) -> Callable[[], None]:
        """Compute; what tells the loop of it."""
        step, problem = None, None
        try:
            step = work()
            if isinstance(step, CellEnd):
                step = self._whole(step)
        except BaseException as error:
            problem = error
        return functools.partial(self._say, self._came_to, step, problem)

    def _say(self, hear: Callable[..., None], *what: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(hear, *what)

    def _tell(self, end: CellEnd) -> None:
        """The code is through: let the turn know while what it left is stored."""
        self._early = self._with_last_call(end)
        self._say(self._came_through, self._early)

    def _whole(self, end: CellEnd) -> CellEnd:
        if self._early is None or end.hard:
            return self._with_last_call(end)
        return msgspec.structs.replace(self._early, state=end.state)

    def _load(self, name: str) -> Any:
        return asyncio.run_coroutine_threadsafe(self._values.load(name), self._loop).result()

    def _with_last_call(self, ended: CellEnd) -> CellEnd:
        """Make the call that the code ended with, if any, and have what it raises raised there."""
        last = ended.last_call
        if last is None:
            return ended
        answer = self._answer_now(last.call)
        if self.ending is not None or answer is None or answer.exception is None:
            return ended
        raised = answer.exception
        error = ErrorObject(
            code=Code.RUNTIME_ERROR, message=f"{raised.type}: {raised.message}", span=last.span
        )
        return msgspec.structs.replace(ended, error=error)

    def _answer_now(self, call: CellCall) -> CallAnswer | None:
        if self.ending is not None:
            return _over()
        if call.name not in (FINISH, CONTINUE_AS):
            return None
        if call.problem is not None:
            kind = GUEST_EXCEPTION.get(call.problem.code, "RuntimeError")
            return _raised(kind, call.problem.message)
        if not self._request.accept_finish:
            return _raised("RuntimeError", f"{call.name}() is not possible here")
        problem = self._finish(call) if call.name == FINISH else self._continue_as(call)
        return _over() if problem is None else _raised("ValueError", problem)

    def _finish(self, call: CellCall) -> str | None:
        """Take the answer, or say why it is none."""
        value = call.args[0] if call.args else call.kwargs.get("value")
        output = self._ctx.output
        text = answer_text(value, output)
        if len(text) > _MAX_ANSWER_BYTES or len(text.encode("utf-8", "replace")) > _MAX_ANSWER_BYTES:
            return f"the answer is larger than {_MAX_ANSWER_BYTES} bytes"
        if output is not None and (problem := output.check(text).problem) is not None:
            return f"the answer does not fit: {problem}"
        self.ending = Ending(value=value)
        return None

    def _continue_as(self, call: CellCall) -> str | None:
        named = {**dict(zip(("task", "seed"), call.args, strict=False)), **call.kwargs}
        task, seed = named.get("task"), named.get("seed")
        if not isinstance(task, str) or not task.strip():
            return "continue_as() takes a task, as text"
        value: Json = task if seed is None else {"task": task, "seed": seed}
        self.ending = Ending(value=value, frame_id=f"{self._ctx.turn_id}.f{self._ctx.call_id}")
        return None


class CheckFailed(Exception):
    """The code was looked at and not run."""

    def __init__(self, error: ErrorObject, diagnostics: list[Diagnostic]) -> None:
        super().__init__(error.message)
        self.error = error
        self.diagnostics = diagnostics


def _cancelled() -> ErrorObject:
    return ErrorObject(code=Code.CANCELLED, message="the cell was cancelled")


def answer_text(value: Json, output: OutputContract | None) -> str:
    """An answer as it is said: text as it is, if no other type is promised; anything else as JSON."""
    if output is None and (value is None or isinstance(value, str)):
        return value or ""
    return msgspec.json.encode(value).decode()


def _over() -> CallAnswer:
    """What code sees that has ended the turn: nothing it should catch."""
    return _raised("SystemExit", "the turn is over")


def _raised(kind: str, message: str) -> CallAnswer:
    return CallAnswer(exception=GuestException(type=kind, message=message))


def _first_error(diagnostics: list[Diagnostic]) -> ErrorObject | None:
    for one in diagnostics:
        if one.severity is Severity.ERROR:
            return ErrorObject(code=one.code, message=one.message, hint=one.hint, span=one.span)
    return None
