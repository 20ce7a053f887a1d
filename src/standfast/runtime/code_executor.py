"""The executor of sessions without a model: runs their cells and keeps their variables.

The turn's host is the same as for cells written by a model. Unlike those, a cell of a session without a model
computes on the turn's own thread, is not checked first, gets its inputs and limits from the turn, and reports
the metrics of a run.

Rules
-----
1. The state changes only when the result of the cell is accepted; a hard failure leaves it unchanged.
2. `wall_ms` includes calls, but not the time in which the turn is parked. If a cell times out or is cancelled
   while it waits for calls, it ends immediately, and its calls are abandoned.
3. A sleep is a call of the cell, but does not count as a call of the run: a cell may sleep `MAX_SLEEPS`
   times.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.durable.effects import Deliver
from standfast.errors import Code, EngineFailed, ErrorObject, PluginFailed, PluginStateLost, StandfastError
from standfast.machine.commands import ContinueCell
from standfast.machine.inputs import ToolSettled
from standfast.model.code import RUN_CODE, CellReport, CodeInput
from standfast.model.limits import SessionLimits
from standfast.model.message import Message
from standfast.model.session import CodeSettings
from standfast.ports.code_engine import (
    SLEEP,
    CallAnswer,
    CellEnd,
    CellOutput,
    CellRequest,
    CellRun,
    CellStep,
    CodeEngine,
)
from standfast.protocols.code.memory import STATE_VERSION, CodeMemory, Suspended, read_memory
from standfast.protocols.standard.cells import CellContext, NumberedResult, kept_report
from standfast.sandbox.cell_lifecycle import NOTHING_PRINTED
from standfast.sandbox.run_errors import calls_error, wall_error
from standfast.tools.tracebacks import described

if TYPE_CHECKING:
    from standfast.plugins.turn_hooks import TurnContext

MAX_SLEEPS: Final = 10_000


class SandboxExecutor:
    """The variables of one session without a model, and the cell of its current turn.

    It has the role that `TurnCells` has in an agent's turn, with a single cell, which needs no task.
    """

    cell_tool = RUN_CODE
    running: SandboxCell | None = None
    report: CellReport | None = None
    """The report of the turn's cell, once that has ended."""
    turn: TurnContext
    """The context of the session's turns."""
    given: CodeInput
    """The input of the turn."""
    _left: tuple[int, bytes] | None = None
    """The call id and the variables of a cell whose result has not been accepted yet, if they differ."""
    dirty = False
    """Whether the variables have changed since they were last written."""
    _printed = NOTHING_PRINTED
    _calls_made = 0
    _wall_used_ms = 0

    def __init__(self, engine: CodeEngine, settings: CodeSettings) -> None:
        self.engine = engine
        self._cancelled: dict[str, ErrorObject] = {}
        self._memory = CodeMemory(language=settings.language, engine=settings.engine)

    def replace_state(self, state: bytes) -> None:
        self._memory = msgspec.structs.replace(self._memory, state=state, suspended=None)
        self.dirty = True

    def rename_suspended(self, turn_id: str) -> None:
        """Assign the suspended cell to another turn."""
        suspended = self._memory.suspended
        if suspended is not None:
            moved = msgspec.structs.replace(suspended, turn_id=turn_id)
            self._memory = msgspec.structs.replace(self._memory, suspended=moved)
        self.dirty = True

    def begin(self, given: CodeInput) -> None:
        """Serve a turn whose input is *given*, until `stop`."""
        self.given = given
        self.report = self._left = None
        self._cancelled = {}

    def cancel(self, turn_id: str, error: ErrorObject) -> None:
        """End the cell of a turn with *error*, even if it has not begun yet. Callable from any thread.

        If the turn has ended, do nothing: the session may already run another one.
        """
        self._cancelled[turn_id] = error  # set first: a cell that begins now checks it
        if (cell := self.running) is not None and cell.turn_id == turn_id:
            cell.stop(error)

    # `HostedCells`

    def resume(self, command: ContinueCell, deliver: Deliver) -> None:
        """Start the cell, pass it its next result, or rerun it if it is not loaded here."""
        if self.running is not None:
            self.running.resume(command)
            return
        cell = self.running = SandboxCell(self, command, deliver)
        if self._cancelled and (cancelled := self._cancelled.get(cell.turn_id)) is not None:
            cell.stop(cancelled)
        memory = self._memory  # most runs have no suspended cell
        suspended = memory.suspended and memory.suspended_in(cell.turn_id, cell.call_id)
        cell.start(memory.state, suspended or None)

    def settled(self, call_id: int) -> None:
        """Adopt the variables of the cell, whose result is being accepted."""
        if self._left is not None and self._left[0] == call_id:
            (_, state), self._left = self._left, None
            self.replace_state(state)

    async def park(self) -> ToolSettled | None:
        """Suspend the running cell, or end it if it exceeds its memory limit."""
        cell, self.running = self.running, None
        if cell is None:
            return None
        self._calls_made, self._wall_used_ms = cell.calls_made, cell.wall_used_ms()
        try:
            self._printed = cell.printed()
            suspended: Suspended | None = cell.suspend()
        except EngineFailed as error:
            if error.code == Code.MEMORY_EXCEEDED:
                problem = error.error_object()
                self.report = self.parked_report(problem, hard=True)
                return cell.settled(error=problem, gives_up_calls=True)
            suspended = None
        self._memory, self.dirty = msgspec.structs.replace(self._memory, suspended=suspended), True
        return None

    def stop(self) -> None:
        """Close the cell if it is still running, because the turn is over."""
        cell, self.running = self.running, None
        self._left = None
        if cell is not None:
            cell.close()

    def fail(self, cell: SandboxCell, error: Exception) -> None:
        """Deliver the result of a cell that has failed with an exception."""
        self.running = None
        if not isinstance(error, StandfastError):
            error = PluginFailed("sandbox", "execute_code", described(error))
        cell.deliver(cell.settled(error=error.error_object()))

    def take(self, cell: SandboxCell, end: CellEnd) -> None:
        """Deliver the result of a cell that has ended."""
        self.running = None
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
        if end.state is not None or self._memory.suspended is not None:
            self._left = cell.call_id, self._memory.state if end.state is None else end.state
        value, attachments = kept_report(report, cell.keep)
        cell.deliver(
            cell.settled(
                value=value,
                error=report.error,
                attachments=attachments,
                gives_up_calls=report.hard,
                shown="",
            )
        )

    def parked_report(self, error: ErrorObject, *, hard: bool = False) -> CellReport:
        """Return the report of the last parked cell, up to the point where it was parked."""
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

    # `KeepsVariables`

    def turn_over(self, messages: Sequence[Message]) -> None:
        if self._memory.suspended is not None:
            self.replace_state(self._memory.state)

    def execution_state_dirty(self) -> bool:
        return self.dirty

    def snapshot_execution_state(self) -> bytes:
        self.dirty = False
        return msgspec.msgpack.encode(self._memory)

    def referenced_blobs(self) -> dict[str, str]:
        return {}

    def restore_execution_state(self, data: bytes) -> None:
        memory = read_memory(data)
        if memory.version != STATE_VERSION:
            raise PluginStateLost("code", "restore", f"the variables have format {memory.version}")
        if memory.state:
            self.engine.names(memory.state)  # raises if it cannot read it, or another build wrote it
        self._memory, self.dirty = memory, False


@functools.lru_cache(maxsize=64)
def _engine_limits(limits: SessionLimits) -> SessionLimits:
    """Return *limits* with additional calls for sleeps, which the engine counts as calls."""
    calls = min(limits.max_external_calls + MAX_SLEEPS, 2**32 - 1)
    return msgspec.structs.replace(limits, max_external_calls=calls)


class SandboxCell(CellContext):
    """The cell of one turn without a model. It computes on the thread of the turn's loop.

    Only `stop` may be called from other threads. The executor's `take` or `fail` is called once, unless the
    cell is suspended or closed before that.
    """

    _run: CellRun | None = None
    _deadline: asyncio.TimerHandle | None = None
    _stopped: ErrorObject | None = None
    _forced = False
    _taken = 0
    _wall_before_ms = 0
    calls_made = 0

    def __init__(self, executor: SandboxExecutor, command: ContinueCell, deliver: Deliver) -> None:
        super().__init__(executor.turn, command, deliver)
        self._executor = executor
        self._given = executor.given
        self._loop = asyncio.get_running_loop()
        self._unanswered: set[int] = set()
        self._started = time.monotonic()

    def start(self, state: bytes, suspended: Suspended | None) -> None:
        """Run the cell, from its beginning or from its suspension, until it ends or waits."""
        given, engine = self._given, self._executor.engine
        try:
            if suspended is not None:
                self.calls_made, self._wall_before_ms = suspended.calls_made, suspended.wall_used_ms
                self._taken = suspended.heard
                self.heard(suspended.heard)
                made = enumerate(self.made(), 1)
                self._unanswered = {number for number, (_, settled) in made if settled is None}
                self._watch_deadline()
            request = CellRequest(
                key=self.session_id,
                code=given.code,
                state=state,
                paused=b"" if suspended is None else suspended.data,
                limits=_engine_limits(given.limits),
                functions=self.functions,
                inputs=given.inputs,
                now_ms=self.now_ms,
                seed=self.seed,
            )
            engine.prepare()
            run = self._run = engine.open(request)
            self._started = time.monotonic()
            if self._stopped is not None:
                run.stop(self._stopped)
            known = self._came_to(run.start())
        except Exception as error:
            self._fail(error)
            return
        self._continue(known)

    def resume(self, command: ContinueCell) -> None:
        """Pass the code the next result in *command*."""
        self._command = command
        self._continue(self.next_result())

    def stop(self, error: ErrorObject) -> None:
        """End the cell with *error*, in any state. Callable from any thread, more than once."""
        if self._stopped is None:
            self._stopped = error
            if self._run is not None:
                self._run.stop(error)
            self._loop.call_soon_threadsafe(self._end_if_standing)

    def close(self) -> None:
        """Abandon the cell."""
        run, self._run = self._run, None
        self._forget_deadline()
        if run is not None:
            run.close()

    def suspend(self) -> Suspended:
        """Suspend a cell that waits for calls, and free its worker."""
        used_ms = self.wall_used_ms()
        run, self._run = self._run, None
        self._forget_deadline()
        assert run is not None
        return Suspended(
            turn_id=self.turn_id,
            call_id=self.call_id,
            heard=self._taken,
            data=run.suspend(),
            calls_made=self.calls_made,
            wall_used_ms=used_ms,
        )

    def printed(self) -> CellOutput:
        return NOTHING_PRINTED if self._run is None else self._run.printed()

    def wall_used_ms(self) -> int:
        """The wall time used so far, without time spent parked."""
        return self._wall_before_ms + max(0, int((time.monotonic() - self._started) * 1000))

    def _watch_deadline(self) -> None:
        """End the cell at its wall limit while it waits for calls. While it computes, the engine does."""
        limits = self._given.limits
        left_s = max(1, limits.wall_ms - self.wall_used_ms()) / 1000
        self._deadline = self._loop.call_later(left_s, lambda: self.stop(wall_error(limits)))

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _came_to(self, step: CellStep) -> NumberedResult | None:
        """Request results for the calls of the code, or end the cell; return a result that is known."""
        if type(step) is CellEnd:
            self._end(step)
            return None
        if self._deadline is None:
            self._watch_deadline()
        limits = self._given.limits
        for call in step.calls:
            self._unanswered.add(call.number)
            if call.name == SLEEP and self.functions.own(SLEEP) is not None:
                continue
            if self.calls_made < limits.max_external_calls:
                self.calls_made += 1
            else:
                self.stop(calls_error(limits))
        if self._stopped is None:
            return self.pause(step.calls)
        self._end_if_standing()
        return None

    def _continue(self, known: NumberedResult | None) -> None:
        """Pass the code a result, and those that the turn already knows after it."""
        try:
            while known is not None and self._run is not None and not self._forced:
                self._taken += 1
                self._unanswered.discard(known[0])
                known = self._came_to(self._run.answer(*known))
        except Exception as error:
            self._fail(error)

    def _end_if_standing(self) -> None:
        """End a stopped cell that waits for calls by passing it a last answer."""
        if self._run is not None and self._unanswered and not self._forced:
            self._forced = True
            try:
                self._came_to(self._run.answer(min(self._unanswered), CallAnswer()))
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._run is not None:
            self.close()
        self._forget_deadline()
        self._executor.fail(self, error)

    def _end(self, end: CellEnd) -> None:
        self._run = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self._forced:
            end = msgspec.structs.replace(end, result=None, error=self._stopped, hard=True, state=None)
        elif end.error is not None and end.error.code == Code.EXTERNAL_CALLS_EXCEEDED:
            most = self._given.limits.max_external_calls
            message = f"the run made more than {most} external calls, or slept more than {MAX_SLEEPS} times"
            error = msgspec.structs.replace(end.error, message=message)
            end = msgspec.structs.replace(end, error=error)
        self._executor.take(self, end)
