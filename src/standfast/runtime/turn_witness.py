"""Turns what the driver does into events for observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from standfast.machine.commands import CallModel, Command, RunTool
from standfast.machine.inputs import (
    CallPrepared,
    CallRuled,
    CheckpointPassed,
    FinishRequested,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    ToolSettled,
    WaitEnded,
    WaitOpened,
)
from standfast.model.events import (
    Event,
    MessagesDelivered,
    ModelCallFailed,
    PluginEventEmitted,
    ReplyReceived,
    TextStreamed,
    ToolCallSettled,
    ToolCallStarted,
    WaitBegan,
    WaitOver,
)
from standfast.model.node import PluginNode
from standfast.model.wait import Approved

if TYPE_CHECKING:
    from standfast.trace.turn_spans import TurnSpans


class TurnWitness:
    """The `Witness` of one turn. If somebody keeps a trace, its `spans` are told as well."""

    __slots__ = ("_show", "_spans", "_turn_id")

    def __init__(self, turn_id: str, show: Callable[[Event], None], spans: TurnSpans | None = None) -> None:
        self._turn_id = turn_id
        self._show = show
        self._spans = spans

    def running(self, command: RunTool) -> None:
        call, granted, arguments = command.call, command.granted, command.arguments
        if isinstance(granted, Approved) and granted.arguments is not None:
            arguments = granted.arguments
        if arguments is not None:
            call = msgspec.structs.replace(call, arguments=arguments)
        self._show(ToolCallStarted(turn_id=self._turn_id, call=call))

    def fed(self, given: Input, following: Sequence[Command]) -> None:
        if self._spans is not None:
            self._spans.fed(given, following)
        event = self._event_of(given, following)
        if event is not None:
            self._show(event)
        for node in _emitted(given):
            self._show(
                PluginEventEmitted(
                    turn_id=self._turn_id, plugin_id=node.plugin_id, kind=node.kind, body=node.body
                )
            )

    def _event_of(self, given: Input, following: Sequence[Command]) -> Event | None:
        turn_id = self._turn_id
        match given:
            case ModelReplied(text=text, calls=calls, usage=usage, model=model):
                return ReplyReceived(turn_id=turn_id, text=text, calls=calls, usage=usage, model=model)
            case ToolSettled(call_id=call_id, value=value, error=error, record=record):
                shown = None if record is None else record.without_traceback()
                return ToolCallSettled(
                    turn_id=turn_id, call_id=call_id, value=value, error=error, record=shown
                )
            case ModelFailed(error=error, retryable=retryable, attempt=attempt):
                return ModelCallFailed(
                    turn_id=turn_id,
                    error=error,
                    retryable=retryable,
                    attempt=attempt,
                    retry_in_ms=_retry_in_ms(following),
                )
            case FinishRequested(text=text):
                return TextStreamed(turn_id=turn_id, text=text)
            case WaitOpened(wait=wait):
                return WaitBegan(turn_id=turn_id, wait=wait)
            case WaitEnded(wait_id=wait_id, outcome=outcome):
                return WaitOver(turn_id=turn_id, wait_id=wait_id, outcome=outcome)
            case CheckpointPassed(messages=messages) if messages:
                return MessagesDelivered(turn_id=turn_id, messages=messages)
            case _:
                return None


def _retry_in_ms(following: Sequence[Command]) -> int | None:
    return next((one.delay_ms for one in following if isinstance(one, CallModel)), None)


def _emitted(given: Input) -> tuple[PluginNode, ...]:
    """What plugins tell observers with this."""
    if isinstance(given, (HooksRan, CallPrepared, CallRuled, ToolSettled)):
        return given.ruling.events
    return given.events if isinstance(given, ModelReplied) else ()
