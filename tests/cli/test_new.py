"""`standfast new`."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

FILES = [
    "README.md",
    "pyproject.toml",
    "src/standfast_word_count/__init__.py",
    "src/standfast_word_count/py.typed",
    "tests/test_word_count.py",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, to work in."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def files_of(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


def run(folder: Path, *words: str) -> str:
    """Run a module with this Python in the folder, with nothing installed, and return its output."""
    paths = os.pathsep.join([str(folder / "src"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_plugin_is_a_package_with_instructions_for_the_next_steps(standfast: Any, here: Path) -> None:
    """Ours: a working plugin package with its entry point."""
    document = standfast("new", "plugin", "word-count", "--json").document
    assert (document["name"], document["folder"]) == ("word-count", "word-count")
    assert sorted(document["files"]) == files_of(here / "word-count") == FILES
    project = tomllib.loads((here / "word-count" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "standfast-word-count"
    assert project["entry-points"] == {"standfast.plugins": {"word-count": "standfast_word_count:WordCount"}}
    assert "$" not in "".join((here / "word-count" / name).read_text() for name in FILES)
    shown = standfast("new", "plugin", "word-count", "--dir", "other place/again").stdout
    assert "cd 'other place/again'" in shown
    assert "standfast plugins show word-count" in shown


def test_nothing_is_overwritten(standfast: Any, here: Path) -> None:
    """Ours: a folder that is not empty is refused, an empty one is filled."""
    (here / "greeter").mkdir()
    assert standfast("new", "plugin", "greeter").status == 0
    before = {name: (here / "greeter" / name).read_bytes() for name in files_of(here / "greeter")}
    ran = standfast("new", "plugin", "greeter", "--json")
    assert (ran.status, ran.document["error"]["message"]) == (1, "greeter is not empty")
    assert before == {name: (here / "greeter" / name).read_bytes() for name in files_of(here / "greeter")}
    (here / "file").write_text("mine")
    ran = standfast("new", "plugin", "greeter", "--dir", "file", "--json")
    assert (ran.status, ran.document["error"]["code"]) == (1, "INVALID_ARGUMENT")
    assert (here / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["", "Greeter", "word_count", "2fast", "-x", "a--b", "a b", "../up", "é", "x" * 41, "a\n"]
)
def test_an_invalid_name_is_refused(standfast: Any, here: Path, name: str) -> None:
    """Ours: a name is checked before anything is written."""
    ran = standfast("new", "plugin", "--json", "--", name)
    assert (ran.status, ran.document["error"]["code"]) == (1, "INVALID_ARGUMENT")
    assert files_of(here) == []


def test_the_name_of_an_installed_plugin_is_refused(standfast: Any, here: Path) -> None:
    """Ours: two plugins with the same name would be ambiguous."""
    ran = standfast("new", "plugin", "plan", "--json")
    assert (ran.status, files_of(here)) == (1, [])
    assert "in package standfast" in ran.document["error"]["message"]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["word-count", "plugin", "none", "x"])
def test_the_generated_tests_pass_unchanged(standfast: Any, here: Path, name: str) -> None:
    """Ours: they pass under any name, with this Python and nothing installed."""
    standfast("new", "plugin", name)
    assert "2 passed" in run(here / name, "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")


@pytest.mark.slow
def test_the_generated_code_passes_ruff_and_mypy(standfast: Any, here: Path) -> None:
    """Ours: a new project starts without lint errors."""
    standfast("new", "plugin", "word-count")
    folder = here / "word-count"
    rules = "E,F,W,I,UP,B,SIM,RUF,C4,PIE,PT,ASYNC,N"
    run(folder, "ruff", "check", "--no-cache", "--select", rules, ".")
    run(folder, "ruff", "format", "--no-cache", "--check", ".")
    run(folder, "mypy", "--cache-dir", os.devnull, "src", "tests")
