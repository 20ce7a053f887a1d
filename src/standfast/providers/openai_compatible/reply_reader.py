"""Reader of the chunks of a streamed chat completion.

The `finish_reason` ends the text. The token count may follow: in the same chunk, in a later one, or not at
all. So the reply ends with the first of: a count in that chunk or a later one, `[DONE]`, the end of the
stream. The end of the stream is not an event: the reader returns `ReplyFinished` with the `finish_reason`,
and the model takes the reply from it if nothing more arrives.

Servers put reasoning in four places: `reasoning_content` (DeepSeek, vLLM), `reasoning` (OpenRouter, Groq,
Ollama, vLLM), thinking parts of the content (Mistral), and `reasoning_details` (OpenRouter), which hold
signatures and encrypted reasoning. `Reasoning.opaque` stores which it was, and the details.

A piece of a call belongs to the call with its index. Some servers send whole calls without an index, or all
with index 0: then another name with another id, after complete arguments, begins another call. Some servers
repeat id and name in every piece: that begins nothing.

Rules
-----
1. Without a `finish_reason` there is no reply, not even after `[DONE]`, which a failing server also sends.
2. Text or calls after the `finish_reason`, and pieces that match no call or two, mean that events were mixed
   up: a retryable failure. Better no call than one that the model did not make.
3. Calls are returned when the reply has ended. A call without arguments has `{}`; one that the end of the
   reply cut off has the text that arrived.
4. Every field of a chunk may be missing or null, and fields that are not read are not declared: no two
   servers send the same.
5. A chunk of text costs one decode and one list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from standfast.errors import ModelError
from standfast.model.canonical import Json
from standfast.model.limits import Usage
from standfast.model.message import Reasoning, RequestedCall
from standfast.ports.model_provider import ModelDelta, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.http.content import json_text
from standfast.providers.http.dialect import PreparedRequest, ServerEvent
from standfast.providers.openai_compatible.errors import stream_error

REASONING_CONTENT: Final = "reasoning_content"
REASONING: Final = "reasoning"
REASONING_DETAILS: Final = "reasoning_details"
THINKING: Final = "thinking"

_DETAIL_TEXTS: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The types of details that arrive in pieces, and their fields to concatenate."""
_COMPLETED: Final = frozenset(("stop", "eos", "eos_token", "end_turn"))
_CALLED: Final = frozenset(("tool_calls", "function_call", "tool_use"))
_CUT: Final = frozenset(("length", "max_tokens", "model_length"))
_FAILED: Final = frozenset(("error", "abort", "insufficient_system_resource"))
_WHOLE_REPLY: Final = frozenset(("end", "tool_calls", "stop_sequence"))


class _FunctionDelta(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: str | dict[str, Json] | None = None


class _CallDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a tool call, or a whole one."""

    index: int | None = None
    id: str | None = None
    function: _FunctionDelta | None = None


class _Delta(msgspec.Struct, frozen=True, gc=False):
    content: str | list[Json] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Json] | None = None
    refusal: str | None = None
    tool_calls: list[_CallDelta] | None = None
    function_call: _FunctionDelta | None = None


class _Choice(msgspec.Struct, frozen=True, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None
    index: int = 0
    stop_reason: str | int | None = None


class _InputTokens(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputTokens(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class _Tokens(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _InputTokens | None = None
    completion_tokens_details: _OutputTokens | None = None
    prompt_cache_hit_tokens: int | None = None


class _GroqExtra(msgspec.Struct, frozen=True, gc=False):
    usage: _Tokens | None = None


class _Chunk(msgspec.Struct, frozen=True, gc=False):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Tokens | None = None
    error: Json = None
    object: str | None = None
    x_groq: _GroqExtra | None = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


class ReplyFinished(TextArrived, frozen=True):
    """An empty text: the model has finished. `end` returns the reply without further waiting."""

    end: Callable[[], Sequence[ModelDelta]]


class OpenAICompatibleReplyReader:
    """The `ReplyReader` of one reply."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._origin = prepared.origin
        self._stops = prepared.settings.stop
        self._id = ""
        self._model = ""
        self._texts: list[str] = []
        self._refused = False
        self._reasoning = _ReasoningBuffer()
        self._calls = _CallBuffer(prepared.request.call_number)
        self._requested: tuple[RequestedCall, ...] = ()
        self._tokens: _Tokens | None = None
        self._stop_reason = ""
        self._ended = False
        self._mixed_up = False

    def feed(self, event: ServerEvent, /) -> Sequence[ModelDelta]:
        data = event.data
        if self._ended or not data:
            return ()
        if data == b"[DONE]":
            return self.end()
        if event.name == "error":
            raise stream_error(data)
        try:
            chunk = _decode_chunk(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            shown = data[:120].decode(errors="replace")
            problem = f"the server sent an invalid event: {shown}"
            raise ModelError(problem, retryable=True) from None
        if chunk.error is not None or chunk.object == "error":
            raise stream_error(data)
        if not self._id:
            self._id, self._model = chunk.id or "", chunk.model or ""
        deltas: list[ModelDelta] = []
        if chunk.choices and not (choice := chunk.choices[0]).index:
            if choice.delta is not None:
                deltas = self._delta(choice.delta)
            if choice.finish_reason and not self._stop_reason:
                self._stop_reason = self._convert_reason(choice, choice.finish_reason)
                self._requested = self._calls.ended(cut_off=self._stop_reason not in _WHOLE_REPLY)
                deltas.append(ReplyFinished("", self.end))
        tokens = chunk.usage
        if tokens is None and chunk.x_groq is not None:
            tokens = chunk.x_groq.usage
        if tokens is not None and (tokens.prompt_tokens or tokens.completion_tokens):
            self._tokens = tokens
            if self._stop_reason:
                deltas.append(self._reply())
        return deltas

    def end(self) -> Sequence[ModelDelta]:
        """Return the reply if the model has finished; raise `ModelError` if the stream broke off."""
        if self._ended:
            return ()
        if not self._stop_reason:
            raise ModelError("the server ended the reply without a finish_reason", retryable=True)
        if self._mixed_up:
            raise _after_the_end()
        return [self._reply()]

    def _delta(self, delta: _Delta) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        content = delta.content
        if delta.reasoning is not None or delta.reasoning_content is not None or delta.reasoning_details:
            thought = self._reasoning.add(delta)
            if thought:
                deltas.append(ReasoningArrived(thought))
        if content:
            if content.__class__ is str:
                self._add_text(content, deltas)
            else:
                self._add_parts(content, deltas)
        if delta.refusal:
            self._refused = True
            self._add_text(delta.refusal, deltas)
        if delta.tool_calls or delta.function_call is not None:
            self._check_order()
            for piece in delta.tool_calls or ():
                self._calls.add(piece)
            if delta.function_call is not None:  # the single call of older servers
                self._calls.add(_CallDelta(index=-1, function=delta.function_call))
        return deltas

    def _add_text(self, text: str, deltas: list[ModelDelta]) -> None:
        self._check_order()
        self._texts.append(text)
        deltas.append(TextArrived(text))

    def _add_parts(self, parts: Sequence[Json], deltas: list[ModelDelta]) -> None:
        """Add content that is a list: text, refusals, and thinking."""
        for part in parts:
            if not isinstance(part, dict):
                continue
            if part.get("type") == THINKING:
                thought = inner = part.get(THINKING)
                if not isinstance(inner, str):
                    pieces: Sequence[Json] = inner if isinstance(inner, list) else ()
                    thought = "".join(str(it.get("text") or "") for it in pieces if isinstance(it, dict))
                if thought:
                    self._reasoning.add_thinking(thought)
                    deltas.append(ReasoningArrived(thought))
            elif text := part.get("text") or part.get("refusal"):
                self._refused = self._refused or "text" not in part
                self._add_text(str(text), deltas)

    def _check_order(self) -> None:
        if self._stop_reason:
            self._mixed_up = True
            raise _after_the_end()

    def _convert_reason(self, choice: _Choice, reason: str) -> str:
        """Return the port's term for why the model stopped, or the server's own."""
        if reason in _FAILED:
            raise ModelError(f"the server aborted the reply: {reason}", retryable=True)
        if reason in _CUT:
            return "length"
        if self._refused:
            return "refusal"
        if reason not in _COMPLETED and reason not in _CALLED:
            return reason
        if self._calls:
            return "tool_calls"
        return "stop_sequence" if choice.stop_reason in self._stops else "end"

    def _reply(self) -> ReplyEnded:
        self._ended = True
        return ReplyEnded(
            text="".join(self._texts),
            calls=self._requested,
            usage=_usage(self._tokens),
            model=self._model,
            stop_reason=self._stop_reason,
            reasoning=self._reasoning.ended(self._origin),
            response_id=self._id,
        )


def _after_the_end() -> ModelError:
    return ModelError("the server's reply continues after its finish_reason", retryable=True)


def _usage(tokens: _Tokens | None) -> Usage:
    """Convert a server's counts; without counts, it is still one call."""
    if tokens is None:
        return Usage(calls=1)
    details = tokens.prompt_tokens_details or _InputTokens()
    prompt, written = _count(tokens.prompt_tokens), _count(tokens.completion_tokens)
    read = min(prompt, _count(details.cached_tokens) or _count(tokens.prompt_cache_hit_tokens))
    cached = min(prompt - read, _count(details.cache_write_tokens))
    reasoning = _count((tokens.completion_tokens_details or _OutputTokens()).reasoning_tokens)
    # Some servers exclude reasoning from the completion: the total reveals it.
    is_extra = reasoning > written or _count(tokens.total_tokens) == prompt + written + reasoning
    return Usage(
        input=prompt - read - cached,
        cache_read=read,
        cache_write=cached,
        output=written + reasoning if is_extra else written,
        reasoning=reasoning,
        calls=1,
    )


def _count(number: int | None) -> int:
    return max(0, number or 0)


# Reasoning


class _ReasoningBuffer:
    """The reasoning of one reply."""

    __slots__ = ("_details", "_field", "_texts")

    def __init__(self) -> None:
        self._field = ""
        self._texts: list[str] = []
        self._details: list[dict[str, Json]] = []

    def add(self, delta: _Delta) -> str:
        """Add the reasoning of *delta* and return its text, once if the server repeats it in two fields."""
        if delta.reasoning_content is not None:
            self._field, text = REASONING_CONTENT, delta.reasoning_content
        else:
            self._field = REASONING if delta.reasoning is not None else self._field
            text = delta.reasoning or ""
        if delta.reasoning_details:
            details = "".join(map(self._add_detail, delta.reasoning_details))
            text = text or details
        if text:
            self._texts.append(text)
        return text

    def add_thinking(self, text: str) -> None:
        self._field = THINKING
        self._texts.append(text)

    def ended(self, origin: str) -> tuple[Reasoning, ...]:
        """Return the reasoning, with the data needed to send it back."""
        if not self._field and not self._details:
            return ()
        opaque: Json = {REASONING_DETAILS: self._details} if self._details else {"field": self._field}
        return (Reasoning(origin=origin, text="".join(self._texts), opaque=opaque),)

    def _add_detail(self, detail: Json) -> str:
        """Store a detail, merged into the previous one if it continues it; return its text."""
        if not isinstance(detail, dict):
            return ""
        field = _DETAIL_TEXTS.get(str(detail.get("type")), "")
        text = detail.get(field)
        last: dict[str, Json] = self._details[-1] if self._details else {"signature": True}
        is_same = all(last.get(name) == detail.get(name) for name in ("type", "index"))
        if field and is_same and not last.get("signature"):
            known = {name: value for name, value in detail.items() if value is not None}
            last |= known | {field: f"{last.get(field) or ''}{text or ''}"}
        else:
            self._details.append(dict(detail))
        return text if isinstance(text, str) else ""


# Calls


class _Call:
    """A call that is still arriving."""

    __slots__ = ("id", "name", "pieces")

    def __init__(self, name: str, id: str) -> None:
        self.name = name
        self.id = id
        self.pieces: list[str] = []

    def is_complete(self) -> bool:
        """Return whether the arguments are a JSON object, so that nothing can follow."""
        text = "".join(self.pieces)
        if not text.rstrip().endswith("}"):
            return False
        try:
            return isinstance(msgspec.json.decode(text), dict)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return False


class _CallBuffer:
    """The calls of one reply. `call_number` goes into the ids of calls that have none."""

    def __init__(self, call_number: int) -> None:
        self._call_number = call_number
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: _CallDelta) -> None:
        """Add a piece to its call, or begin a call with it."""
        function = delta.function or _FunctionDelta()
        call = self._find(delta, function.name)
        if call is None:
            call = _Call(function.name or "", delta.id or "")
            self._calls.append(call)
            if delta.index is not None:
                self._by_index[delta.index] = call
        elif function.name and function.name != call.name:
            if call.name or any(call.pieces):
                raise _mixed_up(f"a call of {call.name!r} continues as one of {function.name!r}")
            call.name = function.name
        if function.arguments is not None:
            given = function.arguments
            call.pieces.append(given if isinstance(given, str) else json_text(given))

    def _find(self, delta: _CallDelta, name: str | None) -> _Call | None:
        """Return the call that a piece belongs to, None if it begins one."""
        if delta.index is not None:
            call = self._by_index.get(delta.index)
        else:
            call = next((one for one in self._calls if delta.id and one.id == delta.id), None)
            if call is None and not name and self._calls:
                call = self._calls[-1]
        if call is None or not name or (delta.id and delta.id == call.id):
            return call
        if call.is_complete():
            return None
        if delta.id and call.id and any(call.pieces):
            raise _mixed_up("a call begins in the middle of another")
        return call

    def ended(self, *, cut_off: bool) -> tuple[RequestedCall, ...]:
        """Return all calls. If the end of the reply cut it off, the last may be incomplete."""
        ids: set[str] = set()
        found: list[RequestedCall] = []
        for place, call in enumerate(self._calls, 1):
            is_cut = cut_off and call is self._calls[-1]
            if not call.name:
                if is_cut:
                    continue
                raise _mixed_up("a call has arguments and no name")
            text = "".join(call.pieces)
            if "}{" in text:
                with suppress(ValueError, RecursionError):
                    _, end = json.JSONDecoder().raw_decode(text.lstrip())
                    if text.lstrip()[end:].lstrip().startswith("{"):  # duplicated pieces
                        raise _mixed_up("the arguments of a call continue after their end")
            provider_id = call.id if call.id and call.id not in ids else f"call_{self._call_number}_{place}"
            ids.add(provider_id)
            arguments = "{}" if not is_cut and not text.strip() else text
            found.append(RequestedCall(name=call.name, arguments=arguments, provider_id=provider_id))
        return tuple(found)


def _mixed_up(problem: str) -> ModelError:
    return ModelError(f"the server's reply is invalid: {problem}", retryable=True)
