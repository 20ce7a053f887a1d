"""Files from releases in which the sandbox had its own tables."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec
import pytest

from standfast import BlockingSandbox
from standfast.errors import RecordCorrupt, SchemaTooNew, StoreError
from standfast.model.approval import ApprovalState
from standfast.model.plugin_state import decode_state
from standfast.plugins.stored_states import read_execution
from standfast.protocols.code.memory import CodeMemory
from standfast.store.sql import rows
from standfast.store.sqlite import schema
from standfast.store.sqlite.connection import find_damaged_page, is_checked, open_checked
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.maintenance import back_up, rewrite_checksums
from standfast.store.sqlite.sandbox_migration import COMPONENTS
from standfast.store.sqlite.sessions import SqliteSessionStore

T = TypeVar("T")

FILES = Path(__file__).parent / "files"
IDLE = FILES / "sandbox_version_2.sql"
WAITING = FILES / "sandbox_version_2_waiting.sql"
IDS = {"s1", "both", "both-sandbox", "short", "narrow", "paid", "large", "on-quickjs", "on-cpython"}
FORMER = {"sessions": schema.SESSIONS[:4], "sandbox": schema.SANDBOX_BEFORE}


def write_former(path: Path, rows: Path) -> None:
    """Create the file of an earlier release, with page checksums."""
    with contextlib.closing(Database(path, FORMER)) as database:
        database.write(lambda db: db.execute("DELETE FROM standfast_schema"))
        database.write(lambda db: db.execute(rows.read_text()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "standfast.db"
    write_former(path, IDLE)
    return path


def with_store(path: Path, use: Callable[[SqliteSessionStore], Awaitable[T]]) -> T:
    async def scenario() -> T:
        store = SqliteSessionStore(path)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(scenario())


def change(path: Path, sql: str) -> None:
    with contextlib.closing(open_checked(str(path))) as db:
        db.execute(sql)


async def memory_of(store: SqliteSessionStore, session_id: str) -> CodeMemory:
    """Return the state of a session's code, as the sandbox reads it."""
    head = await store.head(session_id)
    assert head is not None
    assert head.state is not None
    body = await store.state(head.state)
    assert body is not None
    entry = decode_state(body).execution
    assert entry is not None
    blobs = {digest: await store.blob(digest) or b"" for digest in entry.artifacts.values()}
    return msgspec.msgpack.decode(read_execution(entry, blobs), type=CodeMemory)


def test_every_sandbox_session_of_an_earlier_release_becomes_a_session(path: Path) -> None:
    """Ours: times, limits, engine and expiry are unchanged."""
    rows = {}
    with contextlib.closing(apsw.Connection(str(path))) as db:
        for session_id, expires_at, meta in db.execute("SELECT id, expires_at, meta FROM sandbox_sessions"):
            rows[session_id] = (expires_at, msgspec.json.decode(meta))

    async def scenario(store: SqliteSessionStore) -> None:
        heads = {head.session_id: head for head in await store.heads()}
        assert heads.keys() == IDS
        assert heads["both"].code is None
        for session_id, (expires_at, meta) in rows.items():
            head = heads["both-sandbox" if session_id == "both" else session_id]
            assert (head.created_at, head.updated_at) == (meta["created_at"], meta["last_used_at"])
            assert head.code is not None
            assert head.code.expires_at == expires_at
            assert head.code.language == meta["language"]
            assert head.code.engine == meta.get("engine", "monty")
            assert msgspec.to_builtins(head.code.limits) == meta["limits"]
            assert (head.leaf, head.depth, head.agent) == (None, 0, "(sandbox)")
        assert heads["short"].code.expires_at is not None
        assert (heads["narrow"].code.limits.cpu_ms, heads["narrow"].state) == (1234, None)
        assert heads["on-quickjs"].code.language == "typescript"

    with_store(path, scenario)


def test_variables_are_the_bytes_that_the_engine_wrote(path: Path) -> None:
    """Ours: an upgrade loses no variable, whether its state is inline or a blob."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        found: Any = db.execute("SELECT id, state FROM sandbox_sessions WHERE state <> x''").fetchall()
    states: dict[str, bytes] = dict(found)
    assert len(states["large"]) > 4_096

    async def scenario(store: SqliteSessionStore) -> None:
        for session_id, state in states.items():
            memory = await memory_of(store, "both-sandbox" if session_id == "both" else session_id)
            assert (memory.state, memory.inputs, memory.suspended) == (state, {}, None)

    with_store(path, scenario)


@pytest.mark.slow
def test_a_sandbox_keeps_the_variables_of_an_earlier_release(path: Path) -> None:
    """Ours: variables from before the upgrade are available after it."""
    with BlockingSandbox(data_dir=path.parent) as sandbox:
        assert sandbox.run("[x, double(4), y == 2 ** 80]", session="s1").result == [20, 8, True]
        assert sandbox.run("names", session="both-sandbox").result == ["a", "b", "A3:5"]
        assert sandbox.run("[len(numbers), numbers[-1]]", session="large").result == [1500, 1499**2]
        assert sandbox.run("paid", session="paid").result == "A1:700"


def test_a_session_whose_id_an_agent_session_already_has_is_renamed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: one id names one session; its approvals and snapshots follow it, and the log says so."""

    async def scenario(store: SqliteSessionStore) -> None:
        assert [turn.agent for turn in await store.turns("both")] == ["shop"]
        assert await store.approvals(session_id="both") == []
        (approval,) = await store.approvals(session_id="both-sandbox")
        assert approval.state is ApprovalState.APPROVED
        assert len(await store.approvals()) == 2

    with caplog.at_level(logging.WARNING, "standfast"):
        with_store(path, scenario)
    assert [record.getMessage() for record in caplog.records] == [
        "an agent also has a session 'both'; the sandbox's session is now 'both-sandbox'"
    ]
    with contextlib.closing(apsw.Connection(str(path))) as db:
        owners = [owner for (owner,) in db.execute("SELECT session_id FROM snapshots ORDER BY session_id")]
    assert owners == ["both-sandbox", "both-sandbox", "paid", "s1"]


def test_a_new_id_is_unused_and_within_the_length_limit(tmp_path: Path) -> None:
    """Ours: ids have at most 64 characters; another session may already have the new id."""
    long, path = "a" * 64, tmp_path / "standfast.db"
    meta = {"created_at": 1, "last_used_at": 2, "language": "python", "limits": {}}
    with contextlib.closing(Database(path, FORMER)) as database:
        for session_id in (long, "a" * 56 + "-sandbox"):
            body = msgspec.json.encode({"id": session_id, **meta})
            row = (
                session_id,
                1,
                None,
                body,
                rows.text_seal("session", session_id, 1, None, 0, data=body),
                rows.text_seal("state", session_id, 1, data=b""),
                b"",
            )
            database.write(
                lambda db, row=row: db.execute("INSERT INTO sandbox_sessions VALUES (?,?,?,?,?,?,?)", row)  # type: ignore[misc]
            )
        head = msgspec.json.encode({"session_id": long, "created_at": 1, "updated_at": 1})
        columns = (1, long, 1, None, 1 << 32, None, 0)
        digest = rows.seal("session", *columns, head)
        database.write(
            lambda db: db.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", (*columns, digest, head)
            )
        )

    async def scenario(store: SqliteSessionStore) -> set[str]:
        return {head.session_id for head in await store.heads()}

    assert with_store(path, scenario) == {long, "a" * 56 + "-sandbox", "a" * 54 + "-sandbox-2"}


def test_snapshots_of_an_earlier_release_are_readable(path: Path) -> None:
    """Ours: a snapshot is kept for as long as its owner wants it."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        found: Any = db.execute("SELECT snapshot_id, data FROM sandbox_snapshots").fetchall()
    kept: dict[str, bytes] = dict(found)

    async def scenario(store: SqliteSessionStore) -> dict[str, bytes | None]:
        return {snapshot_id: await store.snapshot(snapshot_id) for snapshot_id in kept}

    assert len(kept) == 4
    assert with_store(path, scenario) == kept


def test_the_former_tables_are_removed_and_the_file_is_checked(path: Path) -> None:
    """Ours: there is one schema, and opening the file a second time changes nothing."""
    for _ in range(2):
        with contextlib.closing(Database(path, COMPONENTS)) as database:
            names = database.read(lambda db: db.execute("SELECT name FROM sqlite_schema").fetchall())
            assert database.read(is_checked)
        assert not [name for (name,) in names if str(name).startswith("sandbox_") or name == "shelf"]
    assert find_damaged_page(path) is None


def test_an_earlier_release_refuses_a_converted_file(path: Path) -> None:
    """Ours: an earlier release would look for tables that no longer exist."""
    Database(path, COMPONENTS).close()
    for former in (FORMER, {"sandbox": schema.SANDBOX_BEFORE}):
        with pytest.raises(SchemaTooNew):
            Database(path, former)


def test_a_file_with_a_waiting_run_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    """Ours: no turn led to that run, so only the release that parked it can resume it."""
    path = tmp_path / "standfast.db"
    write_former(path, WAITING)
    with pytest.raises(StoreError, match=r"wait for an approval, in session s1 ") as refused:
        SqliteSessionStore(path)
    assert "with the earlier release" in (refused.value.hint or "")
    with contextlib.closing(Database(path, FORMER)) as database:
        assert database.read(lambda db: db.execute("SELECT count(*) FROM sandbox_runs").get) == 1
        assert database.read(lambda db: db.execute("SELECT count(*) FROM sessions").get) == 0


@pytest.mark.parametrize("column", ["meta", "state", "head_digest", "state_digest", "epoch", "expires_at"])
def test_a_file_with_a_damaged_session_is_refused(path: Path, column: str) -> None:
    """Ours: journal rule 6, a conversion never turns damaged rows into valid ones."""
    value = {"epoch": "9", "expires_at": "9", "head_digest": "'9'", "state_digest": "'9'"}.get(
        column, "x'39'"
    )
    change(path, f"UPDATE sandbox_sessions SET {column} = {value} WHERE id = 'paid'")
    with pytest.raises(RecordCorrupt, match="session paid"):
        SqliteSessionStore(path)
    with contextlib.closing(Database(path, FORMER)) as database:
        assert database.read(lambda db: db.execute("SELECT count(*) FROM sandbox_sessions").get) == 8


def test_a_read_only_file_is_converted_in_a_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a file on a read-only disk can be read, and is not changed."""
    monkeypatch.setattr("standfast.store.sqlite.connection.can_write", lambda at: not at.samefile(path))
    before = path.read_bytes()

    async def scenario(store: SqliteSessionStore) -> set[str]:
        assert not store.database.writable
        return {head.session_id for head in await store.heads()}

    assert with_store(path, scenario) == IDS
    assert path.read_bytes() == before


def test_a_file_without_page_checksums_is_converted_while_it_gets_them(tmp_path: Path) -> None:
    """Ours: the upgrade to checksums and the conversion are one transaction."""
    path = tmp_path / "standfast.db"
    with contextlib.closing(apsw.Connection(str(path))) as db:
        for migrations in FORMER.values():
            for sql in migrations:
                assert isinstance(sql, str)
                db.execute(sql)
        db.execute("CREATE TABLE standfast_schema (component TEXT PRIMARY KEY, version INTEGER NOT NULL)")
        db.execute(IDLE.read_text())
        db.execute("UPDATE standfast_schema SET version = 1 WHERE component = 'sandbox'")

    async def scenario(store: SqliteSessionStore) -> set[str]:
        assert store.database.read(is_checked)
        return {head.session_id for head in await store.heads()}

    assert with_store(path, scenario) == IDS


def test_the_checksum_rewrite_converts_and_counts_the_records(path: Path) -> None:
    """Ours: 9 sessions, 7 states, 4 snapshots, 2 approvals, a segment, a turn, a clock, and blobs."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE sandbox_retired SET epoch = 9")
    assert find_damaged_page(path) is not None
    records = rewrite_checksums(path)
    with contextlib.closing(apsw.Connection(str(path))) as db:
        blobs = int(db.execute("SELECT count(*) FROM blobs").get)
    assert blobs > 0
    assert records == 9 + 7 + 4 + 2 + 1 + 1 + 1 + blobs
    assert find_damaged_page(path) is None


def test_a_backup_of_a_converted_file_opens(path: Path, tmp_path: Path) -> None:
    """Ours: the copy has every session."""
    with contextlib.closing(Database(path, COMPONENTS)) as database:
        back_up(database, tmp_path / "copy.db")

    async def scenario(store: SqliteSessionStore) -> set[str]:
        return {head.session_id for head in await store.heads()}

    assert with_store(tmp_path / "copy.db", scenario) == IDS
