"""The standard protocol: native tool calls, concurrent, results in source order."""

from standfast.protocols.standard.host import StandardHost
from standfast.protocols.standard.plugin import StandardDriver, StandardProtocol

__all__ = ["StandardDriver", "StandardHost", "StandardProtocol"]
