"""Who uses Standfast as an MCP server: what the client may do, and which sessions are its own.

Rule: every request is judged by its own credential. A connection grants nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from standfast.model.approval import Approval
from standfast.model.session import SessionHead, SessionId

SCOPE_KEY: Final = "standfast.mcp_caller"
"""Where the ASGI scope of a request has its caller."""


class McpCaller:
    """The owner of the data directory, such as the client on stdio: it may do everything."""

    tenant: str | None = None
    """Whose snapshots it may restore; None for all."""

    def may(self, scope: str) -> bool:
        """Return whether it may "read", "run" or "approve"."""
        return True

    def require(self, scope: str) -> None:
        """Raise if it may not do what needs *scope*, or if the server takes no more of it."""

    def own_id(self, given: str) -> str:
        """Return the stored form of a session id that the client gave."""
        return SessionId(given)

    def owns(self, head: SessionHead) -> bool:
        return True

    def owns_id(self, stored: str) -> bool:
        return True

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What new sessions record about their owner."""
        return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a turn or a run while it is under way."""
        yield

    def decided_by(self, client: str) -> str:
        """Return who decides an approval, as the approval records it."""
        return f"mcp:{client}"[:200]

    def decided(self, approval: Approval) -> None:
        """Note that an approval was decided."""


def caller_of(ctx: Any) -> McpCaller:
    """Return the caller of a request."""
    request = ctx.request
    found = None if request is None else request.scope.get(SCOPE_KEY)
    return found if isinstance(found, McpCaller) else McpCaller()
