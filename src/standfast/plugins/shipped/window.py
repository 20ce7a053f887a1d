"""Estimates of the model's context window, for the plugins that keep it from overflowing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.message import AssistantMessage, InputPart, Message, TextPart, ToolMessage, UserMessage
from standfast.plugins.plugin import Plugin, check_numbers

CHARS_A_TOKEN: Final = 4
_ATTACHMENT_CHARS: Final = 6_000
"""The estimated size of an image or a file, in characters."""
_INPUT_CHARS: Final = 100
"""The estimated size of an input, in characters: the model reads only its name."""


def check_window(plugin: Plugin, fill: object) -> None:
    """Raise `InvalidArgument` if `window_tokens`, `keep_turns` or *fill* of a plugin is out of range."""
    check_numbers(plugin, window_tokens=1, keep_turns=0)
    if type(fill) not in (int, float) or not 0 < fill <= 1:  # type: ignore[operator]
        raise InvalidArgument(f"fill of plugin {plugin.id!r} must be above 0 and at most 1, got {fill!r}")


def turns_of(messages: Sequence[Message]) -> list[list[Message]]:
    """Split messages into turns, each of which begins with a user message."""
    turns: list[list[Message]] = []
    for message in messages:
        if isinstance(message, UserMessage) or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def count_tokens(messages: Iterable[Message]) -> int:
    """Estimate the tokens of messages, corrected by what providers counted for earlier calls."""
    chars = beyond = 0
    for message in messages:
        if isinstance(message, AssistantMessage):
            usage = message.usage
            counted = usage.input + usage.cache_read + usage.cache_write
            beyond = max(beyond, counted - chars // CHARS_A_TOKEN)
        chars += chars_of(message)
    return chars // CHARS_A_TOKEN + beyond


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Estimate the tokens of messages at four characters each."""
    return sum(map(chars_of, messages)) // CHARS_A_TOKEN


def chars_of(message: Message) -> int:
    """Return how many characters of a message the model reads."""
    if isinstance(message, ToolMessage):
        return len(result_text(message))
    if isinstance(message, AssistantMessage):
        calls = msgspec.json.encode([call.raw or call.arguments for call in message.tool_calls])
        return len(message.text) + len(calls)
    if isinstance(message.content, str):
        return len(message.content)
    return sum(
        len(part.text)
        if isinstance(part, TextPart)
        else _INPUT_CHARS
        if isinstance(part, InputPart)
        else _ATTACHMENT_CHARS
        for part in message.content
    )


def result_text(message: ToolMessage) -> str:
    """Return approximately the text of a result that the model reads."""
    if message.error is not None and message.shown is None:
        return message.error.message
    value = message.value if message.shown is None else message.shown
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "\n".join([text, *message.texts])


def size_of(count: int) -> str:
    """Format a number of bytes."""
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.1f} KB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MB"
