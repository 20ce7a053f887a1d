"""Faults that workers survive: half a minute for each run in `make test`, ten minutes in `make test-all`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults import check
from hosts import hosts_missing
from restate_host import missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(hosts_missing() is not None, reason=hosts_missing() or "")]

SEED = os.environ.get("STANDFAST_TEST_SEED", "all")
SECONDS = 600 if SEED == "all" else 15  # starting and stopping take as long again


def test_nothing_is_lost_or_duplicated_under_faults(tmp_path: Path) -> None:
    """Ours: no loss, no duplicate and no stale commit, even if workers die, stop or are cut off."""
    report = check(tmp_path, "postgres", SECONDS, SEED)
    assert not report.findings, str(report)
    assert report.counts["processes"] > 1


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_nothing_is_lost_or_duplicated_under_faults_on_restate(tmp_path: Path) -> None:
    """Ours: the same holds if Restate decides where turns run, and one of its servers is killed."""
    report = check(tmp_path, "restate", SECONDS, SEED)
    assert not report.findings, str(report)
    assert report.counts["processes"] > 1
