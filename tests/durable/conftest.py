"""Lets the tests of the driver share `driver_bench`, and gives each of them a bench on every store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from driver_bench import Bench

from standfast.store.memory_sessions import MemorySessionStore
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.clock import FakeClock


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Callable[[], Bench]:
    """Makes a bench inside the loop of the test."""

    def make() -> Bench:
        memory = request.param == "memory"
        return Bench(MemorySessionStore() if memory else SqliteSessionStore(tmp_path / "db"), clock)

    return make
