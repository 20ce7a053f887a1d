"""`standfast mcp`: the MCP servers of a project, and Standfast as an MCP server."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from standfast.cli.host import SandboxGrants
from standfast.cli.options import Invocation, JsonParameter, answers, grants_options, inherited_options
from standfast.cli.output import CommandOutput, console, counted, visible
from standfast.cli.report import show_table

if TYPE_CHECKING:
    from standfast.mcp.exchange import Answer
    from standfast.mcp.mcp_server import McpServer
    from standfast.mcp.pins import Pin
    from standfast.mcp.serve import ServedParts
    from standfast.tools.context import AskPerson

T = TypeVar("T")

_END_S = 5.0
"""The longest wait for a server to end after Ctrl-C."""

_config = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that lists the servers.  [default: mcp.json here, else in the data directory]",
)


@click.group(
    "mcp",
    epilog="""\b
Examples:
  standfast mcp list
  standfast mcp inspect files
  standfast mcp trust files
  standfast mcp sign-in shop
  standfast mcp call files read_text_file '{"path": "README.md"}'
  standfast mcp stdio app.py:agents
""",
)
@inherited_options
def command() -> None:
    """Use MCP servers, or run Standfast as one.

    What a server advertises is pinned when it is first used. If it changes, nothing on it is called until
    `trust` has shown the change and a person has agreed.
    """


@command.command("list")
@_config
@answers
def list_servers(invocation: Invocation, *, config: Path | None) -> CommandOutput:
    """List the servers in the file, without starting any."""
    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "target": one.target,
            "trusted": (pinned := one.pinned) is not None,
            "tools": 0 if pinned is None else len(pinned.tools),
        }
        for one in _servers(invocation, config)
    ]

    def show() -> None:
        table = [
            (one["name"], counted(one["tools"], "tool") if one["trusted"] else "not used yet", one["target"])
            for one in rows
        ]
        show_table("server", "pinned", "command or URL", rows=table, whole=(0,), empty="no servers")

    return CommandOutput(rows, show)


@command.command("inspect")
@click.argument("name")
@click.argument("tool", required=False)
@_config
@answers
def inspect_server(
    invocation: Invocation, *, name: str, tool: str | None, config: Path | None
) -> CommandOutput:
    """Start a server, and show its tools and how it differs from what was trusted. Nothing is called.

    With TOOL, show the description, the schemas and the annotations of that tool.
    """
    from standfast.mcp.contracts import clean_text

    server = _one(invocation, config, name)
    now = _run(server, server.advertised)
    if tool is not None:
        return _inspected_tool(server, now, tool)
    changes = server.changes(now) if server.pinned is not None else ()

    def show() -> None:
        words = [clean_text(tool.description.partition("\n")[0], 300) for tool in now.tools]
        rows = [
            (clean_text(tool.name, 80), json.dumps(tool.annotations), said)
            for tool, said in zip(now.tools, words, strict=True)
        ]
        show_table("tool", "annotations", "the server's description", rows=rows, whole=(0,), empty="no tools")
        more = f"; it also offers {' and '.join(now.features)}" if now.features else ""
        click.echo(f"revision {now.protocol}{more}")
        for change in changes:
            click.echo(f"changed: {change}")

    return CommandOutput(
        {"protocol": now.protocol, "features": now.features, "tools": now.tools, "changes": changes}, show
    )


def _inspected_tool(server: McpServer, now: Pin, name: str) -> CommandOutput:
    from standfast.errors import UnknownTool
    from standfast.mcp.contracts import clean_text

    tool = next((one for one in now.tools if one.name == name), None)
    if tool is None:
        raise UnknownTool(
            f"the MCP server {server.name} has no tool {name[:80]!r}",
            hint=f"`standfast mcp inspect {server.name}` lists its tools",
        )

    def show() -> None:
        console().print(clean_text(tool.description, 4096))
        for title, value in (
            ("input", tool.input_schema),
            ("output", tool.output_schema),
            ("annotations", tool.annotations),
        ):
            if value:
                click.echo(f"{title}: {json.dumps(value, indent=2)}")
        if (problem := tool.problem()) is not None:
            click.echo(f"agents cannot use this tool: {visible(problem)}")

    return CommandOutput({"tool": tool, "problem": tool.problem()}, show)


@command.command("trust")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Trust the server without asking.")
@click.option("--forget", is_flag=True, help="Remove the pin; the next use pins the server again.")
@_config
@answers
def trust(
    invocation: Invocation, *, name: str, yes: bool, forget: bool, config: Path | None
) -> CommandOutput:
    """Show what a server advertises, or how that has changed, and pin it if you agree."""
    from standfast.mcp.contracts import clean_text

    server = _one(invocation, config, name)
    if forget:
        gone = server.forget()
        words = f"{name} is no longer trusted" if gone else f"{name} was not trusted"
        return CommandOutput.line(words, {"name": name, "forgotten": gone})
    now = _run(server, server.advertised)
    changes = server.changes(now) if server.pinned is not None else ()
    is_news = server.pinned is None or bool(changes)
    agreed = yes or not is_news
    if not agreed:
        offered = [
            f"tool {clean_text(one.name, 80)}: {clean_text(one.description, 500)}" for one in now.tools
        ]
        for line in changes or (server.target, *offered):
            click.echo(line, err=True)
        agreed = click.confirm(f"Trust {name} as it is now?", err=True)
    if agreed:
        server.trust(now)
    document = {"name": name, "trusted": agreed, "tools": len(now.tools), "digest": now.digest}
    words = f"is trusted with {counted(len(now.tools), 'tool')}" if agreed else "was not trusted"
    text = f"{name} {words}" if is_news else f"{name} {words}; nothing has changed"
    return CommandOutput(document, lambda: click.echo(text), 0 if agreed else 1)


@command.command("call")
@click.argument("name")
@click.argument("tool")
@click.argument("arguments", type=JsonParameter(dict), default="{}")
@_config
@answers
def call(
    invocation: Invocation, *, name: str, tool: str, arguments: dict[str, Any], config: Path | None
) -> CommandOutput:
    """Call a TOOL of a server with ARGUMENTS, a JSON object. Questions from the server appear here."""
    value = _call(_one(invocation, config, name), tool, arguments)
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return CommandOutput(value, lambda: click.echo(visible(text)))


def _call(server: McpServer, tool: str, arguments: dict[str, Any]) -> Any:
    """Call a tool on a loop of another thread; ask its questions on this one, where Ctrl-C ends a prompt."""
    from standfast.tools.loop_threads import LoopThread

    questions: queue.Queue[tuple[AskPerson, Future[Answer]] | None] = queue.Queue()
    loop, ended = LoopThread(), threading.Event()

    def ask(question: AskPerson) -> Answer:
        answer: Future[Answer] = Future()
        questions.put((question, answer))
        return answer.result()

    async def run() -> Any:
        try:
            return await server.call(tool, arguments, ask=ask)
        finally:
            await server.close()
            ended.set()

    calling = asyncio.run_coroutine_threadsafe(run(), loop.loop)
    calling.add_done_callback(lambda _: questions.put(None))
    try:
        while (asked := questions.get()) is not None:
            question, answer = asked
            try:
                answer.set_result(_ask(question))
            except BaseException:
                answer.cancel()
                raise
        return calling.result()
    except BaseException:
        calling.cancel()
        ended.wait(_END_S)
        raise
    finally:
        loop.close()


@command.command("sign-in")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="Request this scope, too.")
@click.option("--no-browser", is_flag=True, help="Print the address of the page instead of opening it.")
@_config
@answers
def sign_in(
    invocation: Invocation, *, name: str, scopes: tuple[str, ...], no_browser: bool, config: Path | None
) -> CommandOutput:
    """Sign in to a server over HTTP with OAuth, on a page that opens in the browser.

    The credentials are kept, encrypted, in the data directory.
    """
    server = _one(invocation, config, name)

    def open_page(address: str) -> None:
        click.echo(f"Sign in on this page: {address}", err=True)
        if not no_browser:
            import webbrowser

            webbrowser.open(address)

    signed_in = _run(server, lambda: server.sign_in(open_page, scopes=scopes))
    words = f"you are signed in to {name}" if signed_in else f"{name} does not require sign-in"
    return CommandOutput.line(words, {"name": name, "signed_in": signed_in})


@command.command("sign-out")
@click.argument("name")
@_config
@answers
def sign_out(invocation: Invocation, *, name: str, config: Path | None) -> CommandOutput:
    """Delete the credentials of a server, and revoke them at its authorization server."""
    server = _one(invocation, config, name)
    signed_out = _run(server, server.sign_out)
    words = f"you are signed out of {name}" if signed_out else f"{name} had no credentials"
    return CommandOutput.line(words, {"name": name, "signed_out": signed_out})


class _AnswerParameter(JsonParameter):
    """An answer to a server's question: a JSON object that matches its schema, `decline` or `cancel`.

    `accept` is an empty object.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        super().__init__(dict)
        self._schema = schema

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from standfast.errors import InvalidArgument
        from standfast.tools.registered_tool import validate_answer

        if value in ("decline", "cancel"):
            return value
        answer = {} if value == "accept" else super().convert(value, param, ctx)
        try:
            validate_answer(self._schema, answer)
        except InvalidArgument as error:
            self.fail(error.message, param, ctx)
        return answer


def _ask(question: AskPerson) -> Answer:
    """Ask the person at the terminal; the end of the input cancels the question."""
    click.echo(visible(question.message), err=True)
    words = "Type accept, decline or cancel"
    if question.answer.get("properties"):
        click.echo(f"The answer must match {json.dumps(question.answer)}", err=True)
        words = "Answer with a JSON object, or type decline or cancel"
    try:
        answer: Answer = click.prompt(words, type=_AnswerParameter(question.answer), err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            return "cancel"
        raise  # Ctrl-C ends the command
    return answer


def _servers(invocation: Invocation, config: Path | None) -> list[McpServer]:
    import logging

    from standfast.errors import NotConfigured
    from standfast.mcp.config import FILE_NAME, read_mcp_servers
    from standfast.runtime.data_dir import DataDir

    logging.getLogger("mcp").addHandler(logging.NullHandler())  # the command reports failures itself
    here, shared = Path(FILE_NAME), invocation.beside(FILE_NAME)
    file = config or (here if here.exists() else shared)
    if config is None and not file.exists():
        raise NotConfigured(
            f"there is no {FILE_NAME} in this directory, and no {shared}",
            hint='write {"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}}}, or pass --config FILE',
        )
    return read_mcp_servers(file, data_dir=DataDir(invocation.data_dir, make=False).directory)


def _one(invocation: Invocation, config: Path | None, name: str) -> McpServer:
    from standfast.errors import NotConfigured
    from standfast.mcp.config import server_name

    servers = _servers(invocation, config)
    for one in servers:
        if one.name == server_name(name):  # the file may write "my-server"
            return one
    known = ", ".join(one.name for one in servers) or "none"
    raise NotConfigured(f"there is no MCP server {name!r}", hint=f"the file has: {known}")


def _run(server: McpServer, work: Callable[[], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            return await work()
        finally:
            await server.close()

    return asyncio.run(run())


_extend = click.option(
    "--extend",
    metavar="FILE.py:NAME",
    help="Your own MCP server, written with the SDK; its tools, resources and prompts are served, too.",
)
_trace = click.option(
    "--trace", metavar="FILE", help="Write a trace to this file.  [default: STANDFAST_TRACE]"
)


@command.command("stdio")
@click.argument("app", required=False)
@_extend
@_trace
@grants_options
@answers
def stdio(
    invocation: Invocation, *, app: str | None, extend: str | None, trace: str | None, grants: SandboxGrants
) -> CommandOutput:
    """Serve MCP on stdin and stdout: the sandbox, and the agents of APP (file.py:name)."""
    offer = _offer(invocation, app, grants, trace, extend)
    from standfast.mcp.serve import serve_stdio

    asyncio.run(serve_stdio(offer))
    return CommandOutput(None, lambda: None)


@command.command("http")
@click.argument("app", required=False)
@click.option("--listen", default="127.0.0.1:8765", show_default=True, metavar="HOST:PORT")
@click.option(
    "--name", "names", multiple=True, metavar="HOST", help="Another name of this host that clients use."
)
@_extend
@_trace
@grants_options
@answers
def http(
    invocation: Invocation,
    *,
    app: str | None,
    listen: str,
    names: tuple[str, ...],
    extend: str | None,
    trace: str | None,
    grants: SandboxGrants,
) -> CommandOutput:
    """Serve MCP over HTTP at http://HOST:PORT/mcp: the sandbox, and the agents of APP (file.py:name).

    Clients need the token in STANDFAST_MCP_TOKEN, else in the file mcp.token beside the data, as a bearer
    token. For several people, tenants and scopes, use `standfast serve`, which serves MCP at /mcp.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise click.UsageError(f"--listen {listen}: write HOST:PORT")
    offer = _offer(invocation, app, grants, trace, extend)
    from standfast.mcp.serve import TOKEN_VARIABLE, listening_socket, serve_http, service_token

    token, host = service_token(invocation.beside("mcp.token")), host.strip("[]")
    listener = listening_socket(host, int(port))
    where = TOKEN_VARIABLE if TOKEN_VARIABLE in os.environ else invocation.beside("mcp.token")
    click.echo(f"http://{listen}/mcp; the token is in {where}", err=True)
    with listener:
        asyncio.run(serve_http(offer, listener, host, token, names))
    return CommandOutput(None, lambda: None)


def _offer(
    invocation: Invocation, app: str | None, grants: SandboxGrants, trace: str | None, extend: str | None
) -> ServedParts:
    from standfast.cli.trace import trace_file, trace_sink
    from standfast.errors import NotConfigured
    from standfast.runtime.app import load_app, load_named

    try:
        from standfast.mcp.serve import ServedParts
    except ImportError:
        raise NotConfigured("this needs the MCP SDK", hint="pip install 'standfast[mcp]'") from None
    file = trace_file(invocation.data_dir, trace)
    return ServedParts(
        grants.options(invocation.data_dir),
        None if app is None else load_app(app),
        trace_sink(invocation.data_dir, trace),
        None if file is None else str(file),
        None if extend is None else load_named(extend),
        invocation.command("approvals", "approve"),
    )
