"""The state of a session between its runs, as bytes and decoded."""

from __future__ import annotations

import msgspec
import pytest

from standfast.errors import Code, SnapshotRefused
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty import workers as state
from standfast.sandbox.monty.workers import EngineState, decode_state, encode_state


def made(number: int, size: int = 10, version: str = state.ENGINE_VERSION) -> EngineState:
    return EngineState(dump=b"x" * size, limits=SessionLimits(), next_input=number, version=version)


def test_a_state_is_decoded_once() -> None:
    """Ours: a cell usually begins with the state that the previous cell wrote."""
    left = made(1)
    data = encode_state(left)
    assert decode_state(data) == left
    assert decode_state(data) is decode_state(data)
    assert decode_state(bytes(bytearray(data))) is decode_state(data)


def test_only_a_few_small_states_are_cached() -> None:
    """Ours: the cache must not grow with the number of sessions or their size."""
    known = [encode_state(made(number)) for number in range(100)]
    large = encode_state(made(0, size=1 << 20))
    assert decode_state(large) is not decode_state(large)
    assert [found.next_input for data in known if (found := decode_state(data))] == list(range(100))
    assert 0 < len(decode_state.known) <= 32


def test_a_state_of_another_engine_version_is_refused() -> None:
    """Seed: a snapshot of another build is refused, whichever engine reads it."""
    data = msgspec.msgpack.encode(made(1, version="0.0.1"))
    with pytest.raises(SnapshotRefused) as refused:
        decode_state(data)
    assert refused.value.code == Code.SNAPSHOT_VERSION_MISMATCH
