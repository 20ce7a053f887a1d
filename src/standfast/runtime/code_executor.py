"""Runs the cells of sessions without a model, and keeps their variables.

This is the executor of the host that also runs cells written by a model. Unlike the code protocol's, it
checks nothing first, takes inputs and limits from the turn, and reports the figures of a run.

Rules
-----
1. The state changes only when the result of the cell is taken in; a hard failure leaves it as it was.
2. `wall_ms` includes calls, but not the time in which the turn is parked. A cell that waits for calls when it
   times out or is cancelled ends at once, and its calls are given up.
3. Sleeping is a call of a cell, but not of a run: a cell may sleep `MAX_SLEEPS` times.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from standfast.errors import Code, EngineFailed, ErrorObject, PluginStateLost
from standfast.model.code import RUN_CODE, CellReport, CodeInput, Language
from standfast.model.limits import SessionLimits
from standfast.model.message import AssistantMessage, Message
from standfast.model.session import CodeSettings
from standfast.plugins.protocol import CodeExecutionContext, ExecRequest, ExecResponse
from standfast.ports.code_engine import (
    SLEEP,
    CallAnswer,
    CellEnd,
    CellOutput,
    CellPause,
    CellRequest,
    CellStep,
    CodeEngine,
)
from standfast.protocols.code.memory import STATE_VERSION, CodeMemory, Suspended, read_memory
from standfast.protocols.standard.cells import RunningCell, kept_report
from standfast.sandbox.run_errors import calls_error, wall_error

MAX_SLEEPS: Final = 10_000
_NOTHING_PRINTED: Final = CellOutput("", "", False)


class SandboxExecutor:
    """The `CellExecutor` of one session without a model. One turn at a time uses it."""

    cell_tool = RUN_CODE
    accepts_finish = False

    def __init__(self, engine: CodeEngine, settings: CodeSettings) -> None:
        self._engine = engine
        self._memory = CodeMemory(language=settings.language, engine=settings.engine)
        self._dirty = False
        self._input: CodeInput | None = None
        self._cancelled: ErrorObject | None = None
        self.running: SandboxCell | None = None
        self.report: CellReport | None = None
        """The report of the turn's cell, once that has ended."""
        self._printed = _NOTHING_PRINTED
        self._calls_made = 0
        self._wall_used_ms = 0

    @property
    def language(self) -> Language:
        return self._memory.language

    def replace_state(self, state: bytes) -> None:
        self._memory = msgspec.structs.replace(self._memory, state=state, suspended=None)
        self._dirty = True

    def rename_suspended(self, turn_id: str) -> None:
        """Let the cell that is suspended belong to another turn."""
        suspended = self._memory.suspended
        if suspended is not None:
            moved = msgspec.structs.replace(suspended, turn_id=turn_id)
            self._memory = msgspec.structs.replace(self._memory, suspended=moved)
        self._dirty = True

    def begin(self, given: CodeInput) -> None:
        """Take the input of the turn that is about to run."""
        self._input = given
        self.report = self._cancelled = None

    def stop(self, error: ErrorObject) -> None:
        """End the turn's cell with *error*, also if it has not begun yet. Any thread may call it."""
        self._cancelled = error  # first: a cell that begins now looks here
        if (cell := self.running) is not None:
            cell.stop(error)

    def cell_language(self, reply: AssistantMessage, code: str) -> str:
        return self._memory.language

    async def execute_code(self, ctx: CodeExecutionContext, request: ExecRequest) -> ExecResponse:
        assert self._input is not None
        cell = self.running = SandboxCell(ctx, self._engine, self._input)
        if self._cancelled is not None:
            cell.stop(self._cancelled)
        try:
            memory = self._memory  # most runs have no suspended cell
            suspended = memory.suspended and memory.suspended_in(ctx.turn_id, ctx.call_id)
            end = await cell.run(memory.state, suspended)
        finally:
            self.running = None
            cell.forget_deadline()
        report = self.report = CellReport(
            index=0,
            stdout=end.stdout,
            stderr=end.stderr,
            result=end.result,
            error=end.error,
            notes=end.notes,
            truncated=end.truncated,
            hard=end.hard,
            duration_ms=cell.wall_used_ms(),
            memory_peak_bytes=end.memory_peak_bytes,
            instructions=end.instructions,
            calls_made=cell.calls_made,
        )

        def adopt() -> None:
            if end.state is not None or self._memory.suspended is not None:
                self.replace_state(self._memory.state if end.state is None else end.state)

        return ExecResponse(report=report, keep=kept_report, render=lambda report: "", adopt=adopt)

    async def park(self) -> ErrorObject | None:
        """Suspend the running cell, or end it if it exceeds its memory limit."""
        cell = self.running
        if cell is None:
            return None
        cell.forget_deadline()
        self._calls_made, self._wall_used_ms = cell.calls_made, cell.wall_used_ms()
        try:
            self._printed = cell.printed()
            suspended: Suspended | None = await cell.suspend()
        except EngineFailed as error:
            if error.code == Code.MEMORY_EXCEEDED:
                self.report = self.parked_report(error.error_object(), hard=True)
                return self.report.error
            suspended = None
        self._memory, self._dirty = msgspec.structs.replace(self._memory, suspended=suspended), True
        return None

    def parked_report(self, error: ErrorObject, *, hard: bool = False) -> CellReport:
        """Report on the cell that was parked last, up to there."""
        printed = self._printed
        return CellReport(
            index=0,
            stdout=printed.stdout,
            stderr=printed.stderr,
            truncated=printed.truncated,
            error=error,
            hard=hard,
            duration_ms=self._wall_used_ms,
            calls_made=self._calls_made,
        )

    def turn_over(self, messages: Sequence[Message]) -> None:
        if self._memory.suspended is not None:
            self.replace_state(self._memory.state)

    def execution_state_dirty(self) -> bool:
        return self._dirty

    def snapshot_execution_state(self) -> bytes:
        self._dirty = False
        return msgspec.msgpack.encode(self._memory)

    def referenced_blobs(self) -> dict[str, str]:
        return {}

    def restore_execution_state(self, data: bytes) -> None:
        memory = read_memory(data)
        if memory.version != STATE_VERSION:
            raise PluginStateLost("code", "restore", f"the variables have format {memory.version}")
        if memory.state:
            self._engine.names(memory.state)  # refuses what it cannot read, or what another build has made
        self._memory, self._dirty = memory, False


@functools.lru_cache(maxsize=64)
def _engine_limits(limits: SessionLimits) -> SessionLimits:
    """Return *limits* with room for sleeps, which the engine counts as calls and a run does not."""
    calls = min(limits.max_external_calls + MAX_SLEEPS, 2**32 - 1)
    return msgspec.structs.replace(limits, max_external_calls=calls)


class SandboxCell(RunningCell):
    """The cell of one turn without a model."""

    def __init__(self, ctx: CodeExecutionContext, engine: CodeEngine, given: CodeInput) -> None:
        super().__init__(ctx, engine)
        self._given = given
        self._unanswered: set[int] = set()
        self._deadline: asyncio.TimerHandle | None = None
        self._stopped: ErrorObject | None = None
        self._forced = False
        self._started = time.monotonic()
        self._wall_before_ms = 0
        self.calls_made = 0

    async def run(self, state: bytes, suspended: Suspended | None) -> CellEnd:
        """Run the cell to its end, from its beginning or from where it was *suspended*."""
        given, limits = self._given, self._given.limits
        if suspended is not None:
            self.calls_made, self._wall_before_ms = suspended.calls_made, suspended.wall_used_ms
            self.heard_before(suspended.heard)
            made = enumerate(self._ctx.made(), 1)
            self._unanswered = {number for number, (_, settled) in made if settled is None}
            self._watch_deadline()
        await self.run_request(
            CellRequest(
                key=self._ctx.session_id,
                code=given.code,
                state=state,
                paused=b"" if suspended is None else suspended.data,
                limits=_engine_limits(limits),
                functions=self._ctx.functions,
                inputs=dict(given.inputs),
                now_ms=self._ctx.now_ms,
                seed=self._ctx.seed,
            )
        )
        end = await self.end()
        if self._forced:
            return msgspec.structs.replace(end, result=None, error=self._stopped, hard=True, state=None)
        if end.error is not None and end.error.code == Code.EXTERNAL_CALLS_EXCEEDED:
            most = limits.max_external_calls
            message = f"the run made more than {most} external calls, or slept more than {MAX_SLEEPS} times"
            return msgspec.structs.replace(end, error=msgspec.structs.replace(end.error, message=message))
        return end

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error*, in any state. Any thread may call it, more than once."""
        if self._stopped is None:
            self._stopped = error
            if self._run is not None:
                self._run.stop(error)
            self._say(self._end_if_standing)

    def printed(self) -> CellOutput:
        return _NOTHING_PRINTED if self._run is None else self._run.printed()

    def wall_used_ms(self) -> int:
        """Wall time so far, not counting time parked."""
        return self._wall_before_ms + max(0, int((time.monotonic() - self._started) * 1000))

    def _watch_deadline(self) -> None:
        """End the cell at its wall limit while it waits for calls; the engine watches it otherwise."""
        limits = self._given.limits
        left_s = max(1, limits.wall_ms - self.wall_used_ms()) / 1000
        self._deadline = self._loop.call_later(left_s, lambda: self.stop(wall_error(limits)))

    def forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    async def suspend(self) -> Suspended:
        used_ms = self.wall_used_ms()
        return Suspended(
            turn_id=self._ctx.turn_id,
            call_id=self._ctx.call_id,
            heard=self._heard,
            data=await self.suspend_run(),
            calls_made=self.calls_made,
            wall_used_ms=used_ms,
        )

    def _begin(self, request: CellRequest) -> CellStep:
        self._engine.prepare()
        run = self._run = self._engine.open(request)
        self._started = time.monotonic()
        if self._stopped is not None:
            run.stop(self._stopped)
        return run.start()

    def _stands(self, step: CellPause) -> None:
        limits, allowed = self._given.limits, []
        if self._deadline is None:
            self._watch_deadline()
        self._unanswered.update(call.number for call in step.calls)
        for call in step.calls:
            if call.name != SLEEP or self._ctx.functions.own(SLEEP) is None:
                if self.calls_made >= limits.max_external_calls:
                    self.stop(calls_error(limits))
                    break
                self.calls_made += 1
            allowed.append(call)
        if self._stopped is None:
            super()._stands(CellPause(tuple(allowed)))
        else:
            self._end_if_standing()

    def _hear(self, number: int, answer: CallAnswer) -> None:
        if not self._forced:
            self._unanswered.discard(number)
            super()._hear(number, answer)

    def _end_if_standing(self) -> None:
        """Give a stopped cell that waits for calls a last answer, which ends it."""
        run = self._run
        if run is None or self._computing or self._forced or self._through.done() or not self._unanswered:
            return
        self._forced = True
        self._compute(functools.partial(run.answer, min(self._unanswered), CallAnswer()))
