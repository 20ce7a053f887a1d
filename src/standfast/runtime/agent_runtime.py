"""The runtime: sessions and their turns, in one process, over one store.

A program opens a `Runtime`, which creates the objects that do the work: `RuntimeServices`, shared by all of
them, `SessionDirectory`, `RecoveryLoop` and `BackgroundServices`. Their modules are loaded with the first
`Runtime`, so that a program that only declares agents starts fast.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from standfast.errors import (
    InvalidArgument,
    NotConfigured,
    ProviderUnavailable,
    ProviderUnconfigured,
    StandfastError,
)
from standfast.model.canonical import Json, to_json
from standfast.model.limits import milliseconds
from standfast.model.outcome import Completed, Failed
from standfast.model.prompt import PromptContribution, PromptLayer, as_layer
from standfast.model.session import SessionHead, SessionId
from standfast.plugins.runtime_settings import DEFAULT_TIMEOUT_S
from standfast.ports.clock import Clock, SystemClock

if TYPE_CHECKING:
    from standfast.model.approval import Approval, Decision
    from standfast.model.events import Event
    from standfast.model.grant import Grant
    from standfast.model.journal import JournalEdit
    from standfast.model.plugin_options import PluginOptions
    from standfast.model.trigger import Schedule, Trigger
    from standfast.plugins.contexts import SessionHosts
    from standfast.plugins.runtime_services import RuntimeServices
    from standfast.ports.host import RuntimeSessionHost
    from standfast.ports.model_provider import ModelProvider
    from standfast.ports.session_store import DayUsage, Pruned, SessionStore, TurnCounts
    from standfast.ports.trace import PhaseProbe, TraceSink
    from standfast.providers.prices import Prices, PriceTable
    from standfast.providers.rate_limit import RateLimit
    from standfast.runtime.agent_definition import AgentDefinition
    from standfast.runtime.agent_session import Session
    from standfast.runtime.dependencies import DepsFactory
    from standfast.runtime.host.background import BackgroundServices, RecoveryLoop
    from standfast.runtime.host.tasks import Tasks
    from standfast.runtime.monitors.monitors import Monitors
    from standfast.runtime.operations import OperationsView
    from standfast.runtime.sessions.directory import SessionDirectory
    from standfast.runtime.sessions.live_session import LiveSession
    from standfast.runtime.turn import Turn

Deps = TypeVar("Deps")
Output = TypeVar("Output")
Part = TypeVar("Part")


class LazyRules:
    """An evaluator of approval rules, whose engine is started with the first rule."""

    def __init__(self) -> None:
        self._workers: Any = None
        self._evaluate: Any = None

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool:
        if self._evaluate is None:
            from standfast.sandbox.monty.workers import MontyRules, MontyWorkers

            self._workers = MontyWorkers(1)
            self._evaluate = MontyRules(self._workers)
        return bool(self._evaluate(rule, args, kwargs, session_id))

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


class OpenModels:
    """Opens models by name. Models in *shared*, if given, are used but never closed."""

    def __init__(
        self, shared: dict[str, ModelProvider] | None, limited: Callable[[ModelProvider], ModelProvider]
    ) -> None:
        self._shared = shared
        self._opened: dict[str, ModelProvider] = {}
        self.limited = limited

    def named(self, name: str, session_id: str = "") -> ModelProvider:
        """Return the model of this name, opened once. Errors include the id of the session that needs it."""
        found = self._opened.get(name)
        if found is None:
            from standfast.providers.resolve import resolve_model

            try:
                model = None if self._shared is None else self._shared.get(name)
                if model is None:
                    model = resolve_model(name)
                    if self._shared is not None:
                        self._shared[name] = model
                found = self._opened[name] = self.limited(model)
            except (ProviderUnavailable, ProviderUnconfigured) as error:
                error.session_id = session_id
                raise
        return found

    async def close(self) -> None:
        """Close all models that were opened here, then raise the first error, if any."""
        opened, self._opened = {} if self._shared is not None else self._opened, {}
        errors = []
        for model in opened.values():
            try:
                await model.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


class Runtime:
    """Sessions over one store. Use it as `async with Runtime("standfast.db") as runtime`.

    Args:
        store: the path of a SQLite file, a directory in which to keep `standfast.db`, or a `SessionStore`. By
            default, everything is in memory and lost when the runtime closes.
        agents: agents whose unfinished turns are resumed automatically; they are found by name. Subagents
            that they declare need not be listed.
        deps: a factory of deps for turns whose caller passed none, such as turns that the runtime resumes by
            itself: a function, async function or async generator of a `DepsContext`. An agent's own factory
            takes precedence.
        lease_s: after how many seconds other processes may take over the sessions of an unresponsive process.
        approval_ttl_s: how many seconds a person has to decide.
        busy_timeout_s: how many seconds a turn waits for another process to release the session.
        host: a description of this program, recorded with sessions for the process that resumes them.
        models: open models by name; the runtime uses them but does not close them.
        system: parts of every agent's system prompt, below those of the agent itself.
        trace: one or more sinks for trace records, such as `JsonlTrace("trace.jsonl")`.
        probe: a callback for the begin and end of each plugin hook.
        hook_timeout_s: how many seconds the hooks of one stage may take together.
        prices: the prices of models in dollars per million tokens: `{"model": {"input": 2, "output": 8}}`,
            the path of such a JSON file, or `Prices`. For other models, `standfast[prices]` is used if
            installed.
        keeper: whether this runtime claims unfinished turns and queued inputs by itself. If not, it runs only
            the turns that callers start, and leaves the rest to workers.
        keep_journals: how many seconds the journals of ended turns are kept, for `Session.journal`,
            `Session.spans` and forks in the middle of a turn; 0 means not at all. Without a store, the
            journals of at most the last 1,000 turns are kept, and no more than 256 KiB of them.
        rate_limits: rate limits of providers (`"anthropic"`) and models (`"openai:gpt-5"`), shared by all
            sessions.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | SessionStore | None = None,
        *,
        agents: Iterable[AgentDefinition[Any, Any]] = (),
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
        keeper: bool = True,
        keep_journals: float = 7 * 86_400.0,
        _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        from standfast.plugins.runtime_settings import RuntimeSettings
        from standfast.providers.prices import Prices
        from standfast.runtime.dependencies import checked_factory
        from standfast.runtime.sessions.directory import agents_by_name
        from standfast.runtime.sessions.live_session import TurnSlots

        self.epoch = os.urandom(6).hex()
        self._poll_s = 1.0
        self.slots = TurnSlots()
        """The slots for turns that no caller started. Replace them only before the runtime opens."""
        self.slots.is_closed = not keeper
        self._keeper = keeper
        self._given = store
        self._agents = agents_by_name(agents)
        self._deps = checked_factory(deps)
        self._clock = clock or SystemClock()
        self._description = dict(host or {})
        self._models = models
        self._sleep = _sleep
        self._system = as_layer(system)
        self._trace = trace
        self._probe = probe
        self._prices = prices if isinstance(prices, Prices) else Prices(prices)
        self._limited: Callable[[ModelProvider], ModelProvider] = lambda model: model
        if rate_limits:
            from standfast.providers.rate_limit import SharedLimits

            self._limited = SharedLimits(rate_limits, clock=self._clock, sleep=_sleep).around
        self._settings = RuntimeSettings(
            epoch=self.epoch,
            lease_ms=milliseconds("lease_s", lease_s, least=0.001),
            approval_ttl_ms=milliseconds("approval_ttl_s", approval_ttl_s, least=0.001),
            busy_timeout_ms=milliseconds("busy_timeout_s", busy_timeout_s),
            hook_timeout_s=hook_timeout_s,
            keep_journals_ms=milliseconds("keep_journals", keep_journals),
        )
        self._directory: SessionDirectory | None = None
        self._background: BackgroundServices | None = None
        self._recovery: RecoveryLoop | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._opening: asyncio.Event | None = None

    async def __aenter__(self) -> Runtime:
        """Open the runtime; raise `InvalidArgument` if it is already open.

        Tasks that enter it while it is being opened wait until it is open.
        """
        while self._opening is not None:
            await self._opening.wait()
            if self._directory is not None:
                return self
        if self._directory is not None:
            raise InvalidArgument("this runtime is already open")
        self._opening = asyncio.Event()
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        finally:
            self._opening.set()
            self._opening = None
        return self

    async def _start(self) -> None:
        from standfast.runtime.host.background import BackgroundServices, RecoveryLoop
        from standfast.runtime.sessions.directory import SessionDirectory
        from standfast.runtime.turns.turn_runner import TurnRunner

        directory = SessionDirectory(
            self._open_services(), self._agents, self._description, TurnRunner, self.slots
        )
        directory.poll_s = self._poll_s
        background = directory.background = BackgroundServices(directory, takes_over=self._keeper)

        def hosts_of(session_id: str) -> SessionHosts:
            from standfast.runtime.host.service import session_views

            @functools.cache
            def host() -> RuntimeSessionHost:
                from standfast.runtime.host.runtime_host import RuntimeHost

                return RuntimeHost(directory, background, session_id)

            return session_views(host)

        directory.hosts_of = hosts_of
        self._directory, self._background = directory, background
        self._recovery = RecoveryLoop(directory, background)
        await self._recovery.check_clock()
        self._recovering = asyncio.get_running_loop().create_task(self._recovery.run())
        directory.relay.open(directory.kept_feed)

    def _open_services(self) -> RuntimeServices:
        from standfast.durable.journal import LeaseKeeper
        from standfast.plugins.runtime_services import RuntimeServices
        from standfast.sandbox.engine_kinds import CodeEngines

        tracer = None
        if self._trace is not None:
            from standfast.trace.tracer import Tracer  # needed only with a trace

            tracer = Tracer(self._trace, self._clock)
        store = open_store(self._given)
        return RuntimeServices(
            store=store,
            clock=self._clock,
            settings=self._settings,
            leases=LeaseKeeper(store, self._clock, self._settings.lease_ms, self.epoch),
            models=OpenModels(self._models, self._limited),
            prices=self._prices,
            engines=CodeEngines(),
            rules=LazyRules(),
            tracer=tracer,
            probe=self._probe,
            system=self._system,
            deps=self._deps,
            sleep=self._sleep,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except StandfastError:
            if error is None:
                raise

    async def close(self) -> None:
        """Close the runtime. Unfinished turns stay in the store and can be resumed.

        Hidden tasks get some time to end; other tasks are cancelled, and monitors are ended with their
        processes.
        """
        directory, background = self._directory, self._background
        if directory is None or background is None:
            return
        await background.tasks.hidden.finish()
        if directory.is_closing:
            return
        directory.is_closing = True
        tasks = [task for live in directory.sessions.values() for task in live.tasks()]
        if self._recovering is not None:
            tasks.append(self._recovering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._directory = self._background = self._recovery = None
        directory.is_open = False
        await background.close()
        await directory.relay.close()
        await directory.services.leases.close()
        try:
            await directory.close()
            await directory.services.close()
        finally:
            await directory.services.store.close()

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
        agent: AgentDefinition[Deps, Output],
        deps: Deps | None = None,
        options: PluginOptions | Mapping[str, Json] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Session[Output, Deps]: ...
    async def session(
        self,
        session_id: str = "default",
        *,
        agent: AgentDefinition[Any, Any] | None = None,
        deps: Any = None,
        options: PluginOptions | Mapping[str, Json] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Session[Any]:
        """Open a session, or create it. Its unfinished turn is resumed in the background.

        *deps* are the deps of all turns of the session in this process for which none are passed. *options*
        are the options of plugins in this process, by plugin id. *metadata*, such as the tenant, replaces the
        stored metadata of the session and is passed to deps factories. Errors: `PluginFailed`.
        """
        live = await self._open.open(session_id, agent, deps, options, metadata)
        return self._handle(live)

    def session_handle(self, session_id: str) -> Session[Any]:
        """Return a handle for reading a session, without opening it: no agent is needed."""
        return self._handle(self.live(session_id))

    def _handle(self, live: LiveSession) -> Session[Any]:
        from standfast.runtime.agent_session import Session

        return Session(self._open, live)

    async def sessions(
        self, *, agent: str | None = None, after: SessionHead | None = None, limit: int | None = None
    ) -> list[SessionHead]:
        """Return sessions, the most recently used first.

        Args:
            agent: only those of this agent.
            after: the last session of the previous page; return the sessions that follow it.
            limit: the maximum number of sessions.
        """
        position = None if after is None else (after.updated_at, after.session_id)
        return await self.store.heads(agent=agent, after=position, limit=limit)

    async def fork(
        self,
        session_id: str,
        new_id: str,
        *,
        at: str | None = None,
        input: int | None = None,
        edit: JournalEdit | None = None,
    ) -> Session[Any]:
        """Create a session over the same history, without a parent and with the default authority.

        *at* is a node or, with *input*, a turn; see `Session.fork`.
        """
        return self._handle(await self._open.fork(session_id, new_id, at, input, edit))

    async def rewind(self, session_id: str, to: str | None = None, *, turns: int = 1) -> SessionHead:
        """Move a session to the node *to*, back or forward, or back by a number of turns."""
        return await self._open.rewind(session_id, to, turns)

    async def delete(self, session_id: str) -> bool:
        """Delete a session; return False if it does not exist."""
        return await self._open.delete(session_id)

    async def prune(
        self,
        *,
        older_than_s: float | None = None,
        frames: bool = False,
        branches: bool = False,
        session: str | None = None,
    ) -> Pruned:
        """Delete data that is no longer needed, and free its space.

        Args:
            older_than_s: delete idle sessions that were last used more than this many seconds ago.
            frames: delete the history before the current frame of each session.
            branches: delete history that is on no session's active path, such as rewound turns.
            session: prune only this session.
        """
        from standfast.ports.session_store import PruneRequest

        now = self.now_ms()
        before = None if older_than_s is None else now - milliseconds("older_than_s", older_than_s)
        for live in self._open.cached.values():
            live.forget()
        return await self.store.prune(
            PruneRequest(
                sessions_before_ms=before, now_ms=now, frames=frames, branches=branches, session_id=session
            )
        )

    # Turns

    async def recover(self) -> list[Turn[Any]]:
        """Resume every unfinished turn that can continue and whose agent is known here."""
        return await _opened(self._recovery).recover()

    async def recover_tasks(self) -> None:
        """Recover the tasks and monitors of dead processes now; the runtime does so every second."""
        await self._open_background.recover(now=True)

    async def turn_counts(self) -> TurnCounts:
        """Count queued inputs, and the unfinished turns of all processes by state."""
        return await self.store.turn_counts(self.now_ms(), lease_now_ms=self._open.services.leases.now_ms())

    async def usage_by_day(self, *, since_ms: int = 0) -> list[DayUsage]:
        """Return the usage of turns ended since *since_ms*, by day, session and agent; latest day first.

        `Session.usage` returns a session's total usage by source and model, including usage outside of turns.
        """
        return await self.store.usage_by_day(since_ms)

    async def operations(self) -> OperationsView:
        """Return leases, workers, queues, waits, stuck turns, triggers and the size of the store."""
        from standfast.runtime.operations import view_operations  # needed only by operators

        return await view_operations(self.store, self.now_ms(), self._open.services.leases.now_ms())

    async def cancel(self, turn_id: str) -> bool:
        """Cancel a turn; return False if it has already ended."""
        record = await self.store.turn(turn_id)
        return record is not None and await self.live(record.session_id).cancel(turn_id)

    # Waits

    async def approvals(self, *, session: str | None = None, pending: bool = False) -> list[Approval]:
        """Return the approval requests, oldest first; with *pending*, those that can still be decided."""
        from standfast.runtime.sessions.approvals import list_approvals

        return await list_approvals(self.store, self.now_ms(), session=session, pending=pending)

    async def approve(
        self,
        approval_id: str,
        *,
        arguments: Mapping[str, Json] | None = None,
        reason: str | None = None,
        decided_by: str | None = None,
    ) -> Approval:
        """Approve a call, once, on behalf of *decided_by*.

        A process that knows the agent resumes the turn.
        """
        from standfast.runtime.sessions.approvals import approving

        return await self._decide(approval_id, approving(None, arguments, reason, decided_by))

    async def deny(
        self, approval_id: str, *, reason: str | None = None, decided_by: str | None = None
    ) -> Approval:
        """Deny a call, once. Its turn is resumed, and the model gets the reason."""
        from standfast.model.approval import Decision

        decision = Decision(approved=False, reason=reason, decided_by=decided_by)
        return await self._decide(approval_id, decision)

    async def _decide(self, approval_id: str, decision: Decision) -> Approval:
        from standfast.runtime.agent_session import decide_call
        from standfast.runtime.sessions.approvals import get_approval

        directory = self._open
        asked = await get_approval(directory.store, directory.now_ms(), approval_id)
        try:
            return await decide_call(directory, asked, decision)
        finally:
            directory.changed.set()  # even if this call failed, the decision may be stored

    async def grants(self, *, session: str | None = None, in_force: bool = False) -> list[Grant]:
        """Return the grants, oldest first; only those that cover *session* or are in force, if asked for."""
        from standfast.durable.grants import list_grants

        found, now = await list_grants(self.store), self.now_ms()
        if session is not None:
            head = await self.session_handle(session).head()
            found = [grant for grant in found if grant.covers(head, grant.capability)]
        return [grant for grant in found if grant.is_in_force(now)] if in_force else found

    async def grant(
        self,
        capability: str,
        *,
        given_by: str,
        expires_at: int,
        rule: str | None = None,
        session: str | None = None,
        agent: str | None = None,
        tenant: str = "",
        reason: str | None = None,
    ) -> Grant:
        """Approve calls of a tool in advance, until *expires_at* (milliseconds since 1970).

        The grant covers one session, or the sessions of an agent that belong to *tenant*, and only calls for
        which *rule*, an expression over `args`, `kwargs` and `session_id`, is true. Calls that are already
        waiting are not affected: a person has to decide them.
        """
        from standfast.durable.grants import give_grant
        from standfast.model.grant import Grant

        if session is not None:
            tenant = (await self.session_handle(session).head()).tenant
        made = Grant(
            grant_id=f"grt_{os.urandom(10).hex()}",
            capability=capability,
            given_by=given_by,
            given_at=self.now_ms(),
            expires_at=expires_at,
            rule=rule,
            session_id=session,
            agent=agent,
            tenant=tenant,
            reason=reason,
        )
        return await give_grant(self.store, made)

    async def revoke_grant(self, grant_id: str, *, revoked_by: str | None = None) -> Grant:
        """Revoke a grant, in every process. Calls that it has already approved are not stopped."""
        from standfast.durable.grants import revoke_grant

        return await revoke_grant(self.store, grant_id, revoked_by, self.now_ms())

    async def complete(self, token: str, value: Json = None) -> None:
        """Deliver the result of a call that a tool left to an external system."""
        clean, _ = to_json(value)
        await self.store.complete(token, Completed(value=clean), self.now_ms())
        self._open.changed.set()

    async def fail(self, token: str, error: StandfastError) -> None:
        """Deliver the failure of a call that a tool left to an external system."""
        await self.store.complete(token, Failed(error=error.error_object()), self.now_ms())
        self._open.changed.set()

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
        """Queue a turn of a session for each occurrence at a source. Replace a trigger of the same name.

        *prompt* is the turn's input, with `{payload}` replaced by the occurrence's payload as JSON. With a
        *schedule*, or a cron expression, the clock is the source; an unchanged schedule keeps its next time.
        """
        from standfast.model.trigger import Schedule, Trigger
        from standfast.runtime.triggers import put_trigger

        timed = Schedule(cron=schedule) if isinstance(schedule, str) else schedule
        wanted = Trigger(
            name=name, source=source, session_id=session_id, prompt=prompt, schedule=timed, enabled=enabled
        )
        made = await put_trigger(self.store, wanted, self.now_ms())
        self._open.changed.set()
        return made

    async def remove_trigger(self, name: str) -> bool:
        """Delete a trigger; return False if it does not exist. Inputs that it has queued are kept."""
        return await self.store.remove_trigger(name)

    async def triggers(self) -> list[Trigger]:
        """Return all triggers, by name."""
        return await self.store.triggers()

    async def occur(self, source: str, key: str, payload: Json = None) -> int:
        """Report an occurrence at a source, once for each key; return how many triggers queue a turn."""
        return await self._open.occur(source, key, payload)

    async def occur_signed(
        self, source: str, body: bytes, signature: str, secret: str | bytes, *, key: str | None = None
    ) -> int:
        """Report a webhook's body as an occurrence. By default, its *key* is the digest of the body.

        Raise `SignatureRefused` if *signature* is not the body's HMAC-SHA256.
        """
        from standfast.runtime.triggers import verify_webhook, webhook_occurrence

        verify_webhook(source, body, signature, secret)
        return await self._open.announce(webhook_occurrence(source, body, key, self.now_ms()))

    # Services for plugins, tools and host programs

    def host(self, session_id: str) -> RuntimeSessionHost:
        """Return the services that a session's plugins get, without their restriction to visible sessions.

        Calls raise `SessionNotFound`, and `ServiceUnavailable` for services that the session lacks.
        """
        from standfast.runtime.host.runtime_host import RuntimeHost

        return RuntimeHost(self._open, self._open_background, SessionId(session_id), sees_all=True)

    def watch(self, watcher: Callable[[str, Event], None]) -> Callable[[], None]:
        """Call *watcher* with the session id and each live event of this process.

        Return a function that ends this. Events of other processes are not included; `Session.observe` yields
        what they have committed.
        """
        watchers = self._open.services.watchers
        watchers.append(watcher)
        return lambda: watchers.remove(watcher)

    # For the command line, the server and tests

    @property
    def store(self) -> SessionStore:
        return self._open.store

    @property
    def agents(self) -> Mapping[str, AgentDefinition[Any, Any]]:
        """The agents that were passed to this runtime, and the subagents that they declare, by name."""
        return self._agents

    @property
    def is_open(self) -> bool:
        return self._directory is not None

    async def at_work(self, session_id: str) -> LiveSession:
        """Return a session with its agent; raise `NotConfigured` if that is not known here."""
        live = await self._open.put_to_work(session_id)
        if live is None:
            raise NotConfigured(
                f"no agent is known for session {session_id!r}", hint="pass it in Runtime(agents=[...])"
            )
        return live

    def engine_builds(self) -> list[str]:
        """Return the engines that can run code here, each with its build."""
        from standfast.sandbox.engine_kinds import KINDS

        builds = [self._open.services.engines.build(name) for name in KINDS]
        return [build for build in builds if " " in build]

    @property
    def looked_s(self) -> float | None:
        """When the runtime last polled the store for work successfully, on the monotonic clock."""
        return None if self._recovery is None else self._recovery.looked_s

    @property
    def poll_s(self) -> float:
        """The interval at which the runtime polls for work from other processes."""
        return self._poll_s

    @poll_s.setter
    def poll_s(self, seconds: float) -> None:
        self._poll_s = seconds
        if self._directory is not None:
            self._directory.poll_s = seconds

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def live(self, session_id: str) -> LiveSession:
        """Return this process's in-memory state of a session."""
        return self._open.live(session_id)

    def last_head(self, session_id: str) -> SessionHead | None:
        """Return a session's head after the last turn that ended in this process; None if none has.

        Another process may have changed the session since; the next turn detects that.
        """
        live = self._open.sessions.get(session_id)
        return None if live is None else live.stood

    @property
    def tasks(self) -> Tasks:
        return self._open_background.tasks

    @property
    def monitors(self) -> Monitors:
        """The monitors of every session."""
        return self._open_background.monitors

    @property
    def _open(self) -> SessionDirectory:
        return _opened(self._directory)

    @property
    def _open_background(self) -> BackgroundServices:
        return _opened(self._background)


def _opened(part: Part | None) -> Part:
    """Return a part of a runtime; raise `InvalidArgument` if the runtime is not open."""
    if part is None:
        from standfast.plugins.runtime_services import runtime_not_open

        raise runtime_not_open()
    return part


def open_store(
    given: str | os.PathLike[str] | SessionStore | None, *, blobs: str | None = None
) -> SessionStore:
    """Open the store at a path or a PostgreSQL URL, or one in memory (None, ":memory:"); keep a given store.

    *blobs* is the `s3://` URL of the object store for large blobs, by default `STANDFAST_BLOBS`.
    """
    from standfast.durable.journal import owner_is_dead

    if given is None or given == ":memory:":
        from standfast.store.memory_sessions import MemorySessionStore

        return MemorySessionStore(owner_is_dead=owner_is_dead)
    if not isinstance(given, (str, os.PathLike)):
        return given
    from pathlib import Path

    from standfast.runtime.data_dir import database_in, is_url, open_sql_store

    if is_url(given):
        return open_sql_store(str(given), owner_is_dead, blobs)
    path = Path(given).expanduser()
    return open_sql_store(database_in(path) if path.is_dir() else path, owner_is_dead, blobs)
