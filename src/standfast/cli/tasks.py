"""`standfast tasks`: the background tasks of sessions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from standfast.cli.options import Invocation, answers, inherited_options, server_option
from standfast.cli.output import CommandOutput, console, moment, styled
from standfast.cli.report import facts_table, show_table

if TYPE_CHECKING:
    from standfast.client import BlockingClient
    from standfast.model.task import TaskRecord
    from standfast.runtime.agent_runtime import Runtime

_COLOURS = {"idle": "cyan", "completed": "green", "failed": "red"}
_COLOURS |= dict.fromkeys(("pending", "running", "cancel_requested"), "yellow")
_PATIENCE_S = 5.0
"""How long `cancel` waits for the process that runs a task."""


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

    A task of a dead process is never shown as running: it has failed as interrupted, or it is a subagent or
    a monitor that another program resumes.
    """


@command.command("list")
@click.option("--session-id", metavar="S", help="Only those of one session.")
@click.option("--live", is_flag=True, help="Only those that have not ended.")
@server_option
@answers
def list_tasks(invocation: Invocation, *, session_id: str | None, live: bool) -> CommandOutput:
    """List tasks, oldest first, with their state."""

    async def read(runtime: Runtime) -> list[TaskRecord]:
        await runtime.recover_tasks()  # fails or takes over those of dead processes
        return await runtime.store.tasks(session_id=session_id, live=live)

    everyone = invocation.ask(lambda client: client.tasks(live=live), read)
    found = [task for task in everyone if session_id in (None, task.session_id)]

    def show() -> None:
        rows = [
            (
                task.session_id,
                task.id,
                task.kind,
                styled(task.state, _COLOURS.get(task.state, "dim")),
                styled(task.label, overflow="ellipsis"),
                moment(task.created_at),
            )
            for task in found
        ]
        show_table("session", "task", "kind", "state", "what", "since", rows=rows, empty="no tasks")

    return CommandOutput(found, show)


@command.command("show")
@click.argument("session_id")
@click.argument("task_id")
@server_option
@answers
def show(invocation: Invocation, *, session_id: str, task_id: str) -> CommandOutput:
    """Show a task with its input and its result."""
    from standfast.errors import TaskNotFound

    async def read(runtime: Runtime) -> TaskRecord | None:
        await runtime.recover_tasks()
        return await runtime.store.task(session_id, task_id)

    def find(client: BlockingClient) -> TaskRecord | None:
        return next(
            (one for one in client.tasks() if (one.session_id, one.id) == (session_id, task_id)), None
        )

    task = invocation.ask(find, read)
    if task is None:
        raise TaskNotFound(session_id, task_id)
    facts = [
        ("task", task.id),
        *([("what", task.label)] if task.label else []),
        ("session", task.session_id),
        ("kind", str(task.kind)),
        ("state", str(task.state)),
        ("since", moment(task.created_at)),
        ("changed", moment(task.updated_at)),
    ]
    contents = (("given", task.body), ("result", task.result))
    facts += [(name, json.dumps(value, ensure_ascii=False)) for name, value in contents if value is not None]
    if task.error is not None:
        facts.append(("error", f"{task.error.code}: {task.error.message}"))
        facts += [("hint", task.error.hint)] if task.error.hint else []
    return CommandOutput(task, lambda: console().print(facts_table(facts)))


@command.command("cancel")
@click.argument("session_id")
@click.argument("task_id")
@server_option
@answers
def cancel(invocation: Invocation, *, session_id: str, task_id: str) -> CommandOutput:
    """Cancel a task: a monitor with its processes, a subagent with its sessions, or any other.

    The process that runs a task ends it; this command waits a few seconds for that.
    """
    import asyncio

    async def end(runtime: Runtime) -> TaskRecord:
        await runtime.recover_tasks()
        record = await runtime.host(session_id).cancel_background_task(session_id, task_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        while not record.state.is_terminal and loop.time() < deadline:
            await asyncio.sleep(0.05)
            record = await runtime.store.task(session_id, task_id) or record
        return record

    record = invocation.ask(lambda client: client.cancel_task(session_id, task_id), end)
    state = record.state if record.state.is_terminal else "not ended yet; its process was notified"
    return CommandOutput.line(f"task {task_id} of session {session_id}: {state}", record)
