"""The HTTP clients of one model: one for each event loop that it is used in.

Theory of operation
-------------------
Connections belong to an event loop, and an agent may be used in several, one after the other (`run_sync`
makes one each time) or at once. A client is made when a loop first needs it. A generator that waits in the
loop closes it: `asyncio.run` ends every waiting generator before it closes the loop, so no connection is left
behind, and nobody has to be told.

Rules
-----
1. Proxies and certificates come from the environment as users expect; user names and passwords do not.
2. Neither redirects nor cookies are followed or kept: a call goes to its address and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    import httpx2


class Clients:
    """A client for the loop that runs."""

    __slots__ = ("_connect_s", "_keepers", "_kept")

    def __init__(self, connect_s: float) -> None:
        self._connect_s = connect_s
        self._kept: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}
        self._keepers: dict[asyncio.AbstractEventLoop, AsyncGenerator[None]] = {}

    async def here(self) -> httpx2.AsyncClient:
        """The client of this loop."""
        loop = asyncio.get_running_loop()
        client = self._kept.get(loop)
        if client is None:
            self._forget_closed()
            client = self._kept[loop] = _new_client(self._connect_s)
            keeper = self._keepers[loop] = _closed_with_loop(client)
            await anext(keeper)
        return client

    async def close(self) -> None:
        """Close what this loop has open; what others have goes with them."""
        loop = asyncio.get_running_loop()
        self._kept.pop(loop, None)
        keeper = self._keepers.pop(loop, None)
        if keeper is not None:
            await keeper.aclose()

    def _forget_closed(self) -> None:
        for loop in [one for one in self._kept if one.is_closed()]:
            del self._kept[loop], self._keepers[loop]


async def _closed_with_loop(client: httpx2.AsyncClient) -> AsyncGenerator[None]:
    """Knows nothing of whoever keeps it: so a model that is dropped closes its client at once."""
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
        headers={"user-agent": f"holdfast/{version('holdfast')}", "accept": "text/event-stream"},
        timeout=httpx2.Timeout(None, connect=connect_s),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=60),
        follow_redirects=False,
    )


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Whom to trust. It is read once: that takes longer than everything else about a client."""
    import httpx2

    return httpx2.create_ssl_context()
