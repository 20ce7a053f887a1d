"""Makes `code_turns` importable in the tests of the code protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from standfast.testing.clock import FakeClock

sys.path.insert(0, str(Path(__file__).parent))

from stand_ins import Place


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Place:
    """Return a store that outlives its runtimes: in memory, or a SQLite file."""
    return Place(None if request.param == "memory" else tmp_path / "standfast.db", clock)
