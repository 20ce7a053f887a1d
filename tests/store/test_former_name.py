"""Files of earlier releases, when the project had another name."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from standfast import Agent, Runtime
from standfast.errors import NotConfigured
from standfast.model import former_name
from standfast.providers.scripted import ScriptedModel
from standfast.store.sqlite.connection import open_checked


def _with_former_schema(file: Path) -> None:
    with contextlib.closing(open_checked(str(file))) as db:
        db.execute(f"ALTER TABLE standfast_schema RENAME TO {former_name.FORMER_SCHEMA_TABLE}")


async def _talk(where: Path) -> int:
    """Run one turn and return the number of messages that the session then has."""
    async with Runtime(where) as runtime:
        session = await runtime.session(
            "s", agent=Agent(model=ScriptedModel(["one", "two"], strict=False), name="a")
        )
        await session.turn("hello")
        return len(await session.messages())


def test_a_file_of_an_earlier_release_opens_with_its_sessions(tmp_path: Path) -> None:
    """Ours: the table of schema versions is renamed when the file is opened, and nothing else changes."""
    file = tmp_path / "shop.db"
    assert asyncio.run(_talk(file)) == 2
    _with_former_schema(file)
    assert asyncio.run(_talk(file)) == 4
    with contextlib.closing(open_checked(str(file))) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%schema'")]
    assert names == ["standfast_schema"]


def test_the_error_about_a_database_of_an_earlier_release_names_the_command_to_run(tmp_path: Path) -> None:
    """Ours: an empty database next to the real one would look as if every session were lost."""
    asyncio.run(_talk(tmp_path))
    (tmp_path / "standfast.db").rename(tmp_path / former_name.FORMER_DATABASE)
    with pytest.raises(NotConfigured) as refused:
        asyncio.run(_talk(tmp_path))
    assert refused.value.hint == f"run: standfast migrate {tmp_path}"
    assert [path.name for path in tmp_path.glob("*.db")] == [former_name.FORMER_DATABASE]
