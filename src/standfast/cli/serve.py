"""`standfast serve`: serve agents over HTTP."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from standfast.cli.options import Invocation, answers
from standfast.cli.output import CommandOutput

if TYPE_CHECKING:
    from standfast.runtime.app import App
    from standfast.server.app import ServerApp
    from standfast.server.limits import Limits
    from standfast.server.serving import Listen, StandfastServer

_KEEP_JOURNALS_S: Final = 7 * 86_400
"""How long the journals of runs are kept; for agents' turns, `Runtime(keep_journals=...)` sets it."""


@click.command(
    "serve",
    epilog="""\b
Examples:
  standfast serve
  standfast serve shop.py:agent --port 9000
  standfast serve shop.agents:make_runtime --reload
  standfast serve shop.py --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --allow-host shop.example.com
""",
)
@click.argument("app", required=False)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on."
)
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; 0 for any free one.",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file beside APP changes.")
@click.option(
    "--grace", default=30.0, show_default=True, metavar="S", help="How long to let turns end after SIGTERM."
)
@click.option("--tls-cert", metavar="FILE", type=click.Path(exists=True), help="The TLS certificate, as PEM.")
@click.option("--tls-key", metavar="FILE", type=click.Path(exists=True), help="Its private key, as PEM.")
@click.option("--trusted-proxy", metavar="CIDR", help="Trust the forwarding headers of these addresses.")
@click.option("--insecure", is_flag=True, help="Allow addresses other than loopback without TLS.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A host name of this server.")
@click.option(
    "--allow-origin", "origins", multiple=True, metavar="URL", help="Let pages of this origin call it."
)
@click.option(
    "--webhook",
    "webhooks",
    multiple=True,
    metavar="SOURCE=VARIABLE",
    help="Receive webhooks of this source, signed with the secret in an environment variable.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="A limit of each credential: requests_per_s, burst, body_bytes, attachment_bytes, streams, turns or "
    "failures_per_min.",
)
@click.option("--jwt-issuer", metavar="URL", help="Also accept JWTs of this identity provider.")
@click.option("--jwt-audience", metavar="NAME", help="The audience that JWTs must have.")
@click.option("--jwt-keys", metavar="URL", help="Where the provider publishes its keys.")
@click.option("--publish-agent-card", is_flag=True, help="Show A2A's agent cards without a credential.")
@click.option(
    "--mcp",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    help="Give the agents the tools of the MCP servers of this file, such as mcp.json.",
)
@click.option("--trace", metavar="FILE", help="Write a trace to this file.  [default: STANDFAST_TRACE]")
@answers
def command(invocation: Invocation, *, app: str | None, reload: bool, **given: Any) -> CommandOutput:
    """Serve the agents of APP over HTTP; without APP, demo agents that need no provider key.

    APP is module:name or file.py:name, and names an agent, a list of agents, or a function that returns a
    Runtime. Clients need a token (`standfast tokens create`); a browser signs in with the printed link.
    On SIGTERM, running turns get time to end; another process resumes those that do not.
    """
    from standfast.cli.showcase import showcase_agents
    from standfast.runtime.app import App, load_app
    from standfast.server.serving import Listen, make_server, require_server_extra

    require_server_extra()
    if reload:
        from standfast.cli.reload import run_reloading

        return CommandOutput(None, lambda: None, run_reloading(app))
    loaded = App(name="demo", agents=tuple(showcase_agents())) if app is None else load_app(app)
    listen = Listen(
        host=given["host"],
        port=given["port"],
        tls_cert=given["tls_cert"],
        tls_key=given["tls_key"],
        trusted_proxy=given["trusted_proxy"],
        insecure=given["insecure"],
        grace_s=given["grace"],
    )
    listen.check()
    application = _application(invocation, loaded, given)
    server = make_server(application, listen)
    _announce(invocation, server, application, listen, demo=app is None)
    server.run()
    return CommandOutput(None, lambda: None)


def _application(invocation: Invocation, loaded: App, given: dict[str, Any]) -> ServerApp:
    from standfast.cli.trace import trace_file, trace_sink
    from standfast.runtime.data_dir import DataDir
    from standfast.runtime.sandbox import Sandbox
    from standfast.server.app import create_app
    from standfast.workbench import PAGES

    if not loaded.takes_store and invocation.given_data_dir is not None:
        raise click.UsageError(
            "APP creates its own store; leave out --store, or let APP's function take a store"
        )
    data = DataDir(invocation.data_dir)
    trace = trace_sink(invocation.data_dir, given["trace"])
    runtime = loaded.runtime(data.database, trace=trace) if loaded.takes_store else loaded.runtime()
    if given["mcp"]:
        from standfast.mcp.config import add_mcp_servers

        add_mcp_servers(loaded.agents or runtime.agents.values(), given["mcp"], data_dir=data.directory)
    traced = trace_file(invocation.data_dir, given["trace"])
    return create_app(
        runtime,
        agents=loaded.agents,
        sandbox=Sandbox(data_dir=data.database, keep_journals=_KEEP_JOURNALS_S)
        if loaded.takes_store
        else None,
        auth=_jwt(given),
        limits=_limits(given["limits"]),
        allow_hosts=(*given["hosts"], given["host"]),
        allow_origins=given["origins"],
        webhook_secrets=dict(_webhook(text) for text in given["webhooks"]),
        audit_file=data.beside("audit.jsonl"),
        trace_file=None if traced is None else str(traced),
        pages=PAGES,
        publish_agent_card=given["publish_agent_card"],
    )


def _limits(given: tuple[str, ...]) -> Limits:
    import msgspec

    from standfast.server.limits import Limits

    try:
        return msgspec.convert(dict(text.split("=", 1) for text in given), Limits, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise click.UsageError(f"--limit: {error}") from None


def _jwt(given: dict[str, Any]) -> Any:
    wanted = [given["jwt_issuer"], given["jwt_audience"], given["jwt_keys"]]
    if not any(wanted):
        return None
    if not all(wanted):
        raise click.UsageError("JWTs need --jwt-issuer, --jwt-audience and --jwt-keys")
    from standfast.server.jwt_auth import JwtAuth

    return JwtAuth(issuer=wanted[0], audience=wanted[1], jwks_url=wanted[2])


def _webhook(text: str) -> tuple[str, str]:
    source, _, variable = text.partition("=")
    secret = os.environ.get(variable, "")
    if not source or not secret:
        raise click.UsageError(f"--webhook {text!r}: the environment variable {variable!r} has no secret")
    return source, secret


def _announce(
    invocation: Invocation, server: StandfastServer, application: ServerApp, listen: Listen, *, demo: bool
) -> None:
    """Print the URL and how to sign in once the server listens; then play the *demo*, if requested."""
    import asyncio

    async def show(bound: tuple[str, int]) -> None:
        tokens = application.state.tokens
        code = await tokens.make_code(name="operator", scopes=("admin",))
        host = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        url = f"{listen.scheme}://{host}:{bound[1]}"
        await tokens.put_address(url)
        agents = ", ".join(application.state.agents) or "none"
        lines = [
            f"Standfast serves {agents} at {url}",
            *(["These agents are a scripted demo; name your own: standfast serve APP."] if demo else []),
            f"  in a browser, within a minute:  {url}/signin?code={code}",
            f"  for programs:                   {invocation.command('tokens', 'create')}",
        ]
        click.echo("\n".join(lines))
        sys.stdout.flush()
        if demo:
            from standfast.cli.showcase import play
            from standfast.runtime.data_dir import DataDir

            await play(application.state.runtime, str(DataDir(invocation.data_dir).database))

    def started(bound: list[tuple[str, int]]) -> None:
        server.announcing = asyncio.ensure_future(show(bound[0]))

    server.on_started = started
