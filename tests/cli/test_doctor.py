"""`standfast doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_new_installation_is_healthy_and_is_not_changed(standfast: Any, home: Path) -> None:
    """Seed: doctor. Ours: checking creates nothing."""
    ran = standfast("doctor", "--json")
    assert (ran.status, ran.document["ok"]) == (0, True)
    assert not home.exists()
    assert {"name", "ok", "detail", "hint"} == set(ran.document["checks"][0])


def test_a_used_installation_is_healthy(standfast: Any, home: Path) -> None:
    """Ours: after a run there is more to check."""
    standfast("run", "-e", "1")
    ran = standfast("doctor")
    assert ran.status == 0
    assert "problem" not in ran.stdout


def test_a_key_that_others_can_read_is_reported(standfast: Any, home: Path) -> None:
    """Ours: the hint has the command that fixes it."""
    standfast("run", "-e", "1")
    (home / "snapshot.key").chmod(0o644)
    ran = standfast("doctor", "--json")
    assert ran.status == 1
    (bad,) = [check for check in ran.document["checks"] if not check["ok"]]
    assert (bad["name"], bad["hint"]) == ("snapshot key", f"chmod 600 {home / 'snapshot.key'}")


def test_a_directory_that_others_can_list_is_reported_if_its_path_is_relative(
    standfast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a relative path was said not to exist yet, and was not checked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir(mode=0o755)
    checks = {
        check["name"]: check for check in standfast("doctor", "--store", "data", "--json").document["checks"]
    }
    assert checks["data directory"]["hint"] == "other users can list it: chmod 700 data"


def test_a_damaged_database_is_reported_and_does_not_crash_the_command(standfast: Any, home: Path) -> None:
    """Ours: the doctor must work on damaged data."""
    home.mkdir(mode=0o700)
    (home / "standfast.db").write_bytes(b"not a database" * 1000)
    ran = standfast("doctor", "--json")
    assert ran.status == 1
    assert "database" in {check["name"] for check in ran.document["checks"] if not check["ok"]}
