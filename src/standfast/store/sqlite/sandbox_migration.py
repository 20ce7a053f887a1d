"""The migration of the sandbox's former tables: each of their sessions becomes an ordinary session.

Theory of operation
-------------------
The sandbox once had its own store in the same file. A row of `sandbox_sessions` held the engine's bytes, and
a row of `sandbox_runs` held a run that waited for an approval. Now a session of the sandbox is a session with
`code`, and a run is a turn. This migration converts the sessions; snapshots and approvals are kept.

Rules
-----
1. It writes sessions with the current code, so it must run after all other migrations.
2. A waiting run cannot become a turn, because it has no turn's journal: the file is refused and not changed.
3. Every record that is read is checked. A file with a damaged record is refused.
"""

from __future__ import annotations

import base64
import logging
from typing import Final

import msgspec

from standfast.errors import RecordCorrupt, StoreError
from standfast.model.canonical import digest_bytes
from standfast.model.plugin_state import PluginSnapshotEntry, PluginSnapshotMeta, SessionState, encode_state
from standfast.model.session import CodeSettings, SessionHead, SessionMeta
from standfast.ports.session_store import Blob, StateRecord
from standfast.store.sql import history, inputs, records, rows, waits
from standfast.store.sql.connection import Row
from standfast.store.sqlite import schema
from standfast.store.sqlite.connection import SqliteConnection
from standfast.store.sqlite.schema import Components

_SESSION: Final = (
    "SELECT id, epoch, expires_at, meta, head_digest, state_digest, state FROM sandbox_sessions WHERE id = ?"
)
_CLEAR: Final = """
DROP TABLE sandbox_sessions;
DROP TABLE sandbox_retired;
DROP TABLE sandbox_runs;
DROP TABLE sandbox_calls;
"""
_OWNER: Final = "sandbox"
_AGENT: Final = "(sandbox)"
_INLINE_BYTES: Final = 4_096
_MAX_ID: Final = 64

_log: Final = logging.getLogger("standfast")


class _Meta(SessionMeta, frozen=True, kw_only=True):
    """A session's metadata as it was stored; the field `engine` was omitted for the first engine."""

    engine: str = "monty"


_metas: rows.RecordDecoder[_Meta] = rows.RecordDecoder(_Meta)


def convert(db: SqliteConnection) -> None:
    """Make every former session an ordinary one and drop the tables; `StoreError` if a run of one waits."""
    waiting = db.execute("SELECT session_id FROM sandbox_runs ORDER BY session_id").fetchall()
    if waiting:
        names = ", ".join(str(session_id) for (session_id,) in waiting)
        raise StoreError(
            f"the file has sandbox runs of an earlier release that wait for an approval, in session {names}",
            hint="approve, deny or cancel them with the earlier release, then open the file again",
        )
    db.execute("ALTER TABLE sandbox_snapshots RENAME TO snapshots")
    former = [str(found) for (found,) in db.execute("SELECT id FROM sandbox_sessions ORDER BY id").fetchall()]
    of_agents = {str(found) for (found,) in db.execute("SELECT id FROM sessions").fetchall()}
    taken = of_agents.union(former)
    for former_id in former:
        session_id = former_id
        if former_id in of_agents:
            session_id = _free_name(former_id, taken)
            taken.add(session_id)
            _rename(db, former_id, session_id)
            _log.warning(
                "an agent also has a session %r; the sandbox's session is now %r", former_id, session_id
            )
        (row,) = db.execute(_SESSION, (former_id,)).fetchall()  # one at a time: states may be large
        _insert(db, session_id, row)
    db.execute(_CLEAR)


def _insert(db: SqliteConnection, session_id: str, row: Row) -> None:
    """Write the session of *row*, a row of `sandbox_sessions`, under *session_id*."""
    meta, expires_at, state = _checked(row)
    head = SessionHead(
        session_id=session_id,
        created_at=meta.created_at,
        updated_at=meta.last_used_at,
        agent=_AGENT,
        code=CodeSettings(
            language=meta.language, engine=meta.engine, limits=meta.limits, expires_at=expires_at
        ),
    )
    session = rows.insert_session(db, head)
    if not state:
        return
    memory = {"version": 1, "language": meta.language, "engine": meta.engine, "state": state}
    record, blobs = _state_record(msgspec.msgpack.encode({**memory, "inputs": {}, "suspended": None}))
    inputs.put_blobs(db, blobs)
    changed = history.write_state(db, session, record)
    rows.update_session(db, history.at_time(changed, head.updated_at))


def _checked(row: Row) -> tuple[_Meta, int | None, bytes]:
    """Return meta, expiry and state of a row of `sandbox_sessions` whose digests match."""
    session_id, epoch, expires_at, meta, head_digest, state_digest, state = row
    what = f"session {session_id}"
    head = rows.text_seal("session", session_id, epoch, expires_at, len(state), data=meta)
    if head != head_digest or rows.text_seal("state", session_id, epoch, data=state) != state_digest:
        raise RecordCorrupt(what)
    return rows.decoded(_metas, meta, what), expires_at, state


def _state_record(memory: bytes) -> tuple[StateRecord, tuple[Blob, ...]]:
    """Return the state of a session whose code has the stored variables *memory*, and the blobs it needs."""
    digest = digest_bytes(memory)
    inline = len(memory) <= _INLINE_BYTES
    entry = PluginSnapshotEntry(
        meta=PluginSnapshotMeta(
            plugin_id=_OWNER,
            plugin_version="1",
            revision=1,
            state={"data": base64.b64encode(memory).decode()} if inline else {},
        ),
        artifacts={} if inline else {"execution": digest},
    )
    blobs = () if inline else (Blob(digest=digest, data=memory),)
    body = encode_state(SessionState(execution=entry))
    return StateRecord(body=body, blobs=tuple(entry.artifacts.values())), blobs


def _free_name(session_id: str, taken: set[str]) -> str:
    """Return `<session_id>-sandbox`, with a number if it is taken; never longer than an id may be."""
    number = 1
    while True:
        suffix = "-sandbox" if number == 1 else f"-sandbox-{number}"
        if (name := session_id[: _MAX_ID - len(suffix)] + suffix) not in taken:
            return name
        number += 1


def _rename(db: SqliteConnection, session_id: str, new_id: str) -> None:
    """Assign the snapshots and approvals of the sandbox's session to its new id; leave an agent's alone."""
    for approval in waits.find_approvals(db, session_id=session_id):
        if not approval.run_id.startswith("t_"):
            db.execute("DELETE FROM approvals WHERE approval_id = ?", (approval.approval_id,))
            waits.insert_approval(db, msgspec.structs.replace(approval, session_id=new_id))
    for snapshot_id, created_at, data in records.session_snapshots(db, session_id):
        records.put_snapshot(db, records.snapshot_row(snapshot_id, new_id, created_at, data))


COMPONENTS: Final[Components] = {"sessions": schema.SESSIONS, "sandbox": (*schema.SANDBOX_BEFORE, convert)}
"""All migrations of a file, in the order in which they run."""
