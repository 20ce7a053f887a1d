"""The code executor: runs the cells of a session and keeps their variables.

A cell is checked, then the engine runs it on a thread until it ends or needs the result of a call
(`running_cell`). The variables are the engine's state, opaque bytes that are stored with the session. When
the turn parks, the cell is suspended: it is serialized to bytes as well, and its worker is freed.

Rules
-----
1. The state changes only when a cell has ended and its result is accepted. A hard failure leaves it
   unchanged.
2. If a cell fails its check, none of its code runs.
3. The model reads cells and their results as text, even a cell that it sent as a native call: a provider
   would refuse a call without its result. Results of other calls come right after their reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from standfast.errors import Code, CodeExecutionRuntimeStopped, EngineFailed, ErrorObject, PluginStateLost
from standfast.machine.inputs import ToolSettled
from standfast.model.canonical import Json
from standfast.model.capability import CallStatus
from standfast.model.code import RUN_CODE, CallMade, CellReport, Diagnostic, EngineName, Language
from standfast.model.frame import FrameSwitch
from standfast.model.limits import SessionLimits
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.model.prompt_record import Reading
from standfast.plugins.turn_protocol import CodeExecutionContext, ExecRequest, ExecResponse
from standfast.ports.code_engine import CellEnd, Check
from standfast.protocols.code.cell_finder import FoundCell, find_cells
from standfast.protocols.code.memory import STATE_VERSION, CodeMemory, read_memory
from standfast.protocols.code.observation import AS_JSON, NOT_EXECUTED, observation, short_arguments
from standfast.protocols.code.own_functions import SessionFunctions
from standfast.protocols.code.running_cell import CellCheckFailed, ModelCell
from standfast.protocols.code.values import ReadOnlyValues, SessionReading, is_followed_by
from standfast.protocols.standard.cells import kept_report
from standfast.protocols.standard.model_call import with_inputs_named
from standfast.tools.context import MAX_TEXT_CHARS, cut_texts
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolCatalog

CELL_LIMITS: Final = SessionLimits(
    memory_mb=256, cpu_ms=10_000, wall_ms=600_000, max_stdout_bytes=1 << 20, max_external_calls=1_000
)
_NO_RESULT: Final = ErrorObject(code=Code.CANCELLED, message="the code ended before it had the result")
_CUT_OFF: Final = frozenset({"length", "max_tokens", "max_output_tokens"})


class CellOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How cells are checked, run and shown."""

    engine: str = EngineName.MONTY
    language: Language = Language.PYTHON
    check: Check = "calls"
    limits: SessionLimits = CELL_LIMITS
    observation_chars: int = 8_000
    finish: bool = True


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
        """The messages in the form in which the model wrote and reads them."""
        self._running: ModelCell | None = None
        self.engine_name = options.engine

    @property
    def language(self) -> str:
        return str(self._options.language)

    def cell_language(self, reply: AssistantMessage, code: str) -> str:
        """Return the language of a cell's fence, or the session's language if a plugin replaced the code."""
        mine = self._options.language
        if reply.raw is None or (f"```{mine}\n" in reply.raw and _has_one_fence(reply.raw)):
            return mine
        cells = find_cells(reply.raw, mine)[1]
        return cells[0].language if cells and cells[0].code == code else mine

    @property
    def accepts_finish(self) -> bool:
        return self._options.finish

    def functions(self, catalog: ToolCatalog, resolve: Callable[[str], RegisteredTool]) -> SessionFunctions:
        """Return the functions that code may call. They are built once for each catalog."""
        if self._functions is None or self._functions.catalog is not catalog:
            options = self._options
            self._functions = SessionFunctions(catalog, resolve, options.language, options.limits)
        return self._functions

    # Running

    async def execute_code(self, ctx: CodeExecutionContext, request: ExecRequest) -> ExecResponse:
        mine, memory = self._options.language, self._memory
        values = ReadOnlyValues(ctx.messages, self._reading, memory.inputs, ctx.read_blob)
        reply, cells = ctx.reply, tuple[FoundCell, ...]()
        if reply.raw is not None and (reply.stop_reason in _CUT_OFF or not _has_one_fence(reply.raw)):
            cells = find_cells(reply.raw, mine)[1]
        report = CellReport(index=values.cells)
        if len(cells) > 1:
            note = f"only the first cell of a reply is run; {len(cells) - 1} more in this reply did not run"
            report = msgspec.structs.replace(report, notes=(note,))
        refused = self._refused(ctx, request, cells)
        if refused is not None:
            return self._response(request, _failed(report, refused))
        suspended = memory.suspended_in(ctx.turn_id, ctx.call_id)
        cell = self._running = ModelCell(ctx, request, values, ctx.engine(self._options.engine))
        try:
            through = await cell.run(memory.state, suspended, self._options.limits, self._options.check)
        except CellCheckFailed as failed:
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

        def adopt() -> None:
            memory = self._memory
            state = memory.state if (left := cell.left()) is None else left
            self._change(msgspec.structs.replace(memory, state=state, inputs=values.inputs, suspended=None))

        def responded(ended: CellEnd) -> ExecResponse:
            response = self._ended(ctx, request, report, cell, ended)
            return msgspec.structs.replace(response, stored=stored, adopt=adopt)

        return responded(through)

    async def park(self) -> None:
        """Suspend the running cell, if there is one. If that fails, it is rerun from its beginning."""
        cell = self._running
        if cell is None:
            return
        try:
            suspended = await cell.suspend()
        except EngineFailed:
            suspended = None
        self._change(msgspec.structs.replace(self._memory, suspended=suspended))

    def turn_over(self, messages: Sequence[Message]) -> None:
        self._reading.follow(messages)
        memory = self._memory
        inputs = {**memory.inputs, **self._reading.inputs}
        if memory.suspended is not None or inputs != memory.inputs:
            self._change(msgspec.structs.replace(memory, inputs=inputs, suspended=None))

    def reset(self) -> None:
        """Forget every variable."""
        self._change(msgspec.structs.replace(self._memory, state=b""))

    def _refused(
        self, ctx: CodeExecutionContext, request: ExecRequest, cells: tuple[FoundCell, ...]
    ) -> ErrorObject | None:
        """Return why a cell is refused before its code is checked; None if it is not."""
        mine = self._options.language
        if request.language != mine:
            return ErrorObject(
                code=Code.UNSUPPORTED_FEATURE,
                message=f"the cell is written in {request.language}, but this session runs {mine}",
                hint=f"write the cell in {mine}; pass code that is only to be shown to finish(...)",
            )
        if ctx.reply.stop_reason in _CUT_OFF and cells and not cells[0].closed:
            return ErrorObject(
                code=Code.SYNTAX_ERROR,
                message="the reply was cut off in the middle of the cell",
                hint="write a shorter cell, and continue in the next one",
            )
        if not request.code.strip():
            return ErrorObject(code=Code.SYNTAX_ERROR, message="the cell is empty")
        return None

    def _ended(
        self,
        ctx: CodeExecutionContext,
        request: ExecRequest,
        report: CellReport,
        cell: ModelCell,
        ended: CellEnd,
    ) -> ExecResponse:
        ending, language = None if ended.hard else cell.ending, self._options.language
        error = ended.error if ending is None else None
        if error is not None and error.code == Code.RESULT_NOT_SERIALIZABLE:
            hint = (
                f"the rest of the cell took effect; end it with JSON or text, {AS_JSON[language]}, or print"
            )
            error = msgspec.structs.replace(error, hint=hint)
        rolled_back = ("the variables are as they were before this cell",) if ended.hard else ()
        report = msgspec.structs.replace(
            report,
            stdout=ended.stdout,
            stderr=ended.stderr,
            result=ended.result if ending is None else ending.value,
            error=error,
            calls=_calls_made(ctx, language),
            notes=(*report.notes, *ended.notes, *rolled_back),
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

    def _change(self, memory: CodeMemory) -> None:
        if memory != self._memory:
            self._memory, self._dirty = memory, True

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
        memory, mine = read_memory(data), self._options.engine
        # `auto` can continue with the variables of a session that used Monty.
        engines = {memory.engine, EngineName.AUTO} if memory.engine == EngineName.MONTY else {memory.engine}
        if (
            memory.version != STATE_VERSION
            or memory.language is not self._options.language
            or mine not in engines
        ):
            raise PluginStateLost(
                "code",
                "restore",
                f"the session's code is {memory.language} on {memory.engine} (format {memory.version}), the "
                f"agent's is {self._options.language} on {mine} (format {STATE_VERSION})",
                hint="a session's language and engine are fixed; open a new session to use others",
            )
        self._memory, self._dirty = msgspec.structs.replace(memory, engine=mine), False


def _failed(
    report: CellReport, error: ErrorObject, diagnostics: list[Diagnostic] | None = None
) -> CellReport:
    """Return the report of a cell that was not run."""
    notes = (*report.notes, NOT_EXECUTED)
    return msgspec.structs.replace(report, error=error, diagnostics=tuple(diagnostics or ()), notes=notes)


def _has_one_fence(raw: str) -> bool:
    return raw.count("```") + raw.count("~~~") < 3


def _calls_made(ctx: CodeExecutionContext, language: Language) -> tuple[CallMade, ...]:
    """Return a summary of each call of a cell, with as many of their texts as fit."""
    calls, room = list[CallMade](), MAX_TEXT_CHARS
    for call, settled in ctx.made():
        made = _made(call, settled, language)
        if settled is not None and settled.texts:
            made = msgspec.structs.replace(made, texts=cut_texts(settled.texts, room))
            room = max(0, room - sum(map(len, made.texts)))
        calls.append(made)
    return tuple(calls)


def _made(call: ToolCall, settled: ToolSettled | None, language: Language) -> CallMade:
    error = _NO_RESULT if settled is None else settled.error
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
        line=call.line,
    )


class WrittenMessages:
    """The messages in the form in which the model reads them. Each is converted only once."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self.reading: Reading = "python" if language is Language.PYTHON else "typescript"
        self._known: list[Message] = []
        self._written: list[Message] = []

    def of(self, messages: list[Message]) -> list[Message]:
        if not is_followed_by(self._known, messages):
            self._known, self._written = [], []
        # The messages before the last reply are final: nothing is inserted between them.
        done = len(messages) - 1
        while done > 0 and isinstance(messages[done], ToolMessage):
            done -= 1
        new = messages[len(self._known) : max(done, 0)]
        self._known += new
        self._written += self._made(new)
        return self._written + self._made(messages[len(self._known) :])

    def _made(self, messages: list[Message]) -> list[Message]:
        """Convert messages, with the results of cells after those of other calls of the same reply."""
        ordered: list[Message] = []
        cells: list[Message] = []
        for message in messages:
            if isinstance(message, ToolMessage) and message.name == RUN_CODE:
                cells.append(message)
                continue
            if cells and not isinstance(message, ToolMessage):
                ordered += cells
                cells = []
            ordered.append(message)
        return [as_written(message, self._language) for message in [*ordered, *cells]]


def as_written(message: Message, language: Language = Language.PYTHON) -> Message:
    """Return a message as the model wrote it, or reads it."""
    if isinstance(message, ToolMessage) and message.name == RUN_CODE:
        return UserMessage(content=_result_text(message))
    if not isinstance(message, AssistantMessage):
        return with_inputs_named(message)
    cells = [call for call in message.tool_calls if call.name == RUN_CODE]
    if not cells and message.raw is None:
        return message
    text, added = (message.text, cells) if message.raw is None else (message.raw, cells[1:])
    return msgspec.structs.replace(
        message,
        text="\n\n".join(filter(None, [text, *(_fence(call, language) for call in added)])),
        raw=None,
        tool_calls=tuple(call for call in message.tool_calls if call.name != RUN_CODE),
    )


def _fence(call: ToolCall, language: Language) -> str:
    code = (call.arguments or {}).get("code")
    if not isinstance(code, str):
        code = call.raw or ""
    ticks = "````" if "```" in code else "```"
    return f"{ticks}{language}\n{code}\n{ticks}"


def _result_text(message: ToolMessage) -> str:
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        hint = f"\nhint: {message.error.hint}" if message.error.hint else ""
        return f"[cell] failed\nerror:\n{message.error.code}: {message.error.message}{hint}"
    value = message.value
    return f"[cell]\n{value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
