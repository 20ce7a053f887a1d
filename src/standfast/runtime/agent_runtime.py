"""The runtime: sessions and their turns, in one process, over one store.

Theory of operation
-------------------
The runtime keeps a light record of each session that was opened here. One background task, the keeper, looks
every second for turns that could go on: left by a process that died, or with a wait that is over. It resumes
those whose agent is known here, because their session was opened here or because the agent was passed to
`Runtime(agents=[...])`, with the deps that a factory makes. So recovery at start-up, timers, expiry and
decisions made in other processes are one thing. In the same rounds it fires the triggers that are due, and
starts what is queued for sessions whose agent is known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload
from weakref import WeakValueDictionary

import msgspec

from standfast.durable.leases import LeaseKeeper
from standfast.errors import (
    ApprovalNotFound,
    InvalidArgument,
    NotConfigured,
    SessionNotFound,
    StandfastError,
    StoreError,
)
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.call import SettledCall
from standfast.model.canonical import Json, digest_bytes, to_json
from standfast.model.charter import SessionCharter
from standfast.model.directive import SessionRequest
from standfast.model.events import Event
from standfast.model.head import SessionHead
from standfast.model.ids import SessionId
from standfast.model.message import UserMessage
from standfast.model.plugin_options import PluginOptions
from standfast.model.prompt import PromptContribution, PromptLayer
from standfast.model.tool_access import SessionToolAccess
from standfast.model.trigger import Occurrence, Schedule, Trigger
from standfast.model.turn import TurnRecord
from standfast.model.wait import Completed, Failed
from standfast.plugins.contexts import SessionHosts
from standfast.plugins.running import DEFAULT_TIMEOUT_S
from standfast.ports.clock import Clock, SystemClock
from standfast.ports.host import RuntimeSessionHost
from standfast.ports.model_provider import ModelProvider
from standfast.ports.session_store import (
    CLOCK_TOLERANCE_MS,
    Pruned,
    PruneRequest,
    QueuedInput,
    SessionStore,
)
from standfast.ports.trace import PhaseProbe, TraceSink
from standfast.runtime.agent import Agent, declared_agents
from standfast.runtime.agent_session import Session
from standfast.runtime.dependencies import DepsFactory, checked_factory, fits, inherited_factory
from standfast.runtime.host.at_work import Waits
from standfast.runtime.host.deps import turn_deps
from standfast.runtime.host.ground import HostGround
from standfast.runtime.host.runtime_host import RuntimeHost
from standfast.runtime.host.session_hosts import HostViews
from standfast.runtime.host.tasks import Tasks
from standfast.runtime.lease_owners import owner_is_dead
from standfast.runtime.live_session import LiveSession
from standfast.runtime.materialize import charter_of_fork, chartered_model, require_same_provider
from standfast.runtime.process_identity import boot_id
from standfast.runtime.session_context import as_layer
from standfast.runtime.session_plugins import as_options
from standfast.runtime.triggers import (
    deliver,
    fire_due,
    listeners,
    occurrence,
    put_trigger,
    reschedule,
    verify_webhook,
    webhook_occurrence,
)
from standfast.runtime.turn import Turn
from standfast.runtime.workplace import RuntimeConfig, Staff, Workplace, is_turn_id, runtime_not_open
from standfast.tools.positional import ARGS, from_native, is_positional
from standfast.tools.settlement import request_digest

if TYPE_CHECKING:
    from standfast.providers.prices import Prices, PriceTable
    from standfast.providers.rate_limit import RateLimit
    from standfast.runtime.host.async_handles import AsyncHandles
    from standfast.runtime.monitors.monitors import Monitors

Deps = TypeVar("Deps")
Output = TypeVar("Output")

MAX_METADATA_BYTES: Final = 16 * 1024

_MAX_WORKED_ON: Final = 100_000
"""So many sessions that were let go are still known to be worked on here; each takes about 150 bytes."""


class Runtime:
    """Sessions over one store. Use it as `async with Runtime("standfast.db") as runtime`.

    Args:
        store: the path of a SQLite file, a directory to keep `standfast.db` in, a `SessionStore`, or nothing:
            then everything is in memory and gone at the end.
        agents: agents whose unfinished turns are taken up by themselves, found by their names. What they
            declare as their subagents need not be listed.
        deps: makes the deps of turns that have no others, such as those that the runtime resumes by itself: a
            function, async function or async generator of a `DepsContext`. An agent's own factory goes first.
        lease_s: how long a process that stopped answering keeps its sessions from others.
        approval_ttl_s: how long a person has to decide.
        busy_timeout_s: how long a turn waits for another process to finish with the session.
        host: what is recorded with sessions about this program, for whoever goes on with them.
        models: open models by name, to be used and not closed.
        system: what every agent's system prompt has, below what the agent itself says.
        trace: takes the records of what happens, such as `JsonlTrace("trace.jsonl")`; or several such.
        probe: hears when a plugin's hook begins and ends.
        hook_timeout_s: how long the hooks of one stage may take together.
        prices: what models cost, in dollars for a million tokens: `{"model": {"input": 2, "output": 8}}`, the
            path of such a JSON file, or `Prices`. Other models cost what `standfast[prices]` knows of them.
        rate_limits: how often providers (`"anthropic"`) and models (`"openai:gpt-5"`) may be asked, by all
            sessions together.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | SessionStore | None = None,
        *,
        agents: Iterable[Agent[Any, Any]] = (),
        deps: DepsFactory[Any] | None = None,
        lease_s: float = 30.0,
        approval_ttl_s: float = 24 * 3600.0,
        busy_timeout_s: float = 60.0,
        clock: Clock | None = None,
        host: Mapping[str, Json] | None = None,
        models: dict[str, ModelProvider] | None = None,
        system: PromptLayer | Sequence[PromptContribution | str] | None = None,
        trace: TraceSink | Sequence[TraceSink] | None = None,
        probe: PhaseProbe | None = None,
        hook_timeout_s: float = DEFAULT_TIMEOUT_S,
        prices: Prices | PriceTable | str | os.PathLike[str] | None = None,
        rate_limits: Mapping[str, RateLimit] | None = None,
        _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.epoch = secrets.token_hex(6)
        self.poll_s = 1.0
        self._given = store
        self._agents = _by_name(agents)
        self._deps: DepsFactory[Any] | None = checked_factory(deps)
        self._clock = clock or SystemClock()
        self._host = dict(host or {})
        self._models = models
        self._sleep = _sleep
        self._system = as_layer(system)
        self._trace = trace
        self._probe = probe
        self._hook_timeout_s = hook_timeout_s
        self._prices = open_prices(prices)
        self._limited = _limiting(rate_limits, self._clock, _sleep)
        self._config = RuntimeConfig(
            epoch=self.epoch,
            lease_ms=int(lease_s * 1000),
            approval_ttl_ms=int(approval_ttl_s * 1000),
            busy_timeout_ms=int(busy_timeout_s * 1000),
        )
        self._place: Workplace | None = None
        self._sessions: dict[str, LiveSession] = {}
        self._released: WeakValueDictionary[str, LiveSession] = WeakValueDictionary()
        self._last_seq = 0
        self._clock_offset_ms: int | None = None
        self._worked_on: dict[str, Agent[Any, Any]] = {}  # sessions that were let go, the oldest first
        self._cached: OrderedDict[str, LiveSession] = OrderedDict()
        self._messages = 0
        self._ground: HostGround | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()

    async def __aenter__(self) -> Runtime:
        if self._place is not None:
            raise InvalidArgument("this runtime is open already")
        store = open_store(self._given)
        self._place = Workplace(
            store=store,
            clock=self._clock,
            config=self._config,
            leases=LeaseKeeper(store, self._clock, self._config.lease_ms),
            resolve=self._resolve,
            owns_models=self._models is None,
            sleep=self._sleep,
            trace=self._trace,
            probe=self._probe,
            hook_timeout_s=self._hook_timeout_s,
            system=self._system,
            deps=self._deps,
            agent_named=self._agent_here,
            describe=self._note_agent,
            create_session=self._create_session,
            hosts_of=self._hosts_of,
            occur=self.occur,
            prices=self._prices,
            limited=self._limited,
        )
        await self._look_at_clock()
        self._ground = HostGround(self, self._place)
        self._keeper = asyncio.get_running_loop().create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except StandfastError:
            if error is None:
                raise

    async def close(self) -> None:
        """Stop. Turns under way stay unfinished in the store, and go on when somebody takes them up.

        Hidden tasks are waited for, for a while; other tasks end, and monitors with their processes.
        """
        if self._ground is not None:
            await self._ground.tasks.finish_hidden()
        place = self._place
        if place is None:
            return
        place.is_open = False
        await self._stop_turns()
        self._place = None
        await self._end_beside()
        self._sessions.clear()
        self._released.clear()
        self._worked_on.clear()
        self._cached.clear()
        await place.leases.close()
        try:
            await place.close()
        finally:
            await place.store.close()

    async def _stop_turns(self) -> None:
        """End the keeper and what turns do here, while everything that they may ask for is still there."""
        tasks = [task for live in self._sessions.values() for task in live.tasks()]
        if self._keeper is not None:
            tasks.append(self._keeper)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_beside(self) -> None:
        """End what goes on beside turns."""
        ground, self._ground = self._ground, None
        if ground is not None:
            await ground.close()

    # Sessions

    @overload
    async def session(
        self,
        session_id: str = "default",
        *,
        agent: None = None,
        deps: Any = None,
        options: PluginOptions | Mapping[str, Json] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Session[Any]: ...
    @overload
    async def session(
        self,
        session_id: str = "default",
        *,
        agent: Agent[Deps, Output],
        deps: Deps | None = None,
        options: PluginOptions | Mapping[str, Json] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Session[Output, Deps]: ...
    async def session(
        self,
        session_id: str = "default",
        *,
        agent: Agent[Any, Any] | None = None,
        deps: Any = None,
        options: PluginOptions | Mapping[str, Json] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Session[Any]:
        """Open a session, or make it. A turn that its agent left unfinished there goes on by itself.

        *deps* are those of all turns of the session in this process that are given no others. *options* are
        those of plugins, by plugin id; they hold from here on in this process. *metadata* is kept with the
        session, in place of what it had, and passed to deps factories: which tenant or user it is for. A
        plugin that fails while its part of the session is built raises `PluginFailed` here.
        """
        live = self.live(SessionId(session_id))
        chosen = agent or self._agent_of(live, await self.store.head(session_id))
        staff = self._open.staff(chosen)
        head = await self._describe(session_id, chosen, metadata=_checked_metadata(metadata))
        before, live.staff = live.staff, staff
        known = before is not None
        live.deps = deps if deps is not None else live.deps
        live.try_again()
        if options is not None:
            live.configure_plugins(_known_options(as_options(options), staff))
        try:
            await live.build_plugins(head)
        except BaseException:
            live.staff = before
            raise
        self._nudge.set()
        if await self.store.inputs(session_id):
            live.drain()
        if not known:
            await self.monitors.session_opened(session_id)
        return Session(self, live)

    async def sessions(self) -> list[SessionHead]:
        """All sessions, the latest used first."""
        return await self.store.heads()

    async def fork(self, session_id: str, new_id: str, *, at: str | None = None) -> Session[Any]:
        """A new session over the same history. It costs the same however long that is.

        It has no parent and the default authority, also if it is the fork of a session with less.
        """
        head = await self.store.head(SessionId(session_id))
        charter = None if head is None else charter_of_fork(head.charter)
        made = await self.store.fork(session_id, SessionId(new_id), at, self.now_ms(), charter=charter)
        live = self.live(new_id)
        if head is not None and (source := await self.at_work(head)) is not None:
            await live.fork_from(source, made)
        return Session(self, live)

    async def rewind(self, session_id: str, to: str | None = None, *, turns: int = 1) -> SessionHead:
        """Move a session back to the node *to*, or by a number of turns. `rewind` leads forward as well."""
        if to is None:
            to = await self._before_last(session_id, turns)
        head = await self.store.rewind(session_id, to, self.now_ms())
        await self.handles.look(session_id)
        return head

    async def delete(self, session_id: str) -> bool:
        """Forget a session; false if there was none."""
        self._sessions.pop(session_id, None)
        self._released.pop(session_id, None)
        self._worked_on.pop(session_id, None)
        if (live := self._cached.pop(session_id, None)) is not None:
            self._messages -= live.held
        if self._place is not None:
            await self._place.forget_code(session_id)
        gone = await self.store.delete_session(session_id)
        if self._ground is not None:
            await self._ground.forget_session(session_id)
        return gone

    async def prune(
        self,
        *,
        older_than_s: float | None = None,
        frames: bool = False,
        branches: bool = False,
        session: str | None = None,
    ) -> Pruned:
        """Remove what is no longer wanted, and give the space back.

        Args:
            older_than_s: idle sessions that were not used for so long, with what belongs to them.
            frames: what lies before the current frame of each session.
            branches: what no session's active path leads through, such as what was rewound.
            session: of this session alone.
        """
        before = None if older_than_s is None else self.now_ms() - int(older_than_s * 1000)
        for live in self._cached.values():
            live.forget()
        return await self.store.prune(
            PruneRequest(sessions_before_ms=before, frames=frames, branches=branches, session_id=session)
        )

    async def _create_session(
        self, request: SessionRequest, key: str, staff: Staff, maker: LiveSession
    ) -> None:
        """Make a session that a plugin asked for, with its first input. Asked twice, it is one session.

        It has no more tools than *maker*, the session that the plugin is in, and the same deps and metadata.
        """
        session_id = SessionId(request.session_id or f"s-{digest_bytes(key.encode())[:24]}")
        agent = staff.agent
        if request.agent is not None and request.agent != agent.name:
            agent = self.agent_named(request.agent, near=maker)
        tool_access = maker.setup.authority.tool_access
        charter = None if tool_access == SessionToolAccess() else SessionCharter(tool_access=tool_access)
        head = await self.store.head(maker.session_id)
        await self._describe(session_id, agent, charter, metadata=None if head is None else head.metadata)
        live = self.staff_session(session_id, agent, above=maker, deps=turn_deps(maker))
        if request.first_input is not None:
            await self.store.put_input(
                QueuedInput(
                    input_id=f"{key}.first",
                    session_id=session_id,
                    kind="queue",
                    message=request.first_input,
                    created_at=self.now_ms(),
                )
            )
            live.drain()

    # Turns

    async def recover(self) -> list[Turn[Any]]:
        """Take up every unfinished turn that can go on and whose agent is known here."""
        found = [await self._take_up(record) for record in await self._unfinished()]
        return [turn for turn in found if turn is not None]

    async def recover_tasks(self) -> None:
        """See to the tasks and monitors whose process is gone, now; the runtime does so every second."""
        await self._open_ground.recover(now=True)

    async def cancel(self, turn_id: str) -> bool:
        """End a turn; false if it has ended already."""
        record = await self.store.turn(turn_id)
        return record is not None and await self.live(record.session_id).cancel(turn_id)

    # Waits

    async def approvals(self, *, session: str | None = None, pending: bool = False) -> list[Approval]:
        """Requests to people, oldest first."""
        found = await self.store.approvals(session_id=session)
        return [one for one in found if not pending or self._is_open(one)]

    async def approve(
        self,
        approval_id: str,
        *,
        arguments: Mapping[str, Json] | None = None,
        reason: str | None = None,
        decided_by: str | None = None,
    ) -> Approval:
        """Let a call happen, once. Its turn goes on by itself where its agent is known.

        *decided_by* names the person who decided; it is kept with the approval.
        """
        kwargs = None if arguments is None else to_json(dict(arguments))[0]
        decision = Decision(approved=True, reason=reason, kwargs=kwargs, decided_by=decided_by)
        return await self._decide(approval_id, decision)

    async def deny(
        self, approval_id: str, *, reason: str | None = None, decided_by: str | None = None
    ) -> Approval:
        """Refuse a call. Its turn goes on, and the model is told."""
        return await self._decide(approval_id, Decision(approved=False, reason=reason, decided_by=decided_by))

    async def complete(self, token: str, value: Json = None) -> None:
        """Deliver the result of a call that a tool left to somebody outside."""
        clean, _ = to_json(value)
        await self.store.complete(token, Completed(value=clean), self.now_ms())
        self._nudge.set()

    async def fail(self, token: str, error: StandfastError) -> None:
        """Deliver the failure of such a call."""
        await self.store.complete(token, Failed(error=error.error_object()), self.now_ms())
        self._nudge.set()

    # Triggers

    async def add_trigger(
        self,
        name: str,
        source: str,
        session_id: str,
        *,
        prompt: str = "{payload}",
        schedule: Schedule | str | None = None,
        enabled: bool = True,
    ) -> Trigger:
        """Let a session hear of what occurs at a source, each time in a turn of its own.

        *prompt* is what the turn is told; `{payload}` in it is the occurrence's payload as JSON. With a
        *schedule*, or a cron expression, the source occurs by itself. A trigger of the name is replaced; if
        its schedule stays the same, it goes on where it is.
        """
        timed = Schedule(cron=schedule) if isinstance(schedule, str) else schedule
        wanted = Trigger(
            name=name, source=source, session_id=session_id, prompt=prompt, schedule=timed, enabled=enabled
        )
        made = await put_trigger(self.store, wanted, self.now_ms())
        self._nudge.set()
        return made

    async def remove_trigger(self, name: str) -> bool:
        """Forget a trigger; false if there was none. What it has delivered already stays queued."""
        return await self.store.remove_trigger(name)

    async def triggers(self) -> list[Trigger]:
        """All triggers, by name."""
        return await self.store.triggers()

    async def occur(self, source: str, key: str, payload: Json = None) -> int:
        """Something happened at a source. It becomes a turn for each trigger of the source; returns how many.

        The same source and key are the same occurrence: told again, by whomever, it becomes none.
        """
        return await self._tell(occurrence(source, key, payload, self.now_ms()))

    async def occur_signed(
        self, source: str, body: bytes, signature: str, secret: str | bytes, *, key: str | None = None
    ) -> int:
        """A webhook of a source, signed with HMAC-SHA256; `SignatureRefused` if it is not.

        Without a *key*, such as a delivery id that the sender keeps when it tries again, the same body is the
        same occurrence.
        """
        verify_webhook(source, body, signature, secret)
        return await self._tell(webhook_occurrence(source, body, key, self.now_ms()))

    async def _tell(self, told: Occurrence) -> int:
        """Deliver what occurred to whoever hears of it, and start the turns that can start here."""
        heard_by = await listeners(self.store, told.source)
        for trigger in heard_by:
            live = await self.put_to_work(trigger.session_id)
            if live is not None:
                (await live.context()).plugins.triggers.check(told.source, told.payload)
        woken = await deliver(self.store, told, heard_by) if heard_by else []
        for session_id in woken:
            live = await self.put_to_work(session_id)
            if live is not None:
                live.drain()
        return len(woken)

    # What plugins, tools and host programs may ask for while it runs

    def host(self, session_id: str) -> RuntimeSessionHost:
        """The services of the runtime for one session, as its plugins have them; for a host program, of all.

        Errors come with the calls: `SessionNotFound`, and `ServiceUnavailable` for what the session lacks.
        """
        return RuntimeHost(self, SessionId(session_id), sees_all=True)

    def _hosts_of(self, session_id: str) -> SessionHosts:
        return HostViews(RuntimeHost(self, session_id))

    @property
    def place(self) -> Workplace | None:
        """Where the sessions are worked on; None unless the runtime is open."""
        return self._place

    @property
    def tasks(self) -> Tasks:
        return self._open_ground.tasks

    @property
    def handles(self) -> AsyncHandles:
        return self._open_ground.tasks.handles

    @property
    def monitors(self) -> Monitors:
        return self._open_ground.monitors

    @property
    def waits(self) -> Waits:
        return self._open_ground.waits

    @property
    def _open_ground(self) -> HostGround:
        if self._ground is None:
            raise runtime_not_open()
        return self._ground

    @property
    def description(self) -> dict[str, Json]:
        """What is recorded with sessions about this program."""
        return dict(self._host)

    def tell(self, session_id: str, event: Event) -> None:
        """Show something to whoever observes a session here."""
        live = self._sessions.get(session_id) or self._released.get(session_id)
        if live is not None:
            live.feed.publish(event)

    def report(self, problem: str) -> None:
        """Tell whoever operates this of something that went wrong beside turns, and was not fatal."""
        if self._place is not None:
            self._place.report("", "keeper", problem)

    def check_options(self, agent: Agent[Any, Any], options: PluginOptions) -> None:
        """Refuse options of plugins that an agent does not have."""
        _known_options(options, self._open.staff(agent))

    def works_on(self, session_id: str) -> bool:
        """Whether the agent of a session is known here by now."""
        live = self._sessions.get(session_id)
        return session_id in self._worked_on or (live is not None and live.staff is not None)

    async def queue_turn(self, session_id: str, input_id: str, text: str) -> None:
        """Queue an input for a session, once, and start its turn if its agent is known here."""
        await self.store.put_input(
            QueuedInput(
                input_id=input_id,
                session_id=session_id,
                kind="queue",
                message=UserMessage(content=text),
                created_at=self.now_ms(),
            )
        )
        live = await self.put_to_work(session_id)
        if live is not None:
            live.drain()

    def agent_named(self, name: str, near: LiveSession | None = None) -> Agent[Any, Any]:
        """The agent of this name: that of *near*, one that it declares, or one that is known here."""
        return _agent_below(near, name) or self._agent_here(name) or _unknown_agent(name)

    def _agent_here(self, name: str) -> Agent[Any, Any] | None:
        """The agent of this name that was passed in, or that works or worked here."""
        if name in self._agents:
            return self._agents[name]
        for live in self._sessions.values():
            if (found := _agent_below(live, name)) is not None:
                return found
        return next((agent for agent in self._worked_on.values() if agent.name == name), None)

    def staff_session(
        self, session_id: str, agent: Agent[Any, Any], *, above: LiveSession | None = None, deps: Any = None
    ) -> LiveSession:
        """Let an agent work on a session, unless one does already.

        It inherits *deps*, if they fit its own `deps_type`, and the deps factory of the session *above*.
        """
        live = self.live(session_id)
        if live.staff is None:
            live.staff = self._open.staff(agent)
        if live.deps is None and fits(agent.deps_type, deps):
            live.deps = deps
        if live.inherited is None and above is not None and above.staff is not None:
            live.inherited = inherited_factory(above.staff.agent, above.inherited)
        return live

    async def at_work(self, head: SessionHead) -> LiveSession | None:
        """The session with its agent, if that is known here: by its name, or by the agent of its parent."""
        live = self._sessions.get(head.session_id)
        if live is not None and live.staff is not None:
            return live
        parent = None if head.charter is None else head.charter.parent_session_id
        parent_head = None if parent is None else await self.store.head(parent)
        above = None if parent_head is None else await self.at_work(parent_head)
        agent = (
            self._worked_on.get(head.session_id)
            or _agent_below(above, head.agent)
            or self._agents.get(head.agent)
        )
        if agent is None:
            return None
        try:
            return self.staff_session(
                head.session_id, agent, above=above, deps=None if above is None else above.deps
            )
        except StandfastError:  # its model cannot be opened here; other sessions can go on
            return None

    # The rest

    @property
    def store(self) -> SessionStore:
        return self._open.store

    @property
    def is_open(self) -> bool:
        return self._place is not None

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def live(self, session_id: str) -> LiveSession:
        """What this process knows of a session."""
        found = self._sessions.get(session_id)
        if found is None:
            found = self._released.pop(session_id, None)  # the host program still has it
            found = found or LiveSession(session_id, self._open, self._used, self._last_seq)
            self._sessions[session_id] = found
        return found

    @property
    def _open(self) -> Workplace:
        if self._place is None:
            raise runtime_not_open()
        self._place.require_home()
        return self._place

    def _resolve(self, name: str) -> ModelProvider:
        from standfast.providers.resolve import resolve_model

        if self._models is None:
            return resolve_model(name)
        if name not in self._models:
            self._models[name] = resolve_model(name)
        return self._models[name]

    def _agent_of(self, live: LiveSession, head: SessionHead | None) -> Agent[Any, Any]:
        if live.staff is not None:
            return live.staff.agent
        known = self._worked_on.get(live.session_id)
        if known is None and head is not None:
            known = self._agents.get(head.agent)
        if known is not None:
            return known
        raise NotConfigured(
            f"no agent is known for session {live.session_id!r}",
            hint="pass agent=..., or Runtime(agents=[...])",
        )

    async def _describe(
        self,
        session_id: str,
        agent: Agent[Any, Any],
        charter: SessionCharter | None = None,
        *,
        metadata: dict[str, Json] | None = None,
    ) -> SessionHead:
        """Record which agent and program work on a session, made now if there is none; its head.

        While a turn of another agent is unfinished, the session stays on record as that agent's.
        """
        now = self.now_ms()
        head = await self.store.open_session(
            SessionHead(
                session_id=session_id,
                created_at=now,
                updated_at=now,
                agent=agent.name,
                model=agent.model_id,
                host=self._host,
                charter=charter,
                metadata=metadata or {},
            )
        )
        require_same_provider(head, chartered_model(head) or agent.model_id)
        kept = head.metadata if metadata is None else metadata
        if (head.agent, head.model, head.host, head.metadata) == (
            agent.name, agent.model_id, self._host, kept,
        ):  # fmt: skip
            return head
        turn = None if head.agent == agent.name else await self.store.open_turn(session_id)
        if turn is not None and turn.agent not in ("", agent.name):
            return head
        await self._note_agent(session_id, agent, metadata=metadata)
        changes = {"agent": agent.name, "model": agent.model_id, "host": self._host, "metadata": kept}
        return msgspec.structs.replace(head, **changes)

    async def _note_agent(
        self, session_id: str, agent: Agent[Any, Any], *, metadata: dict[str, Json] | None = None
    ) -> None:
        """Record that an agent works on a session."""
        await self.store.describe(
            session_id, agent=agent.name, model=agent.model_id, host=dict(self._host), metadata=metadata
        )

    async def _before_last(self, session_id: str, turns: int) -> str:
        """The last node before the last *turns* turns."""
        head = await self.store.head(session_id)
        if head is None:
            raise SessionNotFound(session_id)
        segments = [] if head.leaf is None else await self.store.path(head.leaf)
        begins = [place for place, segment in enumerate(segments) if is_turn_id(segment.segment_id)]
        if not 1 <= turns <= len(begins) or begins[-turns] == 0:
            raise InvalidArgument(
                f"session {session_id!r} cannot go back by {turns} of its {len(begins)} turns",
                hint="something must be left; for an empty session use another id",
            )
        return segments[begins[-turns] - 1].leaf

    # Decisions

    def _is_open(self, approval: Approval) -> bool:
        return approval.state is ApprovalState.PENDING and self.now_ms() < approval.expires_at

    async def _decide(self, approval_id: str, decision: Decision) -> Approval:
        approval = await self.store.approval(approval_id)
        if approval is None:
            raise ApprovalNotFound(approval_id)
        edited = None
        if decision.kwargs is not None:
            args, kwargs = await self._edited_arguments(approval, decision.kwargs)
            decision = msgspec.structs.replace(decision, args=args, kwargs=kwargs)
            edited = request_digest(approval.capability, args, kwargs)
        decided = await self.store.decide(approval_id, decision, now_ms=self.now_ms(), edited_digest=edited)
        self._nudge.set()
        return decided

    async def _edited_arguments(
        self, approval: Approval, edited: dict[str, Json]
    ) -> tuple[list[Json], dict[str, Json]]:
        """Split a person's arguments by position and by name, refusing those that the tool would refuse."""
        live = await self.put_to_work(approval.session_id)
        if live is None or live.staff is None:  # the tool is not known here: the call has to tell its form
            if approval.args and len(edited) == 1 and isinstance(listed := edited.get(ARGS), list):
                return listed, {}
            return [], edited
        context, dispatcher = await live.context(), live.staff.bench.dispatcher
        await context.prepare(approval.capability)
        tool = context.called_tool(approval.capability)
        positional = is_positional(tool.capability)
        args, kwargs = (from_native(tool.capability, edited), {}) if positional else ([], edited)
        check = functools.partial(
            dispatcher.check, tool, args, kwargs, session_id=approval.session_id, call_id=approval.call_id
        )
        checked = await self._open.threads.run(check) if tool.runs_code else check()
        if isinstance(checked, SettledCall) and checked.record.error is not None:
            raise InvalidArgument(f"the edited arguments do not fit: {checked.record.error.message}")
        return args, kwargs

    # The keeper

    async def _keep(self) -> None:
        while self._place is not None:  # a nudge can swallow the cancellation that comes with it
            with contextlib.suppress(StoreError):  # the next round may succeed
                await self._look_at_clock()
                await self.recover()
                await self._start_queued()
                await self._open_ground.recover()
            # Not `wait_for`: it forgets a cancellation that comes together with the nudge.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.poll_s):
                    await self._nudge.wait()
            self._nudge.clear()

    async def _look_at_clock(self) -> None:
        """See whether the time of day was set, and have everything that was planned by it planned anew."""
        place, offset_ms = self._open, self._clock.now_ms() - self._clock.boot_ms()
        known = self._clock_offset_ms
        if known is not None and abs(offset_ms - known) <= CLOCK_TOLERANCE_MS:
            return
        with contextlib.suppress(StoreError):  # it may be for reading only
            seen = await place.store.see_clock(boot_id(), offset_ms)
            place.leases.offset_ms = seen.lease_offset_ms
            await reschedule(place.store, self.now_ms())
            self._clock_offset_ms = offset_ms

    async def _start_queued(self) -> None:
        """Fire what is due, and start what waits for sessions whose agent is known here."""
        if not self._agents and not self._sessions:
            return
        await fire_due(self.store, self.now_ms())
        for session_id in await self.store.with_queued():
            live = await self.put_to_work(session_id)
            if live is not None:
                live.drain_if_due()

    async def put_to_work(self, session_id: str) -> LiveSession | None:
        """The session with its agent, if that is known here."""
        live = self._sessions.get(session_id)
        if live is not None and live.staff is not None:
            return live
        head = await self.store.head(session_id)
        return None if head is None else await self.at_work(head)

    async def _unfinished(self) -> list[TurnRecord]:
        if not self._agents and not self._sessions:
            return []
        lease_now_ms = self._open.leases.now_ms()
        return await self.store.unfinished(self.now_ms(), lease_now_ms=lease_now_ms)

    async def _take_up(self, record: TurnRecord) -> Turn[Any] | None:
        live = await self._live_for(record)
        if live is None or live.busy or (live.is_blocked and not record.cancel_requested):
            return None
        turn = live.turn_of(record.turn_id)
        turn.start()
        live.drain()  # what was queued behind it
        return turn

    async def _live_for(self, record: TurnRecord) -> LiveSession | None:
        """The session of an unfinished turn with an agent: its own, or the one that the turn belongs to."""
        live = await self.put_to_work(record.session_id)
        agent = self._agents.get(record.agent)
        if live is not None or agent is None:
            return live
        try:
            return self.staff_session(record.session_id, agent)
        except StandfastError:  # its model cannot be opened here; other sessions can go on
            return None

    def _used(self, live: LiveSession, parked: bool) -> None:
        """Keep the sessions used last as they are, and let go of the others."""
        if parked:
            self._nudge.set()  # what the turn waits for may have come while it was parked
        self._cached[live.session_id] = live
        self._cached.move_to_end(live.session_id)
        self._messages += live.frame_size - live.held
        live.held = live.frame_size
        while self._holds_too_much():
            _, oldest = self._cached.popitem(last=False)
            self._messages -= oldest.held
            oldest.held = 0
            oldest.forget()
            self._release(oldest)

    def _release(self, live: LiveSession) -> None:
        """Let go of a session that can be made anew, unless the host program has it.

        That its agent works on it is remembered, for the last `_MAX_WORKED_ON` of them. Numbers of events are
        never used twice.
        """
        if live.staff is None or not live.holds_nothing:
            return
        if self._sessions.pop(live.session_id, None) is None:
            return  # it was deleted meanwhile
        self._last_seq = max(self._last_seq, live.last_seq)
        self._released[live.session_id] = live
        self._worked_on.pop(live.session_id, None)
        self._worked_on[live.session_id] = live.staff.agent
        if len(self._worked_on) > _MAX_WORKED_ON:
            del self._worked_on[next(iter(self._worked_on))]

    def _holds_too_much(self) -> bool:
        sessions, config = len(self._cached), self._config
        return sessions > config.cached_sessions or (sessions > 1 and self._messages > config.cached_messages)


def open_store(given: str | os.PathLike[str] | SessionStore | None) -> SessionStore:
    """The store of a path, or in memory, or as it is."""
    if given is None:
        from standfast.store.memory_sessions import MemorySessionStore

        return MemorySessionStore(owner_is_dead=owner_is_dead)
    if not isinstance(given, (str, os.PathLike)):
        return given
    from pathlib import Path

    from standfast.runtime.data_dir import database_in
    from standfast.store.sqlite.sessions import SqliteSessionStore

    path = Path(given).expanduser()
    return SqliteSessionStore(database_in(path) if path.is_dir() else path, owner_is_dead=owner_is_dead)


def open_prices(given: Prices | PriceTable | str | os.PathLike[str] | None) -> Prices:
    """The prices of a table or of a file, or as they are."""
    from standfast.providers.prices import Prices

    return given if isinstance(given, Prices) else Prices(given)


def _limiting(
    limits: Mapping[str, RateLimit] | None, clock: Clock, sleep: Callable[[float], Awaitable[None]]
) -> Callable[[ModelProvider], ModelProvider]:
    """Puts models behind the limits that all sessions share."""
    if not limits:
        return lambda model: model
    from standfast.providers.rate_limit import SharedLimits

    return SharedLimits(limits, clock=clock, sleep=sleep).around


def _known_options(options: PluginOptions, staff: Staff) -> PluginOptions:
    known = [factory.id for factory in staff.host.factories]
    for plugin_id in options.plugins:
        if plugin_id not in known:
            raise InvalidArgument(
                f"agent {staff.agent.name!r} has no plugin {plugin_id!r}", hint=f"it has {', '.join(known)}"
            )
    return options


def _by_name(agents: Iterable[Agent[Any, Any]]) -> dict[str, Agent[Any, Any]]:
    """The agents by name, with those that they declare as subagents; two of one name are refused."""
    found: dict[str, Agent[Any, Any]] = {}
    for agent in agents:
        if found.setdefault(agent.name, agent) is not agent:
            raise InvalidArgument(
                f"Runtime(agents=...) has two agents of the name {agent.name!r}",
                hint="unfinished turns find their agent by its name: give each its own with Agent(name=...)",
            )
    todo = list(found.values())
    for agent in todo:
        for declared in declared_agents(agent).values():
            if declared.name not in found:
                found[declared.name] = declared
                todo.append(declared)
    return found


def _agent_below(live: LiveSession | None, name: str) -> Agent[Any, Any] | None:
    """The agent of a session, or one that it declares as a subagent, if it has this name."""
    agent = None if live is None or live.staff is None else live.staff.agent
    if agent is None or agent.name == name:
        return agent
    return declared_agents(agent).get(name)


def _checked_metadata(metadata: Mapping[str, Json] | None) -> dict[str, Json] | None:
    """A copy of what a session is opened with; `InvalidArgument` if it cannot be kept."""
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise InvalidArgument("metadata is not an object", hint='pass metadata={"tenant": "acme"}')
    clean, size = to_json(dict(metadata))
    if size > MAX_METADATA_BYTES:
        raise InvalidArgument(
            f"metadata has {size:,} bytes, and may have {MAX_METADATA_BYTES:,}",
            hint="keep an id there, and look the rest up in the deps factory",
        )
    kept: dict[str, Json] = clean
    return kept


def _unknown_agent(name: str) -> Agent[Any, Any]:
    raise NotConfigured(f"no agent {name!r} is known here", hint="pass it in Runtime(agents=[...])")
