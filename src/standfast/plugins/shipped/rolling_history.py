"""Rolling history: as the window fills, old attachments and tool output are hidden from the model.

Before each model call the size of the messages is estimated at four characters per token. If a provider
counted more for an earlier call (system prompt, tools, non-Latin scripts), the difference is added. If the
estimate exceeds the window, the oldest content is removed first: attachments and results, which are replaced
by a note, then whole turns. This happens in steps of a tenth of the window, so that most calls begin with the
same messages as the previous one and hit the provider's cache.

Rules
-----
1. Nothing durable changes, and the same messages always give the same view.
2. This turn and the last `keep_turns` before it stay unchanged unless a call exceeded the context window.
3. Every call that is shown keeps its result, because turns are removed as a whole.
"""

from __future__ import annotations

import math

import msgspec

from standfast.model.message import AttachmentPart, Message, Part, TextPart, ToolMessage, UserMessage
from standfast.plugins.contexts import TurnTransformContext
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.shipped.window import (
    CHARS_A_TOKEN,
    chars_of,
    check_window,
    count_tokens,
    estimate_tokens,
    result_text,
    size_of,
    turns_of,
)


class RollingHistory(Plugin):
    """A plugin for agents whose sessions are long.

    Args:
        window_tokens: the size of the model's context window.
        keep_turns: how many turns before this one stay unchanged.
        fill: the part of the window that may be filled before anything is removed.
    """

    id = "rolling-history"
    summary = "Leaves old attachments and tool output out of the model's view as the window fills."

    def __init__(self, window_tokens: int = 128_000, keep_turns: int = 4, fill: float = 0.7) -> None:
        self.window_tokens = window_tokens
        self.keep_turns = keep_turns
        self.fill = fill
        self.check_options()

    def check_options(self) -> None:
        check_window(self, self.fill)

    @hook
    async def context_transform(self, ctx: TurnTransformContext, messages: list[Message]) -> list[Message]:
        tokens, allowed = count_tokens(messages), self.window_tokens * self.fill
        # If the provider refused the call as too long, remove half of the messages.
        excess = math.ceil(max(tokens - allowed / 2, tokens / 2) if ctx.overflowed else tokens - allowed)
        if excess <= 0:
            return messages
        earlier = len(messages) - ctx.turn_messages
        turns = [*turns_of(messages[:earlier]), messages[earlier:]]
        spared = 0 if ctx.overflowed else self.keep_turns
        old = len(turns) if ctx.overflowed else max(0, len(turns) - 1 - spared)
        step = max(1, self.window_tokens // 10)  # so that the view stays the same for a while
        wanted = math.ceil(excess / step) * step
        saved = 0
        for place in range(old):
            turns[place], gained = _lightened(turns[place], wanted - saved)
            saved += gained
        first, most = 0, len(turns) - 1 - spared
        while saved < (wanted if first else excess) and first < most:
            saved += estimate_tokens(turns[first])
            first += 1
        return [message for turn in turns[first:] for message in turn]


def _lightened(turn: list[Message], excess: int) -> tuple[list[Message], int]:
    """Hide attachments and results of a turn, about *excess* tokens; return the turn and the saved tokens."""
    light: list[Message] = []
    saved = 0
    for message in turn:
        lighter = _noted(message) if saved < excess else message
        gain = (chars_of(message) - chars_of(lighter)) // CHARS_A_TOKEN if lighter is not message else 0
        light.append(lighter if gain > 0 else message)
        saved += max(0, gain)
    return light, saved


def _noted(message: Message) -> Message:
    """Replace the attachments or the result of a message by a note."""
    if isinstance(message, UserMessage) and not isinstance(message.content, str):
        parts: list[Part] = []
        for part in message.content:
            if isinstance(part, AttachmentPart):
                name, size = part.name or "an attachment", size_of(part.size)
                part = TextPart(text=f"[{name} ({part.media_type}, {size}) left out]")
            parts.append(part)
        return msgspec.structs.replace(message, content=tuple(parts))
    if not isinstance(message, ToolMessage):
        return message
    note = f"{size_of(len(result_text(message).encode()))} of output of {message.name}() left out"
    if message.attachments:
        note += f"; attachment {message.attachments[-1].digest[:12]} has all of it"
    if message.error is not None:
        error = msgspec.structs.replace(message.error, message=f"[{note}]")
        return msgspec.structs.replace(message, error=error, shown=None)
    return msgspec.structs.replace(message, value=f"[{note}]", shown=None, texts=())
