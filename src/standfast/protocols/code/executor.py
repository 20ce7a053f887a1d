"""Runs the cells of a session, and keeps what they leave behind.

Theory of operation
-------------------
A cell is checked, then run by the engine on a thread until it ends or stands still. Where it stands still,
the turn is asked for the next result and the cell goes on with it (`running_cell`). What
it leaves is the engine's state, opaque bytes, which travel with the session's commits.

If the turn is parked, the cell is suspended: from then on it is bytes as well, and its worker is free.

Rules
-----
1. The state changes only when a cell has ended and its result is taken in. A cell that failed hard leaves it
   as it was.
2. A cell that fails its check has run nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from standfast.errors import (
    Code,
    CodeExecutionRuntimeStopped,
    EngineFailed,
    ErrorObject,
    PluginStateLost,
)
from standfast.machine.inputs import ToolSettled
from standfast.model.canonical import Json
from standfast.model.capability import CallStatus
from standfast.model.cell import RUN_CODE, CallMade, CellReport
from standfast.model.diagnostic import Diagnostic
from standfast.model.frame import FrameSwitch
from standfast.model.language import EngineName, Language
from standfast.model.limits import SessionLimits
from standfast.model.message import AssistantMessage, InputPart, Message, ToolCall
from standfast.plugins.protocol import CodeExecutionContext, ExecRequest, ExecResponse
from standfast.ports.code_engine import (
    CellEnd,
    Check,
)
from standfast.protocols.code.cell_finder import FoundCell, find_cells
from standfast.protocols.code.cell_history import kept_report
from standfast.protocols.code.following import SessionReading
from standfast.protocols.code.functions import SessionFunctions
from standfast.protocols.code.observation import AS_JSON, NOT_EXECUTED, observation, short_arguments
from standfast.protocols.code.running_cell import CheckFailed, ModelCell, Suspended
from standfast.protocols.code.values import ReadOnlyValues
from standfast.protocols.code.written import WrittenMessages
from standfast.tools.catalog import ToolCatalog
from standfast.tools.registered_tool import RegisteredTool

CELL_LIMITS: Final = SessionLimits(
    memory_mb=256,
    cpu_ms=10_000,
    wall_ms=600_000,
    max_stdout_bytes=1 << 20,
    max_external_calls=1_000,
)
_CUT_OFF: Final = frozenset({"length", "max_tokens", "max_output_tokens"})
STATE_VERSION: Final = 1


class CellOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How cells are checked, run and shown."""

    engine: EngineName = EngineName.MONTY
    check: Check = "calls"
    limits: SessionLimits = CELL_LIMITS
    observation_chars: int = 8_000
    finish: bool = True

    @property
    def language(self) -> Language:
        return self.engine.language


class CodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a session's code."""

    version: int = STATE_VERSION
    language: Language = Language.PYTHON
    engine: str = EngineName.MONTY
    state: bytes = b""
    inputs: dict[str, InputPart] = msgspec.field(default_factory=dict)
    suspended: Suspended | None = None


class CodeExecutor:
    """The `CodeExecutorPlugin` of one session. Used on the turn's loop, one cell at a time."""

    cell_tool = RUN_CODE

    def __init__(self, options: CellOptions) -> None:
        self._options = options
        self._memory = CodeMemory(language=options.language, engine=options.engine)
        self._dirty = False
        self._functions: SessionFunctions | None = None
        self._reading = SessionReading()
        self.written = WrittenMessages(options.language)
        """The messages as the model has written and reads them."""
        self._running: ModelCell | None = None

    @property
    def language(self) -> str:
        return str(self._options.language)

    def cell_language(self, reply: AssistantMessage, code: str) -> str:
        """Tell what a cell's fence says. Code that was put in its place is in the session's language."""
        mine = self._options.language
        if reply.raw is None or (f"```{mine}\n" in reply.raw and _has_one_fence(reply.raw)):
            return mine
        cells = _cells_in(reply, mine)
        return cells[0].language if cells and cells[0].code == code else mine

    @property
    def accepts_finish(self) -> bool:
        return self._options.finish

    def functions(self, catalog: ToolCatalog, resolve: Callable[[str], RegisteredTool]) -> SessionFunctions:
        """What code may call, made once for each catalog."""
        if self._functions is None or self._functions.catalog is not catalog:
            options = self._options
            self._functions = SessionFunctions(catalog, resolve, options.language, options.limits)
        return self._functions

    # Running

    async def execute_code(self, ctx: CodeExecutionContext, request: ExecRequest) -> ExecResponse:
        values = ReadOnlyValues(ctx.messages, self._reading, self._memory.inputs, ctx.read_blob)
        report = CellReport(index=values.cells, notes=_notes(ctx.reply, self._options.language))
        refused = self._refused(ctx, request)
        if refused is not None:
            return self._response(request, _failed(report, refused))
        engine = ctx.engine(self._options.engine)
        cell = self._running = ModelCell(ctx, request, values, engine)
        try:
            through = await cell.run(
                self._memory.state, self._taken_up(ctx), self._options.limits, self._options.check
            )
        except CheckFailed as failed:
            return self._response(request, _failed(report, failed.error, failed.diagnostics))
        except EngineFailed as error:
            raise CodeExecutionRuntimeStopped(error.message, hint=error.hint) from error
        finally:
            self._running = None

        async def stored() -> ExecResponse | None:
            try:
                ended = await cell.end()
            except EngineFailed as error:
                raise CodeExecutionRuntimeStopped(error.message, hint=error.hint) from error
            return responded(ended) if ended.hard and not through.hard else None

        def responded(ended: CellEnd) -> ExecResponse:
            response = self._ended(ctx, request, report, cell, ended)
            return msgspec.structs.replace(
                response, stored=stored, adopt=functools.partial(self._remember, cell, values)
            )

        return responded(through)

    async def park(self) -> None:
        """Suspend the cell that runs, if one does. If it cannot be, it is run again from its beginning."""
        cell = self._running
        if cell is None:
            return
        try:
            suspended = await cell.suspend()
        except EngineFailed:
            suspended = None
        self._memory = msgspec.structs.replace(self._memory, suspended=suspended)
        self._dirty = True

    def turn_over(self, messages: Sequence[Message]) -> None:
        self._reading.follow(messages)
        memory = self._memory
        inputs = {**memory.inputs, **self._reading.inputs}
        if memory.suspended is not None or inputs != memory.inputs:
            self._memory = msgspec.structs.replace(memory, inputs=inputs, suspended=None)
            self._dirty = True

    def reset(self) -> None:
        """Forget every variable."""
        self._memory = msgspec.structs.replace(self._memory, state=b"")
        self._dirty = True

    def _refused(self, ctx: CodeExecutionContext, request: ExecRequest) -> ErrorObject | None:
        """Why a cell is not even checked, if so."""
        mine = self._options.language
        if request.language != mine:
            return ErrorObject(
                code=Code.UNSUPPORTED_FEATURE,
                message=f"the cell is {request.language}, this session runs {mine}",
                hint=f"write the cell in {mine}; code that is only to be shown goes into finish(...)",
            )
        if _was_cut_off(ctx.reply, mine):
            return ErrorObject(
                code=Code.SYNTAX_ERROR,
                message="the reply was cut off in the middle of the cell",
                hint="write a shorter cell, and go on in the next one",
            )
        if not request.code.strip():
            return ErrorObject(code=Code.SYNTAX_ERROR, message="the cell is empty")
        return None

    def _taken_up(self, ctx: CodeExecutionContext) -> Suspended | None:
        suspended = self._memory.suspended
        if suspended is None or (suspended.turn_id, suspended.call_id) != (ctx.turn_id, ctx.call_id):
            return None
        return suspended

    def _remember(self, cell: ModelCell, values: ReadOnlyValues) -> None:
        memory = self._memory
        state = memory.state if (left := cell.left()) is None else left
        changed = msgspec.structs.replace(memory, state=state, inputs=values.inputs, suspended=None)
        if changed != memory:
            self._memory = changed
            self._dirty = True

    # What came of it

    def _ended(
        self,
        ctx: CodeExecutionContext,
        request: ExecRequest,
        report: CellReport,
        cell: ModelCell,
        ended: CellEnd,
    ) -> ExecResponse:
        ending = None if ended.hard else cell.ending
        report = msgspec.structs.replace(
            report,
            stdout=ended.stdout,
            stderr=ended.stderr,
            result=ended.result if ending is None else ending.value,
            error=_told(ended.error, self._options.language) if ending is None else None,
            calls=tuple(_made(call, settled, self._options.language) for call, settled in ctx.made()),
            notes=(*report.notes, *ended.notes, *_rolled_back(ended)),
            truncated=ended.truncated,
            finished=ending is not None,
        )
        return self._response(
            request, report, None if ending is None else lambda value: ending.of(value, ctx.output)
        )

    def _response(
        self,
        request: ExecRequest,
        report: CellReport,
        ending: Callable[[Json], str | FrameSwitch] | None = None,
    ) -> ExecResponse:
        budget = self._options.observation_chars
        return ExecResponse(
            report=report,
            keep=kept_report,
            render=lambda kept: observation(kept, request.code, budget_chars=budget),
            ending=ending,
        )

    # What is remembered

    def execution_state_dirty(self) -> bool:
        return self._dirty

    def snapshot_execution_state(self) -> bytes:
        self._dirty = False
        return msgspec.msgpack.encode(self._memory)

    def referenced_blobs(self) -> dict[str, str]:
        return {f"input.{name}": part.digest for name, part in self._memory.inputs.items()}

    def restore_execution_state(self, data: bytes) -> None:
        if not data:
            return
        try:
            memory = msgspec.msgpack.decode(data, type=CodeMemory)
        except msgspec.DecodeError as error:
            raise PluginStateLost(
                "code", "restore", f"what its code has left cannot be read: {error}"
            ) from None
        self._check_fits(memory)
        self._memory, self._dirty = msgspec.structs.replace(memory, engine=self._options.engine), False

    def _check_fits(self, memory: CodeMemory) -> None:
        """Refuse what another engine has left; what Monty has left, `auto` goes on with."""
        mine = self._options.engine
        engines = {memory.engine, EngineName.AUTO} if memory.engine == EngineName.MONTY else {memory.engine}
        if memory.version == STATE_VERSION and memory.language is mine.language and mine in engines:
            return
        raise PluginStateLost(
            "code",
            "restore",
            f"the session's code is {memory.language} on {memory.engine} (format {memory.version}), the "
            f"agent's is {mine.language} on {mine} (format {STATE_VERSION})",
            hint="language and engine of a session are fixed; open a new session for another one",
        )


def _failed(
    report: CellReport, error: ErrorObject, diagnostics: list[Diagnostic] | None = None
) -> CellReport:
    """The report of a cell that was not run."""
    return msgspec.structs.replace(
        report,
        error=error,
        diagnostics=tuple(diagnostics or ()),
        notes=(*report.notes, NOT_EXECUTED),
    )


def _cells_in(reply: AssistantMessage, language: Language) -> tuple[FoundCell, ...]:
    return () if reply.raw is None else find_cells(reply.raw, language)[1]


def _has_one_fence(raw: str) -> bool:
    return raw.count("```") + raw.count("~~~") < 3


def _notes(reply: AssistantMessage, language: Language) -> tuple[str, ...]:
    if reply.raw is None or _has_one_fence(reply.raw):
        return ()
    others = len(_cells_in(reply, language)) - 1
    if others < 1:
        return ()
    return (f"only the first cell of a reply is run; {others} more in this one did not run",)


def _was_cut_off(reply: AssistantMessage, language: Language) -> bool:
    if reply.stop_reason not in _CUT_OFF:
        return False
    cells = _cells_in(reply, language)
    return bool(cells) and not cells[0].closed


def _told(error: ErrorObject | None, language: Language) -> ErrorObject | None:
    """The error of a cell, with a hint that helps whoever wrote it."""
    if error is None or error.code != Code.RESULT_NOT_SERIALIZABLE:
        return error
    hint = f"the rest of the cell took effect; end it with JSON or text: {AS_JSON[language]}, or print it"
    return msgspec.structs.replace(error, hint=hint)


def _not_heard() -> ErrorObject:
    return ErrorObject(code=Code.CANCELLED, message="the code ended before it had the result")


def _rolled_back(ended: CellEnd) -> tuple[str, ...]:
    return ("the variables are as they were before this cell",) if ended.hard else ()


def _made(call: ToolCall, settled: ToolSettled | None, language: Language) -> CallMade:
    error = _not_heard() if settled is None else settled.error
    status = CallStatus.OK if error is None else CallStatus.ERROR
    if settled is not None and settled.record is not None:
        status = settled.record.status
    arguments: dict[str, Json] = dict(call.arguments or {})
    if call.args:
        arguments["args"] = list(call.args)
    return CallMade(
        call_id=call.call_id,
        name=call.name,
        arguments=short_arguments(arguments, language=language),
        status=status,
        error=error,
    )


__all__ = ["CELL_LIMITS", "CellOptions", "CodeExecutor"]
