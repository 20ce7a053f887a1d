"""Sessions that plugins and tools make, and end.

Rules
-----
1. A session is made in one transaction, once: the same request under the same id gives the same session.
2. The input of its first turn is handed out once.
3. Closing ends what runs in a session and in all that it made, and nothing else: its history stays, and it
   can be opened again.
"""

from __future__ import annotations

from typing import Any

from standfast.errors import InvalidArgument, ServiceUnavailable
from standfast.model.host_requests import FromNothing, FromSession, SessionCreateRequest, SessionHandle
from standfast.model.message import UserMessage
from standfast.model.session import SessionCharter, SessionHead
from standfast.plugins.running import BuildStep
from standfast.plugins.session import PluginSession
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.host.new_sessions import (
    Inherited,
    SessionMaker,
    blobs_of,
    charter_of,
    new_session,
    new_session_id,
    snapshot_in,
)
from standfast.runtime.host.service import HostService
from standfast.runtime.sessions.directory import check_options
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.sessions.materialize import AS_GIVEN, durable_state

_CREATE = "create_session"


class LifecycleService(HostService):
    """The `SessionLifecycleHost` of a session."""

    __slots__ = ()

    async def create_session(self, request: SessionCreateRequest) -> SessionHandle:
        """Make a session, or give back the one that the same request has made."""
        own = await self._head(_CREATE, self.session_id)
        source = own
        if isinstance(request.start, FromSession):
            source = await self._head(_CREATE, request.start.session_id)
        live = await self._directory.at_work(own)
        agent = await self._agent(request, own, source, live)
        check_options(self._directory.prepared(agent), request.plugin_options)
        if request.authority == "own":
            _require_tools(agent, request)
        await self._require_pieces(request)
        maker = SessionMaker(
            head=own,
            live=live,
            agent=agent,
            host=self._directory.description,
            now_ms=self._directory.now_ms(),
            declared=await _declared_in(live) if request.authority == "own" else frozenset(),
        )
        session_id, charter = new_session_id(request), charter_of(request, maker)
        forked, inherited = None, Inherited()
        if request.plugins == "inherited":
            forked = await self._forked(request, maker, session_id, charter)
            inherited = await self._inherited(own, live) if forked is None else await Inherited.of(forked)
        new = new_session(request, maker, session_id, charter, inherited)
        made = await self._directory.store.make_session(new)
        deps = None if live is None else live.inheritable_deps()
        child = self._directory.assign(made.session_id, agent, above=live, deps=deps)
        if forked is not None:
            await child.begin_with(forked, made, whole=isinstance(request.start, FromNothing))
        return handle_of(made)

    async def take_first_turn_input(self, session_id: str) -> UserMessage | None:
        """Return the message for the first turn of a session, once."""
        await self._head("take_first_turn_input", session_id)
        store = self._directory.store
        for item in await store.inputs(session_id):
            if item.kind == "first" and await store.withdraw_input(item.input_id):
                return item.message
        return None

    async def close_session(self, session_id: str) -> None:
        """End what runs in a session and in all below it, the deepest first."""
        await self._head("close_session", session_id)
        await self._background.tasks.close_tree(session_id)

    async def _agent(
        self, request: SessionCreateRequest, own: SessionHead, source: SessionHead, live: LiveSession | None
    ) -> AgentDefinition[Any, Any]:
        """The agent of the new session: the one that is named, or that of the session it comes from."""
        if request.agent is not None:
            return self._directory.agent_named(request.agent, near=live)
        from_other = await self._directory.at_work(source) if source is not own else live
        found = from_other or live
        if found is None or found.prepared is None:
            why = f"no agent is known here for session {own.session_id!r}"
            raise ServiceUnavailable("session creation", why)
        return found.prepared.agent

    async def _inherited(self, own: SessionHead, live: LiveSession | None) -> Inherited:
        """What the plugins of this session remember now, in the middle of a turn as well."""
        if live is None:
            return Inherited(await durable_state(self._directory.store, own))
        return await Inherited.of((await live.current()).plugins)

    async def _forked(
        self, request: SessionCreateRequest, maker: SessionMaker, session_id: str, charter: SessionCharter
    ) -> PluginSession | None:
        """The plugins of this session for the new one, with its authority.

        None if that is made already, has another agent, or an authority that is not a part of this one's.
        """
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

    async def _require_pieces(self, request: SessionCreateRequest) -> None:
        """Refuse a snapshot whose larger pieces this store has not."""
        snapshot = snapshot_in(request)
        for digest in () if snapshot is None else blobs_of(snapshot.state):
            if await self._directory.store.blob(digest) is None:
                raise InvalidArgument(
                    f"the snapshot needs blob {digest}, which is not in this store",
                    hint="a snapshot can be taken up where it was made, as long as its session is kept",
                )


def _require_tools(agent: AgentDefinition[Any, Any], request: SessionCreateRequest) -> None:
    """Refuse tools that the agent of a new session lacks; what its plugins bring is not known yet."""
    has = [manifest.name for manifest in agent.registry.manifests()]
    unknown = [name for name in request.tool_access.select(request.tool_access.tools) if name not in has]
    if unknown and not agent.plugins:
        raise InvalidArgument(
            f"agent {agent.name!r} has no tool {unknown[0][:80]!r}",
            hint=f"it has: {', '.join(has) or 'none'}",
        )


async def _declared_in(live: LiveSession | None) -> frozenset[str]:
    """The names of the agents that the plugins of a session declare as its subagents."""
    if live is None:
        return frozenset()
    built = (await live.current()).plugins.plugins
    return frozenset(name for plugin in built for name in getattr(plugin, "declared_names", ()))


def handle_of(head: SessionHead) -> SessionHandle:
    charter = head.charter or SessionCharter()
    return SessionHandle(
        session_id=head.session_id,
        parent_session_id=charter.parent_session_id,
        depth=charter.depth,
    )
