"""Commands that only read, on files and file systems that are read-only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from standfast import Agent, Runtime, tool
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.blocking import BlockingSandbox
from standfast.runtime.sandbox import SandboxOptions
from standfast.trace.jsonl import JsonlTrace

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))

from page_damage import without_checksums

COMMANDS = [
    ["sessions", "list"],
    ["sessions", "show", "support"],
    ["sessions", "export", "support"],
    ["sessions", "show", "vars"],
    ["approvals", "list"],
    ["tasks", "list"],
    ["triggers", "list"],
    ["trace", "show", "support"],
]


@tool(approval="manual")
def pay(cents: int) -> str:
    """Needs a person."""
    return "paid"


async def _agent_sessions(home: Path) -> None:
    replies: list[Any] = ["an answer", {"tool_calls": [{"name": "pay", "arguments": {"cents": 1}}]}, "never"]
    agent = Agent(ScriptedModel(replies, strict=False), name="clerk", tools=[pay])
    async with Runtime(home / "standfast.db", trace=JsonlTrace(home / "trace.jsonl")) as runtime:
        session = await runtime.session("support", agent=agent)
        await session.turn("hello")
        await session.turn("pay")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("filled")
    asyncio.run(_agent_sessions(home))
    with BlockingSandbox(SandboxOptions(data_dir=home)) as box:
        box.run("x = 1", session="vars")
    return home


_SCRIPT = """
import json, os, sys
from click.testing import CliRunner
from standfast.cli.main import main
home, commands = sys.argv[1], json.loads(sys.argv[2])
assert not os.access(home + "/standfast.db", os.W_OK)
before = sorted(os.listdir(home))
said = {}
for words in commands:
    result = CliRunner().invoke(main, words + ["--json", "--data-dir", home])
    said[" ".join(words)] = [result.exit_code, result.stdout or result.stderr or repr(result.exception)]
assert sorted(os.listdir(home)) == before
print(json.dumps(said))
"""


def _can_mount() -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def _read_only(home: Path, commands: list[list[str]]) -> dict[str, list[Any]]:
    """Run commands in a process for which *home* is read-only, because of its file system or its mode."""
    program = [sys.executable, "-c", _SCRIPT, str(home), json.dumps(commands)]
    if _can_mount():
        mounted = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        program = ["unshare", "-m", "sh", "-c", mounted, str(home), *program]
    elif os.geteuid() != 0:
        for part in (*home.iterdir(), home):
            part.chmod(0o555 if part.is_dir() else 0o444)
    else:
        pytest.skip("root may write everywhere, and may not mount here")
    ran = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    said: dict[str, list[Any]] = json.loads(ran.stdout)
    return said


def _copy_running(filled: Path, home: Path, *, shm: bool) -> None:
    """Copy the directory of a running program whose log is not merged yet."""
    shutil.copytree(filled, home, dirs_exist_ok=True)
    source = home.with_name("running")
    shutil.copytree(filled, source)

    async def work() -> None:
        async with Runtime(source / "standfast.db") as runtime:
            await runtime.fork("support", "later")
            for part in ("", "-wal", *(["-shm"] if shm else [])):
                shutil.copyfile(source / f"standfast.db{part}", home / f"standfast.db{part}")

    asyncio.run(work())
    assert (home / "standfast.db-wal").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("state", ["closed", "running", "log alone", "without checksums", "older tables"])
def test_every_command_that_only_reads_works_on_a_read_only_store(
    filled: Path, tmp_path: Path, state: str
) -> None:
    """Bug: `sessions list` failed on a read-only file system."""
    home = tmp_path / "data"
    commands = COMMANDS
    match state:
        case "closed":
            shutil.copytree(filled, home)
        case "running" | "log alone":
            _copy_running(filled, home, shm=state == "running")
            commands = [*COMMANDS, ["sessions", "show", "later"]]
        case _:
            shutil.copytree(filled, home)
            (home / "standfast.db").unlink()
            without_checksums(filled / "standfast.db", home / "standfast.db")
            if state == "older tables":
                _downgrade_tables(home / "standfast.db")
                commands = [words for words in COMMANDS if words[0] not in ("tasks", "triggers")]
    content = (home / "standfast.db").read_bytes()
    said = _read_only(home, commands)
    assert {words: status for words, (status, _) in said.items() if status} == {}, said
    listed = json.loads(said["sessions list"][1])
    assert {row["session_id"] for row in listed} >= {"support"}
    exported = json.loads(said["sessions export support"][1])
    assert "an answer" in json.dumps(exported)
    assert "vars" in said["sessions list"][1]
    assert (home / "standfast.db").read_bytes() == content


def _downgrade_tables(path: Path) -> None:
    """Convert the file to the second version of the sessions' tables."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("DROP TABLE tasks; DROP TABLE triggers; DROP TABLE occurrences; DROP TABLE clocks")
        db.execute("DROP TABLE IF EXISTS journals")
        db.execute(
            "DROP INDEX inputs_queued; DROP INDEX sessions_by_parent; ALTER TABLE sessions DROP COLUMN parent"
        )
        db.execute("UPDATE standfast_schema SET version = 2 WHERE component = 'sessions'")


def test_a_command_that_writes_reports_a_read_only_file(filled: Path, tmp_path: Path) -> None:
    """Ours: the command must not pretend that it stored anything."""
    home = tmp_path / "data"
    shutil.copytree(filled, home)
    said = _read_only(home, [["sessions", "fork", "support", "other"], ["sessions", "list"]])
    status, text = said["sessions fork support other"]
    assert status != 0
    assert "cannot be written to" in text
    assert "other" not in said["sessions list"][1]
