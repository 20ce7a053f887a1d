"""A session in this process: agent, plugins, messages, events. Without a running turn it can be dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
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
from standfast.runtime.dependencies import OwnedFactory
from standfast.runtime.result import TurnResult
from standfast.runtime.sessions.materialize import AS_GIVEN, PreparedAgent, SessionSetup, materialize
from standfast.runtime.sessions.relay import EventRelay
from standfast.runtime.sessions.turn_slots import Free, TurnSlots
from standfast.runtime.turn import RUNNING_TURN, LiveFeed, Turn, TurnRequest, detached, new_turn_id

_COMES_LATER: Final = (errors.LeaseLost, errors.RuntimeClosed, errors.SessionBusy, errors.TurnUnfinished)
"""Errors that mean that another turn comes first."""
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


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
        """Whether an input waits behind another turn."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to remember."""
        done = self.draining is None or self.draining.done()
        return done and not self.stuck and self._refusal is None and self._blocked is None

    def drain(self) -> None:
        """Start running what is queued, if there is a slot for it."""
        self._more = True
        if (self.draining is None or self.draining.done()) and (free := self._take_slot()) is not None:
            self.draining = asyncio.get_running_loop().create_task(self._drain(), context=detached())
            self.draining.add_done_callback(free)

    def input_arrived(self) -> None:
        """Start running what is queued, unless it waits for the retry of an input that was refused."""
        self._more = True
        self.drain_if_due()

    def drain_if_due(self) -> None:
        """Start running what is queued, unless that is under way or the pause before a retry is not over."""
        if self.draining is not None and not self.draining.done():
            return
        if self._refusal is None or self._services.clock.monotonic() >= self._refusal.until:
            self.drain()

    async def _drain(self) -> None:
        """Run queued inputs in batches: reading all of them for each turn would be quadratic."""
        inputs = self._services.store.inputs
        before = self._refusal
        while self._more and self._refusal is before:  # one that was refused now is retried after its pause
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
            pass  # it was withdrawn, or another process took it
        except errors.StandfastError as error:
            self.stuck = True  # it stays queued, mostly behind a turn that waits or was interrupted
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
        """Show observers why the next turn cannot run, and store it with the session."""
        why = error.error_object()
        self._publish(TurnBlocked(error=why, turn_id=turn_id, input_id=input_id))
        note = Blocked(error=why, at_ms=self._services.clock.now_ms(), turn_id=turn_id, input_id=input_id)
        await self._services.store.note_blocked(self._session_id, note)

    async def unblock(self, head: SessionHead) -> None:
        """Forget why a turn could not run: one runs now."""
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
        """Add the messages of a committed turn; drop the cache if anything else was written in between."""
        alone = head.depth == base.depth + len(machine.entries)
        opened = machine.compaction is not None or isinstance(machine.outcome, FrameSwitched)
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
        """Run a new turn from its input to its end, or to where it waits."""

    async def resume(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Continue a turn that waits or was interrupted."""

    def require_runnable(self, record: TurnRecord) -> None:
        """Raise `TurnNotRunnable` if the turn's agent is unknown here, or has no source of deps it needs."""


class SessionOwner(Protocol):
    """The directory that a session is in."""

    slots: TurnSlots
    relay: EventRelay
    changed: asyncio.Event

    def runner_of(self, live: LiveSession) -> RunsTurns:
        """Return what runs the session's turns; raise if the runtime is closed or the agent unknown here."""

    def used(self, live: LiveSession) -> None:
        """Note that a turn of the session has ended, or waits."""


class LiveSession:
    """One session in this process. Used on the runtime's loop."""

    __slots__ = (
        "__weakref__", "_changes", "_context", "_deps", "_directory", "_feed", "_is_read", "_last_seq",
        "_lock", "_making", "_queue", "_running", "_services", "_turns", "deps", "driver", "frame", "held",
        "in_turn", "inherited", "is_below", "left", "prepared", "session_id", "setup", "stood",
    )  # fmt: skip

    def __init__(
        self, session_id: str, services: RuntimeServices, directory: SessionOwner, last_seq: int = 0
    ) -> None:
        self.session_id = session_id
        self.prepared: PreparedAgent | None = None
        """The agent that works on the session here."""
        self.deps: Any = None
        self.inherited: OwnedFactory | None = None
        """Makes the deps of turns if the agent has no factory: that of the agent above a subagent."""
        self.is_below = False
        """Whether a turn of another session may wait for this one's."""
        self.driver: TurnDriver | None = None
        self.left: str | None = None
        """The turn that was unfinished when the session was opened here. Recovery may have ended it since."""
        self.setup: SessionSetup = AS_GIVEN
        self.frame = FrameCache(services.store)
        self.held = 0
        """How many messages the directory counts for this session."""
        self.in_turn: SessionContext | None = None
        self.stood: SessionHead | None = None
        """The head after the last turn that ended here, so that it need not be read again."""
        self._context: SessionContext | None = None
        self._services = services
        self._directory = directory
        self._lock: asyncio.Lock | None = None
        self._making: asyncio.Lock | None = None
        self._changes: asyncio.Lock | None = None
        self._queue: InputQueue | None = None
        self._feed: LiveFeed | None = None
        self._last_seq = last_seq
        self._is_read = False
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
        """Whether a turn runs here, or is about to."""
        return self.driver is not None or (self._lock is not None and self._lock.locked())

    @property
    def queue(self) -> InputQueue:
        """The session's queued inputs."""
        if self._queue is None:
            self._queue = InputQueue(
                self.session_id,
                self._services,
                self.run_input,
                self.publish,
                self.take_slot,
                self._directory.slots,
            )
        return self._queue

    def retry_now(self) -> None:
        """Retry without a pause: the session was opened again, perhaps with what was missing."""
        if self._queue is not None:
            self._queue.retry_now()

    @property
    def draining(self) -> asyncio.Task[None] | None:
        """The task that runs queued inputs."""
        return None if self._queue is None else self._queue.draining

    def tasks(self) -> list[asyncio.Future[Any]]:
        """Return what runs in the background for this session."""
        return [task for task in (*self._running, self.draining) if task is not None and not task.done()]

    def new_turn(self, request: TurnRequest) -> Turn[Any]:
        self._services.require_home()
        return Turn(new_turn_id(), self.session_id, request, self.run, self.cancel)

    def turn_of(self, turn_id: str) -> Turn[Any]:
        """Return the handle of a turn to continue; the same one while it runs."""
        if self._turns is None:
            self._turns = {}
        turn = self._turns.get(turn_id)
        if turn is None or turn.done:
            turn = self._turns[turn_id] = Turn(turn_id, self.session_id, None, self.run, self.cancel)
        return turn

    async def cancel(self, turn_id: str) -> bool:
        """Request a turn's cancellation; if no process runs it, end it here."""
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
        """Run the turn of a queued input, with the deps of the turn that made it, or else the session's."""
        made_by, deps = self._deps or ("", None)
        deps = deps if made_by and item.input_id.startswith(f"{made_by}.") else self.deps
        request = TurnRequest(message=item.message, deps=deps, consumes=item.input_id)
        return await self.new_turn(request).settled()

    async def run(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Run a turn, or resume one that has no request, in a task that closing the runtime ends."""
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
        """Clean up after a turn that has ended or waits. *follows*: it has queued turns of its own."""
        if isinstance(summary.outcome, Waiting):
            task = asyncio.get_running_loop().create_task(self._look_again(turn_id), context=detached())
            self._running += (task,)
            task.add_done_callback(self._is_over)
        else:
            if not follows:
                self._deps = None
            if self._feed is not None and not self._feed.is_read:
                self._drop_feed(self._feed)
            stuck = self._queue is not None and self._queue.stuck
            if stuck or not isinstance(summary.outcome, Finished):
                self.queue.drain()
        self._directory.used(self)

    async def _look_again(self, turn_id: str) -> None:
        """Have a turn resumed if what it waits for has come while it was being parked."""
        with contextlib.suppress(errors.StoreError):  # the next round of recovery may succeed
            if await self._services.leases.can_continue(turn_id):
                self._directory.changed.set()

    def keep_deps(self, turn_id: str, deps: Any) -> None:
        """Keep the deps that a turn's caller passed: while it waits, and for the turns that it queues."""
        self._deps = None if deps is self.deps else (turn_id, deps)

    def deps_of(self, turn_id: str) -> Any:
        """Return the deps of a turn: its own, or after a restart the session's; None if there are neither."""
        return self._deps[1] if self._deps is not None and self._deps[0] == turn_id else self.deps

    def inheritable_deps(self) -> Any:
        """Return the deps of the running turn's caller or of the session, never those a factory made."""
        here = RUNNING_TURN.get()
        if here is None or here.session_id != self.session_id:
            return self.deps
        return self.deps_of(here.turn_id)

    async def context(
        self,
        head: SessionHead | None = None,
        journal: Sequence[JournalEntry] | None = None,
        prepared: PreparedAgent | None = None,
    ) -> SessionContext:
        """Return the plugins, tools and prompt of agent *prepared* at *head*, or anew for a *journal*."""
        prepared = prepared or self.require_agent()
        if journal is None and (context := self.made_at(head, prepared)) is not None:
            return context
        making = self._making = self._making or asyncio.Lock()
        async with making:  # a second caller gets what the first one made
            if journal is None and (context := self.made_at(head, prepared)) is not None:
                return context
            head = head or self.stood or await self._head()
            self.setup = self.setup.under(head.charter)
            self._context = await materialize(self._services, prepared, self.setup, head, journal or ())
            return self._context

    async def fork_from(self, source: LiveSession, head: SessionHead) -> None:
        """Begin as a fork of *source*; its plugins are forked in memory if *source* is at rest here."""
        self.prepared, self.deps, self.setup = source.prepared, source.deps, source.setup.of_fork()
        self.inherited = source.inherited
        context = source.made_at(None)
        if source.busy or context is None or context.state_id != head.state or not context.is_stored():
            return
        plugins, step = context.plugins, BuildStep()
        forked = await plugins.host.aside(lambda: plugins.fork_for_session(self.session_id, step), step)
        await self._take_over(forked, head)

    async def begin_with(self, forked: PluginSession, head: SessionHead, *, whole: bool) -> None:
        """Begin with plugins that were forked for this new session.

        The fork is used as it is if it is the *whole* state at *head*. A session over a history also has the
        tools and variables of that, and is built from the store when it is needed.
        """
        self.setup = msgspec.structs.replace(self.setup, catalog=forked.tool_catalog_overlay)
        if whole and self._context is None:
            with contextlib.suppress(errors.StandfastError):  # raised again where the session is needed
                await self._take_over(forked, head)

    async def _take_over(self, forked: PluginSession, head: SessionHead) -> None:
        prepared = self.require_agent()
        self.setup = msgspec.structs.replace(self.setup.under(head.charter), authority=forked.authority)
        self._context = await materialize(self._services, prepared, self.setup, head, forked=forked)
        self._directory.used(self)  # or it would be held for as long as no turn of it has run

    @property
    def changes(self) -> asyncio.Lock:
        """Held while plugins or tools are changed between turns."""
        if self._changes is None:
            self._changes = asyncio.Lock()
        return self._changes

    async def current(self) -> SessionContext:
        """Return the session's plugins, tools and prompt as they are now, in any process."""
        if self.driver is not None and self.in_turn is not None:
            return self.in_turn  # without reading the store
        return await self.build_plugins(await self._head())

    async def build_plugins(self, head: SessionHead) -> SessionContext:
        """Return the session as it is at *head*, or in the middle of its unfinished turn."""
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
        """Return what is made already, if it is of this agent and as it is at *head*."""
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
        """Drop what can be read or made again."""
        self.frame.drop()
        self.stood = None
        if not self.busy and not self.tasks():  # no turn waits for them
            self._lock = self._making = None
        if self.driver is None:  # the states of a running turn's plugins are not all written
            self._context = None
        if self._queue is not None and self._queue.idle:
            self._queue = None
        if self._feed is not None and self._feed.idle:
            self._drop_feed(self._feed)
        if self._turns is not None and all(turn.done for turn in self._turns.values()):
            self._turns = None

    def _drop_feed(self, feed: LiveFeed) -> None:
        self._last_seq, self._is_read = feed.last_seq, feed.is_read  # numbers are never used twice
        self._feed = None

    @property
    def last_seq(self) -> int:
        """The number of the last event that was published."""
        return self._last_seq if self._feed is None else self._feed.last_seq

    @property
    def holds_nothing(self) -> bool:
        """Whether nothing is lost if this is made anew: no turn, no listener, nothing that was passed in."""
        given = self._deps is not None or self.deps is not None or self.setup is not AS_GIVEN
        at_rest = not self.busy and not self.tasks() and self._turns is None
        return not given and at_rest and self._feed is None and (self._queue is None or self._queue.idle)

    @property
    def kept_feed(self) -> LiveFeed | None:
        """The session's feed, if there is one."""
        return self._feed

    @property
    def feed(self) -> LiveFeed:
        """The session's feed, for a reader."""
        feed = self._feed or self._make_feed()
        feed.is_read = True
        return feed

    def _make_feed(self) -> LiveFeed:
        feed = LiveFeed(self._services.clock.monotonic, self._last_seq, is_read=self._is_read)
        self._feed = feed
        if (relay := self._directory.relay).wanted:
            relay.feed_made(self.session_id, feed)
        return feed

    def show(self, turn: Turn[Any], event: Event) -> None:
        """Publish an event to the session's observers and to the readers of the turn."""
        (self._feed or self._make_feed()).publish(event)
        for watch in self._services.watchers:
            watch(self.session_id, event)
        for subscription in turn.subscriptions:
            subscription.receive(event)

    def publish(self, event: Event) -> None:
        """Publish an event to the observers of this session and to those of all sessions."""
        (self._feed or self._make_feed()).publish(event)
        for watch in self._services.watchers:
            watch(self.session_id, event)
