"""`standfast triggers`: start turns by events from outside, or by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from standfast.cli.options import Invocation, JsonParameter, answers, inherited_options, server_option
from standfast.cli.output import CommandOutput, console, moment, styled
from standfast.cli.report import show_table
from standfast.cli.sessions import Age

if TYPE_CHECKING:
    from standfast.model.trigger import Trigger
    from standfast.runtime.agent_runtime import Runtime


@click.group(
    "triggers",
    epilog="""\b
Examples:
  standfast triggers add nightly --session ops --cron '0 3 * * *' --prompt 'Check the backups.'
  standfast triggers add late-orders --session support --source shop/orders --prompt 'Look at {payload}.'
  standfast triggers fire shop/orders --key order-A1 --payload '{"id": "A1"}'
  standfast triggers list
""",
)
@inherited_options
def command() -> None:
    """List, add, remove and fire the triggers of agents' sessions.

    An event of a source becomes a turn of every session that has a trigger for it, once for each key. The
    programs that know the sessions' agents run the turns.
    """


@command.command("list")
@server_option
@answers
def list_triggers(invocation: Invocation) -> CommandOutput:
    """List all triggers with their sources, sessions and next times."""
    found = invocation.ask(lambda client: client.triggers(), lambda runtime: runtime.triggers())
    return CommandOutput(found, lambda: _show_list(found))


@command.command(
    "add",
    epilog="""\b
Examples:
  standfast triggers add nightly --session ops --cron '0 3 * * *' --prompt 'Check the backups.'
  standfast triggers add poll --session ops --every 15m --catch-up skip
  standfast triggers add launch --session ops --at 2031-05-04T09:00 --timezone Europe/Berlin
""",
)
@click.argument("name")
@click.option("--session", "session_id", required=True, metavar="ID", help="The session that runs the turn.")
@click.option("--source", metavar="NAME", help="The source of the events.  [default: the trigger's name]")
@click.option(
    "--prompt", default="{payload}", show_default=True, metavar="TEXT", help="The prompt of the turn."
)
@click.option("--cron", metavar="EXPR", help="Fire at these times, such as '30 7 * * MON-FRI'.")
@click.option("--every", type=Age(), metavar="AGE", help="Fire at this interval, such as 15m.")
@click.option("--at", metavar="TIME", help="Fire once, such as at 2031-05-04T09:00.")
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="For --cron and --at.")
@click.option(
    "--catch-up",
    type=click.Choice(["once", "skip"]),
    default="once",
    show_default=True,
    help="Whether times that pass while no program runs fire once or not at all.",
)
@server_option
@answers
def add(
    invocation: Invocation,
    *,
    name: str,
    session_id: str,
    source: str | None,
    prompt: str,
    every: float | None,
    at: str | None,
    **timing: Any,
) -> CommandOutput:
    """Add a trigger for the events of a source. A trigger of this name is replaced."""
    from standfast.errors import SessionNotFound
    from standfast.model.trigger import Schedule

    given = sum(one is not None for one in (timing["cron"], every, at))
    if given > 1:
        raise click.UsageError("give one of --cron, --every and --at")
    schedule = None
    if given:
        schedule = Schedule(
            every_ms=None if every is None else int(every * 1000),
            at_ms=None if at is None else _instant_ms(at, timing["timezone"]),
            **timing,
        )
    terms: dict[str, Any] = {"prompt": prompt, "schedule": schedule}
    try:
        made = invocation.ask(
            lambda client: client.add_trigger(name, source or name, session_id, **terms),
            lambda runtime: runtime.add_trigger(name, source or name, session_id, **terms),
        )
    except SessionNotFound as error:
        error.hint = "list sessions with `standfast sessions list`, or make one with `standfast chat`"
        raise
    return CommandOutput(made, lambda: _show_list([made]))


@command.command("remove")
@click.argument("name")
@server_option
@answers
def remove(invocation: Invocation, *, name: str) -> CommandOutput:
    """Remove a trigger. Turns that it has queued stay queued."""
    from standfast.errors import TriggerNotFound

    if invocation.server is not None:
        with invocation.client() as client:
            client.remove_trigger(name)
    elif not invocation.with_runtime(lambda runtime: runtime.remove_trigger(name)):
        raise TriggerNotFound(name)
    return CommandOutput.line(f"trigger {name} is removed", {"name": name, "removed": True})


@command.command(
    "fire",
    epilog="""\b
Examples:
  standfast triggers fire shop/orders --key order-A1 --payload '{"id": "A1"}'
  standfast triggers fire nightly --run
""",
)
@click.argument("source")
@click.option(
    "--key", metavar="TEXT", help="Identifies the event: each key fires once.  [default: a new key]"
)
@click.option("--payload", type=JsonParameter(object), metavar="JSON", help="The data of the event.")
@click.option("--run", is_flag=True, help="Run the turns here, with the agents in the sessions' records.")
@server_option
@answers
def fire(invocation: Invocation, *, source: str, key: str | None, payload: Any, run: bool) -> CommandOutput:
    """Fire the triggers of a source."""
    import secrets

    from standfast.runtime.triggers import listeners

    known_by = key or f"cli-{secrets.token_hex(8)}"
    if invocation.server is not None:
        if run:
            raise click.UsageError("the server runs the turns; leave --run out")
        with invocation.client() as client:
            turns = client.occur(source, known_by, payload)
        return CommandOutput.line(f"{source} starts {turns} turns", {"key": known_by, "turns": turns})

    async def work(runtime: Runtime) -> tuple[list[Trigger], bool]:
        return await listeners(runtime.store, source), bool(await runtime.occur(source, known_by, payload))

    matching, is_new = invocation.with_runtime(work)
    fired = matching if is_new else []
    sessions = list(dict.fromkeys(trigger.session_id for trigger in fired))
    answers = {session_id: _run_queued(invocation, session_id) for session_id in sessions} if run else {}
    document = {
        "source": source,
        "key": known_by,
        "delivered": [{"trigger": one.name, "session_id": one.session_id} for one in fired],
        "answers": answers,
    }

    def show() -> None:
        if not fired:
            why_not = f"{known_by} has fired before" if matching else f"{source} has no trigger"
            console().print(why_not, style="dim", soft_wrap=True)
        lines = [f"{one.name} → session {one.session_id}" for one in fired]
        for line in (*lines, *(f"{session_id}: {text}" for session_id, text in answers.items())):
            console().print(styled(line), soft_wrap=True)

    return CommandOutput(document, show)


def _instant_ms(text: str, timezone: str) -> int:
    """Convert a time, by default in *timezone*, to milliseconds since 1970."""
    from datetime import datetime

    from standfast.runtime.cron import time_zone

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--at {text!r} is not a time; write 2031-05-04T09:00") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=time_zone(timezone))
    return max(0, int(time.timestamp() * 1000))


def _run_queued(invocation: Invocation, session_id: str) -> str:
    """Run the queued turns of a session with the agent in its record; return that agent's last text."""
    import asyncio

    from standfast.cli.agent_host import AgentHost, recorded_settings
    from standfast.model.message import AssistantMessage

    head = invocation.with_runtime(lambda runtime: runtime.store.head(session_id))
    settings = recorded_settings({} if head is None else head.host)

    async def run() -> str:
        async with AgentHost(invocation.data_dir, settings) as host:
            session = await host.session(session_id)
            draining = host.runtime.live(session_id).draining
            if draining is not None:
                await draining
            messages = await session.messages()
        said = [one.text for one in messages if isinstance(one, AssistantMessage)]
        return said[-1] if said else ""

    return asyncio.run(run())


def _show_list(triggers: list[Trigger]) -> None:
    rows = []
    for one in triggers:
        schedule, when = one.schedule, "-"
        if schedule is not None and schedule.every_ms is not None:
            when = f"every {schedule.every_ms / 1000:g} s"
        elif schedule is not None:
            when = "once" if schedule.cron is None else f"{schedule.cron} {schedule.timezone}"
        following = moment(one.next_at) if one.enabled else "off"
        rows.append((one.name, one.source, one.session_id, when, following, styled(one.prompt)))
    headers = ("trigger", "source", "session", "when", "next", "prompt")
    show_table(*headers, rows=rows, whole=(0,), empty="no triggers")
