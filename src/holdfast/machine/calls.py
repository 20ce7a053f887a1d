"""The calls of a turn: which run, which wait, which have their result.

Rule: a call gets one result. `rule`, `settle`, `wait` and `wake` say whether they changed anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.errors import Code, ErrorObject
from holdfast.machine.commands import RunTool
from holdfast.machine.inputs import CallRuled, ToolSettled
from holdfast.model.canonical import Json
from holdfast.model.message import RequestedCall, ToolCall, ToolMessage
from holdfast.model.wait import Approved, Wait, WaitOutcome

_MAX_DEPTH: Final = 128
"""How deep arguments may nest. Without it the room left on the stack would decide, differently each time."""


@dataclass(slots=True)
class _Call:
    asked: ToolCall
    attempt: int = 1
    waited: Wait | None = None
    granted: WaitOutcome | None = None
    wait: Wait | None = None
    result: ToolMessage | None = None
    ruled: bool = True
    arguments: dict[str, Json] | None = None


class CallTable:
    """The calls of the current round, under ids that count over the whole turn.

    With `asks_plugins`, they rule on each call before it is executed.
    """

    def __init__(self) -> None:
        self.asks_plugins = False
        self._count = 0
        self._round: dict[int, _Call] = {}

    def add(self, requested: tuple[RequestedCall, ...]) -> tuple[ToolCall, ...]:
        """Begin a round. Calls whose arguments cannot be read have failed already."""
        for request in requested:
            self._count += 1
            call = _read(request, self._count)
            result = None if call.raw is None else _not_an_object(call)
            self._round[self._count] = _Call(call, result=result, ruled=not self.asks_plugins)
        return tuple(entry.asked for entry in self._round.values())

    def rule(self, given: CallRuled) -> bool:
        """Take in what plugins decided about a call, once."""
        call = self._round.get(given.call_id)
        if call is None or call.ruled or call.result is not None:
            return False
        call.ruled = True
        call.arguments = given.ruling.arguments
        return True

    def settle(self, given: ToolSettled) -> bool:
        call = self._round.get(given.call_id)
        if call is None or call.result is not None:
            return False
        call.wait = None
        call.result = ToolMessage(
            call_id=given.call_id,
            name=call.asked.name,
            value=given.value,
            error=given.error,
            record=given.record,
            provider_id=call.asked.provider_id,
            edited_arguments=_executed_with(call),
            attachments=given.attachments,
            shown=given.shown,
        )
        return True

    def wait(self, wait: Wait) -> bool:
        call = self._round.get(wait.call_id)
        if call is None or call.result is not None:
            return False
        call.wait = wait
        return True

    def wake(self, wait_id: str, outcome: WaitOutcome) -> RunTool | None:
        """The call goes on; what its wait ended with decides how."""
        for call in self._round.values():
            if call.wait is not None and call.wait.wait_id == wait_id:
                call.waited, call.wait = call.wait, None
                call.granted = outcome
                call.attempt += 1
                return _command(call)
        return None

    def running(self) -> list[RunTool]:
        """What is under way, as it was asked for."""
        return [_command(call) for call in self._round.values() if call.result is None and call.wait is None]

    def any_running(self) -> bool:
        return any(call.result is None and call.wait is None for call in self._round.values())

    def any_waiting(self) -> bool:
        return any(call.wait is not None for call in self._round.values())

    def open(self) -> bool:
        """Whether a round has begun and is not closed."""
        return bool(self._round)

    def waits(self) -> tuple[Wait, ...]:
        return tuple(call.wait for call in self._round.values() if call.wait is not None)

    def cancel(self, at_ms: int) -> list[ToolSettled]:
        """A result for each call that has none."""
        return [
            ToolSettled(at_ms=at_ms, call_id=call.asked.call_id, error=_cancelled(call))
            for call in self._round.values()
            if call.result is None
        ]

    def close(self) -> list[tuple[ToolCall, ToolMessage]]:
        """End the round: every call with its result, in the order of the calls."""
        results = [(call.asked, call.result) for call in self._round.values() if call.result is not None]
        self._round.clear()
        return results


def _command(call: _Call) -> RunTool:
    return RunTool(call.asked, call.attempt, call.waited, call.granted, call.ruled, call.arguments)


def _executed_with(call: _Call) -> dict[str, Json] | None:
    """The arguments, if they are not those that the model gave."""
    edited = call.granted.arguments if isinstance(call.granted, Approved) else None
    return call.arguments if edited is None else edited


def _read(request: RequestedCall, call_id: int) -> ToolCall:
    """The call with its arguments, if they are a JSON object; an empty text counts as no arguments."""
    try:
        arguments = msgspec.json.decode(request.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        arguments = None
    if isinstance(arguments, dict) and _is_flat_enough(arguments):
        return ToolCall(
            call_id=call_id, name=request.name, arguments=arguments, provider_id=request.provider_id
        )
    return ToolCall(
        call_id=call_id, name=request.name, raw=request.arguments, provider_id=request.provider_id
    )


def _is_flat_enough(value: Json) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _holders_in(outer)]
        if not level:
            return True
    return False


def _holders_in(value: Json) -> Iterator[Json]:
    """The lists and objects directly inside a list or an object."""
    items = value.values() if isinstance(value, dict) else value
    return (item for item in items if isinstance(item, dict | list))


def _not_an_object(call: ToolCall) -> ToolMessage:
    error = ErrorObject(
        code=Code.INVALID_ARGUMENT,
        message=f"the arguments of {call.name}() are not a JSON object",
        hint=f"send the arguments as one JSON object, nested at most {_MAX_DEPTH} deep",
    )
    return ToolMessage(call_id=call.call_id, name=call.name, error=error, provider_id=call.provider_id)


def _cancelled(call: _Call) -> ErrorObject:
    name = call.asked.name
    if call.wait is not None and call.wait.kind == "approval":
        return ErrorObject(
            code=Code.CANCELLED, message=f"{name}() was cancelled before it was allowed to run"
        )
    return ErrorObject(
        code=Code.CANCELLED,
        message=f"{name}() was cancelled while it ran; whether it took effect is unknown",
        hint="look at its effect before calling again",
    )
