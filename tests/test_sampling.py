"""`make test` samples large tables: every case has its turn, and each engine is in every sample."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = """
import pytest

@pytest.mark.sampled(2, each="engine")
@pytest.mark.parametrize("case", range(5))
@pytest.mark.parametrize("engine", ["monty", "quickjs"])
def test_table(engine, case): pass

def test_points(sampled):
    print("points", list(range(1, 6)[sampled(2)]))
"""


@pytest.mark.slow
def test_samples_rotate_and_all_selects_everything(tmp_path: Path) -> None:
    """Ours: a case that no seed selects would never run in CI, and `make test-all` must leave none out."""
    (tmp_path / "test_table.py").write_text(TABLE)
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    shutil.copytree(
        Path(__file__).with_name("running"), tmp_path / "running", ignore=shutil.ignore_patterns("test_*")
    )
    first, second, everything = (_ran(tmp_path, seed) for seed in ("6", "7", "all"))
    cases = {f"{engine}-{case}" for engine in ("monty", "quickjs") for case in range(5)}
    assert {case for case in everything if "-" in case} == cases
    assert "points [1, 2, 3, 4, 5]" in everything
    assert not first & second
    assert {case for case in first | second if "-" in case} == cases
    assert {case for case in first | second if "-" not in case} == {"points [1, 3, 5]", "points [2, 4]"}
    for sample in (first, second):
        assert {"monty", "quickjs"} <= {case.partition("-")[0] for case in sample}


def _ran(directory: Path, seed: str) -> set[str]:
    """Run the table with a seed; return the cases and the points in its sample."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-vs",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:schemathesis",
    ]
    environment = {**os.environ, "STANDFAST_TEST_SEED": seed}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    found = re.findall(r"test_table\[(\S+)\]|(points \[.*\])", done.stdout)
    return {case or points for case, points in found}
