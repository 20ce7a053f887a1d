"""Reader of the events of one streamed response.

A response is a list of items, numbered by `output_index`. An item begins (`output_item.added`), grows by
deltas, and is done (`output_item.done`), which repeats it whole. `response.completed` or
`response.incomplete` ends the response and repeats every item once more.

A session stores the texts of a reply as one text and its calls as a list, which loses the order of the items.
So the reader stores an outline in `Reasoning.opaque`, one entry per item: reasoning whole, a message by its
length, a call by its id. `request` never takes texts or calls from an outline: it sends those of the session.

Rules
-----
1. Deltas are for display. `done` gives the final item; if that does not continue the streamed text, the
   stream is broken, and the attempt fails with it.
2. A delta belongs to an item that has begun and is not done. Numbered events arrive in the order of their
   numbers. A violation is a retryable `ModelError`.
3. A call that is not done when the response is complete, or that the response contradicts, is never returned.
   A call that the end of an incomplete response cut off is returned as far as it arrived.
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
from standfast.providers.http.dialect import PreparedRequest, ServerEvent
from standfast.providers.openai.errors import stream_error

Deltas = Sequence[ModelDelta]

SEPARATOR: Final = "\n\n"
"""The separator between the texts of two messages of one reply."""
_STOP_REASONS: Final = {"max_output_tokens": "length"}

# The events, as far as they are read. An item is decoded once its type is known, because a field can mean
# something else in another type.


class _Kind(msgspec.Struct, frozen=True):
    type: str = ""


class _Delta(msgspec.Struct, frozen=True, gc=False):
    delta: str
    output_index: int
    sequence_number: int = 0
    summary_index: int = 0


class _ItemEvent(msgspec.Struct, frozen=True):
    output_index: int
    item: msgspec.Raw
    sequence_number: int = 0


class _ContentPart(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _MessageItem(msgspec.Struct, frozen=True):
    content: list[_ContentPart] | None = None
    phase: str | None = None

    def text(self) -> str:
        return "".join(part.text or part.refusal for part in self.content or ())


class _CallItem(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    arguments: str = ""
    status: str | None = None


class _ReasoningItem(msgspec.Struct, frozen=True):
    id: str = ""
    summary: list[dict[str, Json]] | None = None
    content: list[dict[str, Json]] | None = None
    encrypted_content: str | None = None


class _InputTokens(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputTokens(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Tokens(msgspec.Struct, frozen=True):
    """OpenAI's counts: the input includes cached tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _InputTokens | None = None
    output_tokens_details: _OutputTokens | None = None

    def usage(self) -> Usage:
        of_input = self.input_tokens_details or _InputTokens()
        of_output = self.output_tokens_details or _OutputTokens()
        read, write = of_input.cached_tokens or 0, of_input.cache_write_tokens or 0
        return Usage(
            input=max(0, self.input_tokens - read - write),
            cache_read=read,
            cache_write=write,
            output=self.output_tokens,
            reasoning=of_output.reasoning_tokens or 0,
            calls=1,
        )


class _IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str | None = None


class _Response(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: _Tokens | None = None
    incomplete_details: _IncompleteDetails | None = None
    error: Json = None


class _ResponseEvent(msgspec.Struct, frozen=True):
    response: _Response


_decode_kind: Final = msgspec.json.Decoder(_Kind).decode
_decode_delta: Final = msgspec.json.Decoder(_Delta).decode
_decode_item_event: Final = msgspec.json.Decoder(_ItemEvent).decode
_decode_response: Final = msgspec.json.Decoder(_ResponseEvent).decode
_decode_message: Final = msgspec.json.Decoder(_MessageItem).decode
_decode_call: Final = msgspec.json.Decoder(_CallItem).decode
_decode_reasoning: Final = msgspec.json.Decoder(_ReasoningItem).decode


class _Item:
    """An item that is still arriving. `part` is the number of the part that the last piece belongs to."""

    __slots__ = ("call", "done", "kind", "message", "part", "pieces", "reasoning")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done = False
        self.pieces: list[str] = []
        self.part = 0
        self.message = _MessageItem()
        self.call: _CallItem | None = None
        self.reasoning = _ReasoningItem()


class OpenAIReplyReader:
    """The `ReplyReader` of one response."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._origin = prepared.origin
        self._model = prepared.model
        self._response_id = ""
        self._items: dict[int, _Item] = {}
        self._last = 0
        self._has_text = False
        self._reasoning: list[str] = []
        self._refused = False

    def feed(self, event: ServerEvent, /) -> Deltas:
        try:
            # An event without a name has its type in its data.
            if event.name in ("", "message"):
                return (
                    () if event.data == b"[DONE]" else self._read(_decode_kind(event.data).type, event.data)
                )
            return self._read(event.name, event.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _broken(f"event {event.name or 'without a name'!r} cannot be read: {error}") from None

    def _read(self, kind: str, data: bytes) -> Deltas:
        match kind:
            case "response.output_text.delta":
                return self._on_text(data)
            case "response.function_call_arguments.delta":
                delta = _decode_delta(data)
                item = self._open(delta.output_index, delta.sequence_number, "function_call")
                item.pieces.append(delta.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._on_reasoning(data)
            case "response.refusal.delta":
                self._refused = True
                return self._on_text(data)
            case "response.output_item.added":
                event = _decode_item_event(data)
                self._check_order(event.sequence_number)
                if event.output_index in self._items:
                    raise _broken(f"item {event.output_index} started twice")
                item = _Item(_decode_kind(event.item).type)
                if item.kind == "function_call":
                    item.call = _decode_call(event.item)
                elif item.kind == "message":
                    item.message = _decode_message(event.item)
                self._items[event.output_index] = item
            case "response.output_item.done":
                return self._on_done(data)
            case "response.created":
                response = _decode_response(data).response
                self._response_id, self._model = response.id, response.model or self._model
            case "response.completed" | "response.incomplete":
                response = _decode_response(data).response
                is_complete = kind == "response.completed" and response.status != "incomplete"
                return (self._end(response, is_complete=is_complete),)
            case "response.failed":
                raise stream_error(_decode_response(data).response.error)
            case "error":
                raise stream_error(msgspec.json.decode(data))
        return ()

    def _on_text(self, data: bytes) -> Deltas:
        delta = _decode_delta(data)
        item = self._open(delta.output_index, delta.sequence_number, "message")
        text = delta.delta
        if not text:
            return ()
        if item.pieces or not self._has_text:
            item.pieces.append(text)
            self._has_text = True
            return (TextArrived(text),)
        item.pieces.append(text)
        return (TextArrived(SEPARATOR + text),)

    def _on_reasoning(self, data: bytes) -> Deltas:
        delta = _decode_delta(data)
        item = self._open(delta.output_index, delta.sequence_number, "reasoning")
        if not delta.delta:
            return ()
        continues = bool(item.pieces) and item.part == delta.summary_index
        item.part = delta.summary_index
        return self._add_reasoning(item, delta.delta, continues=continues)

    def _add_reasoning(self, item: _Item, text: str, *, continues: bool) -> Deltas:
        shown = text if continues or not self._reasoning else SEPARATOR + text
        item.pieces.append(text)
        self._reasoning.append(shown)
        return (ReasoningArrived(shown),)

    def _open(self, index: int, number: int, kind: str) -> _Item:
        """Return the item that a delta belongs to."""
        if number <= self._last:
            self._check_order(number)
        self._last = number or self._last
        item = self._items.get(index)
        if item is None or item.done or item.kind != kind:
            raise _broken(f"a delta came for item {index}, which is no {kind} that has begun and is not done")
        return item

    def _check_order(self, number: int) -> None:
        """Check the number of an event; 0 means that events are not numbered."""
        if number:
            if number <= self._last:
                raise _broken(f"event {number} came after event {self._last}")
            self._last = number

    def _on_done(self, data: bytes) -> Deltas:
        event = _decode_item_event(data)
        self._check_order(event.sequence_number)
        item = self._items.get(event.output_index)
        if item is None or item.done or item.kind != _decode_kind(event.item).type:
            raise _broken(f"item {event.output_index} is done, but had not begun or was done before")
        item.done = True
        match item.kind:
            case "message":
                return self._finish_message(item, _decode_message(event.item))
            case "function_call":
                call, begun = _decode_call(event.item), item.call
                if begun is not None and (begun.call_id, begun.name) != (call.call_id, call.name):
                    raise _broken(f"call {call.call_id!r} of {call.name!r} began as another one")
                if item.pieces and "".join(item.pieces) != call.arguments:
                    raise _broken(f"the arguments of {call.name!r} are not what their deltas said")
                item.call = call
            case "reasoning":
                found = item.reasoning = _decode_reasoning(event.item)
                parts = [*(found.summary or ()), *(found.content or ())]
                text = "\n\n".join(str(part.get("text") or "") for part in parts)
                if text and not item.pieces:
                    return self._add_reasoning(item, text, continues=False)
        return ()

    def _finish_message(self, item: _Item, message: _MessageItem) -> Deltas:
        item.message = message
        self._refused = self._refused or any(part.type == "refusal" for part in message.content or ())
        whole, shown = message.text(), "".join(item.pieces)
        if not whole or whole == shown:
            return ()
        if not whole.startswith(shown):
            raise _broken("a message is not what its deltas said")
        rest = whole[len(shown) :]
        between = SEPARATOR if self._has_text and not shown else ""
        item.pieces.append(rest)
        self._has_text = True
        return (TextArrived(between + rest),)

    def _end(self, response: _Response, *, is_complete: bool) -> ReplyEnded:
        items = [item for _, item in sorted(self._items.items())]
        if is_complete:
            _check_complete(items, response)
        calls = tuple(_requested(item) for item in items if item.call is not None)
        if len({call.provider_id for call in calls}) != len(calls):
            raise _broken("two calls of one response have the same id")
        stop_reason = "tool_calls" if calls else "refusal" if self._refused else "end"
        if not is_complete:
            details = response.incomplete_details
            cause = (details.reason if details is not None else None) or "incomplete"
            stop_reason = _STOP_REASONS.get(cause, cause)
        outline = [_entry(item) for item in items]
        # Keep the outline only if it says more than that the text precedes the calls.
        messages = [entry for entry in outline if isinstance(entry, MessageEntry)]
        first = outline.index(messages[0]) if messages else 0
        keeps = (
            len(messages) > 1
            or any(entry.phase for entry in messages)
            or any(isinstance(entry, ReasoningEntry) and entry.is_sent_back for entry in outline)
            or any(isinstance(entry, CallEntry) for entry in outline[:first])
        )
        reasoning: tuple[Reasoning, ...] = ()
        if keeps or self._reasoning:
            opaque: Json = msgspec.to_builtins(outline) if keeps else None
            text = "".join(self._reasoning)
            reasoning = (Reasoning(origin=self._origin, text=text, opaque=opaque),)
        return ReplyEnded(
            text=SEPARATOR.join(_texts(items)),
            calls=calls,
            usage=response.usage.usage() if response.usage is not None else Usage(calls=1),
            model=response.model or self._model,
            stop_reason=stop_reason,
            reasoning=reasoning,
            response_id=response.id or self._response_id,
        )


def _check_complete(items: list[_Item], response: _Response) -> None:
    """Raise if a complete response has unfinished items, or items that differ from the streamed ones."""
    if not all(item.done for item in items):
        raise _broken("the response ended before all of its items were done")
    if any(item.call is not None and item.call.status not in (None, "completed") for item in items):
        raise _broken("the response is complete, but one of its calls is not")
    if not response.output:
        return
    texts, calls = [], []
    for raw in response.output:
        kind = _decode_kind(raw).type
        if kind == "message":
            texts.append(_decode_message(raw).text())
        elif kind == "function_call":
            call = _decode_call(raw)
            calls.append((call.call_id, call.name, _or_object(call.arguments)))
    streamed = [_requested(item) for item in items if item.call is not None]
    if [text for text in texts if text] != _texts(items) or calls != [
        (call.provider_id, call.name, call.arguments) for call in streamed
    ]:
        raise _broken("the response is not what its events said")


def _requested(item: _Item) -> RequestedCall:
    """Return a call: complete, or as far as it was streamed."""
    call = item.call
    if call is None:
        raise _broken("a call has no name")
    complete = item.done and call.status in (None, "completed")
    arguments = _or_object(call.arguments) if complete else "".join(item.pieces)
    return RequestedCall(name=call.name, arguments=arguments, provider_id=call.call_id)


def _or_object(arguments: str) -> str:
    return arguments if arguments.strip() else "{}"


def _texts(items: list[_Item]) -> list[str]:
    texts = ("".join(item.pieces) for item in items if item.kind == "message")
    return [text for text in texts if text]


def _broken(problem: str) -> ModelError:
    return ModelError(f"OpenAI's stream is invalid: {problem}", retryable=True)


# The outline of a reply, which is stored with the reply


class ReasoningEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """A reasoning item in the form that the API accepts back."""

    id: str
    summary: list[Json]
    content: list[Json] | None = None
    encrypted_content: str | None = None

    def item(self) -> dict[str, Json]:
        """Return the item to send, whole: the vendor stores nothing, so it could not resolve an id."""
        item: dict[str, Json] = {"type": "reasoning", "id": self.id, "summary": self.summary}
        if self.content:
            item["content"] = self.content
        if self.encrypted_content:
            item["encrypted_content"] = self.encrypted_content
        return item

    @property
    def is_sent_back(self) -> bool:
        return bool(self.content or self.encrypted_content)


class MessageEntry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="message"
):
    """A message of `chars` characters. `phase` distinguishes comments from answers."""

    chars: int
    phase: str | None = None


class CallEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call, by the id that the vendor gave it."""

    call_id: str


class OtherEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="other"):
    """An item that is not sent back."""


OutlineEntry = ReasoningEntry | MessageEntry | CallEntry | OtherEntry
Outline = tuple[OutlineEntry, ...]


def _entry(item: _Item) -> OutlineEntry:
    match item.kind:
        case "reasoning":
            found = item.reasoning
            return ReasoningEntry(
                id=found.id,
                summary=list(found.summary or ()),
                content=None if found.content is None else list(found.content),
                encrypted_content=found.encrypted_content,
            )
        case "message":
            return MessageEntry(chars=sum(map(len, item.pieces)), phase=item.message.phase)
        case "function_call" if item.call is not None:
            return CallEntry(call_id=item.call.call_id)
        case _:
            return OtherEntry()


def stored_outline(reasoning: Sequence[Reasoning], origin: str) -> Outline | None:
    """Find the outline in a reply's reasoning, if it came from *origin*."""
    for each in reasoning:
        if each.origin == origin and each.opaque is not None:
            try:
                return msgspec.convert(each.opaque, Outline)
            except msgspec.ValidationError:
                continue
    return None


def texts_of(text: str, outline: Outline) -> list[str]:
    """Split *text* into the messages of the outline; if it has changed, the first message gets all of it."""
    sizes = [entry.chars for entry in outline if isinstance(entry, MessageEntry)]
    between = max(0, sum(map(bool, sizes)) - 1)
    if sum(sizes) + len(SEPARATOR) * between != len(text):
        return [text, *("" for _ in sizes[1:])] if sizes else []
    texts, at = [], 0
    for size in sizes:
        texts.append(text[at : at + size])
        at += size + (len(SEPARATOR) if size else 0)
    return texts
