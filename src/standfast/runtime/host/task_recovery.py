"""Tasks whose process is gone, or that another process wants to end.

Theory of operation
-------------------
A live record names the process that looks after it. The keeper looks at all live records once in a while:

* Ours, and somebody wants it to end: it is ended here. If another process has handed it over, what runs here
  goes along.
* Of a process that is gone, and a plain task: nobody can go on with it. It has failed as INTERRUPTED.
* Of a process that is gone, and a subagent's: its session has a journal, and whoever knows the agent goes on
  with its turn. The task is taken over by such a process, and ends with that turn.
* A monitor's: `Monitors` knows what is left of its processes.

Rule: nothing is left running that nobody runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from standfast.durable.journal import owner_is_dead
from standfast.errors import StandfastError, StoreError, TaskNotFound
from standfast.model.outcome import Finished, Stopped, StopReason
from standfast.model.session import TurnRecord, TurnState
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.runtime.host import task_changes as changes
from standfast.runtime.host.tasks import Tasks, child_of
from standfast.runtime.sessions.directory import SessionDirectory

_GONE = "the process that ran the task is gone"


async def recover_tasks(directory: SessionDirectory, tasks: Tasks, live: Sequence[TaskRecord]) -> None:
    """Look after every live task that is ours, or nobody's."""
    for record in live:
        if record.kind is TaskKind.MONITOR:
            continue
        try:
            await _look_after(directory, tasks, record)
        except StoreError:
            raise  # the next look may succeed
        except StandfastError as error:
            directory.services.report(
                "", "keeper", f"task {record.id!r} of {record.session_id}: {error.message}"
            )


async def _look_after(directory: SessionDirectory, tasks: Tasks, record: TaskRecord) -> None:
    ours = record.owner == tasks.owner
    if not ours and not owner_is_dead(record.owner):
        return
    runs_here = tasks.has(record.session_id, record.id)
    if ours and (runs_here or await tasks.follow(record)):
        if record.state is TaskState.CANCEL_REQUESTED:
            tasks.cancel_soon(record.session_id, record.id)
        return
    if record.kind is TaskKind.SUBAGENT:
        await _look_after_subagent(directory, tasks, record)
    else:
        await _change(tasks, record, changes.interrupted(_GONE, directory.now_ms()))


async def _look_after_subagent(directory: SessionDirectory, tasks: Tasks, record: TaskRecord) -> None:
    """Go on with a subagent whose process is gone, or tell how it has ended."""
    child = child_of(record)
    head = None if child is None else await directory.store.head(child)
    if head is None:
        await _change(tasks, record, changes.interrupted(_GONE, directory.now_ms()))
    elif record.state is TaskState.CANCEL_REQUESTED:
        tasks.cancel_soon(record.session_id, record.id)
    elif await _goes_on(directory, head.session_id, record):
        if record.owner != tasks.owner and await directory.at_work(head) is not None:
            await _change(tasks, record, changes.owned_by(tasks.owner, directory.now_ms()))
    else:
        turns = await directory.store.turns(head.session_id)
        await _change(tasks, record, _ended_as(turns[-1] if turns else None, directory.now_ms()))


async def _goes_on(directory: SessionDirectory, child: str, record: TaskRecord) -> bool:
    """Whether there is something for the subagent to do, or it waits for that."""
    if record.state is TaskState.IDLE or await directory.store.open_turn(child) is not None:
        return True
    return any(item.kind == "queue" for item in await directory.store.inputs(child))


def _ended_as(last: TurnRecord | None, now_ms: int) -> changes.Change:
    """A subagent's task ends as its last turn has."""
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
    """Change a record, unless somebody else has taken it over meanwhile."""

    def unless_taken(task: TaskRecord) -> TaskRecord:
        same = (task.owner, task.created_at) == (record.owner, record.created_at)
        return change(task) if same else task

    if not tasks.has(record.session_id, record.id):
        with contextlib.suppress(TaskNotFound):
            await tasks.change(record.session_id, record.id, unless_taken)
