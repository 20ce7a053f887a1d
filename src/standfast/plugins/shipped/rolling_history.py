"""Rolling history: as the window fills, old attachments and old tool output go out of the model's view.

Theory of operation
-------------------
Before each model call the messages are estimated at four characters a token. Where a provider counted more
than that for an earlier call (the system prompt, the tools, other scripts than Latin), the difference is
added. What is too much for the window is taken away, oldest first: first attachments and results of calls,
which leave a note behind, then whole turns. It goes in steps of a tenth of the window, so that most calls
begin with the same messages as the one before and find them in the provider's cache.

Rules
-----
1. Nothing durable changes, and the same messages always give the same view.
2. This turn and the last `keep_turns` before it stay as they are, until a call did not fit.
3. Every call that is shown keeps its result: a turn goes as a whole, from one user message to the next.
"""

from __future__ import annotations

import math

import msgspec

from standfast.model.canonical import Json
from standfast.model.message import AttachmentPart, Message, TextPart, ToolMessage, UserMessage
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
    """Give it to an agent whose sessions are long.

    Args:
        window_tokens: how much the model can be given.
        keep_turns: so many turns before this one are not touched.
        fill: the part of the window that may be filled before anything is left out.
    """

    id = "rolling-history"
    summary = "Leaves old attachments and tool output out of the model's view as the window fills."

    def __init__(self, window_tokens: int = 128_000, keep_turns: int = 4, fill: float = 0.7) -> None:
        self.window_tokens = window_tokens
        self.keep_turns = keep_turns
        self.fill = fill
        check_window(self.id, window_tokens, keep_turns, fill)

    def configure(self, options: Json) -> None:
        super().configure(options)
        check_window(self.id, self.window_tokens, self.keep_turns, self.fill)

    @hook
    async def context_transform(self, ctx: TurnTransformContext, messages: list[Message]) -> list[Message]:
        excess = self._excess(count_tokens(messages), ctx.overflowed)
        if excess <= 0:
            return messages
        earlier = len(messages) - ctx.turn_messages
        turns = [*turns_of(messages[:earlier]), messages[earlier:]]
        spared = 0 if ctx.overflowed else self.keep_turns
        old = len(turns) if ctx.overflowed else max(0, len(turns) - 1 - spared)
        wanted = self._in_steps(excess)
        saved = 0
        for place in range(old):
            turns[place], gained = _lightened(turns[place], wanted - saved)
            saved += gained
        first, most = 0, len(turns) - 1 - spared
        while saved < (wanted if first else excess) and first < most:
            saved += estimate_tokens(turns[first])
            first += 1
        return [message for turn in turns[first:] for message in turn]

    def _excess(self, tokens: int, overflowed: bool) -> int:
        """How many tokens are too many. If the provider said so, half of what there is goes."""
        allowed = self.window_tokens * self.fill
        return math.ceil(max(tokens - allowed / 2, tokens / 2) if overflowed else tokens - allowed)

    def _in_steps(self, excess: int) -> int:
        """So much that it stays the same for a while."""
        step = max(1, self.window_tokens // 10)
        return math.ceil(excess / step) * step


def _lightened(turn: list[Message], excess: int) -> tuple[list[Message], int]:
    """A turn without so much of its attachments and results, and how many tokens that saves."""
    light: list[Message] = []
    saved = 0
    for message in turn:
        lighter = _noted(message) if saved < excess else message
        gain = (chars_of(message) - chars_of(lighter)) // CHARS_A_TOKEN if lighter is not message else 0
        light.append(lighter if gain > 0 else message)
        saved += max(0, gain)
    return light, saved


def _noted(message: Message) -> Message:
    """The message with notes in place of attachments, or of a result."""
    if isinstance(message, UserMessage) and not isinstance(message.content, str):
        parts = tuple(
            TextPart(text=_note_of(part)) if isinstance(part, AttachmentPart) else part
            for part in message.content
        )
        return msgspec.structs.replace(message, content=parts)
    if not isinstance(message, ToolMessage):
        return message
    note = f"{size_of(len(result_text(message).encode()))} of output of {message.name}() left out"
    if message.attachments:
        note += f"; the whole is attachment {message.attachments[-1].digest[:12]}"
    if message.error is not None:
        error = msgspec.structs.replace(message.error, message=f"[{note}]")
        return msgspec.structs.replace(message, error=error, shown=None)
    return msgspec.structs.replace(message, value=f"[{note}]", shown=None)


def _note_of(part: AttachmentPart) -> str:
    return f"[{part.name or 'an attachment'} ({part.media_type}, {size_of(part.size)}) left out]"
