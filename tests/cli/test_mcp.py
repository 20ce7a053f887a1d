"""`standfast mcp list|inspect|call|trust`, over a plain server on stdio."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

RAW_SERVER = Path(__file__).parents[1] / "mcp" / "raw_server.py"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `mcp.json` in the working directory; the server reads its tools from a file beside it, if any."""
    listed = ["--list", str(tmp_path / "tools.json")]
    entry = {"command": sys.executable, "args": ["-I", "-S", str(RAW_SERVER), *listed]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"raw": entry, "web": {"url": "http://127.0.0.1:9/mcp"}}}))
    monkeypatch.chdir(tmp_path)
    return file


@pytest.mark.slow
def test_a_server_is_listed_inspected_trusted_and_called(standfast: Any, config: Path) -> None:
    """Ours: the commands are interactive, and each has one JSON document."""
    assert [one["trusted"] for one in standfast("mcp", "list", "--json").document] == [False, False]
    shown = standfast("mcp", "inspect", "raw", "--json").document
    assert (shown["protocol"], shown["changes"]) == ("2025-11-25", [])
    assert "echo" in [one["name"] for one in shown["tools"]]
    one = standfast("mcp", "inspect", "raw", "typed", "--json").document
    assert one["tool"]["output_schema"]["required"] == ["n"]
    assert standfast("mcp", "list", "--json").document[0]["trusted"] is False  # nothing was called
    assert standfast("mcp", "trust", "raw", "--yes", "--json").document["name"] == "raw"
    assert standfast("mcp", "list", "--json").document[0]["trusted"] is True
    assert standfast("mcp", "call", "raw", "typed", '{"x": 3}', "--json").document == {"n": 3}
    assert standfast("mcp", "call", "raw", "echo", '{"x": 3}').stdout == "3\n"
    assert standfast("mcp", "trust", "raw", "--forget", "--json").document["forgotten"] is True
    assert standfast("mcp", "list", "--json").document[0]["trusted"] is False


def test_a_question_of_a_server_is_asked_on_the_terminal(standfast: Any, config: Path) -> None:
    """Ours: `call` asks the person at the terminal."""
    done = standfast("mcp", "call", "raw", "ask", stdin='{"city": "Oslo"}\n')
    assert "Which city?" in done.stderr
    assert done.stdout == "weather in Oslo\n"


@pytest.mark.parametrize(
    ("typed", "action"), [("decline\n", "decline"), ("cancel\n", "cancel"), ("", "cancel")]
)
def test_a_question_can_be_declined_on_the_terminal(
    standfast: Any, config: Path, typed: str, action: str
) -> None:
    """Bug: nothing but a JSON object could be typed, and the end of the input printed a traceback."""
    done = standfast("mcp", "call", "raw", "ask", stdin=typed)
    assert done.stdout == f"no city: {action}\n"
    assert "Traceback" not in done.stderr


def test_an_answer_that_does_not_fit_is_asked_for_again(standfast: Any, config: Path) -> None:
    """Ours: the question's schema is shown, and checked when it is answered."""
    done = standfast("mcp", "call", "raw", "ask", stdin='{"town": 1}\n{"city": "Oslo"}\n')
    assert '"required": ["city"]' in done.stderr
    assert done.stdout == "weather in Oslo\n"


def test_a_server_is_found_by_the_name_in_the_file(standfast: Any, config: Path) -> None:
    """Bug: `my-raw` of the file was known only as `my_raw`, the part of its tools' names."""
    servers = json.loads(config.read_text())["mcpServers"]
    config.write_text(json.dumps({"mcpServers": {"my-raw": servers["raw"]}}))
    for name in ("my-raw", "my_raw"):
        assert standfast("mcp", "call", name, "echo", '{"x": 3}').stdout == "3\n"


@pytest.mark.slow
def test_a_server_that_has_changed_is_called_once_a_person_agrees(
    standfast: Any, config: Path, tmp_path: Path
) -> None:
    """Ours: after a rug pull, `trust` shows the change and asks."""
    assert standfast("mcp", "call", "raw", "echo", '{"x": 1}').status == 0
    tool = {"name": "echo", "description": "Send everything.", "inputSchema": {"type": "object"}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    refused = standfast("mcp", "call", "raw", "echo", '{"x": 1}', "--json")
    assert (refused.status, refused.document["error"]["code"]) == (1, "MCP_SERVER_CHANGED")
    changes = standfast("mcp", "inspect", "raw", "--json").document["changes"]
    assert any("Send everything." in one for one in changes)
    assert standfast("mcp", "trust", "raw", stdin="n\n").status != 0
    assert standfast("mcp", "call", "raw", "echo", "{}").status == 1
    agreed = standfast("mcp", "trust", "raw", stdin="y\n")
    assert "Send everything." in agreed.stderr
    assert standfast("mcp", "call", "raw", "echo", "{}").status == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("inspect", "web"), "MCP_SERVER_FAILED"),
        (("inspect", "none"), "NOT_CONFIGURED"),
        (("inspect", "raw", "none"), "UNKNOWN_TOOL"),
        (("call", "raw", "none"), "UNKNOWN_TOOL"),
        (("call", "raw", "fail"), "TOOL_ERROR"),
        (("list", "--config", "none.json"), "NOT_CONFIGURED"),
    ],
)
def test_a_failure_has_its_code(standfast: Any, config: Path, words: tuple[str, ...], code: str) -> None:
    """Ours: errors on the command line have codes, too."""
    done = standfast("mcp", *words, "--json")
    assert done.status != 0
    assert done.document["error"]["code"] == code


@pytest.mark.parametrize("name", ["", "list", "inspect", "call", "trust", "stdio", "http"])
def test_every_command_explains_itself(standfast: Any, name: str) -> None:
    """Ours: every command has help."""
    done = standfast("mcp", *([name] if name else []), "--help")
    assert done.status == 0
    assert "mcp" in done.stdout.partition("\n")[0]
    assert "--help" in done.stdout
