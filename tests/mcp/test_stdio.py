"""Servers that are child processes: their limits, their jail, and the isolation of sessions."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, McpJail, McpServer, Runtime, ScriptedModel
from standfast.errors import InvalidArgument, McpServerFailed, NotConfigured, StandfastError
from standfast.mcp.config import read_mcp_servers
from standfast.mcp.stdio import ServerProcess
from standfast.sandbox.cpython.jail import jail_report

Raw = Callable[..., McpServer]
OWN = [sys.prefix, sys.base_prefix, str(Path(__file__).parent)]
"""The paths that the raw server's program needs to start."""


def _used(server: McpServer, code: str) -> Any:
    async def run() -> Any:
        try:
            return await server.call("use", {"code": code})
        finally:
            await server.close()

    return asyncio.run(run())


def test_limits_apply_to_a_server_and_its_children(raw: Raw) -> None:
    """Ours: limits are set before the program starts, so no child escapes them."""
    code = (
        "import resource as r, subprocess as s, sys\n"
        "names = ('RLIMIT_CORE', 'RLIMIT_NOFILE', 'RLIMIT_CPU', 'RLIMIT_DATA')\n"
        "line = f'import resource as r; print([r.getrlimit(getattr(r, n))[1] for n in {names}])'\n"
        "out = s.run([sys.executable, '-I', '-S', '-c', line], capture_output=True, text=True).stdout"
    )
    files = min(4096, os.sysconf("SC_OPEN_MAX"))
    assert _used(raw(memory_mb=512, cpu_s=60), code).strip() == str([0, files, 60, 512 << 20])


@pytest.mark.skipif(jail_report("bubblewrap").kind is None, reason="there is no bubblewrap here")
def test_a_jailed_server_sees_only_what_the_user_names(raw: Raw, tmp_path: Path) -> None:
    """Ours: other files, processes and the network do not exist for it."""
    secret, shared = tmp_path / "secret.txt", tmp_path / "shared"
    secret.write_text("x")
    shared.mkdir()
    program = Path(__file__).parent / "raw_server.py"

    def jailed(code: str, **more: Any) -> Any:
        jail = McpJail(readable=OWN, writable=[str(shared)], **more)  # type: ignore[arg-type]
        command = [sys.executable, "-I", "-S", str(program)]
        return _used(McpServer(command, name="raw", data_dir=tmp_path / "home", jail=jail), code)

    assert jailed(f"out = open({str(secret)!r}).read()") == "FileNotFoundError"
    assert jailed(f"open({str(shared / 'made')!r}, 'w').write('y'); out = 1") == "1"
    assert (shared / "made").read_text() == "y"
    assert jailed("open('/usr/made', 'w'); out = 1") in ("OSError", "PermissionError")
    assert jailed(f"import os; os.kill({os.getpid()}, 0); out = 1") == "ProcessLookupError"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        reach = f"import socket; socket.create_connection({listener.getsockname()!r}, 5); out = 'reached'"
        assert jailed(reach) == "ConnectionRefusedError"
        assert jailed(reach, network=True) == "reached"


@pytest.mark.skipif(jail_report("bubblewrap").kind is None, reason="there is no bubblewrap here")
def test_a_jailed_server_can_read_a_named_file_under_tmp(raw: Raw, tmp_path: Path) -> None:
    """Bug: the jail's own `/tmp` hid named files there, such as an interpreter."""
    named = tmp_path / "named.txt"
    named.write_text("read")
    program = Path(__file__).parent / "raw_server.py"
    jail = McpJail(readable=(*OWN, str(named)))
    command = [sys.executable, "-I", "-S", str(program)]
    server = McpServer(command, name="raw", data_dir=tmp_path / "home", jail=jail)
    assert _used(server, f"out = open({str(named)!r}).read()") == "read"


def test_a_jail_can_be_configured_in_mcp_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a server that cannot be jailed is not started."""
    file = tmp_path / "mcp.json"
    text = '{"mcpServers": {"a": {"command": "true", "standfast": {"jail": {"readable": %s}}}}}'
    file.write_text(text % '["/srv"]')
    [server] = read_mcp_servers(file, data_dir=tmp_path)
    assert server._endpoint.jail == McpJail(readable=("/srv",))
    file.write_text(text % '"/srv"')
    with pytest.raises(NotConfigured, match="server 'a'"):
        read_mcp_servers(file, data_dir=tmp_path)
    with pytest.raises(InvalidArgument, match="must be a list"):
        McpJail(readable="/srv")  # type: ignore[arg-type]
    monkeypatch.setattr("standfast.sandbox.cpython.jail._try_bubblewrap", lambda: "it is forbidden")
    jail_report.cache_clear()
    with pytest.raises(StandfastError, match="forbidden"):
        asyncio.run(server.advertised())
    jail_report.cache_clear()


def test_sessions_with_different_servers_share_nothing(raw: Raw, tmp_path: Path) -> None:
    """Ours: neither the environment nor the prompt of a session has data of another's server."""
    prompts: list[str] = []

    class Recording(ScriptedModel):
        def stream(self, request: Any) -> Any:
            prompts.append(repr(request))
            return super().stream(request)

    def agent(name: str, server: McpServer) -> Agent[None, str]:
        call = {"tool_calls": [{"name": f"mcp__{name}__env", "arguments": {}}]}
        return Agent(Recording([call, "done"]), name=name, tools=[server])

    async def run() -> list[Any]:
        one = raw("--secret-of-one", name="one", env={"TOKEN_OF_ONE": "s3cret-one"})
        two = raw("--secret-of-two", name="two", env={"TOKEN_OF_TWO": "s3cret-two"})
        async with Runtime() as runtime:
            sessions = [
                await runtime.session("a", agent=agent("one", one)),
                await runtime.session("b", agent=agent("two", two)),
            ]
            return list(await asyncio.gather(*(session.turn("go") for session in sessions)))

    first, second = asyncio.run(run())
    assert "TOKEN_OF_ONE" in repr(first.messages)
    assert "TOKEN_OF_TWO" in repr(second.messages)
    assert "TOKEN_OF_TWO" not in repr(first.messages)
    assert "TOKEN_OF_ONE" not in repr(second.messages)
    for text in prompts:
        assert "s3cret" not in text
        assert ("mcp__one__" in text) != ("mcp__two__" in text)


@pytest.mark.parametrize(
    ("target", "said", "hint"),
    [
        (
            ["no-such-program"],
            "cannot be started: No such file or directory: 'no-such-program'",
            "the command",
        ),
        ([__file__], "cannot be started: Permission denied", "the command"),
        (["no such program"], "cannot be started", "each of its arguments separately"),
        ([sys.executable, "no_such_file.py"], "exited: .*can't open file", "run its command in a terminal"),
        ([sys.executable, "-c", "raise ValueError('no key')"], "exited: ValueError: no key", "terminal"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "did not answer within 0.5 s", "connect_s"),
        ("http://127.0.0.1:9/mcp", "cannot be used: All connection attempts failed", "check the URL"),
    ],
)
def test_a_server_that_does_not_start_is_an_error_with_a_hint(
    tmp_path: Path, target: Any, said: str, hint: str
) -> None:
    """Bug: most messages were `failed: MCPError: Connection closed`, with the server's output as the hint."""
    server = McpServer(target, name="gone", data_dir=tmp_path, connect_s=0.5 if "60" in target[-1] else 30)
    with pytest.raises(McpServerFailed, match=f"'gone' {said}") as caught:
        asyncio.run(server.advertised())
    assert hint in str(caught.value.hint)


def test_the_error_on_stderr_is_found_above_other_lines() -> None:
    """Ours: Node prints its version last."""
    process = ServerProcess(["x"], {}, stderr=b"at x.js:1\nTypeError: no key\n\nNode.js v24.19.0\n")
    assert process.last_words() == "TypeError: no key"
