"""Workers in processes of their own, over one store, with a ledger of what their tools did."""

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
    """Workers over a SQLite file, and over PostgreSQL."""
    store = str(tmp_path / "shop.db")
    if request.param == "postgres":
        store = request.getfixturevalue("postgres").new_url()
    with Fleet(tmp_path, store) as started:
        yield started


@pytest.fixture
def restate(tmp_path: Path) -> Iterator[Restate]:
    """One server of Restate, on a host of its own; workers run on this machine."""
    with Network() as network, Restate(network, tmp_path) as started:
        yield started
