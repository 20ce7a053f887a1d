"""MCP at `/mcp` of the HTTP server: credentials, scopes, tenants, limits, and official clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

sys.path.insert(0, str(Path(__file__).parent))

from server_stage import ServerStage

pytestmark = pytest.mark.slow

REVISIONS = ["legacy", "auto"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStage]:
    with ServerStage(tmp_path_factory.mktemp("mcp")) as running:
        yield running


async def _accept(context: object, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"approve": True})


def _with_client(
    stage: ServerStage, token: str, work: Callable[[Client], Awaitable[Any]], mode: str = "auto"
) -> Any:
    async def run() -> Any:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            Client(
                streamable_http_client(f"{stage.url}/mcp", http_client=http),
                mode=mode,
                elicitation_callback=_accept,
            ) as client,
        ):
            return await work(client)

    return asyncio.run(run())


def _text(result: Any) -> str:
    return "".join(one.text for one in result.content)


@pytest.mark.parametrize("mode", REVISIONS)
def test_a_client_can_run_code_call_agents_and_decide(stage: ServerStage, mode: str) -> None:
    """Ours: the mounted server offers the same as `standfast mcp`; a decision has the credential's name."""

    async def work(client: Client) -> None:
        ran = await client.call_tool("run_code", {"code": "1 + 1", "session": f"code-{mode}"})
        assert ran.structured_content["result"] == 2
        said = await client.call_tool("ask_clerk", {"prompt": "refund", "session": f"ask-{mode}"})
        assert _text(said) == "the tool said refunded A1 500"
        history = await client.read_resource(f"standfast://sessions/ask-{mode}")
        assert "refunded A1 500" in history.contents[0].text

    _with_client(stage, stage.token(name="ann"), work, mode)
    with stage.client() as client:
        found = client.get("/v1/approvals", params={"session_id": f"ask-{mode}"}).json()
    assert found[0]["decided_by"].startswith("ann (")


def test_scopes_determine_what_a_client_may_do(stage: ServerStage) -> None:
    """Ours: `read` lists and reads, `run` calls, `approve` decides."""

    async def reads(client: Client) -> None:
        assert [one.name for one in (await client.list_tools()).tools] == ["list_sessions"]
        assert not (await client.call_tool("list_sessions", {})).is_error
        assert (await client.call_tool("run_code", {"code": "1"})).is_error
        await client.list_resources()

    async def runs(client: Client) -> None:
        assert "ask_clerk" in [one.name for one in (await client.list_tools()).tools]
        said = await client.call_tool("ask_clerk", {"prompt": "refund", "session": "may-not"})
        assert said.structured_content["status"] == "waiting"  # the client's user is not asked
        with pytest.raises(MCPError):
            await client.read_resource("standfast://sessions/none")

    _with_client(stage, stage.token("read"), reads)
    _with_client(stage, stage.token("read", "run"), runs)


def test_a_client_cannot_raise_the_time_limit_of_the_sandbox(stage: ServerStage) -> None:
    """Bug: `run_code` accepted a timeout of weeks from any client with the scope `run`."""

    async def work(client: Client) -> None:
        ran = await client.call_tool("run_code", {"code": "1", "session": "slow", "timeout_ms": 10**9})
        assert ran.is_error
        assert "timeout_ms may be at most 5,000 here" in _text(ran)

    _with_client(stage, stage.token("read", "run"), work)


@pytest.mark.parametrize("mode", REVISIONS)
def test_a_tenant_sees_only_its_own_resources(stage: ServerStage, mode: str) -> None:
    """Ours: sessions, snapshots and histories of another tenant do not exist for it."""
    name = f"shared-{mode}"

    async def mine(client: Client) -> str:
        await client.call_tool("run_code", {"code": "secret = 'of one'", "session": name})
        await client.call_tool("ask_clerk", {"prompt": "hello", "session": f"talk-{mode}"})
        made = await client.call_tool("snapshot_session", {"session": name})
        return str(made.structured_content["snapshot_id"])

    async def other(client: Client) -> None:
        ran = await client.call_tool("run_code", {"code": "secret", "session": name})
        assert ran.structured_content["status"] != "completed"
        ran = await client.call_tool("run_code", {"code": "secret", "session": f"_one_{name}"})
        assert ran.structured_content["status"] != "completed"  # its own session with an odd name
        restored = await client.call_tool("restore_session", {"snapshot_id": snapshot, "session": "x"})
        assert restored.is_error
        listed = await client.call_tool("list_sessions", {})
        assert all(one["meta"]["id"].startswith("_two_") for one in listed.structured_content["sessions"])
        uris = [str(one.uri) for one in (await client.list_resources()).resources]
        assert all(uri.startswith("standfast://sessions/_two_") for uri in uris)
        for uri in (f"_one_talk-{mode}", f"talk-{mode}"):
            with pytest.raises(MCPError, match="session"):
                await client.read_resource(f"standfast://sessions/{uri}")

    snapshot = _with_client(stage, stage.token("read", "run", "approve", tenant="one"), mine, mode)
    _with_client(stage, stage.token("read", "run", "approve", tenant="two"), other, mode)


def test_a_protocol_session_belongs_to_its_credential(stage: ServerStage) -> None:
    """Ours: knowing the id of a 2025-11-25 session grants no access."""
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    accept = {"Accept": "application/json, text/event-stream"}
    with httpx2.Client(base_url=stage.url, headers=accept) as http:
        first, second = (f"Bearer {stage.token('read', 'run', tenant=one)}" for one in ("one", "two"))
        opened = http.post("/mcp", json=hello, headers={"Authorization": first})
        assert opened.status_code == 200
        assert opened.headers["x-content-type-options"] == "nosniff"
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert http.post("/mcp", json=ping, headers={"Authorization": first, **session}).status_code == 200
        assert http.post("/mcp", json=ping, headers={"Authorization": second, **session}).status_code == 404
        assert http.delete("/mcp", headers={"Authorization": second, **session}).status_code == 404
        assert http.delete("/mcp", headers={"Authorization": first, **session}).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_nothing_is_served_without_a_credential(stage: ServerStage, method: str) -> None:
    """Ours: the checks of all routes apply."""
    with httpx2.Client(base_url=stage.url) as http:
        assert http.request(method, "/mcp").status_code == 401
        wrong = {"Authorization": f"Bearer {stage.token()}", "Host": "evil.example"}
        assert http.request(method, "/mcp", headers=wrong).status_code == 421
        assert http.put("/mcp", headers={"Authorization": f"Bearer {stage.token()}"}).status_code == 405
