"""A session that this process has open."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.model.session import SessionMeta
from holdfast.ports.sandbox_store import StoredSession
from holdfast.sandbox.monty.state import EngineState, decode_state, encode_state

if TYPE_CHECKING:
    from holdfast.sandbox.monty.run import MontyRun


@dataclass(slots=True, eq=False)
class LiveSession:
    """What this process knows of a session. `version` is replaced with every change of `state`."""

    meta: SessionMeta
    epoch: int = 0
    expires_at: int | None = None
    state: EngineState | None = None
    names: frozenset[str] = frozenset()
    version: object = field(default_factory=object)
    lock: threading.Lock = field(default_factory=threading.Lock)
    current: MontyRun | None = None

    @classmethod
    def of(cls, stored: StoredSession) -> LiveSession:
        live = cls(meta=stored.meta)
        live.adopt(stored)
        return live

    def adopt(self, stored: StoredSession) -> None:
        """Take over what is stored."""
        self.meta, self.epoch, self.expires_at = stored.meta, stored.epoch, stored.expires_at
        self.replace_state(decode_state(stored.state))

    def replace_state(self, state: EngineState | None) -> None:
        self.state = state
        self.names = frozenset(state.names) if state else frozenset()
        self.version = object()

    def stored(self, *, with_state: bool) -> StoredSession:
        """As it is to be written over the epoch that was read."""
        return StoredSession(
            meta=self.meta,
            state=encode_state(self.state) if with_state else b"",
            epoch=self.epoch,
            expires_at=self.expires_at,
        )
