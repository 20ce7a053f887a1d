"""The calls of a turn with all their attempts, derived from its journal."""

from __future__ import annotations

import msgspec

from standfast.durable.journal import journaled_inputs
from standfast.errors import Code
from standfast.machine import commands, inputs
from standfast.machine.turn_machine import Phase, TurnMachine
from standfast.model.call_history import CallAttempt, CallHistory
from standfast.model.message import ToolCall
from standfast.ports.session_store import JournaledTurn

_replace = msgspec.structs.replace


class _Calls:
    """Collects the attempts of calls from the inputs of a turn and the machine's commands."""

    def __init__(self) -> None:
        self.calls: dict[int, ToolCall] = {}
        self.inner: dict[int, list[ToolCall]] = {}
        self.attempts: dict[int, list[CallAttempt]] = {}
        self.results: dict[int, inputs.ToolSettled] = {}

    def begin(self, call: ToolCall, at_ms: int) -> None:
        if call.parent and call.call_id not in self.calls:
            self.inner.setdefault(call.parent, []).append(call)
        self.calls[call.call_id] = call
        made = self.attempts.setdefault(call.call_id, [])
        made.append(CallAttempt(number=len(made) + 1, began_ms=at_ms))

    def end(self, call_id: int, at_ms: int, outcome: str) -> None:
        made = self.attempts.get(call_id)
        if made and made[-1].ended_ms is None:
            made[-1] = _replace(made[-1], ended_ms=at_ms, outcome=outcome)

    def take_over(self, at_ms: int) -> None:
        """End the attempts of the previous process; calls without a result begin another attempt."""
        for call_id, made in self.attempts.items():
            if made[-1].ended_ms is None and call_id not in self.results:
                self.end(call_id, at_ms, "interrupted")
                self.begin(self.calls[call_id], at_ms)

    def settle(self, given: inputs.ToolSettled) -> None:
        self.results[given.call_id] = given
        made = self.attempts.get(given.call_id, [])
        if given.error is not None and given.error.code == Code.INTERRUPTED and len(made) > 1:
            made.pop()  # the call was not executed again
            return
        status = "ok" if given.error is None else "error"
        self.end(given.call_id, given.at_ms, str(given.record.status) if given.record else status)

    def history(self, call: ToolCall) -> CallHistory:
        settled = self.results.get(call.call_id)
        known = CallHistory(
            call=call,
            attempts=tuple(self.attempts.get(call.call_id, ())),
            settled=settled is not None,
            inner=tuple(self.history(one) for one in self.inner.get(call.call_id, ())),
        )
        if settled is None:
            return known
        record = None if settled.record is None else settled.record.without_traceback()
        return _replace(known, value=settled.value, error=settled.error, record=record)


def call_histories(turn: JournaledTurn) -> dict[int, CallHistory]:
    """Return the calls of a turn that have begun, by id; calls of code are also in their cell's `inner`."""
    machine, calls = TurnMachine(), _Calls()
    for given in journaled_inputs(turn.record.turn_id, turn.input, turn.journal):
        match given:
            case inputs.Resumed() if machine.phase is not Phase.PARKED:
                calls.take_over(given.at_ms)
            case inputs.CallTimedOut():
                calls.end(given.call_id, given.at_ms, "timed_out")
            case inputs.WaitOpened(wait=wait):
                calls.end(wait.call_id, given.at_ms, wait.kind)
            case inputs.ToolSettled():
                calls.settle(given)
        for command in machine.feed(given):
            if isinstance(command, commands.RunTool):
                calls.begin(command.call, given.at_ms)
    return {call_id: calls.history(call) for call_id, call in calls.calls.items()}
