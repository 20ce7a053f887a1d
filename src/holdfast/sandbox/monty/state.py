"""A session of the Monty engine at rest."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import Code, SnapshotRefused
from holdfast.model.limits import SessionLimits
from holdfast.sandbox.monty.program import Site

ENGINE: Final = "monty"
ENGINE_VERSION: Final = "1.4.0"


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's dump and what we know about it.

    `sites` holds, per earlier run, where its functions await host calls; `result_later` that one of
    them may bind `result`; `feeds` counts runs since the dump was last made smaller; `next_input` is the
    number that the engine gives to the next source.
    """

    dump: bytes
    limits: SessionLimits
    names: list[str] = msgspec.field(default_factory=list)
    sites: dict[str, list[Site]] = msgspec.field(default_factory=dict)
    result_later: bool = False
    has_classes: bool = False
    feeds: int = 0
    next_input: int = 0
    engine: str = ENGINE
    version: str = ENGINE_VERSION


class PausedState(msgspec.Struct, frozen=True, kw_only=True):
    """A run that stands at a call, and the session as it was before."""

    dump: bytes
    before: EngineState | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EngineState)


def encode_state(state: EngineState | None) -> bytes:
    return b"" if state is None else _encoder.encode(state)


def decode_state(data: bytes) -> EngineState | None:
    """The state that `encode_state` wrote; one of another engine version is refused."""
    if not data:
        return None
    try:
        state = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the session's state cannot be read: {error}") from None
    if (state.engine, state.version) != (ENGINE, ENGINE_VERSION):
        raise SnapshotRefused(
            Code.SNAPSHOT_VERSION_MISMATCH,
            f"the session was stored by {state.engine} {state.version}, this is {ENGINE} {ENGINE_VERSION}",
            hint="reset the session, or go back to the Holdfast that wrote it",
        )
    return state


def encode_paused(state: PausedState) -> bytes:
    return _encoder.encode(state)


def decode_paused(data: bytes) -> PausedState:
    try:
        return msgspec.msgpack.decode(data, type=PausedState)
    except msgspec.DecodeError as error:
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the waiting run cannot be read: {error}") from None
