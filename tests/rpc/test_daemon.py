"""`standfast daemon`: the sandbox over a unix socket and over stdio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import interpreters
import pytest

from standfast import Sandbox, tool
from standfast.errors import NotConfigured
from standfast.rpc.daemon import METHODS, serve_sandbox
from standfast.rpc.json_rpc import Read, Write
from standfast.rpc.streams import serve_socket, this_user

pytestmark = pytest.mark.anyio


@tool(side_effect="external_system", approval="manual")
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


class SocketClient:
    """A client of the daemon that sends one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self.writer.write(json.dumps(request).encode() + b"\n")
        return dict(json.loads(await self.reader.readline()))

    async def call(self, method: str, **params: Any) -> Any:
        answer = await self.send(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def refused(self, method: str, **params: Any) -> str:
        return str((await self.send(method, **params))["error"]["data"]["code"])


class Daemon:
    """A daemon in this process."""

    def __init__(self, path: Path, stop: asyncio.Event, serving: asyncio.Future[None]) -> None:
        self.path = path
        self.stop = stop
        self.serving = serving

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[SocketClient]:
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        try:
            yield SocketClient(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    path, stop = tmp_path / "s.sock", asyncio.Event()
    async with Sandbox(tools=[pay], data_dir=tmp_path) as box:

        async def serve(read: Read, write: Write, user: str) -> None:
            await serve_sandbox(box, read, write, user)

        serving = asyncio.ensure_future(serve_socket(path, serve, stop))
        while not path.exists():  # noqa: ASYNC110 - the file appears in the next cycles of the loop
            await asyncio.sleep(0)
        yield Daemon(path, stop, serving)
        stop.set()
        await serving


async def test_every_method_of_the_sandbox_is_available(daemon: Daemon) -> None:
    """Seed: the daemon has methods for sessions, tools, policy and approvals, under these names."""
    async with daemon.client() as client:
        made = await client.call("session.create", session_id="a", limits={"cpu_ms": 1000})
        assert made["meta"]["id"] == "a"
        assert (await client.call("session.run", session_id="a", code="x = 20; x + 1"))["result"] == 21
        checked = await client.call("session.validate", session_id="a", code="nope()")
        assert checked["error"]["code"] == "UNKNOWN_TOOL"
        snapshot = (await client.call("session.snapshot", session_id="a"))["snapshot_id"]
        await client.call("session.run", session_id="a", code="x = 0")
        assert await client.call("session.fork", session_id="a", new_session_id="b") == {"session_id": "b"}
        assert await client.call("session.restore", snapshot_id=snapshot) == {"session_id": "a"}
        assert (await client.call("session.run", session_id="a", code="x"))["result"] == 20
        assert (await client.call("session.run", session_id="b", code="x"))["result"] == 0
        assert await client.call("session.reset", session_id="b") == {"session_id": "b"}
        assert (await client.call("session.run", session_id="b", code="x"))["status"] == "runtime_error"
        assert await client.call("session.cancel", session_id="a") == {"cancelled": False}
        listed = (await client.call("session.list"))["sessions"]
        assert [one["meta"]["id"] for one in listed] == ["a", "b"]
        assert await client.call("session.destroy", session_id="b") == {"destroyed": True}
        tools = (await client.call("tools.list"))["tools"]
        assert {"name": "pay", "description": "Pay.", "side_effect": "external_system"} in tools
        assert (await client.call("tools.describe", name="pay"))["approval_policy"] == "manual"
        assert (await client.call("policy.get"))["allow_hosts"] == []
    issue = "create run validate resume cancel snapshot restore fork reset destroy list"
    assert set(METHODS) == {f"session.{name}" for name in issue.split()} | {
        "tools.list", "tools.describe", "policy.get", "approvals.list", "approvals.decide",
    }  # fmt: skip


async def test_an_approval_is_decided_by_the_user_at_the_other_end(daemon: Daemon) -> None:
    """Seed: a decision records the user of the connection, not the name in the request."""
    async with daemon.client() as client:
        waiting = await client.call("session.run", code="pay(5)")
        assert waiting["status"] == "waiting_for_approval"
        assert (await client.call("session.resume"))["status"] == "waiting_for_approval"
        [asked] = (await client.call("approvals.list", pending=True))["approvals"]
        decision = {"approval_id": asked["approval_id"], "approved": True, "args": [7]}
        assert await client.refused("approvals.decide", **decision, decided_by="eve") == "INVALID_ARGUMENT"
        assert (await client.call("approvals.decide", **decision))["result"] == "paid 7"
        [decided] = (await client.call("approvals.list"))["approvals"]
        assert decided["decided_by"] == this_user()
        assert await client.refused("approvals.decide", **decision) == "APPROVAL_ALREADY_DECIDED"


async def test_invalid_requests_get_an_error_with_a_code(daemon: Daemon) -> None:
    """Seed: METHOD_NOT_FOUND, INVALID_ARGUMENT, SESSION_NOT_FOUND, INVALID_SESSION_ID."""
    async with daemon.client() as client:
        assert await client.refused("session.eat") == "METHOD_NOT_FOUND"
        assert await client.refused("session.run", code=7) == "INVALID_ARGUMENT"
        assert await client.refused("session.run", code="1", colour="red") == "INVALID_ARGUMENT"
        assert await client.refused("session.snapshot", session_id="none") == "SESSION_NOT_FOUND"
        assert await client.refused("session.cancel", session_id="a/b") == "INVALID_SESSION_ID"
        assert await client.refused("tools.describe", name="none") == "UNKNOWN_TOOL"


async def test_other_clients_can_run_code_during_a_long_run(daemon: Daemon) -> None:
    """Seed: requests are concurrent; `session.cancel` ends a run that another connection waits for."""
    async with daemon.client() as slow, daemon.client() as quick:
        long = asyncio.ensure_future(slow.call("session.run", session_id="long", code="while True: pass"))
        assert (await quick.call("session.run", session_id="quick", code="1 + 1"))["result"] == 2
        while not (await quick.call("session.cancel", session_id="long"))["cancelled"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await long)["status"] == "cancelled"


async def test_a_run_finishes_and_is_stored_when_its_client_disconnects(daemon: Daemon) -> None:
    """Ours: a run belongs to its session, not to its connection."""
    async with daemon.client() as client:
        request = {"method": "session.run", "params": {"session_id": "kept", "code": "x = 5"}}
        client.writer.write(json.dumps({"jsonrpc": "2.0", "id": 1, **request}).encode() + b"\n")
        await client.writer.drain()
    async with daemon.client() as client:
        while (await client.call("session.run", session_id="kept", code="x")).get("result") != 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_only_its_owner_can_use_the_socket(daemon: Daemon) -> None:
    """Seed: other users have no access to the socket file."""
    assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o600


async def test_shutdown_answers_running_requests_and_removes_the_socket(daemon: Daemon) -> None:
    """Seed: the daemon shuts down cleanly."""
    async with daemon.client() as client:
        waiting = asyncio.ensure_future(client.call("session.run", code="sum(range(100000))"))
        await asyncio.sleep(0)
        assert (await waiting)["result"] == 4999950000
        daemon.stop.set()
        await daemon.serving
        assert await client.reader.read() == b""
    assert not daemon.path.exists()


async def test_a_socket_in_use_is_refused_and_a_stale_one_is_replaced(daemon: Daemon, tmp_path: Path) -> None:
    """Ours: two daemons never share a socket, and a crash does not block the next start."""

    async def serve(read: Read, write: Write, user: str) -> None:
        raise AssertionError

    with pytest.raises(NotConfigured, match="another process listens"):
        await serve_socket(daemon.path, serve, asyncio.Event())
    plain = tmp_path / "file"
    plain.touch()
    with pytest.raises(NotConfigured, match="not a socket"):
        await serve_socket(plain, serve, asyncio.Event())
    with pytest.raises(NotConfigured, match="cannot listen"):
        await serve_socket(tmp_path / ("x" * 200), serve, asyncio.Event())


@pytest.mark.slow
def test_over_stdio_every_request_is_answered_before_exit(tmp_path: Path) -> None:
    """Seed: `--listen stdio`; a tool's output goes to standard error."""
    tools = tmp_path / "tools.py"
    tools.write_text(
        'from standfast import tool\n@tool(side_effect="none")\ndef noisy() -> int:\n    "x"\n'
        '    print("not JSON")\n    return 1\n'
    )
    asked = [
        {"jsonrpc": "2.0", "id": n, "method": "session.run", "params": {"code": "noisy()"}} for n in (1, 2)
    ]
    words = ["daemon", "--listen", "stdio", "--tools", str(tools), "--store", str(tmp_path / "data")]
    done = interpreters.run(
        [sys.executable, "-m", "standfast", *words],
        input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True,
        text=True,
        timeout=60,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(one["id"] for one in answers) == [1, 2]
    assert all(one["result"]["result"] == 1 for one in answers)
    assert "not JSON" in done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_sigterm_shuts_the_daemon_down_cleanly(tmp_path: Path) -> None:
    """Seed: shutdown is clean even while a client is connected, and a restart works after SIGKILL."""
    path = tmp_path / "d.sock"
    words = ["daemon", "--listen", f"unix:{path}", "--store", str(tmp_path / "data")]

    async def ask() -> Any:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_unix_connection(str(path))
                break
            await asyncio.sleep(0.05)
        answer = await SocketClient(reader, writer).call("session.run", code="1 + 1")
        writer.close()
        await writer.wait_closed()
        return answer

    for number, status in ((signal.SIGKILL, -9), (signal.SIGTERM, 0)):
        process = interpreters.Interpreter([sys.executable, "-m", "standfast", *words], env=dict(os.environ))
        assert asyncio.run(ask())["result"] == 2
        process.send_signal(number)
        assert process.wait(30) == status
    assert not path.exists()
