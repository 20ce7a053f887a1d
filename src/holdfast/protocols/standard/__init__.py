"""The standard protocol: native tool calls, concurrent, results in source order."""

from holdfast.protocols.standard.calls import Bench, Seat
from holdfast.protocols.standard.host import OutputContract, Persona, StandardHost

__all__ = ["Bench", "OutputContract", "Persona", "Seat", "StandardHost"]
