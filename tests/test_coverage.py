"""The pure layers are tested to the last branch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_every_branch_of_machine_and_graph_is_covered(tmp_path: Path) -> None:
    """Ours: the code that durability rests on has no branch that only a random test reaches."""
    environment = {**os.environ, "COVERAGE_FILE": str(tmp_path / "coverage"), "STANDFAST_TEST_SEED": "all"}
    environment.pop("PYTEST_ADDOPTS", None)
    coverage = [sys.executable, "-m", "coverage"]
    measured = ["--branch", "--source=standfast.machine,standfast.graph"]
    tests = ["-m", "pytest", "-p", "no:cacheprovider", "tests/machine", "tests/graph"]
    tests += ["-m", "not slow and not hypothesis"]
    run = subprocess.run(
        [*coverage, "run", *measured, *tests], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-4000:]
    report = subprocess.run(
        [*coverage, "report", "--fail-under=100", "--show-missing", "--skip-covered"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert report.returncode == 0, report.stdout
