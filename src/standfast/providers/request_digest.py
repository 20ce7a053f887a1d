"""What a request asks, as bytes and as a digest: equal for two requests that ask the same.

Rules
-----
1. Whatever a model would read counts: messages, instructions, tools, the schema of the answer, settings.
   Whatever only tells calls apart does not: ids, numbers, keys, usage, times.
2. A digest is all that is ever written down of a request.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.model.canonical import Json, digest_bytes
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolMessage, UserMessage
from standfast.ports.model_provider import ModelRequest

_BYTES_PER_TOKEN: Final = 4
_TOKENS_OF_AN_ATTACHMENT: Final = 1_000


def request_digest(request: ModelRequest) -> str:
    """Lower-case hex SHA3-256 of what is asked, whoever is asked."""
    return digest_bytes(_request_bytes(request))


def estimated_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has, from its size."""
    return len(_request_bytes(request)) // _BYTES_PER_TOKEN + _attachments(request) * _TOKENS_OF_AN_ATTACHMENT


def _request_bytes(request: ModelRequest) -> bytes:
    asked = (
        request.instructions,
        [_said(message) for message in request.messages],
        [(tool.name, tool.description, tool.input_schema) for tool in request.tools],
        request.output_schema,
        request.settings,
    )
    return msgspec.json.encode(asked, order="sorted")


def _said(message: Message) -> Json:
    if isinstance(message, UserMessage):
        return ("user", message.content)
    if isinstance(message, AssistantMessage):
        calls = [(call.call_id, call.name, call.arguments, call.raw) for call in message.tool_calls]
        return ("assistant", message.text, calls, message.reasoning)
    return ("tool", message.call_id, message.name, _result(message))


def _result(message: ToolMessage) -> Json:
    """What the model reads of a call's result."""
    if message.shown is not None:
        return message.shown
    return message.value if message.error is None else (message.error.code, message.error.message)


def _attachments(request: ModelRequest) -> int:
    contents = [message.content for message in request.messages if isinstance(message, UserMessage)]
    return sum(
        isinstance(part, AttachmentPart)
        for content in contents
        if not isinstance(content, str)
        for part in content
    )
