"""The port of models, the same for every provider.

Rules
-----
1. `stream` yields deltas as they arrive and ends with exactly one `ReplyEnded`. A stream that ends without it
   has failed, and its deltas are discarded.
2. Failures are raised as `ModelError`; `retryable` says whether another attempt makes sense. Neither its
   message nor the `repr` of a provider contains a key.
3. Closing the iterator ends the call immediately.
4. A call in `ReplyEnded` has its arguments as the provider sent them: `{}` if it has none. Arguments that the
   end of the reply cut off are not JSON, so the call never runs.
5. `Reasoning` is sent back only to its `origin`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from standfast.model.capability import Capability
from standfast.model.limits import Usage
from standfast.model.message import Message
from standfast.model.message import Reasoning as Reasoning
from standfast.model.message import RequestedCall as RequestedCall


class ModelRequest(msgspec.Struct, frozen=True):
    """A request to the model. A provider must neither change `messages` nor keep them after the reply.

    `call_number` counts the model calls of the session's active path from 1, over all processes; failed
    attempts count, too. `attempt` counts the attempts of this call from 1. `idempotency_key` is the same
    when a call is repeated after a crash. `read_blob` returns the bytes of an attachment by their digest.
    """

    messages: list[Message]
    instructions: str = ""
    tools: tuple[Capability, ...] = ()
    output_schema: dict[str, Any] | None = None
    session_id: str = ""
    turn_id: str = ""
    call_number: int = 1
    idempotency_key: str = ""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    attempt: int = 1
    read_blob: Callable[[str], Awaitable[bytes | None]] | None = None


class TextArrived(msgspec.Struct, frozen=True):
    """A piece of the reply's text."""

    text: str


class ReasoningArrived(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class ReplyEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The whole reply. `model` is the one that served it, `response_id` the provider's id of the reply.

    `stop_reason` is `end`, `tool_calls`, `length`, `stop_sequence`, `refusal`, `content_filter`, or another
    reason in the provider's own words.
    """

    text: str
    calls: tuple[RequestedCall, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    stop_reason: str = "end"
    reasoning: tuple[Reasoning, ...] = ()
    response_id: str = ""


ModelDelta = TextArrived | ReasoningArrived | ReplyEnded


class ModelProvider(Protocol):
    @property
    def model_id(self) -> str:
        """`provider:model`, as sessions record it."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]: ...

    async def close(self) -> None: ...


@asynccontextmanager
async def open_stream(
    model: ModelProvider, request: ModelRequest
) -> AsyncIterator[AsyncIterator[ModelDelta]]:
    """Stream a reply of *model*; on exit, close the stream, which ends its call immediately."""
    stream = model.stream(request)
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


class ModelWrapper:
    """A model that wraps another one and has its id. Subclasses implement `stream`."""

    def __init__(self, model: ModelProvider) -> None:
        self._model = model

    @property
    def model_id(self) -> str:
        return self._model.model_id

    async def close(self) -> None:
        await self._model.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model_id}>"
