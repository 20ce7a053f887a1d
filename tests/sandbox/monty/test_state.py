"""The state of a session between its runs, as bytes and as what was read of them."""

from __future__ import annotations

import msgspec
import pytest

from standfast.errors import Code, SnapshotRefused
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty import state
from standfast.sandbox.monty.state import EngineState, decode_state, encode_state


def made(number: int, size: int = 10, version: str = state.ENGINE_VERSION) -> EngineState:
    return EngineState(dump=b"x" * size, limits=SessionLimits(), next_input=number, version=version)


def test_a_state_that_was_just_written_is_not_read_again() -> None:
    """Ours: a cell mostly begins with what the cell before it left."""
    left = made(1)
    data = encode_state(left)
    assert decode_state(data) is left
    other = bytes(bytearray(data))
    assert decode_state(other) == left
    assert decode_state(other) is decode_state(other) is not left


def test_only_a_few_small_states_are_remembered() -> None:
    """Ours: what is known by heart must not grow with the number of sessions, nor with their size."""
    known = [encode_state(made(number)) for number in range(100)]
    large = encode_state(made(0, size=1 << 20))
    assert len(state._recent) <= 32
    assert state._recent.find(large) is None
    assert state._recent.find(known[-1]) is not None
    assert [found.next_input for data in known if (found := decode_state(data))] == list(range(100))


def test_a_state_of_another_engine_is_refused_though_it_was_written_here() -> None:
    """Seed: a snapshot of another build is refused, whoever holds it."""
    data = msgspec.msgpack.encode(made(1, version="0.0.1"))
    with pytest.raises(SnapshotRefused) as refused:
        decode_state(data)
    assert refused.value.code == Code.SNAPSHOT_VERSION_MISMATCH
