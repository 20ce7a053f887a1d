"""`standfast serve`, `tokens`, `chat APP` and `--server`, in their own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import interpreters
import pytest
from click.testing import CliRunner, Result
from terminals import Terminal

from standfast.cli.main import main
from standfast.client import BlockingClient
from standfast.model.message import UserMessage

pytestmark = pytest.mark.slow

APP = """
from standfast import Agent, Runtime, ScriptedModel, tool

@tool(side_effect="external_system", approval="manual")
def pay(cents: int) -> str:
    "Pay."
    return f"paid {cents}"

def model():
    calls = [{"name": "pay", "arguments": {"cents": 5}}]
    return ScriptedModel([{"tool_calls": calls}, "It is paid."], strict=False)

agent = Agent(model(), name="payer", tools=[pay])
others = [agent, Agent(model(), name="second", tools=[pay])]

def make_runtime():
    return Runtime("made.db", agents=others)
"""


def standfast(*words: str, cwd: Path, check: bool = True, **env: str) -> Result:
    """Run a command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        done = CliRunner(env={"STANDFAST_HOME": str(cwd / "home"), **env}).invoke(main, list(words))
    assert not check or done.exit_code == 0, done.stderr
    return done


def process(*words: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process, which imports the app."""
    done = interpreters.run(
        [sys.executable, "-m", "standfast", *words],
        cwd=cwd,
        env={**os.environ, "STANDFAST_HOME": str(cwd / "home")},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


class Served:
    """A running `standfast serve`."""

    def __init__(self, cwd: Path, *words: str) -> None:
        self.cwd = cwd
        self.process = interpreters.Interpreter(
            [sys.executable, "-m", "standfast", "serve", *words, "--port", "0"],
            cwd=cwd,
            env={**os.environ, "STANDFAST_HOME": str(cwd / "home")},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.banner = self.process.stdout.readline().strip()
        self.url = self.banner.rpartition(" ")[2]

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) in (0, -signal.SIGTERM)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def run(self, *words: str, check: bool = True) -> Result:
        """Run a command against this server."""
        return standfast(*words, "--server", self.url, cwd=self.cwd, check=check, STANDFAST_TOKEN=self.token)

    token = ""


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def test_a_token_is_shown_once_then_listed_without_its_value_and_revoked(cwd: Path) -> None:
    """Seed: `tokens create` prints the token once; the store has only its hash."""
    made: dict[str, Any] = json.loads(
        standfast("tokens", "create", "--scope", "read", "--tenant", "acme", "--json", cwd=cwd).stdout
    )
    assert (made["scopes"], made["tenant"]) == (["read"], "acme")
    secret = made["token"].split("_", 2)[2]  # which may have underscores of its own
    listed = standfast("tokens", "list", "--json", cwd=cwd).stdout
    assert made["id"] in listed
    assert secret not in listed
    assert secret.encode() not in b"".join(file.read_bytes() for file in (cwd / "home").iterdir())
    standfast("tokens", "revoke", made["id"], cwd=cwd)
    assert "revoked" in standfast("tokens", "list", cwd=cwd).stdout
    assert standfast("tokens", "revoke", "tok0", cwd=cwd, check=False).exit_code == 1


def test_a_sign_in_link_points_to_the_server_of_the_store(cwd: Path) -> None:
    """Bug: the link named port 8000, whichever port the server listened on."""
    unknown = standfast("tokens", "link", cwd=cwd)
    assert unknown.stdout.startswith("http://127.0.0.1:8000/signin?code=")
    assert "pass --url" in unknown.stderr
    with Served(cwd) as served:
        known = standfast("tokens", "link", cwd=cwd)
        assert known.stdout.startswith(f"{served.url}/signin?code=")
        assert known.stderr == ""
        assert httpx2.get(known.stdout.strip()).status_code == 200
    named = standfast("tokens", "link", "--url", "https://shop.example.com/", "--json", cwd=cwd)
    assert json.loads(named.stdout)["url"].startswith("https://shop.example.com/signin?code=")


def test_serve_without_app_serves_the_demo_and_commands_work_on_it(cwd: Path) -> None:
    """Seed: without APP the command serves demo agents; commands accept --server where it makes sense."""
    with Served(cwd) as served:
        assert "demo, demo-code" in served.banner
        served.token = standfast("tokens", "create", "--name", "dora", cwd=cwd).stdout.strip()
        said = served.run("chat", "--agent", "demo", "--session", "s", "refund A1", check=False)
        assert "approval" in said.stdout + said.stderr
        pending = json.loads(served.run("approvals", "list", "--pending", "--json").stdout)
        (asked,) = [one for one in pending if one["session_id"] == "s"]
        shown = json.loads(served.run("approvals", "approve", asked["approval_id"], "--json").stdout)
        assert shown["decided_by"].startswith("dora (tok")
        assert "refund" in served.run("sessions", "show", "s").stdout
        assert served.run("sessions", "fork", "s", "t").stdout.strip() == "t"
        listed = {one["session_id"] for one in json.loads(served.run("sessions", "list", "--json").stdout)}
        assert {"s", "t", "demo-refund"} <= listed
        assert json.loads(served.run("sessions", "export", "t").stdout)["format"] == "standfast.session"
        missing = standfast(
            "sessions", "list", "--server", served.url, cwd=cwd, check=False, STANDFAST_TOKEN=""
        )
        assert "STANDFAST_TOKEN" in missing.stderr


@pytest.mark.parametrize(
    ("app", "agents"),
    [
        ("shop.py:agent", "payer"),
        ("shop:others", "payer, second"),
        ("shop.py:make_runtime", "payer, second"),
        ("shop.py", "payer"),
    ],
)
def test_serve_accepts_agents_and_functions_that_create_a_runtime(cwd: Path, app: str, agents: str) -> None:
    """Seed: APP names an agent, several agents, or a function that creates a `Runtime`."""
    with Served(cwd, app) as served:
        assert f"serves {agents} at" in served.banner


@pytest.mark.parametrize("app", ["shop.py:nothing", "no_such_module:x", "shop.py:pay", "missing.py:agent"])
def test_serve_explains_what_is_wrong_with_app(cwd: Path, app: str) -> None:
    """Ours: the error names APP and the accepted forms."""
    done = process("serve", app, cwd=cwd, check=False)
    assert done.returncode == 1
    assert "NOT_CONFIGURED" in done.stderr


def test_another_address_requires_encryption_or_an_explicit_option(cwd: Path) -> None:
    """Seed: any address other than loopback needs TLS, a trusted proxy, or --insecure."""
    done = standfast("serve", "--host", "0.0.0.0", cwd=cwd, check=False)
    assert done.exit_code == 1
    assert "--insecure" in done.stderr
    with Served(cwd, "--host", "0.0.0.0", "--insecure") as served:
        assert served.banner


def test_reload_serves_the_changed_app_and_stops_with_the_command(cwd: Path) -> None:
    """Seed: `--reload`. Bug: SIGTERM ended the watching command but left the server running."""
    with Served(cwd, "shop.py:agent", "--reload") as served:
        assert "serves payer at" in served.banner
        (cwd / "shop.py").write_text(APP.replace('name="payer"', 'name="changed"'))
        assert served.process.stdout is not None
        while "serves changed at" not in (line := served.process.stdout.readline()):
            assert line  # the output is still open
        url = line.split()[-1]
        assert httpx2.get(f"{url}/healthz").is_success
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/healthz")


def test_commands_for_code_tasks_and_triggers_accept_a_server(cwd: Path) -> None:
    """Seed: every command for which it makes sense accepts --server."""
    with Served(cwd) as served:
        served.token = standfast("tokens", "create", "--scope", "admin", cwd=cwd).stdout.strip()
        assert served.run("run", "-e", "6 * 7").stdout.strip() == "42"
        assert served.run("run", "-e", "1", "--engine", "cpython", check=False).exit_code == 2
        assert "UNKNOWN_TOOL" in served.run("validate", "-e", "nope()", "--json", check=False).stdout
        served.run("chat", "--agent", "demo", "--session", "s", "help")
        served.run("triggers", "add", "nightly", "--session", "s", "--every", "1h")
        assert "nightly" in served.run("triggers", "list").stdout
        fired = json.loads(served.run("triggers", "fire", "nightly", "--key", "k", "--json").stdout)
        assert fired["turns"] == 1
        served.run("triggers", "remove", "nightly")
        assert json.loads(served.run("tasks", "list", "--session-id", "s", "--json").stdout) == []
        assert "TASK_NOT_FOUND" in served.run("tasks", "cancel", "s", "none", check=False).stderr
        assert "TASK_NOT_FOUND" in served.run("tasks", "show", "s", "none", check=False).stderr


def test_chat_can_use_the_users_own_agent(cwd: Path) -> None:
    """Bug: `chat` could not use a user's own agent, nor could a later decision load it."""
    waiting = json.loads(process("chat", "shop.py:agent", "pay it", "--json", cwd=cwd, check=False).stdout)
    (asked,) = waiting["approvals"]
    done = json.loads(process("approvals", "approve", asked["approval_id"], "--json", cwd=cwd).stdout)
    assert done["text"] == "It is paid."
    several = process("chat", "shop.py:others", "hi", cwd=cwd, check=False)
    assert "--agent" in several.stderr


ASKING_APP = """
from standfast import Agent, AskPerson, RunContext, ScriptedModel, tool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

@tool
def forecast(ctx: RunContext[None]) -> str | AskPerson:
    "Forecast the weather."
    return AskPerson("Where?", CITY) if ctx.answer is None else f"sunny in {ctx.answer.value['city']}"

replies = [{"tool_calls": [{"name": "forecast"}]}, "Here you are."]
agent = Agent(ScriptedModel(replies * 9, strict=False), name="weather", tools=[forecast])
"""


def test_a_remote_chat_answers_a_question_on_the_spot(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: lines that were pasted together were sent as several messages, and nothing could be edited."""
    (cwd / "weather.py").write_text(ASKING_APP)
    with Served(cwd, "weather.py:agent") as served:
        token = standfast("tokens", "create", cwd=cwd).stdout.strip()
        monkeypatch.setenv("STANDFAST_TOKEN", token)
        chat = Terminal("chat", "--server", served.url, "--agent", "weather", "--session", "s")
        try:
            chat.expect("> ")
            chat.type("what is the weather?\nand tomorrow?\n")
            chat.expect("Where?")
            chat.expect("[l]ater: ")
            chat.type("y\n")
            chat.expect("Answer as JSON: ")
            chat.type("Oslo\n")
            chat.expect("this is not JSON")
            chat.type("\n")
            chat.expect("[l]ater: ")
            chat.type("y\n")
            chat.expect("Answer as JSON: ")
            chat.type('\x15{"city": "Oslo"}\n')
            chat.expect("Here you are.")
            chat.type("again\n")
            chat.expect("[l]ater: ")
            chat.type("n\n")
            chat.expect("Reason")
            chat.type("do not ask\n")
            chat.expect("Here you are.")
            chat.type("and again\n")
            chat.expect("[l]ater: ")
            chat.type("l\n")
            chat.expect("> ")
            chat.type("\x04")
            assert chat.exit_status() == 0
        finally:
            chat.close()
        with BlockingClient(served.url, token=token) as client:
            session = client.session("s", agent="weather")
            said = session.messages()
            assert [turn.state for turn in session.turns()] == ["ended", "ended", "waiting"]
    assert said[0] == UserMessage(content="what is the weather?\nand tomorrow?")
    assert "sunny in Oslo" in str(said)
    assert "do not ask" in str(said)


def test_serve_and_chat_connect_an_agent_to_the_servers_in_a_file(cwd: Path) -> None:
    """Bug: `serve` could not read `mcp.json`, and `chat APP --mcp` ignored it."""
    raw_server = Path(__file__).parents[1] / "mcp" / "raw_server.py"
    command = {"command": sys.executable, "args": ["-I", "-S", str(raw_server)]}
    (cwd / "mcp.json").write_text(json.dumps({"mcpServers": {"raw": command}}))
    (cwd / "bare.py").write_text(
        "from standfast import Agent, ScriptedModel\n"
        "calls = [{'name': 'mcp__raw__echo', 'arguments': {'x': 7}}]\n"
        "agent = Agent(ScriptedModel([{'tool_calls': calls}, 'done'], strict=False), name='bare')\n"
    )
    standfast("chat", "--session", "s", "bare.py:agent", "go", "--mcp", "mcp.json", cwd=cwd)
    exported = standfast("sessions", "export", "s", cwd=cwd).stdout
    assert '"value":"7"' in exported.replace(" ", "")
    with Served(cwd, "bare.py:agent", "--mcp", "mcp.json") as served:
        served.token = standfast("tokens", "create", cwd=cwd).stdout.strip()
        served.run("chat", "--agent", "bare", "--session", "t", "go")
        assert "mcp__raw__echo" in served.run("sessions", "show", "t").stdout
        exported = served.run("sessions", "export", "t").stdout
        assert '"value":"7"' in exported.replace(" ", "")
