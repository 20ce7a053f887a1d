"""`mcp.json`, and the commands that use it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import NotConfigured
from standfast.mcp.config import read_servers

RAW_SERVER = Path(__file__).parent / "raw_server.py"


def _file(tmp_path: Path, **servers: Any) -> Path:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


def _raw(tmp_path: Path, **own: Any) -> dict[str, Any]:
    log = ["--log", str(tmp_path / "ledger.jsonl"), "--list", str(tmp_path / "tools.json")]
    return {"command": sys.executable, "args": ["-I", "-S", str(RAW_SERVER), *log], "standfast": own}


def test_servers_are_read_with_their_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a standard file; what only Standfast has is under `standfast`."""
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
    files, shop = read_servers(file, data_dir=tmp_path)
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
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, entry: Any, words: str) -> None:
    """Ours: nothing that is not understood is skipped."""
    with pytest.raises(NotConfigured, match=words) as caught:
        read_servers(_file(tmp_path, shop=entry))
    assert "'shop'" in str(caught.value)
