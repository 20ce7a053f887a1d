"""A session's messages as the model of the code protocol wrote them and reads them.

Rules
-----
1. Cells and their results are text, even a cell that the model sent as a native call: a provider would refuse
   a call without its result.
2. Results of other calls come right after the reply that requested them, as providers want it.
"""

from __future__ import annotations

import msgspec

from standfast.model.cell import RUN_CODE
from standfast.model.language import Language
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.protocols.code.values import is_followed_by
from standfast.protocols.standard.model_call import with_inputs_named


class WrittenMessages:
    """The messages as the model reads them. Those converted before are not converted again."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._known: list[Message] = []
        self._written: list[Message] = []

    def of(self, messages: list[Message]) -> list[Message]:
        if not is_followed_by(self._known, messages):
            self._known, self._written = [], []
        # The messages before the last reply are final: nothing is inserted between them.
        done = len(messages) - 1
        while done > 0 and isinstance(messages[done], ToolMessage):
            done -= 1
        new = messages[len(self._known) : max(done, 0)]
        self._known += new
        self._written += self._made(new)
        return self._written + self._made(messages[len(self._known) :])

    def _made(self, messages: list[Message]) -> list[Message]:
        """Convert messages, with the results of cells after those of other calls of the same reply."""
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
        return [as_written(message, self._language) for message in [*ordered, *cells]]


def as_written(message: Message, language: Language = Language.PYTHON) -> Message:
    """Return a message as the model wrote it, or reads it."""
    if isinstance(message, ToolMessage) and message.name == RUN_CODE:
        return UserMessage(content=_result_text(message))
    if not isinstance(message, AssistantMessage):
        return with_inputs_named(message)
    cells = [call for call in message.tool_calls if call.name == RUN_CODE]
    if not cells and message.raw is None:
        return message
    text, added = (message.text, cells) if message.raw is None else (message.raw, cells[1:])
    return msgspec.structs.replace(
        message,
        text="\n\n".join(filter(None, [text, *(_fence(call, language) for call in added)])),
        raw=None,
        tool_calls=tuple(call for call in message.tool_calls if call.name != RUN_CODE),
    )


def _fence(call: ToolCall, language: Language) -> str:
    code = (call.arguments or {}).get("code")
    if not isinstance(code, str):
        code = call.raw or ""
    ticks = "````" if "```" in code else "```"
    return f"{ticks}{language}\n{code}\n{ticks}"


def _result_text(message: ToolMessage) -> str:
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        hint = f"\nhint: {message.error.hint}" if message.error.hint else ""
        return f"[cell] failed\nerror:\n{message.error.code}: {message.error.message}{hint}"
    value = message.value
    return f"[cell]\n{value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
