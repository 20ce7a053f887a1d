"""Makes deltas of the events of one response.

Theory of operation
-------------------
A response is a row of items, numbered by `output_index`. An item begins (`output_item.added`), grows by
deltas, and is done (`output_item.done`), which repeats it whole. `response.completed` or
`response.incomplete` ends it all and repeats every item once more.

Rules
-----
1. Deltas are for showing. What an item is in the end is what `done` says; if that does not go on from what
   was shown, the stream is broken, and the attempt with it.
2. A delta belongs to an item that has begun and is not done. Events that are numbered come in the order of
   their numbers. What breaks this is a `ModelError` that may be retried.
3. A call that is not done when the response is complete, or of which the response says something else, is
   never given. One that the end of an incomplete response cut off is given as far as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from standfast.errors import ModelError
from standfast.model.message import Reasoning, RequestedCall
from standfast.model.usage import Usage
from standfast.ports.model_provider import ModelDelta, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.http.dialect import ServerEvent
from standfast.providers.openai.complaints import failure
from standfast.providers.openai.events import (
    CallItem,
    Delta,
    ItemEvent,
    Kind,
    MessageItem,
    ReasoningItem,
    Response,
    ResponseEvent,
)
from standfast.providers.openai.outline import (
    SEPARATOR,
    Called,
    Entry,
    Other,
    Said,
    Thought,
    worth_keeping,
    written,
)

T = TypeVar("T")
Deltas = Sequence[ModelDelta]

_delta: Final = msgspec.json.Decoder(Delta).decode
_item_event: Final = msgspec.json.Decoder(ItemEvent).decode
_response_event: Final = msgspec.json.Decoder(ResponseEvent).decode
_kind: Final = msgspec.json.Decoder(Kind).decode
_message: Final = msgspec.json.Decoder(MessageItem).decode
_call: Final = msgspec.json.Decoder(CallItem).decode
_thought: Final = msgspec.json.Decoder(ReasoningItem).decode

_STOPS: Final = {"max_output_tokens": "length"}
_NAMELESS: Final = ("", "message")


class _Item:
    """An item on its way. `pieces` are what came of it; `part` is the part that the last of them is of."""

    __slots__ = ("call", "done", "kind", "message", "part", "pieces", "thought")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done = False
        self.pieces: list[str] = []
        self.part = 0
        self.message = MessageItem()
        self.call: CallItem | None = None
        self.thought = ReasoningItem()


class ResponseReader:
    """Reads one response. Feed it every event, until it gives `ReplyEnded`."""

    def __init__(self, *, origin: str, model: str) -> None:
        self._origin = origin
        self._model = model
        self._response_id = ""
        self._items: dict[int, _Item] = {}
        self._last = 0
        self._spoke = False
        self._thought: list[str] = []
        self._refused = False
        self._takes: dict[str, Callable[[bytes], Deltas]] = {
            "response.output_text.delta": self._text,
            "response.refusal.delta": self._refusal,
            "response.function_call_arguments.delta": self._arguments,
            "response.reasoning_summary_text.delta": self._reasoning,
            "response.reasoning_text.delta": self._reasoning,
            "response.output_item.added": self._added,
            "response.output_item.done": self._done,
            "response.created": self._created,
            "response.completed": self._completed,
            "response.incomplete": self._incomplete,
            "response.failed": self._failed,
            "error": self._error,
        }

    def feed(self, event: ServerEvent) -> Deltas:
        """What the event brings; one that is not read brings nothing."""
        try:
            take = self._takes.get(event.name)
            if take is None:
                take = self._nameless(event)
            return () if take is None else take(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _broken(f"event {event.name or 'without a name'!r} cannot be read: {error}") from None

    def _nameless(self, event: ServerEvent) -> Callable[[bytes], Deltas] | None:
        """The data says what the event is as well."""
        if event.name not in _NAMELESS or event.data == b"[DONE]":
            return None
        return self._takes.get(_kind(event.data).type)

    def _text(self, data: bytes) -> Deltas:
        delta = _delta(data)
        item = self._open(delta.output_index, delta.sequence_number, "message")
        text = delta.delta
        if not text:
            return ()
        if item.pieces or not self._spoke:
            item.pieces.append(text)
            self._spoke = True
            return (TextArrived(text),)
        item.pieces.append(text)
        return (TextArrived(SEPARATOR + text),)

    def _refusal(self, data: bytes) -> Deltas:
        self._refused = True
        return self._text(data)

    def _arguments(self, data: bytes) -> Deltas:
        delta = _delta(data)
        self._open(delta.output_index, delta.sequence_number, "function_call").pieces.append(delta.delta)
        return ()

    def _reasoning(self, data: bytes) -> Deltas:
        delta = _delta(data)
        item = self._open(delta.output_index, delta.sequence_number, "reasoning")
        if not delta.delta:
            return ()
        follows = bool(item.pieces) and item.part == delta.summary_index
        item.part = delta.summary_index
        return self._thinks(item, delta.delta, follows=follows)

    def _thinks(self, item: _Item, text: str, *, follows: bool) -> Deltas:
        shown = text if follows or not self._thought else SEPARATOR + text
        item.pieces.append(text)
        self._thought.append(shown)
        return (ReasoningArrived(shown),)

    def _open(self, index: int, number: int, kind: str) -> _Item:
        """The item that a delta belongs to."""
        if number:
            self._in_turn(number)
        item = self._items.get(index)
        if item is None or item.done or item.kind != kind:
            raise _broken(f"a delta came for item {index}, which is no {kind} that has begun and is not done")
        return item

    def _in_turn(self, number: int) -> None:
        if number <= self._last:
            raise _broken(f"event {number} came after event {self._last}")
        self._last = number

    def _added(self, data: bytes) -> Deltas:
        event = _item_event(data)
        if event.sequence_number:
            self._in_turn(event.sequence_number)
        if event.output_index in self._items:
            raise _broken(f"item {event.output_index} began twice")
        item = _Item(_kind(event.item).type)
        if item.kind == "function_call":
            item.call = _call(event.item)
        elif item.kind == "message":
            item.message = _message(event.item)
        self._items[event.output_index] = item
        return ()

    def _done(self, data: bytes) -> Deltas:
        event = _item_event(data)
        if event.sequence_number:
            self._in_turn(event.sequence_number)
        item = self._items.get(event.output_index)
        if item is None or item.done or item.kind != _kind(event.item).type:
            raise _broken(f"item {event.output_index} is done, but had not begun or was done before")
        item.done = True
        if item.kind == "message":
            return self._message_done(item, _message(event.item))
        if item.kind == "function_call":
            item.call = _same_call(item, _call(event.item))
        elif item.kind == "reasoning":
            return self._reasoning_done(item, _thought(event.item))
        return ()

    def _message_done(self, item: _Item, message: MessageItem) -> Deltas:
        item.message = message
        self._refused = self._refused or message.refuses()
        whole, shown = message.words(), "".join(item.pieces)
        if not whole or whole == shown:
            return ()
        if not whole.startswith(shown):
            raise _broken("a message is not what its deltas said")
        rest = whole[len(shown) :]
        between = SEPARATOR if self._spoke and not shown else ""
        item.pieces.append(rest)
        self._spoke = True
        return (TextArrived(between + rest),)

    def _reasoning_done(self, item: _Item, thought: ReasoningItem) -> Deltas:
        item.thought = thought
        words = thought.words()
        return self._thinks(item, words, follows=False) if words and not item.pieces else ()

    def _created(self, data: bytes) -> Deltas:
        response = _response_event(data).response
        self._response_id, self._model = response.id, response.model or self._model
        return ()

    def _failed(self, data: bytes) -> Deltas:
        raise failure(_response_event(data).response.error)

    def _error(self, data: bytes) -> Deltas:
        raise failure(msgspec.json.decode(data))

    def _completed(self, data: bytes) -> Deltas:
        response = _response_event(data).response
        if response.status == "incomplete":
            return (self._ended(response, cut=_cut(response)),)
        return (self._ended(response),)

    def _incomplete(self, data: bytes) -> Deltas:
        response = _response_event(data).response
        return (self._ended(response, cut=_cut(response)),)

    def _ended(self, response: Response, *, cut: str = "") -> ReplyEnded:
        items = [item for _, item in sorted(self._items.items())]
        if not cut:
            self._check_whole(items, response)
        calls = tuple(_requested(item) for item in items if item.call is not None)
        if len({call.provider_id for call in calls}) != len(calls):
            raise _broken("two calls of one response have the same id")
        stop = "tool_calls" if calls else "refusal" if self._refused else "end"
        return ReplyEnded(
            text=SEPARATOR.join(_texts(items)),
            calls=calls,
            usage=response.usage.usage() if response.usage is not None else Usage(calls=1),
            model=response.model or self._model,
            stop_reason=cut or stop,
            reasoning=self._kept(items),
            response_id=response.id or self._response_id,
        )

    def _check_whole(self, items: list[_Item], response: Response) -> None:
        """Refuse a complete response that has unfinished items, or others than those that were streamed."""
        if not all(item.done for item in items):
            raise _broken("the response ended before all of its items were done")
        if any(item.call is not None and item.call.status not in (None, "completed") for item in items):
            raise _broken("the response is complete, but one of its calls is not")
        if response.output:
            calls = [
                (call.provider_id, call.name, call.arguments) for call in map(_requested, _of_calls(items))
            ]
            if (_texts(items), calls) != _repeated(response.output):
                raise _broken("the response is not what its events said")

    def _kept(self, items: list[_Item]) -> tuple[Reasoning, ...]:
        """What was thought, with the outline of the reply if that must be known to send it back."""
        outline = [_entry(item) for item in items]
        keeps = worth_keeping(outline)
        if not keeps and not self._thought:
            return ()
        opaque = written(outline) if keeps else None
        return (Reasoning(origin=self._origin, text="".join(self._thought), opaque=opaque),)


def _same_call(item: _Item, call: CallItem) -> CallItem:
    """The call as it is in the end, if that is what its beginning and its deltas said."""
    begun = item.call
    if begun is not None and (begun.call_id, begun.name) != (call.call_id, call.name):
        raise _broken(f"call {call.call_id!r} of {call.name!r} began as another one")
    if item.pieces and "".join(item.pieces) != call.arguments:
        raise _broken(f"the arguments of {call.name!r} are not what their deltas said")
    return call


def _requested(item: _Item) -> RequestedCall:
    """A call as it came: whole, or what was streamed of it. No arguments are an object, unless cut off."""
    call = item.call
    if call is None:
        raise _broken("a call has no name")
    whole = item.done and call.status in (None, "completed")
    arguments = _or_empty(call.arguments) if whole else "".join(item.pieces)
    return RequestedCall(name=call.name, arguments=arguments, provider_id=call.call_id)


def _or_empty(arguments: str) -> str:
    return arguments if arguments.strip() else "{}"


def _of_calls(items: list[_Item]) -> list[_Item]:
    return [item for item in items if item.call is not None]


def _texts(items: list[_Item]) -> list[str]:
    texts = ("".join(item.pieces) for item in items if item.kind == "message")
    return [text for text in texts if text]


def _repeated(output: list[msgspec.Raw]) -> tuple[list[str], list[tuple[str, str, str]]]:
    """The texts and the calls that the end of a response repeats."""
    texts, calls = [], []
    for raw in output:
        kind = _kind(raw).type
        if kind == "message":
            texts.append(_message(raw).words())
        elif kind == "function_call":
            call = _call(raw)
            calls.append((call.call_id, call.name, _or_empty(call.arguments)))
    return [text for text in texts if text], calls


def _entry(item: _Item) -> Entry:
    match item.kind:
        case "reasoning":
            thought = item.thought
            return Thought(
                id=thought.id,
                summary=list(thought.summary or ()),
                content=None if thought.content is None else list(thought.content),
                encrypted_content=thought.encrypted_content,
            )
        case "message":
            return Said(chars=sum(map(len, item.pieces)), phase=item.message.phase)
        case "function_call" if item.call is not None:
            return Called(call_id=item.call.call_id)
        case _:
            return Other()


def _cut(response: Response) -> str:
    details = response.incomplete_details
    reason = (details.reason if details is not None else None) or "incomplete"
    return _STOPS.get(reason, reason)


def _broken(problem: str) -> ModelError:
    return ModelError(f"OpenAI's stream makes no sense: {problem}", retryable=True)
