"""A conversation as the row of items that OpenAI reads.

Rules
-----
1. A call and its result have one id, which no other call of the conversation has; it is the vendor's own
   wherever that can be sent.
2. A reply whose outline is known goes back in its order, reasoning included; any other as words, then calls.
3. Nothing empty is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, assert_never

import msgspec

from standfast.model.canonical import Json
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.providers.http.told import result_text
from standfast.providers.openai.content import content_parts
from standfast.providers.openai.outline import (
    Called,
    Other,
    Outline,
    Said,
    Thought,
    outline_of,
    texts_of,
)

_MAX_ID_CHARS: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def input_items(messages: Sequence[Message], media: Mapping[str, bytes], origin: str) -> list[Json]:
    """What `input` holds. Reasoning is in it where it came from *origin*."""
    writer = _Writer(media, origin)
    for message in messages:
        writer.add(message)
    return writer.items


class _Writer:
    """Writes a conversation down, message by message."""

    def __init__(self, media: Mapping[str, bytes], origin: str) -> None:
        self.items: list[Json] = []
        self._media = media
        self._origin = origin
        self._taken: set[str] = set()
        self._ids: dict[int, str] = {}

    def add(self, message: Message) -> None:
        match message:
            case UserMessage():
                if parts := content_parts(message.content, self._media):
                    self.items.append({"type": "message", "role": "user", "content": parts})
            case AssistantMessage():
                self._add_reply(message)
            case ToolMessage():
                self._add_result(message)
            case _:
                assert_never(message)

    def _add_reply(self, message: AssistantMessage) -> None:
        self._ids = {call.call_id: self._id_of(call) for call in message.tool_calls}
        outline = outline_of(message.reasoning, self._origin)
        if outline is None:
            self.items += [_words(message.text)] if message.text else []
            self.items += map(self._call, message.tool_calls)
        else:
            self.items += self._in_order(message, outline)

    def _in_order(self, message: AssistantMessage, outline: Outline) -> list[Json]:
        """The reply as it came: each thought before what it led to, and what nobody knows of at the end."""
        texts = texts_of(message.text, outline)
        calls = {call.provider_id or str(call.call_id): call for call in message.tool_calls}
        items: list[Json] = [_words(message.text)] if message.text and not _has_words(outline) else []
        thoughts: list[Json] = []
        for entry in outline:
            item: Json = None
            match entry:
                case Thought():
                    thoughts += [entry.item()] if entry.goes_back else []
                    continue
                case Said():
                    text = texts.pop(0)
                    item = _words(text, entry.phase) if text else None
                case Called():
                    call = calls.pop(entry.call_id, None)
                    item = self._call(call) if call is not None else None
                case Other():
                    pass
                case _:
                    assert_never(entry)
            items += [*thoughts, item] if item is not None else []
            thoughts.clear()
        return [*items, *map(self._call, calls.values())]

    def _call(self, call: ToolCall) -> Json:
        arguments = call.raw if call.arguments is None else msgspec.json.encode(call.arguments).decode()
        return {
            "type": "function_call",
            "call_id": self._ids[call.call_id],
            "name": _NOT_IN_NAMES.sub("_", call.name) or "_",
            "arguments": arguments or "{}",
        }

    def _add_result(self, message: ToolMessage) -> None:
        call_id = self._ids.get(message.call_id) or message.provider_id or f"call_{message.call_id}"
        self.items.append(
            {"type": "function_call_output", "call_id": call_id, "output": result_text(message)}
        )

    def _id_of(self, call: ToolCall) -> str:
        """An id that the call's own vendor gave it, or one that is made up the same way every time."""
        given = call.provider_id
        wanted = given if 0 < len(given) <= _MAX_ID_CHARS else f"call_{call.call_id}"
        found, number = wanted, 2
        while found in self._taken:
            found, number = f"{wanted[: _MAX_ID_CHARS - 8]}_{number}", number + 1
        self._taken.add(found)
        return found


def _words(text: str, phase: str | None = None) -> Json:
    item: dict[str, Json] = {"type": "message", "role": "assistant", "content": text}
    if phase is not None:
        item["phase"] = phase
    return item


def _has_words(outline: Outline) -> bool:
    return any(isinstance(entry, Said) for entry in outline)
