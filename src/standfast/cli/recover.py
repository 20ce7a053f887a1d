"""`standfast recover`: resume the turns that dead processes left, and those whose waits are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from standfast.cli.agent_options import AgentSettings, agent_options
from standfast.cli.options import Invocation, answers
from standfast.cli.output import Answer, console

if TYPE_CHECKING:
    from standfast.cli.recovery import Recovered


@click.command(
    "recover",
    epilog="""\b
Examples:
  standfast recover
  standfast recover --session support-42 --tools examples/support.py
  standfast recover --watch
""",
)
@click.option("--session", "session_id", metavar="ID", help="Of this session alone.")
@click.option(
    "--watch",
    is_flag=True,
    help="Keep going until Ctrl-C: for timers, triggers and queued input, and for what others leave.",
)
@agent_options
@answers
def command(invocation: Invocation, *, session_id: str | None, watch: bool, given: AgentSettings) -> Answer:
    """Resume every unfinished turn that can be resumed, of agents and of code.

    These are turns of processes that died, with decided approvals, or with timers that are due. Each
    session remembers its model, tools and instructions; give them only if they have moved.
    """
    from standfast.cli.agent_host import check_given
    from standfast.cli.recovery import Recovery, recover_all

    check_given(given)
    if watch and invocation.as_json:
        raise click.UsageError("--watch never ends, so that it has no one document: leave out --json")
    recovery = Recovery(invocation.data_dir, given, session_id)
    recovered = recover_all(recovery, watch=watch, tell=lambda _: None if invocation.as_json else _tell(_))
    failed = any(one.problem is not None for one in recovered)
    documents = [one.document() for one in recovered]
    return Answer(documents, lambda: _close(recovered, watch), int(failed and not watch))


def _tell(one: Recovered) -> None:
    from rich.text import Text

    style = "red" if one.problem is not None else ""
    console().print(Text(one.line(), style), soft_wrap=True)


def _close(recovered: list[Recovered], watch: bool) -> None:
    if not recovered and not watch:
        console().print("nothing to take up", style="dim")
