"""The standard protocol: native tool calls, concurrent, results in source order."""

from holdfast.protocols.standard.host import StandardHost
from holdfast.protocols.standard.plugin import StandardDriver, StandardProtocol

__all__ = ["StandardDriver", "StandardHost", "StandardProtocol"]
