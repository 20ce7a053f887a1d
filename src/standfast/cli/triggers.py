"""`standfast triggers`: what wakes sessions from outside, or by the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from standfast.cli.options import Invocation, JsonParameter, answers, inherited_options
from standfast.cli.output import Answer, console, moment, visible
from standfast.cli.report import plain_table
from standfast.cli.sessions import Age

if TYPE_CHECKING:
    from standfast.model.trigger import Schedule, Trigger
    from standfast.runtime.agent_runtime import Runtime

T = TypeVar("T")


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
    """List, add, remove and fire what wakes the sessions of agents.

    What occurs at a source becomes a turn of every session that has a trigger for it, once for each key.
    The turns are run by the programs that know the sessions' agents.
    """


@command.command("list")
@answers
def list_triggers(invocation: Invocation) -> Answer:
    """List all triggers with their sources, sessions and next times."""
    found = _with_runtime(invocation, lambda runtime: runtime.triggers())
    return Answer(found, lambda: _show_list(found))


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
@click.option("--session", "session_id", required=True, metavar="ID", help="Who is to hear of it.")
@click.option("--source", metavar="NAME", help="Where it occurs.  [default: the trigger's name]")
@click.option(
    "--prompt", default="{payload}", show_default=True, metavar="TEXT", help="What the turn is told."
)
@click.option("--cron", metavar="EXPR", help="It occurs by itself at these times, as '30 7 * * MON-FRI'.")
@click.option(
    "--every", type=Age(), metavar="AGE", help="It occurs by itself, each time after so long, as 15m."
)
@click.option("--at", metavar="TIME", help="It occurs by itself once, as 2031-05-04T09:00.")
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="That of --cron and --at.")
@click.option(
    "--catch-up",
    type=click.Choice(["once", "skip"]),
    default="once",
    show_default=True,
    help="What becomes of times that pass while no program runs.",
)
@answers
def add(
    invocation: Invocation, *, name: str, session_id: str, source: str | None, prompt: str, **timing: Any
) -> Answer:
    """Let a session hear of what occurs at a source. A trigger of this name is replaced."""
    if sum(timing[kind] is not None for kind in ("cron", "every", "at")) > 1:
        raise click.UsageError("give one of --cron, --every and --at")
    schedule = _schedule(**timing)
    made = _with_runtime(
        invocation,
        lambda runtime: runtime.add_trigger(
            name, source or name, session_id, prompt=prompt, schedule=schedule
        ),
    )
    return Answer(made, lambda: _show_list([made]))


@command.command("remove")
@click.argument("name")
@answers
def remove(invocation: Invocation, *, name: str) -> Answer:
    """Forget a trigger. What it has delivered already stays queued."""
    from standfast.errors import TriggerNotFound

    if not _with_runtime(invocation, lambda runtime: runtime.remove_trigger(name)):
        raise TriggerNotFound(name)
    return Answer(
        {"name": name, "removed": True}, lambda: console().print(f"trigger {name} is gone", soft_wrap=True)
    )


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
    "--key", metavar="TEXT", help="What it is known by: told again, it is nothing new.  [default: new]"
)
@click.option("--payload", type=JsonParameter(object), metavar="JSON", help="What happened.")
@click.option("--run", is_flag=True, help="Run the turns here, with the agents that the sessions remember.")
@answers
def fire(invocation: Invocation, *, source: str, key: str | None, payload: Any, run: bool) -> Answer:
    """Tell of something that occurred at a source."""
    import secrets

    from standfast.runtime.triggers import listeners

    known_by = key or f"cli-{secrets.token_hex(8)}"

    async def work(runtime: Runtime) -> tuple[list[Trigger], bool]:
        return await listeners(runtime.store, source), bool(await runtime.occur(source, known_by, payload))

    hearing, is_new = _with_runtime(invocation, work)
    told = hearing if is_new else []
    sessions = list(dict.fromkeys(trigger.session_id for trigger in told))
    answers = {session_id: _run_queued(invocation, session_id) for session_id in sessions} if run else {}
    document = {
        "source": source,
        "key": known_by,
        "delivered": [{"trigger": one.name, "session_id": one.session_id} for one in told],
        "answers": answers,
    }
    why_not = f"{known_by} was told before" if hearing else f"nobody hears of {source}"
    return Answer(document, lambda: _show_fired(told, answers, why_not))


def _schedule(
    cron: str | None, every: float | None, at: str | None, timezone: str, catch_up: Any
) -> Schedule | None:
    """The schedule of these options; nothing if they say none."""
    from standfast.model.trigger import Schedule

    if cron is None and every is None and at is None:
        return None
    return Schedule(
        cron=cron,
        every_ms=None if every is None else int(every * 1000),
        at_ms=None if at is None else _instant_ms(at, timezone),
        timezone=timezone,
        catch_up=catch_up,
    )


def _instant_ms(text: str, timezone: str) -> int:
    """A time as it is written, in its own time zone or in this one."""
    from datetime import datetime

    from standfast.runtime.cron import time_zone

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--at {text!r} is no time; write 2031-05-04T09:00") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=time_zone(timezone))
    return max(0, int(time.timestamp() * 1000))


def _with_runtime(invocation: Invocation, work: Callable[[Runtime], Awaitable[T]]) -> T:
    """Do something with the sessions of the data directory; no turn runs."""
    from standfast.errors import SessionNotFound

    try:
        return invocation.with_runtime(work)
    except SessionNotFound as error:
        error.hint = (
            "`standfast sessions list` shows those that exist, `standfast chat --session ID` makes one"
        )
        raise


def _run_queued(invocation: Invocation, session_id: str) -> str:
    """Run what waits for a session, with the agent that it remembers; what that agent says at last."""
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
    from rich.text import Text

    if not triggers:
        console().print("no triggers", style="dim")
        return
    table = plain_table("trigger", "source", "session", "when", "next", "prompt")
    table.columns[0].no_wrap = True
    for one in triggers:
        following = moment(one.next_at) if one.enabled else "off"
        table.add_row(
            one.name, one.source, one.session_id, _when(one.schedule), following, Text(visible(one.prompt))
        )
    console().print(table)


def _when(schedule: Schedule | None) -> str:
    if schedule is None:
        return "-"
    if schedule.every_ms is not None:
        return f"every {schedule.every_ms / 1000:g} s"
    return f"{schedule.cron} {schedule.timezone}" if schedule.cron is not None else "once"


def _show_fired(told: list[Trigger], answers: dict[str, str], why_not: str) -> None:
    from rich.text import Text

    shown = console()
    if not told:
        shown.print(why_not, style="dim", soft_wrap=True)
    for one in told:
        shown.print(Text(f"{one.name} → session {one.session_id}"), soft_wrap=True)
    for session_id, text in answers.items():
        shown.print(Text(f"{session_id}: {visible(text)}"), soft_wrap=True)
