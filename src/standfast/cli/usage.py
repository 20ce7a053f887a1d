"""`standfast usage`: tokens and money by day, agent, model or session."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import click

from standfast.cli.options import Invocation, answers, server_option
from standfast.cli.output import CommandOutput
from standfast.cli.report import show_table
from standfast.cli.sessions import Age

if TYPE_CHECKING:
    from standfast.ports.session_store import DayUsage


@click.command(
    "usage",
    epilog="""\b
Examples:
  standfast usage --since 30d
  standfast usage --by agent --json
""",
)
@click.option(
    "--since", type=Age(), metavar="AGE", help="Only turns that ended within this time, such as 30d."
)
@click.option(
    "--by",
    type=click.Choice(["day", "agent", "model", "session"]),
    default="day",
    show_default=True,
    help="What to group the sums by.",
)
@server_option
@answers
def command(invocation: Invocation, *, since: float | None, by: str) -> CommandOutput:
    """Show what turns used and what it cost."""
    import time

    import msgspec

    from standfast.model.limits import Usage, dollars

    since_ms = 0 if since is None else int((time.time() - since) * 1000)
    found = invocation.ask(
        lambda client: client.usage_by_day(since_ms=since_ms),
        lambda runtime: runtime.usage_by_day(since_ms=since_ms),
    )
    sums: dict[str, tuple[int, Usage]] = {}
    for one in found:
        turns, usage = sums.get(_name(one, by), (0, Usage()))
        sums[_name(one, by)] = (turns + one.turns, usage + one.usage)
    document = [
        {by: name, "turns": turns, "usage": msgspec.to_builtins(usage)}
        for name, (turns, usage) in sums.items()
    ]

    def show() -> None:
        rows = [
            (
                name,
                str(turns),
                f"{usage.input + usage.cache_read + usage.cache_write:,}",
                f"{usage.output:,}",
                dollars(usage.cost_nano_usd) if usage.cost_nano_usd else "",
            )
            for name, (turns, usage) in sums.items()
        ]
        show_table(by, "turns", "tokens in", "tokens out", "cost", rows=rows, empty="no turns")

    return CommandOutput(document, show)


def _name(one: DayUsage, by: str) -> str:
    if by == "day":
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=one.day)).isoformat()
    return {"agent": one.agent, "model": one.model, "session": one.session_id}[by]
