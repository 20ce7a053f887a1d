"""Agents with an MCP server for tests: a scripted model, a plain server, and their own data directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from standfast import Agent, McpServer
from standfast.providers.scripted import ScriptedModel

RAW_SERVER = Path(__file__).parent / "raw_server.py"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the encryption key of credentials out of the keyring and the home directory."""
    monkeypatch.setenv("STANDFAST_MCP_KEY", "a-key-for-tests-only")


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that reads the names of the tools whose calls reached the raw server."""

    def read() -> list[str]:
        file = tmp_path / "ledger.jsonl"
        return [json.loads(line)["tool"] for line in file.read_text().splitlines()] if file.exists() else []

    return read


@pytest.fixture
def raw(tmp_path: Path) -> Callable[..., McpServer]:
    """Return a function that makes an `McpServer` named `raw` for the raw server."""

    def make(*behaviour: str, era: str = "", **options: Any) -> McpServer:
        log = ["--log", str(tmp_path / "ledger.jsonl"), "--list", str(tmp_path / "tools.json")]
        command = [sys.executable, "-I", "-S", str(RAW_SERVER), *(["--era", era] if era else []), *log]
        given = {"name": "raw", "data_dir": tmp_path / "home", "idle_s": 30.0, **options}
        return McpServer([*command, *behaviour], **given)

    return make


@pytest.fixture
def calling() -> Callable[..., Agent[None, str]]:
    """Return a function that makes an agent whose model calls these tools in one reply."""

    def make(server: McpServer, *calls: str | tuple[str, dict[str, Any]], **options: Any) -> Agent[None, str]:
        pairs = [(call, {}) if isinstance(call, str) else call for call in calls]
        asked = [{"name": f"mcp__{server.name}__{name}", "arguments": given} for name, given in pairs]
        return Agent(ScriptedModel([{"tool_calls": asked}, "done"]), tools=[server], **options)

    return make
