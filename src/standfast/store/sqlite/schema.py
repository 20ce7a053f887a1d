"""The sandbox's tables, and what a row of them means.

Rules
-----
1. A migration, once released, never changes; a new one goes to the end of `MIGRATIONS`.
2. Every row carries a digest over its payload *and* its keys, so that a row in another's place is found
   out as well. `sandbox_retired` has none: a wrong number there changes no answer.
3. Payloads are JSON, because guest integers have no upper bound and msgpack's do.
4. Big blobs come last in a row: SQLite then reads the columns before them without touching them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

import apsw
import msgspec

from standfast.errors import InvalidSessionId, RecordCorrupt
from standfast.model.approval import Approval
from standfast.model.call import SettledCall
from standfast.model.canonical import digest_bytes
from standfast.model.session import SessionMeta
from standfast.ports.sandbox_store import StoredSession, WaitingRun

T = TypeVar("T")
Row = tuple[Any, ...]

COMPONENT: Final = "sandbox"

MIGRATIONS: Final = (
    """
    CREATE TABLE sandbox_sessions (
        id TEXT PRIMARY KEY,
        epoch INTEGER NOT NULL,
        expires_at INTEGER,
        meta BLOB NOT NULL,
        head_digest TEXT NOT NULL,
        state_digest TEXT NOT NULL,
        state BLOB NOT NULL
    ) STRICT;

    -- The highest epoch of any session that was deleted. New sessions start above it, so that a session
    -- of the same name never meets an epoch that a process remembers of its forerunner.
    CREATE TABLE sandbox_retired (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 0),
        epoch INTEGER NOT NULL
    ) STRICT;

    CREATE TABLE sandbox_snapshots (
        snapshot_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        digest TEXT NOT NULL,
        data BLOB NOT NULL
    ) STRICT;

    CREATE TABLE sandbox_runs (
        run_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL UNIQUE,
        digest TEXT NOT NULL,
        body BLOB NOT NULL
    ) STRICT;

    CREATE TABLE sandbox_calls (
        run_id TEXT NOT NULL,
        call_id INTEGER NOT NULL,
        request_digest TEXT NOT NULL,
        digest TEXT NOT NULL,
        outcome BLOB,
        PRIMARY KEY (run_id, call_id)
    ) STRICT;

    CREATE TABLE approvals (
        approval_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        state TEXT NOT NULL,
        digest TEXT NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX approvals_by_session ON approvals (session_id);
    CREATE INDEX approvals_by_run ON approvals (run_id);
    """,
    """
    -- Every page of the file carries a checksum from here on (`checksums`). The tables are the same: the
    -- version rises so that programs which write no checksums refuse the file.
    """,
)


class _Engine(msgspec.Struct, frozen=True):
    """What is stored in a session's meta beside the meta; left out where it is what it was at first."""

    engine: str = "monty"


_encode = msgspec.json.Encoder().encode
_metas = msgspec.json.Decoder(SessionMeta)
_engines = msgspec.json.Decoder(_Engine)
_runs = msgspec.json.Decoder(WaitingRun)
_approvals = msgspec.json.Decoder(Approval)
_outcomes = msgspec.json.Decoder(SettledCall)


def seal(kind: str, *keys: str | int | None, data: bytes) -> str:
    """The digest of a payload in its place. JSON holds no NUL, so keys and payload cannot run together."""
    return digest_bytes(_encode((kind, *keys)) + b"\0" + data)


def session_row(session: StoredSession) -> Row:
    """id, epoch, expires_at, meta, head_digest, state_digest, state."""
    key, epoch, expires_at = session.meta.id, session.epoch, session.expires_at
    meta = _encode(session.meta)
    if session.engine != _Engine().engine:
        meta = _encode({**msgspec.to_builtins(session.meta), "engine": session.engine})
    head = seal("session", key, epoch, expires_at, len(session.state), data=meta)
    return key, epoch, expires_at, meta, head, seal("state", key, epoch, data=session.state), session.state


def session_of(row: Row) -> StoredSession:
    """A whole session, of a row as `session_row` makes it."""
    key, epoch, expires_at, meta, head_digest, state_digest, state = row
    what = f"session {key}"
    if not isinstance(state, bytes) or seal("state", key, epoch, data=state) != state_digest:
        raise RecordCorrupt(what)
    head = session_head_of((key, epoch, expires_at, meta, head_digest, len(state)))
    return msgspec.structs.replace(head, state=state)


def session_head_of(row: Row) -> StoredSession:
    """A session without its state, of id, epoch, expires_at, meta, head_digest, length of the state."""
    key, epoch, expires_at, meta, digest, state_bytes = row
    what = f"session {key}"
    _check(what, digest, "session", key, epoch, expires_at, state_bytes, data=meta)
    return StoredSession(
        meta=_decoded(_metas, meta, what),
        engine=_decoded(_engines, meta, what).engine,
        epoch=epoch,
        expires_at=expires_at,
    )


def snapshot_row(snapshot_id: str, session_id: str, created_at: int, data: bytes) -> Row:
    """snapshot_id, session_id, created_at, digest, data."""
    digest = seal("snapshot", snapshot_id, session_id, created_at, data=data)
    return snapshot_id, session_id, created_at, digest, data


def snapshot_of(row: Row) -> bytes:
    snapshot_id, session_id, created_at, digest, data = row
    what = f"snapshot {snapshot_id}"
    return _check(what, digest, "snapshot", snapshot_id, session_id, created_at, data=data)


def run_row(run: WaitingRun) -> Row:
    """run_id, session_id, digest, body."""
    body = _encode(run)
    return run.run_id, run.session_id, seal("run", run.run_id, run.session_id, data=body), body


def run_of(row: Row) -> WaitingRun:
    run_id, session_id, digest, body = row
    what = f"run {run_id} of session {session_id}"
    return _decoded(_runs, _check(what, digest, "run", run_id, session_id, data=body), what)


def approval_row(approval: Approval) -> Row:
    """approval_id, session_id, run_id, state, digest, body."""
    keys = (approval.approval_id, approval.session_id, approval.run_id, str(approval.state))
    body = _encode(approval)
    return *keys, seal("approval", *keys, data=body), body


def approval_of(row: Row) -> Approval:
    *keys, digest, body = row
    what = f"approval {keys[0]}"
    return _decoded(_approvals, _check(what, digest, "approval", *keys, data=body), what)


def call_row(run_id: str, call_id: int, request_digest: str, settled: SettledCall | None) -> Row:
    """run_id, call_id, request_digest, digest, outcome. Without an outcome it is an intent."""
    outcome = None if settled is None else _encode(settled)
    kind = "intent" if outcome is None else "outcome"
    digest = seal(kind, run_id, call_id, request_digest, data=outcome or b"")
    return run_id, call_id, request_digest, digest, outcome


def call_of(row: Row) -> SettledCall | Literal[True]:
    """The outcome of a call, or True for an intent alone."""
    run_id, call_id, request_digest, digest, outcome = row
    what = f"call {call_id} of run {run_id}"
    if outcome is None:
        _check(what, digest, "intent", run_id, call_id, request_digest, data=b"")
        return True
    _check(what, digest, "outcome", run_id, call_id, request_digest, data=outcome)
    return _decoded(_outcomes, outcome, what)


def check_all(db: apsw.Connection) -> int:
    """Check the digest of every row of the sandbox's tables but approvals; return how many there are."""
    return sum(sum(1 for _ in map(of, db.execute(select))) for select, of in _SELECTS)


_SELECTS: Final[tuple[tuple[str, Callable[[Row], object]], ...]] = (
    (
        "SELECT id, epoch, expires_at, meta, head_digest, state_digest, state FROM sandbox_sessions",
        session_of,
    ),
    ("SELECT snapshot_id, session_id, created_at, digest, data FROM sandbox_snapshots", snapshot_of),
    ("SELECT run_id, session_id, digest, body FROM sandbox_runs", run_of),
    ("SELECT run_id, call_id, request_digest, digest, outcome FROM sandbox_calls", call_of),
)


def _check(what: str, digest: object, kind: str, *keys: str | int | None, data: object) -> bytes:
    if not isinstance(data, bytes) or seal(kind, *keys, data=data) != digest:
        raise RecordCorrupt(what)
    return data


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except (InvalidSessionId, msgspec.DecodeError, UnicodeDecodeError):
        raise RecordCorrupt(what) from None
