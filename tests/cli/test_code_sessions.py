"""`standfast sessions` with sessions that run code, alongside those of agents."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from standfast.ports.clock import SystemClock
from standfast.runtime.blocking import BlockingSandbox


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)


@pytest.fixture
def session(standfast: Any) -> str:
    standfast("run", "-e", "x = 41", "--session-id", "s")
    return "s"


def _value(standfast: Any, code: str, session: str) -> Any:
    return standfast("run", "-e", code, "--session-id", session, "--json").document["result"]


def test_both_kinds_of_session_are_in_one_list(standfast: Any, session: str) -> None:
    """Ours: a code session shows its engine instead of a model."""
    standfast("chat", "hello")
    chat, code = standfast("sessions", "list", "--json").document
    assert (chat["session_id"], chat["model"], chat["code"]) == ("chat", "scripted:demo", None)
    assert (code["session_id"], code["state"], code["turns"], code["nodes"]) == ("s", "idle", 1, 2)
    assert set(code["code"]) == {"language", "engine", "limits", "expires_at", "state_bytes"}
    assert (code["code"]["language"], code["code"]["engine"]) == ("python", "monty")
    assert code["code"]["state_bytes"] > 0
    shown = standfast("sessions", "list").stdout
    assert "python on monty" in shown
    assert "scripted:demo" in shown


def test_a_code_session_is_shown_with_its_cells_limits_and_size(standfast: Any, session: str) -> None:
    """Ours: the code, its output and its value are the session's history."""
    standfast("run", "-e", "print('hi'); x + 1", "--session-id", "s")
    shown = standfast("sessions", "show", "s").stdout
    for part in ("│ x = 41", "code: ", "cell: → 42", "printed: hi", "memory_mb", "bytes", "engine"):
        assert part in shown
    assert "model" not in shown
    view = standfast("sessions", "show", "s", "--json").document
    assert (len(view["nodes"]), view["code"]["limits"]["memory_mb"]) == (4, 64)
    called, report = (node["payload"] for node in view["nodes"][-2:])
    assert called["tool_calls"][0]["arguments"]["code"] == "print('hi'); x + 1"
    assert (report["value"]["result"], report["value"]["stdout"]) == (42, "hi\n")


def test_a_waiting_code_session_shows_what_it_waits_for(standfast: Any, refunds: str, ledger: Path) -> None:
    """Ours: the output has the approval, and the command that decides it."""
    standfast("run", "--tools", refunds, "-e", 'refund("A1", 1)', "--session-id", "s")
    ran = standfast("sessions", "show", "s")
    view = standfast("sessions", "show", "s", "--json").document
    (asked,) = view["approvals"]
    assert (view["state"], view["unfinished"]["turn_id"]) == ("waiting", asked["run_id"])
    assert f"approvals approve {asked['approval_id']}" in ran.stderr
    assert '│ refund("A1", 1)' in ran.stdout


def test_an_expired_session_no_longer_exists(standfast: Any, home: Path) -> None:
    """Ours: the list and every command agree that it does not exist."""

    class HourAgo(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() - 3_600_000

    with BlockingSandbox(data_dir=home, clock=HourAgo()) as box:
        box.create("brief", ttl_s=60)
    assert standfast("sessions", "list", "--json").document == []
    for words in (("show", "brief"), ("fork", "brief", "b"), ("rewind", "brief"), ("export", "brief")):
        error = standfast("sessions", *words, "--json").document["error"]
        assert error["code"] == "SESSION_NOT_FOUND"


def test_a_snapshot_can_be_moved_as_a_private_file(standfast: Any, session: str, tmp_path: Path) -> None:
    """Seed: snapshot and restore. Ours: only the owner can read the file."""
    file = tmp_path / "s.snap"
    made = standfast("sessions", "snapshot", "s", "--out", str(file), "--json").document
    assert set(made) == {"snapshot_id", "session_id"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    restored = standfast("sessions", "restore", str(file), "--session-id", "t", "--json").document
    assert restored == {"session_id": "t"}
    assert _value(standfast, "x + 1", "t") == 42


def test_a_damaged_snapshot_is_refused(standfast: Any, session: str, tmp_path: Path) -> None:
    """Seed: a damaged snapshot raises SNAPSHOT_CORRUPT."""
    file = tmp_path / "s.snap"
    standfast("sessions", "snapshot", "s", "--out", str(file))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    refused = standfast("sessions", "restore", str(file), "--json")
    assert (refused.status, refused.document["error"]["code"]) == (1, "SNAPSHOT_CORRUPT")


def test_a_fork_is_independent(standfast: Any, session: str) -> None:
    """Seed: a fork has the variables at the end, or at a node."""
    standfast("run", "-e", "x = 42", "--session-id", "s")
    first = standfast("sessions", "show", "s", "--json").document["nodes"][1]["id"]
    assert standfast("sessions", "fork", "s", "t", "--json").document["session_id"] == "t"
    assert standfast("sessions", "fork", "s", "early", "--at", first).status == 0
    standfast("run", "-e", "x = 0", "--session-id", "t")
    assert [_value(standfast, "x", name) for name in ("s", "t", "early")] == [42, 0, 41]


def test_rewinding_a_code_session_restores_its_variables(standfast: Any, session: str) -> None:
    """Ours: a rewind moves the variables with the history, in both directions."""
    standfast("run", "-e", "x = 42", "--session-id", "s")
    last = standfast("sessions", "show", "s", "--json").document["head"]["leaf"]
    assert standfast("sessions", "rewind", "s").status == 0
    assert standfast("validate", "-e", "x", "--session-id", "s").status == 0
    assert standfast("sessions", "fork", "s", "then").status == 0
    assert _value(standfast, "x", "then") == 41
    assert standfast("sessions", "rewind", "s", "--to", last).status == 0
    assert _value(standfast, "x", "s") == 42
    standfast("sessions", "rewind", "s", "--turns", "2")
    pruned = standfast("sessions", "prune", "--branches", "--yes", "--json").document
    assert pruned["segments"] > 0
    assert _value(standfast, "x", "s") == 41


def test_a_code_session_is_exported_with_its_cells(standfast: Any, session: str, tmp_path: Path) -> None:
    """Ours: the document has the same form as for an agent's session."""
    out = tmp_path / "s.json"
    assert standfast("sessions", "export", "s", "--out", str(out)).status == 0
    document = json.loads(out.read_text())
    assert (document["format"], len(document["nodes"]), len(document["turns"])) == ("standfast.session", 2, 1)
    assert document["head"]["code"]["engine"] == "monty"


def test_reset_clears_a_session_and_delete_removes_it(standfast: Any, session: str) -> None:
    """Seed: `reset` keeps the session, `delete` does not."""
    assert standfast("sessions", "reset", "s", "--json").status == 0
    assert standfast("run", "-e", "x", "--session-id", "s", "--json").status == 1
    assert standfast("sessions", "delete", "s", "--json").document["deleted"] is True
    assert standfast("sessions", "list", "--json").document == []


def test_a_waiting_run_can_be_resumed_or_cancelled(
    standfast: Any, session: str, refunds: str, ledger: Path
) -> None:
    """Ours: `resume` without a decision still waits; `cancel` frees the session."""
    standfast("run", "--tools", refunds, "-e", 'refund("A1", 1)', "--session-id", "s")
    waits = standfast("sessions", "resume", "s", "--json")
    assert (waits.status, waits.document["status"]) == (1, "waiting_for_approval")
    cancelled = standfast("sessions", "cancel", "s", "--json").document
    assert cancelled == {"session_id": "s", "cancelled": True, "ended": True}
    assert standfast("approvals", "list", "--pending", "--json").document == []
    assert standfast("sessions", "cancel", "s", "--json").status == 1
    assert _value(standfast, "x", "s") == 41


@pytest.mark.parametrize(
    "words", ["show", "export", "fork", "rewind", "cancel", "resume", "snapshot", "reset", "delete"]
)
def test_an_unknown_session_is_an_error(standfast: Any, words: str) -> None:
    """Ours: the exit status is 1, and the document names the command that lists sessions."""
    more = ("other",) if words == "fork" else ()
    ran = standfast("sessions", words, "ghost", *more, "--json")
    error = ran.document["error"]
    assert (ran.status, error["code"]) == (1, "SESSION_NOT_FOUND")
    assert "`standfast sessions list`" in error["hint"]


@pytest.mark.parametrize("words", ["snapshot", "reset", "resume"])
def test_commands_for_code_sessions_refuse_an_agents_session(standfast: Any, words: str) -> None:
    """Ours: the error says that an agent owns the session, and the hint names the right command."""
    standfast("chat", "hello")
    ran = standfast("sessions", words, "chat", "--json")
    error = ran.document["error"]
    assert (ran.status, error["code"]) == (1, "INVALID_ARGUMENT")
    assert "session 'chat' belongs to an agent" in error["message"]
    assert "`standfast " in error["hint"]


def test_a_snapshot_is_not_restored_into_an_agents_session(standfast: Any, session: str) -> None:
    """Ours: neither kind of session can become the other."""
    standfast("chat", "hello")
    name = standfast("sessions", "snapshot", "s", "--json").document["snapshot_id"]
    refused = standfast("sessions", "restore", name, "--session-id", "chat", "--json")
    assert (refused.status, "belongs to an agent" in refused.document["error"]["message"]) == (1, True)


def test_each_command_refuses_a_session_of_the_other_kind(standfast: Any, session: str) -> None:
    """Ours: `run` and `chat` have different default sessions; naming one of the other kind is an error."""
    assert standfast("chat", "hello").status == 0
    assert standfast("run", "-e", "1").status == 0
    talked = standfast("chat", "hello", "--session", "s", "--json")
    assert (talked.status, talked.document["error"]["code"]) == (1, "INVALID_ARGUMENT")
    assert "session 's' runs python code" in talked.document["error"]["message"]
    assert "--session ID" in talked.document["error"]["hint"]
    ran = standfast("run", "-e", "1", "--session-id", "chat", "--json")
    assert (ran.status, "belongs to an agent" in ran.document["error"]["message"]) == (1, True)
    assert ran.document["error"]["hint"]


def test_the_former_command_group_is_gone(standfast: Any) -> None:
    """Ours: one group of commands covers every session."""
    assert standfast("session", "list").status == 2
