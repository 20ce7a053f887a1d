"""The cells of a turn: code that runs between the calls it makes.

Theory of operation
-------------------
A cell is a call of the executor's tool. It runs as a task, and where it stands still it tells the machine
(`CellPaused`), which has its calls carried out like any others and lets it go on with one result at a time
(`ContinueCell`). A cell that this process does not know is run again: it gets the results it had, in the same
order, without anybody hearing of it, until it stands where it stood.

Rules
-----
1. A cell gets a result only by `ContinueCell`: the order of the journal is the order in which it hears.
2. A cell that makes other calls than it had made, when it is run again, has failed: nothing is guessed.
3. Plugins see what came of a cell before it is kept or shown. An answer is what they leave of it; if they put
   something else in the place of the report, the turn goes on with that.
4. What a cell leaves behind counts from the moment at which its result is taken in, and is journaled with it:
   whoever runs it again begins with what there was before.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from standfast.durable.effects import Deliver
from standfast.errors import (
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
from standfast.model.bounds import is_light
from standfast.model.call import GuestException
from standfast.model.canonical import Json
from standfast.model.cell import CellReport
from standfast.model.frame import FrameSwitch
from standfast.model.language import EngineName
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolCall
from standfast.plugins.protocol import CodeFunctions, ExecRequest, ExecResponse, OutputContract, TurnSeat
from standfast.plugins.running import described
from standfast.ports.code_engine import CallAnswer, CellCall, CodeEngine
from standfast.tools.eager import Started
from standfast.tools.settlement import GUEST_EXCEPTION
from standfast.tools.threads import DaemonThreads

Judge = Callable[[ToolSettled, str, dict[str, Json]], Awaitable[ToolSettled]]
"""What plugins make of a result."""
Hear = Callable[[int, CallAnswer], None]
"""Told the number of a call, and what came of it."""


class CellDesk:
    """The cells of one turn. Used on the turn's loop."""

    def __init__(self, seat: TurnSeat, judge: Judge) -> None:
        self._seat = seat
        self._judge = judge
        self._cells: dict[int, _Cell] = {}
        self._left: dict[int, Callable[[], None]] = {}

    def start(self, call: ToolCall, arguments: dict[str, Json], deliver: Deliver) -> None:
        self._open(ContinueCell(call, arguments, (), (), 0), deliver)

    def go_on(self, command: ContinueCell, deliver: Deliver) -> None:
        found = self._cells.get(command.call.call_id)
        if found is None:
            self._open(command, deliver)
        else:
            found.hear(command)

    def settled(self, call_id: int) -> None:
        """A result is taken in; if it is a cell's, so is what that has left behind."""
        adopt = self._left.pop(call_id, None)
        if adopt is not None:
            adopt()

    async def park(self) -> None:
        """Remember where cells stand, and let go of them."""
        cells, self._cells = self._cells, {}
        if cells and self._seat.cells is not None:
            await self._seat.cells.executor.park()
        for cell in cells.values():
            cell.give_up()

    def stop(self) -> None:
        self._left.clear()
        cells, self._cells = self._cells, {}
        for cell in cells.values():
            cell.give_up()

    def _open(self, command: ContinueCell, deliver: Deliver) -> None:
        cell = self._cells[command.call.call_id] = _Cell(self._seat, command, deliver)
        cell.task = Started(self._run(cell), self._seat.hooks.spares).task

    async def _run(self, cell: _Cell) -> None:
        ending = None
        try:
            settled, ending = await self._settled(cell)
        except Exception as error:  # the turn waits for this result, whatever happens
            settled = self._broken(cell, error)
        self._cells.pop(cell.call_id, None)

        def deliver() -> None:
            now = self._seat.bench.clock.now_ms()
            if isinstance(ending, FrameSwitch):
                cell.deliver(FrameSwitchRequested(at_ms=now, switch=ending))
            elif ending is not None:
                cell.deliver(FinishRequested(at_ms=now, call_id=cell.call_id, text=ending))
            cell.deliver(settled)

        self._seat.hooks.deliver(cell.call_id, deliver)

    async def _settled(self, cell: _Cell) -> tuple[ToolSettled, str | FrameSwitch | None]:
        """What came of a cell, and what it ends the turn with, if it does."""
        assert self._seat.cells is not None
        try:
            response = await self._seat.cells.executor.execute_code(cell, cell.request)
            if not isinstance(response, ExecResponse):
                answered = f"it answered with a {type(response).__name__}, not with ExecResponse"
                raise PluginFailed(self._seat.cells.plugin_id, "execute_code", answered)
            # Where nobody judges it, the result is made while what the code has left is still stored.
            made = None
            if not self._seat.hooks.judges:
                made = await self._kept(
                    self._as_input(cell, None, response.report.error), response, response.report
                )
            if response.stored is not None and (other := await response.stored()) is not None:
                response, made = other, None
        except StandfastError as error:
            settled = self._as_input(cell, None, error.error_object())
        except Exception as error:
            settled = self._broken(cell, error)
        else:
            self._left[cell.call_id] = response.adopt
            if made is not None:
                return made
            return await self._judged(cell, response)
        return await self._judge(settled, cell.name, cell.arguments), None

    async def _judged(
        self, cell: _Cell, response: ExecResponse
    ) -> tuple[ToolSettled, str | FrameSwitch | None]:
        report = response.report
        settled = self._as_input(cell, msgspec.to_builtins(report), report.error)
        settled = await self._judge(settled, cell.name, cell.arguments)
        try:
            report = msgspec.convert(settled.value, CellReport)
        except msgspec.ValidationError:  # a plugin has put something else in its place, and that is no end
            return settled, None
        return await self._kept(settled, response, report)

    def _broken(self, cell: _Cell, error: Exception) -> ToolSettled:
        assert self._seat.cells is not None
        problem = PluginFailed(self._seat.cells.plugin_id, "execute_code", described(error))
        return self._as_input(cell, None, problem.error_object())

    def _as_input(self, cell: _Cell, value: Json, error: ErrorObject | None) -> ToolSettled:
        return ToolSettled(
            at_ms=self._seat.bench.clock.now_ms(), call_id=cell.call_id, value=value, error=error
        )

    async def _kept(
        self, settled: ToolSettled, response: ExecResponse, report: CellReport
    ) -> tuple[ToolSettled, str | FrameSwitch | None]:
        """The result as it is kept, what the model reads of it, and the end that is in it."""
        if is_light(report):
            value, attachments = response.keep(report, self._keep)
        else:
            keep = functools.partial(response.keep, report, self._keep)
            value, attachments = await self._seat.bench.threads.run(keep)
        kept = msgspec.structs.replace(
            settled,
            value=value,
            attachments=(*settled.attachments, *attachments),
            shown=response.render(report) if settled.shown is None else settled.shown,
        )
        ending = response.ending if settled.error is None else None
        return kept, None if ending is None else ending(report.result)

    def _keep(self, data: bytes) -> AttachmentPart:
        digest = self._seat.hooks.keep_blob(data)
        return AttachmentPart(digest=digest, media_type="application/json", size=len(data), name="cell.json")


class _Cell:
    """One cell: the `CodeExecutionContext` of its executor."""

    def __init__(self, seat: TurnSeat, command: ContinueCell, deliver: Deliver) -> None:
        assert seat.cells is not None
        self.deliver = deliver
        self.task: asyncio.Task[None] | None = None
        self.session_id = seat.session_id
        self.turn_id = seat.machine.turn_id
        self.call_id = command.call.call_id
        self.name = command.call.name
        self.arguments = (command.arguments or command.call.arguments) or {}
        self.now_ms = seat.machine.replied_at_ms
        self.seed = f"{seat.machine.nonce}.{self.turn_id}.{self.call_id}"
        self.threads: DaemonThreads = seat.bench.threads
        self.output: OutputContract | None = seat.output
        self.functions: CodeFunctions = seat.cells.functions()
        self.engine: Callable[[EngineName], CodeEngine] = seat.bench.engine
        self._seat = seat
        self._command = command
        self._heard = 0
        self._numbers: dict[int, int] = {}
        self._hear: Hear | None = None

    @property
    def request(self) -> ExecRequest:
        assert self._seat.cells is not None
        arguments, executor = self.arguments, self._seat.cells.executor
        code = str(arguments.get("code", ""))
        return ExecRequest(executor.cell_language(self.reply, code), code, executor.accepts_finish)

    @property
    def reply(self) -> AssistantMessage:
        for message in reversed(self._seat.machine.messages):
            if isinstance(message, AssistantMessage):
                return message
        return AssistantMessage()

    @property
    def messages(self) -> Sequence[Message]:
        return [*self._seat.history, *self._seat.machine.messages]

    async def read_blob(self, digest: str) -> bytes | None:
        return await self._seat.hooks.read_blob(digest)

    def give_up(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def hear(self, command: ContinueCell) -> None:
        self._command = command
        told, self._hear = self._hear, None
        if told is not None:
            self._tell(told)

    def heard(self, count: int) -> None:
        if count > self._command.count:
            raise CodeExecutionRuntimeStopped("the cell was suspended with answers that the journal lacks")
        self._heard = count

    def ask(self, calls: Sequence[CellCall], hear: Hear) -> None:
        self._check_same(calls)
        if self._heard < self._command.count:
            self._tell(hear)
        else:
            self._pause(calls, hear)

    def _tell(self, hear: Hear) -> None:
        settled = self._command.answers[self._heard]
        self._heard += 1
        hear(self._number_of(settled.call_id), _answer(settled))

    def made(self) -> Sequence[tuple[ToolCall, ToolSettled | None]]:
        results = {one.call_id: one for one in self._command.answers[: self._command.count]}
        return [(call, results.get(call.call_id)) for call in self._command.made]

    def _pause(self, calls: Sequence[CellCall], hear: Hear) -> None:
        if not calls and len(self._command.made) <= self._heard:
            raise CodeExecutionRuntimeStopped("the code waits for something that never comes")
        self._hear = hear
        self.deliver(
            CellPaused(
                at_ms=self._seat.bench.clock.now_ms(),
                call_id=self.call_id,
                number=self._heard + 1,
                calls=tuple(self._called(call) for call in calls),
            )
        )

    def _check_same(self, calls: Sequence[CellCall]) -> None:
        """What the code has called already it must call again, when it is run again."""
        made = self._command.made
        for call in calls:
            if call.number > len(made):
                return
            before, now = made[call.number - 1], self._called(call)
            if (before.name, before.arguments, before.args) != (now.name, now.arguments, now.args):
                raise CodeExecutionRuntimeStopped(
                    f"run again after a restart, the code called {now.name}() where it had called "
                    f"{before.name}() with other arguments",
                    hint="what the calls before it did has happened; look at it before going on",
                )

    def _called(self, call: CellCall) -> CellCalled:
        """The call with its arguments by name, as the machine takes it."""
        if call.problem is not None:
            return CellCalled(name=call.name, error=call.problem)
        try:
            args, named = _by_name(self.functions, call)
        except StandfastError as error:
            return CellCalled(name=call.name, arguments=call.kwargs, error=error.error_object())
        return CellCalled(name=call.name, arguments=named, args=tuple(args))

    def _number_of(self, call_id: int) -> int:
        made = self._command.made
        for number in range(len(self._numbers) + 1, len(made) + 1):
            self._numbers[made[number - 1].call_id] = number
        return self._numbers[call_id]


def _by_name(functions: CodeFunctions, call: CellCall) -> tuple[list[Json], dict[str, Json]]:
    """Positional arguments under the names that the contract has for them, if it has names."""
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


def _answer(settled: ToolSettled) -> CallAnswer:
    error = settled.error
    if error is None:
        return CallAnswer(value=settled.value, at_ms=settled.at_ms)
    seen = settled.exception or GuestException(
        type=GUEST_EXCEPTION.get(error.code, "RuntimeError"), message=f"{error.code}: {error.message}"
    )
    return CallAnswer(exception=seen, error=error, at_ms=settled.at_ms)
