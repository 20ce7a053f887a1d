"""The HTTP clients of one model: one for each event loop that it is used in.

Theory of operation
-------------------
Connections belong to an event loop, and an agent may be used in several, one after the other (`run_sync`
makes one each time) or at once. A client is made when a loop first needs it. A generator that waits in the
loop closes it: `asyncio.run` ends every waiting generator before it closes the loop, so no connection is left
behind, and nobody has to be told. The generator is kept until then, whatever becomes of the model: closing
takes a few turns of the loop, and a model is often dropped when there are none left. The clients of models
that were dropped are closed when another model is first used in the loop.

Rules
-----
1. Proxies and certificates come from the environment as users expect; user names and passwords do not.
2. Neither redirects nor cookies are followed or kept: a call goes to its address and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl

    import httpx2

_Keeper = AsyncGenerator[None]


class _Waiting:
    """The generators that wait in one loop, and those among them whose model is gone."""

    __slots__ = ("keepers", "orphans")

    def __init__(self) -> None:
        self.keepers: set[_Keeper] = set()
        self.orphans: list[_Keeper] = []

    async def close(self, keeper: _Keeper) -> None:
        self.keepers.discard(keeper)
        await keeper.aclose()

    async def close_orphans(self) -> None:
        while self.orphans:
            await self.close(self.orphans.pop())


_loops: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting]] = weakref.WeakKeyDictionary()


class Clients:
    """A client for the loop that runs."""

    __slots__ = ("__weakref__", "_connect_s", "_kept")

    def __init__(self, connect_s: float) -> None:
        self._connect_s = connect_s
        self._kept: dict[asyncio.AbstractEventLoop, tuple[httpx2.AsyncClient, _Keeper]] = {}

    async def here(self) -> httpx2.AsyncClient:
        """The client of this loop."""
        loop = asyncio.get_running_loop()
        found = self._kept.get(loop)
        return await self._made(loop) if found is None else found[0]

    async def close(self) -> None:
        """Close what this loop has open; what others have goes with them."""
        loop = asyncio.get_running_loop()
        found = self._kept.pop(loop, None)
        if found is not None:
            await _loops[loop].close(found[1])

    async def _made(self, loop: asyncio.AbstractEventLoop) -> httpx2.AsyncClient:
        for closed in [one for one in self._kept if one.is_closed()]:
            del self._kept[closed]
        waiting = _loops.setdefault(loop, _Waiting())
        client = _new_client(self._connect_s)
        keeper = _closed_with_loop(client)
        self._kept[loop] = client, keeper
        waiting.keepers.add(keeper)
        weakref.finalize(self, waiting.orphans.append, keeper).atexit = False
        await anext(keeper)
        await waiting.close_orphans()
        return client


async def _closed_with_loop(client: httpx2.AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


def _new_client(connect_s: float) -> httpx2.AsyncClient:
    from http.cookiejar import CookieJar, DefaultCookiePolicy
    from importlib.metadata import version

    import httpx2

    return httpx2.AsyncClient(
        verify=_certificates(),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        auth=httpx2.Auth(),
        headers={"user-agent": f"standfast/{version('standfast')}", "accept": "text/event-stream"},
        timeout=httpx2.Timeout(None, connect=connect_s),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=60),
        follow_redirects=False,
    )


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Whom to trust. It is read once: that takes longer than everything else about a client."""
    import httpx2

    return httpx2.create_ssl_context()
