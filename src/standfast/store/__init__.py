"""Stores in memory, in SQLite files and in PostgreSQL; `rules` has the decisions that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.ports.session_store": "SessionStore",
        "standfast.store.memory_sessions": "MemorySessionStore",
        "standfast.store.sqlite.sessions": "SqliteSessionStore",
    },
)

if TYPE_CHECKING:
    from standfast.ports.session_store import SessionStore as SessionStore
    from standfast.store.memory_sessions import MemorySessionStore as MemorySessionStore
    from standfast.store.sqlite.sessions import SqliteSessionStore as SqliteSessionStore
