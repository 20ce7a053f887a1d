"""Standfast as an MCP server over HTTP: official clients, and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_http import TOKEN, mcp_http_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start `standfast mcp http` and return its URL."""
    with mcp_http_server(tmp_path_factory.mktemp("home")) as address:
        yield address


@asynccontextmanager
async def _client(url: str, mode: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


def _text(result: Any) -> str:
    return "".join(one.text for one in result.content)


async def _result(url: str, mode: str, code: str, session: str) -> Any:
    async with _client(url, mode) as client:
        ran = await client.call_tool("run_code", {"code": code, "session": session})
        return ran.structured_content["result"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_clients_of_both_revisions_can_run_code(url: str, mode: str) -> None:
    """Ours: sessions of the sandbox are independent of connections."""
    asyncio.run(_result(url, mode, "x = 20", mode))
    assert asyncio.run(_result(url, mode, "x + 1", mode)) == 21


_PARAMS = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
_CALL = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _PARAMS}
_HEAD = {
    "Authorization": f"Bearer {TOKEN}",
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}
_BODY = json.dumps(_CALL).encode()
HOSTILE: dict[str, tuple[dict[str, str | None], bytes, int]] = {
    "no token": ({"Authorization": None}, _BODY, 401),
    "another token": ({"Authorization": "Bearer x"}, _BODY, 401),
    "the token as basic": ({"Authorization": f"Basic {TOKEN}"}, _BODY, 401),
    "another host": ({"Host": "evil.example"}, _BODY, 421),
    "another origin": ({"Origin": "https://evil.example"}, _BODY, 403),
    "another content type": ({"Content-Type": "text/plain"}, _BODY, 400),
    "accepts nothing": ({"Accept": "image/png"}, _BODY, 406),
    "no JSON": ({}, b"{", 400),
    "no UTF-8": ({}, b'{"a": "\xff"}', 400),
    "no message": ({}, b"[1, 2]", 400),
    "an empty body": ({}, b"", 400),
    "a deep body": ({}, b"[" * 100_000 + b"]" * 100_000, 400),
    "a huge body": ({}, b'{"x": "' + b"x" * 40_000_000 + b'"}', 413),
    "an unknown session": ({"Mcp-Session-Id": "nope"}, _BODY, 404),
    "an unknown revision": (
        {"Mcp-Protocol-Version": "1999-01-01", "Mcp-Session-Id": "nope"},
        json.dumps({**_CALL, "method": "tools/list"}).encode(),
        400,
    ),
    "a call before the handshake": (
        {},
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode(),
        400,
    ),
}
"""Invalid requests by their fault, with the expected status."""


@pytest.mark.parametrize("behaviour", HOSTILE)
def test_a_hostile_client_is_refused_and_others_are_served(url: str, behaviour: str) -> None:
    """Ours: the table of hostile clients; each has a defined outcome."""
    changed, body, expected = HOSTILE[behaviour]
    headers = {key: value for key, value in {**_HEAD, **changed}.items() if value is not None}
    with httpx2.Client(timeout=30) as client:
        try:
            assert client.post(url, content=body, headers=headers).status_code == expected
        except httpx2.TransportError:
            assert behaviour == "a huge body"  # the server need not read it completely
    assert asyncio.run(_result(url, "legacy", "1 + 1", "others")) == 2


CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a tool that does not exist": ("nothing", {}, "INVALID_ARGUMENT"),
    "a call without an argument": ("run_code", {}, "INVALID_ARGUMENT"),
    "an argument of the wrong type": ("run_code", {"code": 5}, "INVALID_ARGUMENT"),
    "an approval among the arguments": ("run_code", {"code": "1", "approve": True}, "INVALID_ARGUMENT"),
    "a session that is a path": ("run_code", {"code": "1", "session": "../x"}, "INVALID_ARGUMENT"),
    "a time limit below zero": ("run_code", {"code": "1", "timeout_ms": -1}, "INVALID_ARGUMENT"),
    "a megabyte of code": ("run_code", {"code": "x" * 1_000_000}, "REQUEST_TOO_LARGE"),
    "code that never ends": ("run_code", {"code": "while True: pass", "timeout_ms": 300}, "TIMEOUT_WALL"),
    "code that takes all memory": ("run_code", {"code": "x = 'a' * 10**10"}, "MEMORY_EXCEEDED"),
    "code that reads a file": ("run_code", {"code": "open('/etc/passwd').read()"}, "PERMISSION_DENIED"),
    "a snapshot that does not exist": ("restore_session", {"snapshot_id": "none"}, "INVALID_ARGUMENT"),
    "a run that does not exist": ("resume_run", {"session": "none"}, "SESSION_NOT_FOUND"),
}
"""Invalid calls by their fault, with the expected error code."""


@pytest.mark.parametrize("behaviour", CALLS)
def test_a_hostile_call_fails_with_its_code(url: str, behaviour: str) -> None:
    """Ours: the table of hostile clients; a failed call leaves its connection intact."""
    name, arguments, expected = CALLS[behaviour]

    async def run() -> None:
        async with _client(url, "auto") as client:
            result = await client.call_tool(name, arguments)
            found = result.structured_content or {}
            codes = [one["code"] for one in found.get("diagnostics", ())]
            assert (_text(result).partition(":")[0] if result.is_error else codes[0]) == expected
            assert not (await client.call_tool("run_code", {"code": "1 + 1"})).is_error

    asyncio.run(run())


@pytest.mark.parametrize("uri", ["standfast://sessions/../../etc/passwd", "file:///etc/passwd", "x"])
def test_a_resource_outside_the_sessions_is_refused(url: str, uri: str) -> None:
    """Ours: the table of hostile clients; only sessions can be read."""

    async def run() -> None:
        async with _client(url, "auto") as client:
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri)
            assert caught.value.code == -32602

    asyncio.run(run())


def test_a_stdio_client_that_sends_garbage_is_still_served(tmp_path: Path) -> None:
    """Ours: the table of hostile clients: invalid input is skipped, and the end of input ends the server."""
    hello = json.dumps(_CALL).encode()
    noise = b"\xff\xfe\n" + b"{\n" + b"[" * 50_000 + b"\n" + b'{"jsonrpc": "2.0"}\n'
    done = subprocess.run(
        [sys.executable, "-m", "standfast", "mcp", "stdio", "--data-dir", str(tmp_path)],
        input=noise + hello + b"\n" + b'{"half a line',
        capture_output=True,
        timeout=120,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["result"]["serverInfo"]["name"] for one in answers if one.get("id") == 1] == ["standfast"]
    assert done.returncode == 0


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_no_http_method_works_without_the_token(url: str, method: str) -> None:
    """Ours: every route requires a credential."""
    with httpx2.Client() as client:
        assert client.request(method, url).status_code == 401
        assert client.request(method, url.removesuffix("mcp")).status_code == 401


def test_a_client_that_disconnects_during_a_call_leaves_the_server_working(url: str) -> None:
    """Ours: a run is independent of its client."""

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await _result(url, "legacy", "while True: pass", "left")

    asyncio.run(run())
    assert asyncio.run(_result(url, "legacy", "1 + 1", "others")) == 2
