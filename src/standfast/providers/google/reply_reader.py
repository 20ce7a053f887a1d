"""Reader of Gemini's stream of chunks.

Every event is a whole response object with the new parts: text, thoughts, and calls, each complete in its
part. No event says "done": the reply ends with the chunk that has a finish reason, and the stream with the
connection. Every chunk has the token counts so far.

Gemini signs individual parts of a reply: a call, a piece of text, a thought, or an otherwise empty part. Our
messages have one text and a list of calls, so the reader stores a `PartLayout` in `Reasoning.opaque`: the
parts in order, each with its range of the text or of the thoughts, or the id of its call, and its signature.
`request` restores the parts from the layout and the message.

Rules
-----
1. The chunk with the finish reason ends the reply immediately, so that an open connection delays nothing.
   Counts that might follow it are not awaited.
2. A call without an id gets one from its position: the number of the model call and its number in the reply.
3. If a filter stopped the reply, its calls are dropped and the text says what was blocked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from standfast.errors import ModelError
from standfast.model.canonical import digest_bytes
from standfast.model.limits import Usage
from standfast.model.message import Reasoning, RequestedCall
from standfast.ports.model_provider import ModelDelta, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.google.errors import stream_error
from standfast.providers.http.dialect import PreparedRequest, ServerEvent

_FILTERED: Final = frozenset((
    "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY",
    "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
))  # fmt: skip
_BROKEN: Final = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})
_UNFINISHED: Final = (None, "", "FINISH_REASON_UNSPECIFIED")
_ABSENT: Final = msgspec.Raw()


def _is_there(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null")


class _Wire(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A value of the stream, where absent and null mean the same."""


class _FunctionCall(_Wire, frozen=True):
    """A complete call. Its arguments are kept as the text that arrived."""

    name: str | None = None
    id: str | None = None
    args: msgspec.Raw = _ABSENT
    will_continue: bool | None = None


class _Part(_Wire, frozen=True):
    """A piece of text, a thought, or a call; the signature belongs to this part."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None
    inline_data: msgspec.Raw = _ABSENT
    file_data: msgspec.Raw = _ABSENT
    executable_code: msgspec.Raw = _ABSENT
    code_execution_result: msgspec.Raw = _ABSENT
    tool_call: msgspec.Raw = _ABSENT
    tool_response: msgspec.Raw = _ABSENT

    def is_bare(self) -> bool:
        """Return whether the part has no content that the reader ignores."""
        others = (self.inline_data, self.file_data, self.executable_code, self.code_execution_result)
        return not any(map(_is_there, (*others, self.tool_call, self.tool_response)))


class _Content(_Wire, frozen=True):
    parts: tuple[_Part, ...] | None = None


class _Candidate(_Wire, frozen=True):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int | None = None


class _PromptFeedback(_Wire, frozen=True):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _UsageMetadata(_Wire, frozen=True):
    """The tokens of the reply up to this chunk."""

    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None

    def usage(self) -> Usage:
        """Convert to `Usage`: Gemini's prompt includes cached tokens, its answer excludes thoughts."""
        cached, thoughts = self.cached_content_token_count or 0, self.thoughts_token_count or 0
        prompt = (self.prompt_token_count or 0) + (self.tool_use_prompt_token_count or 0)
        return Usage(
            input=max(0, prompt - cached),
            cache_read=cached,
            output=(self.candidates_token_count or 0) + thoughts,
            reasoning=thoughts,
            calls=1,
        )


class _Chunk(_Wire, frozen=True):
    candidates: tuple[_Candidate, ...] | None = None
    prompt_feedback: _PromptFeedback | None = None
    usage_metadata: _UsageMetadata | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: Any = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


class GoogleReplyReader:
    """The `ReplyReader` of one reply."""

    __slots__ = (
        "_calls", "_ended", "_layout", "_length", "_model", "_number", "_origin", "_response_id", "_text",
        "_thought_length", "_thoughts", "_usage",
    )  # fmt: skip

    def __init__(self, prepared: PreparedRequest) -> None:
        self._origin, self._model = prepared.origin, prepared.model
        self._number = prepared.request.call_number
        self._response_id = ""
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._length = self._thought_length = 0
        self._calls: dict[str, RequestedCall] = {}
        self._layout = PartLayoutWriter()
        self._usage: _UsageMetadata | None = None
        self._ended = False

    def feed(self, event: ServerEvent, /) -> Sequence[ModelDelta]:
        if self._ended:
            return ()
        try:
            chunk = _decode_chunk(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if event.data.strip() in (b"", b"[DONE]"):
                return ()
            raise _broken(str(error)) from None
        if chunk.error is not None:
            raise stream_error(chunk.error)
        if chunk.usage_metadata is not None:
            self._usage = chunk.usage_metadata
        self._model = chunk.model_version or self._model
        self._response_id = chunk.response_id or self._response_id
        for candidate in chunk.candidates or ():
            if not candidate.index:
                return self._candidate(candidate)
        feedback = chunk.prompt_feedback
        if feedback is None or not feedback.block_reason:
            return ()
        message = feedback.block_reason_message or f"The prompt was blocked: {feedback.block_reason}."
        return self._blocked(message, "refusal")

    def _candidate(self, candidate: _Candidate) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        content = candidate.content
        for part in (content.parts or ()) if content is not None else ():
            if part.function_call is not None:
                self._call(part.function_call, part.thought_signature)
            elif part.text is not None:
                deltas += self._words(part, part.text)
            elif part.thought_signature is not None and part.is_bare():
                place = PartPlace(
                    of="text", start=self._length, end=self._length, signature=part.thought_signature
                )
                self._layout.add(self._length, place)
        reason, message = candidate.finish_reason, candidate.finish_message
        if reason is None or reason in _UNFINISHED:
            return deltas
        if reason in _BROKEN:
            why = f": {message[:500]}" if message else ""
            raise ModelError(f"the model returned no reply ({reason}){why}", retryable=True)
        if reason in _FILTERED:
            return [*deltas, *self._blocked(message or f"The reply was blocked: {reason}.", "content_filter")]
        if reason == "STOP":
            return [*deltas, self._end("tool_calls" if self._calls else "end")]
        return [*deltas, self._end("length" if reason == "MAX_TOKENS" else reason)]

    def _words(self, part: _Part, text: str) -> Sequence[ModelDelta]:
        """Add a piece of text or of thought."""
        signature, before = part.thought_signature, self._length
        if part.thought:
            start = self._thought_length
            self._thoughts.append(text)
            end = self._thought_length = start + len(text)
        else:
            start = before
            self._text.append(text)
            end = self._length = start + len(text)
        if signature is not None:
            of: Literal["thought", "text"] = "thought" if part.thought else "text"
            self._layout.add(before, PartPlace(of=of, start=start, end=end, signature=signature))
        if not text:
            return ()
        return (ReasoningArrived(text) if part.thought else TextArrived(text),)

    def _call(self, call: _FunctionCall, signature: str | None) -> None:
        if call.will_continue:
            raise ModelError("the model streams a call in pieces, which is not supported")
        if not call.name:
            raise _broken("a call has no name")
        call_id = call.id or f"call_{self._number}_{len(self._calls) + 1}"
        if call_id in self._calls:
            raise _broken(f"two calls have the id {call_id[:80]!r}")
        arguments = bytes(call.args).decode() if _is_there(call.args) else "{}"
        self._calls[call_id] = RequestedCall(name=call.name, arguments=arguments, provider_id=call_id)
        self._layout.add(self._length, PartPlace(of="call", call=call_id, signature=signature))

    def _blocked(self, message: str, stop_reason: str) -> list[ModelDelta]:
        """End the reply without its calls; *message* replaces an empty text."""
        self._calls.clear()
        words = () if self._length else self._words(_Part(), message)
        return [*words, self._end(stop_reason)]

    def _end(self, stop_reason: str) -> ReplyEnded:
        self._ended = True
        text, thoughts = "".join(self._text), "".join(self._thoughts)
        return ReplyEnded(
            text=text,
            calls=tuple(self._calls.values()),
            usage=Usage(calls=1) if self._usage is None else self._usage.usage(),
            model=self._model,
            stop_reason=stop_reason,
            reasoning=self._layout.reasoning(self._origin, text, thoughts),
            response_id=self._response_id,
        )


def _broken(problem: str) -> ModelError:
    return ModelError(f"the model's stream is invalid: {problem}", retryable=True)


# The layout of a reply's parts, which is stored with the reply


class PartPlace(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One part of a reply: the text or the thoughts from `start` to `end`, or a call by its id."""

    of: Literal["text", "thought", "call"]
    start: int = 0
    end: int = 0
    call: str = ""
    signature: str | None = None


class PartLayout(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The parts of a reply, and the digest of the text and thoughts that they are cut from."""

    digest: str
    parts: list[PartPlace]


class PartLayoutWriter:
    """Records the parts of a reply as they arrive; unsigned text only once another part follows."""

    __slots__ = ("_places", "_recorded", "_signed")

    def __init__(self) -> None:
        self._places: list[PartPlace] = []
        self._recorded = 0
        self._signed = False

    def add(self, text_end: int, place: PartPlace) -> None:
        """Record the unsigned text up to *text_end*, then *place*."""
        self._record_text(text_end)
        self._signed = self._signed or place.signature is not None
        self._places.append(place)
        if place.of == "text":
            self._recorded = place.end

    def reasoning(self, origin: str, text: str, thoughts: str) -> tuple[Reasoning, ...]:
        """Return the reasoning to store, () if the reply has neither thoughts nor signatures."""
        if not self._signed:
            return (Reasoning(origin=origin, text=thoughts),) if thoughts else ()
        self._record_text(len(text))
        layout = PartLayout(digest=text_digest(text, thoughts), parts=self._places)
        return (Reasoning(origin=origin, text=thoughts, opaque=msgspec.to_builtins(layout)),)

    def _record_text(self, end: int) -> None:
        if end > self._recorded:
            self._places.append(PartPlace(of="text", start=self._recorded, end=end))
            self._recorded = end


def text_digest(text: str, thoughts: str) -> str:
    return digest_bytes(f"{len(text)} {text}{thoughts}".encode(errors="surrogatepass"))
