"""`--data-dir` names a directory or the database file of a program."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Runtime, ScriptedModel, tool
from standfast.errors import NotConfigured
from standfast.runtime.data_dir import DataDir


@tool(approval="manual")
def refund(order_id: str) -> str:
    return "paid"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a file as `Runtime("shop.db")` writes it: with one ended session and one that waits."""
    file = tmp_path / "shop" / "shop.db"
    asking = {"tool_calls": [{"name": "refund", "arguments": {"order_id": "A1"}}]}

    async def main() -> None:
        async with Runtime(file) as runtime:
            greeting = await runtime.session("greeting", agent=Agent(ScriptedModel(["hello"]), name="shop"))
            await greeting.turn("hi")
            agent = Agent(ScriptedModel([asking], strict=False), name="shop", tools=[refund])
            waiting = await runtime.session("waiting", agent=agent)
            assert (await waiting.turn("Refund A1")).status == "waiting"

    asyncio.run(main())
    return file


@pytest.mark.parametrize(
    "words",
    [
        ("sessions", "list"), ("sessions", "show", "greeting"), ("sessions", "export", "waiting"),
        ("sessions", "fork", "greeting", "copy"), ("sessions", "delete", "greeting"),
        ("sessions", "prune", "--branches", "--yes"), ("approvals", "list"), ("triggers", "list"),
        ("tasks", "list"), ("recover",), ("chat", "help"), ("run", "-e", "1"),
        ("validate", "-e", "1"), ("tools", "list"), ("doctor",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_opens_a_runtimes_file(standfast: Any, shop: Path, words: tuple[str, ...]) -> None:
    """Bug: `--data-dir shop.db` was refused, so a program's sessions could not be inspected."""
    shown = standfast(*words, "--data-dir", str(shop), "--json")
    assert shown.status == 0, shown.stdout + shown.stderr
    assert shown.document is not None
    assert shop.is_file()


def test_commands_work_on_a_programs_sessions(standfast: Any, shop: Path) -> None:
    """Bug: a developer could not use the command line on the file that a program writes."""
    listed = standfast("sessions", "list", "--data-dir", str(shop), "--json").document
    assert {(one["session_id"], one["state"]) for one in listed} == {
        ("greeting", "idle"),
        ("waiting", "waiting"),
    }
    asked = standfast("approvals", "list", "--data-dir", str(shop), "--json").document
    assert [one["capability"] for one in asked] == ["refund"]


def test_the_environment_may_name_a_file(standfast: Any, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: STANDFAST_HOME accepts the same as --data-dir."""
    monkeypatch.setenv("STANDFAST_HOME", str(shop))
    assert len(standfast("sessions", "list", "--json").document) == 2


def test_the_sandbox_stores_its_sessions_in_the_same_file(standfast: Any, shop: Path) -> None:
    """Ours: agents and sandbox share one file; the signing key is beside it and has its name."""
    where = ("--data-dir", str(shop), "--json")
    assert standfast("run", "-e", "x = 41", "--session-id", "s", *where).status == 0
    assert standfast("run", "-e", "x + 1", "--session-id", "s", *where).document["result"] == 42
    assert standfast("sessions", "snapshot", "s", "--out", str(shop.with_name("s.snap")), *where).status == 0
    assert standfast("sessions", "restore", str(shop.with_name("s.snap")), *where).status == 0
    key = shop.with_name("shop.db.snapshot.key")
    assert key.stat().st_mode & 0o777 == 0o600
    assert not shop.with_name("snapshot.key").exists()


def test_naming_the_file_in_a_data_directory_names_the_directory(standfast: Any, home: Path) -> None:
    """Ours: both names give the same sessions, key and history."""
    assert standfast("run", "-e", "x = 41", "--session-id", "s", "--json").status == 0
    key = (home / "snapshot.key").read_bytes()
    where = ("--data-dir", str(home / "standfast.db"), "--json")
    assert standfast("run", "-e", "x + 1", "--session-id", "s", *where).document["result"] == 42
    assert DataDir(home / "standfast.db").snapshot_key() == key
    assert not list(home.glob("standfast.db.*key*"))


def test_a_new_path_with_a_database_suffix_becomes_a_file(standfast: Any, tmp_path: Path) -> None:
    """Bug: `--data-dir shop.db` made a directory of that name where `Runtime("shop.db")` makes a file."""
    for name in ("new.db", "new.sqlite", "below/new.sqlite3"):
        assert standfast("run", "-e", "1", "--data-dir", str(tmp_path / name), "--json").status == 0
        assert (tmp_path / name).is_file()
    assert standfast("run", "-e", "1", "--data-dir", str(tmp_path / "new"), "--json").status == 0
    assert (tmp_path / "new" / "standfast.db").is_file()


def test_a_path_that_is_neither_database_nor_directory_is_refused_with_the_reason(
    standfast: Any, tmp_path: Path
) -> None:
    """Ours: the error names the path and what is wrong with it."""
    text = tmp_path / "notes.txt"
    text.write_text("these are notes, not a database")
    os.mkfifo(tmp_path / "pipe")
    for path, problem in ((text, "is a file, but not a database"), (tmp_path / "pipe", "is neither")):
        for words in (("sessions", "list"), ("run", "-e", "1"), ("doctor",), ("approvals", "list")):
            shown = standfast(*words, "--data-dir", str(path), "--json")
            assert shown.status == 1
            assert str(path) in shown.stdout
            assert problem in shown.stdout
    assert text.read_text() == "these are notes, not a database"


def test_an_unreadable_file_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a missing permission causes no traceback; root can read everything, so it is simulated."""
    (tmp_path / "shop.db").touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(NotConfigured, match=r"shop\.db cannot be read: Permission denied"):
        DataDir(tmp_path / "shop.db")


def test_the_histories_and_the_trace_of_a_file_are_named_after_it(tmp_path: Path) -> None:
    """Ours: two files in one directory share nothing."""
    first, second = DataDir(tmp_path / "a.db"), DataDir(tmp_path / "b.db")
    assert first.beside("chat_history") == tmp_path / "a.db.chat_history"
    assert first.key_file != second.key_file
    assert DataDir(tmp_path).beside("chat_history") == tmp_path / "chat_history"
