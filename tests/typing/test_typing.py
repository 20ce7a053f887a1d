"""The reports of type checkers about programs that use Standfast.

The files in `cases` are checked, never run. A line that ends in `# error` must be reported by every checker,
and no other line by any.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "cases"
Places = set[tuple[str, int]]


def expected() -> Places:
    return {
        (file.name, number)
        for file in CASES.glob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.endswith("# error")
    }


def check(*command: str, cwd: Path = CASES) -> str:
    """Return the report of a checker, whose exit status is 1 if it found errors, more if it could not run."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def assert_same(found: Places, report: str) -> None:
    missed, extra = sorted(expected() - found), sorted(found - expected())
    assert not missed, f"not reported: {missed}\n{report}"
    assert not extra, f"reported by mistake: {extra}\n{report}"


def write_settings(path: Path) -> None:
    """Write the settings of `make lint` without those for tests; with equal settings its cache is used."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    lines = ["[mypy]", "explicit_package_bases = True", f"mypy_path = {':'.join(settings['mypy_path'])}"]
    lines += [f"strict = {settings['strict']}", f"python_version = {settings['python_version']}"]
    for override in settings["overrides"]:
        if "ignore_missing_imports" in override:
            for module in override["module"]:
                lines += [f"[mypy-{module}]", "ignore_missing_imports = True"]
    path.write_text("\n".join(lines))


@pytest.mark.slow
def test_mypy_finds_no_error_in_the_project_and_every_error_in_the_cases(tmp_path: Path) -> None:
    """Bug: `deps=42`, `tools=[5]` and `result.output.days` of a waiting turn passed the type checker.

    The first run is that of `make lint`; the second one uses its cache.
    """
    project = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert project.returncode == 0, project.stdout + project.stderr
    write_settings(tmp_path / "mypy.ini")
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--no-error-summary", "--no-pretty"]
    report = check("mypy", *options, *map(str, CASES.glob("*.py")), cwd=ROOT)
    lines = re.findall(r"^([^:]+):(\d+): error:", report, re.MULTILINE)
    assert_same({(Path(file).name, int(number)) for file, number in lines}, report)


@pytest.mark.slow
def test_pyright_reports_every_error_and_nothing_else() -> None:
    """Bug: the same for the checker that editors use."""
    report = check("pyright", "--pythonpath", sys.executable, "--outputjson", ".")
    found = {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in json.loads(report)["generalDiagnostics"]
        if one["severity"] == "error"
    }
    assert_same(found, report)
