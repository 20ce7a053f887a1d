"""Carries out a turn's commands: asks plugins and the model, dispatches native tool calls.

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
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from standfast.durable.effects import Deliver, Kept, Prepared, Ready
from standfast.errors import ModelError, StandfastError
from standfast.machine.commands import CallModel, ContinueCell, PrepareCall, RunHooks, RunTool
from standfast.machine.inputs import (
    CallPrepared,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    OutputCheck,
    ToolSettled,
)
from standfast.model.capability import Capability
from standfast.model.events import ModelCallStarted, ReasoningStreamed, TextRetracted, TextStreamed
from standfast.model.message import InputPart, Message, Part, RequestedCall, TextPart, UserMessage
from standfast.model.outcome import Ended
from standfast.plugins.contexts import StreamKind
from standfast.plugins.turn_hooks import TurnContext
from standfast.plugins.view import seen
from standfast.ports.model_provider import (
    ModelDelta,
    ModelRequest,
    ReasoningArrived,
    ReplyEnded,
    TextArrived,
)
from standfast.ports.session_store import Blob, JournalEntry
from standfast.protocols.standard.calls import ToolCalls

_BREATH = 64
"""So many chunks are taken in a row before others on the loop get their turn."""


class StandardHost:
    """The `EffectHost` of the standard protocol, for one turn."""

    def __init__(self, turn: TurnContext) -> None:
        self._clock = turn.services.clock
        self._turn = turn
        self._hooks = turn.hooks
        self._calls = ToolCalls(turn)

    def run_hooks(self, command: RunHooks) -> Coroutine[Any, Any, HooksRan]:
        return self._hooks.run_hooks(command)

    def prepare_call(self, command: PrepareCall) -> Coroutine[Any, Any, CallPrepared]:
        number = self._turn.machine.model_calls + 1
        return self._hooks.prepare_call(
            command, lambda prompt, messages: self._request(prompt, messages, number, command.key)
        )

    def finalizing(self, outcome: Ended) -> Coroutine[Any, Any, None]:
        turn = self._turn
        if turn.executor is not None:
            turn.executor.turn_over([*turn.history, *turn.machine.messages])
        return self._hooks.finalizing(outcome)

    def settled(self, given: ToolSettled) -> None:
        self._calls.settled(given.call_id)

    def changed_states(self, given: Input | None = None) -> tuple[JournalEntry, ...]:
        return self._hooks.changed_states(given)

    def take_blobs(self) -> tuple[Blob, ...]:
        return self._hooks.take_blobs()

    def kept(self, *, tolerant: bool) -> Coroutine[Any, Any, Kept]:
        return self._hooks.kept(tolerant=tolerant)

    async def call_model(self, command: CallModel) -> ModelReplied | ModelFailed:
        turn = self._turn
        turn.show(ModelCallStarted(turn_id=turn.turn_id, number=command.number, attempt=command.attempt))
        shown = _Shown(turn, command.number, self._strainer())
        try:
            reply = await self._ask(command, shown)
        except asyncio.CancelledError:
            shown.retract()
            if _is_wanted_cancellation():
                raise
            given_up = ModelError("the model's provider gave the call up", retryable=True)
            return self._failed(given_up, command)
        except Exception as error:
            shown.retract()
            return self._failed(error, command)
        heard = self._heard(reply)
        return ModelReplied(
            at_ms=self._clock.now_ms(),
            text=heard.text,
            raw=heard.raw,
            calls=heard.calls,
            usage=self._hooks.priced(reply),
            model=reply.model or self._turn.model.model_id,
            stop_reason=reply.stop_reason,
            reasoning=reply.reasoning,
            response_id=reply.response_id,
        )

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        return await self._calls.prepare(command, begun=begun)

    def start(self, ready: Ready, deliver: Deliver) -> None:
        self._calls.start(ready, deliver)

    def continue_cell(self, command: ContinueCell, deliver: Deliver) -> None:
        self._calls.continue_cell(command, deliver)

    async def parking(self) -> ToolSettled | None:
        ended = await self._calls.parking()
        await self._hooks.take_states()
        return ended

    async def check_output(self, text: str) -> OutputCheck:
        output = self._turn.output
        if output is None or not output.runs_code:
            return OutputCheck() if output is None else output.check(text)
        limit_s = self._turn.services.settings.hook_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._turn.services.threads.run(lambda: output.check(text))
        except TimeoutError:
            return OutputCheck(problem=f"it could not be checked within {limit_s:g} s")

    def stop(self) -> None:
        self._calls.stop()

    # What a protocol may do otherwise

    def _strainer(self) -> Strainer | None:
        """Lets through what is to be shown of a reply while it streams."""
        projector = self._turn.projector
        return None if projector is None else _ShownAtTheEnd(projector.project_assistant_prose)

    def _heard(self, reply: ReplyEnded) -> Heard:
        """What a reply says and asks for."""
        projector = self._turn.projector
        if projector is None:
            return Heard(reply.text, None, reply.calls)
        prose = projector.project_assistant_prose(reply.text)
        return Heard(prose, None if prose == reply.text else reply.text, reply.calls)

    def _shown_messages(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as the model reads them."""
        if self._turn.executor is None:
            return list(messages)
        return [with_inputs_named(message) for message in messages]

    async def _ask(self, command: CallModel, shown: _Shown) -> ReplyEnded:
        machine = self._turn.machine
        await self._turn.session.prepare()
        prompt = self._turn.instructions if machine.prompt is None else machine.prompt
        request = self._request(
            prompt, self._messages(), command.number, command.key, attempt=command.attempt
        )
        stream = self._turn.model.stream(request)
        try:
            reply = await (self._read_changed if self._hooks.shows_streams else _read)(stream, shown)
            return await self._hooks.reply(_checked(reply))
        finally:
            await _close(stream)

    def _messages(self) -> list[Message]:
        """What the model is shown: the frame and this turn, as plugins have prepared them."""
        machine = self._turn.machine
        opened = machine.compaction
        before = self._turn.history if opened is None else list(opened.seed)
        messages = before + machine.messages
        view = None if machine.prepared is None else machine.prepared.view
        return messages if view is None else seen(messages, view)

    def _request(
        self, prompt: str, messages: list[Message], number: int, key: str, *, attempt: int = 1
    ) -> ModelRequest:
        turn = self._turn
        return ModelRequest(
            messages=self._shown_messages(messages),
            instructions=prompt,
            tools=self._offered(),
            output_schema=None if turn.output is None else turn.output.schema,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            call_number=turn.head.model_calls + number,
            idempotency_key=f"{turn.turn_id}.{key}",
            settings=turn.settings,
            attempt=attempt,
            read_blob=self._hooks.read_blob,
        )

    def _offered(self) -> tuple[Capability, ...]:
        """The tools of the turn's beginning, and what the model has found since, behind them."""
        began, now = self._turn.preamble, self._turn.session.artifact().preamble
        if now is began:
            return began.tools
        known = {one.name for one in began.tools}
        return (*began.tools, *(one for one in now.found if one.name not in known))

    async def _read_changed(self, stream: AsyncIterator[ModelDelta], shown: _Shown) -> ReplyEnded:
        """Take a reply in, and show it as plugins leave it."""
        show: dict[StreamKind, Callable[[str], None]] = {}
        async for delta in stream:
            if isinstance(delta, TextArrived):
                show["text"] = shown.text
                shown.text(await self._hooks.stream(delta.text))
            elif isinstance(delta, ReasoningArrived):
                show["reasoning"] = shown.reasoning
                shown.reasoning(await self._hooks.stream(delta.text, "reasoning"))
            else:
                for kind, take in show.items():
                    take(await self._hooks.stream("", kind, last=True))
                shown.end()
                return delta
        raise _broken_off()

    def _failed(self, error: Exception, command: CallModel) -> ModelFailed:
        if not isinstance(error, StandfastError):
            error = ModelError(f"{self._turn.model.model_id} raised {type(error).__name__}: {error}")
        return ModelFailed(
            at_ms=self._clock.now_ms(),
            error=error.error_object(),
            retryable=error.retryable,
            retry_after_ms=getattr(error, "retry_after_ms", None),
            attempt=command.attempt,
        )


class Heard(msgspec.Struct, frozen=True):
    """A reply: its prose, what was written if that is not all of it, and the calls it asks for."""

    text: str
    raw: str | None
    calls: tuple[RequestedCall, ...]


class Strainer(Protocol):
    """Takes a reply in piece by piece, and lets through what is to be shown of it."""

    def feed(self, chunk: str, /) -> str: ...

    def end(self) -> str: ...


class _ShownAtTheEnd:
    """Holds everything back until what is prose can be told."""

    def __init__(self, project: Callable[[str], str]) -> None:
        self._project = project
        self._pieces: list[str] = []

    def feed(self, chunk: str) -> str:
        self._pieces.append(chunk)
        return ""

    def end(self) -> str:
        return self._project("".join(self._pieces))


class _Shown:
    """What was shown of a reply that may still fail."""

    __slots__ = ("_number", "_strainer", "_turn", "chars")

    def __init__(self, turn: TurnContext, number: int, strainer: Strainer | None) -> None:
        self._turn = turn
        self._number = number
        self._strainer = strainer
        self.chars = 0

    def text(self, text: str) -> None:
        self._show(text if self._strainer is None else self._strainer.feed(text))

    def end(self) -> None:
        """The reply is complete."""
        if self._strainer is not None:
            self._show(self._strainer.end())

    def _show(self, text: str) -> None:
        if not text:  # a plugin or the strainer has held it back
            return
        self.chars += len(text)
        self._turn.show(TextStreamed(turn_id=self._turn.turn_id, text=text))

    def reasoning(self, text: str) -> None:
        if text:
            self._turn.show(ReasoningStreamed(turn_id=self._turn.turn_id, text=text))

    def retract(self) -> None:
        if self.chars:
            turn_id = self._turn.turn_id
            self._turn.show(TextRetracted(turn_id=turn_id, number=self._number, chars=self.chars))


async def _read(stream: AsyncIterator[ModelDelta], shown: _Shown) -> ReplyEnded:
    """Take a reply in, up to its end."""
    chunks = 0
    async for delta in stream:
        if isinstance(delta, TextArrived):
            shown.text(delta.text)
        elif isinstance(delta, ReasoningArrived):
            shown.reasoning(delta.text)
        else:
            shown.end()
            return delta
        chunks += 1
        if chunks % _BREATH == 0:
            await asyncio.sleep(0)
    raise _broken_off()


def with_inputs_named(message: Message) -> Message:
    """A message in which each input is told of by its name; what it holds only code reads."""
    if not isinstance(message, UserMessage) or isinstance(message.content, str):
        return message
    if not any(isinstance(part, InputPart) for part in message.content):
        return message
    parts: list[Part] = []
    for part in message.content:
        if isinstance(part, InputPart):
            kind = "text" if part.media_type.startswith("text/") else "JSON"
            told = f"[input `{part.name}`: {kind}, {part.size:,} bytes; a read-only variable in your code]"
            part = TextPart(text=told)
        parts.append(part)
    return msgspec.structs.replace(message, content=tuple(parts))


def _broken_off() -> ModelError:
    return ModelError("the model's reply broke off before its end", retryable=True)


def _checked(reply: object) -> ReplyEnded:
    """The reply, if it is one and can be written down."""
    if not isinstance(reply, ReplyEnded):
        raise ModelError(f"the model's provider gave {type(reply).__name__} for a reply")
    try:
        reply.text.encode()
        for call in reply.calls:
            (call.name + call.arguments + call.provider_id).encode()
        msgspec.json.encode((reply.reasoning, reply.response_id, reply.model, reply.stop_reason))
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
