"""What a session that a plugin or a tool asks for is made of.

Theory of operation
-------------------
Everything that a new session begins with is put together first and then written in one transaction: its
charter, the history it stands over, the state of its plugins, the input of its first turn. The charter has
the digest of the request, so that whoever asks again, after a crash for instance, is given the same session,
and whoever asks for something else under its id is told that it exists.

Plugins that are `inherited` are forked first, with the authority of the new session, as long as it has the
same agent: what is written is what the fork remembers, and the fork is what the session begins with here.

Rules
-----
1. No session has more tools than the one that asked for it, whether it is its child or a root. The exception
   is a child of an agent that the developer declared as a subagent (`authority="own"`).
2. History brings what code has left and what was decided about tools. What plugins remember comes along only
   if it is `inherited`, or if it is a snapshot's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final, assert_never

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json, check_bounds, digest_bytes
from standfast.model.capability import SessionToolAccess
from standfast.model.frame import FrameSwitch
from standfast.model.host_requests import (
    FromCurrent,
    FromNothing,
    FromSession,
    FromSnapshot,
    SessionCreateRequest,
    SessionSnapshot,
)
from standfast.model.plugin_state import PluginSessionSnapshot, SessionState, decode_state, encode_state
from standfast.model.session import Entry, FrameOpened, SessionCharter, SessionHead, SessionId
from standfast.plugins.running import BuildStep
from standfast.plugins.session import PluginSession
from standfast.ports.session_store import Blob, NewSession, QueuedInput, StateRecord
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.turn import new_turn_id

MAX_DEPTH: Final = 32
"""So many sessions may stand above one another."""

_EMPTY: Final = SessionState()


class SessionMaker(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for a session: its head, and as much of it as is known in this process."""

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
    """What the plugins of the session that asks remember now, with the larger pieces of it."""

    state: SessionState = _EMPTY
    blobs: tuple[Blob, ...] = ()

    @classmethod
    async def of(cls, plugins: PluginSession) -> Inherited:
        step = BuildStep()
        snapshot, pieces = await plugins.host.aside(lambda: plugins.copied(step), step)
        blobs = tuple(Blob(digest=digest, data=data) for digest, data in pieces.items())
        return cls(SessionState(plugins=snapshot, tools=plugins.tool_registry.export_state()), blobs)


def new_session_id(request: SessionCreateRequest) -> SessionId:
    return SessionId(request.session_id or f"s-{secrets.token_hex(12)}")


def new_session(
    request: SessionCreateRequest,
    maker: SessionMaker,
    session_id: SessionId,
    charter: SessionCharter,
    inherited: Inherited,
) -> NewSession:
    """The session that was asked for, whole."""
    now, agent = maker.now_ms, maker.agent
    head = SessionHead(
        session_id=session_id,
        created_at=now,
        updated_at=now,
        agent=agent.name,
        model=agent.model_id,
        host=maker.host,
        charter=charter,
        metadata=maker.head.metadata,
    )
    return NewSession(
        head=head,
        fork_of=_source(request, maker),
        at=request.start.at if isinstance(request.start, FromCurrent | FromSession) else None,
        segment_id=new_turn_id().replace("t_", "a_"),
        entries=_entries(request, now),
        make_state=_state_maker(request, inherited.state),
        blobs=inherited.blobs,
        first=_first_input(request, session_id, now),
    )


def charter_of(request: SessionCreateRequest, maker: SessionMaker) -> SessionCharter:
    """What the new session may do, and for whom."""
    check_bounds(request)
    depth = maker.depth + 1 if request.child else 0
    if depth > MAX_DEPTH:
        raise InvalidArgument(
            f"session {maker.head.session_id!r} is {maker.depth} sessions below the first one",
            hint=f"there may be {MAX_DEPTH}; make a root of it (child=False), or do the work here",
        )
    return SessionCharter(
        parent_session_id=maker.head.session_id if request.child else None,
        depth=depth,
        task=request.task,
        subagent=request.subagent,
        tool_access=_tool_access(request, maker),
        plugin_options=request.plugin_options,
        policy=request.policy,
        request=digest_bytes(msgspec.json.encode([maker.head.session_id, request])),
    )


def _tool_access(request: SessionCreateRequest, maker: SessionMaker) -> SessionToolAccess:
    """The tools that were asked for, within the maker's unless the agent has an authority of its own."""
    if request.authority == "narrowed":
        return request.tool_access.within(maker.tool_access)
    if not request.child or request.agent not in maker.declared:
        raise InvalidArgument(
            f"agent {request.agent!r} is not declared as a subagent in session {maker.head.session_id!r}",
            hint="declare it with Subagents(agents=[...]), or leave authority= out",
        )
    return request.tool_access


def _source(request: SessionCreateRequest, maker: SessionMaker) -> str | None:
    """Return the session whose history the new one continues."""
    match request.start:
        case FromCurrent():
            return maker.head.session_id
        case FromSession(session_id=session_id):
            return session_id
        case FromNothing() | FromSnapshot():
            return None
        case _:
            assert_never(request.start)


def _entries(request: SessionCreateRequest, now_ms: int) -> tuple[Entry, ...]:
    """The messages of a snapshot, as what the first frame begins with."""
    if not isinstance(request.start, FromSnapshot) or not request.start.snapshot.messages:
        return ()
    switch = FrameSwitch(
        frame_id=new_turn_id().replace("t_", "f_"),
        reason="snapshot",
        seed=request.start.snapshot.messages,
    )
    return (Entry(at_ms=now_ms, payload=FrameOpened(switch=switch)),)


def _first_input(request: SessionCreateRequest, session_id: str, now_ms: int) -> QueuedInput | None:
    if request.first_turn_input is None:
        return None
    return QueuedInput(
        input_id=f"first_{secrets.token_hex(8)}",
        session_id=session_id,
        kind="first",
        message=request.first_turn_input,
        created_at=now_ms,
    )


def _state_maker(
    request: SessionCreateRequest, inherited: SessionState
) -> Callable[[bytes | None], StateRecord | None]:
    """Makes the new session's state of the one that holds where its history ends."""

    def make(held: bytes | None) -> StateRecord | None:
        before = _EMPTY if held is None else decode_state(held)
        after = _state(request, before, inherited)
        return None if after == before else record_of(after)

    return make


def _state(request: SessionCreateRequest, held: SessionState, inherited: SessionState) -> SessionState:
    if isinstance(request.start, FromSnapshot):
        held = request.start.snapshot.state
    elif request.plugins == "fresh":
        held = msgspec.structs.replace(held, plugins=PluginSessionSnapshot())
    if request.plugins == "inherited":
        tools = inherited.tools if isinstance(request.start, FromNothing) else held.tools
        held = msgspec.structs.replace(held, plugins=inherited.plugins, tools=tools)
    return held


def record_of(state: SessionState) -> StateRecord:
    """A state as the store keeps it."""
    return StateRecord(body=encode_state(state), blobs=blobs_of(state))


def blobs_of(state: SessionState) -> tuple[str, ...]:
    """The digests of the larger pieces that a state names."""
    entries = [*state.plugins.plugins.values(), *([state.execution] if state.execution else [])]
    return tuple(digest for entry in entries for digest in entry.artifacts.values())


def snapshot_in(request: SessionCreateRequest) -> SessionSnapshot | None:
    return request.start.snapshot if isinstance(request.start, FromSnapshot) else None
