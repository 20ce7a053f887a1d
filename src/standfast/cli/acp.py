"""`standfast acp`: an agent for editors, over stdio."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from standfast.cli.options import Invocation, answers
from standfast.cli.output import CommandOutput

if TYPE_CHECKING:
    from standfast.cli.agent_host import AgentHost


@click.command(
    "acp",
    epilog="""\b
Examples:
  standfast acp shop.py:agent
  standfast acp shop.agents:agents --agent support --store shop.db
""",
)
@click.argument("app")
@click.option("--agent", default="", metavar="NAME", help="The agent to run, if APP has several.")
@click.option("--trace", metavar="FILE", help="Write a trace to this file.  [default: STANDFAST_TRACE]")
@answers
def command(invocation: Invocation, *, app: str, agent: str, trace: str | None) -> CommandOutput:
    """Run an agent for editors, over the Agent Client Protocol on standard input and output.

    APP is module:name or file.py:name. An editor starts this command to create, load and fork sessions, and
    shows calls that need approval as permission requests.
    """
    import asyncio

    from standfast.cli.agent_host import AgentHost
    from standfast.cli.agent_options import AgentSettings

    place, colon, name = app.partition(":")
    if place.endswith(".py"):  # recorded with the session, which may be read from another working directory
        app = f"{Path(place).absolute()}{colon}{name}"
    host = AgentHost(invocation.data_dir, AgentSettings(app=app, agent=agent), trace=trace)
    asyncio.run(_serve(host, invocation.command))
    return CommandOutput(None, lambda: None)


async def _serve(host: AgentHost, command: Callable[..., str]) -> None:
    import asyncio
    import signal

    from standfast.rpc.acp import AcpAgent
    from standfast.rpc.json_rpc import Read, Write
    from standfast.rpc.streams import serve_stdio

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with host:

        async def serve(read: Read, write: Write, user: str) -> None:
            await AcpAgent(host.runtime, host.agent, user, command=command).serve(read, write)

        serving, stopping = (
            asyncio.ensure_future(serve_stdio(serve, stop)),
            asyncio.ensure_future(stop.wait()),
        )
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():  # turns stay in the store for the next process
            serving.cancel()
            await asyncio.wait((serving,))
