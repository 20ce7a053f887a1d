"""The sessions of a sandbox: found, made, held, kept up to date and stored.

Rules
-----
1. A session is changed only while it is held: its lock in this process, `store.hold` against others.
2. What is stored is the truth. A session whose epoch moved was changed elsewhere and is read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from standfast.errors import SessionNotFound, StandfastError
from standfast.model.approval import Approval, ApprovalState
from standfast.model.ids import SessionId
from standfast.model.language import Language
from standfast.model.limits import SessionLimits
from standfast.model.session import SessionInfo, SessionMeta
from standfast.ports.sandbox_store import StoredSession
from standfast.sandbox.live import LiveSession
from standfast.sandbox.services import SandboxServices

_MAX_RESIDENT: Final = 256
"""How many sessions of a durable store keep their state in memory."""
_UNREAD: Final = -1
"""The epoch of a session that must be read before it is used."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a session is made like."""

    language: Language
    engine: str
    limits: SessionLimits


class SessionTable:
    """The sessions that this process has open, over those that are stored."""

    def __init__(self, services: SandboxServices) -> None:
        self._services = services
        self._store = services.store
        self._clock = services.clock
        self._loading = threading.Lock()
        self.live: dict[str, LiveSession] = {}
        self._resident: OrderedDict[str, LiveSession] = OrderedDict()

    def find(self, session_id: SessionId) -> LiveSession | None:
        """The session, if there is one that has not expired."""
        live = self.live.get(session_id)
        if live is not None and not self._is_past(live.expires_at):
            return live
        with self._loading:
            if live is not None:
                self.forget(session_id)
            loaded = self._load(session_id)
            return self.live.setdefault(session_id, loaded) if loaded is not None else None

    def find_or_make(self, session_id: SessionId, new: NewSession, ttl_ms: int | None = None) -> LiveSession:
        """The session, made like *new* if there is none."""
        live = self.find(session_id)
        if live is None:
            made = self._make(session_id, new, ttl_ms)
            with self._loading:
                live = self.live.setdefault(session_id, made)
        return live

    @contextmanager
    def held(self, session_id: SessionId, *, make: NewSession | None = None) -> Iterator[LiveSession]:
        """Hold a session, up to date, against everybody else; with *make* it is made like that."""
        live = self.find(session_id) if make is None else self.find_or_make(session_id, make)
        if live is None:
            raise SessionNotFound(session_id, sandbox=True)
        with live.lock, self._store.hold(session_id):
            self.refresh(live)
            yield live

    def empty(self, session_id: SessionId) -> None:
        """Forget a session's variables and its waiting run, without a look at them.

        So it helps where they cannot be read: another build of the engine has stored them, or it is missing.
        """
        live = self.live.get(session_id)
        with live.lock if live is not None else nullcontext(), self._store.hold(session_id):
            stored = self._stored(session_id)
            if stored is None:
                raise SessionNotFound(session_id, sandbox=True)
            if (run := self._store.waiting_run(session_id)) is not None:
                self._store.drop_run(run.run_id)
            self._services.engines.forget(session_id)
            meta = msgspec.structs.replace(stored.meta, last_used_at=self._clock.now_ms())
            saved = self._store.save_session(msgspec.structs.replace(stored, meta=meta, state=b""))
            if live is not None:
                live.meta, live.epoch = saved.meta, saved.epoch
                live.replace_state(None)

    def forget(self, session_id: str) -> None:
        """Drop what this process has of a session."""
        self._services.engines.forget(session_id)
        self.live.pop(session_id, None)
        self._resident.pop(session_id, None)

    def seen(self, session_id: SessionId) -> LiveSession | None:
        """A session to look at, without waiting for a run of it."""
        live = self.find(session_id)
        if live is not None and live.epoch == _UNREAD:
            live = self._load(session_id)
        return live

    def used(self, live: LiveSession) -> None:
        """Note that a session was used, and let go of the state of one that was not for long.

        What is stored is read again when it is needed; the memory store has nothing to read from.
        """
        if not self._store.durable:
            return
        with self._loading:
            self._resident[live.meta.id] = live
            self._resident.move_to_end(live.meta.id)
            idle = self._resident.popitem(last=False)[1] if len(self._resident) > _MAX_RESIDENT else None
        if idle is not None and idle.lock.acquire(blocking=False):
            idle.replace_state(None)
            idle.epoch = _UNREAD
            idle.lock.release()

    def refresh(self, live: LiveSession) -> bool:
        """Take over what another process did to the session; true if a run of it waits."""
        epoch, waits = self._store.stamp(live.meta.id)
        if epoch != live.epoch and self._store.durable:
            self._reload(live)
        return waits

    def _reload(self, live: LiveSession) -> None:
        stored = self._store.load_session(live.meta.id)
        if stored is None:  # destroyed elsewhere
            live.epoch = 0
            live.replace_state(None)
            self.save(live)
        else:
            live.adopt(stored, self._services.engines.get(stored.engine))

    def save(self, live: LiveSession, finished_run: str | None = None) -> None:
        """Write the session over the epoch that was read."""
        live.meta = msgspec.structs.replace(live.meta, last_used_at=self._clock.now_ms())
        try:
            live.epoch = self._store.save_session(
                live.stored(with_state=self._store.durable), finished_run=finished_run
            ).epoch
        except StandfastError:
            live.epoch = _UNREAD  # whatever is stored is the truth; the next run reads it
            raise

    def infos(self) -> list[SessionInfo]:
        """All sessions that have not expired, oldest first; those that have are deleted."""
        found: list[SessionInfo] = []
        for stored in self._store.list_sessions():
            if self._is_past(stored.expires_at):
                self._store.delete_session(stored.meta.id)
            else:
                found.append(self._info(stored))
        return found

    def _info(self, stored: StoredSession) -> SessionInfo:
        run = self._store.waiting_run(stored.meta.id)
        asked = self._store.approvals(run_id=run.run_id) if run else []
        live = self.live.get(stored.meta.id)
        in_memory = live if not self._store.durable else None
        meta = max((live.meta if live else stored.meta, stored.meta), key=lambda item: item.last_used_at)
        state: Literal["idle", "waiting_for_approval"] = "waiting_for_approval" if run else "idle"
        return SessionInfo(
            meta=meta,
            engine=stored.engine,
            state=state,
            state_bytes=len(in_memory.engine.encode(in_memory.state))
            if in_memory
            else self._store.session_state_bytes(stored.meta.id),
            expires_at=stored.expires_at,
            approvals=[item.approval_id for item in asked if is_open(item)],
        )

    def _load(self, session_id: str) -> LiveSession | None:
        stored = self._stored(session_id)
        return self._live(stored) if stored is not None else None

    def _stored(self, session_id: str) -> StoredSession | None:
        stored = self._store.load_session(session_id)
        if stored is not None and self._is_past(stored.expires_at):
            self._store.delete_session(session_id)
            return None
        return stored

    def _live(self, stored: StoredSession) -> LiveSession:
        return LiveSession.of(stored, self._services.engines.get(stored.engine))

    def _make(self, session_id: str, new: NewSession, ttl_ms: int | None) -> LiveSession:
        self._services.engines.get(new.engine)  # nothing is stored that cannot run here
        now = self._clock.now_ms()
        meta = SessionMeta(
            id=session_id,
            created_at=now,
            last_used_at=now,
            language=new.language,
            limits=new.limits,
        )
        expires_at = now + ttl_ms if ttl_ms is not None else None
        fresh = StoredSession(meta=meta, engine=new.engine, expires_at=expires_at)
        with self._store.hold(session_id):
            stored = self._store.load_session(session_id) or self._store.save_session(fresh)
        return self._live(stored)

    def _is_past(self, expires_at: int | None) -> bool:
        return expires_at is not None and expires_at <= self._clock.now_ms()


def is_open(approval: Approval) -> bool:
    return approval.state is ApprovalState.PENDING
