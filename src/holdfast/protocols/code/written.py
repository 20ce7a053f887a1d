"""A session's messages as the model of the code protocol has written them, and reads them."""

from __future__ import annotations

import msgspec

from holdfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from holdfast.protocols.code.cell_history import RUN_CODE
from holdfast.protocols.standard.host import with_inputs_named


def as_written(message: Message) -> Message:
    """A message as the model has written it, or reads it: cells and what came of them are text to it."""
    if isinstance(message, AssistantMessage) and message.raw is not None:
        others = tuple(call for call in message.tool_calls if call.name != RUN_CODE)
        return msgspec.structs.replace(message, text=message.raw, raw=None, tool_calls=others)
    if isinstance(message, ToolMessage) and message.name == RUN_CODE:
        return UserMessage(content=_read_as(message))
    return with_inputs_named(message)


def _read_as(message: ToolMessage) -> str:
    if message.shown is not None:
        return message.shown
    if message.error is not None:
        return f"[cell] failed\nerror: {message.error.code}: {message.error.message}"
    return f"[cell]\n{msgspec.json.encode(message.value).decode()}"
