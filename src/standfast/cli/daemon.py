"""`standfast daemon`: the sandbox as a JSON-RPC service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from standfast.cli import options
from standfast.cli.host import SandboxGrants, wrong_grants_are_wrong_usage
from standfast.cli.output import CommandOutput

if TYPE_CHECKING:
    from standfast.runtime.sandbox import SandboxOptions


@click.command(
    "daemon",
    epilog="""\b
Examples:
  standfast daemon --listen unix:/run/user/1000/standfast.sock
  standfast daemon --listen stdio --tools examples/refunds.py
  echo '{"jsonrpc": "2.0", "id": 1, "method": "session.run", "params": {"code": "6 * 7"}}' \\
    | standfast daemon --listen stdio
""",
)
@click.option("--listen", required=True, metavar="unix:PATH|stdio", help="Where to accept requests.")
@click.option(
    "--grace",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0),
    metavar="S",
    help="How long to let runs finish after SIGTERM.",
)
@options.language_options
@options.grants_options
@options.answers
def command(
    invocation: options.Invocation,
    *,
    listen: str,
    grace: float,
    grants: SandboxGrants,
    language: str,
    engine: str | None,
) -> CommandOutput:
    """Serve the sandbox over JSON-RPC 2.0, one JSON value per line.

    Only the user who starts the daemon can connect to its socket. Requests of one connection run
    concurrently. A run continues to its end if its client disconnects. The method `approvals.decide` decides
    the approvals that runs wait for.
    """
    import asyncio

    kind, _, path = listen.partition(":")
    if listen != "stdio" and not (kind == "unix" and path):
        raise click.UsageError(f"--listen {listen!r} must be stdio or unix:PATH")
    with wrong_grants_are_wrong_usage():
        settings = grants.options(invocation.data_dir, language, engine)
    asyncio.run(_serve(settings, Path(path).absolute() if path else None, grace))
    return CommandOutput(None, lambda: None)


async def _serve(settings: SandboxOptions, path: Path | None, grace_s: float) -> None:
    import asyncio
    import signal

    from standfast.rpc.daemon import serve_sandbox
    from standfast.rpc.json_rpc import Read, Write
    from standfast.rpc.streams import serve_socket, serve_stdio
    from standfast.runtime.sandbox import Sandbox

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Sandbox(settings) as box:

        async def serve(read: Read, write: Write, user: str) -> None:
            await serve_sandbox(box, read, write, user)

        work = serve_socket(path, serve, stop) if path else serve_stdio(serve, stop)
        serving, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await asyncio.wait((serving,), timeout=grace_s)
        if not serving.done():
            serving.cancel()
            await asyncio.wait((serving,))
        elif not serving.cancelled():
            serving.result()
