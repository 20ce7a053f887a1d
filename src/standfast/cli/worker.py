"""`standfast worker`: run the turns of a store."""

from __future__ import annotations

import re
from pathlib import Path

import click

from standfast.cli.options import Invocation, answers
from standfast.cli.output import CommandOutput, console


def parse_queues(text: str | None) -> dict[str, int | None] | None:
    """Parse `default,reports:2`: queues, each optionally with its own limit."""
    if text is None:
        return None
    queues: dict[str, int | None] = {}
    for part in text.split(","):
        name, separator, limit = part.strip().partition(":")
        if not name or (separator and not (limit.isdecimal() and int(limit) > 0)):
            raise click.UsageError(f"--queues {text!r} must look like default or default,reports:2")
        queues[name] = int(limit) if separator else None
    return queues


def parse_address(option: str, text: str | None) -> tuple[str, int] | None:
    """Parse `HOST:PORT`, `:PORT` for all interfaces or `PORT` for loopback."""
    if text is None:
        return None
    host, separator, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"{option} {text!r} must look like 127.0.0.1:8081, :8081 or 8081")
    return (host.strip("[]") or "0.0.0.0") if separator else "127.0.0.1", int(port)  # noqa: S104


def require_urls(option: str, text: str | None) -> None:
    """Raise `UsageError` unless every part of *text*, separated by commas, is the URL of a server."""
    for part in () if text is None else text.split(","):
        if not re.match("https?://[^/]", part.strip()):
            raise click.UsageError(f"{option} {text!r} must look like http://restate:8080")


@click.command(
    "worker",
    epilog="""\b
Examples:
  standfast worker shop.py:agent --store shop.db
  standfast worker shop.agents:runtime --store postgresql://db/shop --concurrency 50 --health :8081
  standfast worker shop.py:agents --store shop.db --queues default,reports:2
""",
)
@click.argument("app", metavar="APP")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="How many turns to run at once.",
)
@click.option(
    "--queues",
    metavar="NAME[:N],...",
    help="Claim turns of these queues only, at most N at once.  [default: all]",
)
@click.option("--health", metavar="[HOST:]PORT", help="Serve /health and /ready here.")
@click.option(
    "--grace-s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long to let turns end after SIGTERM; then another worker takes them over.",
)
@click.option(
    "--lease-s",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    help="How long others wait before they take over the turns of a worker that stopped responding.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The snapshot key that all machines share.  [default: STANDFAST_SNAPSHOT_KEY]",
)
@click.option(
    "--engine",
    type=click.Choice(["own", "restate"]),
    default="own",
    show_default=True,
    help="Claim turns from the store, or let Restate decide which turns run here.",
)
@click.option(
    "--mcp",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    help="Give the agents the tools of the MCP servers of this file, such as mcp.json.",
)
@click.option(
    "--listen", metavar="[HOST:]PORT", default="127.0.0.1:9080", help="Restate: the address to listen on."
)
@click.option("--advertise", metavar="URL", help="Restate: the URL at which Restate reaches this worker.")
@click.option(
    "--admin", metavar="URL,...", default="http://127.0.0.1:9070", help="Restate: the URL of its admin API."
)
@click.option(
    "--ingress", metavar="URL,...", default="http://127.0.0.1:8080", help="Restate: the URL of its ingress."
)
@answers
def command(
    invocation: Invocation,
    *,
    app: str,
    concurrency: int,
    queues: str | None,
    health: str | None,
    grace_s: float,
    lease_s: float,
    key_file: Path | None,
    engine: str,
    mcp: str | None,
    listen: str,
    advertise: str | None,
    admin: str,
    ingress: str,
) -> CommandOutput:
    """Run turns of the agents in APP: queued inputs, ended waits, timers, triggers, turns of dead workers.

    APP is module:name or file.py:name, and names an agent, a list of agents, or a function that takes a
    store and returns a Runtime. Any number of workers may share a store. On SIGTERM a worker drains.
    """
    import asyncio

    from standfast.runtime.app import load_app
    from standfast.runtime.data_dir import DataDir, key_from_file
    from standfast.worker.worker import RestateSettings, Worker, WorkerSettings

    loaded, home = load_app(app), DataDir(invocation.data_dir)
    restate = None
    if engine == "restate":
        host, port = parse_address("--listen", listen) or ("", 0)
        for option, urls in (("--advertise", advertise), ("--admin", admin), ("--ingress", ingress)):
            require_urls(option, urls)
        reached = advertise or f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"  # noqa: S104
        restate = RestateSettings(listen=(host, port), advertise=reached, admin=admin, ingress=ingress)
    settings = WorkerSettings(
        restate=restate,
        concurrency=concurrency,
        queues=parse_queues(queues),
        grace_s=grace_s,
        health=parse_address("--health", health),
        snapshot_key=key_from_file(key_file) if key_file is not None else home.snapshot_key(),
    )

    async def work() -> None:
        runtime = loaded.runtime(home.database, lease_s=lease_s)
        if mcp is not None:
            from standfast.mcp.config import add_mcp_servers

            add_mcp_servers(loaded.agents or runtime.agents.values(), mcp, data_dir=home.directory)
        worker = Worker(runtime, settings)

        def show() -> None:
            where = "" if worker.address is None else f", health on {worker.address[0]}:{worker.address[1]}"
            console().print(f"worker of {app} started{where}", soft_wrap=True)

        await worker.run(show)

    asyncio.run(work())
    return CommandOutput(None, lambda: None)
