"""Runs that wait for approval, decided from the command line."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

TOTAL = 'total = fee() + refund("A1", 500)'


@pytest.fixture
def waiting(standfast: Any, refunds: str, ledger: Path) -> str:
    """Return the id of a pending request in the session `default`."""
    ran = standfast("run", "--tools", refunds, "-e", TOTAL, "--json")
    assert (ran.status, ran.document["status"]) == (1, "waiting_for_approval")
    assert ran.document["snapshot_id"].startswith("snap_")
    listed = standfast("approvals", "list", "--pending", "--json").document
    return str(listed[0]["approval_id"])


def test_a_request_has_the_documented_fields(standfast: Any, waiting: str) -> None:
    """Seed: `approvals list --json` has these fields."""
    (record,) = standfast("approvals", "list", "--json").document
    assert record["approval_id"] == waiting
    assert (record["state"], record["session_id"], record["capability"]) == ("pending", "default", "refund")
    assert (record["args"], record["kwargs"]) == (["A1", 500], {})
    assert record["expires_at"] > record["requested_at"]
    assert standfast("approvals", "show", waiting, "--json").document == record


def test_another_process_continues_the_expression_without_repeating_earlier_calls(
    process: Any, waiting: str, ledger: Path
) -> None:
    """Seed: approved in another process, without --tools, the same expression finishes."""
    decided = process("approvals", "approve", waiting, "--json")
    assert (decided.status, decided.document["status"]) == (0, "ok")
    assert process("run", "-e", "total", "--json").document["result"] == 530
    assert ledger.read_text().splitlines() == ["fee 30", "refund A1 500"]


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_resumed(
    start: Callable[..., subprocess.Popen[str]], process: Any, standfast: Any, refunds: str, ledger: Path
) -> None:
    """Seed: SIGKILL between the request and the decision loses nothing and repeats nothing."""
    repl = subprocess.Popen(
        [*_command_line(), "repl", "--tools", refunds], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert repl.stdin is not None
    repl.stdin.write(f"{TOTAL}\n")
    repl.stdin.flush()
    waiting = _wait_for_request(standfast)
    repl.send_signal(signal.SIGKILL)
    repl.wait(timeout=10)
    repl.stdin.close()
    assert process("approvals", "approve", waiting, "--json").status == 0
    assert process("run", "-e", "total", "--json").document["result"] == 530
    assert ledger.read_text().splitlines() == ["fee 30", "refund A1 500"]


def _command_line() -> list[str]:
    import sys

    return [sys.executable, "-m", "standfast.cli.main"]


def _wait_for_request(standfast: Any) -> str:
    import time

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if listed := standfast("approvals", "list", "--pending", "--json").document:
            return str(listed[0]["approval_id"])
        time.sleep(0.05)
    raise AssertionError("the run never waited")


def test_edited_arguments_are_used_whether_positional_or_named(
    standfast: Any, waiting: str, ledger: Path, refunds: str
) -> None:
    """Seed: `approve --args JSON` edits the arguments."""
    assert standfast("approvals", "approve", waiting, "--args", '["A1", 100]', "--json").status == 0
    assert standfast("run", "-e", "total", "--json").document["result"] == 130
    standfast("run", "--tools", refunds, "-e", 'refund("B2", 9)')
    (again,) = standfast("approvals", "list", "--pending", "--json").document
    edited = '{"order_id": "B2", "cents": 5}'
    ran = standfast("approvals", "approve", again["approval_id"], "--args", edited, "--json")
    assert ran.document["result"] == 5
    assert ledger.read_text().splitlines()[-1] == "refund B2 5"


def test_invalid_edited_arguments_leave_the_request_open(standfast: Any, waiting: str) -> None:
    """Ours: a typing mistake does not use up the decision."""
    slip = standfast("approvals", "approve", waiting, "--args", '["A1", "much"]', "--json")
    assert (slip.status, slip.document["error"]["code"]) == (1, "INVALID_ARGUMENT")
    assert standfast("approvals", "approve", waiting, "--json").status == 0


def test_code_can_catch_a_denial(standfast: Any, refunds: str, ledger: Path) -> None:
    """Seed: a denied call raises a catchable error with the reason."""
    code = 'try:\n    r = refund("A1", 1)\nexcept PermissionError as e:\n    r = str(e)\nresult = r'
    standfast("run", "--tools", refunds, "-e", code)
    (request,) = standfast("approvals", "list", "--pending", "--json").document
    ran = standfast("approvals", "deny", request["approval_id"], "--reason", "too much", "--json")
    assert (ran.status, ran.document["status"]) == (0, "ok")
    assert "too much" in ran.document["result"]
    assert ledger.read_text() == ""


def test_a_second_decision_fails_and_runs_nothing(standfast: Any, waiting: str, ledger: Path) -> None:
    """Seed: an approval is decided once and used once."""
    assert standfast("approvals", "approve", waiting, "--json").status == 0
    again = standfast("approvals", "approve", waiting, "--json")
    assert again.status == 1
    assert "already approved" in again.document["error"]["message"]
    assert standfast("approvals", "deny", waiting, "--json").status == 1
    assert ledger.read_text().count("refund") == 1


@pytest.mark.slow
def test_of_eight_approvers_exactly_one_succeeds(
    start: Callable[..., subprocess.Popen[str]], waiting: str, ledger: Path
) -> None:
    """Seed: deciding is a compare-and-set across processes, too."""
    racers = [start("approvals", "approve", waiting, "--json") for _ in range(8)]
    for racer in racers:
        racer.communicate(timeout=60)
    assert sorted(racer.returncode for racer in racers) == [0] + [1] * 7
    assert ledger.read_text().splitlines() == ["fee 30", "refund A1 500"]


def test_a_missing_tools_file_is_named_and_can_be_replaced(
    standfast: Any, refunds: str, ledger: Path, tmp_path: Path
) -> None:
    """Ours: the recorded path may be outdated; the message says what to do, and the approval stays open."""
    old, new = tmp_path / "old_tools.py", tmp_path / "new_tools.py"
    old.write_text(Path(refunds).read_text())
    standfast("run", "--tools", str(old), "-e", TOTAL)
    (request,) = standfast("approvals", "list", "--pending", "--json").document
    old.rename(new)
    failed = standfast("approvals", "approve", request["approval_id"], "--json")
    assert failed.status == 1
    assert str(old) in failed.document["error"]["message"]
    assert "--tools" in failed.document["error"]["hint"]
    assert (
        standfast("approvals", "approve", request["approval_id"], "--tools", str(new), "--json").status == 0
    )


def test_mounts_and_hosts_are_remembered_too(
    standfast: Any, refunds: str, ledger: Path, tmp_path: Path
) -> None:
    """Ours: the person who decides need not repeat these options."""
    (tmp_path / "out").mkdir()
    code = 'n = refund("A1", 3)\nwrite_text("/out/n.txt", str(n))'
    standfast(
        "run",
        "--tools",
        refunds,
        "--mount",
        f"/out={tmp_path / 'out'}:rw",
        "--allow-host",
        "example.org",
        "-e",
        code,
    )
    (request,) = standfast("approvals", "list", "--pending", "--json").document
    assert standfast("approvals", "approve", request["approval_id"], "--json").status == 0
    assert (tmp_path / "out" / "n.txt").read_text() == "3"


def test_the_text_output_shows_the_call_and_the_commands_to_decide_it(
    standfast: Any, refunds: str, ledger: Path
) -> None:
    """Ours: a person sees what is pending and what to type; control characters are escaped."""
    ran = standfast("run", "--tools", refunds, "-e", 'refund("A\\x1b[2J\\u202e1", 500)')
    (request,) = standfast("approvals", "list", "--pending", "--json").document
    assert r"refund('A\x1b[2J\u202e1', 500)" in ran.stderr
    assert f"approvals approve {request['approval_id']}" in ran.stderr
    assert "\x1b" not in ran.stderr
    assert request["approval_id"] in standfast("approvals", "list").stdout
    assert r"\x1b[2J" in standfast("approvals", "show", request["approval_id"]).stdout


def test_an_unknown_request_is_an_error(standfast: Any) -> None:
    """Ours: failures outside a run are one JSON document, too."""
    for words in (("show",), ("approve",), ("deny", "--reason", "x")):
        ran = standfast("approvals", words[0], "apr_nope", *words[1:], "--json")
        assert (ran.status, set(ran.document)) == (1, {"error"})
        assert set(ran.document["error"]) == {"code", "message", "hint", "span"}
    assert "apr_nope" in standfast("approvals", "show", "apr_nope").stderr


def test_restoring_an_older_snapshot_requests_approval_again_and_voids_the_old_decision(
    standfast: Any, refunds: str, ledger: Path
) -> None:
    """Seed: after restoring an older snapshot, the old approval never runs the call a second time."""
    ran = standfast("run", "--tools", refunds, "-e", TOTAL, "--json")
    (record,) = standfast("approvals", "list", "--pending", "--json").document
    assert standfast("approvals", "approve", record["approval_id"], "--json").status == 0
    made = ledger.read_text()

    restored = standfast("sessions", "restore", ran.document["snapshot_id"], "--json")
    assert (restored.status, restored.document) == (0, {"session_id": "default"})
    again = standfast("approvals", "approve", record["approval_id"], "--json")
    assert (again.status, again.document["error"]["code"]) == (1, "APPROVAL_ALREADY_DECIDED")
    assert ledger.read_text() == made

    (anew,) = standfast("approvals", "list", "--pending", "--json").document
    assert anew["approval_id"] != record["approval_id"]
    assert standfast("approvals", "deny", anew["approval_id"], "--reason", "once is enough").status == 1
    assert ledger.read_text() == made


# Turns of agents


@pytest.fixture
def asked(standfast: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a request that an agent's turn makes in the session `default`."""
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)
    ran = standfast("chat", "refund A1", "--json")
    return str(ran.document["approvals"][0]["approval_id"])


def test_requests_of_runs_and_turns_are_in_one_list(standfast: Any, waiting: str, asked: str) -> None:
    """Ours: a person can decide without knowing whether a run or a turn asked."""
    listed = standfast("approvals", "list", "--pending", "--json").document
    assert [item["approval_id"] for item in listed] == [waiting, asked]
    shown = standfast("approvals", "show", asked).stdout
    assert "refund(order_id='A1', cents=1999)" in shown
    assert "turn       t_" in shown


@pytest.mark.slow
def test_another_process_resumes_the_turn_and_shows_its_answer(process: Any, asked: str) -> None:
    """Ours: the agent is recreated from the session's record."""
    decided = process("approvals", "approve", asked)
    assert decided.status == 0
    assert "1999 cents refunded for order A1" in decided.stdout
    assert process("approvals", "approve", asked).status == 1


def test_a_turn_accepts_edited_arguments_by_name(standfast: Any, asked: str) -> None:
    """Ours: invalid values of --arguments leave the request open."""
    assert standfast("approvals", "approve", asked, "--args", '["A1", 5]').status == 2
    both = ("--args", '{"cents": 1}', "--arguments", '{"cents": 1}')
    assert standfast("approvals", "approve", asked, *both).status == 2
    assert standfast("approvals", "approve", asked, "--mount", "/x=/tmp").status == 2
    slip = standfast("approvals", "approve", asked, "--arguments", '{"cents": 5}', "--json")
    assert (slip.status, slip.document["error"]["code"]) == (1, "INVALID_ARGUMENT")
    edited = '{"order_id": "A1", "cents": 5}'
    done = standfast("approvals", "approve", asked, "--arguments", edited, "--json")
    assert (done.status, done.document["status"]) == (0, "finished")
    assert "5 cents refunded for order A1" in done.document["text"]


def test_a_run_accepts_edited_arguments_by_name_too(standfast: Any, waiting: str, ledger: Path) -> None:
    """Ours: runs and turns accept the same option."""
    edited = '{"order_id": "A1", "cents": 5}'
    assert standfast("approvals", "approve", waiting, "--arguments", edited, "--json").status == 0
    assert ledger.read_text().splitlines()[-1] == "refund A1 5"


def test_the_model_reads_why_a_call_was_denied(standfast: Any, asked: str) -> None:
    """Seed: a denial reaches the model with its reason, and the turn ends with an answer."""
    denied = standfast("approvals", "deny", asked, "--reason", "too much", "--json")
    assert (denied.status, denied.document["status"]) == (0, "finished")
    assert "too much" in denied.document["text"]


def test_a_decision_records_the_user_who_made_it(standfast: Any, waiting: str) -> None:
    """Ours: on the command line that is the system user."""
    standfast("approvals", "approve", waiting)
    decided = standfast("approvals", "show", waiting, "--json").document
    assert decided["decided_by"] == pwd.getpwuid(os.getuid()).pw_name
    assert decided["decided_by"] in standfast("approvals", "show", waiting).stdout


@pytest.mark.parametrize("verdict", ["approve", "deny"])
def test_a_turn_can_be_decided_on_behalf_of_another_user(standfast: Any, asked: str, verdict: str) -> None:
    """Ours: a service may decide for its users, and the session's export has the name."""
    standfast("approvals", verdict, asked, "--decided-by", "ada@example.com")
    shown = standfast("approvals", "show", asked, "--json").document
    assert shown["decided_by"] == "ada@example.com"
    exported = standfast("sessions", "export", shown["session_id"]).document
    assert [one["decided_by"] for one in exported["approvals"]] == ["ada@example.com"]


def test_a_grant_can_be_created_listed_used_and_revoked(standfast: Any, refunds: str, ledger: Path) -> None:
    """Ours: the command line manages grants on behalf of the user."""
    standfast("run", "--tools", refunds, "-e", "1")
    rule = "args[1] <= 500"
    given = ("--session-id", "default", "--rule", rule, "--for", "2h", "--decided-by", "ada")
    grant = standfast("approvals", "grant", "refund", *given, "--json").document
    assert (grant["given_by"], grant["rule"], grant["session_id"]) == ("ada", rule, "default")
    assert standfast("approvals", "grants", "--in-force", "--json").document == [grant]
    assert "args[1]" in standfast("approvals", "grants").stdout
    assert standfast("run", "--tools", refunds, "-e", TOTAL, "--json").document["status"] == "ok"
    revoked = standfast("approvals", "revoke", grant["grant_id"], "--decided-by", "bob", "--json").document
    assert revoked["revoked_by"] == "bob"
    ran = standfast("run", "--tools", refunds, "-e", TOTAL, "--json").document
    assert ran["status"] == "waiting_for_approval"
    missing = standfast("approvals", "revoke", "grt_none", "--json")
    assert (missing.status, missing.document["error"]["code"]) == (1, "GRANT_NOT_FOUND")
