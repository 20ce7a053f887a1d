"""The calls of a turn: which run, which wait, which have results, and the records of their executions.

Rules
-----
1. A call gets one result. `rule`, `settle`, `wait`, `pause`, `wake` and `time_out` return False or None if
   they changed nothing.
2. A cell is a call that makes calls. It gets their results one at a time, in the order in which they were
   settled: run again with the same results, it makes the same calls.
3. When a cell ends, its waiting calls are given up; its running calls are not.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from standfast.errors import Code, ErrorObject
from standfast.machine.commands import ContinueCell, RunTool
from standfast.machine.inputs import CallRuled, CallTimedOut, CellCalled, CellPaused, ToolSettled
from standfast.model.canonical import Json
from standfast.model.capability import MAX_TRACEBACKS, ExternalCallRecord
from standfast.model.code import RUN_CODE
from standfast.model.message import RequestedCall, ToolCall, ToolMessage
from standfast.model.outcome import Approved, Wait, WaitOutcome

_replace = msgspec.structs.replace

_MAX_DEPTH: Final = 128
"""How deep arguments may nest. Without a fixed limit it would depend on the stack size of each process."""


class _Cell(msgspec.Struct):
    """The calls that a cell has made, and their results. `paused`: the cell waits for one of these calls."""

    made: list[ToolCall] = msgspec.field(default_factory=list)
    answers: list[ToolSettled] = msgspec.field(default_factory=list)
    pending: list[ToolSettled] = msgspec.field(default_factory=list)
    pauses: int = 0
    paused: bool = False


class _Call(msgspec.Struct):
    """A call, the command that executes it, and its state."""

    asked: ToolCall
    command: RunTool
    wait: Wait | None = None
    result: ToolMessage | None = None
    cell: _Cell | None = None

    @property
    def runs(self) -> bool:
        """Whether the call runs: it has no result and waits for nothing."""
        return self.result is None and self.wait is None and not (self.cell is not None and self.cell.paused)


class CallTable:
    """The calls of the current round; ids count through the turn. `asks_plugins`: plugins rule on each."""

    asks_plugins = False
    has_attachments = False
    """Whether a result of the turn has attachments."""
    given_up: tuple[ToolCall, ...] = ()
    """Calls made by cells whose execution was given up, so that there is no record of it."""
    _count = 0

    def __init__(self) -> None:
        self._records: list[tuple[int, ExternalCallRecord]] = []
        self._round: dict[int, _Call] = {}
        self.unsettled: dict[int, _Call] = {}
        """The calls of the round without a result, kept apart because a cell may make thousands of calls."""

    def add(self, requested: tuple[RequestedCall, ...]) -> tuple[tuple[ToolCall, ...], list[RunTool]]:
        """Begin a round; return its calls, and the commands for them.

        Calls with unreadable arguments fail immediately.
        """
        calls, commands = [], []
        for request in requested:
            self._count += 1
            call, result = _read(request, self._count)
            command = RunTool(call, ruled=not self.asks_plugins)
            entry = self._round[self._count] = _Call(call, command, result=result)
            calls.append(call)
            if result is None:
                self.unsettled[self._count] = entry
                commands.append(command)
        return tuple(calls), commands

    def add_cell(self, code: str) -> RunTool:
        """Begin a round with the cell that is a turn's own input; return the command for it."""
        self._count += 1
        call = ToolCall(call_id=self._count, name=RUN_CODE, arguments={"code": code})
        command = RunTool(call, ruled=not self.asks_plugins)
        self._round[self._count] = self.unsettled[self._count] = _Call(call, command)
        return command

    def rule(self, given: CallRuled) -> bool:
        """Apply the plugins' ruling on a call; a call is ruled on once."""
        call = self._round.get(given.call_id)
        if call is None or call.command.ruled or call.result is not None:
            return False
        call.command = _replace(call.command, ruled=True, arguments=given.ruling.arguments)
        return True

    def settle(self, given: ToolSettled) -> bool:
        """Store the result of a call."""
        call = self._round.get(given.call_id)
        if call is None or call.result is not None:
            return False
        if (record := given.record) is not None:
            if record.traceback and sum(bool(one.traceback) for _, one in self._records) >= MAX_TRACEBACKS:
                record = record.without_traceback()
            self._records.append((given.call_id, record))
        if given.attachments or given.texts:
            self.has_attachments = True
        del self.unsettled[given.call_id]
        call.wait, command = None, call.command
        call.result = ToolMessage(
            call_id=given.call_id,
            name=call.asked.name,
            value=given.value,
            error=given.error,
            record=given.record,
            provider_id=call.asked.provider_id,
            edited_arguments=command.arguments if command.granted is None else _executed_with(call),
            attachments=given.attachments,
            texts=given.texts,
            shown=given.shown,
        )
        parent = self._round.get(call.asked.parent)
        if parent is not None and parent.cell is not None:
            parent.cell.pending.append(given)
        for made in () if call.cell is None else call.cell.made:
            nested = self._round[made.call_id]
            if nested.wait is not None and nested.result is None:
                self.settle(_unwanted(nested, given.at_ms))
        return True

    def pause(self, given: CellPaused) -> list[RunTool] | None:
        """Add the calls that a cell has made; return the commands for them.

        Return None if the pause is not the cell's next, or if every call of the cell is answered already.
        """
        call = self._round.get(given.call_id)
        if call is None or not call.runs:
            return None
        cell = call.cell or _Cell()
        if given.number != cell.pauses + 1 or len(cell.made) + len(given.calls) <= len(cell.answers):
            return None
        call.cell, cell.pauses, cell.paused = cell, given.number, True
        made = [self._add_nested(call, cell, one, given.at_ms) for one in given.calls]
        return [one.command for one in made if one.result is None]

    def continued(self) -> list[ContinueCell]:
        """Return commands for the paused cells with a pending result; each gets one result."""
        commands: list[ContinueCell] = []
        for call in self.unsettled.values():
            if (cell := call.cell) is not None and cell.paused and cell.pending:
                cell.answers.append(cell.pending.pop(0))
                cell.paused = False
                commands.append(_continue(call, cell))
        return commands

    def wait(self, wait: Wait, at_ms: int) -> bool:
        """Record that a call waits; if its cell has ended, give the call up instead."""
        call = self._round.get(wait.call_id)
        if call is None or call.result is not None or call.cell is not None:
            return False
        parent = self._round.get(call.asked.parent)
        call.wait = wait
        if parent is not None and parent.result is not None:
            return self.settle(_unwanted(call, at_ms))
        return True

    def wake(self, wait_id: str, outcome: WaitOutcome) -> RunTool | None:
        """Return the command that continues the call whose wait has ended with *outcome*."""
        for call in self.unsettled.values():
            if call.wait is not None and call.wait.wait_id == wait_id:
                attempt = call.command.attempt + 1
                call.command = _replace(
                    call.command, waited=call.wait, granted=outcome, timed_out=False, attempt=attempt
                )
                call.wait = None
                return call.command
        return None

    def time_out(self, given: CallTimedOut) -> RunTool | None:
        """Return the command for a call that timed out; dispatch decides whether to execute it again."""
        call = self._round.get(given.call_id)
        if call is None or not call.runs or call.cell is not None or given.attempt != call.command.attempt:
            return None
        if given.record is not None:
            self._records.append((given.call_id, given.record))
        timeouts = call.command.timeouts + 1
        call.command = _replace(call.command, timed_out=True, timeouts=timeouts, attempt=given.attempt + 1)
        return call.command

    def running(self) -> list[RunTool | ContinueCell]:
        """Return the commands that execute the running calls."""
        return [
            call.command if call.cell is None else _continue(call, call.cell)
            for call in self.unsettled.values()
            if call.runs
        ]

    def runs(self, call_id: int) -> bool:
        """Return whether the call of this id runs."""
        call = self.unsettled.get(call_id)
        return call is not None and call.runs

    # These three spell out `_Call.runs`, for calls without a result: every call of a turn needs them.

    def any_running(self) -> bool:
        for call in self.unsettled.values():
            if call.wait is None and (call.cell is None or not call.cell.paused):
                return True
        return False

    def under_way(self) -> list[int]:
        """Return the ids of the running calls."""
        return [
            call_id
            for call_id, call in self.unsettled.items()
            if call.wait is None and (call.cell is None or not call.cell.paused)
        ]

    def one_runs(self) -> bool:
        """Return whether exactly one call runs."""
        running = 0
        for call in self.unsettled.values():
            if call.wait is None and (call.cell is None or not call.cell.paused):
                running += 1
        return running == 1

    def any_waiting(self) -> bool:
        return any(call.wait is not None for call in self.unsettled.values())

    def any_cells(self) -> bool:
        """Return whether a cell has made calls and has not ended; to resume it, an agent needs an engine."""
        return any(call.cell is not None for call in self.unsettled.values())

    def open(self) -> bool:
        """Return whether a round has begun and is not closed."""
        return bool(self._round)

    def lacks_result(self, call_id: int) -> bool:
        """Return whether the call is of this round and has no result yet."""
        call = self._round.get(call_id)
        return call is not None and call.result is None

    def needed_tools(self, approved: Collection[str], begun: Collection[str]) -> set[str]:
        """Return the tools of unsettled calls that a person has approved or whose execution has begun.

        *approved* holds the ids of waits that ended with an approval, *begun* the keys of journaled intents.
        """
        return {
            call.asked.name
            for call in self.unsettled.values()
            if isinstance(call.command.granted, Approved)
            or (call.wait is not None and call.wait.wait_id in approved)
            or call.command.key in begun
        }

    def waits(self) -> tuple[Wait, ...]:
        return tuple(call.wait for call in self.unsettled.values() if call.wait is not None)

    def give_up(self, at_ms: int) -> None:
        """Settle each call that has no result as cancelled."""
        self.given_up += tuple(
            [call.asked for call in self.unsettled.values() if call.runs and call.asked.parent]
        )
        results = [
            ToolSettled(at_ms=at_ms, call_id=call_id, error=_cancelled(call))
            for call_id, call in self.unsettled.items()
        ]
        for settled in results:
            self.settle(settled)

    def close(self) -> list[tuple[ToolCall, ToolMessage]]:
        """End the round; return the model's calls with their results, in the order of the calls."""
        results = []
        for call in self._round.values():
            if (result := call.result) is not None and not call.asked.parent:
                results.append((call.asked, result if call.cell is None else self._whole(call, result)))
        self._round.clear()
        self.unsettled.clear()
        return results

    # Records

    @property
    def records(self) -> list[ExternalCallRecord]:
        """The records of all executions, in the order in which they ended."""
        return [record for _, record in self._records]

    def records_by_call(self) -> dict[int, ExternalCallRecord]:
        """Return the last record of each call that has one."""
        return dict(self._records)

    # Cells

    def _add_nested(self, parent: _Call, cell: _Cell, made: CellCalled, at_ms: int) -> _Call:
        self._count += 1
        asked = ToolCall(
            call_id=self._count,
            name=made.name,
            arguments=made.arguments,
            args=made.args,
            parent=parent.asked.call_id,
            line=made.line,
        )
        cell.made.append(asked)
        call = _Call(asked, RunTool(asked, ruled=not self.asks_plugins))
        self._round[self._count] = self.unsettled[self._count] = call
        if made.error is not None:
            self.settle(ToolSettled(at_ms=at_ms, call_id=self._count, error=made.error))
        return call

    def _whole(self, call: _Call, result: ToolMessage) -> ToolMessage:
        """Return the result; add to a cell's result the attachments of its calls' results."""
        if call.cell is None:
            return result
        nested = (self._round[made.call_id] for made in call.cell.made)
        whole = (self._whole(one, one.result) for one in nested if one.result is not None)
        attached = (part for one in whole for part in one.attachments)
        return _replace(result, attachments=(*result.attachments, *attached))


def _continue(call: _Call, cell: _Cell) -> ContinueCell:
    return ContinueCell(call.asked, _executed_with(call), cell.made, cell.answers, len(cell.answers))


def _unwanted(call: _Call, at_ms: int) -> ToolSettled:
    """Return the result of a call that waits although its cell has ended."""
    message = f"{call.asked.name}() was given up: the code that called it has ended"
    error = ErrorObject(code=Code.CANCELLED, message=message)
    if _may_have_run(call):
        error = _outcome_unknown(message)
    return ToolSettled(at_ms=at_ms, call_id=call.asked.call_id, error=error)


def _may_have_run(call: _Call) -> bool:
    """Return whether the call may have been executed: a call that waits for its first approval was not."""
    wait = call.wait
    if wait is None or wait.kind != "approval":
        return True
    terms = wait.value if isinstance(wait.value, dict) else {}
    return call.command.timeouts > 0 or "interrupted" in terms or "question" in terms


def _outcome_unknown(message: str) -> ErrorObject:
    return ErrorObject(
        code=Code.CANCELLED,
        message=f"{message}; whether it took effect is unknown",
        hint="look at its effect before calling again",
    )


def _executed_with(call: _Call) -> dict[str, Json] | None:
    """Return the arguments that replace the call's own; None if none do."""
    granted = call.command.granted
    edited = granted.arguments if isinstance(granted, Approved) else None
    return call.command.arguments if edited is None else edited


def _read(request: RequestedCall, call_id: int) -> tuple[ToolCall, ToolMessage | None]:
    """Return the call, with a failed result if its arguments are not a JSON object.

    Empty text means no arguments.
    """
    name, provider_id = request.name, request.provider_id
    try:
        arguments = msgspec.json.decode(request.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        arguments = None
    # Each level takes two characters, so short text cannot nest too deep.
    if isinstance(arguments, dict) and (len(request.arguments) < _MAX_DEPTH or _is_flat_enough(arguments)):
        return ToolCall(call_id=call_id, name=name, arguments=arguments, provider_id=provider_id), None
    error = ErrorObject(
        code=Code.INVALID_ARGUMENT,
        message=f"the arguments of {name}() are not a JSON object",
        hint=f"send the arguments as one JSON object, nested at most {_MAX_DEPTH} deep",
    )
    call = ToolCall(call_id=call_id, name=name, raw=request.arguments, provider_id=provider_id)
    return call, ToolMessage(call_id=call_id, name=name, error=error, provider_id=provider_id)


def _is_flat_enough(value: Json) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False


def _cancelled(call: _Call) -> ErrorObject:
    name = call.asked.name
    if not _may_have_run(call):
        message = f"{name}() was cancelled before it was allowed to run"
        return ErrorObject(code=Code.CANCELLED, message=message)
    return _outcome_unknown(f"{name}() was cancelled while it ran")
