"""The HTTP clients of one model: one for each event loop that uses it.

Connections belong to an event loop, and an agent may be used in several loops, in sequence (`run_sync`
creates one each time) or at once. A client is created when a loop first needs it. A suspended async generator
closes it: `asyncio.run` closes every suspended generator before it closes the loop, so no connection is left
open. The generator is kept until then even if its model is garbage-collected, because closing takes a few
iterations of the loop. The clients of collected models are closed when another model is first used in the
loop.

Rules
-----
1. Proxies and certificates come from the environment; user names and passwords do not.
2. A client follows no redirects and keeps no cookies.
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

_Closer = AsyncGenerator[None]


class _LoopClosers:
    """The suspended generators of one loop, and those whose model was garbage-collected."""

    __slots__ = ("closers", "orphans")

    def __init__(self) -> None:
        self.closers: set[_Closer] = set()
        self.orphans: list[_Closer] = []

    async def close(self, closer: _Closer) -> None:
        self.closers.discard(closer)
        await closer.aclose()


_loops: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClosers]] = (
    weakref.WeakKeyDictionary()
)


class LoopClients:
    """One client for each event loop."""

    __slots__ = ("__weakref__", "_clients", "_connect_s")

    def __init__(self, connect_s: float) -> None:
        self._connect_s = connect_s
        self._clients: dict[asyncio.AbstractEventLoop, tuple[httpx2.AsyncClient, _Closer]] = {}

    async def get(self) -> httpx2.AsyncClient:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is not None:
            return found[0]
        for closed in [one for one in self._clients if one.is_closed()]:
            del self._clients[closed]
        of_loop = _loops.setdefault(loop, _LoopClosers())
        from http.cookiejar import CookieJar, DefaultCookiePolicy
        from importlib.metadata import version

        import httpx2

        client = httpx2.AsyncClient(
            verify=_ssl_context(),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            auth=httpx2.Auth(),
            headers={"user-agent": f"standfast/{version('standfast')}", "accept": "text/event-stream"},
            timeout=httpx2.Timeout(None, connect=self._connect_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=60),
            follow_redirects=False,
        )
        closer = _close_with_loop(client)
        self._clients[loop] = client, closer
        of_loop.closers.add(closer)
        weakref.finalize(self, of_loop.orphans.append, closer).atexit = False
        await anext(closer)
        while of_loop.orphans:
            await of_loop.close(of_loop.orphans.pop())
        return client

    async def close(self) -> None:
        """Close the client of the running loop; other loops close theirs."""
        loop = asyncio.get_running_loop()
        found = self._clients.pop(loop, None)
        if found is not None:
            await _loops[loop].close(found[1])


async def _close_with_loop(client: httpx2.AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """Load the trusted certificates once, because this dominates the cost of a client."""
    import httpx2

    return httpx2.create_ssl_context()
