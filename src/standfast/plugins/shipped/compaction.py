"""Compaction: when the window is nearly full, a new frame begins with a summary of what was said.

The model itself writes the summary, of all but the last turns. Those follow it word for word. What the
summary stands for stays in the session's history, readable and out of the model's sight.

Rules
-----
1. At most one summary is asked for in a turn. What it used is in the ledger under "compaction".
2. An empty summary changes nothing: the history stays as it is. A model that fails fails the turn, like any
   hook that does. The hook's time limit (`Runtime(hook_timeout_s=...)`) includes the model's.
3. Turns that are kept are whole. What their replies were charged for is left out: it says how long the old
   frame was, not this one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.limits import Usage
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
    text_of,
)
from standfast.plugins.contexts import CompactionContext, ContextCompaction
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.shipped.window import (
    check_window,
    count_tokens,
    estimate_tokens,
    result_text,
    turns_of,
)

INSTRUCTIONS: Final = """\
You are given the record of a conversation between a user and an assistant that uses tools. The assistant
goes on with it and will see your summary instead of the record. Write down what it needs: what the user wants
and has decided, what was done and found, names, numbers, paths and ids exactly as they are, what failed, and
what is still to be done. Leave out what no longer matters. Answer with the summary alone."""

_HEADING: Final = "Summary of the conversation so far:"
_RESULT_CHARS: Final = 2_000
"""So much of each result goes into the record that is summarized."""


class Compaction(Plugin):
    """Give it to an agent whose sessions go on for long.

    Args:
        window_tokens: how much the model can be given.
        fill: the part of the window that earlier turns may fill.
        keep_turns: so many turns are kept as they are, fewer if they alone are too much.
        instructions: what the model is told when it is asked for a summary.
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
        self._check()

    def configure(self, options: Json) -> None:
        super().configure(options)
        self._check()

    def _check(self) -> None:
        check_window(self.id, self.window_tokens, self.keep_turns, self.fill)
        if not isinstance(self.instructions, str) or not self.instructions.strip():
            raise InvalidArgument("instructions of plugin 'compaction' are empty")

    @hook
    async def compactor(self, ctx: CompactionContext) -> ContextCompaction | None:
        allowed = int(self.window_tokens * self.fill)
        if self._asked_in == ctx.turn_id or not (ctx.overflowed or count_tokens(ctx.messages) > allowed):
            return None
        older, kept = self._split(ctx, allowed // 3 if ctx.overflowed else allowed * 2 // 3)
        if not older or not (ctx.overflowed or _is_worth_it(older, allowed)):
            return None
        self._asked_in = ctx.turn_id
        record = UserMessage(content=self._record(older, allowed * 4))
        summary = await ctx.complete([record], instructions=self.instructions, source="compaction")
        if not summary.strip():
            return None
        opening = UserMessage(content=f"{_HEADING}\n\n{summary.strip()}")
        return ContextCompaction(seed=(opening, *map(_uncharged, kept)))

    def _split(self, ctx: CompactionContext, allowed: int) -> tuple[list[Message], list[Message]]:
        """What is summarized, and the turns that are kept."""
        turns = turns_of(ctx.messages)
        most = min(self.keep_turns, len(turns) // 2) if ctx.overflowed else self.keep_turns
        first = len(turns)
        while first > 0 and len(turns) - first < most:
            allowed -= estimate_tokens(turns[first - 1])
            if allowed < 0:
                break
            first -= 1
        return [*chain(*turns[:first])], [*chain(*turns[first:])]

    def _record(self, messages: list[Message], most_chars: int) -> str:
        """The messages as text, each shortened if all of them are too long."""
        redact: Callable[[Message], Message] | None = self.session.extensions.get("redact")
        told = [_told(message if redact is None else redact(message)) for message in messages]
        if sum(map(len, told)) > most_chars:
            told = [_shortened(one, most_chars // len(told)) for one in told]
        return "\n\n".join(told)


def _is_worth_it(older: list[Message], allowed: int) -> bool:
    """Not if there is one message, a summary most likely, nor if something else fills the window."""
    return len(older) > 1 and estimate_tokens(older) > allowed // 10


def _told(message: Message) -> str:
    if isinstance(message, ToolMessage):
        return f"Result of {message.name}(): {_shortened(result_text(message), _RESULT_CHARS)}"
    if isinstance(message, AssistantMessage):
        calls = [f"calls {call.name}({_arguments(call)})" for call in message.tool_calls]
        return "\n".join(["Assistant: " + message.text, *calls])
    parts = () if isinstance(message.content, str) else message.content
    files = [f"[{part.name or part.media_type}]" for part in parts if isinstance(part, AttachmentPart)]
    return "\n".join(["User: " + text_of(message.content), *files])


def _arguments(call: ToolCall) -> str:
    given = call.raw if call.arguments is None else msgspec.json.encode(call.arguments).decode()
    return _shortened(given or "", _RESULT_CHARS)


def _shortened(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [...] {text[len(text) - half :]}"


def _uncharged(message: Message) -> Message:
    return (
        msgspec.structs.replace(message, usage=Usage()) if isinstance(message, AssistantMessage) else message
    )
