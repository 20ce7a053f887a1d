"""A suspended cell as bytes: the same frame for every engine, with the engine's own dump in it.

Layout
------
magic `SFCELL1`, CRC-32 of the rest (u32), `PausedCell` as MessagePack

Cells suspended before this format existed have a format of their engine; `read_former_cell` reads the part
that those formats share.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from standfast.errors import Code, SnapshotRefused
from standfast.ports.code_engine import CallAnswer

_MAGIC: Final = b"SFCELL1\n"
_HEAD: Final = struct.Struct("<8sI")
_SMALL_BYTES: Final = 64 << 10
_KNOWN_STATES: Final = 32
T = TypeVar("T")


class MadeCall(msgspec.Struct, frozen=True, array_like=True):
    """A recorded call of a replayed cell, with its answer as JSON if it was answered immediately."""

    digest: bytes
    answer: bytes | None = None


class PausedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that waits for calls.

    `calls` are the stepper's ids of unanswered calls, by number; `at` is the number of the call that the code
    stands at. `ready` are answers that the code could not take yet, by the stepper's ids. Answers are JSON
    because its integers have no limit. `made` and `answers` are the record of a replayed cell.
    """

    dump: bytes = b""
    calls: dict[int, int] = {}
    at: int | None = None
    ready: list[tuple[int, bytes]] = []
    made: list[MadeCall] = []
    answers: list[tuple[int, bytes]] = []
    calls_made: int = 0
    began_ms: int = 0
    now_ms: int = 0
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    wall_used_ms: int = 0
    memory_peak_bytes: int | None = None


def encode_cell(cell: PausedCell) -> bytes:
    body = msgspec.msgpack.encode(cell)
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def decode_cell(data: bytes) -> PausedCell | None:
    """Decode a cell that `encode_cell` wrote; return None if *data* has another format."""
    if not data.startswith(_MAGIC):
        return None
    body = data[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[1] != zlib.crc32(body):
        raise corrupt("suspended cell", "its checksum does not match")
    return decoded(PausedCell, body, "suspended cell")


def read_former_cell(data: bytes, dump: bytes) -> PausedCell:
    """Decode the common part of a former format; *dump* is the engine's part."""
    return msgspec.structs.replace(decoded(PausedCell, data, "suspended cell"), dump=dump)


def decode_answer(data: bytes) -> CallAnswer:
    """Decode an answer that was stored with a cell."""
    what = "recorded answer of a suspended cell"
    return decoded(CallAnswer, data, what, decode=msgspec.json.decode)


# ── stored bytes of all engines ──────────────────────────────────────────────────────────────────────


def decoded(
    kind: type[T], data: bytes | memoryview, what: str, *, decode: Callable[..., T] = msgspec.msgpack.decode
) -> T:
    """Decode stored bytes; raise `SnapshotRefused`, which names them *what*, if they are damaged."""
    # No `Decoder`: in most processes, creating one takes longer than all decoding.
    try:
        return decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise corrupt(what, str(error)) from None


def corrupt(what: str, why: str) -> SnapshotRefused:
    return SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the {what} cannot be read: {why}")


class StateReader(Generic[T]):
    """Decodes states and caches small ones: most cells begin with the state that the previous cell stored."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self.known: dict[bytes, T] = {}

    def __call__(self, data: bytes) -> T:
        if len(data) > _SMALL_BYTES:
            return self._decode(data)
        known = self.known.get(data)
        if known is None:
            known = self._decode(data)
            self.remember(data, known)
        return known

    def remember(self, data: bytes, state: T) -> None:
        """Cache *state*, which was encoded as *data*, if *data* is small."""
        if len(data) <= _SMALL_BYTES:
            if len(self.known) >= _KNOWN_STATES:
                self.known = {}
            self.known[data] = state
