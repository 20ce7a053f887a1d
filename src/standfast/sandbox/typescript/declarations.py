"""What the compiler and hints are told about a session's functions; see `tools.typescript_stubs`."""

from __future__ import annotations

from standfast.ports.code_engine import CellFunctions
from standfast.tools import typescript_stubs
from standfast.tools.typescript_stubs import declaration_of, overloads_of, signature_of, type_of


def declarations(functions: CellFunctions) -> str:
    """One declaration per function."""
    return typescript_stubs.declarations(functions.capability(name) for name in functions.names())


__all__ = ["declaration_of", "declarations", "overloads_of", "signature_of", "type_of"]
