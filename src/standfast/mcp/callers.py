"""Clients of Standfast as an MCP server: their permissions and their sessions.

Rule: every request is authorized by its own credential. A connection grants nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from standfast.model.approval import Approval
from standfast.model.session import SessionHead, SessionId

SCOPE_KEY: Final = "standfast.mcp_caller"
"""The ASGI scope key of a request's caller."""


class McpCaller:
    """The owner of the data directory, such as the client on stdio, with all permissions."""

    tenant: str | None = None
    """The tenant whose snapshots it may restore; None for all."""

    def may(self, scope: str) -> bool:
        """Return whether the caller has the scope "read", "run", "approve" or "admin"."""
        return True

    def require(self, scope: str) -> None:
        """Raise if the caller lacks *scope*, or if the server accepts no more such requests."""

    def own_id(self, given: str) -> str:
        """Return the stored form of a session id that the client sent."""
        return SessionId(given)

    def owns(self, head: SessionHead) -> bool:
        return True

    def owns_id(self, stored: str) -> bool:
        return True

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The owner metadata of new sessions."""
        return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a turn or run while it is in progress."""
        yield

    def decided_by(self, client: str) -> str:
        """Return the name to record as the decider of an approval."""
        return f"mcp:{client}"[:200]

    def decided(self, approval: Approval) -> None:
        """Record that an approval was decided."""


def caller_of(ctx: Any) -> McpCaller:
    """Return the caller of a request."""
    request = ctx.request
    found = None if request is None else request.scope.get(SCOPE_KEY)
    return found if isinstance(found, McpCaller) else McpCaller()
