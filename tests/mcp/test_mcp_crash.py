"""A turn with three MCP calls that crashes at every point; its server logs the calls."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "crash_program.py"


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("era", ["", "2026"])
def test_a_turn_with_mcp_calls_survives_a_kill_at_every_point(
    tmp_path: Path, era: str, sampled: Callable[[int], slice]
) -> None:
    """Ours: SPEC §7, one call is idempotent, one is not, and one asks a person."""
    points = range(1, 500)[sampled(11)]
    command = [sys.executable, str(PROGRAM), str(tmp_path), era, str(points.start), str(points.step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert runs[-1]["point"] > 30
    assert not runs[-1]["killed"]
    interrupted = 0
    for run in runs:
        left, counts = run["left"], run["counts"]
        assert left["read"] == "1", run  # repeated if necessary
        assert counts["read"] >= 1, run
        assert left["echo"] in ("1", "INTERRUPTED"), run
        assert counts["echo"] <= 1, run  # never twice
        assert left["echo"] != "1" or counts["echo"] == 1, run
        assert left["ask"] in ("weather in Oslo", "INTERRUPTED"), run
        assert counts["ask"] <= 2, run  # the execution that asks, and the one that has the answer
        interrupted += "INTERRUPTED" in left.values()
    assert interrupted > 0 or points.step > 1
    assert runs[-1]["left"] == {"read": "1", "echo": "1", "ask": "weather in Oslo"}
