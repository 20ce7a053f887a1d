"""A session as this process knows it: who works on it, what the model sees, who watches.

Rule: everything here can be dropped at any time without loss, except while a turn runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from standfast.durable.driver import TurnDriver
from standfast.errors import (
    InputNotFound,
    LeaseLost,
    NotConfigured,
    RuntimeClosed,
    SessionBusy,
    SessionNotFound,
    StandfastError,
    TurnNotRunnable,
    TurnUnfinished,
)
from standfast.graph import messages_of
from standfast.machine.turn_machine import TurnMachine
from standfast.model.events import Event, TurnBlocked
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from standfast.model.outcome import Finished, FrameSwitched
from standfast.model.plugin_options import PluginOptions
from standfast.model.session import Blocked, Segment, SessionHead, TurnRecord, TurnState, TurnSummary
from standfast.plugins.running import BuildStep
from standfast.plugins.runtime_services import RuntimeServices
from standfast.plugins.session import PluginSession
from standfast.plugins.session_context import SessionContext
from standfast.ports.session_store import JournalEntry, QueuedInput
from standfast.runtime.dependencies import OwnedFactory
from standfast.runtime.live_feed import LiveFeed
from standfast.runtime.result import TurnResult
from standfast.runtime.sessions.materialize import AS_GIVEN, SessionSetup, materialize
from standfast.runtime.sessions.prepared_agent import PreparedAgent
from standfast.runtime.sessions.running_turn import RUNNING_TURN, detached
from standfast.runtime.turn import Turn, TurnRequest, new_turn_id

_NOTHING: dict[str, Any] = {}
_IN_ITS_TURN: Final = (LeaseLost, RuntimeClosed, SessionBusy, TurnUnfinished)
"""Errors that say that something else comes first."""
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class _Frame:
    """The messages of the current frame, up to `leaf`."""

    __slots__ = ("leaf", "messages")

    def __init__(self, leaf: str, messages: list[Message]) -> None:
        self.leaf = leaf
        self.messages = messages


class _Refusal(NamedTuple):
    """Why the turn of a queued input could not be run, and when it is to be tried again."""

    problem: str
    pause_s: float
    until: float


class RunsTurns(Protocol):
    """Runs the turns of one session with one agent."""

    async def run(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Run a new turn from its input to its end, or to where it waits."""

    async def resume(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Go on with a turn that waits or was left."""

    def require_runnable(self, record: TurnRecord) -> None:
        """Raise `TurnNotRunnable` if the turn's agent is unknown here, or has no source of deps it needs."""


class SessionOwner(Protocol):
    """The directory that a session is in."""

    def runner_of(self, live: LiveSession) -> RunsTurns:
        """What runs turns of the session; an error if the runtime is closed or its agent unknown here."""

    def used(self, live: LiveSession, parked: bool) -> None:
        """Note that a turn of the session has ended, or waits."""


class LiveSession:
    """One session in this process. Used on the runtime's loop."""

    __slots__ = (
        "__weakref__", "_blocked", "_changes", "_context", "_deps", "_directory", "_feed", "_frame",
        "_last_seq", "_lock", "_making", "_more", "_refusal", "_running", "_services", "_stood", "_stuck",
        "_turns", "deps", "draining", "driver", "held", "in_turn", "inherited", "prepared", "session_id",
        "setup",
    )  # fmt: skip

    def __init__(
        self,
        session_id: str,
        services: RuntimeServices,
        directory: SessionOwner,
        last_seq: int = 0,
    ) -> None:
        self.session_id = session_id
        self.prepared: PreparedAgent | None = None
        """The agent that works on the session here."""
        self.deps: Any = None
        self.inherited: OwnedFactory | None = None
        """Makes the deps of turns if the agent has no factory: that of the agent above a subagent."""
        self.driver: TurnDriver | None = None
        self.draining: asyncio.Task[None] | None = None
        self.setup: SessionSetup = AS_GIVEN
        self._context: SessionContext | None = None
        self._services = services
        self._directory = directory
        self._lock: asyncio.Lock | None = None
        self._making: asyncio.Lock | None = None
        self._changes: asyncio.Lock | None = None
        self._stood: SessionHead | None = None
        self.held = 0
        self.in_turn: SessionContext | None = None
        self._feed: LiveFeed | None = None
        self._frame: _Frame | None = None
        self._last_seq = last_seq
        self._more = False
        self._stuck = False
        self._refusal: _Refusal | None = None
        self._blocked: _Refusal | None = None
        self._deps: tuple[str, Any] | None = None
        self._turns: dict[str, Turn[Any]] | None = None
        self._running: set[asyncio.Task[Any]] = set()

    # Turns

    @property
    def lock(self) -> asyncio.Lock:
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    @property
    def busy(self) -> bool:
        """Whether a turn runs here, or is about to."""
        return self.driver is not None or (self._lock is not None and self._lock.locked())

    def tasks(self) -> list[asyncio.Future[Any]]:
        """What runs in the background for this session."""
        return [task for task in (*self._running, self.draining) if task is not None and not task.done()]

    def new_turn(self, request: TurnRequest) -> Turn[Any]:
        self._services.require_home()
        return Turn(new_turn_id(), self.session_id, request, self.run, self.cancel)

    def turn_of(self, turn_id: str) -> Turn[Any]:
        """The handle of a turn that is to go on; the same one while it does."""
        if self._turns is None:
            self._turns = {}
        turn = self._turns.get(turn_id)
        if turn is None or turn.done:
            turn = self._turns[turn_id] = Turn(turn_id, self.session_id, None, self.run, self.cancel)
        return turn

    async def cancel(self, turn_id: str) -> bool:
        """Ask for a turn's end; if it waits, or nobody runs it, end it here."""
        if not await self._services.store.cancel(turn_id):
            return False
        if self.driver is not None and self.driver.turn_id == turn_id:
            self.driver.request_cancel()
        elif self.prepared is not None:
            self.turn_of(turn_id).start()
        return True

    def drain(self) -> None:
        """Run the turns of the inputs that are queued, one after the other."""
        self._more = True
        if self.draining is None or self.draining.done():
            self.draining = asyncio.get_running_loop().create_task(self._drain(), context=detached())

    def drain_if_due(self) -> None:
        """The same, unless it goes on, or it is too early to try again what could not be run."""
        if self.draining is not None and not self.draining.done():
            return
        if self._refusal is None or self._services.clock.monotonic() >= self._refusal.until:
            self.drain()

    async def _drain(self) -> None:
        while self._more:
            self._more = self._stuck = False
            await self._run_queued()

    async def _run_queued(self) -> None:
        """Run what waits, a batch at a time: reading all of it for each turn would take ever longer."""
        inputs = self._services.store.inputs
        while queued := [item for item in await inputs(self.session_id) if item.kind == "queue"]:
            for item in queued:
                if not await self._run_input(item):
                    return

    async def _run_input(self, item: QueuedInput) -> bool:
        """Run the turn of an input; false if it has to wait."""
        made_by, deps = self._deps or ("", None)  # those of the turn that made the input, or the session's
        deps = deps if made_by and item.input_id.startswith(f"{made_by}.") else self.deps
        request = TurnRequest(message=item.message, deps=deps, consumes=item.input_id)
        try:
            await self.new_turn(request).settled()
        except InputNotFound:
            pass  # it was withdrawn, or another process took it
        except StandfastError as error:
            self._stuck = True  # it stays queued, mostly behind a turn that waits or was interrupted
            if not isinstance(error, _IN_ITS_TURN):
                await self._refuse(item, error)
            return False
        self._refusal = None
        return True

    async def _refuse(self, item: QueuedInput, error: StandfastError) -> None:
        """Say once why the turn of an input could not be run, and try it less and less often."""
        problem = f"the turn of input {item.input_id} of {self.session_id} could not be run: {error}"
        is_new = self._refusal is None or self._refusal.problem != problem
        self._refusal = self._refused(self._refusal, problem)
        if is_new and isinstance(error, TurnNotRunnable):
            await self._note_blocked(error, input_id=item.input_id)

    async def block(self, turn_id: str, error: TurnNotRunnable) -> None:
        """Say once why a turn cannot be resumed here, and let the keeper try it less and less often."""
        problem = f"turn {turn_id} of {self.session_id} is not resumed: {error}"
        is_new = self._blocked is None or self._blocked.problem != problem
        self._blocked = self._refused(self._blocked, problem)
        if is_new:
            await self._note_blocked(error, turn_id=turn_id)

    def _refused(self, before: _Refusal | None, problem: str) -> _Refusal:
        """Report a problem if it is a new one, and double the pause before the next attempt."""
        if before is None or before.problem != problem:
            self._services.report("", "queue", problem)
        pause_s = _FIRST_PAUSE_S if before is None else min(2 * before.pause_s, _LONGEST_PAUSE_S)
        return _Refusal(problem, pause_s, self._services.clock.monotonic() + pause_s)

    async def _note_blocked(self, error: StandfastError, *, turn_id: str = "", input_id: str = "") -> None:
        """Tell observers, and whoever looks at the session later, why its next turn cannot run."""
        why = error.error_object()
        self.feed.publish(TurnBlocked(error=why, turn_id=turn_id, input_id=input_id))
        note = Blocked(error=why, at_ms=self._services.clock.now_ms(), turn_id=turn_id, input_id=input_id)
        await self._services.store.note_blocked(self.session_id, note)

    async def unblock(self, head: SessionHead) -> None:
        """A turn runs here: what kept it from running is over."""
        self._blocked = None
        if head.blocked is not None:
            await self._services.store.note_blocked(self.session_id, None)

    def try_again(self) -> None:
        """Try at once what could not be run: the session was opened anew, maybe with what was missing."""
        self._blocked = self._refusal = None

    @property
    def is_blocked(self) -> bool:
        """Whether it is too early to try the turn again that could not be resumed."""
        return self._blocked is not None and self._services.clock.monotonic() < self._blocked.until

    async def run(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Run a turn, or resume one that has no request, in a task that closing the runtime ends."""
        runner, task = self._directory.runner_of(self), asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await (runner.resume(turn) if turn.request is None else runner.run(turn))
        finally:
            self._running.discard(task)

    async def require_runnable(self, turn_id: str) -> None:
        """Raise `TurnNotRunnable` if this process could not go on with a turn of the session."""
        record = await self._services.store.turn(turn_id)
        if record is not None and record.state is not TurnState.ENDED:
            self._directory.runner_of(self).require_runnable(record)

    def turn_over(self, parked: bool, summary: TurnSummary, *, goes_on: bool = False) -> None:
        """A turn has ended or waits; see what follows from it. *goes_on*: in turns that it made itself."""
        if not parked:
            if not goes_on:
                self._deps = None
            if self._stuck or not isinstance(summary.outcome, Finished):
                self.drain()
        self._directory.used(self, parked)

    def keep_deps(self, turn_id: str, deps: Any) -> None:
        """Keep what a turn's caller passed, while the turn waits here and for the turns that it makes."""
        self._deps = None if deps is self.deps else (turn_id, deps)

    def deps_of(self, turn_id: str) -> Any:
        """The deps of a turn: its own, or after a restart the session's; None if there are neither."""
        return self._deps[1] if self._deps is not None and self._deps[0] == turn_id else self.deps

    def inheritable_deps(self) -> Any:
        """What the caller of the turn under way passed, or the session's own; None if neither.

        What a factory made is not handed on: it is held for one turn alone.
        """
        here = RUNNING_TURN.get()
        if here is None or here.session_id != self.session_id:
            return self.deps
        return self.deps_of(here.turn_id)

    # Plugins, tools and prompt

    async def context(
        self,
        head: SessionHead | None = None,
        journal: Sequence[JournalEntry] | None = None,
        prepared: PreparedAgent | None = None,
    ) -> SessionContext:
        """The session's plugins, tools and prompt, as they stand at *head*; made anew for a *journal*.

        They are those of the agent *prepared*: the session's, or the one that its turn belongs to.
        """
        prepared = prepared or self.require_agent()
        if journal is None and (context := self._fitting(head, prepared)) is not None:
            return context
        if self._making is None:
            self._making = asyncio.Lock()
        async with self._making:  # whoever comes second gets what the first one made
            if journal is None and (context := self._fitting(head, prepared)) is not None:
                return context
            head = head or self._stood or await self._head()
            self.setup = self.setup.under(head.charter)
            self._context = await materialize(self._services, prepared, self.setup, head, journal or ())
            return self._context

    async def fork_from(self, source: LiveSession, head: SessionHead) -> None:
        """Begin as a fork of *source* whose history ends where that of *source* does.

        Its plugins are forked where they are, if *source* is at rest here; otherwise they are built of the
        store when they are wanted.
        """
        self.prepared, self.deps, self.setup = source.prepared, source.deps, source.setup.of_fork()
        self.inherited = source.inherited
        context = None if source.prepared is None else source._fitting(None, source.prepared)
        if source.busy or context is None:
            return
        if context.state_id != head.state or not context.is_stored():
            return
        plugins, step = context.plugins, BuildStep()
        forked = await plugins.host.aside(lambda: plugins.fork_for_session(self.session_id, step), step)
        await self._take_over(forked, head)

    async def begin_with(self, forked: PluginSession, head: SessionHead, *, whole: bool) -> None:
        """Begin with plugins that were forked for this session, which was made a moment ago.

        They are what it stands with at *head* if the fork is the *whole* of it; a session over a history has
        the tools and variables of that, and is built of the store when it is wanted.
        """
        self.setup = msgspec.structs.replace(self.setup, catalog=forked.tool_catalog_overlay)
        if whole and self._context is None:
            with contextlib.suppress(StandfastError):  # raised again where the session is wanted
                await self._take_over(forked, head)

    async def _take_over(self, forked: PluginSession, head: SessionHead) -> None:
        prepared = self.require_agent()
        self.setup = msgspec.structs.replace(self.setup.under(head.charter), authority=forked.authority)
        self._context = await materialize(self._services, prepared, self.setup, head, forked=forked)
        self._directory.used(self, False)  # or it would be held for as long as no turn of it has run

    def made_at(self, head: SessionHead) -> SessionContext | None:
        """The session's plugins, tools and prompt, if they are made and stand at *head*."""
        return None if self.prepared is None else self._fitting(head, self.prepared)

    @property
    def changes(self) -> asyncio.Lock:
        """Held by whoever changes plugins or tools between turns."""
        if self._changes is None:
            self._changes = asyncio.Lock()
        return self._changes

    async def current(self) -> SessionContext:
        """The same as they stand now, whoever has moved the session meanwhile."""
        if self.driver is not None and self.in_turn is not None:
            return self.in_turn  # without a look at the store
        return await self.build_plugins(await self._head())

    async def build_plugins(self, head: SessionHead) -> SessionContext:
        """Return the session as it stands at *head*, or in the middle of its unfinished turn."""
        if self.driver is not None and self.in_turn is not None:
            return self.in_turn
        prepared = self.require_agent()
        if (context := self._fitting(head, prepared)) is not None:
            return context
        turn = await self._services.store.open_turn(self.session_id)
        mine = turn is not None and turn.agent in ("", prepared.agent.name)
        journal = () if turn is None or not mine else await self._services.store.journal(turn.turn_id)
        return await self.context(head, journal or None)

    def stands(self, head: SessionHead) -> None:
        """Remember where the session stands, so that it need not be asked for when it is made anew."""
        self._stood = msgspec.structs.replace(head, host=_NOTHING, usage=())

    def _fitting(self, head: SessionHead | None, prepared: PreparedAgent) -> SessionContext | None:
        """What is made already, if it is of this agent and stands at *head*."""
        context = self._context
        if context is None or context.plugins.host is not prepared.host:
            return None
        if head is None:
            return context
        if head.state != context.state_id or context.plugins.authority is not self.setup.authority:
            return None
        context.options.frame = head.frame
        return context

    def require_agent(self) -> PreparedAgent:
        """The agent of the session, or an error that says how to give it one."""
        if self.prepared is None:
            raise NotConfigured(
                f"no agent is known for session {self.session_id!r}",
                hint="open it with `runtime.session(id, agent=...)`",
            )
        return self.prepared

    async def _head(self) -> SessionHead:
        head = await self._services.store.head(self.session_id)
        if head is None:
            raise SessionNotFound(self.session_id)
        return head

    def configure_plugins(self, options: PluginOptions) -> None:
        """Open the session with other options of its plugins."""
        authority = msgspec.structs.replace(self.setup.authority, plugin_options=options)
        if authority != self.setup.authority:
            self.setup = msgspec.structs.replace(self.setup, authority=authority)

    # What the model sees

    @property
    def frame_size(self) -> int:
        """How many messages are kept here."""
        return 0 if self._frame is None else len(self._frame.messages)

    async def history(self, head: SessionHead) -> list[Message]:
        """The messages of the current frame; not to be changed."""
        frame = self._frame
        if head.leaf is None:
            return []
        if frame is None or frame.leaf != head.leaf:
            known = None if frame is None else frame.leaf
            frame = self._frame = self._grown(
                head.leaf, await self._services.store.frame(head.leaf, known=known)
            )
        return frame.messages

    def _grown(self, leaf: str, segments: tuple[Segment, ...]) -> _Frame:
        frame = self._frame
        follows = frame is not None and segments and segments[0].parent == frame.leaf
        if frame is not None and follows and not any(segment.opens_frame for segment in segments):
            return _Frame(leaf, frame.messages + messages_of(segments))
        return _Frame(leaf, messages_of(segments))

    def remember(self, base: SessionHead, head: SessionHead, machine: TurnMachine) -> None:
        """Take a committed turn into the frame, if nothing else came between."""
        alone = head.depth == base.depth + len(machine.entries)
        opened = machine.compaction is not None or isinstance(machine.outcome, FrameSwitched)
        if not alone or head.leaf is None or opened:
            self._frame = None
        elif self._frame is None:
            self._frame = _Frame(head.leaf, list(machine.messages)) if base.leaf is None else None
        elif self._frame.leaf == base.leaf:
            self._frame.messages.extend(machine.messages)
            self._frame.leaf = head.leaf

    def forget(self) -> None:
        """Let go of what can be read again."""
        self._frame = None
        if self.driver is None:  # what the plugins of a running turn remember is not all written
            self._context = None
        if self._feed is not None and self._feed.idle:
            self._last_seq = self._feed.last_seq  # the next one counts on: a place never means two things
            self._feed = None
        if self._turns is not None and all(turn.done for turn in self._turns.values()):
            self._turns = None

    @property
    def last_seq(self) -> int:
        """The number of the last event that was shown."""
        return self._last_seq if self._feed is None else self._feed.last_seq

    @property
    def holds_nothing(self) -> bool:
        """Whether nothing is lost if it is made anew: no turn, no listener, nothing that was passed in."""
        told = self._deps is None and self.deps is None and self.setup is AS_GIVEN
        refused = self._refusal is not None or self._blocked is not None
        at_rest = not self.busy and not self.tasks() and self._turns is None and not refused
        return told and at_rest and self._feed is None

    async def messages_of_turn(self, turn_id: str) -> tuple[Message, ...]:
        """What was said in a turn that has ended."""
        head = await self._services.store.head(self.session_id)
        if head is None or head.leaf is None:
            return ()
        for segment in await self._services.store.path(head.leaf):
            if segment.segment_id == turn_id:
                payloads = [entry.payload for entry in segment.entries]
                return tuple(
                    one for one in payloads if isinstance(one, (UserMessage, AssistantMessage, ToolMessage))
                )
        return ()

    # Observation

    @property
    def feed(self) -> LiveFeed:
        if self._feed is None:
            self._feed = LiveFeed(self._services.clock.monotonic, self._last_seq)
        return self._feed

    def show(self, turn: Turn[Any], event: Event) -> None:
        self.feed.publish(event)
        turn.publish(event)
