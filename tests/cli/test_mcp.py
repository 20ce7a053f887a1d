"""`standfast mcp list|inspect|call|trust`, over a plain server on stdio."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from standfast.cli.report import ask_decision
from standfast.model.approval import Approval, ApprovalState

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


def test_a_servers_question_is_asked_at_the_terminal(standfast: Any, config: Path) -> None:
    """Ours: `call` asks the person at the terminal."""
    done = standfast("mcp", "call", "raw", "ask", stdin='{"city": "Oslo"}\n')
    assert "Which city?" in done.stderr
    assert done.stdout == "weather in Oslo\n"


@pytest.mark.parametrize(
    ("typed", "action"), [("decline\n", "decline"), ("cancel\n", "cancel"), ("", "cancel")]
)
def test_a_question_can_be_declined_at_the_terminal(
    standfast: Any, config: Path, typed: str, action: str
) -> None:
    """Bug: only a JSON object could be typed, and the end of the input printed a traceback."""
    done = standfast("mcp", "call", "raw", "ask", stdin=typed)
    assert done.stdout == f"no city: {action}\n"
    assert "Traceback" not in done.stderr


def test_an_invalid_answer_is_asked_for_again(standfast: Any, config: Path) -> None:
    """Ours: the question's schema is shown, and the answer is validated."""
    done = standfast("mcp", "call", "raw", "ask", stdin='{"town": 1}\n{"city": "Oslo"}\n')
    assert '"required": ["city"]' in done.stderr
    assert done.stdout == "weather in Oslo\n"


def test_a_server_is_found_by_its_name_in_the_file(standfast: Any, config: Path) -> None:
    """Bug: `my-raw` in the file was known only as `my_raw`, the prefix of its tools' names."""
    servers = json.loads(config.read_text())["mcpServers"]
    config.write_text(json.dumps({"mcpServers": {"my-raw": servers["raw"]}}))
    for name in ("my-raw", "my_raw"):
        assert standfast("mcp", "call", name, "echo", '{"x": 3}').stdout == "3\n"


@pytest.mark.slow
def test_a_changed_server_is_called_only_after_a_person_agrees(
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
def test_a_failure_has_an_error_code(standfast: Any, config: Path, words: tuple[str, ...], code: str) -> None:
    """Ours: errors on the command line have codes, too."""
    done = standfast("mcp", *words, "--json")
    assert done.status != 0
    assert done.document["error"]["code"] == code


@pytest.mark.parametrize("name", ["", "list", "inspect", "call", "trust", "stdio", "http"])
def test_every_command_has_help(standfast: Any, name: str) -> None:
    """Ours: a user can discover the commands without the documentation."""
    done = standfast("mcp", *([name] if name else []), "--help")
    assert done.status == 0
    assert "mcp" in done.stdout.partition("\n")[0]
    assert "--help" in done.stdout


def _flat(text: str) -> str:
    """Return the text of a box or a table, without its lines."""
    return " ".join(text.replace("│", " ").split())


def _chat(standfast: Any, tmp_path: Path, tool: str, *words: str) -> Any:
    """Let a model call a tool of the server in one turn."""
    call = {"tool_calls": [{"name": f"mcp__raw__{tool}", "arguments": {"x": 1}}]}
    (tmp_path / "replies.json").write_text(json.dumps([call, "done"]))
    (tmp_path / "raw.json").write_text(
        json.dumps(
            {"mcpServers": {"raw": json.loads((tmp_path / "mcp.json").read_text())["mcpServers"]["raw"]}}
        )
    )
    model = f"scripted:{tmp_path / 'replies.json'}"
    return standfast("chat", "--model", model, "--mcp", str(tmp_path / "raw.json"), *words, "go")


@pytest.mark.slow
def test_a_turn_that_waits_for_trust_shows_what_changed(standfast: Any, config: Path, tmp_path: Path) -> None:
    """Bug: `chat`, `approvals list` and `approvals show` showed the call, but nothing about the change."""
    assert _chat(standfast, tmp_path, "echo", "--session", "before").status == 0
    tool = {"name": "echo", "description": "Send everything.", "inputSchema": {"type": "object"}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    waiting = _chat(standfast, tmp_path, "echo", "--session", "after")
    assert "Send everything." in _flat(waiting.stderr)
    (asked,) = standfast("approvals", "list", "--pending", "--json").document
    assert "Send everything." in _flat(standfast("approvals", "list").stdout)
    assert "Send everything." in _flat(standfast("approvals", "show", asked["approval_id"]).stdout)


@pytest.mark.slow
def test_a_turn_that_waits_for_an_answer_shows_the_question(
    standfast: Any, config: Path, tmp_path: Path
) -> None:
    """Bug: `chat` showed a call to approve, without the question and how to answer it."""
    waiting = _chat(standfast, tmp_path, "ask")
    assert "the MCP server raw asks: Which city?" in waiting.stderr
    assert '"required": ["city"]' in _flat(waiting.stderr)
    assert """--arguments '{"city": "..."}'""" in waiting.stderr
    (asked,) = standfast("approvals", "list", "--pending", "--json").document
    answered = standfast("approvals", "approve", asked["approval_id"], "--arguments", '{"city": "Oslo"}')
    assert "weather in Oslo" in answered.stderr


def test_a_question_can_be_answered_in_a_chat() -> None:
    """Bug: `yes` sent an answer without its required fields, which was refused."""
    asked: list[tuple[str, str]] = []

    def ask(question: str, given: str) -> str:
        asked.append((question, given))
        return "y" if question.startswith("Answer?") else '{"city": "Oslo"}'

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    approval = Approval(
        approval_id="apr_1",
        state=ApprovalState.PENDING,
        session_id="s",
        capability="weather",
        args=[],
        kwargs={},
        requested_at=0,
        expires_at=1,
        binding="",
        run_id="t_1",
        call_id=1,
        answer_schema=schema,
    )
    decision = ask_decision(approval, ask)
    assert asked[-1] == ("Answer as JSON: ", '{"city": "..."}')
    assert decision is not None
    assert decision.kwargs == {"city": "Oslo"}


def test_a_result_is_printed_unwrapped_and_without_control_characters(standfast: Any, config: Path) -> None:
    """Bug: long lines were wrapped, which broke JSON, and escape sequences reached the terminal."""
    code = json.dumps({"code": "out = 'x' * 300 + chr(27) + '[31m'"})
    assert standfast("mcp", "call", "raw", "use", code).stdout == "x" * 300 + "\\x1b[31m\n"


@pytest.mark.slow
def test_ctrl_c_at_a_question_ends_the_command(config: Path) -> None:
    """Bug: the prompt was on another thread, so that Ctrl-C did nothing until Enter was pressed."""
    command = [sys.executable, "-m", "standfast.cli.main", "mcp", "call", "raw", "ask"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=config.parent, stdin=pipe, stderr=pipe) as process:
        assert process.stderr is not None
        said = b""
        while not said.endswith(b"decline or cancel: "):
            read = process.stderr.read(1)
            assert read, said
            said += read
        for _ in range(10):  # a signal between the prompt and the read is noticed at the next one
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
                break
        assert process.returncode == 1
        assert b"CANCELLED" in process.stderr.read()


def test_a_server_that_never_answers_times_out(standfast: Any, config: Path) -> None:
    """Bug: `call` waited for ever."""
    servers = json.loads(config.read_text())["mcpServers"]
    limited = {**servers["raw"], "standfast": {"timeout_s": 0.3}}
    config.write_text(json.dumps({"mcpServers": {"raw": limited}}))
    done = standfast("mcp", "call", "raw", "slow", "--json")
    assert (done.status, done.document["error"]["code"]) == (1, "TIMEOUT_TOOL")


@pytest.mark.slow
def test_trust_asks_only_if_something_is_new(standfast: Any, config: Path) -> None:
    """Bug: a refusal read `interrupted`, and an unchanged server was asked about."""
    refused = standfast("mcp", "trust", "raw", stdin="n\n")
    assert (refused.status, refused.stdout) == (1, "raw was not trusted\n")
    assert "tool echo: Return x." in refused.stderr
    assert standfast("mcp", "list", "--json").document[0]["trusted"] is False
    assert standfast("mcp", "trust", "raw", stdin="y\n").status == 0
    again = standfast("mcp", "trust", "raw")
    assert (again.status, again.stdout) == (0, "raw is trusted with 17 tools; nothing has changed\n")


def test_without_a_file_the_error_says_what_to_write(
    standfast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: this may be the first command that a new user tries."""
    monkeypatch.chdir(tmp_path)
    error = standfast("mcp", "list", "--json").document["error"]
    assert "there is no mcp.json in this directory" in error["message"]
    assert "mcpServers" in error["hint"]


@pytest.mark.parametrize("port", ["99999", "taken"])
def test_an_unusable_listening_address_is_an_error(
    standfast: Any, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    """Bug: a port above 65535 was an internal error, and a port in use a line in the web server's log."""
    monkeypatch.setenv("STANDFAST_MCP_TOKEN", "a-token-for-tests-only")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1] if port == "taken" else int(port)
        error = standfast("mcp", "http", "--listen", f"127.0.0.1:{number}", "--json").document["error"]
    assert error["code"] == "NOT_CONFIGURED"
    assert f"cannot listen on 127.0.0.1:{number}" in error["message"]
