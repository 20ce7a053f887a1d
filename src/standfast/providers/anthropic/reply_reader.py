"""Reader of the Messages API's streamed reply.

A reply is a list of blocks: text, thinking, tool calls. A block starts, grows by deltas and stops;
`message_delta` says why the reply ended, `message_stop` that it did. The reader keeps the blocks by index,
returns the new text of each delta, and assembles the reply at the end.

Rules
-----
1. A block that starts twice, or grows before its start or after its stop, means that events were lost or
   repeated: a retryable `ModelError`.
2. A call is complete if its block stopped and the reply was not cut off in it. A call that was cut off has
   only the text that arrived, which is not JSON.
3. A refused reply makes no calls.
4. Events and blocks of unknown types are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from standfast.errors import ModelError
from standfast.model.canonical import Json
from standfast.model.limits import Usage
from standfast.model.message import Reasoning, RequestedCall
from standfast.ports.model_provider import ModelDelta, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.anthropic.errors import AnthropicError, stream_error
from standfast.providers.http.content import json_text
from standfast.providers.http.dialect import PreparedRequest, ServerEvent

_STOP_REASONS: Final = {
    "end_turn": "end",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_COMPLETE: Final = ("end_turn", "tool_use", "pause_turn")
"""The stop reasons that leave no block unfinished."""

_DELTA_BLOCKS: Final = {
    "text_delta": "text",
    "input_json_delta": "tool_use",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
}
_KNOWN_EVENTS: Final = frozenset((
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "error",
))  # fmt: skip
_NONE: Final[tuple[ModelDelta, ...]] = ()


class _OutputTokens(msgspec.Struct):
    thinking_tokens: int = 0


class _Tokens(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputTokens | None = None


class _Message(msgspec.Struct):
    id: str = ""
    model: str = ""
    usage: _Tokens | None = None


class _StopDetails(msgspec.Struct):
    explanation: str | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None


class _BlockStart(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    input: Json = None


class _Event(msgspec.Struct):
    """Any event; each type has some of the fields."""

    type: str = ""
    index: int = -1
    delta: _Delta | None = None
    content_block: _BlockStart | None = None
    message: _Message | None = None
    usage: _Tokens | None = None
    error: AnthropicError | None = None
    request_id: str | None = None


class _EventType(msgspec.Struct):
    type: str = ""


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_type: Final = msgspec.json.Decoder(_EventType).decode


class _Block:
    """A block that is still arriving."""

    __slots__ = ("pieces", "signature", "start", "stopped")

    def __init__(self, start: _BlockStart) -> None:
        self.start = start
        first = start.text or start.thinking
        self.pieces: list[str] = [first] if first else []
        self.signature = start.signature
        self.stopped = False


class AnthropicReplyReader:
    """The `ReplyReader` of one reply."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._origin = prepared.origin
        self._blocks: dict[int, _Block] = {}
        self._message: _Message | None = None
        self._tokens = _Tokens()
        self._stop_reason: str | None = None
        self._refusal: str | None = None

    def feed(self, event: ServerEvent, /) -> Sequence[ModelDelta]:
        found = _decode(event.data)
        if found is None:
            return _NONE
        match found.type:
            case "content_block_delta":
                return self._grow(found)
            case "content_block_start":
                block = found.content_block
                if block is None or found.index < 0 or self._message is None:
                    raise _broken("a block started outside of a reply")
                if found.index in self._blocks:
                    raise _broken(f"block {found.index} started twice")
                self._blocks[found.index] = _Block(block)
                if block.text and block.type == "text":
                    return (TextArrived(block.text),)
                return (ReasoningArrived(block.thinking),) if block.thinking else _NONE
            case "content_block_stop":
                if found.index not in self._blocks:
                    raise _broken(f"block {found.index} ended without a start")
                self._blocks[found.index].stopped = True
            case "message_start":
                if self._message is not None:
                    raise _broken("the reply started twice")
                self._message = found.message or _Message()
                self._count(self._message.usage)
            case "message_delta":
                self._count(found.usage)
                if found.delta is not None:
                    self._stop_reason = found.delta.stop_reason or self._stop_reason
                    if found.delta.stop_details is not None:
                        self._refusal = found.delta.stop_details.explanation
            case "message_stop":
                return self._end()
            case "error":
                raise stream_error(found.error or AnthropicError(), found.request_id)
        return _NONE

    def _grow(self, event: _Event) -> Sequence[ModelDelta]:
        delta = event.delta
        if delta is None or (wanted := _DELTA_BLOCKS.get(delta.type)) is None:
            return _NONE
        block = self._blocks.get(event.index)
        if block is None or block.stopped:
            raise _broken(f"a delta of block {event.index} arrived before its start or after its end")
        kind = block.start.type
        if kind != wanted:
            if kind in _DELTA_BLOCKS.values():
                raise _broken(f"a piece of {wanted} came for a block of {kind}")
            return _NONE
        if kind == "text":
            block.pieces.append(delta.text)
            return (TextArrived(delta.text),) if delta.text else _NONE
        if delta.type == "input_json_delta":
            block.pieces.append(delta.partial_json)
        elif delta.type == "signature_delta":
            block.signature = delta.signature  # complete: a second one repeats the first
        elif delta.thinking:
            block.pieces.append(delta.thinking)
            return (ReasoningArrived(delta.thinking),)
        return _NONE

    def _count(self, tokens: _Tokens | None) -> None:
        """Update the counts; each later event has totals for the whole reply and may omit some of them."""
        if tokens is None:
            return
        for name in _Tokens.__struct_fields__:
            if (value := getattr(tokens, name)) is not None:
                setattr(self._tokens, name, value)

    def _end(self) -> Sequence[ModelDelta]:
        reason, message, tokens = self._stop_reason, self._message, self._tokens
        if message is None or reason is None:
            raise _broken("the reply ended without saying why")
        calls = self._calls(reason)
        blocks = self._blocks.values()
        text = "".join(piece for block in blocks if block.start.type == "text" for piece in block.pieces)
        refusal = self._refusal if reason == "refusal" and self._refusal and not text.strip() else None
        reasoning = (_reasoning(block, self._origin) for block in blocks)
        output, details = tokens.output_tokens or 0, tokens.output_tokens_details
        ended = ReplyEnded(
            text=refusal or text,
            calls=calls,
            usage=Usage(
                input=tokens.input_tokens or 0,
                cache_read=tokens.cache_read_input_tokens or 0,
                cache_write=tokens.cache_creation_input_tokens or 0,
                output=output,
                reasoning=0 if details is None else min(details.thinking_tokens, output),
                calls=1,
            ),
            model=message.model,
            stop_reason="tool_calls" if calls and reason == "end_turn" else _STOP_REASONS.get(reason, reason),
            reasoning=tuple(one for one in reasoning if one is not None),
            response_id=message.id,
        )
        return (ended,) if refusal is None else (TextArrived(refusal), ended)

    def _calls(self, reason: str) -> tuple[RequestedCall, ...]:
        """Return the calls with the arguments that arrived; some servers send them whole with the start."""
        if reason == "refusal":
            return ()
        found = [block for block in self._blocks.values() if block.start.type == "tool_use"]
        complete = reason in _COMPLETE
        if complete and any(not block.stopped for block in found):
            raise _broken("the reply ended in the middle of a call")
        if reason == "tool_use" and not found:
            raise _broken("the reply ended for a tool call that is missing")
        last = None if complete or not self._blocks else self._blocks[next(reversed(self._blocks))]
        calls = []
        for block in found:
            start, arguments = block.start, "".join(block.pieces)
            if not arguments and start.input:
                arguments = json_text(start.input)
            if not arguments and block.stopped and block is not last:
                arguments = "{}"
            calls.append(RequestedCall(name=start.name, arguments=arguments, provider_id=start.id))
        return tuple(calls)


def _decode(data: bytes) -> _Event | None:
    """Decode an event; return None for one of an unknown type that does not match `_Event`."""
    try:
        return _decode_event(data)
    except msgspec.ValidationError as error:
        try:
            kind = _decode_type(data).type
        except msgspec.ValidationError:
            kind = ""
        if kind not in _KNOWN_EVENTS:
            return None
        raise _broken(f"an event has an unexpected form: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(f"an event is not JSON: {error}") from None


def _reasoning(block: _Block, origin: str) -> Reasoning | None:
    """Return the reasoning in a block; it is sent back only if the vendor signed it."""
    start = block.start
    if start.type == "redacted_thinking":
        return Reasoning(origin=origin, opaque={"type": "redacted_thinking", "data": start.data})
    if start.type != "thinking":
        return None
    text, signature = "".join(block.pieces), block.signature
    if not text and not signature:
        return None
    opaque = {"type": "thinking", "signature": signature} if signature and block.stopped else None
    return Reasoning(origin=origin, text=text, opaque=opaque)


def _broken(problem: str) -> ModelError:
    return ModelError(f"anthropic: the stream is invalid: {problem}", retryable=True)
