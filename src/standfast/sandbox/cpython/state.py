"""The stored form of a CPython session, and of a suspended cell of one.

The payload is a pickle, which only a jail ever loads; this module treats it as opaque bytes. Pickled
functions contain byte code, so a state belongs to one minor version of Python.
"""

from __future__ import annotations

import sys
from typing import Final, TypeVar

import msgspec

from standfast.errors import Code, SnapshotRefused
from standfast.sandbox.cell_lifecycle import PausedCell, decoded, read_former_cell

ENGINE: Final = "cpython"
FORMAT: Final = 1
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


class CPythonState(msgspec.Struct, frozen=True, kw_only=True):
    """A session between two cells. If it is `plain`, no operator on its values has side effects."""

    payload: bytes
    names: list[str] = msgspec.field(default_factory=list)
    plain: bool = False
    engine: str = ENGINE
    version: str = VERSION
    format: int = FORMAT


class CPythonDump(msgspec.Struct, frozen=True, kw_only=True):
    """The data for replaying a cell, besides its calls. In `loaded`, None marks a name without a value."""

    code: str
    state: bytes
    inputs: dict[str, bytes]
    loaded: dict[str, bytes | None]
    seed: str
    engine: str = ENGINE
    version: str = VERSION
    format: int = FORMAT


class _FormerCell(msgspec.Struct, frozen=True, kw_only=True):
    """A field that only the former format has: the numbers of the unanswered calls."""

    waiting: list[int]


class _Header(msgspec.Struct, frozen=True):
    engine: str
    version: str = ""
    format: int = 0


Stored = TypeVar("Stored", CPythonState, CPythonDump)


def encode_state(state: CPythonState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_state(data: bytes) -> CPythonState | None:
    """Decode a state, None if *data* is empty; raise `SnapshotRefused` if another engine wrote it."""
    return _read(CPythonState, data, "session's state") if data else None


def encode_dump(dump: CPythonDump) -> bytes:
    return msgspec.msgpack.encode(dump)


def decode_dump(data: bytes) -> CPythonDump:
    return _read(CPythonDump, data, "suspended cell")


def read_cell(data: bytes) -> PausedCell:
    """Read a cell of the former format, which had the fields of `CPythonDump` beside the common ones."""
    cell = read_former_cell(data, encode_dump(decode_dump(data)))
    waiting = msgspec.msgpack.decode(data, type=_FormerCell).waiting
    return msgspec.structs.replace(cell, calls=dict.fromkeys(waiting, 0))


def _read(kind: type[Stored], data: bytes, what: str) -> Stored:
    header = decoded(_Header, data, what)
    if (header.engine, header.version, header.format) == (ENGINE, VERSION, FORMAT):
        return decoded(kind, data, what)
    raise SnapshotRefused(
        Code.SNAPSHOT_VERSION_MISMATCH,
        f"the {what} was stored by {header.engine} {header.version} (format {header.format}), "
        f"this is {ENGINE} {VERSION} (format {FORMAT})",
        hint="reset the session, or use the Python version and the Standfast release that wrote it",
    )
