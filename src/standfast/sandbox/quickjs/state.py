"""The stored form of a QuickJS session, and of a waiting cell.

Stored bytes begin with the guest's build and a checksum, so that bytes of another build can be distinguished
from damaged ones before anything is decoded::

    "SFQJ" | build, 16 bytes | CRC-32 of the rest | the rest, as MessagePack

Rule: any bytes are rejected or decoded. Wrong contents of a guest's memory affect only the guest, which is
sandboxed.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, TypeVar

import msgspec

from standfast.errors import Code, CodeExecutionUnavailable, SnapshotRefused
from standfast.model.former_name import FORMER_QUICKJS_MAGIC
from standfast.sandbox.cell_lifecycle import PausedCell, StateReader, corrupt, decoded, read_former_cell
from standfast.sandbox.quickjs.build import GuestMissing, build_id
from standfast.sandbox.quickjs.frames import Image

_HEAD: Final = struct.Struct("<4s16sI")
_MAGIC: Final = b"SFQJ"


class QuickJsState(msgspec.Struct, frozen=True, array_like=True):
    """A session between two cells.

    `lines` is the line number at which the next cell begins: the engine has one name for all code, so line
    numbers distinguish the cells. `free` are names that code has read without binding them, `asked` those
    that it has used with `typeof`.
    """

    image: Image = msgspec.field(default_factory=Image)
    names: list[str] = msgspec.field(default_factory=list)
    lines: int = 1
    free: list[str] = msgspec.field(default_factory=list)
    asked: list[str] = msgspec.field(default_factory=list)


class QuickJsDump(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting cell: its guest, and the resources it has used. Other fields are as in `QuickJsState`."""

    image: Image
    lines: int
    free: list[str]
    asked: list[str]
    cpu_used_us: int
    instructions: int


Stored = TypeVar("Stored", QuickJsState, QuickJsDump)
_encode: Final = msgspec.msgpack.Encoder().encode
_NEW: Final = QuickJsState()


def encode_state(state: QuickJsState) -> bytes:
    return _sealed(_encode(state))


@StateReader
def decode_state(data: bytes) -> QuickJsState:
    """Decode a state; empty bytes represent a new session."""
    return _read(QuickJsState, data, "session's state") if data else _NEW


def encode_dump(dump: QuickJsDump) -> bytes:
    return _sealed(_encode(dump))


def decode_dump(data: bytes) -> QuickJsDump:
    return _read(QuickJsDump, data, "suspended cell")


def read_cell(data: bytes) -> PausedCell:
    """Read a cell of the former format, which had the fields of `QuickJsDump` beside the common ones."""
    return read_former_cell(data[_HEAD.size :], encode_dump(decode_dump(data)))


def other_build() -> SnapshotRefused:
    return SnapshotRefused(
        Code.SNAPSHOT_VERSION_MISMATCH,
        "the session was stored by another build of the TypeScript engine",
        hint="reset the session, or use the releases of Standfast and quickjs-rs that wrote it",
    )


def _known_build() -> bytes:
    try:
        return build_id()
    except GuestMissing as error:
        raise CodeExecutionUnavailable(
            f"TypeScript cannot be run here: {error}", hint="pip install 'standfast[typescript]'"
        ) from None


def _sealed(body: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, _known_build(), zlib.crc32(body)) + body


def _read(kind: type[Stored], data: bytes, what: str) -> Stored:
    if len(data) < _HEAD.size or not data.startswith((_MAGIC, FORMER_QUICKJS_MAGIC)):
        raise corrupt(what, "it has no valid header")
    _, build, check = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if zlib.crc32(body) != check:
        raise corrupt(what, "its checksum does not match")
    if build != _known_build():
        raise other_build()
    return decoded(kind, body, what)
