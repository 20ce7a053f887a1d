"""`standfast session`."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def session(standfast: Any) -> str:
    standfast("run", "-e", "x = 41", "--session-id", "s")
    return "s"


def test_sessions_are_listed_and_shown(standfast: Any, session: str) -> None:
    """Seed: session list and show."""
    (listed,) = standfast("session", "list", "--json").document
    assert listed["meta"]["id"] == "s"
    assert standfast("session", "show", "s", "--json").document == listed
    assert "memory_mb" in standfast("session", "show", "s").stdout
    assert "idle" in standfast("session", "list").stdout


def test_a_snapshot_travels_as_a_private_file(standfast: Any, session: str, tmp_path: Path) -> None:
    """Seed: snapshot and restore. Ours: the file is for its owner only."""
    file = tmp_path / "s.snap"
    made = standfast("session", "snapshot", "s", "--out", str(file), "--json").document
    assert set(made) == {"snapshot_id", "session_id"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert standfast("session", "restore", str(file), "--session-id", "t", "--json").document == {
        "session_id": "t"
    }
    assert standfast("run", "-e", "x + 1", "--session-id", "t", "--json").document["result"] == 42


def test_a_damaged_snapshot_is_refused(standfast: Any, session: str, tmp_path: Path) -> None:
    """Seed: SNAPSHOT_CORRUPT."""
    file = tmp_path / "s.snap"
    standfast("session", "snapshot", "s", "--out", str(file))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    refused = standfast("session", "restore", str(file), "--json")
    assert (refused.status, refused.document["error"]["code"]) == (1, "SNAPSHOT_CORRUPT")


def test_a_fork_goes_its_own_way(standfast: Any, session: str) -> None:
    """Seed: session fork."""
    assert standfast("session", "fork", "s", "t", "--json").document["session_id"] == "t"
    standfast("run", "-e", "x = 0", "--session-id", "t")
    assert standfast("run", "-e", "x", "--session-id", "s", "--json").document["result"] == 41


def test_reset_forgets_and_destroy_removes(standfast: Any, session: str) -> None:
    """Seed: reset keeps the session, destroy does not."""
    assert standfast("session", "reset", "s", "--json").status == 0
    assert standfast("run", "-e", "x", "--session-id", "s", "--json").status == 1
    assert standfast("session", "destroy", "s", "--json").document["destroyed"] is True
    assert standfast("session", "list", "--json").document == []


def test_a_waiting_run_is_resumed_or_cancelled(
    standfast: Any, session: str, refunds: str, ledger: Path
) -> None:
    """Ours: resume without a decision still waits; cancel frees the session."""
    standfast("run", "--tools", refunds, "-e", 'refund("A1", 1)', "--session-id", "s")
    waits = standfast("session", "resume", "s", "--json")
    assert (waits.status, waits.document["status"]) == (1, "waiting_for_approval")
    assert standfast("session", "cancel", "s", "--json").document["cancelled"] is True
    assert standfast("session", "cancel", "s", "--json").status == 1
    assert standfast("run", "-e", "x", "--session-id", "s", "--json").document["result"] == 41


@pytest.mark.parametrize("words", ["show", "snapshot", "reset", "destroy", "resume", "cancel", "fork"])
def test_a_session_that_is_not_there_is_an_error(standfast: Any, words: str) -> None:
    """Ours: exit status 1 and one document that says so."""
    more = ("other",) if words == "fork" else ()
    ran = standfast("session", words, "ghost", *more, "--json")
    assert (ran.status, ran.document["error"]["code"]) == (1, "SESSION_NOT_FOUND")
