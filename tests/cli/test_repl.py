"""`standfast repl`, with input from a pipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast.cli.repl_input import Completer, bound_names, is_complete


def test_entries_share_variables_and_print_their_values(standfast: Any) -> None:
    """Ours: a pipe works like a terminal, and a blank line ends a block."""
    ran = standfast("repl", stdin="x = 1\nfor i in range(4):\n    x += i\n\nx\nprint('bye')\n")
    assert (ran.status, ran.stdout) == (0, "7\nbye\n")


def test_json_output_is_one_array_of_results(standfast: Any) -> None:
    """Ours: `repl --json` prints one document at the end."""
    ran = standfast("repl", "--json", stdin="20 + 1\n1 / 0\n")
    assert [item["status"] for item in ran.document] == ["ok", "runtime_error"]
    assert (ran.document[0]["result"], ran.status) == (21, 1)


def test_commands_start_with_a_colon(standfast: Any, refunds: str) -> None:
    """Ours: :session, :reset, :tools and :quit exist, and an unknown command only prints a message."""
    entries = "x = 1\n:session other\n:tools\n:nope\nx = 5\n:reset\n:session\nx = 6\nx\n:quit\n99\n"
    ran = standfast("repl", "--tools", refunds, stdin=entries)
    assert "refund" in ran.stdout
    assert "6" in ran.stdout.splitlines()
    assert "99" not in ran.stdout
    assert ":nope" in ran.stderr


def test_a_waiting_call_must_be_approved_by_a_command(standfast: Any, refunds: str, ledger: Path) -> None:
    """Ours: with a pipe no person can be asked, and a line of code is never taken for a yes."""
    entries = 'fee() + refund("A1", 500)\n:approvals\n:approve\nrefund("B2", 1)\n:deny\n'
    ran = standfast("repl", "--tools", refunds, "--json", stdin=entries)
    assert [item["status"] for item in ran.document] == ["ok", "permission_denied"]
    assert ran.document[0]["result"] == 530
    assert ledger.read_text().splitlines() == ["fee 30", "refund A1 500"]


def test_repl_and_run_share_sessions(standfast: Any) -> None:
    """Ours: both use the sessions of the data directory."""
    standfast("repl", "--session-id", "s", stdin="x = 3\n")
    assert standfast("run", "-e", "x", "--session-id", "s", "--json").document["result"] == 3


@pytest.mark.parametrize(
    ("source", "complete"),
    [
        ("1 + 1", True),
        ("def f():", False),
        ("def f():\n    return 1", False),
        ("def f():\n    return 1\n", True),
        ("x = (1,", False),
        ("await f()", True),
        ("'''abc", False),
        ("x = = 1", True),
        (":help", True),
        ("", True),
    ],
)
def test_an_entry_is_complete_when_python_would_run_it(source: str, complete: bool) -> None:
    """Ours: an entry has several lines if Python needs them; invalid code is sent to the sandbox."""
    assert is_complete(source) is complete


def test_session_names_and_commands_are_completed() -> None:
    """Ours: completion knows bound names, tools, keywords and the colon commands."""
    assert bound_names("import json as j\na, b = 1, 2\ndef f(): pass") == {"j", "a", "b", "f"}
    completer = Completer(["help", "reset"], lambda: ["refund", "rate"])
    assert completer.matches("re", ":") == ["reset"]
    assert {"refund", "return", "repr"} <= set(completer.matches("re", "x = "))
