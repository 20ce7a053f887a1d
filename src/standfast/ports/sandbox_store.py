"""Where sandbox sessions, snapshots, waiting runs and approvals are kept.

Rules
-----
1. Every method is blocking, atomic and durable when it returns; callers keep it off the event loop.
2. A session is written with the epoch that was read; a mismatch is `StaleState` and writes nothing.
3. An approval leaves `pending` once. Whoever changes it wins; everyone else is told who it was.
4. What is read is checked against the digest it was written with; a mismatch is `RecordCorrupt`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, Protocol

import msgspec

from standfast.model.approval import Approval, Decision
from standfast.model.call import SettledCall
from standfast.model.canonical import Json
from standfast.model.ids import SessionIdField, check_session_id
from standfast.model.session import SessionMeta


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session at rest. `state` is opaque here: what its engine made of it."""

    meta: SessionMeta
    engine: str = "monty"
    state: bytes = b""
    epoch: int = 0
    expires_at: int | None = None


class WaitingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that stands at a call. `host` tells which tools and mounts its process had."""

    run_id: str
    session_id: SessionIdField
    snapshot_id: str
    created_at: int
    host: dict[str, Json] = msgspec.field(default_factory=dict)
    owner: str | None = None

    def __post_init__(self) -> None:
        check_session_id(self.session_id)


class SandboxStore(Protocol):
    durable: bool
    """Whether what is written outlives the process."""

    def hold(self, session_id: str) -> AbstractContextManager[None]:
        """Keep other processes off the session; waits for its turn."""

    def load_session(self, session_id: str) -> StoredSession | None: ...

    def stamp(self, session_id: str) -> tuple[int | None, bool]:
        """The session's epoch, and whether a run of it waits. Asked before every run, so it is cheap."""

    def save_session(self, session: StoredSession, *, finished_run: str | None = None) -> StoredSession:
        """Write a session over the epoch it carries; returns it with the next one.

        With `finished_run` that waiting run is gone in the same transaction.
        """

    def delete_session(self, session_id: str) -> bool: ...

    def list_sessions(self) -> list[StoredSession]:
        """All sessions, oldest first, their state left out."""

    def session_state_bytes(self, session_id: str) -> int: ...

    def put_snapshot(self, snapshot_id: str, session_id: str, data: bytes, created_at: int) -> None: ...

    def get_snapshot(self, snapshot_id: str) -> bytes | None: ...

    def park(self, run: WaitingRun, snapshot: bytes, approvals: list[Approval]) -> None:
        """Store a run that waits, its snapshot and its new approval requests, in one transaction."""

    def waiting_run(self, session_id: str) -> WaitingRun | None: ...

    def get_run(self, run_id: str) -> WaitingRun | None: ...

    def claim_run(self, run_id: str, owner: str, previous: str | None) -> bool:
        """Become the one who continues the run, if its owner still is *previous*."""

    def release_run(self, run_id: str, owner: str) -> None: ...

    def drop_run(self, run_id: str) -> bool:
        """Forget a waiting run and cancel its open approvals."""

    def approvals(self, *, session_id: str | None = None, run_id: str | None = None) -> list[Approval]: ...

    def approval(self, approval_id: str) -> Approval | None: ...

    def decide(
        self, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
    ) -> Approval:
        """Leave `pending`, once. After `expires_at` the state becomes `expired`, whatever was decided."""

    def intend(self, run_id: str, call_id: int, request_digest: str) -> None: ...

    def settle(self, run_id: str, call_id: int, settled: SettledCall) -> None: ...

    def found(self, run_id: str, call_id: int, request_digest: str) -> SettledCall | Literal[True] | None: ...

    def close(self) -> None: ...
