"""The digest of a request, which is all that is ever written of it.

Rule: everything that a model would read counts (messages, instructions, tools, the schema of the answer,
settings); ids, numbers, keys, usage and times do not.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.model.canonical import Json, digest_bytes
from standfast.model.message import AssistantMessage, AttachmentPart, UserMessage
from standfast.ports.model_provider import ModelRequest

_BYTES_PER_TOKEN: Final = 4
_TOKENS_OF_AN_ATTACHMENT: Final = 1_000


def request_digest(request: ModelRequest) -> str:
    """Return the lower-case hex SHA3-256 of a request's content, independent of the model."""
    return digest_bytes(_request_bytes(request))


def estimated_tokens(request: ModelRequest) -> int:
    """Estimate the number of tokens of a request from its size."""
    contents = [message.content for message in request.messages if isinstance(message, UserMessage)]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    attachments = sum(isinstance(part, AttachmentPart) for part in parts)
    return len(_request_bytes(request)) // _BYTES_PER_TOKEN + attachments * _TOKENS_OF_AN_ATTACHMENT


def _request_bytes(request: ModelRequest) -> bytes:
    messages: list[Json] = []
    for message in request.messages:
        if isinstance(message, UserMessage):
            messages.append(("user", message.content))
        elif isinstance(message, AssistantMessage):
            calls = [(call.call_id, call.name, call.arguments, call.raw) for call in message.tool_calls]
            messages.append(("assistant", message.text, calls, message.reasoning))
        else:
            result: Json = message.shown
            if result is None:
                error = message.error
                result = message.value if error is None else (error.code, error.message)
            messages.append(("tool", message.call_id, message.name, result))
    tools = [(tool.name, tool.description, tool.input_schema) for tool in request.tools]
    asked = (request.instructions, messages, tools, request.output_schema, request.settings)
    return msgspec.json.encode(asked, order="sorted")
