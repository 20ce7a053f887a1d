"""Accepted state can be loaded again, in a new process and under the limits it was created with."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.errors import Code

pytestmark = pytest.mark.slow

Cells = Any
LIMITS = {"memory_mb": 16, "cpu_ms": 20_000, "wall_ms": 60_000}
GROWTH = {
    "large keys": "var d{n} = new Map(); for (let i = 0; i < 10000; i++) d{n}.set(`${{i}}`.repeat(20), i); 1",
    "arrays": "var d{n} = Array.from({{length: 20000}}, (_, i) => [i]); 1",
}


@pytest.mark.parametrize("kind", GROWTH)
def test_every_stored_state_can_be_loaded_again(cells: Cells, other: Cells, kind: str) -> None:
    """Ours: a state is the guest's memory, so loading takes no more than storing."""
    state, kept = b"", 0
    while True:
        end = cells.run(GROWTH[kind].format(n=kept), key=kind, state=state, limits=LIMITS)
        if end.error is not None:
            break
        assert end.state is not None
        assert kept < 30, "the limit was never reached"
        state, kept = end.state, kept + 1
        newest = f"typeof d{kept - 1}"
        assert other.value(newest, key=f"{kind} {kept}", state=state, limits=LIMITS) == "object"
    assert kept > 1
    assert (end.error.code, end.hard, end.state) == (Code.MEMORY_EXCEEDED, True, None)
