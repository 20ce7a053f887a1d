"""A client of a Standfast server, with the methods of `Runtime` and `Session`.

`Client` is for programs with an event loop, `BlockingClient` for those without. Streams reconnect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.client.blocking": "BlockingClient BlockingRemoteSession",
        "standfast.client.client": "Client",
        "standfast.client.remote_session": "RemoteSession RemoteTurn",
    },
)

if TYPE_CHECKING:
    from standfast.client.blocking import BlockingClient as BlockingClient
    from standfast.client.blocking import BlockingRemoteSession as BlockingRemoteSession
    from standfast.client.client import Client as Client
    from standfast.client.remote_session import RemoteSession as RemoteSession
    from standfast.client.remote_session import RemoteTurn as RemoteTurn
