"""Servers over streamable HTTP: the official SDK's, in both revisions, and one that misbehaves."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import interpreters
import pytest

from standfast import Agent, McpServer, McpTool, Runtime
from standfast.errors import McpServerFailed
from standfast.model.message import ToolMessage
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.result import WaitingTurn

pytestmark = pytest.mark.slow

SERVER = """
import sys
from typing import Annotated
from pydantic import BaseModel
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Resolve

server = MCPServer("shop")

class City(BaseModel):
    city: str

def place() -> Elicit[City]:
    return Elicit("Which city?", City)

@server.tool()
async def weather(found: Annotated[ElicitationResult[City], Resolve(place)]) -> str:
    '''Ask for a city as both revisions can.'''
    return f"weather in {found.data.city}" if found.action == "accept" else found.action

@server.tool()
async def midway(ctx: Context) -> str:
    '''Ask for a city in the middle of the call, as only 2025-11-25 can.'''
    found = await ctx.elicit("Which city?", City)
    return f"weather in {found.data.city}" if found.action == "accept" else found.action

@server.tool()
def add(a: int, b: int) -> int:
    '''Add two numbers.'''
    return a + b

@server.tool()
async def who(ctx: Context) -> str:
    '''Return the header that the client sends.'''
    return ctx.headers.get("x-tenant", "none")

if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Start a server of the SDK and return its port."""
    number = free_port()
    process = interpreters.Interpreter([sys.executable, "-c", SERVER, str(number)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", number), timeout=1).close()
            break
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    yield number
    process.kill()
    process.wait()


@pytest.mark.parametrize("protocol", ["auto", "2025-11-25", "2026-07-28"])
def test_a_server_over_http_is_called_in_both_revisions(port: int, tmp_path: Path, protocol: Any) -> None:
    """Ours: streamable HTTP works with sessions and without."""
    server = McpServer(
        f"http://127.0.0.1:{port}/mcp",
        name="shop",
        headers={"X-Tenant": "acme"},
        protocol=protocol,
        data_dir=tmp_path,
    )
    calls = [
        {"name": "mcp__shop__add", "arguments": {"a": 1, "b": 2}},
        {"name": "mcp__shop__who", "arguments": {}},
    ]

    async def run() -> Any:
        async with Runtime() as runtime:
            agent = Agent(ScriptedModel([{"tool_calls": calls}, "done"]), tools=[server])
            return await (await runtime.session("s", agent=agent)).turn("go")

    results = [one.value for one in asyncio.run(run()).messages if isinstance(one, ToolMessage)]
    assert results == [{"result": 3}, {"result": "acme"}]
    assert server._pin is not None
    assert server._pin.protocol == ("2025-11-25" if protocol == "2025-11-25" else "2026-07-28")


async def _asked(server: McpServer, tool: str, home: Path) -> str:
    """Start a turn whose call asks for a city, and return the id of the approval."""
    async with Runtime(home / "standfast.db") as runtime:
        session = await runtime.session("s", agent=_asking(server, tool))
        assert isinstance(await session.turn("go"), WaitingTurn)
        [approval] = await runtime.approvals(pending=True)
        assert approval.reason == "the MCP server shop asks: Which city?"
        return approval.approval_id


async def _decided(server: McpServer, tool: str, home: Path, approval_id: str, city: str) -> ToolMessage:
    """Answer the question in another runtime, and return the result of the call."""
    async with Runtime(home / "standfast.db") as runtime:
        session = await runtime.session("s", agent=_asking(server, tool))
        await runtime.approve(approval_id, arguments={"city": city})
        turn = await session.resume() or session.follow((await session.turns())[-1].turn_id)
        [result] = [one for one in (await turn.settled()).messages if isinstance(one, ToolMessage)]
        return result


def _asking(server: McpServer, tool: str) -> Agent[None, str]:
    calls = [{"name": f"mcp__shop__{tool}", "arguments": {}}]
    return Agent(ScriptedModel([{"tool_calls": calls}, "done"]), tools=[server])


@pytest.mark.sampled(4, each="is_stdio")
@pytest.mark.parametrize(
    ("protocol", "tool", "spoken"),
    [
        ("2025-11-25", "weather", "2025-11-25"),
        ("2026-07-28", "weather", "2026-07-28"),
        ("2025-11-25", "midway", "2025-11-25"),
        ("auto", "midway", "2025-11-25"),
    ],
)
@pytest.mark.parametrize("is_stdio", [False, True], ids=["http", "stdio"])
def test_a_server_of_the_sdk_can_ask_a_person(
    port: int, tmp_path: Path, protocol: Any, tool: str, spoken: str, is_stdio: bool
) -> None:
    """Bug: a tool that used `ctx.elicit` failed under `auto`, because 2026-07-28 cannot carry it."""
    target = [sys.executable, "-c", SERVER] if is_stdio else f"http://127.0.0.1:{port}/mcp"

    def server() -> McpServer:
        return McpServer(target, name="shop", protocol=protocol, data_dir=tmp_path)

    approval_id = asyncio.run(_asked(server(), tool, tmp_path))
    pinned = server().pinned
    assert pinned is not None
    assert pinned.protocol == spoken
    result = asyncio.run(_decided(server(), tool, tmp_path, approval_id, "Oslo"))
    assert result.value == {"result": "weather in Oslo"}


def test_a_revision_chosen_by_the_user_is_kept(port: int, tmp_path: Path) -> None:
    """Ours: with 2026-07-28 a question in the middle of a call is an error whose hint names the solution."""
    server = McpServer(f"http://127.0.0.1:{port}/mcp", name="shop", protocol="2026-07-28", data_dir=tmp_path)

    async def run() -> Any:
        async with Runtime() as runtime:
            return await (await runtime.session("s", agent=_asking(server, "midway"))).turn("go")

    [result] = [one for one in asyncio.run(run()).messages if isinstance(one, ToolMessage)]
    assert result.error is not None
    assert result.error.code == "TOOL_ERROR"
    assert 'protocol="2025-11-25"' in str(result.error.hint)


def test_an_unreachable_server_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Ours: the error says which server cannot be reached."""
    server = McpServer(f"http://127.0.0.1:{free_port()}/mcp", name="gone", data_dir=tmp_path)
    with pytest.raises(McpServerFailed, match="'gone'"):
        asyncio.run(server.advertised())


HOSTILE = {
    "not http": ("MCP_SERVER_FAILED", "without sending a response"),
    "500": ("MCP_SERVER_FAILED", "answered with the HTTP status 500"),
    "redirect": ("MCP_SERVER_FAILED", "not followed"),
    "compressed": ("MCP_SERVER_FAILED", "compressed"),
    "endless body": ("MCP_SERVER_FAILED", "more than 67108864 bytes"),
    "endless stream": ("MCP_SERVER_FAILED", "stream ended"),
    "silent": ("MCP_SERVER_FAILED", "did not answer within 3 s"),
    "html": ("MCP_SERVER_FAILED", "text/html"),
    "401": ("MCP_SIGN_IN_REQUIRED", "requires sign-in"),
}
"""Behaviours of endpoints, with the code of the error and part of its message."""


@pytest.mark.parametrize("behaviour", HOSTILE)
def test_a_hostile_endpoint_is_an_error_that_names_it(tmp_path: Path, behaviour: str) -> None:
    """Ours: the table of hostile behaviours for HTTP: nothing hangs."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            match behaviour:
                case "not http":
                    writer.write(b"220 mail.example.org ESMTP\r\n")
                case "500":
                    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno")
                case "401":
                    writer.write(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno")
                case "redirect":
                    writer.write(
                        b"HTTP/1.1 307 Go\r\nLocation: http://169.254.169.254/x\r\nContent-Length: 0\r\n\r\n"
                    )
                case "compressed":
                    writer.write(head + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxxx")
                case "html":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno")
                case "silent":
                    await asyncio.sleep(60)
                case _:
                    if behaviour == "endless stream":
                        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                    writer.write(head + b"\r\n")
                    while True:
                        writer.write(b": " + b"x" * 65536 + b"\n")
                        await writer.drain()
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        number = listener.sockets[0].getsockname()[1]
        server = McpServer(
            f"http://127.0.0.1:{number}/mcp",
            name="hostile",
            data_dir=tmp_path,
            connect_s=3.0 if behaviour == "silent" else 30.0,
            tools={"echo": McpTool(timeout_ms=1000)},
        )
        try:
            with pytest.raises(McpServerFailed, match="'hostile'") as caught:
                await server.advertised()
            code, words = HOSTILE[behaviour]
            assert caught.value.code == code
            assert words in caught.value.message
        finally:
            await server.close()
            listener.close()

    asyncio.run(run())
