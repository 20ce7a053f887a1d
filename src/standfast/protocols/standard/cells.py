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
from collections.abc import Callable, Sequence

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
from standfast.plugins.protocol import (
    CodeExecutorPlugin,
    CodeFunctions,
    ExecRequest,
    ExecResponse,
    OutputContract,
)
from standfast.plugins.running import described
from standfast.plugins.turn_hooks import TurnContext
from standfast.ports.code_engine import CallAnswer, CellCall, CodeEngine
from standfast.tools.eager import Started
from standfast.tools.settlement import GUEST_EXCEPTION
from standfast.tools.threads import DaemonThreads

Hear = Callable[[int, CallAnswer], None]
"""Told the number of a call, and what came of it."""


class RunningCells:
    """The cells of one turn. Used on the turn's loop."""

    def __init__(self, turn: TurnContext) -> None:
        assert turn.executor is not None
        self._turn = turn
        self._executor = turn.executor
        self._clock = turn.services.clock
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

    async def park(self) -> ToolSettled | None:
        """Suspend the cell and free its worker. Returns a failed result if the executor ends it instead."""
        cells, self._cells = self._cells, {}
        error = await self._executor.park() if cells else None
        for cell in cells.values():
            cell.give_up()
            if error is not None:
                return msgspec.structs.replace(self._as_input(cell, None, error), gives_up_calls=True)
        return None

    def stop(self) -> None:
        self._left.clear()
        cells, self._cells = self._cells, {}
        for cell in cells.values():
            cell.give_up()

    def _open(self, command: ContinueCell, deliver: Deliver) -> None:
        cell = self._cells[command.call.call_id] = _Cell(self._turn, self._executor, command, deliver)
        cell.task = Started(self._run(cell), self._turn.hooks.spares).task

    async def _run(self, cell: _Cell) -> None:
        ending = None
        try:
            settled, ending = await self._settled(cell)
        except Exception as error:  # the turn waits for this result, whatever happens
            settled = self._broken(cell, error)
        self._cells.pop(cell.call_id, None)

        def deliver() -> None:
            now = self._clock.now_ms()
            if isinstance(ending, FrameSwitch):
                cell.deliver(FrameSwitchRequested(at_ms=now, switch=ending))
            elif ending is not None:
                cell.deliver(FinishRequested(at_ms=now, call_id=cell.call_id, text=ending))
            cell.deliver(settled)

        self._turn.hooks.deliver(cell.call_id, deliver)

    async def _settled(self, cell: _Cell) -> tuple[ToolSettled, str | FrameSwitch | None]:
        """What came of a cell, and what it ends the turn with, if it does."""
        try:
            response = await self._executor.execute_code(cell, cell.request)
            if not isinstance(response, ExecResponse):
                answered = f"it answered with a {type(response).__name__}, not with ExecResponse"
                raise PluginFailed(self._turn.session.executor_id, "execute_code", answered)
            # Where nobody judges it, the result is made while what the code has left is still stored.
            report, made = response.report, None
            if not self._turn.hooks.judges:
                made = await self._kept(self._as_input(cell, None, report.error), response, report)
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
        return await self._judge(settled, cell), None

    async def _judged(
        self, cell: _Cell, response: ExecResponse
    ) -> tuple[ToolSettled, str | FrameSwitch | None]:
        report = response.report
        settled = self._as_input(cell, msgspec.to_builtins(report), report.error)
        settled = await self._judge(settled, cell)
        try:
            report = msgspec.convert(settled.value, CellReport)
        except msgspec.ValidationError:  # a plugin has put something else in its place, and that is no end
            return settled, None
        return await self._kept(settled, response, report)

    def _broken(self, cell: _Cell, error: Exception) -> ToolSettled:
        problem = PluginFailed(self._turn.session.executor_id, "execute_code", described(error))
        return self._as_input(cell, None, problem.error_object())

    async def _judge(self, settled: ToolSettled, cell: _Cell) -> ToolSettled:
        """What came of a cell, as plugins leave it."""
        hooks = self._turn.hooks
        return (
            await hooks.judge(settled, cell.name, cell.arguments, is_cell=True) if hooks.judges else settled
        )

    def _as_input(self, cell: _Cell, value: Json, error: ErrorObject | None) -> ToolSettled:
        return ToolSettled(at_ms=self._clock.now_ms(), call_id=cell.call_id, value=value, error=error)

    async def _kept(
        self, settled: ToolSettled, response: ExecResponse, report: CellReport
    ) -> tuple[ToolSettled, str | FrameSwitch | None]:
        """The result as it is kept, what the model reads of it, and the end that is in it."""
        if is_light(report):
            value, attachments = response.keep(report, self._keep)
        else:
            keep = functools.partial(response.keep, report, self._keep)
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

    def _keep(self, data: bytes) -> AttachmentPart:
        digest = self._turn.hooks.keep_blob(data)
        return AttachmentPart(digest=digest, media_type="application/json", size=len(data), name="cell.json")


class _Cell:
    """One cell: the `CodeExecutionContext` of its executor."""

    def __init__(
        self, turn: TurnContext, executor: CodeExecutorPlugin, command: ContinueCell, deliver: Deliver
    ) -> None:
        self.deliver = deliver
        self.task: asyncio.Task[None] | None = None
        self.session_id = turn.session_id
        self.turn_id = turn.turn_id
        self.call_id = command.call.call_id
        self.name = command.call.name
        self.arguments = (command.arguments or command.call.arguments) or {}
        self.now_ms = turn.machine.replied_at_ms
        self.seed = f"{turn.machine.nonce}.{self.turn_id}.{self.call_id}"
        self.threads: DaemonThreads = turn.services.threads
        self.output: OutputContract | None = turn.output
        self.functions: CodeFunctions = turn.session.code_functions()
        self._turn = turn
        self._executor = executor
        self._command = command
        self._heard = 0
        self._numbers: dict[int, int] = {}
        self._hear: Hear | None = None

    @property
    def request(self) -> ExecRequest:
        arguments, executor = self.arguments, self._executor
        code = str(arguments.get("code", ""))
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

    def engine(self, name: EngineName) -> CodeEngine:
        return self._turn.services.engines.named(name)

    async def read_blob(self, digest: str) -> bytes | None:
        return await self._turn.hooks.read_blob(digest)

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
                at_ms=self._turn.services.clock.now_ms(),
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
        if self._turn.machine.code is not None:  # people see the call as the code made it
            return CellCalled(name=call.name, arguments=call.kwargs, args=tuple(call.args))
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
