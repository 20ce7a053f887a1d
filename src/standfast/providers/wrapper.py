"""What models around other models have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest


@asynccontextmanager
async def open_stream(
    model: ModelProvider, request: ModelRequest
) -> AsyncIterator[AsyncIterator[ModelDelta]]:
    """Stream a reply of *model*; close the stream with the context, so that its call ends at once."""
    stream = model.stream(request)
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


class ModelWrapper:
    """A model around another one, with the same id. A subclass has `stream`."""

    def __init__(self, model: ModelProvider) -> None:
        self._model = model

    @property
    def model_id(self) -> str:
        return self._model.model_id

    async def close(self) -> None:
        await self._model.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model_id}>"
