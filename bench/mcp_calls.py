"""What a call to an MCP server costs, beside the same call by the bare SDK client, and a large catalog.

usage: bench/mcp_calls.py [ROUNDS]

Both clients take turns, 25 calls at a time, so that other work on the machine slows down both. The figure of
each is the first quartile of its calls.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mcp import Client, StdioServerParameters

from standfast import Agent, McpServer, Runtime, UsageLimits
from standfast.mcp.contracts import AdvertisedTool
from standfast.mcp.pins import Pin, PinFile
from standfast.providers.scripted import ScriptedModel

SERVER = """
from mcp.server import MCPServer
server = MCPServer("bench")
@server.tool()
def add(a: int, b: int) -> int:
    return a + b
server.run("stdio")
"""
ROUNDS = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdigit() else 20
CALLS = 25
SERVERS, TOOLS = 50, 200


async def by_sdk(client: Client) -> list[float]:
    """Return the seconds of each call by the SDK's client."""
    times = [time.perf_counter()]
    for number in range(CALLS):
        await client.call_tool("add", {"a": number, "b": 2})
        times.append(time.perf_counter())
    return _gaps(times)


async def in_turn(runtime: Runtime, server: McpServer, name: str) -> list[float]:
    """Return the seconds from one call of a turn to the next, model and journal included."""
    replies = [
        {"tool_calls": [{"name": "mcp__bench__add", "arguments": {"a": number, "b": 2}}]}
        for number in range(CALLS)
    ]
    times: list[float] = []

    class Timed(ScriptedModel):
        def stream(self, *given, **options):  # type: ignore[no-untyped-def]
            times.append(time.perf_counter())
            return super().stream(*given, **options)

    agent = Agent(Timed([*replies, "done"]), tools=[server])
    session = await runtime.session(name, agent=agent)
    await session.turn("go", limits=UsageLimits(max_iterations=CALLS + 10))
    return _gaps(times)


async def calls(home: Path) -> tuple[float, float]:
    """Return the milliseconds that a call takes by the SDK's client, and in a turn with a store in memory."""
    alone, turn = list[float](), list[float]()
    server = McpServer([sys.executable, "-c", SERVER], name="bench", data_dir=home)
    bare = Client(StdioServerParameters(command=sys.executable, args=["-c", SERVER]))
    async with bare, Runtime() as runtime:
        for number in range(ROUNDS + 1):
            first, second = await by_sdk(bare), await in_turn(runtime, server, f"s{number}")
            if number:  # the first round starts the servers
                alone += first
                turn += second
        await server.close()
    return _quartile(alone), _quartile(turn)


def _gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def _quartile(times: list[float]) -> float:
    return statistics.quantiles(times, n=4)[0] * 1000


def write_pins(home: Path) -> None:
    """Pin 50 servers of 200 tools."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    for number in range(SERVERS):
        name = f"s{number}"
        about = f"Return the record of customer x in register {name}."
        tools = tuple(
            AdvertisedTool(name=f"t{one}", description=about, input_schema=schema) for one in range(TOOLS)
        )
        launch = McpServer("true", name=name, data_dir=home)._endpoint.launch()
        PinFile(home, name).write(Pin(launch=launch, tools=tools, protocol="2025-11-25").examined())


async def catalog(home: Path) -> tuple[float, float]:
    """Return the milliseconds to open the first session of a process over the pins, and the second."""
    servers = [
        McpServer("true", name=f"s{number}", data_dir=home, availability="searchable")
        for number in range(SERVERS)
    ]
    agent = Agent(ScriptedModel([]), tools=servers)
    spent = []
    async with Runtime() as runtime:
        await runtime.session("none", agent=Agent(ScriptedModel([]), name="none"))
        for name in ("first", "second"):
            began = time.perf_counter()
            session = await runtime.session(name, agent=agent)
            spent.append((time.perf_counter() - began) * 1000)
        assert len(await session.tools.catalog()) == SERVERS * TOOLS
    return spent[0], spent[1]


def catalogs(home: Path) -> tuple[float, float]:
    """Return the best times of five processes."""
    found = []
    for _ in range(5):
        done = subprocess.run([sys.executable, __file__, "catalog", home], capture_output=True, check=True)
        found.append([float(word) for word in done.stdout.split()])
    return min(one[0] for one in found), min(one[1] for one in found)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        alone, turn = asyncio.run(calls(home))
        print(f"a call by the bare SDK client {alone:.2f} ms, in a turn {turn:.2f} ms: {turn / alone:.2f}×")
        write_pins(home)
        first, second = catalogs(home)
        print(f"open a session with 10,000 tools of 50 servers {second:.1f} ms, the first one {first:.0f} ms")


if sys.argv[1:2] == ["catalog"]:
    print(*asyncio.run(catalog(Path(sys.argv[2]))))
else:
    main()
