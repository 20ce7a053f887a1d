"""`standfast recover`: resume the turns of dead processes, and those whose waits are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from standfast.cli.agent_options import AgentSettings, agent_options
from standfast.cli.options import Invocation, answers
from standfast.cli.output import CommandOutput, console, styled

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
@click.option("--session", "session_id", metavar="ID", help="Resume only this session.")
@click.option(
    "--watch",
    is_flag=True,
    help="Run until Ctrl-C: fire timers and triggers, run queued input, resume what other processes leave.",
)
@agent_options
@answers
def command(
    invocation: Invocation, *, session_id: str | None, watch: bool, given: AgentSettings
) -> CommandOutput:
    """Resume every unfinished turn that can be resumed, of agents and of code.

    These are turns of processes that died, with decided approvals, or with timers that are due. The model,
    tools and instructions come from each session's record; give them only if they have moved.
    """
    from standfast.cli.agent_host import check_given
    from standfast.cli.recovery import Recovery, recover_all

    check_given(given)
    if watch and invocation.as_json:
        raise click.UsageError("--watch has no end and so no JSON document; leave out --json")

    def show(one: Recovered) -> None:
        if not invocation.as_json:
            console().print(styled(one.line(), "red" if one.problem is not None else ""), soft_wrap=True)

    recovered = recover_all(Recovery(invocation.data_dir, given, session_id, show), watch=watch)
    failed = any(one.problem is not None for one in recovered)

    def show_end() -> None:
        if not recovered and not watch:
            console().print("nothing to resume", style="dim")

    documents = [one.document() for one in recovered]
    return CommandOutput(documents, show_end, int(failed and not watch))
