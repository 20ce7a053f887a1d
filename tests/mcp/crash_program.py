"""Kills a turn with three MCP calls at every point, recovers it each time, and prints the outcome.

usage: crash_program.py HOME ERA FIRST STEP

A child dies at the point FIRST, the next one STEP points later, and so on until one reaches its end. Each is
recovered by another child. The MCP server writes the ledger of calls; it outlives the killed
process by a moment.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import mcp  # noqa: F401 - imported before the forks, so that no child has to

from standfast import Agent, McpServer, McpTool, Runtime
from standfast.durable.journal import owner_is_dead
from standfast.model.message import ToolMessage
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.result import WaitingTurn
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.crash_points import CrashPoints

RAW_SERVER = Path(__file__).parent / "raw_server.py"
TOOLS = ("read", "echo", "ask")


def make_server(home: Path, era: str, points: CrashPoints) -> McpServer:
    command = [sys.executable, "-I", "-S", str(RAW_SERVER), "--log", str(home / "ledger.jsonl")]
    server = McpServer(
        [*command, *(["--era", era] if era else [])],
        name="raw",
        data_dir=home,
        tools={"read": McpTool(side_effect="read")},
    )
    execute = server._execute

    async def executed(*given: Any) -> Any:
        points.point("before the call")
        result = await execute(*given)
        points.point("after the call")
        return result

    server._execute = executed  # type: ignore[method-assign, assignment]
    return server


async def run(home: Path, era: str, points: CrashPoints) -> dict[str, Any]:
    """Run the turn, or resume it, answer the question, and return the results."""
    calls = [{"name": f"mcp__raw__{name}", "arguments": {"x": 1}} for name in TOOLS]
    model = points.model(ScriptedModel([{"tool_calls": calls}, "done"]))
    store = points.store(SqliteSessionStore(home / "standfast.db", owner_is_dead=owner_is_dead))
    async with Runtime(store) as runtime:
        agent = Agent(model, tools=[make_server(home, era, points)])
        session = await runtime.session("s", agent=agent)
        turn = await session.turn("go", idempotency_key="k").settled()
        while isinstance(turn, WaitingTurn):
            for approval in await runtime.approvals(pending=True):
                await runtime.approve(approval.approval_id, arguments={"city": "Oslo"})
            resumed = await session.resume()
            turn = await (resumed or session.follow(turn.turn_id)).settled()
        results = [one for one in turn.messages if isinstance(one, ToolMessage)]
        codes = [(one.name, one.value if one.error is None else one.error.code) for one in results]
        return {name.rpartition("__")[2]: code for name, code in codes}


def in_child(home: Path, era: str, crash_at: int | None) -> dict[str, Any] | None:
    """Return the output of a child; None if it was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            left = asyncio.run(asyncio.wait_for(run(home, era, CrashPoints(crash_at)), 60))
            os.write(writing, json.dumps(left).encode())
        except BaseException as error:
            os.write(writing, json.dumps({"error": repr(error)}).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return None if os.WIFSIGNALED(status) else json.loads(text)


def main() -> None:
    home, era, first, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    for number in range(first, 500, step):
        place = home / str(number)
        place.mkdir()
        left = in_child(place, era, number)
        killed = left is None
        left = in_child(place, era, None) if killed else left
        ledger = place / "ledger.jsonl"
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        done = [json.loads(line)["tool"] for line in lines]
        counts = {name: done.count(name) for name in TOOLS}
        print(json.dumps({"point": number, "killed": killed, "left": left, "counts": counts}), flush=True)
        if not killed:
            return


main()
