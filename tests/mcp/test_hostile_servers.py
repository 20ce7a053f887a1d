"""Misbehaving servers: each behaviour has a defined outcome, and costs at most one failed call."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast import Agent, McpServer, McpTool, Runtime
from standfast.errors import McpServerFailed
from standfast.model.message import ToolMessage
from standfast.providers.scripted import ScriptedModel
from standfast.tools.context import MAX_TEXT_CHARS

HOSTILE = Path(__file__).parent / "hostile_server.py"

STARTS = {
    "start: dies": "cannot read my configuration",
    "start: hangs": "did not answer within 2 s",
    "start: floods": "sent more than 10000 messages",
    "start: unknown revision": "1999-01-01",
    "start: wrong answer": "broke the protocol",
    "list: never ends": "on more than 200 pages",
    "list: too many": "more than 5000 tools",
    "list: hangs": "did not answer within 2 s",
    "list: not a list": "broke the protocol",
    "list: schema of a list": "Input should be 'object'",
    "list: error": "no tools for you",
    "list: annotations of the wrong type": "broke the protocol",
}
"""Behaviours that make a server unusable, and part of the error message."""

CALLS = {
    "": "7",
    "start: noise": "7",
    "start: dies at discover": "7",
    "list: foreign schema": "7",
    "list: file schema": "7",
    "list: wrong schema": "7",
    "list: deep schema": "7",
    "list: same name twice": "7",
    "list: names that collide": "7",
    "list: long name": "7",
    "list: name of another tool": "7",
    "list: huge description": "7",
    "list: hidden characters": "7",
    "call: floods stderr": "after the flood",
    "call: answers twice": "first",
    "call: asks for roots": "refused",
    "call: asks for sampling": "refused",
    "call: leaves a child": "with a child",
    "call: hangs": "TIMEOUT_TOOL",
    "call: hangs and ignores signals": "TIMEOUT_TOOL",
    "call: dies": "MCP_SERVER_FAILED",
    "call: dies with words": "MCP_SERVER_FAILED",
    "call: kills itself": "MCP_SERVER_FAILED",
    "call: closes its output": "MCP_SERVER_FAILED",
    "call: closes its input": "TIMEOUT_TOOL",
    "call: floods with notifications": "MCP_SERVER_FAILED",
    "call: floods with noise": "MCP_SERVER_FAILED",
    "call: endless line": "MCP_SERVER_FAILED",
    "call: huge result": "RESPONSE_TOO_LARGE",
    "call: huge text beside a value": "7",
    "call: failure with a huge text": "TOOL_ERROR",
    "call: another id": "TIMEOUT_TOOL",
    "call: an id of null": "TIMEOUT_TOOL",
    "call: result and error": "TOOL_ERROR",
    "call: result of the wrong type": "MCP_SERVER_FAILED",
    "call: content of the wrong type": "MCP_SERVER_FAILED",
    "call: unknown content": "MCP_SERVER_FAILED",
    "call: broken image": "MCP_SERVER_FAILED",
    "call: deep result": "TIMEOUT_TOOL",
    "call: lone surrogate": "TIMEOUT_TOOL",
    "call: not UTF-8": "TIMEOUT_TOOL",
    "call: error with a huge message": "TOOL_ERROR",
    "call: error that is no object": "MCP_SERVER_FAILED",
    "call: asks with a foreign schema": "INVALID_ARGUMENT",
    "call: waits for half a line": "TIMEOUT_TOOL",
}
"""Behaviours of servers that can be called, with the value of the call or the code of its error."""


def _in_group(group: int) -> list[int]:
    """Return the running processes of a group; a dead one may remain until its parent reaps it."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            state, _, its_group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(pid)
    return found


def _server(tmp_path: Path, behaviour: str) -> McpServer:
    return McpServer(
        [sys.executable, "-I", "-S", str(HOSTILE), behaviour],
        name="hostile",
        data_dir=tmp_path,
        connect_s=2.0 if "hangs" in behaviour else 30.0,
        idle_s=30.0,
        tools={"echo": McpTool(timeout_ms=1500 if CALLS.get(behaviour) == "TIMEOUT_TOOL" else 30_000)},
    )


@pytest.mark.parametrize("behaviour", STARTS)
def test_an_unusable_server_is_an_error_that_names_it(tmp_path: Path, behaviour: str) -> None:
    """Ours: the table of hostile behaviours: nothing hangs, and nothing is pinned."""
    server = _server(tmp_path, behaviour)
    began = time.monotonic()
    with pytest.raises(McpServerFailed) as caught:
        asyncio.run(server.advertised())
    assert STARTS[behaviour] in str(caught.value)
    assert "'hostile'" in str(caught.value)
    assert time.monotonic() - began < 60
    assert not (tmp_path / "mcp").exists()
    asyncio.run(server.close())


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("behaviour", CALLS)
def test_a_hostile_server_costs_at_most_one_failed_call(tmp_path: Path, behaviour: str) -> None:
    """Ours: the table of hostile behaviours: the turn ends, and no process is left."""
    server = _server(tmp_path, behaviour)
    calls = {"tool_calls": [{"name": "mcp__hostile__echo", "arguments": {"x": 7}}]}
    pids: list[int | None] = []

    async def run() -> Any:
        async with Runtime() as runtime:
            agent = Agent(ScriptedModel([calls, "done"]), tools=[server])
            session = await runtime.session("s", agent=agent)
            turn = await session.turn("go")
            pids.extend(one.pid for one in server.connections)
            return turn, await session.tools.catalog()

    turn, catalog = asyncio.run(run())
    assert turn.output == "done"
    [result] = [one for one in turn.messages if isinstance(one, ToolMessage)]
    assert (result.value if result.error is None else result.error.code) == CALLS[behaviour]
    assert len(msgspec.json.encode(result)) < 3 * MAX_TEXT_CHARS
    names = [one["name"] for one in catalog]
    assert len(names) == len(set(names))
    assert all(name.startswith("mcp__hostile__") and len(name) <= 64 and name.isascii() for name in names)
    assert not any(name.endswith("bad") for name in names)
    for one in catalog:
        assert len(one["description"]) < 5000
        assert "\u202e" not in one["description"]
        assert "\U000e0069" not in one["description"]
    deadline = time.monotonic() + 10
    while any(_in_group(pid) for pid in pids if pid is not None):
        assert time.monotonic() < deadline
