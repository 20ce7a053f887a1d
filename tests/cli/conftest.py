"""Fixtures: each test has its own data directory; commands run in this process unless stated otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from interpreters import Interpreter

from standfast.cli.main import main

REFUNDS = Path(__file__).parents[2] / "examples" / "refunds.py"


@dataclass(frozen=True)
class Outcome:
    """The output of a command and its exit status."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """Return the JSON document; fail if standard output has anything else."""
        return json.loads(self.stdout)


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STANDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("STANDFAST_SNAPSHOT_KEY", raising=False)
    return tmp_path / "home"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "ledger.txt"
    file.touch()
    monkeypatch.setenv("REFUNDS_LEDGER", str(file))
    return file


@pytest.fixture
def refunds() -> str:
    return str(REFUNDS)


@pytest.fixture
def standfast() -> Run:
    """Run a command in this process."""

    def run(*words: str, stdin: str | bytes | None = None) -> Outcome:
        result = CliRunner().invoke(main, list(words), input=stdin)
        assert isinstance(result.exception, (SystemExit, type(None))), result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


def command_line(*words: str) -> list[str]:
    return [sys.executable, "-m", "standfast.cli.main", *words]


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start a command in its own process, in another directory."""

    def begin(*words: str) -> subprocess.Popen[str]:
        return Interpreter(
            command_line(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env=dict(os.environ),
        )

    return begin


@pytest.fixture
def process(start: Callable[..., subprocess.Popen[str]]) -> Run:
    """Run a command in its own process."""

    def run(*words: str) -> Outcome:
        started = start(*words)
        stdout, stderr = started.communicate(timeout=60)
        return Outcome(started.returncode, stdout, stderr)

    return run
