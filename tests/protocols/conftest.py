"""Lets the tests of protocols share what those of the runtime have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from standfast.testing.clock import FakeClock

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))

from stand_ins import Place


@pytest.fixture
def memory(clock: FakeClock) -> Place:
    """A store in memory, for what has nothing to do with storage."""
    return Place(None, clock)
