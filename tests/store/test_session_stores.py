"""Contract tests for every session store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.ports.session_store import SessionStore
from standfast.store import memory_tables
from standfast.store.memory_sessions import MemorySessionStore
from standfast.store.object_blobs import ObjectBlobs
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.s3_server import S3Server
from standfast.testing.session_store_prune import PruneContract
from standfast.testing.session_store_states import StateRetentionContract
from standfast.testing.session_store_waits import InputContract
from standfast.testing.session_stores import SessionStoreContract, is_dead


class TestMemory(SessionStoreContract):
    @pytest.fixture
    def store(self) -> SessionStore:
        return MemorySessionStore(owner_is_dead=is_dead)


class TestMemoryWithEveryEndedTurnPacked(SessionStoreContract):
    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> SessionStore:
        monkeypatch.setattr(memory_tables, "_MAX_IN_USE", 0)
        return MemorySessionStore(owner_is_dead=is_dead)


class TestSqlite(SessionStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SessionStore]:
        store = SqliteSessionStore(tmp_path / "standfast.db", owner_is_dead=is_dead)
        yield store
        asyncio.run(store.close())


class TestPostgres(SessionStoreContract):
    @pytest.fixture
    def store(self, postgres: PostgresServer) -> Iterator[SessionStore]:
        store = PostgresSessionStore(postgres.new_url(), owner_is_dead=is_dead, database_clock=False)
        yield store
        asyncio.run(store.close())


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """Yield an S3 server whose files nothing else changes."""
    with S3Server(cache_ms=60_000) as server:
        yield server


class TestSqliteWithObjects(InputContract, StateRetentionContract, PruneContract):
    """Contract tests that store, read and delete blobs."""

    @pytest.fixture
    def store(self, tmp_path: Path, s3: S3Server) -> Iterator[SessionStore]:
        blobs = ObjectBlobs(s3.new_url())
        store = SqliteSessionStore(tmp_path / "standfast.db", owner_is_dead=is_dead, blobs=blobs)
        yield store
        asyncio.run(store.close())
