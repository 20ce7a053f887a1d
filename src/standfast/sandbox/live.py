"""A session that this process has open."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from standfast.model.session import SessionMeta
from standfast.ports.sandbox_store import StoredSession
from standfast.sandbox.session_engine import SessionEngine, SessionRun


@dataclass(slots=True, eq=False)
class LiveSession:
    """What this process knows of a session. `version` is replaced with every change of `state`."""

    meta: SessionMeta
    engine: SessionEngine
    epoch: int = 0
    expires_at: int | None = None
    state: Any = None
    version: object = field(default_factory=object)
    lock: threading.Lock = field(default_factory=threading.Lock)
    current: SessionRun | None = None

    @classmethod
    def of(cls, stored: StoredSession, engine: SessionEngine) -> LiveSession:
        live = cls(stored.meta, engine)
        live.adopt(stored, engine)
        return live

    def adopt(self, stored: StoredSession, engine: SessionEngine) -> None:
        """Take over what is stored."""
        self.meta, self.engine = stored.meta, engine
        self.epoch, self.expires_at = stored.epoch, stored.expires_at
        self.replace_state(engine.decode(stored.state))

    def replace_state(self, state: Any) -> None:
        self.state = state
        self.version = object()

    def stored(self, *, with_state: bool) -> StoredSession:
        """As it is to be written over the epoch that was read."""
        return StoredSession(
            meta=self.meta,
            engine=self.engine.name,
            state=self.engine.encode(self.state) if with_state else b"",
            epoch=self.epoch,
            expires_at=self.expires_at,
        )
