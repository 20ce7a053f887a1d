"""Lets the driver's tests share `driver_bench`, and gives each of them a bench on every store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from driver_bench import Bench

from standfast.ports.session_store import SessionStore
from standfast.store.memory_sessions import MemorySessionStore
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.clock import FakeClock
from standfast.testing.postgres_server import PostgresServer


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Callable[[], Bench]:
    """Return a function that makes a bench inside the test's loop."""

    def make_store() -> SessionStore:
        if request.param == "memory":
            return MemorySessionStore()
        if request.param == "sqlite":
            return SqliteSessionStore(tmp_path / "db")
        server: PostgresServer = request.getfixturevalue("postgres")
        return PostgresSessionStore(server.new_url(), database_clock=False)

    return lambda: Bench(make_store(), clock)
