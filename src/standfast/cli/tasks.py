"""`standfast tasks`: what goes on beside the turns of sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from standfast.cli.options import Invocation, answers, inherited_options
from standfast.cli.output import Answer, console, moment, visible
from standfast.cli.report import facts_table, plain_table

if TYPE_CHECKING:
    from standfast.model.task import TaskRecord
    from standfast.runtime.agent_runtime import Runtime

T = TypeVar("T")

_COLOURS = {
    "pending": "yellow",
    "running": "yellow",
    "idle": "cyan",
    "cancel_requested": "yellow",
    "completed": "green",
    "failed": "red",
}
_PATIENCE_S = 5.0
"""So long `cancel` waits for the process that runs a task."""


@click.group(
    "tasks",
    epilog="""\b
Examples:
  standfast tasks list --live
  standfast tasks show support-42 build
  standfast tasks cancel support-42 build
""",
)
@inherited_options
def command() -> None:
    """List, show and cancel the background tasks of sessions: monitors, subagents and others.

    A task whose process is gone is never shown as running: it has failed as interrupted, or it is a subagent
    or a monitor that another program goes on with.
    """


@command.command("list")
@click.option("--session-id", metavar="S", help="Only those of one session.")
@click.option("--live", is_flag=True, help="Only those that are not over.")
@answers
def list_tasks(invocation: Invocation, *, session_id: str | None, live: bool) -> Answer:
    """List tasks, oldest first, with their state."""

    async def work(runtime: Runtime) -> list[TaskRecord]:
        return await runtime.store.tasks(session_id=session_id, live=live)

    found = _with_runtime(invocation, work)
    return Answer(found, lambda: _show_list(found))


@command.command("show")
@click.argument("session_id")
@click.argument("task_id")
@answers
def show(invocation: Invocation, *, session_id: str, task_id: str) -> Answer:
    """Show a task with what it was given and what came of it."""
    from standfast.errors import TaskNotFound

    async def work(runtime: Runtime) -> TaskRecord:
        found = await runtime.store.task(session_id, task_id)
        if found is None:
            raise TaskNotFound(session_id, task_id)
        return found

    record = _with_runtime(invocation, work)
    return Answer(record, lambda: console().print(facts_table(_facts(record))))


@command.command("cancel")
@click.argument("session_id")
@click.argument("task_id")
@answers
def cancel(invocation: Invocation, *, session_id: str, task_id: str) -> Answer:
    """End a task: a monitor's processes, a subagent's sessions, or whatever runs.

    A task of another process is ended by that process; this waits for a moment until it has.
    """
    record = _with_runtime(invocation, lambda runtime: _cancel(runtime, session_id, task_id))
    said = f"task {task_id} of session {session_id} is {record.state}"
    later = f"task {task_id} of session {session_id} is to end; its process was told"
    text = said if record.state.is_terminal else later
    return Answer(record, lambda: console().print(text, soft_wrap=True))


async def _cancel(runtime: Runtime, session_id: str, task_id: str) -> TaskRecord:
    import asyncio

    record = await runtime.host(session_id).cancel_background_task(session_id, task_id)
    loop = asyncio.get_running_loop()
    end = loop.time() + _PATIENCE_S
    while not record.state.is_terminal and loop.time() < end:
        await asyncio.sleep(0.05)
        record = await runtime.store.task(session_id, task_id) or record
    return record


def _with_runtime(invocation: Invocation, work: Callable[[Runtime], Awaitable[T]]) -> T:
    """Do something with the tasks of the data directory, once those of dead processes are seen to."""

    async def run(runtime: Runtime) -> T:
        await runtime.recover_tasks()
        return await work(runtime)

    return invocation.with_runtime(run)


def _show_list(tasks: list[TaskRecord]) -> None:
    from rich.text import Text

    if not tasks:
        console().print("no tasks", style="dim")
        return
    table = plain_table("session", "task", "kind", "state", "what", "since")
    for task in tasks:
        state = Text(task.state, _COLOURS.get(task.state, "dim"))
        what = Text(visible(task.label), overflow="ellipsis")
        table.add_row(task.session_id, task.id, task.kind, state, what, moment(task.created_at))
    console().print(table)


def _facts(task: TaskRecord) -> list[tuple[str, str]]:
    import json

    facts = [
        ("task", task.id),
        ("session", task.session_id),
        ("kind", str(task.kind)),
        ("state", str(task.state)),
        ("since", moment(task.created_at)),
        ("changed", moment(task.updated_at)),
    ]
    if task.label:
        facts.insert(1, ("what", task.label))
    contents = (("given", task.body), ("result", task.result))
    facts += [(name, json.dumps(value, ensure_ascii=False)) for name, value in contents if value is not None]
    if task.error is not None:
        facts.append(("error", f"{task.error.code}: {task.error.message}"))
    if task.error is not None and task.error.hint:
        facts.append(("hint", task.error.hint))
    return facts
