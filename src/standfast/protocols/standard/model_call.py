"""One call of the model: the request, the stream, and the reply as the machine reads it.

Rule: streamed text is only for display; the turn uses the whole reply. If the provider raises, or its stream
ends without a `ReplyEnded`, the outcome is `ModelFailed`, and the text shown so far is retracted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol, cast

import msgspec

from standfast.errors import ModelError, StandfastError
from standfast.graph.history import has_attachments
from standfast.machine.inputs import ModelFailed, ModelReplied
from standfast.model.canonical import digest_bytes
from standfast.model.events import ModelCallStarted, ReasoningStreamed, TextRetracted, TextStreamed
from standfast.model.message import (
    InputPart,
    Message,
    Part,
    RequestedCall,
    TextPart,
    ToolMessage,
    UserMessage,
)
from standfast.model.prompt_record import PromptRecord, Reading
from standfast.plugins.contexts import StreamKind
from standfast.plugins.turn_hooks import TurnContext, apply_view, reply_broken_off
from standfast.ports import model_provider

_CHUNKS_PER_YIELD: Final = 64
"""Chunks read in a row before other tasks on the loop may run."""

_MAX_RECORDS: Final = 8
"""How many records of prompts are remembered for the sessions of an agent."""
_STORE_AGAIN_MS: Final = 3_600_000
"""After this time a record is stored again: it may have been deleted with the only session that used it."""


class ReadReply(msgspec.Struct, frozen=True):
    """A reply: its prose, the raw text if that differs, and the calls it requests."""

    text: str
    raw: str | None
    calls: tuple[RequestedCall, ...]


class StreamFilter(Protocol):
    """A filter that receives a reply in pieces and returns the text to show."""

    def feed(self, chunk: str, /) -> str: ...

    def end(self) -> str: ...


class _WholeReplyFilter:
    """A filter that shows nothing until the reply is complete, because only then its prose is known."""

    def __init__(self, project: Callable[[str], str]) -> None:
        self._project = project
        self._pieces: list[str] = []

    def feed(self, chunk: str) -> str:
        self._pieces.append(chunk)
        return ""

    def end(self) -> str:
        return self._project("".join(self._pieces))


class ModelCall:
    """One attempt at one model call.

    A protocol overrides `make_filter`, `read`, `shown_messages` and, with it, `reading`.
    """

    def __init__(self, turn: TurnContext, number: int, key: str, attempt: int = 1) -> None:
        self._turn = turn
        self._number = number
        self._key = key
        self._attempt = attempt
        self._filter: StreamFilter | None = None
        self._shown_chars = 0
        self._request = ""
        """The digest of the request's `PromptRecord`."""

    async def run(self) -> ModelReplied | ModelFailed:
        turn = self._turn
        turn.show(ModelCallStarted(turn_id=turn.turn_id, number=self._number, attempt=self._attempt))
        self._filter, self._request = self.make_filter(), ""
        try:
            reply = await self._ask()
        except asyncio.CancelledError:
            self._retract()
            task = asyncio.current_task()
            if task is None or task.cancelling() > 0:
                raise
            # This task was not cancelled, only something that the provider awaited.
            return self._failed(ModelError("the model's provider cancelled the call", retryable=True))
        except Exception as error:
            self._retract()
            return self._failed(error)
        read = self.read(reply)
        return ModelReplied(
            at_ms=turn.services.clock.now_ms(),
            text=read.text,
            raw=read.raw,
            calls=read.calls,
            usage=turn.account.priced(reply),
            model=reply.model or turn.model.model_id,
            stop_reason=reply.stop_reason,
            reasoning=reply.reasoning,
            response_id=reply.response_id,
            request=self._request,
        )

    def make_filter(self) -> StreamFilter | None:
        """Return the filter that selects the text to show while the reply streams; None shows all of it."""
        projector = self._turn.projector
        return None if projector is None else _WholeReplyFilter(projector.project_assistant_prose)

    def read(self, reply: model_provider.ReplyEnded) -> ReadReply:
        """Return the prose and the calls of a reply."""
        projector = self._turn.projector
        if projector is None:
            return ReadReply(reply.text, None, reply.calls)
        prose = projector.project_assistant_prose(reply.text)
        return ReadReply(prose, None if prose == reply.text else reply.text, reply.calls)

    @property
    def reading(self) -> Reading:
        """The conversion done by `shown_messages`, recorded so that readers of the journal can repeat it."""
        return "" if self._turn.executor is None else "inputs_named"

    def shown_messages(self, messages: list[Message]) -> list[Message]:
        """Return the messages in the form in which the model reads them; may return *messages* itself."""
        if self._turn.executor is None:
            return messages
        return [with_inputs_named(message) for message in messages]

    def request(self, prompt: str, messages: list[Message]) -> model_provider.ModelRequest:
        """Return the request with *messages*, a list that no other code may change."""
        turn = self._turn
        began, now = turn.preamble, turn.session.artifact().preamble
        tools = began.tools
        if now is not began:  # append the tools that the model has found during the turn
            known = {one.name for one in tools}
            tools = (*tools, *(one for one in now.found if one.name not in known))
        machine = turn.machine
        changed = machine.compaction is not None or machine.prepared is not None
        if turn.shows_attachments or machine.calls.has_attachments or (changed and has_attachments(messages)):
            messages = with_shown_attachments(messages)
        return model_provider.ModelRequest(
            messages=self.shown_messages(messages),
            instructions=prompt,
            tools=tools,
            output_schema=None if turn.output is None else turn.output.schema,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            call_number=turn.head.model_calls + self._number,
            idempotency_key=f"{turn.turn_id}.{self._key}",
            settings=self._settings(),
            attempt=self._attempt,
            read_blob=turn.hooks.read_blob,
        )

    def _settings(self) -> dict[str, Any]:
        """Return the turn's settings; drop a forced tool choice once a tool was called."""
        settings = self._turn.settings
        if settings.get("tool_choice") in (None, "auto", "none"):
            return settings
        if not any(isinstance(one, ToolMessage) for one in self._turn.machine.messages):
            return settings
        return {name: value for name, value in settings.items() if name != "tool_choice"}

    async def _ask(self) -> model_provider.ReplyEnded:
        """Send the messages that plugins have prepared to the model, and return its streamed reply."""
        turn, machine = self._turn, self._turn.machine
        if not turn.session.is_static:
            await turn.session.prepare()
        before = turn.history if machine.compaction is None else list(machine.compaction.seed)
        messages = before + machine.messages
        if machine.prepared is not None and machine.prepared.view is not None:
            messages = apply_view(messages, machine.prepared.view)
        prompt = turn.instructions if machine.prompt is None else machine.prompt
        request = self.request(prompt, messages)
        self._request = self._keep(request)
        stream = turn.model.stream(request)
        try:
            reply = _checked(await self._read(stream))
            return await turn.hooks.reply(reply) if turn.hooks.sees_replies else reply
        finally:
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()

    def _keep(self, request: model_provider.ModelRequest) -> str:
        """If journals are kept, store the request without its messages; return the digest of that record."""
        turn = self._turn
        tools, settings, digest = turn.recorded
        if digest and tools is request.tools and settings is request.settings:
            return digest
        if not turn.services.keeps_journals:
            return ""
        settings, headers = request.settings, request.settings.get("extra_headers")
        if isinstance(headers, dict) and headers:  # their values may be API keys
            settings = {**settings, "extra_headers": dict.fromkeys(headers, "[redacted]")}
        record = PromptRecord(
            layers=turn.layers,
            protocol=turn.preamble.prompt,
            tools=request.tools,
            output_schema=request.output_schema,
            settings=settings,
            reading=self.reading,
        )
        stored = turn.session.plugins.host.prompt_records
        digest = _stored_digest(stored, record, turn.services.clock.boot_ms(), turn.hooks.keep_blob)
        turn.recorded = (request.tools, request.settings, digest)
        return digest

    async def _read(self, stream: AsyncIterator[model_provider.ModelDelta]) -> model_provider.ReplyEnded:
        """Read a reply to its end and show its pieces, after plugins have changed them."""
        hooks, chunks = self._turn.hooks, 0
        change = hooks.stream if hooks.shows_streams else None
        shown: dict[StreamKind, Callable[[str], None]] = {}
        async for delta in stream:
            is_reply = type(delta) is model_provider.ReplyEnded
            if not is_reply and isinstance(delta, model_provider.TextArrived):
                shown["text"] = self._show_text
                self._show_text(delta.text if change is None else await change(delta.text))
            elif not is_reply and isinstance(delta, model_provider.ReasoningArrived):
                shown["reasoning"] = self._show_reasoning
                text = delta.text if change is None else await change(delta.text, "reasoning")
                self._show_reasoning(text)
            else:
                if change is not None:
                    for kind, show in shown.items():
                        show(await change("", kind, last=True))
                if self._filter is not None:
                    self._show(self._filter.end())
                return cast(model_provider.ReplyEnded, delta)  # `_checked` refuses anything else
            chunks += 1
            if chunks % _CHUNKS_PER_YIELD == 0:
                await asyncio.sleep(0)
        raise reply_broken_off()

    def _show_text(self, text: str) -> None:
        self._show(text if self._filter is None else self._filter.feed(text))

    def _show(self, text: str) -> None:
        if text:  # empty if a plugin or the filter holds it back
            self._shown_chars += len(text)
            self._turn.show(TextStreamed(turn_id=self._turn.turn_id, text=text))

    def _show_reasoning(self, text: str) -> None:
        if text:
            self._turn.show(ReasoningStreamed(turn_id=self._turn.turn_id, text=text))

    def _retract(self) -> None:
        if self._shown_chars:
            turn_id = self._turn.turn_id
            self._turn.show(TextRetracted(turn_id=turn_id, number=self._number, chars=self._shown_chars))

    def _failed(self, error: Exception) -> ModelFailed:
        if not isinstance(error, StandfastError):
            error = ModelError(f"{self._turn.model.model_id} raised {type(error).__name__}: {error}")
        return ModelFailed(
            at_ms=self._turn.services.clock.now_ms(),
            error=error.error_object(),
            retryable=error.retryable,
            retry_after_ms=getattr(error, "retry_after_ms", None),
            attempt=self._attempt,
            request=self._request,
        )


def with_shown_attachments(messages: list[Message]) -> list[Message]:
    """Add the texts and attachments of tool results to the messages.

    Texts become part of the result; attachments become a message after the results of each round.
    """
    shown: list[Message] = []
    pending: list[Part] = []
    for message in messages:
        if pending and not isinstance(message, ToolMessage):
            shown.append(UserMessage(content=tuple(pending)))
            pending = []
        if isinstance(message, ToolMessage) and message.texts:
            value = message.value if message.shown is None else message.shown
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            message = msgspec.structs.replace(message, shown="\n".join([text, "", *message.texts]))
        shown.append(message)
        if isinstance(message, ToolMessage) and any(part.shown for part in message.attachments):
            words = f"[attached to the result of {message.name}(), call {message.call_id}]"
            pending += [TextPart(text=words), *(part for part in message.attachments if part.shown)]
    return [*shown, UserMessage(content=tuple(pending))] if pending else shown


def with_inputs_named(message: Message) -> Message:
    """Replace each input in a message by its name, because only code reads its value."""
    if not isinstance(message, UserMessage) or isinstance(message.content, str):
        return message
    if not any(isinstance(part, InputPart) for part in message.content):
        return message
    parts: list[Part] = []
    for part in message.content:
        if isinstance(part, InputPart):
            kind = "text" if part.media_type.startswith("text/") else "JSON"
            words = f"[input `{part.name}`: {kind}, {part.size:,} bytes; a read-only variable in your code]"
            part = TextPart(text=words)
        parts.append(part)
    return msgspec.structs.replace(message, content=tuple(parts))


def _checked(reply: object) -> model_provider.ReplyEnded:
    """Raise `ModelError` unless *reply* is a reply that can be stored."""
    if not isinstance(reply, model_provider.ReplyEnded):
        raise ModelError(f"the model's provider returned a {type(reply).__name__} instead of a reply")
    try:
        msgspec.convert(msgspec.to_builtins(reply), model_provider.ReplyEnded)
    except (msgspec.ValidationError, TypeError) as error:
        raise ModelError(f"the model's provider returned an invalid reply: {error}") from None
    try:
        reply.text.encode()
        for call in reply.calls:
            (call.name + call.arguments + call.provider_id).encode()
        msgspec.json.encode((reply.reasoning, reply.response_id, reply.model, reply.stop_reason))
    except UnicodeEncodeError:
        raise ModelError("the model's reply is not Unicode text", retryable=True) from None
    return reply


class _StoredRecord(msgspec.Struct):
    record: PromptRecord
    digest: str
    data: bytes
    stored_ms: int


def _stored_digest(
    stored: list[_StoredRecord], record: PromptRecord, now_ms: int, keep: Callable[[bytes], str]
) -> str:
    """Return the digest of *record*; *keep* stores its bytes with the next write of the turn if need be."""
    for place, one in enumerate(stored):
        if one.record == record:
            if place:
                stored.insert(0, stored.pop(place))
            if now_ms - one.stored_ms >= _STORE_AGAIN_MS:
                keep(one.data)
                one.stored_ms = now_ms
            return one.digest
    data = msgspec.json.encode(record)
    keep(data)
    stored.insert(0, _StoredRecord(record, digest_bytes(data), data, now_ms))
    del stored[_MAX_RECORDS:]
    return stored[0].digest
