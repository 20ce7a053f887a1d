"""A fast path for tool calls over stdio, beside the SDK's own path for everything else.

For each request, the SDK creates a span, three models and two streams, and passes it through four tasks. A
call made here is one write, and one future that the pipe's reader resolves.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from anyio import BrokenResourceError
from mcp import MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED

from standfast.mcp.stdio import IncomingMessages, OutgoingMessages

_FIRST_ID: Final = 1_000_000
"""Far above the ids of the SDK's own requests, which start at 1."""


class _Message(msgspec.Struct):
    """A reply or a progress notification; a server may put anything into the fields."""

    id: Any = None
    method: Any = None
    params: Any = None
    result: Any = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Message).decode


class StdioCalls:
    """Tool calls over the pipes of a child process, beside the SDK's session on the same pipes."""

    def __init__(self, incoming: IncomingMessages, outgoing: OutgoingMessages) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._last_id = _FIRST_ID
        self._calls: dict[int, tuple[asyncio.Future[dict[str, Any]], ProgressFnT]] = {}
        incoming.take_reply = self._take
        incoming.on_end = self._end

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: ProgressFnT) -> dict[str, Any]:
        """Call a tool and return the raw result. An abandoned call is cancelled at the server."""
        if self._incoming.has_ended:
            raise _closed()
        self._last_id = number = self._last_id + 1
        meta = {**self._outgoing.listing_meta, "progressToken": number}
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = (reply, on_progress)
        try:
            params = {"name": tool, "arguments": arguments, "_meta": meta}
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            await self._outgoing.write(message)
            return await reply
        except BrokenResourceError:
            raise _closed() from None
        except asyncio.CancelledError:
            about = {"requestId": number, "reason": "the caller has given it up"}
            self._outgoing.write_soon(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": about}
            )
            raise
        finally:
            del self._calls[number]
            reply.cancel()

    async def _take(self, line: bytes) -> bool:
        """Consume *line* if it replies to a call made here or reports its progress; return whether it did."""
        if not self._calls:
            return False
        message = _decode(line)
        if message.method == "notifications/progress":
            return await self._progress(message.params)
        if message.method is not None or not isinstance(message.id, int) or message.id not in self._calls:
            return False
        reply, error = self._calls[message.id][0], message.error
        if reply.done():
            return True
        if isinstance(message.result, dict) and error is None:
            reply.set_result(message.result)
        elif isinstance(error, dict) and isinstance(error.get("message"), str):
            code = error.get("code")
            known = code if isinstance(code, int) else 0
            reply.set_exception(MCPError(known, error["message"], error.get("data")))
        else:
            reply.set_exception(ValueError("its reply is neither a result nor an error"))
        return True

    async def _progress(self, params: Any) -> bool:
        token = params.get("progressToken") if isinstance(params, dict) else None
        if not isinstance(token, int) or token not in self._calls:
            return False
        done, total, said = (params.get(key) for key in ("progress", "total", "message"))
        report = self._calls[token][1]
        if isinstance(done, (int, float)):
            await report(
                done,
                total if isinstance(total, (int, float)) else None,
                said if isinstance(said, str) else None,
            )
        return True

    def _end(self) -> None:
        for reply, _ in self._calls.values():
            if not reply.done():
                reply.set_exception(_closed())


def _closed() -> MCPError:
    return MCPError(CONNECTION_CLOSED, "Connection closed")
