"""Cells on the command line: in a chat, in a transcript, in an export."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from standfast import Agent, CodeMode, Runtime
from standfast.cli.chat_screen import ChatScreen
from standfast.cli.transcript import (
    calls_made,
    code_lines,
    is_cell,
    outcome,
    remarks,
    report_of,
    show_conversation,
)
from standfast.errors import ErrorObject, Span
from standfast.model.code import CallMade, CellReport
from standfast.model.events import (
    ModelCallStarted,
    ReplyReceived,
    TextStreamed,
    ToolCallSettled,
    TurnCommitted,
)
from standfast.model.limits import Usage
from standfast.model.message import ToolCall, ToolMessage
from standfast.model.outcome import Finished, Stopped, StopReason
from standfast.model.session import Node
from standfast.providers.scripted import ScriptedModel


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)


@pytest.fixture
def says(tmp_path: Path) -> Callable[..., list[str]]:
    """Return the options for an agent that acts in code and whose model gives these replies."""

    def write(*replies: str) -> list[str]:
        file = tmp_path / "script.json"
        file.write_text(json.dumps(list(replies)))
        return ["--protocol", "code", "--model", f"scripted:{file}"]

    return write


def cell(code: str, prose: str = "") -> str:
    return f"{prose}\n\n```python\n{code}\n```\n"


# In a chat


def test_a_cell_is_shown_with_its_calls_below_it_and_its_answer_once(standfast: Any) -> None:
    """Ours: standard output has the prose and the answer once each; code, calls and outcome are on stderr."""
    ran = standfast("chat", "--protocol", "code", "order A1")
    assert ran.status == 0
    answer = 'Order A1 came 6 days late. Say "refund A1" to see code that waits for you.'
    assert ran.stdout == f"Let me look that up.\n{answer}\n"
    shown = [line for line in ran.stderr.splitlines() if line.startswith("  ")]
    assert shown[0] == '  │ found = order("A1")'
    assert shown[3] == "    order(order_id='A1')"
    assert shown[4].startswith('    order → {"id": "A1"')
    assert shown[5] == "  cell 0 gave the answer"
    assert "```" not in ran.stdout + ran.stderr


def test_an_approval_inside_a_cell_is_decided_by_another_command(standfast: Any) -> None:
    """Ours: the session stores its protocol, and the cell resumes where it stopped."""
    waiting = standfast("chat", "--protocol", "code", "refund A1", "--json")
    assert (waiting.status, waiting.document["status"]) == (1, "waiting")
    (asked,) = waiting.document["approvals"]
    assert (asked["capability"], asked["kwargs"]) == ("refund", {"order_id": "A1", "cents": 1999})
    arguments = '{"order_id": "A1", "cents": 5}'
    ran = standfast("approvals", "approve", asked["approval_id"], "--arguments", arguments)
    assert ran.status == 0
    assert "    refund(order_id='A1', cents=5)\n" in ran.stderr
    assert "order(" not in ran.stderr.replace("refund(order_id", "")
    assert "The refund tool answered: 5 cents refunded for order A1" in ran.stdout
    again = standfast("chat", "refund A1", "--json").document["approvals"][0]
    refused = standfast("approvals", "deny", again["approval_id"], "--reason", "no more")
    assert "refused the call of refund(): no more" in refused.stdout


def test_variables_persist_between_commands(standfast: Any, says: Callable[..., list[str]]) -> None:
    """Ours: each command is a process, and the session stores the variables."""
    options = says(cell("x = 20"), "Noted.", cell("finish(x + 1)"))
    assert standfast("chat", *options, "remember").stdout == "Noted.\n"
    assert standfast("chat", "and?").stdout == "21\n"
    record = standfast("sessions", "export", "chat").document["head"]["host"]
    assert record["protocol"] == "code"


def test_an_error_of_a_cell_is_printed_with_its_line(standfast: Any, says: Callable[..., list[str]]) -> None:
    """Ours: errors, output and notes of a cell take one line each."""
    options = says(
        cell("print('a')\nprint('b')\n1 / 0", "I divide.") + cell("2"), cell("len('abc')"), "Sorry."
    )
    ran = standfast("chat", *options, "go")
    assert ran.stdout == "I divide.\nSorry.\n"
    lines = ran.stderr.splitlines()
    assert "  printed: a b" in lines
    assert "  note: only the first cell of a reply is run; 1 more in this reply did not run" in lines
    assert "  cell 0 ✗ RUNTIME_ERROR: ZeroDivisionError: division by zero (line 3)" in lines
    assert "  cell 1 → 3" in lines


def test_an_unknown_protocol_is_a_usage_error(standfast: Any) -> None:
    """Ours: the error lists the choices."""
    ran = standfast("chat", "--protocol", "poems", "hello")
    assert ran.status == 2
    assert "'standard', 'code'" in ran.stderr


def test_code_mode_is_shown_the_same_way(standfast: Any, home: Path) -> None:
    """Ours: a cell looks the same in every protocol."""
    wants = {"tool_calls": [{"name": "run_code", "arguments": {"code": "40 + 2"}}]}

    async def talk() -> None:
        async with Runtime(home / "standfast.db") as runtime:
            agent = Agent(ScriptedModel([wants, "Done."]), plugins=[CodeMode()])
            await (await runtime.session("mixed", agent=agent)).turn("go")

    home.mkdir(mode=0o700)
    asyncio.run(talk())
    shown = standfast("sessions", "show", "mixed").stdout
    assert "model: \n  │ 40 + 2\n" in shown
    assert "cell 0: → 42\n" in shown


# During a turn


def _settled(call_id: int, report: CellReport) -> ToolCallSettled:
    return ToolCallSettled(turn_id="t", call_id=call_id, value=msgspec.to_builtins(report))


def test_an_answer_that_does_not_count_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: a plugin may end the turn after the code has given its answer."""
    screen = ChatScreen()
    stopped = Stopped(reason=StopReason.PLUGIN_ABORT, error=ErrorObject(code="X", message="no"))
    for ended in (stopped, Finished(text="Yes.")):
        screen.show(ModelCallStarted(turn_id="t", number=1, attempt=1))
        screen.show(TextStreamed(turn_id="t", text="I look."))
        screen.show(ReplyReceived(turn_id="t", text="I look.", calls=(), usage=Usage(), model="m"))
        screen.show(TextStreamed(turn_id="t", text="Yes."))
        screen.show(_settled(1, CellReport(index=0, result="Yes.", finished=True)))
        screen.show(TurnCommitted(turn_id="t", outcome=ended, usage=Usage(), depth=1))
    assert capsys.readouterr().out == "I look.\nI look.\nYes.\n"


def test_an_answer_that_the_turn_continues_after_is_shown_in_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ours: a checkpoint may continue the turn after the answer."""
    screen = ChatScreen()
    screen.show(TextStreamed(turn_id="t", text="Done."))
    screen.show(ModelCallStarted(turn_id="t", number=2, attempt=1))
    screen.show(ReplyReceived(turn_id="t", text="And more.", calls=(), usage=Usage(), model="m"))
    assert capsys.readouterr().out == "Done.\nAnd more.\n"


# In a transcript and an export


def test_a_transcript_has_each_cells_code_and_its_outcome(
    standfast: Any, says: Callable[..., list[str]]
) -> None:
    """Ours: a transcript has neither the JSON of reports nor fences."""
    options = says(cell("print('hi')\n[1, 2]", "I count."), cell("finish('Two.')"))
    standfast("chat", *options, "count")
    shown = standfast("sessions", "show", "chat").stdout
    paragraphs = ("model: I count.\n  │ print('hi')\n  │ [1, 2]\n", "cell 0: → [1, 2]\n  printed: hi\n")
    for words in (*paragraphs, "cell 1: gave the answer\n", "model: Two.\n"):
        assert words in shown
    assert "index" not in shown


def test_full_reports_are_exported_as_attachments(
    standfast: Any, says: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Bug: an export omitted attachments of call results."""
    standfast("chat", *says(cell("print('x' * 20_000)"), "Done."), "print")
    ran = standfast("sessions", "export", "chat", "--attachments", str(tmp_path / "files"), "--json")
    (part,) = ran.document["attachments"]
    assert part["name"] == "cell.json"
    whole = json.loads((tmp_path / "files" / part["digest"]).read_text())
    assert whole["stdout"] == "x" * 20_000 + "\n"


# Formatting


def test_long_code_and_many_calls_are_truncated_with_a_count() -> None:
    """Ours: one cell must not flood the screen."""
    lines = code_lines(ToolCall(call_id=1, name="run_code", arguments={"code": "x\n" * 100}))
    assert (len(lines), lines[-1]) == (61, "  │ … and 40 more lines")
    report = CellReport(index=0, calls=tuple(CallMade(call_id=n, name="f") for n in range(30)))
    assert calls_made(report)[-1] == "… and 10 more calls"


def test_text_that_accompanies_a_result_is_shown_below_its_call() -> None:
    """Ours: people see what the model reads."""
    said = CallMade(call_id=1, name="f", texts=("it is late",))
    assert calls_made(CellReport(index=0, calls=(said,))) == ["f() → ok", "  it is late"]
    screen = io.StringIO()
    result = ToolMessage(call_id=1, name="order", value={"cents": 5}, texts=("it is late",))
    node = Node("t.1", None, "f", "t", 0, result)
    show_conversation(Console(file=screen), [node], None, ids=False)
    assert screen.getvalue() == 'tool: order → {"cents": 5}\n  it is late\n'


def test_a_call_that_is_not_a_cell_is_shown_like_any_call() -> None:
    """Ours: a call without code, a call inside a cell, and a result that a plugin replaced are not cells."""
    assert not is_cell(ToolCall(call_id=1, name="run_code", arguments={}))
    assert not is_cell(ToolCall(call_id=2, name="run_code", arguments={"code": "1"}, parent=1))
    assert report_of("replaced") is None
    assert report_of({"index": "first"}) is None
    assert report_of({"other": 1}) is None


def test_the_outcome_of_a_cell_is_one_line() -> None:
    """Ours: the line has an error with its position, an answer, a result, or nothing."""
    error = ErrorObject(code="SYNTAX_ERROR", message="bad\nthing", span=Span(line=2, column=1))
    assert outcome(CellReport(index=0, error=error)) == "✗ SYNTAX_ERROR: bad thing (line 2)"
    assert outcome(CellReport(index=0, result=1, finished=True)) == "gave the answer"
    assert outcome(CellReport(index=0, result={"a": 1})) == '→ {"a": 1}'
    assert outcome(CellReport(index=0)) == "→ no result"
    assert remarks(CellReport(index=0, stdout=" \n", stderr="oh\n", notes=("n",))) == [
        "printed to stderr: oh",
        "note: n",
    ]
