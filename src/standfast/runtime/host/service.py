"""What the services of a host have in common: whose host it is, and which sessions it may name.

Rules
-----
1. A session that another one made sees itself and what is below it; things may be handed to those above it as
   well. A session that nobody made sees all of them, and so does the host program.
2. Whoever may not see a session is told that there is none.
3. A runtime that is closed has no services.
"""

from __future__ import annotations

from standfast.errors import ServiceUnavailable, SessionNotFound
from standfast.model.session import SessionHead
from standfast.runtime.host.background import BackgroundServices
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.sessions.live_session import LiveSession
from standfast.tools.no_host import SERVICES


class HostService:
    """One service of one session's host, or all of them: the services are subclasses."""

    __slots__ = ("_background", "_directory", "_sees_all", "services", "session_id")

    def __init__(
        self,
        directory: SessionDirectory,
        background: BackgroundServices,
        session_id: str,
        *,
        sees_all: bool = False,
    ) -> None:
        self._directory = directory
        self._background = background
        self._sees_all = sees_all
        self.services = directory.services
        self.session_id = session_id

    @property
    def is_open(self) -> bool:
        """Whether the runtime still has services."""
        return self._directory.is_open

    def _require_open(self, method: str) -> None:
        """Raise `ServiceUnavailable` once the runtime is closed."""
        if not self._directory.is_open:
            raise ServiceUnavailable(SERVICES[method], "the runtime is closed")

    async def _head(self, method: str, session_id: str, *, upward: bool = False) -> SessionHead:
        """The session of this id, if it is there for whoever asks."""
        self._require_open(method)
        head = await self.services.store.head(session_id)
        if head is None or not await self._sees(head, upward):
            raise SessionNotFound(session_id)
        return head

    async def _live(self, method: str, session_id: str) -> LiveSession:
        """The session with its agent; `ServiceUnavailable` if that is not known here."""
        head = await self._head(method, session_id)
        live = await self._directory.at_work(head)
        if live is None:
            raise ServiceUnavailable(SERVICES[method], f"no agent is known here for session {session_id!r}")
        return live

    async def _sees(self, head: SessionHead, upward: bool) -> bool:
        if self._sees_all or head.session_id == self.session_id:
            return True
        own = await self._directory.store.head(self.session_id)
        if own is None:
            return False
        if parent_of(own) is None or await self._is_above(self.session_id, head):
            return True
        return upward and await self._is_above(head.session_id, own)

    async def _is_above(self, session_id: str, head: SessionHead) -> bool:
        """Whether the session has made the other one, or what made that."""
        at: SessionHead | None = head
        while at is not None and (parent := parent_of(at)) is not None:
            if parent == session_id:
                return True
            at = await self._directory.store.head(parent)
        return False


def parent_of(head: SessionHead) -> str | None:
    """The session that made this one."""
    return None if head.charter is None else head.charter.parent_session_id
