"""`standfast migrate`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from standfast.model import former_name
from standfast.store.sqlite.connection import open_checked


@pytest.fixture
def former(tmp_path: Path, standfast: Any) -> Path:
    """A data directory of an earlier release with one session."""
    directory = tmp_path / "data"
    assert standfast("run", "-e", "x = 41", "--data-dir", str(directory), "--json").status == 0
    file = directory / former_name.FORMER_DATABASE
    (directory / "standfast.db").rename(file)
    with contextlib.closing(open_checked(str(file))) as db:
        db.execute(f"ALTER TABLE standfast_schema RENAME TO {former_name.FORMER_SCHEMA_TABLE}")
    return directory


def test_sessions_of_an_earlier_release_are_available_after_migrate(standfast: Any, former: Path) -> None:
    """Ours: the command in the error's hint makes the earlier data available."""
    where = ("--data-dir", str(former), "--json")
    refused = standfast("run", "-e", "x + 1", *where)
    assert refused.document["error"]["hint"] == f"run: standfast migrate {former}"
    migrated = standfast("migrate", str(former), "--json")
    assert migrated.document["renamed"] == [
        {"from": str(former / former_name.FORMER_DATABASE), "to": str(former / "standfast.db")}
    ]
    assert standfast("run", "-e", "x + 1", *where).document["result"] == 42
    assert standfast("migrate", str(former), "--json").document == {"renamed": []}
    assert standfast("migrate", str(former)).stdout == "nothing to rename\n"


def test_the_home_of_an_earlier_release_is_renamed(
    standfast: Any, former: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: without a directory, `migrate` works on the default location of the commands."""
    monkeypatch.delenv("STANDFAST_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    former.rename(tmp_path / former_name.FORMER_HOME)
    assert standfast("run", "-e", "x + 1", "--json").document["error"]["hint"] == "run: standfast migrate"
    assert len(standfast("migrate").stdout.splitlines()) == 2
    assert standfast("run", "-e", "x + 1", "--json").document["result"] == 42


def test_a_database_in_use_is_not_renamed(standfast: Any, former: Path) -> None:
    """Ours: a program that has the file open would continue to write to a name that nothing reads."""
    with contextlib.closing(open_checked(str(former / former_name.FORMER_DATABASE))) as db:
        db.execute("BEGIN; SELECT count(*) FROM sqlite_schema").fetchall()
        refused = standfast("migrate", str(former), "--json")
    assert refused.status == 1
    assert "locked" in refused.document["error"]["message"]
    assert (former / former_name.FORMER_DATABASE).exists()


def test_a_database_with_the_current_name_is_never_replaced(standfast: Any, former: Path) -> None:
    """Ours: two databases in one directory are for the operator to resolve."""
    (former / "standfast.db").write_bytes(b"")
    refused = standfast("migrate", str(former), "--json")
    assert refused.document["error"]["message"] == f"{former / 'standfast.db'} exists already"
