"""The sessions of one runtime: which are open here, with which agent, and which are cached.

Theory of operation
-------------------
The directory has a `LiveSession` for each session that was opened here. The least recently used are evicted.
An evicted session that the host program still references is found again; for the last `_MAX_EVICTED` others,
the directory remembers only the agent. An agent is found by the session it is assigned to, by its name in
`Runtime(agents=[...])`, or among the subagents that a known agent declares.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from weakref import WeakValueDictionary

import msgspec

from standfast import errors
from standfast.model.canonical import Json, digest_bytes, to_json
from standfast.model.capability import SessionToolAccess
from standfast.model.message import UserMessage
from standfast.model.plugin_options import PluginOptions
from standfast.model.session import SessionCharter, SessionHead, SessionId
from standfast.plugins.contexts import NoHosts, SessionHosts
from standfast.plugins.runtime_services import RuntimeServices, runtime_not_open
from standfast.ports.session_store import Blob, QueuedInput, SessionStore
from standfast.runtime.agent_definition import AgentDefinition, declared_agents
from standfast.runtime.dependencies import fits, inherited_factory
from standfast.runtime.sessions import materialize
from standfast.runtime.sessions.live_session import LiveSession, RunsTurns, TurnSlots, inheritable_deps
from standfast.runtime.sessions.relay import EventRelay
from standfast.runtime.turn import LiveFeed, is_turn_id, new_input_id

if TYPE_CHECKING:
    from standfast.model.directive import SessionRequest
    from standfast.model.events import Event
    from standfast.model.journal import JournalEdit
    from standfast.model.task import TaskRecord, TaskSpec
    from standfast.model.trigger import Occurrence
    from standfast.ports.host import SessionTask

MAX_METADATA_BYTES: Final = 16 * 1024

_MAX_EVICTED: Final = 100_000
"""For how many evicted sessions the agent is remembered; each takes about 150 bytes."""

AnyAgent = AgentDefinition[Any, Any]


class BackgroundWork(Protocol):
    """Background work outside of turns: tasks, monitors and async handles."""

    @property
    def watched(self) -> Container[str]:
        """The sessions that have async handles."""

    async def session_opened(self, session_id: str) -> None: ...

    async def session_moved(self, session_id: str) -> None:
        """Check the handles of a session whose leaf has moved."""

    async def forget_session(self, session_id: str) -> None:
        """End the background work of a deleted session."""

    async def spawn(self, session_id: str, spec: TaskSpec, work: SessionTask) -> TaskRecord: ...


class SessionDirectory:
    """The sessions and agents of one open runtime. Used on the runtime's loop."""

    background: BackgroundWork
    hosts_of: Callable[[str], SessionHosts]

    def __init__(
        self,
        services: RuntimeServices,
        agents: Mapping[str, AnyAgent],
        description: dict[str, Json],
        runner: Callable[[LiveSession, SessionDirectory, materialize.PreparedAgent], RunsTurns],
        slots: TurnSlots | None = None,
    ) -> None:
        self.services = services
        self.agents = agents
        self.description = description
        """The description of this program that is recorded with sessions."""
        self.slots = slots or TurnSlots()
        self.poll_s = 1.0
        self.is_open = True
        self.is_closing = False
        self.changed = asyncio.Event()
        """Set when there may be a turn to resume or an input to run."""
        self.slots.freed = self.changed.set
        self.relay = EventRelay(services.store, services.settings.epoch, services.clock.monotonic)
        self.hosts_of = lambda session_id: NoHosts()
        self.sessions: dict[str, LiveSession] = {}
        self.cached: OrderedDict[str, LiveSession] = OrderedDict()
        self.max_cached = services.settings.cached_sessions
        self._cached_messages = 0
        self._evicted: WeakValueDictionary[str, LiveSession] = WeakValueDictionary()
        self._worked_on: dict[str, AnyAgent] = {}  # the agents of evicted sessions, the oldest first
        self._last_seq = 0
        self._runner = runner
        self._prepared: dict[int, materialize.PreparedAgent] = {}

    def now_ms(self) -> int:
        return self.services.clock.now_ms()

    def require_open(self) -> RuntimeServices:
        """Return the services; raise `InvalidArgument` if the runtime is closed, or used on another loop."""
        if not self.is_open:
            raise runtime_not_open()
        self.services.require_home()
        return self.services

    @property
    def store(self) -> SessionStore:
        return self.require_open().store

    async def close(self) -> None:
        """Drop every session and agent."""
        self.sessions.clear()
        self.cached.clear()
        self._evicted.clear()
        self._worked_on.clear()
        for prepared in self._prepared.values():
            await prepared.close()

    def live(self, session_id: str) -> LiveSession:
        """Return this process's in-memory state of a session."""
        found = self.sessions.get(session_id)
        if found is None:
            services = self.require_open()
            found = self._evicted.pop(session_id, None)  # the host program still references it
            found = found or LiveSession(session_id, services, self, self._last_seq)
            self.sessions[session_id] = found
        return found

    def kept_feed(self, session_id: str) -> LiveFeed | None:
        """Return the feed of a session, if it has one here."""
        live = self.sessions.get(session_id)
        return None if live is None else live.events.kept

    def tell(self, session_id: str, event: Event) -> None:
        """Publish an event to the observers of a session here."""
        live = self.sessions.get(session_id) or self._evicted.get(session_id)
        if live is not None:
            live.events.publish(event)

    def runner_of(self, live: LiveSession) -> RunsTurns:
        if self.is_closing or not self.is_open:
            raise runtime_not_open()
        return self._runner(live, self, live.require_agent())

    async def open(
        self,
        session_id: str,
        agent: AnyAgent | None,
        deps: Any = None,
        options: PluginOptions | Mapping[str, Json] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> LiveSession:
        """Open a session, or create it, and assign its agent. A session without a model has no agent."""
        live = self.live(SessionId(session_id))
        chosen = agent or (None if live.prepared is None else live.prepared.agent)
        chosen = chosen or self._worked_on.get(session_id)
        if chosen is None:
            found = await self.store.head(session_id)
            if found is not None and found.code is not None:
                return live
            chosen = None if found is None else self.agents.get(found.agent)
        if chosen is None:
            raise errors.NotConfigured(
                f"no agent is known for session {session_id!r}",
                hint="pass agent=..., or Runtime(agents=[...])",
            )
        prepared = self.prepared(chosen)
        head, is_new = await self._describe(session_id, chosen, metadata=_checked_metadata(metadata))
        left = None if is_new or live.busy else await self.store.open_turn(session_id)
        live.left = live.left if left is None else left.turn_id
        before, live.prepared = live.prepared, prepared
        live.deps = deps if deps is not None else live.deps
        live.retry_now()
        if options is not None:
            from standfast.runtime.sessions.session_plugins import as_options

            given = as_options(options)
            check_options(prepared, given)
            authority = msgspec.structs.replace(live.setup.authority, plugin_options=given)
            if authority != live.setup.authority:
                live.setup = msgspec.structs.replace(live.setup, authority=authority)
        try:
            await (live.context(head) if left is None and not live.busy else live.build_plugins(head))
        except BaseException:
            live.prepared = before
            raise
        if is_new:
            return live  # a new session has no turn, no input and no monitor
        if left is not None:
            self.changed.set()
        if await self.store.inputs(session_id):
            live.queue.drain()
        if before is None:
            await self.background.session_opened(session_id)
        return live

    async def fork(
        self,
        session_id: str,
        new_id: str,
        at: str | None,
        number: int | None = None,
        edit: JournalEdit | None = None,
    ) -> LiveSession:
        """Create a session over the same history, without a parent and with the default authority.

        With *number*, it continues after that input of the turn *at*.
        """
        head = await self.store.head(SessionId(session_id))
        if number is None:
            charter = None if head is None else materialize.charter_of_fork(head.charter)
            made = await self.store.fork(session_id, SessionId(new_id), at, self.now_ms(), charter=charter)
        else:
            from standfast.runtime.sessions.time_travel import fork_in_turn

            made = await fork_in_turn(self.store, session_id, new_id, at or "", number, edit, self.now_ms())
            self.changed.set()
        live = self.live(new_id)
        if head is not None and (source := await self.at_work(head)) is not None:
            await live.fork_from(source, made)
        return live

    async def rewind(self, session_id: str, to: str | None, turns: int) -> SessionHead:
        """Move a session's leaf to the node *to*, or back by a number of turns."""
        if to is None:
            head = await self.store.head(session_id)
            if head is None:
                raise errors.SessionNotFound(session_id)
            segments = [] if head.leaf is None else await self.store.path(head.leaf)
            begins = [at for at, segment in enumerate(segments) if is_turn_id(segment.segment_id)]
            if not 1 <= turns <= len(begins) or begins[-turns] == 0:
                raise errors.InvalidArgument(
                    f"session {session_id!r} cannot go back by {turns} of its {len(begins)} turns",
                    hint="keep at least one turn; for an empty session, use another id",
                )
            to = segments[begins[-turns] - 1].leaf
        head = await self.store.rewind(session_id, to, self.now_ms())
        if session_id in self.background.watched:
            await self.background.session_moved(session_id)
        return head

    async def delete(self, session_id: str) -> bool:
        """Delete a session and the workers kept warm for it; return False if it does not exist."""
        self.sessions.pop(session_id, None)
        self._evicted.pop(session_id, None)
        self._worked_on.pop(session_id, None)
        if (live := self.cached.pop(session_id, None)) is not None:
            self._cached_messages -= live.held
        if self.services.engines.opened:
            await self.services.threads.run(lambda: self.services.engines.forget(session_id))
        gone = await self.store.delete_session(session_id)
        await self.background.forget_session(session_id)
        return gone

    async def create_session(
        self, agent: AnyAgent, maker: LiveSession, request: SessionRequest, key: str
    ) -> None:
        """Create a session for a plugin of *maker*, once, with its deps, metadata and at most its tools."""
        session_id = SessionId(request.session_id or f"s-{digest_bytes(key.encode())[:24]}")
        if request.agent is not None and request.agent != agent.name:
            agent = self.agent_named(request.agent, near=maker)
        tool_access = maker.setup.authority.tool_access
        charter = None if tool_access == SessionToolAccess() else SessionCharter(tool_access=tool_access)
        head = await self.store.head(maker.session_id)
        await self._describe(session_id, agent, charter, metadata=None if head is None else head.metadata)
        self.assign(session_id, agent, above=maker, deps=inheritable_deps(maker))
        if request.first_input is not None:
            await self.queue_turn(session_id, f"{key}.first", request.first_input)

    async def queue_turn(self, session_id: str, input_id: str, message: UserMessage) -> None:
        """Queue an input for a session, once, and start its turn if its agent is known here."""
        await self.put_input(session_id, "queue", message, input_id)
        live = await self.put_to_work(session_id)
        if live is not None:
            live.queue.input_arrived()

    async def put_input(
        self,
        session_id: str,
        kind: Literal["inject", "queue"],
        message: UserMessage,
        input_id: str | None = None,
        blobs: tuple[Blob, ...] = (),
    ) -> str:
        """Queue an input for a session, once, and return its id."""
        input_id = input_id or new_input_id()
        now = self.now_ms()
        item = QueuedInput(
            input_id=input_id, session_id=session_id, kind=kind, message=message, created_at=now
        )
        try:
            msgspec.convert(msgspec.to_builtins(item), QueuedInput)  # raises if it could not be read back
        except (msgspec.ValidationError, TypeError) as error:
            raise errors.InvalidArgument(f"input: {error}") from None
        await self.store.put_input(item, blobs)
        return input_id

    async def occur(self, source: str, key: str, payload: Json) -> int:
        """Deliver an occurrence at a source to its triggers; return how many turns it starts."""
        from standfast.runtime.triggers import occurrence

        return await self.announce(occurrence(source, key, payload, self.now_ms()))

    async def announce(self, occurred: Occurrence) -> int:
        """Deliver an occurrence to its triggers, and start the turns that can start here."""
        from standfast.runtime.triggers import deliver, listeners

        triggers = await listeners(self.store, occurred.source)
        for trigger in triggers:
            live = await self.put_to_work(trigger.session_id)
            if live is not None:
                (await live.context()).plugins.triggers.check(occurred.source, occurred.payload)
        woken = await deliver(self.store, occurred, triggers) if triggers else []
        for session_id in woken:
            live = await self.put_to_work(session_id)
            if live is not None:
                live.queue.input_arrived()
        return len(woken)

    def prepared(self, agent: AnyAgent) -> materialize.PreparedAgent:
        """Return the prepared agent; each agent is prepared once."""
        found = self._prepared.get(id(agent))
        if found is None:
            found = self._prepared[id(agent)] = materialize.prepare_agent(agent, self.services, self.hosts_of)
        return found

    def assign(
        self, session_id: str, agent: AnyAgent, *, above: LiveSession | None = None, deps: Any = None
    ) -> LiveSession:
        """Assign an agent to a session that has none, with *deps* that fit and the factory of *above*."""
        live = self.live(session_id)
        if live.prepared is None:
            try:
                live.prepared = self.prepared(agent)
            except (errors.ProviderUnavailable, errors.ProviderUnconfigured) as error:
                error.session_id = session_id
                raise
        if live.deps is None and fits(agent.deps_type, deps):
            live.deps = deps
        live.is_below = live.is_below or above is not None
        if live.inherited is None and above is not None and above.prepared is not None:
            live.inherited = inherited_factory(above.prepared.agent, above.inherited)
        return live

    def works_on(self, session_id: str) -> bool:
        """Return whether the agent of a session is already known here."""
        live = self.sessions.get(session_id)
        return session_id in self._worked_on or (live is not None and live.prepared is not None)

    async def put_to_work(self, session_id: str) -> LiveSession | None:
        """Return the session with its agent, if that is known here."""
        live = self.sessions.get(session_id)
        if live is not None and live.prepared is not None:
            return live
        head = await self.store.head(session_id)
        return None if head is None else await self.at_work(head)

    async def at_work(self, head: SessionHead) -> LiveSession | None:
        """Return the session with its agent, if that is known here by its name or by its parent's agent."""
        live = self.sessions.get(head.session_id)
        if live is not None and live.prepared is not None:
            return live
        parent = None if head.charter is None else head.charter.parent_session_id
        parent_head = None if parent is None else await self.store.head(parent)
        above = None if parent_head is None else await self.at_work(parent_head)
        agent = (
            self._worked_on.get(head.session_id)
            or _agent_below(above, head.agent)
            or self.agents.get(head.agent)
        )
        if agent is None:
            return None
        try:
            return self.assign(
                head.session_id, agent, above=above, deps=None if above is None else above.deps
            )
        except errors.StandfastError:  # its model cannot be opened here
            return None

    def agent_named(self, name: str, near: LiveSession | None = None) -> AnyAgent:
        """Return the agent of this name: that of *near*, one that it declares, or one known here."""
        found = _agent_below(near, name) or self.known_agent(name)
        if found is None:
            raise errors.NotConfigured(
                f"no agent {name!r} is known here", hint="pass it in Runtime(agents=[...])"
            )
        return found

    def known_agent(self, name: str) -> AnyAgent | None:
        """Return the agent of this name: one passed to the runtime, or assigned to a session here."""
        if name in self.agents:
            return self.agents[name]
        for live in self.sessions.values():
            if (found := _agent_below(live, name)) is not None:
                return found
        return next((agent for agent in self._worked_on.values() if agent.name == name), None)

    async def _describe(
        self,
        session_id: str,
        agent: AnyAgent,
        charter: SessionCharter | None = None,
        *,
        metadata: dict[str, Json] | None = None,
    ) -> tuple[SessionHead, bool]:
        """Record the agent of a session; return its head, and whether it was created now.

        The agent of an unfinished turn is not replaced.
        """
        now, host = self.now_ms(), self.description
        made = SessionHead(
            session_id=session_id,
            created_at=now,
            updated_at=now,
            agent=agent.name,
            model=agent.model_id,
            host=host,
            charter=charter,
            metadata=metadata or {},
        )
        head = await self.store.open_session(made)
        if head is made:
            return head, True
        if head.code is not None:
            raise errors.InvalidArgument(
                f"session {session_id!r} has no model: its turns are code",
                hint="choose another session for the agent, or run code in this one with a Sandbox",
            )
        materialize.require_same_provider(head, materialize.chartered_model(head) or agent.model_id)
        kept = head.metadata if metadata is None else metadata
        if (head.agent, head.model, head.host, head.metadata) == (agent.name, agent.model_id, host, kept):
            return head, False
        turn = None if head.agent == agent.name else await self.store.open_turn(session_id)
        if turn is not None and turn.agent not in ("", agent.name):
            return head, False
        await self.note_agent(session_id, agent, metadata=metadata)
        changes = {"agent": agent.name, "model": agent.model_id, "host": host, "metadata": kept}
        return msgspec.structs.replace(head, **changes), False

    async def note_agent(
        self, session_id: str, agent: AnyAgent, *, metadata: dict[str, Json] | None = None
    ) -> None:
        """Store the name of a session's agent."""
        await self.store.describe(
            session_id, agent=agent.name, model=agent.model_id, host=dict(self.description), metadata=metadata
        )

    def used(self, live: LiveSession) -> None:
        """Mark a session as used, and evict the least recently used ones above the limits."""
        self.cached[live.session_id] = live
        self.cached.move_to_end(live.session_id)
        size = len(live.frame.messages)
        self._cached_messages += size - live.held
        live.held = size
        max_messages = self.services.settings.cached_messages
        while len(self.cached) > self.max_cached or (
            len(self.cached) > 1 and self._cached_messages > max_messages
        ):
            _, oldest = self.cached.popitem(last=False)
            self._cached_messages -= oldest.held
            oldest.held = 0
            oldest.forget()
            self.evict(oldest)

    def evict(self, live: LiveSession) -> None:
        """Evict a session that can be rebuilt from the store. Event numbers are never reused."""
        if live.prepared is None or not live.holds_nothing:
            return
        if self.sessions.pop(live.session_id, None) is None:
            return  # it was deleted in the meantime
        self._last_seq = max(self._last_seq, live.events.last_seq)
        self._evicted[live.session_id] = live
        self._worked_on.pop(live.session_id, None)
        self._worked_on[live.session_id] = live.prepared.agent
        if len(self._worked_on) > _MAX_EVICTED:
            del self._worked_on[next(iter(self._worked_on))]


def agents_by_name(agents: Iterable[AnyAgent]) -> dict[str, AnyAgent]:
    """Return agents by name, with the subagents they declare.

    Raise `InvalidArgument` for a duplicate name.
    """
    found: dict[str, AnyAgent] = {}
    for agent in agents:
        if found.setdefault(agent.name, agent) is not agent:
            raise errors.InvalidArgument(
                f"Runtime(agents=...) has two agents named {agent.name!r}",
                hint="give each a name of its own with Agent(name=...): unfinished turns find agents by name",
            )
    todo = list(found.values())
    for agent in todo:
        for declared in declared_agents(agent).values():
            if declared.name not in found:
                found[declared.name] = declared
                todo.append(declared)
    return found


def check_options(prepared: materialize.PreparedAgent, options: PluginOptions) -> None:
    """Raise `InvalidArgument` for options of a plugin that an agent does not have."""
    known = [factory.id for factory in prepared.host.factories]
    for plugin_id in options.plugins:
        if plugin_id not in known:
            raise errors.InvalidArgument(
                f"agent {prepared.agent.name!r} has no plugin {plugin_id!r}",
                hint=f"it has {', '.join(known)}",
            )


def _agent_below(live: LiveSession | None, name: str) -> AnyAgent | None:
    """Return the session's agent, or a subagent that it declares, if it has this name."""
    agent = None if live is None or live.prepared is None else live.prepared.agent
    if agent is None or agent.name == name:
        return agent
    return declared_agents(agent).get(name)


def _checked_metadata(metadata: Mapping[str, Json] | None) -> dict[str, Json] | None:
    """Return a copy of a session's metadata; raise `InvalidArgument` if it cannot be stored."""
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise errors.InvalidArgument("metadata is not an object", hint='pass metadata={"tenant": "acme"}')
    clean, size = to_json(dict(metadata))
    if size > MAX_METADATA_BYTES:
        raise errors.InvalidArgument(
            f"metadata has {size:,} bytes, the limit is {MAX_METADATA_BYTES:,}",
            hint="store an id in it, and look up the rest in the deps factory",
        )
    kept: dict[str, Json] = clean
    return kept
