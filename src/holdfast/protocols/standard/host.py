"""Carries out a turn's commands: asks the model, dispatches native tool calls.

Rules
-----
1. Every call goes through the one dispatch, so that validation, limits, approvals and records are those of
   any other call.
2. What a model streams is shown as it comes; only the whole reply counts. A stream that ends without its end
   has failed.
3. Nothing that a tool or a provider does escapes: it becomes an input of the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from holdfast.durable.effects import Deliver, Known, Prepared, Ready
from holdfast.errors import HoldfastError, ModelError
from holdfast.machine.commands import CallModel, RunTool
from holdfast.machine.inputs import ModelFailed, ModelReplied, OutputCheck
from holdfast.model.capability import Capability
from holdfast.model.events import ModelCallStarted, ReasoningStreamed, TextRetracted, TextStreamed
from holdfast.ports.model_provider import (
    ModelDelta,
    ModelProvider,
    ModelRequest,
    ReasoningArrived,
    ReplyEnded,
    TextArrived,
)
from holdfast.protocols.standard.calls import Bench, CallDesk, Seat

_BREATH = 64
"""So many chunks are taken in a row before others on the loop get their turn."""


class OutputContract(Protocol):
    """What an agent promises to answer with."""

    @property
    def schema(self) -> dict[str, Any]: ...

    def check(self, text: str) -> OutputCheck: ...


class Persona(msgspec.Struct, frozen=True):
    """What the protocol needs to know of an agent."""

    model: ModelProvider
    instructions: str = ""
    capabilities: tuple[Capability, ...] = ()
    output: OutputContract | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class StandardHost:
    """The `EffectHost` of the standard protocol, for one turn."""

    def __init__(self, persona: Persona, bench: Bench, seat: Seat) -> None:
        self._persona = persona
        self._clock = bench.clock
        self._seat = seat
        self._desk = CallDesk(bench, seat)

    async def call_model(self, command: CallModel) -> ModelReplied | ModelFailed:
        seat = self._seat
        seat.show(
            ModelCallStarted(turn_id=seat.machine.turn_id, number=command.number, attempt=command.attempt)
        )
        shown = _Shown(seat, command.number)
        try:
            reply = await self._ask(command, shown)
        except asyncio.CancelledError:
            shown.retract()
            if _is_wanted_cancellation():
                raise
            return self._failed(ModelError("the model's provider gave the call up", retryable=True))
        except Exception as error:
            shown.retract()
            return self._failed(error)
        return ModelReplied(
            at_ms=self._clock.now_ms(),
            text=reply.text,
            calls=reply.calls,
            usage=reply.usage,
            model=reply.model or self._persona.model.model_id,
            stop_reason=reply.stop_reason,
        )

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        try:
            return await self._desk.prepare(command, begun=begun)
        except HoldfastError as error:  # a tool that does not exist, for instance
            return Known(self._desk.settled_without_tool(command, error))

    def start(self, ready: Ready, deliver: Deliver) -> None:
        self._desk.start(ready, deliver)

    def check_output(self, text: str) -> OutputCheck:
        output = self._persona.output
        return OutputCheck() if output is None else output.check(text)

    def stop(self) -> None:
        self._desk.stop()

    async def _ask(self, command: CallModel, shown: _Shown) -> ReplyEnded:
        stream = self._persona.model.stream(self._request(command))
        try:
            return _checked(await _read(stream, shown))
        finally:
            await _close(stream)

    def _request(self, command: CallModel) -> ModelRequest:
        seat, persona = self._seat, self._persona
        return ModelRequest(
            messages=seat.history + seat.machine.messages,
            instructions=persona.instructions,
            tools=persona.capabilities,
            output_schema=None if persona.output is None else persona.output.schema,
            session_id=seat.session_id,
            turn_id=seat.machine.turn_id,
            call_number=seat.calls_before + command.number,
            idempotency_key=f"{seat.machine.turn_id}.{command.key}",
            settings=persona.settings,
        )

    def _failed(self, error: Exception) -> ModelFailed:
        if not isinstance(error, HoldfastError):
            error = ModelError(f"{self._persona.model.model_id} raised {type(error).__name__}: {error}")
        return ModelFailed(
            at_ms=self._clock.now_ms(),
            error=error.error_object(),
            retryable=error.retryable,
            retry_after_ms=getattr(error, "retry_after_ms", None),
        )


class _Shown:
    """What was shown of a reply that may still fail."""

    __slots__ = ("_number", "_seat", "chars")

    def __init__(self, seat: Seat, number: int) -> None:
        self._seat = seat
        self._number = number
        self.chars = 0

    def text(self, text: str) -> None:
        self.chars += len(text)
        self._seat.show(TextStreamed(turn_id=self._seat.machine.turn_id, text=text))

    def reasoning(self, text: str) -> None:
        self._seat.show(ReasoningStreamed(turn_id=self._seat.machine.turn_id, text=text))

    def retract(self) -> None:
        if self.chars:
            turn_id = self._seat.machine.turn_id
            self._seat.show(TextRetracted(turn_id=turn_id, number=self._number, chars=self.chars))


async def _read(stream: AsyncIterator[ModelDelta], shown: _Shown) -> ReplyEnded:
    """Take a reply in, up to its end."""
    chunks = 0
    async for delta in stream:
        if isinstance(delta, TextArrived):
            shown.text(delta.text)
        elif isinstance(delta, ReasoningArrived):
            shown.reasoning(delta.text)
        else:
            return delta
        chunks += 1
        if chunks % _BREATH == 0:
            await asyncio.sleep(0)
    raise ModelError("the model's reply broke off before its end", retryable=True)


def _checked(reply: object) -> ReplyEnded:
    """The reply, if it is one and can be written down."""
    if not isinstance(reply, ReplyEnded):
        raise ModelError(f"the model's provider gave {type(reply).__name__} for a reply")
    try:
        reply.text.encode()
        for call in reply.calls:
            (call.name + call.arguments + call.provider_id).encode()
    except UnicodeEncodeError:
        raise ModelError("the model's reply is not Unicode text", retryable=True) from None
    return reply


def _is_wanted_cancellation() -> bool:
    """Whether somebody cancelled this task, and not only something that the provider awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _close(stream: AsyncIterator[ModelDelta]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
