"""Makes the helpers of the runtime's tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from standfast.testing.clock import FakeClock

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))

from stand_ins import Place


@pytest.fixture
def memory(clock: FakeClock) -> Place:
    """Return a store in memory, for tests that do not depend on storage."""
    return Place(None, clock)
