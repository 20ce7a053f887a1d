"""A session of the Monty engine at rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from standfast.errors import Code, ErrorObject, SnapshotRefused
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty.program import Site
from standfast.sandbox.recent_states import RecentStates

ENGINE: Final = "monty"
ENGINE_VERSION: Final = "1.4.0"


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's dump and what we know about it.

    `sites` holds, per earlier run, where its functions await host calls; `result_later` that one of
    them may bind `result`; `feeds` counts runs since the dump was last made smaller; `next_input` is the
    number that the engine gives to the next source; `plain_keys` that no code of the session
    could hash anything that has parts. What was stored before that was known is looked at.
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


@dataclass(frozen=True, slots=True)
class OpenState:
    """A session's state while it is open: its names are looked at by every run."""

    stored: EngineState
    names: frozenset[str]

    @classmethod
    def of(cls, stored: EngineState) -> OpenState:
        return cls(stored, frozenset(stored.names))


class PausedState(msgspec.Struct, frozen=True, kw_only=True):
    """A run that stands at a call, and the session as it was before."""

    dump: bytes
    before: EngineState | None = None


class KnownError(msgspec.Struct, frozen=True, array_like=True):
    """Which of our errors an exception of the guest is."""

    type: str
    message: str
    error: ErrorObject


class PausedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that stands at a call, or waits for some; see `cell_run`.

    `before` is the session before it, without its dump. `at` is the engine's id of the call it stands at,
    `calls` the engine's ids of those that are not answered, by their numbers. `ready` are answers that the
    engine could not be given yet, by its ids, as JSON: integers have no limit there.
    """

    dump: bytes
    before: EngineState | None
    filename: str
    borrowed: list[str]
    kept: list[str]
    at: int | None
    calls: dict[int, int]
    ready: list[tuple[int, bytes]]
    errors: list[KnownError]
    calls_made: int
    now_ms: int
    draws: int
    stdout: str
    stderr: str
    truncated: bool
    wall_used_ms: int
    memory_peak_bytes: int | None
    engine: str = ENGINE
    version: str = ENGINE_VERSION


Stored = TypeVar("Stored", EngineState, PausedCell)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EngineState)
_cell_decoder = msgspec.msgpack.Decoder(PausedCell)


_recent: Final[RecentStates[EngineState]] = RecentStates()


def encode_state(state: EngineState | None) -> bytes:
    if state is None:
        return b""
    data = _encoder.encode(state)
    _recent.remember(data, state)
    return data


def decode_state(data: bytes) -> EngineState | None:
    """The state that `encode_state` wrote; one of another engine version is refused."""
    if not data:
        return None
    state = _recent.find(data)
    if state is None:
        state = _read(_decoder, data, "session's state")
        _recent.remember(data, state)
    return state


def encode_cell(cell: PausedCell) -> bytes:
    return _encoder.encode(cell)


def decode_cell(data: bytes) -> PausedCell:
    """The cell that `encode_cell` wrote; one of another engine version is refused."""
    return _read(_cell_decoder, data, "suspended cell")


def _read(decoder: msgspec.msgpack.Decoder[Stored], data: bytes, what: str) -> Stored:
    try:
        stored = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the {what} cannot be read: {error}") from None
    if (stored.engine, stored.version) != (ENGINE, ENGINE_VERSION):
        raise SnapshotRefused(
            Code.SNAPSHOT_VERSION_MISMATCH,
            f"the session was stored by {stored.engine} {stored.version}, this is {ENGINE} {ENGINE_VERSION}",
            hint="reset the session, or go back to the Standfast that wrote it",
        )
    return stored


def encode_paused(state: PausedState) -> bytes:
    return _encoder.encode(state)


def decode_paused(data: bytes) -> PausedState:
    try:
        return msgspec.msgpack.decode(data, type=PausedState)
    except msgspec.DecodeError as error:
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the waiting run cannot be read: {error}") from None
