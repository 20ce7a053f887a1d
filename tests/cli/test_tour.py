"""`standfast tour`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_the_tour_shows_real_output(standfast: Any, home: Path) -> None:
    """Ours: the first command of a new user works, and leaves nothing behind."""
    ran = standfast("tour")
    assert ran.status == 0
    for words in ("42", "PERMISSION_DENIED", "TIMEOUT_WALL", "WAITING_FOR_APPROVAL", "snap_", "530"):
        assert words in ran.stdout
    assert ran.stdout.count("\n  fee 30 (process") == 1
    assert "Promise.all" in ran.stdout
    assert ran.stdout.count("\n  pay invoice 7 1200 (process") == 1
    assert "INTERRUPTED: the process died while pay() ran" in ran.stdout
    assert "paid back: ['A1']" in ran.stdout
    assert not home.exists()


@pytest.mark.slow
def test_the_tour_works_without_typescript(standfast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: optional extras may be missing."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wasmtime" else real(name))
    ran = standfast("tour")
    assert ran.status == 0
    assert "pip install 'standfast[typescript]'" in ran.stdout


@pytest.mark.slow
def test_the_steps_of_the_tour_are_available_as_json(standfast: Any, tmp_path: Path) -> None:
    """Ours: `tour --json` prints one array; with --data-dir it uses that and cleans up."""
    ran = standfast("tour", "--json", "--data-dir", str(tmp_path / "d"))
    assert ran.status == 0
    assert {frozenset(step) for step in ran.document} == {frozenset({"title", "code", "result"})}
    statuses = [step["result"]["status"] for step in ran.document if isinstance(step["result"], dict)]
    assert statuses == [
        "ok",
        "ok",
        "permission_denied",
        "timeout",
        "waiting_for_approval",
        "ok",
        "ok",
        "interrupted",
        "finished",
        "waiting",
        "finished",
        "ok",
    ]
    assert standfast("sessions", "list", "--data-dir", str(tmp_path / "d"), "--json").document == []
