"""Compaction: when the window is nearly full, a new frame begins with a summary of the conversation.

The model itself summarizes all but the last turns, which follow the summary unchanged. Summarized messages
stay in the session's history, but the model no longer sees them.

Rules
-----
1. At most one summary is requested in a turn. Its usage is in the ledger under "compaction".
2. An empty summary changes nothing. If the model call fails, the hook and with it the turn fail. The hook's
   time limit (`Runtime(hook_timeout_s=...)`) includes the model call.
3. Only whole turns are kept. The usage recorded in their replies is dropped, because it counts the old frame.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.limits import Usage
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    Message,
    ToolMessage,
    UserMessage,
    text_of,
)
from standfast.plugins.contexts import CompactionContext, ContextCompaction
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.shipped import window

INSTRUCTIONS: Final = """\
You are given the record of a conversation between a user and an assistant that uses tools. The assistant
continues it and will see your summary instead of the record. Write down what it needs: what the user wants
and has decided, what was done and found, names, numbers, paths and ids exactly as they are, what failed, and
what is still to be done. Leave out what no longer matters. Answer with the summary alone."""

_HEADING: Final = "Summary of the conversation so far:"
_RESULT_CHARS: Final = 2_000
"""How much of each result is in the record to be summarized."""


class Compaction(Plugin):
    """A plugin for agents whose sessions become long.

    Args:
        window_tokens: the size of the model's context window.
        fill: the part of the window that earlier turns may fill.
        keep_turns: how many turns are kept unchanged, fewer if they alone are too long.
        instructions: the model's instructions for the summary.
    """

    id = "compaction"
    summary = "Opens a frame with a summary of the conversation when the window is nearly full."

    def __init__(
        self,
        window_tokens: int = 128_000,
        fill: float = 0.8,
        keep_turns: int = 2,
        instructions: str = INSTRUCTIONS,
    ) -> None:
        self.window_tokens = window_tokens
        self.fill = fill
        self.keep_turns = keep_turns
        self.instructions = instructions
        self._asked_in = ""
        self.check_options()

    def check_options(self) -> None:
        window.check_window(self, self.fill)
        if not isinstance(self.instructions, str) or not self.instructions.strip():
            raise InvalidArgument("instructions of plugin 'compaction' are empty")

    @hook
    async def compactor(self, ctx: CompactionContext) -> ContextCompaction | None:
        allowed = int(self.window_tokens * self.fill)
        if self._asked_in == ctx.turn_id or not (
            ctx.overflowed or window.count_tokens(ctx.messages) > allowed
        ):
            return None
        older, kept = self._split(ctx, allowed // 3 if ctx.overflowed else allowed * 2 // 3)
        # Not worth a summary: there is one message, probably a summary itself, or something else fills the
        # window.
        is_short = len(older) < 2 or window.estimate_tokens(older) <= allowed // 10
        if not older or (is_short and not ctx.overflowed):
            return None
        self._asked_in = ctx.turn_id
        redact: Callable[[Message], Message] | None = self.session.extensions.get("redact")
        texts = [_as_text(message if redact is None else redact(message)) for message in older]
        if sum(map(len, texts)) > allowed * 4:
            texts = [_shortened(one, allowed * 4 // len(texts)) for one in texts]
        record = UserMessage(content="\n\n".join(texts))
        summary = await ctx.complete([record], instructions=self.instructions, source="compaction")
        if not summary.strip():
            return None
        opening = UserMessage(content=f"{_HEADING}\n\n{summary.strip()}")
        uncharged = [
            msgspec.structs.replace(one, usage=Usage()) if isinstance(one, AssistantMessage) else one
            for one in kept
        ]
        return ContextCompaction(seed=(opening, *uncharged))

    def _split(self, ctx: CompactionContext, allowed: int) -> tuple[list[Message], list[Message]]:
        """Split the messages into those to summarize and those to keep."""
        turns = window.turns_of(ctx.messages)
        most = min(self.keep_turns, len(turns) // 2) if ctx.overflowed else self.keep_turns
        first = len(turns)
        while first > 0 and len(turns) - first < most:
            allowed -= window.estimate_tokens(turns[first - 1])
            if allowed < 0:
                break
            first -= 1
        return [*chain(*turns[:first])], [*chain(*turns[first:])]


def _as_text(message: Message) -> str:
    if isinstance(message, ToolMessage):
        return f"Result of {message.name}(): {_shortened(window.result_text(message), _RESULT_CHARS)}"
    if isinstance(message, AssistantMessage):
        lines = ["Assistant: " + message.text]
        for call in message.tool_calls:
            given = call.raw if call.arguments is None else msgspec.json.encode(call.arguments).decode()
            lines.append(f"calls {call.name}({_shortened(given or '', _RESULT_CHARS)})")
        return "\n".join(lines)
    parts = () if isinstance(message.content, str) else message.content
    files = [f"[{part.name or part.media_type}]" for part in parts if isinstance(part, AttachmentPart)]
    return "\n".join(["User: " + text_of(message.content), *files])


def _shortened(text: str, most: int) -> str:
    """Return the beginning and the end of a text that is too long."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [...] {text[len(text) - half :]}"
