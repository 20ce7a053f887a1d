"""Kills of a sandbox run at every crash point; it obeys the same rules as turns of agents.

The code makes a call that is idempotent, one that is not, two concurrently, and one that a person must
approve. An external ledger records the effects of the calls. Each process dies one point later than the one
before, until one survives; another process then recovers, approves and finishes the run.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interpreters
import pytest

from standfast.testing.crash_points import CRASH_AT

PROGRAM = Path(__file__).parent / "crash_scenarios" / "sandbox_program.py"
VARIABLES = [
    ["look a", paid, ["look c", "look d"], refunded]
    for paid in ("pay b", "unknown")
    for refunded in ("refund e", "unknown")
]


def _process(home: Path, what: str, crash_at: int = 0) -> tuple[int, str]:
    environment = {**os.environ, CRASH_AT: str(crash_at)} if crash_at else {**os.environ}
    ran = interpreters.run(
        [sys.executable, str(PROGRAM), str(home), what],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert ran.returncode in (0, -9), ran.stderr
    return ran.returncode, ran.stdout


def _check(home: Path, finished: dict[str, Any], crashed_twice: bool = False) -> None:
    """Check that the ledger obeys the rules, and that the session agrees with it."""
    ledger = Counter((home / "ledger").read_text().splitlines() if (home / "ledger").exists() else [])
    assert ledger["pay b"] <= 1
    assert ledger["refund e"] <= 1
    variables = finished["variables"]
    if not finished["results"]:  # it died before its input was durable
        assert not ledger
        return
    assert variables["status"] == "ok", variables
    assert variables["result"] in VARIABLES, variables
    assert ledger["pay b"] == 1 or variables["result"][1] == "unknown"
    assert ledger["refund e"] == 1 or variables["result"][3] == "unknown"
    assert ledger["look a"] >= 1


@pytest.mark.slow
def test_a_run_obeys_the_ledger_rules_wherever_it_is_killed(
    tmp_path: Path, sampled: Callable[[int], slice]
) -> None:
    """Ours: SPEC §7, a call that is not idempotent runs at most once, and its outcome is never guessed."""
    for number in range(1, 1_000)[sampled(13)]:
        home = tmp_path / str(number)
        home.mkdir()
        status, printed = _process(home, "run", number)
        _, finished = _process(home, "finish")
        if status == 0:
            assert json.loads(printed)["status"] == "waiting_for_approval"
            _check(home, json.loads(finished))
            assert number > 10
            return
        _check(home, json.loads(finished))
    raise AssertionError("the run never came to its end")


@pytest.mark.slow
def test_a_recovery_obeys_the_ledger_rules_wherever_it_is_killed(
    tmp_path: Path, sampled: Callable[[int], slice]
) -> None:
    """Ours: the process that recovers and decides may also die at every point."""
    for number in range(1, 1_000)[sampled(13)]:
        home = tmp_path / str(number)
        home.mkdir()
        _process(home, "run", 12)  # in the middle of the calls
        status, _ = _process(home, "finish", number)
        _, finished = _process(home, "finish")
        if status == 0:
            assert number > 10
            return
        ledger = Counter((home / "ledger").read_text().splitlines())
        assert ledger["pay b"] <= 1
        assert ledger["refund e"] <= 1
        assert json.loads(finished)["variables"]["result"] in VARIABLES
    raise AssertionError("the recovery never came to its end")
