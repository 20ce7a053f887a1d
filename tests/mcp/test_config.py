"""`mcp.json`, and the commands that use it."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from standfast import McpServer
from standfast.errors import NotConfigured
from standfast.mcp import config
from standfast.mcp.config import read_mcp_servers

RAW_SERVER = Path(__file__).parent / "raw_server.py"


def _file(tmp_path: Path, **servers: Any) -> Path:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


def _raw(tmp_path: Path, **own: Any) -> dict[str, Any]:
    log = ["--log", str(tmp_path / "ledger.jsonl"), "--list", str(tmp_path / "tools.json")]
    return {"command": sys.executable, "args": ["-I", "-S", str(RAW_SERVER), *log], "standfast": own}


def test_servers_are_read_with_their_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a standard file; Standfast's own settings are under `standfast`."""
    monkeypatch.setenv("SHOP_TOKEN", "s3cret")
    rule = {"auto": {"rule": "kwargs['x'] > 1"}}
    tools = {"wi*": {"approval": "none"}, "echo": {"approval": rule, "idempotent": True}}
    file = _file(
        tmp_path,
        **{
            "my-files": _raw(tmp_path, approval="manual", tools=tools, include=["echo", "wipe", "read"]),
            "shop": {"url": "https://shop.example/mcp", "headers": {"Authorization": "Bearer ${SHOP_TOKEN}"}},
            "off": {"command": "x", "disabled": True},
        },
    )
    files, shop = read_mcp_servers(file, data_dir=tmp_path)
    assert (files.name, shop.name, shop.target) == ("my_files", "shop", "https://shop.example/mcp")
    assert shop._endpoint.headers == {"Authorization": "Bearer s3cret"}
    files.manifests()
    policies = {
        name: files.resolve(f"mcp__my_files__{name}").capability.approval_policy
        for name in ("read", "wipe", "echo")
    }
    assert (policies["read"], policies["wipe"]) == ("manual", "none")
    assert policies["echo"].auto.rule == "kwargs['x'] > 1"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "either"),
        ({"command": "x", "url": "https://x"}, "either"),
        ({"command": "x", "colour": 1}, "colour"),
        ({"command": "x", "standfast": {"aproval": "manual"}}, "aproval"),
        ({"command": "x", "standfast": {"approval": "maybe"}}, "maybe"),
        ({"command": "x", "standfast": {"tools": {"a": {"approval": "maybe"}}}}, "maybe"),
        ({"command": "x", "standfast": {"tools": {"a": {"colour": 1}}}}, "colour"),
        ({"url": "https://x", "type": "sse"}, "SSE"),
        ({"command": "x", "env": {"A": "${NOT_SET_ANYWHERE}"}}, "NOT_SET_ANYWHERE"),
        ([], "not an object"),
        ({"command": ["x", "y"]}, "command: Expected str, got array"),
        ({"command": ""}, "has no command"),
        ({"command": "x", "args": "a b"}, "args: Expected array, got str"),
        ({"command": "x", "env": "A=1"}, "env: Expected"),
        ({"command": "x", "env": ["NOT_SET_ANYWHERE"]}, "NOT_SET_ANYWHERE"),
        ({"url": "https://x", "headers": "x"}, "headers: Expected object"),
        ({"url": "shop.example/mcp"}, "must begin with http"),
        ({"url": "https://x", "type": "websocket"}, "type 'websocket' does not fit"),
        ({"url": "https://x", "type": "stdio"}, "type 'stdio' does not fit"),
        ({"command": "x", "standfast": []}, "must be an object"),
        ({"command": "x", "standfast": {"tools": ["a"]}}, "tools: Expected object, got array"),
        ({"command": "x", "standfast": {"tools": {"a": "manual"}}}, "tools.*Expected object, got str"),
        ({"command": "x", "standfast": {"timeout_s": "5"}}, "timeout_s: Expected float, got str"),
        ({"command": "x", "standfast": {"timeout_s": -5}}, "timeout_s .* must be greater than 0, got -5"),
        ({"command": "x", "standfast": {"memory_mb": 0}}, "memory_mb .* must be at least 1, got 0"),
        ({"command": "x", "standfast": {"jail": {"reads": []}}}, "no setting 'reads' of jail"),
    ],
)
def test_a_mistake_in_the_file_is_an_error_that_names_the_server(
    tmp_path: Path, entry: Any, words: str
) -> None:
    """Ours: an unknown setting is an error; it is not ignored."""
    with pytest.raises(NotConfigured, match=words) as caught:
        read_mcp_servers(_file(tmp_path, shop=entry))
    assert "'shop'" in str(caught.value)


def test_every_setting_of_a_server_can_be_set_in_the_file() -> None:
    """Ours: the file has the constructor's parameters, except Python objects and the location of the pin."""
    arguments = set(inspect.signature(McpServer).parameters)
    written = {"target", "name", "env", "cwd", "headers"}
    assert arguments - written - {"auth", "data_dir"} == config._OWN


def test_accepted_media_types_are_a_setting(tmp_path: Path) -> None:
    """Bug: `media` was refused in the file."""
    (server,) = read_mcp_servers(_file(tmp_path, raw=_raw(tmp_path, media=["Audio/WAV"])))
    assert "audio/wav" in server._shown


def test_two_names_that_become_the_same_name_are_refused(tmp_path: Path) -> None:
    """Bug: the second server was reachable under the name, and the pin, of the first."""
    with pytest.raises(NotConfigured, match="another server is called 'my_files'"):
        read_mcp_servers(_file(tmp_path, **{"my-files": _raw(tmp_path), "my_files": _raw(tmp_path)}))


def test_a_duplicate_name_is_refused(tmp_path: Path) -> None:
    """Bug: of two servers with the same name, the first was silently dropped."""
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}')
    with pytest.raises(NotConfigured, match="'a' occurs twice"):
        read_mcp_servers(file)


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ({"command": "x", "standfast": {"aproval": "manual"}}, "did you mean 'approval'?"),
        ({"command": "x", "env": {"A": "${NOT_SET_ANYWHERE}"}}, "${NOT_SET_ANYWHERE:-value}"),
        ({"command": "x", "standfast": {"approval": "maybe"}}, "manual"),
    ],
)
def test_the_error_says_what_to_write_instead(tmp_path: Path, entry: Any, hint: str) -> None:
    """Bug: hints about mistakes in the file were dropped."""
    with pytest.raises(NotConfigured) as caught:
        read_mcp_servers(_file(tmp_path, shop=entry))
    assert hint in str(caught.value.hint)


def test_a_file_that_is_not_json_is_an_error_with_the_position(tmp_path: Path) -> None:
    """Ours: the user corrects the line that the error names."""
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers":\n{,}}')
    with pytest.raises(NotConfigured, match="line 2 column 2"):
        read_mcp_servers(file)
