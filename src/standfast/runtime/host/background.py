"""What a runtime does in the background: it recovers turns, tasks and monitors, and starts queued inputs.

Theory of operation
-------------------
Every second, and after each change, `RecoveryLoop` looks for turns that can continue: those of dead processes
and those with a wait that has ended. It resumes the turns whose agent is known here, because their session
was opened here or the agent was passed to `Runtime(agents=[...])`. So recovery at start-up, timers, expired
approvals and decisions made in other processes are all handled in the same way.

The record of a live task names the process that owns it, and is rewritten every 20 s, so that the death of
the owner's machine is noticed as well. Once a second, live records are checked:

* Cancelled tasks of this process are ended. If another process has moved a task to another session, its
  handle here is updated.
* A plain task of a dead process has failed as INTERRUPTED.
* A subagent of a dead process is taken over by a process that knows its agent; its task ends with its turn.
* Monitors are recovered by `Monitors`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from standfast.durable.journal import HEARTBEAT_MS, owner_is_gone
from standfast.durable.process_identity import boot_id
from standfast.errors import StandfastError, StoreError, TaskNotFound
from standfast.model.outcome import Finished, Stopped, StopReason
from standfast.model.session import SANDBOX_AGENT, TurnRecord, TurnState
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.ports.session_store import CLOCK_TOLERANCE_MS, WORK
from standfast.runtime.host import task_changes as changes
from standfast.runtime.host.closing import WaitGraph
from standfast.runtime.host.tasks import Tasks, child_of
from standfast.runtime.sessions.directory import AnyAgent, SessionDirectory
from standfast.runtime.turn import Turn

if TYPE_CHECKING:
    from standfast.runtime.monitors.monitors import Monitors

log: Final = logging.getLogger("standfast")

_GONE = "the process that ran the task is gone"


async def recover_tasks(directory: SessionDirectory, tasks: Tasks, live: Sequence[TaskRecord]) -> None:
    """Recover every live task of this process or of a dead one."""
    for record in live:
        if record.kind is TaskKind.MONITOR:
            continue
        try:
            await _look_after(directory, tasks, record)
        except StoreError:
            raise  # the next round may succeed
        except StandfastError as error:
            directory.services.report(
                "", "keeper", f"task {record.id!r} of {record.session_id}: {error.message}"
            )


async def _look_after(directory: SessionDirectory, tasks: Tasks, record: TaskRecord) -> None:
    ours, now_ms = record.owner == tasks.owner, directory.now_ms()
    if not ours and not owner_is_gone(record.owner, record.updated_at, now_ms):
        return
    runs_here = tasks.has(record.session_id, record.id)
    if ours and (runs_here or await tasks.follow(record)):
        if now_ms - record.updated_at > HEARTBEAT_MS:
            await tasks.touch(record)
        if record.state is TaskState.CANCEL_REQUESTED:
            tasks.cancel_soon(record.session_id, record.id)
    elif record.kind is TaskKind.SUBAGENT:
        await _look_after_subagent(directory, tasks, record)
    else:
        await _change(tasks, record, changes.interrupted(_GONE, directory.now_ms()))


async def _look_after_subagent(directory: SessionDirectory, tasks: Tasks, record: TaskRecord) -> None:
    """Resume a subagent whose process has died, or record how it has ended."""
    child = child_of(record)
    head = None if child is None else await directory.store.head(child)
    if head is None:
        await _change(tasks, record, changes.interrupted(_GONE, directory.now_ms()))
    elif record.state is TaskState.CANCEL_REQUESTED:
        tasks.cancel_soon(record.session_id, record.id)
    elif (
        record.state is TaskState.IDLE
        or await directory.store.open_turn(head.session_id) is not None
        or any(item.kind == "queue" for item in await directory.store.inputs(head.session_id))
    ):  # it has a turn or an input to run, or waits for one
        if record.owner != tasks.owner and await directory.at_work(head) is not None:
            await _change(tasks, record, changes.owned_by(tasks.owner, directory.now_ms()))
    else:
        turns = await directory.store.turns(head.session_id)
        await _change(tasks, record, _ended_as(turns[-1] if turns else None, directory.now_ms()))


def _ended_as(last: TurnRecord | None, now_ms: int) -> changes.Change:
    """Return the change that ends a subagent's task with the outcome of its last turn."""
    if last is None or last.state is not TurnState.ENDED or last.summary is None:
        return changes.interrupted(_GONE, now_ms)
    outcome = last.summary.outcome
    if isinstance(outcome, Finished):
        return changes.finished({"turn_id": last.turn_id, "text": outcome.text}, now_ms)
    if isinstance(outcome, Stopped) and outcome.reason is StopReason.CANCELLED:
        return changes.became(TaskState.CANCELLED, now_ms)
    if isinstance(outcome, Stopped):
        return changes.became(TaskState.FAILED, now_ms, error=outcome.error)
    return changes.interrupted(_GONE, now_ms)


async def _change(tasks: Tasks, record: TaskRecord, change: changes.Change) -> None:
    """Change a record, unless another process has taken over the task in the meantime."""

    def unless_taken(task: TaskRecord) -> TaskRecord:
        same = (task.owner, task.created_at) == (record.owner, record.created_at)
        return change(task) if same else task

    if not tasks.has(record.session_id, record.id):
        with contextlib.suppress(TaskNotFound):
            await tasks.change(record.session_id, record.id, unless_taken)


_LOOK_S: Final = 1.0
"""The shortest time between two rounds of recovery of tasks and monitors."""
_OFFER_MS: Final = 1_000
"""How long work that the store has offered to this process is not offered to others."""
_DROP_EVERY_MS: Final = 3_600_000
_MAX_LOOKED_AT: Final = 100
_ENGINE_S: Final = 60.0
"""How long to skip turns that need an engine build which is not available here."""


class BackgroundServices:
    """The tasks, monitors and async handles of one open `Runtime`, which creates and closes this object."""

    def __init__(self, directory: SessionDirectory, *, takes_over: bool = True) -> None:
        self._takes_over = takes_over
        """Whether this process takes over tasks and monitors of dead processes."""
        self.waits = WaitGraph()
        self.tasks = Tasks(directory, self.waits)
        self.watched = self.tasks.handles.watched
        self.session_moved = self.tasks.handles.look
        self.spawn = self.tasks.spawn
        self._directory = directory
        self._looked_s: float | None = None

    @property
    def monitors(self) -> Monitors:
        return self.tasks.monitors.opened()

    async def session_opened(self, session_id: str) -> None:
        """Start the session's monitors that are armed for its start, if it has any."""
        tasks = await self._directory.store.tasks(session_id=session_id)
        if any(task.kind is TaskKind.MONITOR for task in tasks):
            await self.monitors.session_opened(session_id)

    async def recover(self, *, now: bool = False) -> None:
        """Recover the tasks and monitors of dead processes, and check handles, at most every `_LOOK_S`."""
        services = self._directory.services
        at = services.clock.monotonic()
        if not now and self._looked_s is not None and 0 <= at - self._looked_s < _LOOK_S:
            return
        self._looked_s = at
        live = await self._directory.store.tasks(live=True)
        if not self._takes_over and not now:
            live = [task for task in live if task.owner == self.tasks.owner]
        await recover_tasks(self._directory, self.tasks, live)
        for session_id in list(self.watched):
            await self.tasks.handles.look(session_id)
        for session_id in {task.session_id for task in live if task.kind is TaskKind.MONITOR}:
            await self._directory.put_to_work(session_id)
        try:
            await self.tasks.monitors.recover(live)
        except StoreError:
            raise
        except StandfastError as error:
            services.report("", "keeper", f"monitors: {error.message}")

    async def forget_session(self, session_id: str) -> None:
        """End the background work of a deleted session."""
        await self.tasks.abandon(session_id)
        await self.tasks.monitors.forget(session_id)

    async def close(self) -> None:
        with contextlib.suppress(StoreError):
            await self.tasks.monitors.close()
        await self.tasks.close()


class RecoveryLoop:
    """Recovers the turns of a directory's sessions, and their background work."""

    def __init__(self, directory: SessionDirectory, background: BackgroundServices) -> None:
        self._directory = directory
        self._background = background
        self._clock_offset_ms: int | None = None
        self._engines_elsewhere: dict[str, float] = {}
        self._without_model: set[str] = set()
        self._dropped_ms = -_DROP_EVERY_MS
        self.looked_s: float | None = None
        """When the last round succeeded, on the monotonic clock."""

    async def run(self) -> None:
        """Make a round after each change, and every `poll_s`, until the runtime closes."""
        loop = asyncio.get_running_loop()

        def hear(text: str) -> None:
            if text in ("", WORK):
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._directory.changed.set)

        stop_listening = self._directory.store.listen(hear)
        try:
            await self._make_rounds()
        finally:
            stop_listening()

    async def _make_rounds(self) -> None:
        directory = self._directory
        while directory.is_open:  # a simultaneous change can swallow the cancellation
            with contextlib.suppress(StoreError):  # the next round may succeed
                await self.check_clock()
                await self.recover()
                await self._start_queued()
                await self._background.recover()
                await self._drop_journals()
                self.looked_s = directory.services.clock.monotonic()
            # Not `wait_for`, which loses a cancellation that arrives together with the change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(directory.poll_s):
                    await directory.changed.wait()
            directory.changed.clear()

    async def _drop_journals(self) -> None:
        """Delete the journals past their retention time, now and every hour."""
        services = self._directory.services
        now, keep_ms = services.clock.boot_ms(), services.settings.keep_journals_ms
        if self._directory.agents and keep_ms and now - self._dropped_ms >= _DROP_EVERY_MS:
            await services.store.drop_journals(services.clock.now_ms() - keep_ms)
            self._dropped_ms = now

    async def recover(self) -> list[Turn[Any]]:
        """Resume every unfinished turn that can continue and whose agent is known here."""
        if not (self._directory.agents or self._directory.sessions):
            return []
        leases, slots = self._directory.services.leases, self._directory.slots
        if slots.is_closed:
            return []
        if slots.is_limited and slots.has_room:
            return await self._claim_offers()
        left = await self._directory.store.unfinished(self._directory.now_ms(), lease_now_ms=leases.now_ms())
        if slots.is_limited:  # only child sessions can start
            import random  # slow to import, and few runtimes limit their turns

            left = random.sample(left, min(len(left), _MAX_LOOKED_AT))
        found = [await self._take_up(record) for record in left if record.agent != SANDBOX_AGENT]
        return [turn for turn in found if turn is not None]

    async def _claim_offers(self) -> list[Turn[Any]]:
        """Resume the turns and start the inputs that the store offers to this process, for its slots."""
        directory, store = self._directory, self._directory.store
        admitted = {name: it for name, it in directory.agents.items() if directory.slots.admits(it)}
        agents = tuple(name for name, agent in admitted.items() if self._can_run(name, agent))
        now = directory.services.clock.monotonic()
        without = tuple(build for build, until in self._engines_elsewhere.items() if now < until)
        found = []
        for work in await store.offer(directory.now_ms(), _OFFER_MS, agents, directory.slots.free, without):
            if work.turn_id is None:
                live = await directory.put_to_work(work.session_id)
                if live is not None:
                    live.queue.drain_if_due()
            elif (record := await store.turn(work.turn_id)) is not None:
                needed = "" if record.summary is None else record.summary.engine
                if needed and needed != directory.services.engines.build(needed.partition(" ")[0]):
                    self._engines_elsewhere[needed] = now + _ENGINE_S
                found.append(await self._take_up(record))
        return [turn for turn in found if turn is not None]

    def _can_run(self, name: str, agent: AnyAgent) -> bool:
        """Return whether the agent's model can be opened here; if not, log the reason once."""
        try:
            self._directory.prepared(agent)
        except StandfastError as error:
            if name not in self._without_model:
                log.warning("no turns of agent %s are run here: %s", name, error)
            self._without_model.add(name)
            return False
        return True

    async def check_clock(self) -> None:
        """Check whether the system clock was set; if so, reschedule everything that depends on it."""
        services = self._directory.services
        offset_ms = services.clock.now_ms() - services.clock.boot_ms()
        known = self._clock_offset_ms
        if known is not None and abs(offset_ms - known) <= CLOCK_TOLERANCE_MS:
            return
        with contextlib.suppress(StoreError):  # the store may be read-only
            seen = await services.store.see_clock(boot_id(), offset_ms)
            services.leases.offset_ms = seen.lease_offset_ms
            if triggers := await services.store.triggers():
                from standfast.runtime.triggers import reschedule  # few stores have triggers

                await reschedule(services.store, triggers, services.clock.now_ms())
            self._clock_offset_ms = offset_ms

    async def _start_queued(self) -> None:
        """Fire the triggers that are due, and start queued inputs of sessions whose agent is known here."""
        if not (self._directory.agents or self._directory.sessions):
            return
        store = self._directory.store
        if triggers := await store.triggers():
            from standfast.runtime.triggers import fire_due

            await fire_due(store, triggers, self._directory.now_ms())
        slots = self._directory.slots
        if slots.is_closed or slots.is_limited:
            return
        for session_id in await store.with_queued():
            live = await self._directory.put_to_work(session_id)
            if live is not None:
                live.queue.drain_if_due()

    async def _take_up(self, record: TurnRecord) -> Turn[Any] | None:
        """Resume a turn with its session's agent, or the one that it belongs to, if that is known here."""
        live = await self._directory.put_to_work(record.session_id)
        agent = self._directory.agents.get(record.agent)
        if live is None and agent is not None:
            with contextlib.suppress(StandfastError):  # its model cannot be opened here
                live = self._directory.assign(record.session_id, agent)
        if live is None or live.busy or (live.queue.is_blocked and not record.cancel_requested):
            return None
        if (free := live.take_slot()) is None:
            return None
        turn = live.turn_of(record.turn_id)
        turn.start().add_done_callback(free)
        if not self._directory.slots.is_limited:
            live.queue.drain()  # run the inputs queued behind it
        return turn
