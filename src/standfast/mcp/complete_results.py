"""A read stream for the SDK's session that adapts results of revision 2026-07-28."""

from __future__ import annotations

from typing import Any, Self

from mcp_types import JSONRPCResponse


class CompleteResults:
    """Forwards the messages of *stream*; once `assumed`, results without a `resultType` count as complete.

    2026-07-28 requires that reading, but the SDK rejects such results.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.assumed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        received = await anext(self._stream)
        message = getattr(received, "message", None)
        if self.assumed and isinstance(message, JSONRPCResponse):
            message.result.setdefault("resultType", "complete")
        return received

    async def receive(self) -> Any:
        return await anext(self)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)
