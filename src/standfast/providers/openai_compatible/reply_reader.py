"""Makes deltas of the chunks of a chat completion.

Theory of operation
-------------------
The `finish_reason` ends what the model says. What may still come is the count of tokens: with it, in a chunk
behind it, or not at all. So the reply ends with the first of: a count in the same chunk or a later one,
`[DONE]`, the end of the stream. The end of the stream is no event: `Finished` goes out with the
`finish_reason`, and whoever hears it can take the reply as it is when nothing more comes.

Rules
-----
1. Without a `finish_reason` there is no reply, `[DONE]` or not: a server that fails says `[DONE]`, too.
2. Words or calls behind the `finish_reason` mean that events were mixed up: a failure, worth another try.
3. A chunk of text is one decode and one list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from standfast.errors import ModelError
from standfast.model.canonical import Json
from standfast.model.message import RequestedCall
from standfast.ports.model_provider import ModelDelta, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.http.dialect import Asked, ServerEvent
from standfast.providers.openai_compatible.calls import CallsArriving
from standfast.providers.openai_compatible.chunk import Choice, Chunk, Delta, Tokens, decode_chunk
from standfast.providers.openai_compatible.complaint import error_in_stream
from standfast.providers.openai_compatible.reasoning import ReasoningArriving, words_of_thinking
from standfast.providers.openai_compatible.usage import usage_of

_DONE: Final = b"[DONE]"
_WHOLE: Final = {"stop": "end", "eos": "end", "eos_token": "end", "end_turn": "end"}
_CALLS: Final = frozenset(("tool_calls", "function_call", "tool_use"))
_CUT: Final = {"length": "length", "max_tokens": "length", "model_length": "length"}
_WHOLE_REPLY: Final = frozenset(("end", "tool_calls", "stop_sequence"))
_FAILED: Final = frozenset(("error", "abort", "insufficient_system_resource"))


class Finished(TextArrived, frozen=True):
    """No words, but the news that the model has said all. `end` gives the reply without more waiting."""

    end: Callable[[], Sequence[ModelDelta]]


class ChatReader:
    """One reply."""

    def __init__(self, asked: Asked) -> None:
        self._origin = asked.origin
        self._stops = asked.settings.stop
        self._id = ""
        self._model = ""
        self._texts: list[str] = []
        self._refused = False
        self._reasoning = ReasoningArriving()
        self._calls = CallsArriving(asked.request.call_number)
        self._requested: tuple[RequestedCall, ...] = ()
        self._tokens: Tokens | None = None
        self._stop_reason = ""
        self._over = False
        self._mixed_up = False

    def feed(self, event: ServerEvent, /) -> Sequence[ModelDelta]:
        data = event.data
        if self._over or not data:
            return ()
        if data == _DONE:
            return self.end()
        if event.name == "error":
            raise error_in_stream(data)
        chunk = _decoded(data)
        if chunk.error is not None or chunk.object == "error":
            raise error_in_stream(data)
        if not self._id:
            self._id, self._model = chunk.id or "", chunk.model or ""
        deltas = self._heard(chunk.choices[0]) if chunk.choices else []
        return self._counted(chunk, deltas)

    def end(self) -> Sequence[ModelDelta]:
        """The reply, if the model has said all of it; else the stream broke off."""
        if self._over:
            return ()
        if not self._stop_reason:
            raise ModelError("the server ended the reply without a finish_reason", retryable=True)
        if self._mixed_up:
            raise _after_the_end()
        return [self._ended()]

    def _heard(self, choice: Choice) -> list[ModelDelta]:
        """What the one choice brings."""
        if choice.index:
            return []
        delta = choice.delta
        deltas = [] if delta is None else self._said(delta)
        if choice.finish_reason and not self._stop_reason:
            self._stop_reason = self._reason(choice)
            self._requested = self._calls.ended(cut_off=self._stop_reason not in _WHOLE_REPLY)
            deltas.append(Finished("", self.end))
        return deltas

    def _said(self, delta: Delta) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        content = delta.content
        if delta.reasoning is not None or delta.reasoning_content is not None or delta.reasoning_details:
            thought = self._reasoning.take(delta)
            if thought:
                deltas.append(ReasoningArrived(thought))
        if content:
            if content.__class__ is str:
                self._say(content, deltas)
            else:
                self._say_parts(content, deltas)
        if delta.refusal:
            self._refused = True
            self._say(delta.refusal, deltas)
        if delta.tool_calls or delta.function_call is not None:
            self._call(delta)
        return deltas

    def _say(self, text: str, deltas: list[ModelDelta]) -> None:
        self._check_order()
        self._texts.append(text)
        deltas.append(TextArrived(text))

    def _say_parts(self, parts: Sequence[Json], deltas: list[ModelDelta]) -> None:
        """Content as a list: text, refusals, and what was thought."""
        for part in parts:
            if not isinstance(part, dict):
                continue
            if part.get("type") == "thinking":
                if thought := words_of_thinking(part):
                    self._reasoning.think(thought)
                    deltas.append(ReasoningArrived(thought))
            elif text := part.get("text") or part.get("refusal"):
                self._refused = self._refused or "text" not in part
                self._say(str(text), deltas)

    def _call(self, delta: Delta) -> None:
        self._check_order()
        for piece in delta.tool_calls or ():
            self._calls.take(piece)
        if delta.function_call is not None:
            self._calls.take_function(delta.function_call)

    def _check_order(self) -> None:
        if self._stop_reason:
            self._mixed_up = True
            raise _after_the_end()

    def _reason(self, choice: Choice) -> str:
        """The port's word for why the model stopped, or the server's own."""
        said = choice.finish_reason or ""
        if said in _FAILED:
            raise ModelError(f"the server gave the reply up: {said}", retryable=True)
        if said in _CUT:
            return _CUT[said]
        if self._refused:
            return "refusal"
        if said not in _WHOLE and said not in _CALLS:
            return said
        if self._calls:
            return "tool_calls"
        return "stop_sequence" if choice.stop_reason in self._stops else "end"

    def _counted(self, chunk: Chunk, deltas: list[ModelDelta]) -> Sequence[ModelDelta]:
        """Take the count of tokens; behind the `finish_reason` it is the last that comes."""
        tokens = chunk.usage
        if tokens is None and chunk.x_groq is not None:
            tokens = chunk.x_groq.usage
        if tokens is not None and (tokens.prompt_tokens or tokens.completion_tokens):
            self._tokens = tokens
            if self._stop_reason:
                deltas.append(self._ended())
        return deltas

    def _ended(self) -> ReplyEnded:
        self._over = True
        return ReplyEnded(
            text="".join(self._texts),
            calls=self._requested,
            usage=usage_of(self._tokens),
            model=self._model,
            stop_reason=self._stop_reason,
            reasoning=self._reasoning.ended(self._origin),
            response_id=self._id,
        )


def _decoded(data: bytes, decode: Callable[[bytes], Chunk] = decode_chunk) -> Chunk:
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        shown = data[:120].decode(errors="replace")
    raise ModelError(f"the server sent an event that makes no sense: {shown}", retryable=True)


def _after_the_end() -> ModelError:
    return ModelError("the server's reply goes on after its finish_reason", retryable=True)
