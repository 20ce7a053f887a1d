"""Values that several tests of the dialect share: requests, and events as servers send them."""

from __future__ import annotations

from typing import Any

import msgspec

from standfast.model.message import Message
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded
from standfast.providers.http.dialect import PreparedRequest, ServerEvent
from standfast.providers.openai_compatible.reply_reader import OpenAICompatibleReplyReader, ReplyFinished
from standfast.providers.openai_compatible.request import host_of, request_body
from standfast.providers.settings import read_settings

ORIGIN = "openai-compatible http://localhost/v1 m"
LOCAL = "http://localhost/v1"
OPENAI = "https://api.openai.com/v1"
MISTRAL = "https://api.mistral.ai/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
DEEPSEEK = "https://api.deepseek.com"


def asked(
    *messages: Message,
    settings: dict[str, Any] | None = None,
    media: dict[str, bytes] | None = None,
    **more: Any,
) -> PreparedRequest:
    """Return a request to the model `m`."""
    return PreparedRequest(
        model="m",
        request=ModelRequest(messages=list(messages), **more),
        settings=read_settings(settings or {}),
        media=media or {},
        origin=ORIGIN,
    )


def body(*messages: Message, base_url: str = LOCAL, **more: Any) -> dict[str, Any]:
    """Return the request body, as JSON."""
    made = request_body(asked(*messages, **more), host_of(base_url))
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return found


def event(value: Any, name: str = "") -> ServerEvent:
    return ServerEvent(name, value if isinstance(value, bytes) else msgspec.json.encode(value))


DONE = event(b"[DONE]")


def chunk(finish: str | None = None, *, usage: Any = None, **delta: Any) -> ServerEvent:
    """Return a chunk with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "chatcmpl-1", "model": "served", "choices": [choice], "usage": usage})


def usage_chunk(prompt: int = 10, completion: int = 5, **more: Any) -> ServerEvent:
    """Return the chunk with the token count after the last text."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return event({"id": "chatcmpl-1", "model": "served", "choices": [], "usage": usage})


def call_chunk(index: int | None = 0, id: str | None = None, **function: Any) -> ServerEvent:
    """Return a fragment of a tool call."""
    piece: dict[str, Any] = {"function": function}
    piece |= {} if index is None else {"index": index}
    piece |= {} if id is None else {"id": id, "type": "function"}
    return chunk(tool_calls=[piece])


def read(*events: ServerEvent, **more: Any) -> tuple[list[ModelDelta], ReplyEnded]:
    """Return the deltas of the events, and the reply that ends them."""
    reader = OpenAICompatibleReplyReader(asked(**more))
    deltas = [delta for each in events for delta in reader.feed(each) if not isinstance(delta, ReplyFinished)]
    last = deltas.pop()
    assert isinstance(last, ReplyEnded)
    return deltas, last
