"""The sessions of a sandbox, which have no model and whose turns are code.

They are ordinary sessions of the store, with `SessionHead.code` set. A session's variables and settings are
cached between runs, and read again if another process has changed them.

Rules
-----
1. A session runs one turn at a time: within this process by a lock, among processes by the lease.
2. A session's language and engine are fixed when it is created.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import Any, Final, Literal

import msgspec

from standfast.durable.journal import replay
from standfast.errors import Code, InvalidArgument, SessionNotFound, SnapshotRefused, StandfastError
from standfast.machine.inputs import WaitOpened, decode_input
from standfast.model.canonical import Json
from standfast.model.code import Language
from standfast.model.limits import SessionLimits
from standfast.model.plugin_state import SessionState
from standfast.model.session import (
    SANDBOX_AGENT,
    CodeSettings,
    SessionHead,
    SessionId,
    SessionInfo,
    SessionMeta,
    TurnState,
)
from standfast.plugins.stored_states import (
    fetch_blobs,
    journaled_states,
    read_execution,
    read_state,
    state_record,
)
from standfast.ports.session_store import JournalEntry, SessionStore
from standfast.protocols.code.memory import read_memory
from standfast.runtime.code_executor import SandboxExecutor
from standfast.runtime.code_turns import CodeTurn, SandboxMemory, SandboxServices
from standfast.runtime.sessions.approvals import list_approvals
from standfast.sandbox.engine_kinds import find_kind
from standfast.sandbox.snapshots import (
    PausedTurn,
    SnapshotCodec,
    SnapshotHeader,
    check_capabilities,
    check_engine,
    snapshot_id,
)

_CACHED_SESSIONS: Final = 256


class CodeSession:
    """This process's cached state of a session. Only the thread that holds `lock` may use it."""

    __slots__ = ("_services", "current", "head", "lock", "memory", "settings", "state_id")

    def __init__(
        self, head: SessionHead, settings: CodeSettings, executor: SandboxExecutor, services: SandboxServices
    ) -> None:
        self._services = services
        self.head = head
        self.settings = settings
        self.memory = SandboxMemory(head.session_id, executor, services)
        self.state_id: str | None = None
        """The id of the stored state that the executor has loaded."""
        self.current: CodeTurn | None = None
        self.lock = threading.Lock()

    def require_fit(self, language: Language) -> None:
        """Raise `InvalidArgument` if the language, or this sandbox's engine for it, is not the session's."""
        settings = self.settings
        wanted = self._services.engine_names.get(language)
        if settings.language == language and wanted in (None, settings.engine):
            return
        asked = language if settings.language != language else f"{language} on {wanted}"
        raise InvalidArgument(
            f"session {self.head.session_id!r} is {settings.language} on {settings.engine}, not {asked}",
            hint="a session's language and engine are fixed; use another session, or delete this one",
        )

    async def refresh(self, journal: tuple[JournalEntry, ...]) -> None:
        """Load the variables at `head`, or those that the unfinished turn with this *journal* has reached."""
        head, store = self.head, self._services.store
        entry = journaled_states(head, journal).execution
        if entry is None:
            entry = (await read_state(store, head)).execution
        engine = self._services.engines.get(self.settings.engine)
        executor = SandboxExecutor(engine.cells, self.settings)
        self.memory = SandboxMemory(head.session_id, executor, self._services)
        self.memory.restore(entry, {} if entry is None else await fetch_blobs(store, [entry]))
        self.state_id = head.state

    async def replace_variables(self, variables: bytes) -> None:
        """Store *variables*, the engine's bytes, instead of the session's current ones."""
        self.memory.executor.replace_state(variables)
        changed = self.memory.changed()
        assert changed is not None
        entry, blobs = changed
        record = state_record(SessionState(execution=entry))
        now = self._services.clock.now_ms()
        self.head = await self._services.store.set_state(self.head.session_id, record, blobs, now)
        self.state_id = self.head.state

    async def describe(self) -> None:
        """Record the session's settings, and the tools of this process."""
        host = dict(self._services.config.host)
        await self._services.store.describe(
            self.head.session_id, agent=SANDBOX_AGENT, model="", host=host, code=self.settings
        )
        self.head = msgspec.structs.replace(self.head, host=host, code=self.settings)

    @property
    def meta(self) -> SessionMeta:
        return _meta(self.head, self.settings)


class CodeSessions:
    """The sessions of one sandbox. Its coroutines run on a `BlockingLoop`, in any thread."""

    def __init__(self, services: SandboxServices) -> None:
        self.services = services
        self._store: SessionStore = services.store
        self._clock = services.clock
        self._cached: OrderedDict[str, CodeSession] = OrderedDict()
        self.cached = self._cached.get
        self.latest: CodeSession | None = None
        """The session that was used last."""
        self._caching = threading.Lock()

    async def find(self, session_id: SessionId) -> CodeSession | None:
        """Return a session; None if it does not exist or has expired. Delete an expired session."""
        session = self._cached.get(session_id)
        if session is not None and not self._has_expired(session.settings):
            return session
        head = await self._store.head(session_id)
        if head is None:
            return None
        code = _require_code(head)
        if self._has_expired(code):
            self.forget(session_id)
            await self._store.delete_session(session_id)
            return None
        return self._keep(head, code)

    async def get(self, session_id: str) -> CodeSession:
        """Return a session; raise `SessionNotFound` if it does not exist."""
        found = await self.find(SessionId(session_id))
        if found is None:
            raise SessionNotFound(session_id)
        return found

    async def get_unread(self, session_id: SessionId) -> CodeSession:
        """Return a session without reading its variables, even if its engine is not installed."""
        head = await self._store.head(session_id)
        if head is None or head.code is None:
            raise SessionNotFound(session_id)
        no_engine: Any = None
        return self._cached.get(session_id) or CodeSession(
            head, head.code, SandboxExecutor(no_engine, head.code), self.services
        )

    def all_cached(self) -> list[CodeSession]:
        return list(self._cached.values())

    def used(self, session: CodeSession) -> None:
        """Cache a session; evict the least recently used one if there are too many."""
        session_id = session.head.session_id
        with self._caching:
            self.latest = self._cached[session_id] = session
            self._cached.move_to_end(session_id)
            if len(self._cached) <= _CACHED_SESSIONS:
                return
            idle_id, idle = next(iter(self._cached.items()))
            if idle.lock.acquire(blocking=False):
                del self._cached[idle_id]
                idle.lock.release()

    def forget(self, session_id: str) -> None:
        """Evict a session from this process's cache."""
        self.services.engines.forget(session_id)
        self._cached.pop(session_id, None)
        self.latest = None

    def _keep(self, head: SessionHead, settings: CodeSettings) -> CodeSession:
        engine = self.services.engines.get(settings.engine)
        made = CodeSession(head, settings, SandboxExecutor(engine.cells, settings), self.services)
        with self._caching:
            return self._cached.setdefault(head.session_id, made)

    def _has_expired(self, settings: CodeSettings) -> bool:
        return settings.expires_at is not None and settings.expires_at <= self._clock.now_ms()

    async def open(self, session_id: SessionId, settings: CodeSettings) -> CodeSession:
        """Return a session; create it with *settings* if it does not exist."""
        found = await self.find(session_id)
        if found is not None:
            return found
        self.services.engines.get(settings.engine)  # raises before a session that cannot run here is stored
        now = self._clock.now_ms()
        head = await self._store.open_session(
            SessionHead(
                session_id=session_id,
                created_at=now,
                updated_at=now,
                agent=SANDBOX_AGENT,
                host=dict(self.services.config.host),
                code=settings,
            )
        )
        return self._keep(head, _require_code(head))

    def new_settings(
        self, language: Language, limits: SessionLimits | None = None, ttl_ms: int | None = None
    ) -> CodeSettings:
        language = Language(language)
        return CodeSettings(
            language=language,
            engine=self.services.engine_for(language),
            limits=limits or self.services.config.limits,
            expires_at=None if ttl_ms is None else self._clock.now_ms() + ttl_ms,
        )

    async def create(self, session_id: SessionId, settings: CodeSettings) -> None:
        """Create an empty session; raise `InvalidArgument` if it exists."""
        await self._require_new(session_id)
        await self.open(session_id, settings)

    async def fork(self, session_id: SessionId, new_id: SessionId) -> SessionId:
        """Create a session with the same variables, or those before the waiting run if there is one."""
        await self.get(session_id)
        await self._require_new(new_id)
        await self._store.fork(session_id, new_id, None, self._clock.now_ms())
        return new_id

    async def _require_new(self, session_id: SessionId) -> None:
        if await self.find(session_id) is not None:
            raise InvalidArgument(
                f"session {session_id!r} exists already",
                hint="reset or delete it first, or choose another id",
            )

    async def destroy(self, session_id: SessionId) -> bool:
        """Delete a session, its variables and its waiting run; return False if it does not exist."""
        session = self._cached.get(session_id)
        with contextlib.nullcontext() if session is None else session.lock:
            head = await self._store.head(session_id)
            if head is not None:
                _require_code(head)
            self.forget(session_id)
            return await self._store.delete_session(session_id)

    async def infos(self) -> list[SessionInfo]:
        """Return all sessions that have not expired, oldest first; delete the others."""
        heads = sorted(await self._store.heads(), key=lambda head: (head.created_at, head.session_id))
        found = []
        for head in heads:
            if head.code is not None and self._has_expired(head.code):
                await self._store.delete_session(head.session_id)
            elif head.code is not None:
                found.append(await self._info(head, head.code))
        return found

    async def info(self, session_id: SessionId) -> SessionInfo:
        head = await self._store.head(session_id)
        if head is None or head.code is None or self._has_expired(head.code):
            raise SessionNotFound(session_id)
        return await self._info(head, head.code)

    async def _info(self, head: SessionHead, code: CodeSettings) -> SessionInfo:
        record = await self._store.open_turn(head.session_id)
        waits = record is not None and record.state is TurnState.WAITING
        state: Literal["idle", "waiting_for_approval"] = "waiting_for_approval" if waits else "idle"
        pending = []
        if record is not None and waits:
            now = self._clock.now_ms()
            pending = await list_approvals(self._store, now, turn=record.turn_id, pending=True)
        return SessionInfo(
            meta=_meta(head, code),
            engine=code.engine,
            state=state,
            state_bytes=len(await stored_variables(self._store, head)),
            expires_at=code.expires_at,
            approvals=[one.approval_id for one in pending],
        )


async def stored_variables(store: SessionStore, head: SessionHead) -> bytes:
    """Return the variables at *head* as the engine's bytes; empty if none were ever set."""
    entry = (await read_state(store, head)).execution
    if entry is None:
        return b""
    return read_memory(read_execution(entry, await fetch_blobs(store, [entry]))).state


def _meta(head: SessionHead, settings: CodeSettings) -> SessionMeta:
    return SessionMeta(
        id=head.session_id,
        created_at=head.created_at,
        last_used_at=head.updated_at,
        language=settings.language,
        limits=settings.limits,
    )


def _require_code(head: SessionHead) -> CodeSettings:
    """Return the settings of a session of code; raise `InvalidArgument` if it is an agent's."""
    if head.code is None:
        raise InvalidArgument(
            f"session {head.session_id!r} belongs to an agent; a sandbox needs a session without a model",
            hint="use another session",
        )
    return head.code


_ALWAYS_THERE: Final = frozenset({"list_tools", "describe_tool", "current_policy"})
"""Capabilities of every sandbox; snapshots do not depend on them."""


class CodeSnapshots:
    """Creates snapshots with the contracts registered now, and opens snapshots that match them."""

    def __init__(self, services: SandboxServices) -> None:
        self._services = services
        self._store = services.store
        self._codec = SnapshotCodec(services.config.snapshot_key)

    async def save(self, session: CodeSession) -> str:
        """Store a snapshot of a session, with its waiting turn if there is one, and return its id."""
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
        """Return the bytes of a snapshot, which is given by its id or as bytes."""
        if isinstance(snapshot, bytes):
            return snapshot
        data = await self._store.snapshot(snapshot)
        if data is None:
            raise InvalidArgument(f"snapshot {snapshot!r} does not exist")
        return data

    async def host_of(self, snapshot: str | bytes) -> dict[str, Json]:
        """Return the description of the process that made a snapshot. Only the signature is checked."""
        return self._codec.open(await self.read(snapshot))[0].host

    def open(self, data: bytes) -> tuple[SnapshotHeader, bytes, PausedTurn | None]:
        """Return a snapshot's header, variables and waiting turn; raise if it cannot be used here."""
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
    """Return a turn's journal without its variables and without the requests that it is waiting for."""
    machine = replay(turn_id, paused.input, tuple(paused.journal)).machine
    open_waits = {wait.wait_id for wait in machine.calls.waits()}
    kept = []
    for entry in paused.journal:
        given = decode_input(entry.body) if entry.kind == "input" else None
        opens = isinstance(given, WaitOpened) and given.wait.wait_id in open_waits
        if not opens and entry.key != "execution":
            kept.append(entry)
    return tuple(kept)
