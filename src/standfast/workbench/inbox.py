"""The pending approval requests of every session that a credential may see."""

from __future__ import annotations

from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary

from standfast.model.approval import Approval
from standfast.runtime.agent_runtime import Runtime
from standfast.server.calls import Call

_KEPT_S: Final = 0.5
_MANY: Final = 50


class Inbox:
    """A cache of pending approvals for all viewers of one runtime, refreshed at most every half second.

    `forget` forces a refresh. A session's owner never changes, so owners are cached forever.

    Rule: requests become visible together with their owners, as of when the read began. So a viewer arriving
    during a read neither misses requests whose owner is still unknown nor sees invalidated ones.
    """

    def __init__(self) -> None:
        self._owners: dict[str, str | None] = {}
        self._found: list[Approval] = []
        self._read_at = self._forgotten_at = float("-inf")

    def forget(self) -> None:
        """Invalidate the cache, because the requests may have changed."""
        self._forgotten_at = monotonic()

    async def pending(self, runtime: Runtime, tenant: str) -> list[Approval]:
        """Return the tenant's requests that can still be decided, oldest first."""
        if self._read_at <= max(self._forgotten_at, monotonic() - _KEPT_S):
            begun_at = monotonic()
            found = await runtime.approvals(pending=True)
            unknown = {one.session_id for one in found} - self._owners.keys()
            if len(unknown) > _MANY:
                heads = await runtime.sessions()
            else:
                heads = [head for one in unknown if (head := await runtime.store.head(one)) is not None]
            self._owners.update({head.session_id: head.tenant for head in heads})
            if begun_at > self._read_at:
                self._found, self._read_at = found, begun_at
        now = runtime.now_ms()
        return [
            one for one in self._found if now < one.expires_at and self._owners.get(one.session_id) == tenant
        ]


_inboxes: WeakKeyDictionary[Runtime, Inbox] = WeakKeyDictionary()


def inbox_of(runtime: Runtime) -> Inbox:
    found = _inboxes.get(runtime)
    if found is None:
        found = _inboxes[runtime] = Inbox()
    return found


async def pending(call: Call) -> list[Approval]:
    """Return the requests that the credential may see and that can still be decided, oldest first."""
    return await inbox_of(call.runtime).pending(call.runtime, call.tenant)


async def count_pending(call: Call) -> int:
    return len(await pending(call))
