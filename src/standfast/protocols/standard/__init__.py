"""The standard protocol: native tool calls, executed concurrently, with results in the order of the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.protocols.standard.host": "StandardHost",
        "standfast.protocols.standard.plugin": "StandardDriver StandardProtocol",
    },
)

if TYPE_CHECKING:
    from standfast.protocols.standard.host import StandardHost as StandardHost
    from standfast.protocols.standard.plugin import StandardDriver as StandardDriver
    from standfast.protocols.standard.plugin import StandardProtocol as StandardProtocol
