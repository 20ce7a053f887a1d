"""A session's messages as the model of the code protocol has written them, and reads them.

Rules
-----
1. Cells and what came of them are text. A cell that the model handed over as a call of its own, though it was
   offered none, is text as well: a provider would refuse a call without its result.
2. Results of other calls come right after the reply that asked for them, as providers want it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from standfast.model.cell import RUN_CODE
from standfast.model.language import Language
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.protocols.code.following import is_followed_by
from standfast.protocols.standard.model_call import with_inputs_named


class WrittenMessages:
    """What the model is shown of a session's messages. Those known from before are not made again."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._known: list[Message] = []
        self._written: list[Message] = []

    def of(self, messages: list[Message]) -> list[Message]:
        if not is_followed_by(self._known, messages):
            self._known, self._written = [], []
        done = _end_of_rounds(messages)
        new = messages[len(self._known) : done]
        self._known += new
        self._written += self._made(new)
        return self._written + self._made(messages[len(self._known) :])

    def _made(self, messages: list[Message]) -> list[Message]:
        return [as_written(message, self._language) for message in _calls_first(messages)]


def _end_of_rounds(messages: list[Message]) -> int:
    """How many of the messages come before the last reply: nothing can come in between those."""
    for place in range(len(messages) - 1, -1, -1):
        if not isinstance(messages[place], ToolMessage):
            return place
    return 0


def as_written(message: Message, language: Language = Language.PYTHON) -> Message:
    """A message as the model has written it, or reads it."""
    if isinstance(message, AssistantMessage):
        return _reply(message, language)
    if isinstance(message, ToolMessage) and message.name == RUN_CODE:
        return UserMessage(content=_read_as(message))
    return with_inputs_named(message)


def _calls_first(messages: Iterable[Message]) -> list[Message]:
    """The messages with what came of cells after what came of other calls of the same reply."""
    ordered: list[Message] = []
    cells: list[Message] = []
    for message in messages:
        if isinstance(message, ToolMessage) and message.name == RUN_CODE:
            cells.append(message)
            continue
        if cells and not isinstance(message, ToolMessage):
            ordered += cells
            cells = []
        ordered.append(message)
    return ordered + cells


def _reply(message: AssistantMessage, language: Language) -> AssistantMessage:
    cells = [call for call in message.tool_calls if call.name == RUN_CODE]
    if not cells and message.raw is None:
        return message
    text, added = (message.text, cells) if message.raw is None else (message.raw, cells[1:])
    pieces = [text, *(_fence(call, language) for call in added)]
    return msgspec.structs.replace(
        message,
        text="\n\n".join(filter(None, pieces)),
        raw=None,
        tool_calls=tuple(call for call in message.tool_calls if call.name != RUN_CODE),
    )


def _fence(call: ToolCall, language: Language) -> str:
    code = (call.arguments or {}).get("code")
    if not isinstance(code, str):
        code = call.raw or ""
    ticks = "````" if "```" in code else "```"
    return f"{ticks}{language}\n{code}\n{ticks}"


def _read_as(message: ToolMessage) -> str:
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        hint = f"\nhint: {message.error.hint}" if message.error.hint else ""
        return f"[cell] failed\nerror:\n{message.error.code}: {message.error.message}{hint}"
    value = message.value
    return f"[cell]\n{value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
