"""A conversation as Chat Completions wants it.

Rules
-----
1. Every `tool` message follows the reply that made its call, under the call's id; a result without a call is
   told as words of the user's, because servers refuse it otherwise.
2. Arguments are always the text of a JSON object: what the model wrote instead of one is put into one, since
   servers parse it to fill in their templates.
3. Nothing empty is sent. A reply that only called tools has the content null.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, assert_never

import msgspec

from standfast.model.canonical import Json
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.providers.http.dialect import Asked
from standfast.providers.http.told import result_text
from standfast.providers.openai_compatible.content import content_of
from standfast.providers.openai_compatible.hosts import Host
from standfast.providers.openai_compatible.reasoning import CONTENT, reasoning_sent, thinking_part

_NINE: Final = re.compile(r"[A-Za-z0-9]{9}", re.ASCII)
_MAX_ID_CHARS: Final = 64


def messages_of(asked: Asked, host: Host, system: str) -> list[Json]:
    """The system's words first, if there are any, then everything that was said."""
    writer = _Writer(asked, host)
    for message in asked.request.messages:
        writer.add(message)
    first: list[Json] = [{"role": "system", "content": system}] if system else []
    return first + _even(writer.messages)


def _even(messages: list[Any]) -> list[Json]:
    """Give every reply that called tools its reasoning, empty if need be, where one has it."""
    if any(CONTENT in message for message in messages):
        for message in messages:
            if "tool_calls" in message:
                message.setdefault(CONTENT, "")
    return messages


class _Writer:
    """Writes a conversation down, message by message."""

    def __init__(self, asked: Asked, host: Host) -> None:
        self.messages: list[Json] = []
        self._asked = asked
        self._host = host
        self._ids: dict[int, str] = {}
        self._taken: set[str] = set()

    def add(self, message: Message) -> None:
        match message:
            case UserMessage():
                if content := content_of(message.content, self._asked.media):
                    self.messages.append({"role": "user", "content": content})
            case AssistantMessage():
                self._add_reply(message)
            case ToolMessage():
                self._add_result(message)
            case _:
                assert_never(message)

    def _add_reply(self, message: AssistantMessage) -> None:
        if not message.text and not message.tool_calls:
            return
        thought = reasoning_sent(message, self._asked.origin)
        written: dict[str, Json] = {"role": "assistant", "content": message.text or None}
        if thinking := thought.pop("thinking", ""):
            written["content"] = _with_thinking(thinking, message.text)
        written |= thought
        self._ids = {call.call_id: self._id_of(call) for call in message.tool_calls}
        if message.tool_calls:
            written["tool_calls"] = [self._call(call) for call in message.tool_calls]
        self.messages.append(written)

    def _call(self, call: ToolCall) -> Json:
        function = {"name": call.name, "arguments": _arguments(call)}
        return {"id": self._ids[call.call_id], "type": "function", "function": function}

    def _add_result(self, message: ToolMessage) -> None:
        text = result_text(message)
        call_id = self._ids.pop(message.call_id, None)
        if call_id is None:
            self.messages.append({"role": "user", "content": f"[result of {message.name}]\n{text}"})
        else:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _id_of(self, call: ToolCall) -> str:
        """The server's own id for the call, or one made up the same way every time; never one twice."""
        wanted = call.provider_id or f"call_{call.call_id}"
        if self._host.nine_letter_ids or len(wanted) > _MAX_ID_CHARS:
            wanted = _nine_letters(wanted)
        found, number = wanted, 2
        while found in self._taken:
            found = _nine_letters(f"{wanted} {number}")
            number += 1
        self._taken.add(found)
        return found


def _arguments(call: ToolCall) -> str:
    given: dict[str, Json] | None = call.arguments
    if given is None:
        given = {"malformed_arguments": call.raw or ""}
    return msgspec.json.encode(given).decode()


def _with_thinking(thinking: str, text: str) -> list[Json]:
    return [thinking_part(thinking), *([{"type": "text", "text": text}] if text else [])]


def _nine_letters(wanted: str) -> str:
    """An id that every server takes: itself, or nine letters and digits made of it."""
    if _NINE.fullmatch(wanted):
        return wanted
    return hashlib.sha3_256(wanted.encode()).hexdigest()[:9]
