"""The sessions that plugins and tools create and close.

Theory of operation
-------------------
The initial contents of a new session (its charter, history, plugin states and first input) are written in one
transaction. The charter contains the digest of the request: repeating a request returns the same session, and
a different request with the same id fails. `inherited` plugins are forked with the new session's authority if
it has the same agent.

Rules
-----
1. No session has more tools than the one that requested it, except a child of an agent that the developer
   declared as a subagent (`authority="own"`).
2. With its history, a session gets the variables and the settings of tools. It gets plugin states only if
   they are `inherited` or part of a snapshot.
3. The input of the first turn is returned once.
4. Closing ends all work in a session and in those below it. Their history is kept, and they can be reopened.
"""

from __future__ import annotations

import os
from typing import Any, Final, assert_never

import msgspec

from standfast.errors import InvalidArgument, ServiceUnavailable
from standfast.model.canonical import Json, check_bounds, digest_bytes
from standfast.model.capability import SessionToolAccess
from standfast.model.frame import FrameSwitch
from standfast.model.host_requests import (
    FromCurrent,
    FromNothing,
    FromSession,
    FromSnapshot,
    SessionCreateRequest,
    SessionHandle,
    SessionStart,
)
from standfast.model.message import UserMessage
from standfast.model.plugin_state import PluginSessionSnapshot, SessionState, decode_state
from standfast.model.session import Entry, FrameOpened, SessionCharter, SessionHead, SessionId
from standfast.plugins.running import BuildStep
from standfast.plugins.session import PluginSession
from standfast.plugins.stored_states import blobs_of, state_record
from standfast.ports.session_store import Blob, NewSession, QueuedInput, StateRecord
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.host.service import HostService
from standfast.runtime.sessions.directory import check_options
from standfast.runtime.sessions.live_session import LiveSession, inheritable_deps
from standfast.runtime.sessions.materialize import AS_GIVEN, durable_state
from standfast.runtime.turn import new_turn_id

MAX_DEPTH: Final = 32
"""How deep sessions may be nested."""

_EMPTY: Final = SessionState()


class SessionMaker(msgspec.Struct, frozen=True, kw_only=True):
    """The session that requests a new one: its head, and its in-memory state in this process."""

    head: SessionHead
    live: LiveSession | None
    agent: AgentDefinition[Any, Any]
    host: dict[str, Json]
    now_ms: int
    declared: frozenset[str] = frozenset()
    """The names of the agents that the session's plugins declare as subagents."""

    @property
    def tool_access(self) -> SessionToolAccess:
        """The tools that the session may use."""
        charter = self.head.charter
        granted = SessionToolAccess() if charter is None else charter.tool_access
        if self.live is None:
            return granted
        hidden = SessionToolAccess(hidden_tools=self.live.setup.catalog.out_of_reach)
        return hidden.within(self.live.setup.authority.tool_access.within(granted))

    @property
    def depth(self) -> int:
        return 0 if self.head.charter is None else self.head.charter.depth


class Inherited(msgspec.Struct, frozen=True):
    """The current plugin states of the requesting session, with their blobs."""

    state: SessionState = _EMPTY
    blobs: tuple[Blob, ...] = ()

    @classmethod
    async def of(cls, plugins: PluginSession) -> Inherited:
        step = BuildStep()
        snapshot, pieces = await plugins.host.aside(lambda: plugins.copied(step), step)
        blobs = tuple(Blob(digest=digest, data=data) for digest, data in pieces.items())
        return cls(SessionState(plugins=snapshot, tools=plugins.tool_registry.export_state()), blobs)


def new_session(
    request: SessionCreateRequest,
    maker: SessionMaker,
    session_id: SessionId,
    charter: SessionCharter,
    inherited: Inherited,
) -> NewSession:
    """Return the requested session with all its contents, to be written in one transaction."""
    now, start, first = maker.now_ms, request.start, None
    fork_of, at, entries = _history_of(start, maker)
    if request.first_turn_input is not None:
        first = QueuedInput(
            input_id=f"first_{os.urandom(8).hex()}",
            session_id=session_id,
            kind="first",
            message=request.first_turn_input,
            created_at=now,
        )

    def make_state(held: bytes | None) -> StateRecord | None:
        """Make the new session's state from the one at the end of its history."""
        before = after = _EMPTY if held is None else decode_state(held)
        if isinstance(start, FromSnapshot):
            after = start.snapshot.state
        elif request.plugins == "fresh":
            after = msgspec.structs.replace(after, plugins=PluginSessionSnapshot())
        if request.plugins == "inherited":
            tools = inherited.state.tools if isinstance(start, FromNothing) else after.tools
            after = msgspec.structs.replace(after, plugins=inherited.state.plugins, tools=tools)
        return None if after == before else state_record(after)

    return NewSession(
        head=SessionHead(
            session_id=session_id,
            created_at=now,
            updated_at=now,
            agent=maker.agent.name,
            model=maker.agent.model_id,
            host=maker.host,
            charter=charter,
            metadata=maker.head.metadata,
        ),
        fork_of=fork_of,
        at=at,
        segment_id=new_turn_id().replace("t_", "a_"),
        entries=entries,
        make_state=make_state,
        blobs=inherited.blobs,
        first=first,
    )


def _history_of(start: SessionStart, maker: SessionMaker) -> tuple[str | None, str | None, tuple[Entry, ...]]:
    """Return the session whose history a new one continues, the last node of that, and the added entries."""
    match start:
        case FromCurrent(at=at):
            return maker.head.session_id, at, ()
        case FromSession(session_id=session_id, at=at):
            return session_id, at, ()
        case FromSnapshot(snapshot=snapshot) if snapshot.messages:
            frame_id = new_turn_id().replace("t_", "f_")
            switch = FrameSwitch(frame_id=frame_id, reason="snapshot", seed=snapshot.messages)
            return None, None, (Entry(at_ms=maker.now_ms, payload=FrameOpened(switch=switch)),)
        case FromNothing() | FromSnapshot():
            return None, None, ()
        case _:
            assert_never(start)


def charter_of(request: SessionCreateRequest, maker: SessionMaker) -> SessionCharter:
    """Return the authority and the parent of the new session."""
    check_bounds(request)
    depth = maker.depth + 1 if request.child else 0
    if depth > MAX_DEPTH:
        raise InvalidArgument(
            f"session {maker.head.session_id!r} is {maker.depth} levels below the root session",
            hint=f"the limit is {MAX_DEPTH}; create a root session (child=False), or do the work here",
        )
    if request.authority == "narrowed":
        tool_access = request.tool_access.within(maker.tool_access)
    elif request.child and request.agent in maker.declared:
        tool_access = request.tool_access
    else:
        raise InvalidArgument(
            f"agent {request.agent!r} is not declared as a subagent in session {maker.head.session_id!r}",
            hint="declare it with Subagents(agents=[...]), or leave authority= out",
        )
    return SessionCharter(
        parent_session_id=maker.head.session_id if request.child else None,
        depth=depth,
        task=request.task,
        subagent=request.subagent,
        tool_access=tool_access,
        plugin_options=request.plugin_options,
        policy=request.policy,
        request=digest_bytes(msgspec.json.encode([maker.head.session_id, request])),
    )


_CREATE = "create_session"


class LifecycleService(HostService):
    """The `SessionLifecycleHost` of a session."""

    __slots__ = ()

    async def create_session(self, request: SessionCreateRequest) -> SessionHandle:
        """Create a session, or return the one that the same request has created before."""
        own = await self._head(_CREATE, self.session_id)
        source = own
        if isinstance(request.start, FromSession):
            source = await self._head(_CREATE, request.start.session_id)
        live = await self._directory.at_work(own)
        agent = await self._agent(request, own, source, live)
        check_options(self._directory.prepared(agent), request.plugin_options)
        if isinstance(request.start, FromSnapshot):
            for digest in blobs_of(request.start.snapshot.state):
                if await self._directory.store.blob(digest) is None:
                    raise InvalidArgument(
                        f"the snapshot needs blob {digest}, which is not in this store",
                        hint="restore a snapshot where it was made, as long as its session is kept",
                    )
        declared: frozenset[str] = frozenset()
        if request.authority == "own":
            _require_tools(agent, request)
            built = [] if live is None else (await live.current()).plugins.plugins
            declared = frozenset(name for one in built for name in getattr(one, "declared_names", ()))
        maker = SessionMaker(
            head=own,
            live=live,
            agent=agent,
            host=self._directory.description,
            now_ms=self._directory.now_ms(),
            declared=declared,
        )
        session_id = SessionId(request.session_id or f"s-{os.urandom(12).hex()}")
        charter = charter_of(request, maker)
        forked, inherited = None, Inherited()
        if request.plugins == "inherited":
            forked = await self._forked(request, maker, session_id, charter)
            if forked is not None:
                inherited = await Inherited.of(forked)
            elif live is not None:
                inherited = await Inherited.of((await live.current()).plugins)
            else:
                inherited = Inherited(await durable_state(self._directory.store, own))
        new = new_session(request, maker, session_id, charter, inherited)
        made = await self._directory.store.make_session(new)
        deps = None if live is None else inheritable_deps(live)
        child = self._directory.assign(made.session_id, agent, above=live, deps=deps)
        if forked is not None:
            await child.begin_with(forked, made, whole=isinstance(request.start, FromNothing))
        kept = made.charter or charter
        return SessionHandle(
            session_id=made.session_id, parent_session_id=kept.parent_session_id, depth=kept.depth
        )

    async def take_first_turn_input(self, session_id: str) -> UserMessage | None:
        """Return the message for the first turn of a session, once."""
        await self._head("take_first_turn_input", session_id)
        store = self._directory.store
        for item in await store.inputs(session_id):
            if item.kind == "first" and await store.withdraw_input(item.input_id):
                return item.message
        return None

    async def close_session(self, session_id: str) -> None:
        """End all work in a session and in those below it, the deepest first."""
        await self._head("close_session", session_id)
        await self._background.tasks.close_tree(session_id)

    async def _agent(
        self, request: SessionCreateRequest, own: SessionHead, source: SessionHead, live: LiveSession | None
    ) -> AgentDefinition[Any, Any]:
        """Return the agent of the new session: the named one, or that of the session it comes from."""
        if request.agent is not None:
            return self._directory.agent_named(request.agent, near=live)
        from_other = await self._directory.at_work(source) if source is not own else live
        found = from_other or live
        if found is None or found.prepared is None:
            why = f"no agent is known here for session {own.session_id!r}"
            raise ServiceUnavailable("session creation", why)
        return found.prepared.agent

    async def _forked(
        self, request: SessionCreateRequest, maker: SessionMaker, session_id: str, charter: SessionCharter
    ) -> PluginSession | None:
        """Fork this session's plugins for a new one; None if it exists, or its agent or rights differ."""
        live = maker.live
        if live is None or not self.is_open or request.authority == "own":
            return None
        plugins = (await live.current()).plugins
        if plugins.host is not self._directory.prepared(maker.agent).host:
            return None
        if request.session_id is not None and await self._directory.store.head(session_id) is not None:
            return None
        authority = AS_GIVEN.under(charter).authority
        parent = charter.parent_session_id
        step = BuildStep()
        return await plugins.host.aside(
            lambda: plugins.fork_for_child_session(session_id, parent, authority, step), step
        )


def _require_tools(agent: AgentDefinition[Any, Any], request: SessionCreateRequest) -> None:
    """Raise if the new session's agent lacks a requested tool, unless a plugin may still add it."""
    has = [manifest.name for manifest in agent.registry.manifests()]
    unknown = [name for name in request.tool_access.select(request.tool_access.tools) if name not in has]
    if unknown and not agent.plugins:
        raise InvalidArgument(
            f"agent {agent.name!r} has no tool {unknown[0][:80]!r}",
            hint=f"it has: {', '.join(has) or 'none'}",
        )
