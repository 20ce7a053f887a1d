"""`holdfast doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_new_installation_is_healthy_and_stays_untouched(holdfast: Any, home: Path) -> None:
    """Seed: doctor. Ours: looking makes nothing."""
    ran = holdfast("doctor", "--json")
    assert (ran.status, ran.document["ok"]) == (0, True)
    assert not home.exists()
    assert {"name", "ok", "detail", "hint"} == set(ran.document["checks"][0])


def test_a_used_installation_is_healthy(holdfast: Any, home: Path) -> None:
    """Ours: after a run there is more to look at."""
    holdfast("run", "-e", "1")
    ran = holdfast("doctor")
    assert ran.status == 0
    assert "problem" not in ran.stdout


def test_a_key_that_others_can_read_is_a_problem(holdfast: Any, home: Path) -> None:
    """Ours: the hint says what to type."""
    holdfast("run", "-e", "1")
    (home / "snapshot.key").chmod(0o644)
    ran = holdfast("doctor", "--json")
    assert ran.status == 1
    (bad,) = [check for check in ran.document["checks"] if not check["ok"]]
    assert (bad["name"], bad["hint"]) == ("snapshot key", f"chmod 600 {home / 'snapshot.key'}")


def test_a_damaged_database_is_a_problem_not_a_crash(holdfast: Any, home: Path) -> None:
    """Ours: the doctor is there for the bad days."""
    home.mkdir(mode=0o700)
    (home / "holdfast.db").write_bytes(b"not a database" * 1000)
    ran = holdfast("doctor", "--json")
    assert ran.status == 1
    assert "database" in {check["name"] for check in ran.document["checks"] if not check["ok"]}
