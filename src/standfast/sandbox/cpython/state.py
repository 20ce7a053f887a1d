"""A session of the CPython engine at rest, and a cell of it that is suspended.

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


class MadeCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that the code made: what of, in short, and its answer as JSON if it was answered on the spot."""

    digest: bytes
    answer: bytes | None = None


class PausedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that waits: all that is needed to run it again up to there.

    `loaded` are the values that it touched by name, None where there was none. `answers` are in their order,
    with the numbers of their calls; `waiting` are the numbers of calls without an answer, `at` the one of
    them that the code stands at.
    """

    code: str
    state: bytes
    inputs: dict[str, bytes]
    loaded: dict[str, bytes | None]
    began_ms: int
    seed: str
    made: list[MadeCall]
    answers: list[tuple[int, bytes]]
    waiting: list[int]
    at: int | None
    calls_made: int
    stdout: str
    stderr: str
    truncated: bool
    wall_used_ms: int
    memory_peak_bytes: int | None
    engine: str = ENGINE
    version: str = VERSION
    format: int = FORMAT


Stored = TypeVar("Stored", SessionState, PausedCell)
_encoder: Final = msgspec.msgpack.Encoder()
_states: Final = msgspec.msgpack.Decoder(SessionState)
_cells: Final = msgspec.msgpack.Decoder(PausedCell)


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


def encode_cell(cell: PausedCell) -> bytes:
    return _encoder.encode(cell)


def decode_cell(data: bytes) -> PausedCell:
    return _read(_cells, data, "suspended cell")


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
