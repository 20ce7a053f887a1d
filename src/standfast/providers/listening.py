"""Reading another provider's stream, as every decorator does.

Rule: the stream is closed when its reader stops, so that the call behind it ends at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from standfast.ports.model_provider import ModelDelta, ModelProvider, ModelRequest


@asynccontextmanager
async def listening(model: ModelProvider, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelDelta]]:
    """`async with listening(model, request) as deltas`: the reply as it comes."""
    stream = model.stream(request)
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
