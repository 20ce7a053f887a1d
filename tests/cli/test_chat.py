"""`standfast chat`: one turn, and a conversation at a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from terminals import Terminal

from standfast import Agent, Runtime, ScriptedModel, tool
from standfast.cli.report import ask_decision
from standfast.model.approval import Approval, ApprovalState

pytestmark = pytest.mark.slow

SUPPORT = Path(__file__).parents[2] / "examples" / "support.py"
SUPPORT_SCRIPT = SUPPORT.with_suffix(".json")

STUCK_TOOLS = """
import os, threading
from standfast import CompleteAfter, CompleteLater, RunContext, tool

@tool(side_effect="external_system")
def stuck() -> str:
    "Never comes back."
    with open(os.environ["BEGUN"], "w") as begun:
        begun.write("begun")
    threading.Event().wait()
    return "done"

@tool
async def soon() -> CompleteAfter:
    "Comes back by itself."
    return CompleteAfter(0.2, "rang")

@tool
async def outside(ctx: RunContext[None]) -> CompleteLater:
    "Comes back when an outside system delivers it."
    return CompleteLater(ctx.completion_token())
"""

STUCK_SCRIPT = {
    "rules": [
        {"when_tool": "soon", "text": "it said {value}"},
        {"when": "stuck", "text": "I call it.", "tool_calls": [{"name": "stuck"}]},
        {"when": "soon", "tool_calls": [{"name": "soon"}]},
        {"when": "outside", "tool_calls": [{"name": "outside"}]},
        {"text": "you said {text}"},
    ]
}


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def begin(*words: str, kind: str = "dumb") -> Terminal:
        opened.append(Terminal(*words, kind=kind))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Return the name of a model with this script."""

    def write(content: Any) -> str:
        file = tmp_path / "script.json"
        file.write_text(json.dumps(content))
        return f"scripted:{file}"

    return write


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Callable[..., str]) -> tuple[str, ...]:
    """Return the options for an agent whose tool hangs; `begun` waits until it has started."""
    tools = tmp_path / "stuck_tools.py"
    tools.write_text(STUCK_TOOLS)
    os.mkfifo(tmp_path / "begun")
    monkeypatch.setenv("BEGUN", str(tmp_path / "begun"))
    return ("--model", script(STUCK_SCRIPT), "--tools", str(tools))


def begun(tmp_path: Path) -> str:
    """Wait until the hanging tool has started."""
    return (tmp_path / "begun").read_text()


# One turn


def test_one_turn_prints_the_reply_and_shows_calls_separately(standfast: Any) -> None:
    """Ours: the reply is on standard output, everything else on standard error."""
    ran = standfast("chat", "order A1")
    assert ran.status == 0
    assert ran.stdout.startswith("Let me look that up.\nThe order tool returned")
    assert "order(order_id='A1')" in ran.stderr
    assert re.search(r'order → \{"id": "A1", .*\} · \d+ ms', ran.stderr)


def test_without_a_model_chat_runs_a_demo_and_says_so(standfast: Any) -> None:
    """Ours: a user cannot mistake the script for a model, and learns how to choose one."""
    ran = standfast("chat", "hello")
    assert "scripted demo, not a real model" in ran.stderr
    assert "--model" in ran.stderr
    assert "STANDFAST_MODEL" in ran.stderr


def test_the_prompt_may_come_from_a_pipe(standfast: Any) -> None:
    """Ours: `echo hi | standfast chat` works."""
    assert "Hello!" in standfast("chat", stdin="hello\n").stdout


def test_json_output_is_one_document(standfast: Any) -> None:
    """Ours: the document has the status, text, usage and calls of the turn."""
    ran = standfast("chat", "order A1", "--json")
    assert (ran.status, ran.document["status"], ran.document["session_id"]) == (0, "finished", "chat")
    assert ran.document["text"].startswith("The order tool returned")
    assert [call["name"] for call in ran.document["calls"]] == ["order"]
    assert ran.document["usage"]["calls"] == 2


def test_a_call_that_needs_approval_is_left_to_the_approvals_command(standfast: Any) -> None:
    """Ours: with a pipe no person can be asked, so the id and the command are printed; the status is 1."""
    ran = standfast("chat", "refund A1")
    (request,) = standfast("approvals", "list", "--pending", "--json").document
    assert ran.status == 1
    assert f"approvals approve {request['approval_id']}" in ran.stderr
    assert request["run_id"].startswith("t_")


def test_a_waiting_turn_must_be_decided_before_the_next_one(standfast: Any) -> None:
    """Ours: the waiting turn is shown, and the new prompt is not sent."""
    first = standfast("chat", "refund A1", "--json").document
    ran = standfast("chat", "hello")
    assert (ran.status, ran.stdout) == (1, "")
    assert first["approvals"][0]["approval_id"] in ran.stderr
    again = standfast("chat", "hello", "--json")
    assert again.document["error"]["code"] == "WAITING_FOR_APPROVAL"
    assert again.document["waiting"]["turn_id"] == first["turn_id"]


def test_a_session_remembers_its_agent(standfast: Any, process: Any, script: Callable[..., str]) -> None:
    """Ours: model, tools and instructions are given once; another process has them, too."""
    expected = {"instructions_contain": "kind", "tools": ["order", "refund"]}
    model = script([{"text": "one", "expect": expected}, {"text": "two", "expect": expected}, "left over"])
    first = standfast("chat", "a", "--model", model, "--tools", str(SUPPORT), "--instructions", "Be kind.")
    assert (first.status, first.stdout) == (0, "one\n")
    second = process("chat", "b")
    assert (second.status, second.stdout) == (0, "two\n")
    (head,) = standfast("sessions", "list", "--json").document
    assert head["model"] == model


def test_recorded_paths_are_absolute(
    standfast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Callable[..., str]
) -> None:
    """Ours: the process that resumes the session may run in another directory."""
    script(["one"])
    (tmp_path / "my_tools.py").write_text(SUPPORT.read_text())
    monkeypatch.chdir(tmp_path)
    standfast("chat", "a", "--model", "scripted:script.json", "--tools", "my_tools.py")
    host = standfast("sessions", "export", "chat", "--json").document["head"]["host"]
    assert host["model"] == f"scripted:{tmp_path / 'script.json'}"
    assert host["tools"] == [str(tmp_path / "my_tools.py")]


def test_unused_replies_of_a_script_do_not_fail_a_turn(standfast: Any, script: Callable[..., str]) -> None:
    """Ours: a chat may end before its script does, strict or not."""
    ran = standfast("chat", "hi", "--model", script({"replies": ["one", "two"], "strict": True}), "--json")
    assert (ran.status, ran.document["text"]) == (0, "one")


def test_retracted_text_is_never_written_to_a_pipe(standfast: Any, script: Callable[..., str]) -> None:
    """Ours: the output has only the final text; standard error says that a call was retried."""
    failure = {"retryable": True, "after_chunks": 2, "message": "the line broke"}
    model = script([{"text": "half a thought", "chunk_size": 4, "failure": failure}, "a whole one"])
    ran = standfast("chat", "hi", "--model", model)
    assert (ran.status, ran.stdout) == (0, "a whole one\n")
    assert "the line broke" in ran.stderr


def test_a_turn_without_an_answer_is_an_error(standfast: Any, script: Callable[..., str]) -> None:
    """Ours: the exit status is 1, and the document has the error."""
    model = script([{"text": "x", "failure": {"message": "no such luck"}}])
    ran = standfast("chat", "hi", "--model", model, "--json")
    assert (ran.status, ran.document["status"]) == (1, "stopped")
    assert "no such luck" in ran.document["error"]["message"]
    assert "no such luck" in standfast("chat", "hi", "--model", model, "--session", "b").stderr


def test_invalid_options_are_usage_errors_and_a_missing_key_is_a_plain_error(
    standfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the status is 2 for wrong usage and 1 for other errors."""
    assert standfast("chat", "hi", "--model", "nonsense").status == 2
    assert standfast("chat", stdin="").status == 2
    assert standfast("chat", "hi", "--session", "no way", "--json").document["error"]["code"] == (
        "INVALID_SESSION_ID"
    )
    monkeypatch.setenv("STANDFAST_MODEL", "anthropic:some")
    ran = standfast("chat", "hi", "--json")
    assert (ran.status, "anthropic" in ran.document["error"]["message"]) == (1, True)


def test_the_model_can_be_set_in_the_environment(
    standfast: Any, monkeypatch: pytest.MonkeyPatch, script: Callable[..., str]
) -> None:
    """Ours: STANDFAST_MODEL applies if the session has no model."""
    monkeypatch.setenv("STANDFAST_MODEL", script(["from the environment"]))
    ran = standfast("chat", "hi")
    assert ran.stdout == "from the environment\n"
    assert "demo" not in ran.stderr


def test_the_version_is_printed_without_loading_the_runtime() -> None:
    """Ours: unused packages are not loaded."""
    code = (
        "import sys\nfrom standfast.cli.main import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "print({'asyncio', 'msgspec', 'rich', 'standfast.runtime'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "set()"


# At a terminal


@pytest.mark.slow
def test_a_conversation_works_at_a_terminal(terminal: Callable[..., Terminal], standfast: Any) -> None:
    """Ours: an honest banner, streamed text, Ctrl-D exits, and the session is kept."""
    chat = terminal("chat")
    banner = chat.expect("> ")
    assert "scripted demo, not a real model" in banner
    assert "session chat" in banner
    chat.type("order A1\r")
    assert "order → " in chat.expect("> ")
    chat.type("\x04")
    assert chat.exit_status() == 0
    again = terminal("chat")
    assert "session chat, 4 messages so far" in again.expect("> ")
    again.type("/quit\r")
    assert again.exit_status() == 0


@pytest.mark.slow
def test_approvals_are_requested_at_the_terminal(terminal: Callable[..., Terminal], standfast: Any) -> None:
    """Ours: the answer is yes, no with a reason, edited arguments, or later; Enter alone decides nothing."""
    chat = terminal("chat")
    question = "[l]ater: "
    chat.expect("> ")
    chat.type("refund A1\r")
    chat.expect(question)
    chat.type("\r")
    chat.expect(question)
    chat.type("y\r")
    assert "1999 cents refunded for order A1" in chat.expect("\n> ")
    chat.type("refund A1\r")
    chat.expect(question)
    chat.type("e\r")
    chat.expect("JSON: ")
    chat.type('\x15{"order_id": "A1"}\r')
    assert "are invalid" in chat.expect(question)
    chat.type("e\r")
    chat.expect("JSON: ")
    chat.type('\x15{"order_id": "A1", "cents": 7}\r')
    assert "7 cents refunded for order A1" in chat.expect("\n> ")
    chat.type("refund A1\r")
    chat.expect(question)
    chat.type("n\r")
    chat.expect("model: ")
    chat.type("too much\r")
    assert "refused the call of refund(): too much" in chat.expect("\n> ")
    chat.type("refund A1\r")
    chat.expect(question)
    chat.type("l\r")
    assert "approvals approve apr_" in chat.expect("\n> ")
    chat.type("hello\r")
    chat.expect(question)
    chat.type("\x04")
    assert "not sent" in chat.expect("\n> ")
    chat.type("/cancel\r")
    assert "CANCELLED" in chat.expect("\n> ")
    assert standfast("approvals", "list", "--pending", "--json").document == []


@pytest.mark.slow
def test_a_cell_requests_approval_at_the_terminal_in_the_middle(terminal: Callable[..., Terminal]) -> None:
    """Seed: a call from code needs the same approval as any other; the answer is shown once."""
    chat = terminal("chat", "--protocol", "code")
    chat.expect("> ")
    chat.type("refund A1\r")
    before = chat.expect("[l]ater: ")
    assert before.count('  │ found = order("A1")\n') == 1
    assert "    order(order_id='A1')\n" in before
    assert "refund(order_id='A1', cents=1999)" in before
    assert "```" not in before
    chat.type("e\r")
    chat.expect("JSON: ")
    chat.type('\x15{"order_id": "A1", "cents": 7}\r')
    after = chat.expect("\n> ")
    assert "    refund(order_id='A1', cents=7)\n" in after
    assert after.count("The refund tool answered: 7 cents refunded for order A1") == 1
    chat.type("/history\r")
    assert "cell 0: gave the answer\n" in chat.expect("\n> ")


@pytest.mark.slow
def test_ctrl_c_ends_the_turn_but_not_the_program(
    terminal: Callable[..., Terminal], stuck: tuple[str, ...], tmp_path: Path
) -> None:
    """Ours: a hanging tool is abandoned; at the prompt Ctrl-C warns first, then exits."""
    chat = terminal("chat", *stuck)
    chat.expect("> ")
    chat.type("stuck\r")
    chat.expect("stuck()")
    assert begun(tmp_path) == "begun"
    chat.press_ctrl_c()
    assert "CANCELLED" in chat.expect("\n> ")
    chat.type("still there?\r")
    assert "you said still there?" in chat.expect("\n> ")
    chat.type("half a line")
    chat.expect("half a line")
    chat.press_ctrl_c()
    chat.expect("Ctrl-C again")
    chat.expect("\n> ")
    chat.press_ctrl_c()
    assert chat.exit_status() == 0


@pytest.mark.slow
def test_sigterm_exits_cleanly_and_the_next_chat_resumes_the_turn(
    terminal: Callable[..., Terminal], stuck: tuple[str, ...], tmp_path: Path, standfast: Any
) -> None:
    """Ours: exiting cancels nothing; running calls are settled and shown first."""
    chat = terminal("chat", *stuck)
    chat.expect("> ")
    chat.type("stuck\r")
    chat.expect("stuck()")
    begun(tmp_path)
    chat.signal(signal.SIGTERM)
    assert chat.exit_status() == 1
    assert "recover" in chat.rest
    (row,) = standfast("sessions", "list", "--json").document
    assert row["state"] == "interrupted"
    again = terminal("chat")
    shown = again.expect("\n> ")
    assert "resuming turn" in shown
    assert "INTERRUPTED" in shown
    again.signal(signal.SIGTERM)
    assert again.exit_status() == 0


@pytest.mark.slow
def test_chat_waits_for_timers_and_says_so(terminal: Callable[..., Terminal], stuck: tuple[str, ...]) -> None:
    """Ours: the user sees what a turn waits for; Ctrl-C stops the waiting, not the turn."""
    chat = terminal("chat", *stuck)
    chat.expect("> ")
    chat.type("soon\r")
    shown = chat.expect("\n> ")
    assert "waits until" in shown
    assert "it said rang" in shown
    chat.type("outside\r")
    chat.expect("waits for the result of call 1 under cpl_")
    chat.expect("stops waiting")
    chat.press_ctrl_c()
    assert "still waits" in chat.expect("\n> ")
    chat.type("/cancel\r")
    assert "CANCELLED" in chat.expect("\n> ")


@pytest.mark.slow
def test_slash_commands_work(terminal: Callable[..., Terminal], standfast: Any) -> None:
    """Ours: history, usage, rewind, fork and session exist, and an unknown command only prints a message."""
    standfast("chat", "hello")
    standfast("chat", "who are you")
    chat = terminal("chat")
    chat.expect("\n> ")
    for typed, shown in (
        ("/history", "user: hello"),
        ("/usage", "scripted:demo"),
        ("/rewind", "session chat, 2 messages so far"),
        ("/rewind 9", "cannot go back by 9"),
        ("/rewind x", "takes a number"),
        ("/fork copy", "session copy, 2 messages so far"),
        ("/fork", "needs the id"),
        ("/session chat", "session chat, 2 messages"),
        ("/session no way", "INVALID_SESSION_ID"),
        ("/session", "session chat, 2 messages"),
        ("/help", "/rewind"),
        ("/nope", "there is no command /nope"),
    ):
        chat.type(f"{typed}\r")
        chat.expect(typed)
        assert shown in chat.expect("\n> ")
    chat.type("/quit\r")
    assert chat.exit_status() == 0
    assert {row["session_id"] for row in standfast("sessions", "list", "--json").document} == {
        "chat",
        "copy",
    }


@pytest.mark.slow
def test_ctrl_c_cancels_a_single_turn(
    start: Callable[..., subprocess.Popen[str]], stuck: tuple[str, ...], tmp_path: Path
) -> None:
    """Ours: the exit status is 1, and the session is ready for the next turn."""
    running = start("chat", "stuck", *stuck, "--json")
    begun(tmp_path)
    before = time.monotonic()
    running.send_signal(signal.SIGINT)
    stdout, _ = running.communicate(timeout=20)
    assert time.monotonic() - before < 5
    assert (running.returncode, json.loads(stdout)["error"]["code"]) == (1, "CANCELLED")


def test_a_chat_in_a_programs_session_names_the_agent_that_blocks_it(
    home: Path, terminal: Callable[..., Terminal]
) -> None:
    """Ours: the chat stays open; the history can be read and the turn cancelled."""

    @tool(approval="manual")
    def pay() -> str:
        """Pay."""
        return "paid"

    async def left_by_a_program() -> None:
        model = ScriptedModel([{"tool_calls": [{"name": "pay"}]}], name="x", strict=False)
        async with Runtime(home / "standfast.db") as runtime:
            session = await runtime.session("theirs", agent=Agent(model, name="shop", tools=[pay]))
            approval = (await session.turn("pay")).waits[0].wait_id
        async with Runtime(home / "standfast.db") as runtime:
            await runtime.approve(approval)

    home.mkdir(mode=0o700)
    asyncio.run(left_by_a_program())
    chat = terminal("chat", "--session", "theirs")
    chat.expect("belongs to agent 'shop'")
    chat.type("hello\n")
    chat.expect("WRONG_AGENT")
    chat.type("/cancel\n")
    chat.expect("CANCELLED")
    chat.type("/quit\n")
    assert chat.exit_status() == 0


def _said(standfast: Any) -> list[str]:
    """Return the user's messages in the session."""
    nodes = standfast("sessions", "show", "chat", "--json").document["nodes"]
    return [node["payload"]["content"] for node in nodes if node["payload"]["type"] == "user"]


PASTED = "def f():\n    return 1 \\\n        + 2\n\n/help is no command here\nend"


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_lines_that_arrive_together_are_one_message(
    terminal: Callable[..., Terminal], script: Callable[..., str], standfast: Any, kind: str
) -> None:
    """Bug: every line of a pasted text was a separate message."""
    chat = terminal("chat", "--model", script(STUCK_SCRIPT), kind=kind)
    chat.expect("> ")
    chat.type(PASTED.replace("\n", "\r") + "\r")
    chat.expect("you said def f():")
    chat.expect("> ")
    chat.type("next\r")
    chat.expect("you said next")
    chat.expect("> ")
    chat.type("/quit\r")
    assert chat.exit_status() == 0
    assert _said(standfast) == [PASTED, "next"]


def test_a_bracketed_paste_is_one_message(
    terminal: Callable[..., Terminal], script: Callable[..., str], standfast: Any
) -> None:
    """Bug: a paste that the terminal marks was split, too; it may be edited before it is sent."""
    chat = terminal("chat", "--model", script(STUCK_SCRIPT), kind="xterm")
    chat.expect("\x1b[?2004h")  # readline enables bracketed paste
    chat.type("see: \x1b[200~" + PASTED.replace("\n", "\r") + "\r\x1b[201~")
    chat.type("!\r")
    chat.expect("you said see: def f():")
    chat.expect("> ")
    chat.type("/quit\r")
    assert chat.exit_status() == 0
    assert _said(standfast) == [f"see: {PASTED}\n!"]


def test_a_paste_without_a_final_line_break_is_sent_with_enter(
    terminal: Callable[..., Terminal], script: Callable[..., str], standfast: Any
) -> None:
    """Ours: the last line stays in the line editor, to be completed."""
    chat = terminal("chat", "--model", script(STUCK_SCRIPT))
    chat.expect("> ")
    chat.type("one\rtwo")
    chat.expect("… ")
    chat.expect("two")
    chat.type(" and more\r")
    chat.expect("you said one")
    chat.expect("> ")
    chat.type("/quit\r")
    assert chat.exit_status() == 0
    assert _said(standfast) == ["one\ntwo and more"]


def test_commands_typed_ahead_remain_commands(
    terminal: Callable[..., Terminal], script: Callable[..., str], standfast: Any
) -> None:
    """Ours: a user may type `/usage` and `/quit` without waiting for an answer."""
    chat = terminal("chat", "--model", script(STUCK_SCRIPT))
    chat.expect("> ")
    chat.type("/usage\r/quit\r")
    assert chat.exit_status() == 0


def test_a_backslash_continues_a_typed_line(
    terminal: Callable[..., Terminal], script: Callable[..., str], standfast: Any
) -> None:
    """Ours: a message of several lines can be typed as well as pasted."""
    chat = terminal("chat", "--model", script(STUCK_SCRIPT))
    chat.expect("> ")
    chat.type("one \\\r")
    chat.expect("… ")
    chat.type("two\r")
    chat.expect("you said one")
    chat.expect("> ")
    chat.type("/quit\r")
    assert chat.exit_status() == 0
    assert _said(standfast) == ["one \ntwo"]


def test_a_paste_followed_by_the_end_of_input_is_sent_before_the_chat_exits(
    terminal: Callable[..., Terminal], script: Callable[..., str], standfast: Any
) -> None:
    """Ours: Ctrl-D right after a message loses neither the message nor the Ctrl-D."""
    chat = terminal("chat", "--model", script(STUCK_SCRIPT))
    chat.expect("> ")
    chat.type("last words\r\x04")
    assert chat.exit_status() == 0
    assert _said(standfast) == ["last words"]


def test_text_pasted_before_a_question_does_not_answer_it(
    terminal: Callable[..., Terminal], standfast: Any
) -> None:
    """Bug: a second pasted line "y" approved the call that the first one led to."""
    chat = terminal("chat")
    question = "[l]ater: "
    chat.expect("> ")
    chat.type("refund A1\ry\r")
    chat.expect(question)
    chat.type("nonsense\ry\r")
    chat.expect(question)
    chat.type("l\r")
    chat.expect("approvals approve apr_")
    (asked, *_) = standfast("approvals", "list", "--pending", "--json").document
    assert asked["state"] == "pending"


@pytest.mark.parametrize(
    ("args", "kwargs", "offered"),
    [([1, "x"], {}, {"args": [1, "x"]}), ([], {"cents": 5}, {"cents": 5}), ([], {}, {})],
)
def test_the_arguments_of_a_call_are_offered_for_editing(
    args: list[Any], kwargs: dict[str, Any], offered: dict[str, Any]
) -> None:
    """Bug: for a positional call the field was an empty object, and Enter dropped every argument."""
    asked: list[tuple[str, str]] = []

    def ask(question: str, given: str) -> str:
        asked.append((question, given))
        return "e" if question.startswith("Approve?") else given

    approval = Approval(
        approval_id="apr_1",
        state=ApprovalState.PENDING,
        session_id="s",
        capability="add",
        args=args,
        kwargs=kwargs,
        requested_at=0,
        expires_at=1,
        binding="",
        run_id="t_1",
        call_id=1,
    )
    decision = ask_decision(approval, ask)
    assert json.loads(asked[-1][1]) == offered
    assert decision is not None
    assert decision.kwargs == offered
