"""Helpers that call models, for the tests of models that wrap others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from standfast.model.message import UserMessage
from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest, ReplyEnded


def request(said: str = "hi", number: int = 1, *, attempt: int = 1) -> ModelRequest:
    return ModelRequest(messages=[UserMessage(content=said)], call_number=number, attempt=attempt)


async def heard(model: ModelProvider, asked: ModelRequest | None = None) -> list[ModelDelta]:
    """Return all deltas with which a model answers a request."""
    return [delta async for delta in model.stream(asked or request())]


def deltas(model: ModelProvider, asked: ModelRequest | None = None) -> list[ModelDelta]:
    return asyncio.run(heard(model, asked))


def ended(model: ModelProvider, asked: ModelRequest | None = None) -> ReplyEnded:
    last = deltas(model, asked)[-1]
    assert isinstance(last, ReplyEnded)
    return last


class Giving:
    """A model that yields these deltas, raises these errors, and counts the calls."""

    def __init__(self, *given: ModelDelta | Exception, model_id: str = "giving:1") -> None:
        self.model_id = model_id
        self.asked = 0
        self.closed = 0
        self.streams_closed = 0
        self._given = given

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.asked += 1
        try:
            for one in self._given:
                if isinstance(one, Exception):
                    raise one
                yield one
        finally:
            self.streams_closed += 1

    async def close(self) -> None:
        self.closed += 1
