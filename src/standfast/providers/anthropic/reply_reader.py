"""Reads a reply of the Messages API as it is streamed.

Theory of operation
-------------------
A reply is a list of blocks: text, thinking, tool calls. A block is started, grows by deltas and is stopped;
`message_delta` says why the reply ended and `message_stop` that it did. The reader keeps the blocks by their
index and answers with what a delta brings; the whole is made of them at the end.

Rules
-----
1. A block that starts twice, or grows before its start or after its stop, means that events were lost
   or repeated: a `ModelError` that is worth another try.
2. A call is whole if its block was stopped and the reply was not cut off in it. Of one that was cut off there
   is only the text that came, which is not JSON.
3. A refused reply calls nothing.
4. Events and blocks of a kind that is not known here are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from standfast.errors import ModelError
from standfast.model.canonical import Json
from standfast.model.message import Reasoning, RequestedCall
from standfast.model.usage import Usage
from standfast.ports.model_provider import ModelDelta, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.anthropic.complaints import ErrorBody, broke_off
from standfast.providers.http.dialect import ServerEvent

_STOPS: Final = {
    "end_turn": "end",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_WHOLE: Final = ("end_turn", "tool_use", "pause_turn")
"""The reasons to stop that leave no block half done."""

_GROWS_BY: Final = {
    "text_delta": "text",
    "input_json_delta": "tool_use",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
}
_NONE: Final[tuple[ModelDelta, ...]] = ()


class _Thought(msgspec.Struct):
    thinking_tokens: int = 0


class _Tokens(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _Thought | None = None


class _Message(msgspec.Struct):
    id: str = ""
    model: str = ""
    usage: _Tokens | None = None


class _Refusal(msgspec.Struct):
    explanation: str | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: _Refusal | None = None


class _Block(msgspec.Struct):
    """What a block begins with."""

    type: str = ""
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    input: Json = None


class _Event(msgspec.Struct):
    """Any event; each kind has some of the fields."""

    type: str = ""
    index: int = -1
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: _Tokens | None = None
    error: ErrorBody | None = None
    request_id: str | None = None


class _Kind(msgspec.Struct):
    type: str = ""


_events: Final = msgspec.json.Decoder(_Event)
_kinds: Final = msgspec.json.Decoder(_Kind)
_KNOWN: Final = frozenset(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]
)


class _Growing:
    """A block that is being received."""

    __slots__ = ("pieces", "signature", "start", "stopped")

    def __init__(self, start: _Block) -> None:
        self.start = start
        first = start.text or start.thinking
        self.pieces: list[str] = [first] if first else []
        self.signature = start.signature
        self.stopped = False


class MessagesReader:
    """A `ReplyReader` of one reply. `origin` is written into its reasoning."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._blocks: dict[int, _Growing] = {}
        self._message: _Message | None = None
        self._tokens = _Tokens()
        self._stop_reason: str | None = None
        self._refusal: str | None = None

    def feed(self, event: ServerEvent, /) -> Sequence[ModelDelta]:
        found = _decoded(event.data)
        if found is None:
            return _NONE
        if found.type == "content_block_delta":
            return self._grow(found)
        return self._told(found)

    def _told(self, event: _Event) -> Sequence[ModelDelta]:
        match event.type:
            case "content_block_start":
                return self._start(event)
            case "content_block_stop":
                self._block(event.index).stopped = True
            case "message_start":
                self._begin(event)
            case "message_delta":
                self._ending(event)
            case "message_stop":
                return self._end()
            case "error":
                raise broke_off(event.error or ErrorBody(), event.request_id)
        return _NONE

    def _begin(self, event: _Event) -> None:
        if self._message is not None:
            raise _confused("the reply began twice")
        self._message = event.message or _Message()
        self._count(self._message.usage)

    def _start(self, event: _Event) -> Sequence[ModelDelta]:
        block = event.content_block
        if block is None or event.index < 0 or self._message is None:
            raise _confused("a block began outside of a reply")
        if event.index in self._blocks:
            raise _confused(f"block {event.index} began twice")
        self._blocks[event.index] = _Growing(block)
        if block.text and block.type == "text":
            return (TextArrived(block.text),)
        return (ReasoningArrived(block.thinking),) if block.thinking else _NONE

    def _grow(self, event: _Event) -> Sequence[ModelDelta]:
        delta = event.delta
        if delta is None or (wanted := _GROWS_BY.get(delta.type)) is None:
            return _NONE
        block = self._blocks.get(event.index)
        if block is None or block.stopped:
            raise _confused(f"a piece of block {event.index} came before its start or after its end")
        kind = block.start.type
        if kind == wanted == "text":
            block.pieces.append(delta.text)
            return (TextArrived(delta.text),) if delta.text else _NONE
        return self._grow_rarer(block, delta) if kind == wanted else _mismatched(kind, wanted)

    def _grow_rarer(self, block: _Growing, delta: _Delta) -> Sequence[ModelDelta]:
        if delta.type == "input_json_delta":
            block.pieces.append(delta.partial_json)
        elif delta.type == "signature_delta":
            block.signature = delta.signature  # it comes whole: twice is the same one again
        elif delta.thinking:
            block.pieces.append(delta.thinking)
            return (ReasoningArrived(delta.thinking),)
        return _NONE

    def _block(self, index: int) -> _Growing:
        if index not in self._blocks:
            raise _confused(f"block {index} ended without a start")
        return self._blocks[index]

    def _ending(self, event: _Event) -> None:
        self._count(event.usage)
        if event.delta is None:
            return
        self._stop_reason = event.delta.stop_reason or self._stop_reason
        if event.delta.stop_details is not None:
            self._refusal = event.delta.stop_details.explanation

    def _count(self, told: _Tokens | None) -> None:
        """Take in what a count says; later ones are of the whole reply, and may leave figures out."""
        if told is None:
            return
        for name in _Tokens.__struct_fields__:
            if (value := getattr(told, name)) is not None:
                setattr(self._tokens, name, value)

    def _end(self) -> Sequence[ModelDelta]:
        reason, message = self._stop_reason, self._message
        if message is None or reason is None:
            raise _confused("the reply ended without saying why")
        calls = self._calls(reason)
        text = "".join(piece for block in self._of("text") for piece in block.pieces)
        words = self._refusal if reason == "refusal" and self._refusal and not text.strip() else None
        ended = ReplyEnded(
            text=words or text,
            calls=calls,
            usage=self._usage(),
            model=message.model,
            stop_reason="tool_calls" if calls and reason == "end_turn" else _STOPS.get(reason, reason),
            reasoning=self._reasoning(),
            response_id=message.id,
        )
        return (ended,) if words is None else (TextArrived(words), ended)

    def _of(self, kind: str) -> list[_Growing]:
        return [block for block in self._blocks.values() if block.start.type == kind]

    def _calls(self, reason: str) -> tuple[RequestedCall, ...]:
        if reason == "refusal":
            return ()
        found = self._of("tool_use")
        whole = reason in _WHOLE
        if whole and any(not block.stopped for block in found):
            raise _confused("the reply ended in the middle of a call")
        if reason == "tool_use" and not found:
            raise _confused("the reply ended for a call that did not come")
        last = None if whole or not self._blocks else self._blocks[next(reversed(self._blocks))]
        return tuple(_call(block, cut=block is last or not block.stopped) for block in found)

    def _reasoning(self) -> tuple[Reasoning, ...]:
        found = (_reasoning_of(block, self._origin) for block in self._blocks.values())
        return tuple(thought for thought in found if thought is not None)

    def _usage(self) -> Usage:
        tokens, details = self._tokens, self._tokens.output_tokens_details
        output = tokens.output_tokens or 0
        return Usage(
            input=tokens.input_tokens or 0,
            cache_read=tokens.cache_read_input_tokens or 0,
            cache_write=tokens.cache_creation_input_tokens or 0,
            output=output,
            reasoning=0 if details is None else min(details.thinking_tokens, output),
            calls=1,
        )


def _decoded(data: bytes) -> _Event | None:
    """The event; None if it is of a kind that is not known here and does not fit what is."""
    try:
        return _events.decode(data)
    except msgspec.ValidationError as error:
        if _kind_of(data) not in _KNOWN:
            return None
        raise _confused(f"an event does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _confused(f"an event is not JSON: {error}") from None


def _kind_of(data: bytes) -> str:
    try:
        return _kinds.decode(data).type
    except msgspec.ValidationError:
        return ""


def _call(block: _Growing, *, cut: bool) -> RequestedCall:
    """A call with the arguments that came; some servers give them all with the start."""
    start = block.start
    arguments = "".join(block.pieces)
    if not arguments and start.input:
        arguments = msgspec.json.encode(start.input).decode()
    if not arguments and not cut:
        arguments = "{}"
    return RequestedCall(name=start.name, arguments=arguments, provider_id=start.id)


def _reasoning_of(block: _Growing, origin: str) -> Reasoning | None:
    """What was thought, to be sent back if the vendor signed it."""
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


def _mismatched(kind: str, wanted: str) -> Sequence[ModelDelta]:
    """A piece that does not fit its block: lost events, unless the block is not one of ours."""
    if kind in _GROWS_BY.values():
        raise _confused(f"a piece of {wanted} came for a block of {kind}")
    return _NONE


def _confused(problem: str) -> ModelError:
    return ModelError(f"anthropic: the stream makes no sense: {problem}", retryable=True)
