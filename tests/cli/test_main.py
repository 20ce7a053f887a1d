"""Behaviour that all commands share."""

from __future__ import annotations

import errno
import subprocess
import sys
from typing import Any

import pytest

import standfast as package

COMMANDS = [
    ("run",), ("validate",), ("repl",), ("doctor",), ("tour",), ("chat",), ("recover",),
    *(("sessions", name) for name in (
        "list", "show", "export", "fork", "rewind", "cancel", "resume", "snapshot", "restore", "reset",
        "delete", "prune", "backup", "rewrite-checksums",
    )),
    *(("tools", name) for name in ("list", "describe")),
    *(("approvals", name) for name in ("list", "show", "approve", "deny")),
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_accepts_json_and_a_data_directory(standfast: Any, words: tuple[str, ...]) -> None:
    """Seed: every command accepts --json."""
    shown = standfast(*words, "--help")
    assert shown.status == 0
    assert "--json" in shown.stdout
    assert "--data-dir" in shown.stdout


def test_options_may_precede_the_command(standfast: Any, tmp_path: Any) -> None:
    """Ours: `standfast --data-dir D --json run …` works like the options after the command."""
    ran = standfast("--data-dir", str(tmp_path / "other"), "--json", "run", "-e", "1")
    assert ran.document["result"] == 1
    assert (tmp_path / "other" / "standfast.db").exists()
    assert standfast("sessions", "--json", "list").document == []


def test_the_version_is_that_of_the_package(standfast: Any) -> None:
    """Ours: `--version` prints the version of the package."""
    assert package.__version__ in standfast("--version").stdout


def test_the_package_can_be_run_as_a_module() -> None:
    """Ours: `python -m standfast` is the same command."""
    done = subprocess.run([sys.executable, "-m", "standfast", "--version"], capture_output=True, text=True)
    assert (done.returncode, package.__version__ in done.stdout) == (0, True)


def test_an_internal_error_is_a_short_message(standfast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a traceback is printed only on request."""
    from standfast.runtime.agent_runtime import Runtime

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Runtime, "sessions", broken)
    ran = standfast("sessions", "list")
    assert (ran.status, "Traceback" in ran.stderr) == (1, False)
    assert "oops" in ran.stderr
    assert standfast("sessions", "list", "--json").document["error"]["code"] == "RUNTIME_ERROR"
    monkeypatch.setenv("STANDFAST_DEBUG", "1")
    assert "Traceback" in standfast("sessions", "list").stderr


@pytest.mark.parametrize("words", [("run", "-e", "1"), ("--json", "run", "-e", "1"), ("--version",)])
@pytest.mark.parametrize("closing", [">&-", ">/dev/full"])
def test_unwritable_standard_output_is_an_error(words: tuple[str, ...], closing: str) -> None:
    """Bug: with a closed standard output, commands ended in an internal error, or reported success."""
    done = without_stream(closing, *words)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "IO_ERROR: reading or writing failed: " in done.stderr


def test_a_full_disk_is_reported_as_json_if_standard_output_works(
    standfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a file that could not be written was taken for a failed standard stream."""

    from standfast.runtime.agent_runtime import Runtime

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Runtime, "sessions", full)
    error = standfast("sessions", "list", "--json").document["error"]
    assert (error["code"], error["message"]) == (
        "IO_ERROR",
        "reading or writing failed: No space left on device",
    )


@pytest.mark.parametrize("words", [("repl",), ("mcp", "stdio")])
def test_closed_standard_input_is_an_error(words: tuple[str, ...]) -> None:
    """Bug: with a closed standard input, commands that read it ended in an internal error."""
    done = without_stream("<&-", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "IO_ERROR: reading or writing failed: " in done.stderr


def test_diagnostics_do_not_replace_output_if_standard_error_is_closed() -> None:
    """Bug: what was meant for a closed standard error was written to standard output."""
    done = without_stream("2>&-", "run", "-e", "print(1)\n1 +")
    assert (done.returncode, done.stdout) == (1, "")


def without_stream(closing: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process under a shell that closes or redirects one of its streams."""
    command = [sys.executable, "-m", "standfast.cli.main", *words]
    return subprocess.run(["sh", "-c", f'"$@" {closing}', "sh", *command], capture_output=True, text=True)
