"""`standfast recover`: turns that a process left unfinished."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Runtime, tool
from standfast.cli.agent_host import AgentHost
from standfast.cli.agent_options import AgentSettings
from standfast.cli.follower import BackgroundLoop
from standfast.providers.scripted import ScriptedModel

TOOLS = """
import os, threading
from standfast import CompleteAfter, tool

def note(line):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(line + "\\n")

def hang():
    with open(os.environ["BEGUN"], "w") as begun:
        begun.write("begun")
    threading.Event().wait()

@tool(side_effect="external_system")
def pay() -> str:
    "Pays, and hangs the first time."
    note("pay")
    hang()
    return "paid"

@tool(side_effect="read")
def look() -> str:
    "Looks, and hangs the first time."
    note("look")
    if not os.path.exists(os.environ["LEDGER"] + ".second"):
        hang()
    return "seen"

@tool
async def soon() -> CompleteAfter:
    "Comes back by itself."
    return CompleteAfter(0.3, "rang")
"""

SCRIPT = {
    "rules": [
        {"when_tool": "pay", "text": "pay: {value}"},
        {"when_tool": "look", "text": "look: {value}"},
        {"when_tool": "soon", "text": "soon: {value}"},
        {"when": "pay", "tool_calls": [{"name": "pay"}]},
        {"when": "look", "tool_calls": [{"name": "look"}]},
        {"when": "soon", "tool_calls": [{"name": "soon"}]},
    ]
}


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return the options for an agent whose tools log their calls."""
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    (tmp_path / "tools.py").write_text(TOOLS)
    os.mkfifo(tmp_path / "begun")
    monkeypatch.setenv("BEGUN", str(tmp_path / "begun"))
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)
    return ("--model", f"scripted:{tmp_path / 'script.json'}", "--tools", str(tmp_path / "tools.py"))


def _kill_in_the_middle(running: subprocess.Popen[str], tmp_path: Path) -> None:
    assert (tmp_path / "begun").read_text() == "begun"
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=20)


@pytest.mark.slow
def test_a_payment_interrupted_by_a_crash_is_not_repeated(
    start: Callable[..., subprocess.Popen[str]], process: Any, agent: tuple[str, ...], tmp_path: Path
) -> None:
    """Seed: after SIGKILL in a tool, the turn ends, the model reads of it, and the tool ran once."""
    _kill_in_the_middle(start("chat", "please pay", *agent), tmp_path)
    assert process("sessions", "list", "--json").document[0]["state"] == "interrupted"
    ran = process("recover")
    assert ran.status == 0
    assert "'please pay'  finished: pay: the process died while pay() ran" in ran.stdout
    assert (tmp_path / "ledger").read_text() == "pay\n"
    assert process("recover").stdout == "nothing to resume\n"


@pytest.mark.slow
def test_an_idempotent_call_interrupted_by_a_crash_is_repeated(
    start: Callable[..., subprocess.Popen[str]], process: Any, agent: tuple[str, ...], tmp_path: Path
) -> None:
    """Seed: an idempotent effect may run twice."""
    _kill_in_the_middle(start("chat", "look", *agent), tmp_path)
    (tmp_path / "ledger.second").touch()
    (done,) = process("recover", "--json").document
    assert (done["status"], done["text"], done["prompt"]) == ("finished", "look: seen", "look")
    assert (tmp_path / "ledger").read_text() == "look\nlook\n"


@pytest.mark.slow
def test_code_interrupted_by_a_crash_resumes_and_pays_only_once(
    start: Callable[..., subprocess.Popen[str]], process: Any, agent: tuple[str, ...], tmp_path: Path
) -> None:
    """Ours: a run is a turn: after SIGKILL in a tool, the code resumes and gets an error."""
    code = "try:\n    answer = pay()\nexcept Exception as error:\n    answer = str(error)\nanswer"
    _kill_in_the_middle(start("run", "-e", code, *agent[2:]), tmp_path)
    (row,) = process("sessions", "list", "--json").document
    assert (row["session_id"], row["state"]) == ("default", "interrupted")
    (done,) = process("recover", "--json").document
    assert (done["status"], done["problem"], done["result"]["status"]) == ("finished", None, "ok")
    assert "the process died while pay() ran" in done["result"]["result"]
    assert (tmp_path / "ledger").read_text() == "pay\n"
    assert process("recover").stdout == "nothing to resume\n"
    assert "the process died" in process("run", "-e", "answer").stdout


@pytest.mark.slow
def test_an_idempotent_call_from_code_interrupted_by_a_crash_is_repeated(
    start: Callable[..., subprocess.Popen[str]], process: Any, agent: tuple[str, ...], tmp_path: Path
) -> None:
    """Ours: `recover --watch` repeats it, too."""
    _kill_in_the_middle(start("run", "-e", "seen = look()\nseen", *agent[2:]), tmp_path)
    (tmp_path / "ledger.second").touch()
    watch = start("recover", "--watch")
    assert watch.stdout is not None
    assert 'finished: "seen"' in watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=20)
    assert watch.returncode == 0
    assert (tmp_path / "ledger").read_text() == "look\nlook\n"


@pytest.mark.slow
def test_a_run_whose_tools_file_moved_is_reported_and_can_be_resumed_with_the_new_one(
    start: Callable[..., subprocess.Popen[str]], process: Any, agent: tuple[str, ...], tmp_path: Path
) -> None:
    """Ours: the command prints the reason, exits with 1, and `--tools` names the new file."""
    _kill_in_the_middle(start("run", "-e", "look()", *agent[2:]), tmp_path)
    (tmp_path / "ledger.second").touch()
    (tmp_path / "tools.py").rename(tmp_path / "moved.py")
    refused = process("recover", "--json")
    (problem,) = (one["problem"] for one in refused.document)
    assert (refused.status, "there is no tools file" in problem["message"]) == (1, True)
    ran = process("recover", "--tools", str(tmp_path / "moved.py"))
    assert (ran.status, 'finished: "seen"' in ran.stdout) == (0, True)


@pytest.mark.slow
def test_watching_waits_for_timers_until_it_is_stopped(
    start: Callable[..., subprocess.Popen[str]], standfast: Any, agent: tuple[str, ...]
) -> None:
    """Ours: each ended turn is one line; Ctrl-C ends a watch, so the status is 0."""
    waiting = standfast("chat", "soon", *agent)
    assert (waiting.status, "waits until" in waiting.stderr) == (1, True)
    watch = start("recover", "--watch")
    assert watch.stdout is not None
    assert "finished: soon: rang" in watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=20)
    assert watch.returncode == 0


@pytest.mark.slow
def test_watching_delivers_triggers_to_the_recorded_agents(
    start: Callable[..., subprocess.Popen[str]], standfast: Any
) -> None:
    """Bug: a timer added on the command line was never delivered without a program."""
    assert standfast("chat", "hello", "--session", "ops").status == 0
    assert standfast("triggers", "add", "tick", "--session", "ops", "--every", "1s").status == 0
    watch = start("recover", "--watch")
    assert watch.stdout is not None
    told = [watch.stdout.readline() for _ in range(2)]
    assert all(line.startswith("ops ") and "finished" in line for line in told)
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=20)
    assert watch.returncode == 0


def test_a_turn_with_an_unknown_agent_is_listed_with_the_reason(
    standfast: Any, home: Path, tmp_path: Path
) -> None:
    """Ours: the agent of another program cannot be recreated without options.

    Bug: `approvals approve` suggested `standfast recover`, which cannot resume such a turn.
    """

    @tool(approval="manual")
    def order(order_id: str) -> str:
        """Look an order up."""
        return order_id

    async def left_by_a_program() -> None:
        calls = [{"name": "order", "arguments": {"order_id": "A1"}}]
        model = ScriptedModel([{"tool_calls": calls}], name="x", strict=False)
        async with Runtime(home / "standfast.db") as runtime:
            session = await runtime.session("theirs", agent=Agent(model, tools=[order]))
            await session.turn("look at A1")

    home.mkdir(mode=0o700)
    asyncio.run(left_by_a_program())
    (asked,) = standfast("approvals", "list", "--pending", "--json").document
    decided = standfast("approvals", "approve", asked["approval_id"])
    assert decided.status == 0
    assert "a program that has agent 'agent' resumes it" in decided.stderr
    assert " worker APP" in decided.stderr
    assert " recover " not in decided.stderr
    ran = standfast("recover")
    assert ran.status == 1
    assert "not resumed: the session's record does not describe its agent" in ran.stdout
    assert standfast("recover", "--session", "other", "--json").document == []


def test_a_tools_file_that_moved_is_named_and_can_be_replaced(
    standfast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the decision is kept, and the turn waits for a process with the tools."""
    examples = Path(__file__).parents[2] / "examples"
    old, new = tmp_path / "old_tools.py", tmp_path / "new_tools.py"
    old.write_text((examples / "support.py").read_text())
    script = tmp_path / "script.json"
    call = {"name": "refund", "arguments": {"order_id": "A1", "cents": 5}}
    script.write_text(json.dumps([{"tool_calls": [call]}, "done"]))
    standfast("chat", "refund A1", "--model", f"scripted:{script}", "--tools", str(old))
    old.rename(new)
    (asked,) = standfast("approvals", "list", "--pending", "--json").document
    decided = standfast("approvals", "approve", asked["approval_id"], "--json")
    assert (decided.status, decided.document["continued"]) == (0, False)
    assert str(old) in decided.document["problem"]["message"]
    assert decided.document["command"].endswith(" recover --session chat")
    failed = standfast("recover", "--json")
    assert (failed.status, str(old) in failed.document[0]["problem"]["message"]) == (1, True)
    (done,) = standfast("recover", "--tools", str(new), "--json").document
    assert (done["status"], done["text"]) == ("finished", "done")


def test_having_nothing_to_resume_is_not_an_error(standfast: Any) -> None:
    """Ours: turns that wait for a person are not touched."""
    standfast("chat", "refund A1")
    ran = standfast("recover")
    assert (ran.status, ran.stdout) == (0, "nothing to resume\n")
    assert standfast("recover", "--watch", "--json").status == 2


def test_ctrl_c_takes_effect_when_another_thread_receives_the_signal() -> None:
    """Bug: any thread may get SIGINT, only the main thread acts on it: `recover --watch` ignored Ctrl-C."""
    background = BackgroundLoop()
    outcome = "interrupted"

    async def work() -> None:
        nonlocal outcome
        await asyncio.sleep(0.2)  # by then, the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await asyncio.sleep(5)
        outcome = "ran to its end"

    with pytest.raises(KeyboardInterrupt):
        background.run(work())
    background.leave(asyncio.sleep(0))
    assert outcome == "interrupted"


def test_cancelling_the_closing_of_a_host_leaves_no_task(tmp_path: Path) -> None:
    """Bug: Ctrl-C while a host closed left the task that renews leases, and exiting waited 5 s for it."""
    script = tmp_path / "script.json"
    script.write_text('["hello"]')

    async def cancel_closing() -> None:
        async with AgentHost(tmp_path, AgentSettings(model=f"scripted:{script}")) as host:
            await (await host.session("s")).turn("hello")
            closing = asyncio.ensure_future(host.__aexit__(None, None, None))
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait((closing,))
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cancel_closing())
