"""Worker processes over one store, with a ledger of their tools' effects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fleet import Fleet
from hosts import Network
from restate_host import Restate


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    """Yield a fleet of workers, on a SQLite file and on PostgreSQL."""
    store = str(tmp_path / "shop.db")
    if request.param == "postgres":
        store = request.getfixturevalue("postgres").new_url()
    with Fleet(tmp_path, store) as started:
        yield started


@pytest.fixture
def restate(tmp_path: Path) -> Iterator[Restate]:
    """Yield one Restate server on its own host; workers run on this machine."""
    with Network() as network, Restate(network, tmp_path) as started:
        yield started
