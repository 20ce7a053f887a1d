"""The cells of a turn, and a running cell on its engine.

A cell is a call of the executor's tool. It runs as a task. When its code needs results, the machine is fed a
`CellPaused`, dispatches the cell's calls like any others, and resumes the cell with one result at a time
(`ContinueCell`). A cell that is not loaded in this process is rerun: it gets the recorded results in the same
order, and the machine is fed nothing until the cell has reached the point where it paused.

The engine computes on a thread; `RunningCell` connects that thread with the turn's loop::

    run ─ thread: start ─ loop: ask ─ … ─ loop: hear ─ thread: answer ─ loop: ask ─ … ─ through ─ end

Once the code has ended, the turn may continue while the engine is still storing large variables.

Rules
-----
1. A cell gets results only through `ContinueCell`, so they arrive in the order of the journal.
2. A cell that makes different calls when it is rerun fails.
3. Plugins see a cell's report before it is stored or shown. If they replace the report by another value, the
   cell does not end the turn.
4. A cell's variables take effect when its result is accepted, and are journaled with it: a process that
   reruns the cell starts from the variables before it.
5. Everything but the engine is used only on the turn's loop, unless a comment says otherwise.
"""

from __future__ import annotations

import asyncio
import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from standfast.durable.effects import Deliver
from standfast.errors import (
    Code,
    CodeExecutionRuntimeStopped,
    ErrorObject,
    InvalidArgument,
    PluginFailed,
    StandfastError,
)
from standfast.machine.commands import ContinueCell
from standfast.machine.inputs import (
    CellCalled,
    CellPaused,
    FinishRequested,
    FrameSwitchRequested,
    ToolSettled,
)
from standfast.model.canonical import Json, encode_json, is_light
from standfast.model.capability import GuestException
from standfast.model.code import CellReport
from standfast.model.frame import FrameSwitch
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolCall
from standfast.plugins.turn_protocol import CodeExecutionContext, CodeFunctions, ExecRequest, ExecResponse
from standfast.ports.code_engine import (
    CallAnswer,
    CellCall,
    CellEnd,
    CellPause,
    CellRequest,
    CellRun,
    CellStep,
    CodeEngine,
)
from standfast.protocols.standard.cut_report import cut_report
from standfast.tools.settlement import GUEST_EXCEPTION
from standfast.tools.threads import Started
from standfast.tools.tracebacks import described

if TYPE_CHECKING:
    from standfast.plugins.turn_hooks import TurnContext

WHOLE_REPORT: Final = "cell.json"
"""The name of the attachment that holds a whole report."""

NumberedResult = tuple[int, CallAnswer]
"""The number of a call and its result."""

Hear = Callable[[int, CallAnswer], None]
"""The callback that receives the number of a call and its result."""

_call_id: Final = attrgetter("call_id")

CellResult = tuple[ToolSettled, str | FrameSwitch | None]
"""The result of a cell, and the answer or frame with which it ends the turn; None if it does not."""


def kept_report(
    report: CellReport, keep: Callable[[bytes], AttachmentPart], inline_chars: int = 4_000
) -> tuple[Json, tuple[AttachmentPart, ...]]:
    """Return the value of a cell's result and its attachments; a long report is cut, and *keep* stores it."""
    data = encode_json(report)
    if len(data) <= inline_chars or len(data.decode()) <= inline_chars:
        return msgspec.json.decode(data), ()
    return cut_report(report, inline_chars), (keep(data),)


class HostedCells(Protocol):
    """The cells of one turn, as its host sees them. Used on the turn's loop."""

    def resume(self, command: ContinueCell, deliver: Deliver) -> None:
        """Start a cell, give a running one its next result, or run one again that is unknown here."""

    def settled(self, call_id: int) -> None:
        """Adopt the variables of a cell whose result is being taken in."""

    async def park(self) -> ToolSettled | None:
        """Suspend the cell and free its worker. Returns a failed result if the cell ends instead."""

    def stop(self) -> None:
        """Abandon the running cells, because the turn is over."""


class TurnCells:
    """The cells of an agent's turn, each a task that runs the session's executor. Used on the turn's loop."""

    def __init__(self, turn: TurnContext) -> None:
        assert turn.executor is not None
        self._turn = turn
        self._executor = turn.executor
        self._cells: dict[int, CellContext] = {}
        self._adopt: dict[int, Callable[[], None]] = {}

    def resume(self, command: ContinueCell, deliver: Deliver) -> None:
        """Start a cell, give a running one its next result, or run one again that is unknown here."""
        call_id = command.call.call_id
        if (found := self._cells.get(call_id)) is not None:
            found.resume(command)
            return
        cell = self._cells[call_id] = CellContext(self._turn, command, deliver)
        cell.task = Started(self._run(cell), self._turn.hooks.spares).task

    def settled(self, call_id: int) -> None:
        """Adopt the variables of a cell whose result is being taken in."""
        if (adopt := self._adopt.pop(call_id, None)) is not None:
            adopt()

    async def park(self) -> ToolSettled | None:
        """Suspend the cell and free its worker. Returns a failed result if the executor ends it instead."""
        cells, self._cells = self._cells, {}
        error = await self._executor.park() if cells else None
        for cell in cells.values():
            cell.cancel()
            if error is not None:
                return cell.settled(error=error, gives_up_calls=True)
        return None

    def stop(self) -> None:
        self._adopt.clear()
        cells, self._cells = self._cells, {}
        for cell in cells.values():
            cell.cancel()

    async def _run(self, cell: CellContext) -> None:
        ending = None
        try:
            settled, ending = await self._result(cell)
        except Exception as error:  # the turn needs a result in any case
            settled = self._broken(cell, error)
        self._cells.pop(cell.call_id, None)

        def deliver() -> None:
            now = self._turn.services.clock.now_ms()
            if isinstance(ending, FrameSwitch):
                cell.deliver(FrameSwitchRequested(at_ms=now, switch=ending))
            elif ending is not None:
                cell.deliver(FinishRequested(at_ms=now, call_id=cell.call_id, text=ending))
            cell.deliver(settled)

        self._turn.hooks.deliver(cell.call_id, deliver)

    async def _result(self, cell: CellContext) -> CellResult:
        """Execute a cell and let plugins change its report."""
        hooks, made = self._turn.hooks, None
        try:
            response = await self._executor.execute_code(cell, cell.request())
            if not isinstance(response, ExecResponse):
                problem = f"it answered with a {type(response).__name__}, not with ExecResponse"
                raise PluginFailed(self._turn.session.executor_id, "execute_code", problem)
            if not hooks.judges:  # prepare the result while the variables are being stored
                settled = cell.settled(error=response.report.error)
                made = await self._kept(cell, settled, response, response.report)
            if response.stored is not None and (other := await response.stored()) is not None:
                response, made = other, None
        except Exception as error:
            settled = self._broken(cell, error)
            if hooks.judges:
                settled = await hooks.judge(settled, cell.name, cell.arguments, is_cell=True)
            return settled, None
        self._adopt[cell.call_id] = response.adopt
        if made is not None:
            return made
        report = response.report
        settled = cell.settled(value=msgspec.to_builtins(report), error=report.error)
        if hooks.judges:
            settled = await hooks.judge(settled, cell.name, cell.arguments, is_cell=True)
        try:
            report = msgspec.convert(settled.value, CellReport)
        except msgspec.ValidationError:  # a plugin has replaced the report
            return settled, None
        return await self._kept(cell, settled, response, report)

    def _broken(self, cell: CellContext, error: Exception) -> ToolSettled:
        if not isinstance(error, StandfastError):
            error = PluginFailed(self._turn.session.executor_id, "execute_code", described(error))
        return cell.settled(error=error.error_object())

    async def _kept(
        self, cell: CellContext, settled: ToolSettled, response: ExecResponse, report: CellReport
    ) -> CellResult:
        """Return the result to store, with the text that the model reads, and how it ends the turn, if so."""
        texts = (report.stdout, report.stderr, report.result)
        if is_light(report if report.calls or report.diagnostics else texts):
            value, attachments = response.keep(report, cell.keep)
        else:
            keep = functools.partial(response.keep, report, cell.keep)
            value, attachments = await self._turn.services.threads.run(keep)
        kept = msgspec.structs.replace(
            settled,
            gives_up_calls=report.hard and self._turn.machine.code is not None,
            value=value,
            attachments=(*settled.attachments, *attachments),
            shown=response.render(report) if settled.shown is None else settled.shown,
        )
        ending = response.ending if settled.error is None else None
        return kept, None if ending is None else ending(report.result)


class CellContext:
    """The `CodeExecutionContext` of one cell."""

    task: asyncio.Task[None] | None = None
    _heard = 0
    _waiting: Hear | None = None

    def __init__(self, turn: TurnContext, command: ContinueCell, deliver: Deliver) -> None:
        self.deliver = deliver
        self.session_id = turn.session_id
        self.turn_id = turn.turn_id
        self.call_id = command.call.call_id
        self.now_ms = turn.machine.replied_at_ms
        self.seed = f"{turn.machine.nonce}.{turn.turn_id}.{self.call_id}"
        self.functions: CodeFunctions = turn.session.code_functions()
        self.threads = turn.services.threads
        self.output = turn.output
        self._turn = turn
        self._command = command

    async def read_blob(self, digest: str) -> bytes | None:
        return await self._turn.hooks.read_blob(digest)

    @property
    def name(self) -> str:
        return self._command.call.name

    @property
    def arguments(self) -> dict[str, Json]:
        return (self._command.arguments or self._command.call.arguments) or {}

    def request(self) -> ExecRequest:
        executor, code = self._turn.executor, str(self.arguments.get("code", ""))
        assert executor is not None
        return ExecRequest(executor.cell_language(self.reply, code), code, executor.accepts_finish)

    @property
    def reply(self) -> AssistantMessage:
        for message in reversed(self._turn.machine.messages):
            if isinstance(message, AssistantMessage):
                return message
        return AssistantMessage()

    @property
    def messages(self) -> Sequence[Message]:
        return [*self._turn.history, *self._turn.machine.messages]

    def engine(self, name: str) -> CodeEngine:
        return self._turn.services.engines.named(name)

    def settled(self, **result: Any) -> ToolSettled:
        """Return a result of the cell with the fields *result* of `ToolSettled`."""
        return ToolSettled(at_ms=self._turn.services.clock.now_ms(), call_id=self.call_id, **result)

    def keep(self, data: bytes) -> AttachmentPart:
        """Store a whole report as an attachment."""
        digest = self._turn.hooks.keep_blob(data)
        return AttachmentPart(digest=digest, media_type="application/json", size=len(data), name=WHOLE_REPORT)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def resume(self, command: ContinueCell) -> None:
        self._command = command
        hear, self._waiting = self._waiting, None
        if hear is not None:
            hear(*self.next_result())

    def heard(self, count: int) -> None:
        if count > self._command.count:
            raise CodeExecutionRuntimeStopped("the suspended cell has answers that the journal lacks")
        self._heard = count

    def ask(self, calls: Sequence[CellCall], hear: Hear) -> None:
        self._waiting = hear
        if (known := self.pause(calls)) is not None:
            self._waiting = None
            hear(*known)

    def pause(self, calls: Sequence[CellCall]) -> NumberedResult | None:
        """Return the next recorded result, or pause the cell, which has made *calls* since its last pause."""
        command = self._command
        called = tuple([self._called(call) for call in calls])
        if calls and calls[0].number <= len(command.made):
            _check_rerun(called, command.made[calls[0].number - 1 :])
        if self._heard < command.count:
            return self.next_result()
        if not calls and len(command.made) <= self._heard:
            raise CodeExecutionRuntimeStopped("the code waits, but has no call that could be answered")
        now_ms, number = self._turn.services.clock.now_ms(), self._heard + 1
        self.deliver(CellPaused(at_ms=now_ms, call_id=self.call_id, number=number, calls=called))
        return None

    def made(self) -> Sequence[tuple[ToolCall, ToolSettled | None]]:
        results = {one.call_id: one for one in self._command.answers[: self._command.count]}
        return [(call, results.get(call.call_id)) for call in self._command.made]

    def next_result(self) -> NumberedResult:
        """Return the next recorded result, and count it as passed to the code."""
        command = self._command
        settled = command.answers[self._heard]
        self._heard += 1
        number = bisect_left(command.made, settled.call_id, key=_call_id) + 1  # ids count upwards
        if (error := settled.error) is None:
            return number, CallAnswer(value=settled.value, at_ms=settled.at_ms)
        raised = settled.exception or GuestException(
            type=GUEST_EXCEPTION.get(error.code, "RuntimeError"), message=f"{error.code}: {error.message}"
        )
        return number, CallAnswer(exception=raised, error=error, at_ms=settled.at_ms)

    def _called(self, call: CellCall) -> CellCalled:
        """Convert a call of the code to the machine's form, with its arguments by name."""
        line = call.line
        if call.problem is not None:
            return CellCalled(name=call.name, error=call.problem, line=line)
        if self._turn.machine.code is not None:  # a person sees the call as the code made it
            return CellCalled(name=call.name, arguments=call.kwargs, args=tuple(call.args), line=line)
        try:
            args, named = _by_name(self.functions, call)
        except StandfastError as error:
            return CellCalled(name=call.name, arguments=call.kwargs, error=error.error_object(), line=line)
        return CellCalled(name=call.name, arguments=named, args=tuple(args), line=line)


def _check_rerun(called: Sequence[CellCalled], made: Sequence[ToolCall]) -> None:
    """Raise if the code, which was rerun, has *called* other functions than it had called before."""
    for now, before in zip(called, made, strict=False):
        if (before.name, before.arguments, before.args) != (now.name, now.arguments, now.args):
            raise CodeExecutionRuntimeStopped(
                f"rerun after a restart, the code called {now.name}() where it had called "
                f"{before.name}(), or with other arguments",
                hint="check the calls before this one, which took effect, before you continue",
            )


def _by_name(functions: CodeFunctions, call: CellCall) -> tuple[list[Json], dict[str, Json]]:
    """Convert positional arguments to named ones, as far as the function's contract names them."""
    if not call.args:
        return [], call.kwargs
    schema = functions.capability(call.name).input_schema
    if schema.get("type") == "array":
        return call.args, call.kwargs
    names = list(schema.get("properties", ()))
    if len(call.args) > len(names):
        raise InvalidArgument(f"{call.name}() takes {len(names)} arguments, {len(call.args)} were given")
    placed = dict(zip(names, call.args, strict=False))
    if twice := sorted(set(placed) & set(call.kwargs)):
        raise InvalidArgument(f"{call.name}() got multiple values for argument {twice[0]!r}")
    return [], {**placed, **call.kwargs}


class RunningCell:
    """One cell on its engine, from its beginning, or from its suspension, to its end."""

    _run: CellRun | None = None
    _computing = False
    _given_up = False
    _heard = 0

    def __init__(self, ctx: CodeExecutionContext, engine: CodeEngine) -> None:
        self._ctx = ctx
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._through: asyncio.Future[CellEnd] = self._loop.create_future()
        self._ended: asyncio.Future[CellEnd] = self._loop.create_future()

    async def run_request(self, request: CellRequest) -> CellEnd:
        """Run a cell until its code has ended. `end` also waits until the variables are stored."""
        try:
            self._compute(lambda: self._begin(request))
            return await self._through
        except BaseException:
            self._give_up()
            raise

    async def end(self) -> CellEnd:
        """Return the end with the variables; it differs from `run_request`'s if they could not be stored."""
        try:
            return await self._ended
        except BaseException:
            self._give_up()
            raise

    def left(self) -> bytes | None:
        """Return the variables of a cell that has ended; None if they did not change."""
        return self._ended.result().state

    async def suspend_run(self) -> bytes:
        """Suspend a cell that waits for a result, and return it as bytes."""
        run, self._run = self._run, None
        assert run is not None
        return await self._ctx.threads.run(run.suspend)

    def heard_before(self, count: int) -> None:
        """Record that the cell is resumed after *count* results."""
        self._heard = count
        self._ctx.heard(count)

    def _compute(self, work: Callable[[], CellStep]) -> None:
        """Run the engine's computation on a thread; `_came_to` receives its step on the loop."""
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
        if run is None or self._given_up:  # the cell was suspended, or the turn is over
            return
        self._heard += 1
        self._compute(functools.partial(run.answer, number, answer))

    def _came_to(self, step: CellStep | None, error: BaseException | None) -> None:
        """Process the step that the engine has computed, unless the turn was cancelled."""
        self._computing = False
        if self._given_up:
            if isinstance(step, CellPause):
                self._close()  # `stop` was called after its last step
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
        """Set *error* on the one future that is being awaited."""
        (self._ended if self._through.done() else self._through).set_exception(error)

    def _give_up(self) -> None:
        """Stop the cell if it is computing; close it if it waits for a result."""
        self._given_up = True
        if not self._computing:
            self._close()
        elif self._run is not None:
            self._run.stop(_CANCELLED)

    def _close(self) -> None:
        if self._run is not None:
            self._ctx.threads.start(self._run.close)

    # Called on the engine's thread

    def _begin(self, request: CellRequest) -> CellStep:
        run = self._run = self._engine.open(request)
        if self._given_up:
            run.stop(_CANCELLED)
        return run.start()

    def _work(self, work: Callable[[], CellStep]) -> Callable[[], None]:
        """Compute a step, and return the function that reports it to the loop."""
        step: CellStep | None = None
        problem: BaseException | None = None
        try:
            step = work()
            if isinstance(step, CellEnd):
                step = self._whole(step)
        except BaseException as error:
            problem = error
        return functools.partial(self._say, self._came_to, step, problem)

    def _say(self, hear: Callable[..., None], *what: Any) -> None:
        """Call *hear* on the loop."""
        try:
            self._loop.call_soon_threadsafe(hear, *what)
        except RuntimeError:  # the loop is closed, and the turn with it
            return

    def _whole(self, end: CellEnd) -> CellEnd:
        """Return *end* in the form in which the turn gets it."""
        return end


_CANCELLED = ErrorObject(code=Code.CANCELLED, message="the cell was cancelled")
