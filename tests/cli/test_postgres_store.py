"""Commands on a PostgreSQL store, and moving a store there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from standfast import Agent, Runtime, Sandbox, ScriptedModel
from standfast.errors import NotConfigured
from standfast.runtime.agent_runtime import open_store
from standfast.runtime.data_dir import without_password
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.s3_server import S3Server


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_url()


async def _greet(store: str) -> None:
    async with Runtime(store) as runtime:
        session = await runtime.session("greeting", agent=Agent(ScriptedModel(["hello"]), name="shop"))
        assert (await session.turn("hi")).output == "hello"


@pytest.mark.parametrize(
    "words",
    [
        ("sessions", "list"), ("sessions", "show", "greeting"), ("sessions", "export", "greeting"),
        ("sessions", "fork", "greeting", "copy"), ("sessions", "prune", "--branches", "--yes"),
        ("approvals", "list"), ("triggers", "list"), ("tasks", "list"), ("recover",),
        ("run", "-e", "1"), ("doctor",), ("sessions", "delete", "greeting"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_accepts_a_url(standfast: Any, url: str, words: tuple[str, ...]) -> None:
    """Ours: `--store` accepts a URL, a file or a directory."""
    asyncio.run(_greet(url))
    shown = standfast(*words, "--store", url, "--json")
    assert shown.status == 0, shown.stdout + shown.stderr
    assert shown.document is not None


def test_a_list_of_sessions_can_be_limited_and_filtered_by_agent(standfast: Any, url: str) -> None:
    """Ours: a shared store has more sessions than a list shows."""

    async def make() -> None:
        async with Runtime(url, keeper=False) as runtime:
            for number in range(4):
                agent = Agent(ScriptedModel([]), name="shop" if number % 2 else "reports")
                await runtime.session(f"s{number}", agent=agent)

    asyncio.run(make())
    shown = standfast("sessions", "list", "--store", url, "--json", "--limit", "3")
    assert len(shown.document) == 3
    shown = standfast("sessions", "list", "--store", url, "--json", "--agent", "shop")
    assert {it["session_id"] for it in shown.document} == {"s1", "s3"}


def test_the_store_can_be_set_in_the_environment(
    standfast: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: `STANDFAST_STORE` selects the store of every command."""
    asyncio.run(_greet(url))
    monkeypatch.setenv("STANDFAST_STORE", url)
    assert [it["session_id"] for it in standfast("sessions", "list", "--json").document] == ["greeting"]
    monkeypatch.setenv("STANDFAST_STORE", str(tmp_path / "other.db"))
    assert standfast("sessions", "list", "--json").document == []


def test_doctor_checks_the_object_store_for_blobs(
    standfast: Any, url: str, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the check writes, reads, lists and deletes an object."""
    blobs = s3.new_url()
    shown = standfast("doctor", "--store", f"{url}&blobs={quote(blobs)}", "--json")
    (check,) = [check for check in shown.document["checks"] if check["name"] == "blobs"]
    assert check["ok"], check
    assert check["detail"] == f"{blobs.partition('?')[0]} for blobs over 0 bytes"
    assert s3.objects(blobs) == []
    monkeypatch.setenv("STANDFAST_BLOBS", blobs.replace("s3://blobs", "s3://no-bucket"))
    shown = standfast("doctor", "--store", str(tmp_path / "shop.db"), "--json")
    (check,) = [check for check in shown.document["checks"] if check["name"] == "blobs"]
    assert not check["ok"]
    assert "s3://no-bucket" in check["detail"]


def test_doctor_counts_queued_running_waiting_and_stuck_turns(standfast: Any, url: str) -> None:
    """Ours: an operator sees whether workers keep up."""

    async def queue() -> None:
        async with Runtime(url, keeper=False) as runtime:
            session = await runtime.session("later", agent=Agent(ScriptedModel([]), name="shop"))
            await session.queue("hi")

    asyncio.run(queue())
    shown = standfast("doctor", "--store", url, "--json")
    (check,) = [check for check in shown.document["checks"] if check["name"] == "turns"]
    assert check["detail"] == "1 queued, 0 running, 0 waiting, 0 stuck"


def test_doctor_shows_the_servers_settings(standfast: Any, url: str) -> None:
    """Ours: the operator sees the settings that durability depends on, and nothing is created."""
    shown = standfast("doctor", "--store", url, "--json")
    checks = {check["name"]: check for check in shown.document["checks"]}
    assert (checks["postgresql fsync"]["detail"], checks["postgresql fsync"]["ok"]) == ("on", True)
    assert checks["postgresql"]["detail"] == "does not exist yet; the first run creates it"
    assert checks["postgresql pooler"]["detail"] == "no"
    assert "failover" in checks["postgresql synchronous_standby_names"]["hint"]
    wrong = standfast("doctor", "--store", "postgresql://127.0.0.1:1/x?connect_timeout=2", "--json")
    assert wrong.status == 1


def test_a_command_for_files_refuses_a_url(standfast: Any, url: str, tmp_path: Path) -> None:
    """Ours: the error names the tools to use instead."""
    shown = standfast("sessions", "backup", str(tmp_path / "copy.db"), "--store", url, "--json")
    assert shown.status == 1
    assert "pg_dump" in shown.document["error"]["hint"]


def test_a_store_can_be_moved_with_its_snapshots(standfast: Any, url: str, tmp_path: Path) -> None:
    """Ours: signatures from before the move stay valid."""
    file = tmp_path / "shop.db"

    async def make() -> str:
        async with Sandbox(data_dir=file) as box:
            await box.run("x = 41", session="s")
            return await box.snapshot("s")

    snapshot_id = asyncio.run(make())
    asyncio.run(_greet(str(file)))
    shown = standfast("store", "copy", str(file), url, "--json")
    assert shown.status == 0, shown.stdout + shown.stderr
    assert shown.document["copied"] == shown.document["rows"] > 3

    async def use(location: str | Path) -> Any:
        async with Sandbox(data_dir=location) as box:
            await box.restore(snapshot_id, session="again")
            return (await box.run("x + 1", session="again")).result

    assert asyncio.run(use(url)) == 42
    back = tmp_path / "back.db"
    assert standfast("store", "copy", url, str(back), "--json").status == 0
    assert asyncio.run(use(back)) == 42
    refused = standfast("store", "copy", str(tmp_path / "none.db"), url, "--json")
    assert "there is no store at" in refused.document["error"]["message"]


def test_passwords_are_not_printed() -> None:
    """Ours: commands are printed for copying, but without passwords."""
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    assert without_password("postgresql://me:sec@ret@host/db?a=b@c") == "postgresql://me:***@host/db?a=b@c"
    assert (
        without_password("postgresql://host/db?password=secret&a=b")
        == "postgresql://host/db?password=***&a=b"
    )
    assert without_password("shop.db") == "shop.db"


@pytest.mark.parametrize(
    "url",
    ["postgresql+psycopg://me:secret@host/db", "mysql://me:secret@host/db", "POSTGRES://me:secret@host/db"],
)
def test_a_url_of_another_kind_is_not_the_path_of_a_new_store(
    standfast: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    """Bug: each machine worked on a SQLite file of its own, in a directory named after the URL."""
    monkeypatch.chdir(tmp_path)
    scheme = url.partition("me:")[0]
    for words in (("sessions", "list", "--store", url), ("store", "copy", "shop.db", url)):
        shown = standfast(*words)
        assert shown.status == 2
        assert f"{scheme} is not the URL of a store" in shown.stderr
        assert "secret" not in shown.stderr
    monkeypatch.setenv("STANDFAST_STORE", url)
    shown = standfast("sessions", "list", "--json")
    assert shown.status == 1
    assert shown.document["error"]["message"] == f"{scheme} is not the URL of a store"
    with pytest.raises(NotConfigured):
        open_store(url)
    assert list(tmp_path.glob("*:")) == []
