"""A session of the Monty engine at rest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from standfast.errors import Code, ErrorObject, SnapshotRefused
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty.syntax import Site
from standfast.sandbox.paused_cell import PausedCell
from standfast.sandbox.paused_cell import read_former_cell as common_cell

ENGINE: Final = "monty"
ENGINE_VERSION: Final = "1.4.0"


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's dump and what is known about it.

    `sites` are, by earlier source, the places where its functions await host calls. `result_later` means that
    one of them may bind `result`, `plain_keys` that no code of the session could hash anything that has
    parts. `feeds` counts runs since the dump was last made smaller. `next_input` is the number that the
    engine gives to the next source.
    """

    dump: bytes
    limits: SessionLimits
    names: list[str] = msgspec.field(default_factory=list)
    sites: dict[str, list[Site]] = msgspec.field(default_factory=dict)
    result_later: bool = False
    has_classes: bool = False
    plain_keys: bool = False
    feeds: int = 0
    next_input: int = 0
    engine: str = ENGINE
    version: str = ENGINE_VERSION


class KnownError(msgspec.Struct, frozen=True, array_like=True):
    """The error behind an exception that the guest sees."""

    type: str
    message: str
    error: ErrorObject


class MontyCellDump(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting cell as the engine dumped it. `before` is the session before it, without its dump."""

    dump: bytes
    before: EngineState | None
    filename: str
    borrowed: list[str]
    kept: list[str]
    errors: list[KnownError]
    draws: int
    engine: str = ENGINE
    version: str = ENGINE_VERSION


Stored = TypeVar("Stored", EngineState, MontyCellDump)
_decoder: Final = msgspec.msgpack.Decoder(EngineState)
_dump_decoder: Final = msgspec.msgpack.Decoder(MontyCellDump)
encode_state: Final[Callable[[EngineState], bytes]] = msgspec.msgpack.Encoder().encode
encode_dump: Final[Callable[[MontyCellDump], bytes]] = msgspec.msgpack.Encoder().encode
_SMALL_BYTES: Final = 64 << 10


def _decode(data: bytes) -> EngineState:
    return _read(_decoder, data, "session's state")


_decode_small: Final = functools.lru_cache(maxsize=32)(_decode)
"""A cell reads its session's state more than once, and mostly the one that the cell before it wrote."""


def decode_state(data: bytes) -> EngineState | None:
    """Decode what `encode_state` wrote; refuse the state of another engine version."""
    if not data:
        return None
    return _decode_small(data) if len(data) <= _SMALL_BYTES else _decode(data)


def decode_dump(data: bytes) -> MontyCellDump:
    """Decode what `encode_dump` wrote; refuse the dump of another engine version."""
    return _read(_dump_decoder, data, "suspended cell")


def _read(decoder: msgspec.msgpack.Decoder[Stored], data: bytes, what: str) -> Stored:
    try:
        stored = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the {what} cannot be read: {error}") from None
    if (stored.engine, stored.version) != (ENGINE, ENGINE_VERSION):
        raise SnapshotRefused(
            Code.SNAPSHOT_VERSION_MISMATCH,
            f"the session was stored by {stored.engine} {stored.version}, this is {ENGINE} {ENGINE_VERSION}",
            hint="reset the session, or use the Standfast release that wrote it",
        )
    return stored


def read_former_cell(data: bytes) -> PausedCell:
    """Read a cell of the former format, in which `at` was the engine's id of a call."""
    cell = common_cell(data, encode_dump(decode_dump(data)))
    at = next((number for number, call_id in cell.calls.items() if call_id == cell.at), None)
    return msgspec.structs.replace(cell, at=at)
