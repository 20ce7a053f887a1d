"""What the plugins that watch over the model's window share: estimates, turns, sizes in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.message import (
    AssistantMessage,
    InputPart,
    Message,
    Part,
    TextPart,
    ToolMessage,
    UserMessage,
)

CHARS_A_TOKEN: Final = 4
_ATTACHMENT_CHARS: Final = 6_000
"""What an image or a file counts as."""
_INPUT_CHARS: Final = 100
"""What an input counts as: only its name is told, code reads it."""


def check_window(plugin_id: str, window_tokens: object, keep_turns: object, fill: object) -> None:
    """Refuse what is no window, no number of turns or no part of a whole."""
    if type(window_tokens) is not int or window_tokens < 1:
        raise InvalidArgument(f"window_tokens of plugin {plugin_id!r} is {window_tokens!r}, not from 1")
    if type(keep_turns) is not int or keep_turns < 0:
        raise InvalidArgument(f"keep_turns of plugin {plugin_id!r} is {keep_turns!r}, not from 0")
    if type(fill) not in (int, float) or not 0 < fill <= 1:  # type: ignore[operator]
        raise InvalidArgument(f"fill of plugin {plugin_id!r} is {fill!r}, not above 0 and at most 1")


def turns_of(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages in stretches that each begin with what a user said."""
    turns: list[list[Message]] = []
    for message in messages:
        if isinstance(message, UserMessage) or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def count_tokens(messages: Iterable[Message]) -> int:
    """What the model would be given, by estimate and by what providers counted beyond it."""
    chars = beyond = 0
    for message in messages:
        if isinstance(message, AssistantMessage):
            usage = message.usage
            counted = usage.input + usage.cache_read + usage.cache_write
            beyond = max(beyond, counted - chars // CHARS_A_TOKEN)
        chars += chars_of(message)
    return chars // CHARS_A_TOKEN + beyond


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Four characters a token."""
    return sum(map(chars_of, messages)) // CHARS_A_TOKEN


def chars_of(message: Message) -> int:
    """How much text the model reads of a message."""
    if isinstance(message, ToolMessage):
        return len(result_text(message))
    if isinstance(message, AssistantMessage):
        calls = msgspec.json.encode([call.raw or call.arguments for call in message.tool_calls])
        return len(message.text) + len(calls)
    if isinstance(message.content, str):
        return len(message.content)
    return sum(map(_chars_of_part, message.content))


def _chars_of_part(part: Part) -> int:
    if isinstance(part, TextPart):
        return len(part.text)
    return _INPUT_CHARS if isinstance(part, InputPart) else _ATTACHMENT_CHARS


def result_text(message: ToolMessage) -> str:
    """What the model reads of a result, more or less."""
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        return message.error.message
    return message.value if isinstance(message.value, str) else msgspec.json.encode(message.value).decode()


def size_of(count: int) -> str:
    """A number of bytes in words."""
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.1f} KB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MB"
