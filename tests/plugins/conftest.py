"""Fixtures that the plugin tests share with the runtime tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from standfast.testing.clock import FakeClock

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))

from stand_ins import Place


@pytest.fixture
def memory(clock: FakeClock) -> Place:
    """Return a store in memory, for tests that do not depend on storage."""
    return Place(None, clock)


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Place:
    """Return a store that outlives its runtimes: in memory or a SQLite file."""
    return Place(None if request.param == "memory" else tmp_path / "standfast.db", clock)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less for hooks that do not stop when they are cancelled."""
    monkeypatch.setattr("standfast.plugins.running._GRACE_S", 0.03)
