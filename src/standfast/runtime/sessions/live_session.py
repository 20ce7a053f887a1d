"""A session's in-memory state: agent, plugins, messages, events. Without a running turn it can be dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from standfast import errors
from standfast.durable.driver import TurnDriver
from standfast.graph.history import has_attachments, messages_of
from standfast.machine.turn_machine import TurnMachine
from standfast.model.events import Event, TurnBlocked
from standfast.model.message import Message
from standfast.model.outcome import Finished, FrameSwitched, Waiting
from standfast.model.session import Blocked, SessionHead, TurnRecord, TurnSummary
from standfast.plugins.running import BuildStep
from standfast.plugins.runtime_services import RuntimeServices
from standfast.plugins.session import PluginSession
from standfast.plugins.session_context import SessionContext
from standfast.ports.session_store import JournalEntry, QueuedInput, SessionStore
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.dependencies import OwnedFactory
from standfast.runtime.result import TurnResult
from standfast.runtime.sessions.materialize import AS_GIVEN, PreparedAgent, SessionSetup, materialize
from standfast.runtime.sessions.relay import EventRelay
from standfast.runtime.turn import RUNNING_TURN, LiveFeed, Turn, TurnRequest, detached, new_turn_id

_COMES_LATER: Final = (errors.LeaseLost, errors.RuntimeClosed, errors.SessionBusy, errors.TurnUnfinished)
"""Errors that mean that another turn has to end first, or that this process must not run it."""
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
Free = Callable[[object], None]
"""Frees a slot; used as a done callback of the task that has it."""
_MANY: Final = 1_000


class TurnSlots:
    """The slots that limit how many turns of which queues this process runs. Without arguments, no limit.

    Every turn that no caller started takes a slot: each resumed turn, and the queued inputs of one session,
    which run one after the other. Without a free slot nothing is claimed, so that another worker can claim
    it; when a slot is freed, the background loop looks for work again. A turn of a child session takes no
    slot, because the parent's turn, which may wait for it, already has one.

    Args:
        total: how many turns may run concurrently.
        queues: the queues from which turns are claimed, each with its own limit; None means all queues.
    """

    def __init__(self, total: int | None = None, queues: Mapping[str, int | None] | None = None) -> None:
        self.total = total
        self.queues = queues
        self.is_closed = False
        """Whether this process no longer claims turns."""
        self.running = 0
        self.freed: Callable[[], None] = lambda: None
        """Called when a slot was freed and others may be waiting for one."""
        self._idle = asyncio.Event()
        self._by_queue: Counter[str] = Counter()
        self._by_agent: Counter[str] = Counter()

    @property
    def is_limited(self) -> bool:
        return self.total is not None or self.queues is not None

    @property
    def has_room(self) -> bool:
        """Whether a turn of some agent may start."""
        return not self.is_closed and (self.total is None or self.running < self.total)

    @property
    def free(self) -> int:
        """How many turns may start."""
        return _MANY if self.total is None else max(0, self.total - self.running)

    def admits(self, agent: AgentDefinition[Any, Any]) -> bool:
        """Return whether a turn of *agent* may start here now."""
        if not self.has_room or (self.queues is not None and agent.queue not in self.queues):
            return False
        limit = None if self.queues is None else self.queues[agent.queue]
        below_limit = limit is None or self._by_queue[agent.queue] < limit
        return below_limit and (
            agent.max_concurrent is None or self._by_agent[agent.name] < agent.max_concurrent
        )

    def take(self, agent: AgentDefinition[Any, Any] | None, *, below: bool = False) -> Free | None:
        """Take a slot for a turn of *agent*, also in a session *below* another; None if it must not start."""
        if agent is None or (below and not self.is_closed):  # without an agent, the turn itself reports that
            return lambda task: None
        if not self.admits(agent):
            return None
        queue, name = agent.queue, agent.name
        self._count(queue, name, 1)

        def free(task: object) -> None:
            self._count(queue, name, -1)
            if not self.running:
                self._idle.set()
            if self.is_limited:
                self.freed()

        return free

    async def drain(self, timeout_s: float) -> bool:
        """Stop claiming and wait for the running turns; return whether all have ended in time."""
        self.is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.running:
                    self._idle.clear()
                    await self._idle.wait()
        return not self.running

    def _count(self, queue: str, name: str, by: int) -> None:
        self.running += by
        self._by_queue[queue] += by
        self._by_agent[name] += by


class _Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a turn could not run, and when to retry it."""

    problem: str
    pause_s: float
    until: float


class InputQueue:
    """Runs the turns of queued inputs, one after the other. Used on the runtime's loop."""

    __slots__ = (
        "_blocked", "_more", "_publish", "_refusal", "_run", "_services", "_session_id", "_slots",
        "_take_slot",
        "draining", "stuck",
    )  # fmt: skip

    def __init__(
        self,
        session_id: str,
        services: RuntimeServices,
        run: Callable[[QueuedInput], Awaitable[object]],
        publish: Callable[[Event], None],
        take_slot: Callable[[], Free | None],
        slots: TurnSlots,
    ) -> None:
        self._session_id = session_id
        self._services = services
        self._run = run
        self._publish = publish
        self._take_slot = take_slot
        self._slots = slots
        self._more = False
        self._refusal: _Refusal | None = None
        self._blocked: _Refusal | None = None
        self.draining: asyncio.Task[None] | None = None
        self.stuck = False
        """Whether an input has to wait for another turn to end."""

    @property
    def idle(self) -> bool:
        """Whether the queue has no state that must be kept."""
        done = self.draining is None or self.draining.done()
        return done and not self.stuck and self._refusal is None and self._blocked is None

    def drain(self) -> None:
        """Start running the queued inputs, if there is a free slot."""
        self._more = True
        if (self.draining is None or self.draining.done()) and (free := self._take_slot()) is not None:
            self.draining = asyncio.get_running_loop().create_task(self._drain(), context=detached())
            self.draining.add_done_callback(free)

    def input_arrived(self) -> None:
        """Start running the queued inputs, unless an input that could not run is waiting for its retry."""
        self._more = True
        self.drain_if_due()

    def drain_if_due(self) -> None:
        """Start running the queued inputs, unless that is under way or a pause before a retry is not over."""
        if self.draining is not None and not self.draining.done():
            return
        if self._refusal is None or self._services.clock.monotonic() >= self._refusal.until:
            self.drain()

    async def _drain(self) -> None:
        """Run queued inputs in batches: reading all of them for each turn would be quadratic."""
        inputs = self._services.store.inputs
        before = self._refusal
        while self._more and self._refusal is before:  # an input refused now is retried after its pause
            self._more = self.stuck = False
            while queued := [item for item in await inputs(self._session_id) if item.kind == "queue"]:
                for item in queued:
                    if not self.stuck and not self._slots.is_closed:
                        await self._run_input(item)
                if self.stuck or self._slots.is_closed:
                    break

    async def _run_input(self, item: QueuedInput) -> None:
        try:
            await self._run(item)
        except errors.InputNotFound:
            pass  # it was withdrawn, or claimed by another process
        except errors.StandfastError as error:
            self.stuck = True  # it stays queued, usually behind a waiting or interrupted turn
            if not isinstance(error, _COMES_LATER):
                before = self._refusal
                problem = f"the turn of input {item.input_id} of {self._session_id} could not be run: {error}"
                self._refusal = self._refused(before, problem)
                is_new = before is None or before.problem != problem
                if is_new and isinstance(error, errors.TurnNotRunnable):
                    await self._note_blocked(error, input_id=item.input_id)
            return
        self._refusal = None

    async def block(self, turn_id: str, error: errors.TurnNotRunnable) -> None:
        """Record why a turn cannot be resumed here, and delay the next attempt."""
        before = self._blocked
        problem = f"turn {turn_id} of {self._session_id} is not resumed: {error}"
        self._blocked = self._refused(before, problem)
        if before is None or before.problem != problem:
            await self._note_blocked(error, turn_id=turn_id)

    def _refused(self, before: _Refusal | None, problem: str) -> _Refusal:
        """Report a new problem, and double the pause before the next attempt."""
        if before is None or before.problem != problem:
            self._services.report("", "queue", problem)
        pause_s = _FIRST_PAUSE_S if before is None else min(2 * before.pause_s, _LONGEST_PAUSE_S)
        return _Refusal(problem, pause_s, self._services.clock.monotonic() + pause_s)

    async def _note_blocked(
        self, error: errors.StandfastError, *, turn_id: str = "", input_id: str = ""
    ) -> None:
        """Publish why the next turn cannot run, and store the reason with the session."""
        why = error.error_object()
        self._publish(TurnBlocked(error=why, turn_id=turn_id, input_id=input_id))
        note = Blocked(error=why, at_ms=self._services.clock.now_ms(), turn_id=turn_id, input_id=input_id)
        await self._services.store.note_blocked(self._session_id, note)

    async def unblock(self, head: SessionHead) -> None:
        """Clear the reason why a turn could not run, because one is running now."""
        self._blocked = None
        if head.blocked is not None:
            await self._services.store.note_blocked(self._session_id, None)

    def retry_now(self) -> None:
        """Retry without a pause."""
        self._blocked = self._refusal = None

    @property
    def is_blocked(self) -> bool:
        """Whether the pause before the next attempt to resume a turn is not over."""
        return self._blocked is not None and self._services.clock.monotonic() < self._blocked.until


class FrameCache:
    """The messages of a session's current frame, up to the node `leaf`."""

    __slots__ = ("_store", "has_attachments", "leaf", "messages")

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.leaf: str | None = None
        self.messages: list[Message] = []
        self.has_attachments = False
        """Whether a result among the messages has attachments."""

    async def messages_at(self, head: SessionHead) -> list[Message]:
        """Return the messages of the current frame; the caller must not change the list."""
        if head.leaf is None:
            return []
        if self.leaf != head.leaf:
            segments = await self._store.frame(head.leaf, known=self.leaf)
            follows = self.leaf is not None and segments and segments[0].parent == self.leaf
            grows = follows and not any(segment.opens_frame for segment in segments)
            said = messages_of(segments)
            self.leaf, self.messages = head.leaf, self.messages + said if grows else said
            self.has_attachments = (grows and self.has_attachments) or has_attachments(said)
        return self.messages

    def append(self, base: SessionHead, head: SessionHead, machine: TurnMachine) -> None:
        """Add the messages of a committed turn; drop the cache if other nodes were written in between."""
        alone = head.depth == base.depth + len(machine.entries)
        opened = machine.compaction is not None or type(machine.outcome) is FrameSwitched
        if not alone or head.leaf is None or opened:
            self.drop()
        elif self.leaf == base.leaf:
            self.messages.extend(machine.messages)
            self.has_attachments = self.has_attachments or machine.calls.has_attachments
            self.leaf = head.leaf

    def drop(self) -> None:
        self.leaf, self.messages, self.has_attachments = None, [], False


class RunsTurns(Protocol):
    """Runs the turns of one session with one agent."""

    async def run(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Run a new turn from its input until it ends or parks."""

    async def resume(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Resume a turn that is waiting or was interrupted."""

    def require_runnable(self, record: TurnRecord) -> None:
        """Raise `TurnNotRunnable` if the turn's agent is unknown here, or its deps have no source."""


class SessionOwner(Protocol):
    """The session directory, as a session sees it."""

    slots: TurnSlots
    relay: EventRelay
    changed: asyncio.Event

    def runner_of(self, live: LiveSession) -> RunsTurns:
        """Return the runner of the session's turns; raise if the runtime is closed or the agent unknown."""

    def used(self, live: LiveSession) -> None:
        """Record that a turn of the session has ended or parked."""


class SessionEvents:
    """Publishes the events of one session. Its feed is made for the first event and can be dropped."""

    __slots__ = ("_directory", "_dropped_seq", "_services", "_session_id", "_was_read", "kept")

    def __init__(
        self, session_id: str, services: RuntimeServices, directory: SessionOwner, last_seq: int
    ) -> None:
        self._session_id = session_id
        self._services = services
        self._directory = directory
        self._dropped_seq = last_seq
        self._was_read = False
        self.kept: LiveFeed | None = None
        """The feed, if there is one."""

    @property
    def feed(self) -> LiveFeed:
        """The feed, for a reader."""
        feed = self.kept or self._make()
        feed.is_read = True
        return feed

    @property
    def last_seq(self) -> int:
        """The number of the last event that was published."""
        return self._dropped_seq if self.kept is None else self.kept.last_seq

    def show(self, turn: Turn[Any], event: Event) -> None:
        """Publish an event to the session's observers and to the readers of the turn."""
        (self.kept or self._make()).publish(event)
        for watch in self._services.watchers:
            watch(self._session_id, event)
        for subscription in turn.subscriptions:
            subscription.receive(event)

    def publish(self, event: Event) -> None:
        """Publish an event to the observers of this session and to those of all sessions."""
        (self.kept or self._make()).publish(event)
        for watch in self._services.watchers:
            watch(self._session_id, event)

    def drop(self) -> None:
        """Drop the feed with its events. Their numbers are never used again."""
        if self.kept is not None:
            self._dropped_seq, self._was_read = self.kept.last_seq, self.kept.is_read
            self.kept = None

    def _make(self) -> LiveFeed:
        feed = self.kept = LiveFeed(self._services.clock.monotonic, self._dropped_seq, is_read=self._was_read)
        if (relay := self._directory.relay).wanted:
            relay.feed_made(self._session_id, feed)
        return feed


class LiveSession:
    """One session in this process. Used on the runtime's loop."""

    __slots__ = (
        "__weakref__", "_changes", "_context", "_deps", "_directory", "_lock", "_making", "_queue",
        "_running", "_services", "_turns", "deps", "driver", "events", "frame", "held", "in_turn",
        "inherited", "is_below", "left", "prepared", "session_id", "setup", "stood",
    )  # fmt: skip

    def __init__(
        self, session_id: str, services: RuntimeServices, directory: SessionOwner, last_seq: int = 0
    ) -> None:
        self.session_id = session_id
        self.prepared: PreparedAgent | None = None
        """The agent that is assigned to the session here."""
        self.deps: Any = None
        self.inherited: OwnedFactory | None = None
        """The deps factory of the agent above a subagent, used if the subagent's agent has none."""
        self.is_below = False
        """Whether this is a child session, for whose turns a parent's turn may wait."""
        self.driver: TurnDriver | None = None
        self.left: str | None = None
        """The turn that was unfinished when the session was opened here. Recovery may have ended it since."""
        self.setup: SessionSetup = AS_GIVEN
        self.frame = FrameCache(services.store)
        self.events = SessionEvents(session_id, services, directory, last_seq)
        self.held = 0
        """How many messages the directory counts for this session."""
        self.in_turn: SessionContext | None = None
        self.stood: SessionHead | None = None
        """The cached head after the last turn that ended here."""
        self._context: SessionContext | None = None
        self._services = services
        self._directory = directory
        self._lock: asyncio.Lock | None = None
        self._making: asyncio.Lock | None = None
        self._changes: asyncio.Lock | None = None
        self._queue: InputQueue | None = None
        self._deps: tuple[str, Any] | None = None
        self._turns: dict[str, Turn[Any]] | None = None
        self._running: tuple[asyncio.Task[Any], ...] = ()

    @property
    def lock(self) -> asyncio.Lock:
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    @property
    def busy(self) -> bool:
        """Whether a turn is running here, or is about to."""
        return self.driver is not None or (self._lock is not None and self._lock.locked())

    @property
    def queue(self) -> InputQueue:
        """The session's queued inputs."""
        if self._queue is None:
            self._queue = InputQueue(
                self.session_id,
                self._services,
                self.run_input,
                self.events.publish,
                self.take_slot,
                self._directory.slots,
            )
        return self._queue

    def retry_now(self) -> None:
        """Retry without a pause, because the session was opened again, perhaps with the missing deps."""
        if self._queue is not None:
            self._queue.retry_now()

    @property
    def draining(self) -> asyncio.Task[None] | None:
        """The task that runs queued inputs."""
        return None if self._queue is None else self._queue.draining

    def tasks(self) -> list[asyncio.Future[Any]]:
        """Return the background tasks of this session."""
        return [task for task in (*self._running, self.draining) if task is not None and not task.done()]

    def new_turn(self, request: TurnRequest) -> Turn[Any]:
        self._services.require_home()
        return Turn(new_turn_id(), self.session_id, request, self.run, self.cancel)

    def turn_of(self, turn_id: str) -> Turn[Any]:
        """Return the handle of a turn to resume; the same handle while it is running."""
        if self._turns is None:
            self._turns = {}
        turn = self._turns.get(turn_id)
        if turn is None or turn.done:
            turn = self._turns[turn_id] = Turn(turn_id, self.session_id, None, self.run, self.cancel)
        return turn

    async def cancel(self, turn_id: str) -> bool:
        """Request a turn's cancellation; if no process runs the turn, end it here."""
        if not await self._services.store.cancel(turn_id):
            return False
        if self.driver is not None and self.driver.turn_id == turn_id:
            self.driver.request_cancel()
        elif self.prepared is not None:
            self.turn_of(turn_id).start()
        return True

    def take_slot(self) -> Free | None:
        """Take a slot for a turn that no caller started; None if it must not start here now."""
        agent = None if self.prepared is None else self.prepared.agent
        return self._directory.slots.take(agent, below=self.is_below)

    async def run_input(self, item: QueuedInput) -> TurnResult[Any]:
        """Run the turn of a queued input, with the deps of the turn that queued it, or the session's."""
        made_by, deps = self._deps or ("", None)
        deps = deps if made_by and item.input_id.startswith(f"{made_by}.") else self.deps
        request = TurnRequest(message=item.message, deps=deps, consumes=item.input_id)
        return await self.new_turn(request).settled()

    async def run(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Run a new turn, or resume one without a request, in a task that ends when the runtime closes."""
        runner, task = self._directory.runner_of(self), asyncio.current_task()
        assert task is not None
        self._running += (task,)
        try:
            return await (runner.resume(turn) if turn.request is None else runner.run(turn))
        finally:
            self._is_over(task)

    def _is_over(self, task: asyncio.Task[Any]) -> None:
        self._running = tuple(one for one in self._running if one is not task)

    def turn_over(self, turn_id: str, summary: TurnSummary, *, follows: bool) -> None:
        """Clean up after a turn that has ended or parked. *follows*: it has queued inputs for more turns."""
        if type(summary.outcome) is Waiting:
            task = asyncio.get_running_loop().create_task(self._look_again(turn_id), context=detached())
            self._running += (task,)
            task.add_done_callback(self._is_over)
        else:
            if not follows:
                self._deps = None
            if self.events.kept is not None and not self.events.kept.is_read:
                self.events.drop()
            stuck = self._queue is not None and self._queue.stuck
            if stuck or type(summary.outcome) is not Finished:
                self.queue.drain()
        self._directory.used(self)

    async def _look_again(self, turn_id: str) -> None:
        """Resume a turn if one of its waits has ended while it was being parked."""
        with contextlib.suppress(errors.StoreError):  # the next round of recovery may succeed
            if await self._services.leases.can_continue(turn_id):
                self._directory.changed.set()

    def keep_deps(self, turn_id: str, deps: Any) -> None:
        """Keep the deps that a turn's caller passed, for its resumption and for the turns that it queues."""
        self._deps = None if deps is self.deps else (turn_id, deps)

    def deps_of(self, turn_id: str) -> Any:
        """Return the deps of a turn: its own or, after a restart, the session's; None if there are none."""
        return self._deps[1] if self._deps is not None and self._deps[0] == turn_id else self.deps

    async def context(
        self,
        head: SessionHead | None = None,
        journal: Sequence[JournalEntry] | None = None,
        prepared: PreparedAgent | None = None,
    ) -> SessionContext:
        """Return the context of agent *prepared* at *head*, or one for the unfinished turn of *journal*."""
        prepared = prepared or self.require_agent()
        if journal is None and (context := self.made_at(head, prepared)) is not None:
            return context
        making = self._making = self._making or asyncio.Lock()
        async with making:  # a second caller gets the result of the first
            if journal is None and (context := self.made_at(head, prepared)) is not None:
                return context
            head = head or self.stood or await self._head()
            self.setup = self.setup.under(head.charter)
            self._context = await materialize(self._services, prepared, self.setup, head, journal or ())
            return self._context

    async def fork_from(self, source: LiveSession, head: SessionHead) -> None:
        """Initialize this fork of *source*; fork its plugins in memory if it is idle in this process."""
        self.prepared, self.deps, self.setup = source.prepared, source.deps, source.setup.of_fork()
        self.inherited = source.inherited
        context = source.made_at(None)
        if source.busy or context is None or context.state_id != head.state or not context.is_stored():
            return
        plugins, step = context.plugins, BuildStep()
        forked = await plugins.host.aside(lambda: plugins.fork_for_session(self.session_id, step), step)
        await self._take_over(forked, head)

    async def begin_with(self, forked: PluginSession, head: SessionHead, *, whole: bool) -> None:
        """Initialize this new session with plugins that were forked for it.

        If the fork has the *whole* state at *head*, it is used directly. A session with a history also has
        the history's tools and variables, and is built from the store when it is needed.
        """
        self.setup = msgspec.structs.replace(self.setup, catalog=forked.tool_catalog_overlay)
        if whole and self._context is None:
            with contextlib.suppress(errors.StandfastError):  # raised again when the session is used
                await self._take_over(forked, head)

    async def _take_over(self, forked: PluginSession, head: SessionHead) -> None:
        prepared = self.require_agent()
        self.setup = msgspec.structs.replace(self.setup.under(head.charter), authority=forked.authority)
        self._context = await materialize(self._services, prepared, self.setup, head, forked=forked)
        self._directory.used(self)  # so that it can be evicted even if no turn of it runs

    @property
    def changes(self) -> asyncio.Lock:
        """The lock for changes of plugins and tools between turns."""
        if self._changes is None:
            self._changes = asyncio.Lock()
        return self._changes

    async def current(self) -> SessionContext:
        """Return the session's current plugins, tools and prompt, even if another process changed them."""
        if self.driver is not None and self.in_turn is not None:
            return self.in_turn  # without reading the store
        return await self.build_plugins(await self._head())

    async def build_plugins(self, head: SessionHead) -> SessionContext:
        """Return the session's context at *head*, or in the middle of its unfinished turn."""
        if self.driver is not None and self.in_turn is not None:
            return self.in_turn
        prepared = self.require_agent()
        if (context := self.made_at(head, prepared)) is not None:
            return context
        turn = await self._services.store.open_turn_journal(self.session_id)
        if turn is None or turn.record.agent not in ("", prepared.agent.name):
            return await self.context(head)
        return await self.context(head, turn.journal or None)

    def made_at(
        self, head: SessionHead | None, prepared: PreparedAgent | None = None
    ) -> SessionContext | None:
        """Return the cached context if it belongs to this agent and has the state at *head*."""
        context, prepared = self._context, prepared or self.prepared
        if context is None or prepared is None or context.plugins.host is not prepared.host:
            return None
        if head is None:
            return context
        if head.state != context.state_id or context.plugins.authority is not self.setup.authority:
            return None
        context.options.frame = head.frame
        return context

    def require_agent(self) -> PreparedAgent:
        """Return the session's agent; raise `NotConfigured` if it has none here."""
        if self.prepared is None:
            raise errors.NotConfigured(
                f"no agent is known for session {self.session_id!r}",
                hint="open it with `runtime.session(id, agent=...)`",
            )
        return self.prepared

    async def _head(self) -> SessionHead:
        head = await self._services.store.head(self.session_id)
        if head is None:
            raise errors.SessionNotFound(self.session_id)
        return head

    def forget(self) -> None:
        """Drop everything that can be read from the store or made again."""
        self.frame.drop()
        self.stood = None
        if not self.busy and not self.tasks():  # no turn waits for them
            self._lock = self._making = None
        if self.driver is None:  # a running turn may have unwritten plugin states
            self._context = None
        if self._queue is not None and self._queue.idle:
            self._queue = None
        if self.events.kept is not None and self.events.kept.idle:
            self.events.drop()
        if self._turns is not None and all(turn.done for turn in self._turns.values()):
            self._turns = None

    @property
    def holds_nothing(self) -> bool:
        """Whether this can be dropped and rebuilt: it has no turn, no listener and no values from callers."""
        given = self._deps is not None or self.deps is not None or self.setup is not AS_GIVEN
        at_rest = not self.busy and not self.tasks() and self._turns is None
        return (
            not given and at_rest and self.events.kept is None and (self._queue is None or self._queue.idle)
        )


def inheritable_deps(live: LiveSession) -> Any:
    """Return the deps passed by the running turn's caller or for the session, never a factory's."""
    here = RUNNING_TURN.get()
    if here is None or here.session_id != live.session_id:
        return live.deps
    return live.deps_of(here.turn_id)
