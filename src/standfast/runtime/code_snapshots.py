"""Snapshots of sandbox sessions: made, stored and opened again."""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.durable.journal import replay
from standfast.errors import Code, InvalidArgument, SnapshotRefused, StandfastError
from standfast.machine.inputs import WaitOpened, decode_input
from standfast.model.canonical import Json
from standfast.model.session import TurnState
from standfast.ports.session_store import JournalEntry
from standfast.runtime.code_sessions import CodeSession, stored_variables
from standfast.runtime.code_turns import SandboxServices
from standfast.runtime.sessions.materialize import fetch_blobs, journaled_states
from standfast.sandbox.engine_kinds import find_kind
from standfast.sandbox.snapshots import (
    PausedTurn,
    SnapshotCodec,
    SnapshotHeader,
    check_capabilities,
    check_engine,
    snapshot_id,
)

_ALWAYS_THERE: Final = frozenset({"list_tools", "describe_tool", "current_policy"})
"""Capabilities of every sandbox; snapshots do not depend on them."""


class CodeSnapshots:
    """Makes snapshots of sessions under the contracts registered now, and opens those that fit them."""

    def __init__(self, services: SandboxServices) -> None:
        self._services = services
        self._store = services.store
        self._codec = SnapshotCodec(services.config.snapshot_key)

    async def save(self, session: CodeSession) -> str:
        """Store a snapshot of a session and return its id; of a waiting session, with its turn."""
        head, services = session.head, self._services
        in_progress = await self._store.open_turn_journal(head.session_id)
        variables = await stored_variables(self._store, head)
        state, engine, digests = variables, session.settings.engine, services.registry.digests()
        paused = in_progress is not None and in_progress.record.state is TurnState.WAITING
        if in_progress is not None and paused:
            entry = journaled_states(head, in_progress.journal).execution
            turn = PausedTurn(
                input=in_progress.input,
                journal=list(in_progress.journal),
                blobs={} if entry is None else await fetch_blobs(self._store, [entry]),
                variables=variables,
            )
            state = msgspec.msgpack.encode(turn)
        header = SnapshotHeader(
            meta=session.meta,
            engine=engine,
            engine_version=services.engines.get(engine).version,
            capabilities={name: digests[name] for name in digests if name not in _ALWAYS_THERE},
            host=services.config.host,
            paused=paused,
        )
        data = self._codec.seal(header, state)
        name = snapshot_id(data)
        await self._store.put_snapshot(name, head.session_id, data, services.clock.now_ms())
        return name

    async def read(self, snapshot: str | bytes) -> bytes:
        """Return the bytes of a snapshot that is given by its id, or as they are."""
        if isinstance(snapshot, bytes):
            return snapshot
        data = await self._store.snapshot(snapshot)
        if data is None:
            raise InvalidArgument(f"there is no snapshot {snapshot!r}")
        return data

    async def host_of(self, snapshot: str | bytes) -> dict[str, Json]:
        """Return how the process that made a snapshot described its tools; only the signature is checked."""
        return self._codec.open(await self.read(snapshot))[0].host

    def open(self, data: bytes) -> tuple[SnapshotHeader, bytes, PausedTurn | None]:
        """Return the header, variables and waiting turn of a snapshot; refuse one that does not fit here."""
        header, state = self._codec.open(data)
        if find_kind(header.engine) is None:
            raise SnapshotRefused(
                Code.SNAPSHOT_VERSION_MISMATCH,
                f"the snapshot was made by {header.engine}, an engine that this Standfast does not have",
            )
        check_engine(header, header.engine, self._services.engines.get(header.engine).version)
        check_capabilities(header, self._services.registry.digests())
        if not header.paused:
            return header, state, None
        try:
            paused = msgspec.msgpack.decode(state, type=PausedTurn)
        except msgspec.DecodeError as error:
            raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the waiting run cannot be read: {error}") from None
        return header, paused.variables, paused

    def can_open(self, data: bytes) -> bool:
        try:
            self.open(data)
        except StandfastError:
            return False
        return True


def without_open_waits(turn_id: str, paused: PausedTurn) -> tuple[JournalEntry, ...]:
    """Return the journal of a turn as it was before it asked for what it waits for, without its variables."""
    machine = replay(turn_id, paused.input, tuple(paused.journal)).machine
    open_waits = {wait.wait_id for wait in machine.calls.waits()}
    kept = []
    for entry in paused.journal:
        given = decode_input(entry.body) if entry.kind == "input" else None
        opens = isinstance(given, WaitOpened) and given.wait.wait_id in open_waits
        if not opens and entry.key != "execution":
            kept.append(entry)
    return tuple(kept)
