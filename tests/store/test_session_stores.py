"""Every session store against the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.ports.session_store import SessionStore
from standfast.store.memory_sessions import MemorySessionStore
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_stores import SessionStoreContract, is_dead


class TestMemory(SessionStoreContract):
    @pytest.fixture
    def store(self) -> SessionStore:
        return MemorySessionStore(owner_is_dead=is_dead)


class TestSqlite(SessionStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SessionStore]:
        store = SqliteSessionStore(tmp_path / "standfast.db", owner_is_dead=is_dead)
        yield store
        asyncio.run(store.close())
