"""A session of the CPython engine at rest, and a suspended cell of it.

Rules
-----
1. The payload is a pickle that only a jail ever reads. Here it is bytes.
2. Pickled functions are byte code: a state belongs to one minor version of Python.
"""

from __future__ import annotations

import sys
from typing import Final, TypeVar

import msgspec

from standfast.errors import Code, SnapshotRefused
from standfast.sandbox.paused_cell import PausedCell, read_former_cell

ENGINE: Final = "cpython"
FORMAT: Final = 1
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """What a session binds. `plain` tells that it holds no objects whose operators could change anything."""

    payload: bytes
    names: list[str] = msgspec.field(default_factory=list)
    plain: bool = False
    engine: str = ENGINE
    version: str = VERSION
    format: int = FORMAT


class CellDump(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed, besides the record of its calls, to run a cell again.

    `loaded` are the values that it read by name, None where there was none.
    """

    code: str
    state: bytes
    inputs: dict[str, bytes]
    loaded: dict[str, bytes | None]
    seed: str
    engine: str = ENGINE
    version: str = VERSION
    format: int = FORMAT


class FormerCell(msgspec.Struct, frozen=True, kw_only=True):
    """What only a suspended cell of the former format had: the numbers of its calls without an answer."""

    waiting: list[int]


Stored = TypeVar("Stored", SessionState, CellDump)
_encoder: Final = msgspec.msgpack.Encoder()
_states: Final = msgspec.msgpack.Decoder(SessionState)
_dumps: Final = msgspec.msgpack.Decoder(CellDump)


class _Header(msgspec.Struct, frozen=True):
    engine: str
    version: str = ""
    format: int = 0


_headers: Final = msgspec.msgpack.Decoder(_Header)


def encode_state(state: SessionState) -> bytes:
    return _encoder.encode(state)


def decode_state(data: bytes) -> SessionState | None:
    """The state that `encode_state` wrote, None if there is none; another engine's is refused."""
    return _read(_states, data, "session's state") if data else None


def encode_dump(dump: CellDump) -> bytes:
    return _encoder.encode(dump)


def decode_dump(data: bytes) -> CellDump:
    return _read(_dumps, data, "suspended cell")


def read_cell(data: bytes) -> PausedCell:
    """Read a cell of the former format, which had the fields of `CellDump` beside the common ones."""
    cell = read_former_cell(data, encode_dump(decode_dump(data)))
    waiting = msgspec.msgpack.decode(data, type=FormerCell).waiting
    return msgspec.structs.replace(cell, calls=dict.fromkeys(waiting, 0))


def _read(decoder: msgspec.msgpack.Decoder[Stored], data: bytes, what: str) -> Stored:
    try:
        header = _headers.decode(data)
        mine = (header.engine, header.version, header.format) == (ENGINE, VERSION, FORMAT)
        if mine:
            return decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the {what} cannot be read: {error}") from None
    raise SnapshotRefused(
        Code.SNAPSHOT_VERSION_MISMATCH,
        f"the {what} was stored by {header.engine} {header.version} (format {header.format}), "
        f"this is {ENGINE} {VERSION} (format {FORMAT})",
        hint="reset the session, or go back to the Python and the Standfast that wrote it",
    )
