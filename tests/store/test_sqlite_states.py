"""States and plugin records in a SQLite file: cost, damage, and files of versions without them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from standfast.errors import RecordCorrupt
from standfast.model.outcome import Completed
from standfast.ports.session_store import PruneRequest, Repeated
from standfast.store.sql import history, rows
from standfast.store.sqlite import schema
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_values import (
    NOW,
    a_blob,
    a_commit,
    a_head,
    a_state,
    an_approval,
    an_entry,
    an_input,
    begin,
    claimant,
    finished,
    is_dead,
    new_turn,
    take_turn,
    there,
)

VERSION_1 = Path(__file__).parent / "files" / "sessions_version_1.sql"
"""The rows of a file that the first version wrote."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "standfast.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(path, owner_is_dead=is_dead)
    yield store
    asyncio.run(store.close())


def change(store: SqliteSessionStore, sql: str) -> None:
    """Change the file behind the store's back."""
    store.database.write(lambda db: db.execute(sql))


def found(store: SqliteSessionStore, sql: str, *values: int) -> list[Any]:
    return store.database.read(lambda db: db.execute(sql, values).fetchall())


# Cost


def test_a_plain_turn_executes_no_statements_for_features_it_does_not_use(store: SqliteSessionStore) -> None:
    """Ours: most turns change no state; they take three statements to begin and four to end."""
    seen: list[str] = []

    def note(_: object, sql: str, __: object) -> bool:
        seen.append(sql.split()[0])
        return True

    asyncio.run(take_turn(store, "t0", state=a_state("one")))
    store.database._group.connection.exec_trace = note
    asyncio.run(take_turn(store, "t1"))
    store.database._group.connection.exec_trace = None
    assert [word for word in seen if word not in ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")] == [
        *("SELECT", "UPDATE", "INSERT"),
        *("SELECT", "INSERT", "UPDATE", "UPDATE"),
    ]


def test_a_session_without_forks_is_in_no_index_of_families(store: SqliteSessionStore) -> None:
    """Ours: most sessions have no forks; a new one, and each of its states, would write a page more."""

    async def scenario() -> None:
        for number in range(3):
            await take_turn(store, f"t{number}", f"s{number}", state=a_state("one"))
        await store.fork("s0", "f", None, NOW)
        await take_turn(store, "t4", "f", state=a_state("two"))

    asyncio.run(scenario())
    for table, own in (("sessions", "key"), ("states", "session")):
        sql = f"SELECT count(*) FROM {table} INDEXED BY {table}_by_family WHERE family <> {own}"
        assert found(store, sql) == [(1,)]


def test_the_members_and_states_of_a_family_are_found_by_indexes(store: SqliteSessionStore) -> None:
    """Ours: deleting a session must not read all others."""
    of_states = f"SELECT key FROM states WHERE {history.OF_FAMILY}"
    for sql in (rows.OF_FAMILY, of_states, f"DELETE FROM states WHERE {history.OF_FAMILY}"):
        plan = found(store, f"EXPLAIN QUERY PLAN {sql}", 1)
        assert not [step for *_, step in plan if str(step).startswith("SCAN")]


def test_a_fork_outlives_the_first_session_of_its_family(store: SqliteSessionStore) -> None:
    """Ours: a family has the key of its first session, which may be deleted before its forks."""

    async def scenario() -> None:
        await take_turn(store, "t0", state=a_state("one"))
        await store.fork("s1", "f1", None, NOW)
        await store.fork("f1", "f2", None, NOW)
        await take_turn(store, "t1", "f1", state=a_state("two"))
        assert await store.delete_session("s1")
        assert [it.segment_id for it in await store.frame("t1.1")] == ["t0", "t1"]
        head = there(await store.head("f2"))
        assert await store.state(there(head.state)) == a_state("one").body
        for name in ("f1", "f2"):
            assert await store.delete_session(name)

    asyncio.run(scenario())
    counts = "SELECT (SELECT count(*) FROM segments), (SELECT count(*) FROM states)"
    assert store.database.read(lambda db: db.execute(counts).get) == (0, 0)


def test_a_fork_at_the_leaf_reads_no_states(store: SqliteSessionStore) -> None:
    """Ours: a fork costs the same at any length, and damage elsewhere does not affect it."""

    async def scenario() -> None:
        for number in range(5):
            await take_turn(store, f"t{number}", state=a_state(f"{number}"))
        change(store, "UPDATE states SET digest = x'00'")
        for name, at in (("f1", None), ("f2", "t4.1")):
            head = await store.fork("s1", name, at, NOW)
            assert head.state == "state_5"

    asyncio.run(scenario())


def test_a_line_of_states_is_walked_without_reading_bodies(store: SqliteSessionStore) -> None:
    """Ours: states may be large; only the current one is read, and only when a caller asks for it."""

    async def scenario() -> None:
        for number in range(5):
            await take_turn(store, f"t{number}", state=a_state(f"{number}"))
        await store.fork("s1", "s2", None, NOW)
        change(store, "UPDATE states SET body = x'00' WHERE key <> 1")
        head = await store.rewind("s2", "t0.1", NOW)
        assert head.state is not None
        assert await store.state(head.state) == b"0"

    asyncio.run(scenario())


# Damage


@pytest.mark.parametrize(
    "column", ["previous", "node", "depth", "session", "family", "blobs", "sum", "digest"]
)
def test_a_damaged_line_of_states_is_detected_when_it_is_walked(
    store: SqliteSessionStore, column: str
) -> None:
    """Ours: journal rule 6, rewinding must not restore a state other than the one that held."""

    async def scenario() -> None:
        for number in range(3):
            await take_turn(store, f"t{number}", state=a_state(f"{number}"))
        await store.fork("s1", "s2", None, NOW)
        damage = {"node": "'t0.1'", "blobs": "x'5b'", "sum": "x'00'", "digest": "x'00'"}.get(column, "7")
        change(store, f"UPDATE states SET {column} = {damage} WHERE key = 2")
        for session_id in ("s1", "s2"):
            with pytest.raises(RecordCorrupt, match="state_2"):
                await walk_past_the_second(store, session_id)
        assert (await store.head("s2")) is not None

    async def walk_past_the_second(store: SqliteSessionStore, session_id: str) -> None:
        head = await store.rewind(session_id, "t1.0", NOW)
        for name in (head.state, "state_2"):
            assert name is not None
            await store.state(name)

    asyncio.run(scenario())


def test_a_state_that_a_segment_should_not_have_is_detected(store: SqliteSessionStore) -> None:
    """Ours: having no state is a value too, and the digest covers it."""

    async def scenario() -> None:
        await take_turn(store, "t1")
        change(store, "UPDATE segments SET state = 1")
        with pytest.raises(RecordCorrupt, match="segment t1"):
            await store.frame("t1.1")
        with pytest.raises(RecordCorrupt, match="segment t1"):
            await store.rewind("s1", "t1.0", NOW)

    asyncio.run(scenario())


def test_an_error_about_a_damaged_state_names_the_record(store: SqliteSessionStore) -> None:
    """Ours: journal rule 6, the error names the damaged state or plugin record."""

    async def scenario() -> None:
        head = await take_turn(store, "t1", state=a_state("one"))
        assert head.state is not None
        change(store, "UPDATE states SET body = x'00'")
        with pytest.raises(RecordCorrupt, match=head.state):
            await store.state(head.state)
        await store.put_plugin_record("notes", "all", "k", b"body", NOW)
        change(store, "UPDATE plugin_records SET body = x'00'")
        for read in (store.plugin_record("notes", "all", "k"), store.plugin_records("notes", "all")):
            with pytest.raises(RecordCorrupt, match="k of plugin notes"):
                await read

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "name", ["state_", "state_x", "state_1x", "state_99999999999999999999", "1", "state_²"]
)
def test_an_unknown_state_name_returns_none(store: SqliteSessionStore, name: str) -> None:
    """Ours: ids are opaque, and an unknown one is not an error."""
    asyncio.run(take_turn(store, "t1", state=a_state("one")))
    assert asyncio.run(store.state(name)) is None


# Atomicity


def test_a_commit_that_fails_late_leaves_no_state(store: SqliteSessionStore) -> None:
    """Ours: a commit is one transaction, its state and its blobs included."""

    async def scenario() -> None:
        begun = await begin(store)
        blob = a_blob()
        change(store, "CREATE TRIGGER no BEFORE UPDATE ON turns BEGIN SELECT RAISE(ABORT, 'no'); END")
        with pytest.raises(Exception, match="no"):
            await store.commit(begun.lease, a_commit(state=a_state("one", blob), blobs=(blob,)))
        change(store, "DROP TRIGGER no")
        assert await store.state("state_1") is None
        assert await store.blob(blob.digest) is None
        assert await store.head("s1") == begun.head

    asyncio.run(scenario())


# Older files


def write_version_1(path: Path) -> None:
    """Create a file as the first version wrote it."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute(
            "CREATE TABLE standfast_schema (component TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT"
        )
        db.execute(str(schema.SANDBOX_BEFORE[0]))
        db.execute(str(schema.SESSIONS[0]))
        db.execute(VERSION_1.read_text())


def test_a_file_of_the_first_version_stays_usable(path: Path) -> None:
    """Ours: an upgrade loses nothing; sessions, turns, waits, inputs and blobs are unchanged."""
    write_version_1(path)

    async def scenario() -> None:
        store = SqliteSessionStore(path, owner_is_dead=is_dead)
        assert {it.session_id: (it.leaf, it.state) for it in await store.heads()} == {
            "s1": ("t0.1", None),
            "s2": (None, None),
            "s3": ("t3.1", None),
        }
        assert [it.segment_id for it in await store.path("t3.1")] == ["t0", "t3"]
        repeated = await store.begin(new_turn("t9", key="k"), claimant())
        assert isinstance(repeated, Repeated)
        assert repeated.record.summary == finished()
        assert await store.inputs("s1") == [an_input("i1")]
        assert await store.blob(a_blob().digest) == a_blob().data
        assert await store.approvals() == [an_approval()]
        assert dict(await store.ended_waits("t1", NOW)) == {"cpl_t1.x": Completed(value="done")}
        taken = await store.take_over("t2", claimant())
        assert taken.journal == (an_entry("model.1"), an_entry("tool.1", b"result"))
        await store.commit(taken.lease, a_commit("t2", state=a_state("two")))
        await store.close()

    asyncio.run(scenario())


def test_sessions_of_the_first_version_can_have_states(path: Path) -> None:
    """Ours: history from before the upgrade has no state, later history does."""
    write_version_1(path)

    async def scenario() -> None:
        store = SqliteSessionStore(path, owner_is_dead=is_dead)
        await store.set_state("s3", a_state("three"), (), NOW)
        await take_turn(store, "t4", "s3", state=a_state("four"))
        assert (await store.fork("s3", "s4", "t0.1", NOW)).state is None
        assert (await store.rewind("s3", "t4.0", NOW)).state == "state_1"
        assert (await store.rewind("s3", "t3.0", NOW)).state is None
        await store.prune(PruneRequest(branches=True))
        assert [await store.state(f"state_{number}") for number in (1, 2)] == [b"three", None]
        await store.open_session(a_head("s5"))
        await store.close()

    asyncio.run(scenario())


def test_a_file_is_upgraded_once_whichever_process_opens_it_first(path: Path) -> None:
    """Ours: after an upgrade of the program, several processes open the file."""
    write_version_1(path)
    first, second = SqliteSessionStore(path), SqliteSessionStore(path)
    for store in (first, second):
        asyncio.run(store.close())
    with contextlib.closing(apsw.Connection(str(path))) as db:
        version = db.execute("SELECT version FROM standfast_schema WHERE component = 'sessions'").get
    assert version == len(schema.SESSIONS)
