"""A session of the QuickJS engine at rest, and a cell that waits, as bytes.

What is stored begins with the guest's build and a check sum, so that what another build has written and what
was damaged are told apart before anything of it is read::

    "SFQJ" | build, 16 bytes | CRC-32 of the rest | the rest, as MessagePack

Rule: whatever the bytes are, they are refused or read; what is wrong with the memory of a guest shows in the
guest, which is contained.
"""

from __future__ import annotations

import functools
import struct
import zlib
from typing import Final, TypeVar

import msgspec

from standfast.errors import Code, CodeExecutionUnavailable, SnapshotRefused
from standfast.model.former_name import FORMER_QUICKJS_MAGIC
from standfast.sandbox.paused_cell import PausedCell, read_former_cell
from standfast.sandbox.quickjs.build import GuestMissing, build_id
from standfast.sandbox.quickjs.frames import Image

_HEAD: Final = struct.Struct("<4s16sI")
_MAGIC: Final = b"SFQJ"


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    """A session between two cells.

    `lines` is where the lines of the next cell begin: the engine knows all code by one name, and lines tell
    the cells apart. `free` are names that code has read without binding them, `asked` those of which it has
    asked the type.
    """

    image: Image = msgspec.field(default_factory=Image)
    names: list[str] = msgspec.field(default_factory=list)
    lines: int = 1
    free: list[str] = msgspec.field(default_factory=list)
    asked: list[str] = msgspec.field(default_factory=list)


class CellDump(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that waits: its guest, and what this engine has counted. See `SessionState` for the other
    fields."""

    image: Image
    lines: int
    free: list[str]
    asked: list[str]
    cpu_used_us: int
    instructions: int


Stored = TypeVar("Stored", SessionState, CellDump)
_encode: Final = msgspec.msgpack.Encoder().encode
_state_decoder: Final = msgspec.msgpack.Decoder(SessionState)
_dump_decoder: Final = msgspec.msgpack.Decoder(CellDump)
_NEW: Final = SessionState()
_SMALL_BYTES: Final = 64 << 10


def _decode(data: bytes) -> SessionState:
    return _read(_state_decoder, data, "session's state")


_decode_small: Final = functools.lru_cache(maxsize=32)(_decode)
"""A cell reads its session's state more than once, and mostly the one that the cell before it wrote."""


def encode_state(state: SessionState) -> bytes:
    return _sealed(_encode(state))


def decode_state(data: bytes) -> SessionState:
    """The state that `encode_state` wrote; nothing is a new session."""
    if not data:
        return _NEW
    return _decode_small(data) if len(data) <= _SMALL_BYTES else _decode(data)


def encode_dump(dump: CellDump) -> bytes:
    return _sealed(_encode(dump))


def decode_dump(data: bytes) -> CellDump:
    """Decode what `encode_dump` wrote."""
    return _read(_dump_decoder, data, "suspended cell")


def read_cell(data: bytes) -> PausedCell:
    """Read a cell of the former format, which had the fields of `CellDump` beside the common ones."""
    return read_former_cell(data[_HEAD.size :], encode_dump(decode_dump(data)))


def other_build() -> SnapshotRefused:
    """What is stored was made by another guest."""
    return SnapshotRefused(
        Code.SNAPSHOT_VERSION_MISMATCH,
        "the session was stored by another build of the TypeScript engine",
        hint="reset the session, or go back to the Standfast and the quickjs-rs that wrote it",
    )


def corrupt(what: str, why: str) -> SnapshotRefused:
    return SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the {what} cannot be read: {why}")


def known_build() -> bytes:
    """The build of the guest that is installed."""
    try:
        return build_id()
    except GuestMissing as error:
        raise CodeExecutionUnavailable(
            f"TypeScript cannot be run here: {error}", hint="pip install 'standfast[typescript]'"
        ) from None


def _sealed(body: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, known_build(), zlib.crc32(body)) + body


def _read(decoder: msgspec.msgpack.Decoder[Stored], data: bytes, what: str) -> Stored:
    if len(data) < _HEAD.size or not data.startswith((_MAGIC, FORMER_QUICKJS_MAGIC)):
        raise corrupt(what, "it does not begin as it should")
    _, build, check = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if zlib.crc32(body) != check:
        raise corrupt(what, "it was damaged")
    if build != known_build():
        raise other_build()
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise corrupt(what, str(error)) from None
