"""A worker on another host takes over the turns of a killed worker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import shop_app
from faults import database_for
from fleet import Fleet, until
from hosts import Host, Network, hosts_missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(hosts_missing() is not None, reason=hosts_missing() or "")]


def test_a_worker_on_another_host_takes_over_when_the_lease_expires(tmp_path: Path) -> None:
    """Ours: a death cannot be seen from another machine, so the lease decides; its length is an option."""
    with (
        Network() as network,
        Host(network) as one,
        Host(network) as two,
        database_for(network) as server,
        Fleet(tmp_path, server.new_url()) as fleet,
    ):
        store = fleet.store.replace("127.0.0.1", network.here)
        first = fleet.start("--lease-s", 5, store=store, inside=one.inside)
        fleet.queue(("a", "hang A1"), ("b", "hang_once B1"), agent=shop_app.shop)
        until(lambda: len(fleet.effects()) == 2)
        second = fleet.start("--lease-s", 5, store=store, inside=two.inside)
        first.kill()
        killed_at = time.monotonic()
        until(lambda: len(fleet.effects("hang")) == 2)
        again = fleet.effects("hang")[1]
        print(f"continued {again.at - killed_at:.2f} s after the kill, with leases of 5 s")
        fleet.open_gate()
        until(lambda: len(fleet.ended()) == 2)
        assert again.pid == second.pid
        assert len(fleet.effects("hang_once")) == 1
