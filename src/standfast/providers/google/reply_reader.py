"""Reads Gemini's stream of chunks into deltas.

Theory of operation
-------------------
Every event is a whole response object with what is new: pieces of text, thoughts, and calls, each of which is
whole in its part. There is no event that says "done": the reply ends with the chunk that has a finish reason,
and the stream with the connection. The tokens are counted up in every chunk, and the last one has them all.

Rules
-----
1. The chunk with the finish reason ends the reply at once, so that a connection that is left open holds up
   nobody. Tokens that would only be told after it are not waited for.
2. A call without an id gets one from its place: the number of the model call and its number in the reply.
3. What a filter stopped is not acted on: its calls are left out, and the text says what was blocked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from standfast.errors import ModelError
from standfast.model.message import RequestedCall
from standfast.model.usage import Usage
from standfast.ports.model_provider import ModelDelta, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.google.chunk import (
    Candidate,
    Chunk,
    FunctionCall,
    Part,
    PromptFeedback,
    UsageMetadata,
    decode_chunk,
)
from standfast.providers.google.complaint import error_in_stream
from standfast.providers.google.signatures import LayoutWriter
from standfast.providers.http.dialect import Asked, ServerEvent

_FILTERED: Final = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    }
)
_BROKEN: Final = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})
_UNFINISHED: Final = (None, "", "FINISH_REASON_UNSPECIFIED")


class GeminiReader:
    """Reads one reply."""

    __slots__ = (
        "_calls",
        "_ended",
        "_layout",
        "_length",
        "_model",
        "_number",
        "_origin",
        "_response_id",
        "_text",
        "_thought_length",
        "_thoughts",
        "_usage",
    )

    def __init__(self, asked: Asked) -> None:
        self._origin, self._model, self._number = asked.origin, asked.model, asked.request.call_number
        self._response_id = ""
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._length = self._thought_length = 0
        self._calls: dict[str, RequestedCall] = {}
        self._layout = LayoutWriter()
        self._usage: UsageMetadata | None = None
        self._ended = False

    def feed(self, event: ServerEvent, /) -> Sequence[ModelDelta]:
        if self._ended:
            return ()
        chunk = _chunk_in(event)
        if chunk.error is not None:
            raise error_in_stream(chunk.error)
        if chunk.usage_metadata is not None:
            self._usage = chunk.usage_metadata
        self._model = chunk.model_version or self._model
        self._response_id = chunk.response_id or self._response_id
        for candidate in chunk.candidates or ():
            if not candidate.index:
                return self._candidate(candidate)
        feedback = chunk.prompt_feedback
        return self._blocked(feedback) if feedback is not None and feedback.block_reason else ()

    def _candidate(self, candidate: Candidate) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        content = candidate.content
        for part in (content.parts or ()) if content is not None else ():
            if part.function_call is not None:
                self._call(part.function_call, part.thought_signature)
            elif part.text is not None:
                deltas += self._words(part, part.text)
            elif part.thought_signature is not None and part.is_bare():
                self._layout.text(self._length, self._length, part.thought_signature)
        if candidate.finish_reason not in _UNFINISHED:
            deltas += self._finished(candidate, str(candidate.finish_reason))
        return deltas

    def _words(self, part: Part, text: str) -> Sequence[ModelDelta]:
        """A piece of text or of thought."""
        signature = part.thought_signature
        if part.thought:
            start = self._thought_length
            self._thoughts.append(text)
            self._thought_length = start + len(text)
            if signature is not None:
                self._layout.thought(start, self._thought_length, self._length, signature)
            return (ReasoningArrived(text),) if text else ()
        start = self._length
        self._text.append(text)
        self._length = start + len(text)
        if signature is not None:
            self._layout.text(start, self._length, signature)
        return (TextArrived(text),) if text else ()

    def _call(self, call: FunctionCall, signature: str | None) -> None:
        if call.will_continue:
            raise ModelError("the model sends a call in pieces, which is not supported")
        if not call.name:
            raise _senseless("a call has no name")
        call_id = call.id or f"call_{self._number}_{len(self._calls) + 1}"
        if call_id in self._calls:
            raise _senseless(f"two calls have the id {call_id[:80]!r}")
        self._calls[call_id] = RequestedCall(name=call.name, arguments=call.arguments(), provider_id=call_id)
        self._layout.call(call_id, self._length, signature)

    def _finished(self, candidate: Candidate, reason: str) -> list[ModelDelta]:
        if reason in _BROKEN:
            why = f": {candidate.finish_message[:500]}" if candidate.finish_message else ""
            raise ModelError(f"the model's reply came to nothing ({reason}){why}", retryable=True)
        if reason in _FILTERED:
            return self._filtered(candidate.finish_message or f"The reply was blocked: {reason}.")
        if reason == "STOP":
            return [self._end("tool_calls" if self._calls else "end")]
        return [self._end("length" if reason == "MAX_TOKENS" else reason)]

    def _filtered(self, words: str) -> list[ModelDelta]:
        self._calls.clear()
        return [*([] if self._length else self._said(words)), self._end("content_filter")]

    def _blocked(self, feedback: PromptFeedback) -> list[ModelDelta]:
        words = feedback.block_reason_message or f"The prompt was blocked: {feedback.block_reason}."
        self._calls.clear()
        return [*([] if self._length else self._said(words)), self._end("refusal")]

    def _said(self, words: str) -> Sequence[ModelDelta]:
        """Words that stand for a text that is not there."""
        return self._words(Part(), words)

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


def _chunk_in(event: ServerEvent) -> Chunk:
    try:
        return decode_chunk(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if event.data.strip() in (b"", b"[DONE]"):
            return Chunk()
        raise _senseless(str(error)) from None


def _senseless(what: str) -> ModelError:
    return ModelError(f"the model's stream makes no sense: {what}", retryable=True)
