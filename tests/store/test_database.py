"""The SQLite file under a store: its mode, its writer and readers, other processes, and the disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import apsw
import interpreters
import pytest

from standfast.errors import InvalidArgument, RecordCorrupt, StoreError, StoreUnavailable
from standfast.store.sqlite.connection import open_checked
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_values import NOW, a_head, a_state, a_wait, an_approval, park

T = TypeVar("T")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "standfast.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(path)
    yield store
    asyncio.run(store.close())


_PRELUDE = """
import asyncio, sys
from standfast.errors import *
from standfast.model.approval import Decision
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_values import *
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start another process that runs *script* after the prelude."""
    source = _PRELUDE + textwrap.dedent(script)
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return interpreters.Interpreter(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def outputs(script: str, count: int, *arguments: object) -> list[str]:
    """Start *count* processes, release them together, and return the output of each after `ready()`."""
    children = [child(script, *arguments, number) for number in range(count)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].strip() for process in children]
    assert [process.returncode for process in children] == [0] * count
    return said


def overwrite(path: Path, sql: str) -> None:
    with contextlib.closing(open_checked(str(path))) as db:
        db.execute(sql)


# Files


def test_a_new_store_is_accessible_only_to_its_user(path: Path, store: SqliteSessionStore) -> None:
    """Ours: sessions hold the texts of users, so the directory has mode 0700 and the file 0600."""
    asyncio.run(store.open_session(a_head()))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.rglob("*")}
    assert modes == {"standfast.db": 0o600, "standfast.db-wal": 0o600, "standfast.db-shm": 0o600}


@pytest.mark.slow
def test_several_processes_can_open_a_new_file_at_once(path: Path) -> None:
    """Ours: no process may fail with SQLite's `database is locked`."""
    script = """
        ready()
        async def main():
            store = SqliteSessionStore(sys.argv[1])
            await store.open_session(a_head(f"s{sys.argv[2]}"))
            await store.close()
        asyncio.run(main())
    """
    outputs(script, 6, path)
    with contextlib.closing(Database(path)) as database:
        assert database.read(lambda db: db.execute("SELECT count(*) FROM sessions").get) == 6


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(path: Path) -> None:
    """Ours: a wrong path must not destroy another file."""
    path.parent.mkdir()
    path.write_text("dear diary\n" * 500)
    with pytest.raises(StoreError, match="not a SQLite database"):
        SqliteSessionStore(path)
    assert path.read_text() == "dear diary\n" * 500


def test_a_path_that_cannot_be_a_file_raises_store_unavailable(tmp_path: Path) -> None:
    """Ours: every disk failure is a StoreUnavailable that contains the path."""
    with pytest.raises(StoreUnavailable, match=str(tmp_path)):
        SqliteSessionStore(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="file"):
        SqliteSessionStore(tmp_path / "file" / "standfast.db")


def test_text_that_cannot_be_stored_is_the_callers_error(store: SqliteSessionStore) -> None:
    """Ours: SQLite cannot store a lone surrogate."""
    with pytest.raises(InvalidArgument, match="surrogate"):
        asyncio.run(store.put_plugin_record("notes", "\ud800", "k", b"", NOW))


# Processes


@pytest.mark.slow
def test_one_of_eight_concurrent_deciders_wins(path: Path, store: SqliteSessionStore) -> None:
    """Ours: a decision is a compare-and-set across processes as well."""
    asyncio.run(park(store, a_wait("a1", "approval"), approvals=(an_approval(),)))
    script = """
        async def main():
            store = SqliteSessionStore(sys.argv[1])
            ready()
            decision = Decision(approved=int(sys.argv[2]) % 2 == 0, reason=sys.argv[2])
            try:
                await store.decide("a1", decision, now_ms=NOW, edited_digest=None)
                print("won", sys.argv[2])
            except ApprovalAlreadyDecided:
                print("lost")
            await store.close()
        asyncio.run(main())
    """
    said = outputs(script, 8, path)
    (winner,) = [line.split()[1] for line in said if line != "lost"]
    decided = asyncio.run(store.approval("a1"))
    assert decided is not None
    assert decided.reason == winner


@pytest.mark.slow
def test_a_process_is_not_starved_by_one_that_writes_continuously(path: Path) -> None:
    """Bug: with SQLite's own busy handler one process made 6,804 commits while the other made 1."""
    script = """
        from standfast.store.sqlite.database import Database
        database = Database(sys.argv[1], {"notes": ["CREATE TABLE notes (body)"]})
        print("ready", flush=True)
        while True:
            database.write(lambda db: db.execute("INSERT INTO notes VALUES (1)"))
    """
    busy = child(script, path)
    assert busy.stdout is not None
    assert busy.stdout.readline() == "ready\n"
    with contextlib.closing(Database(path)) as database:
        started = time.monotonic()
        for _ in range(50):
            database.write(lambda db: db.execute("INSERT INTO notes VALUES (2)"))
        elapsed = time.monotonic() - started
    busy.kill()
    busy.communicate()
    assert elapsed < 5


# Groups


def hold_up(database: Database) -> tuple[threading.Event, threading.Thread]:
    """Keep the writer busy until the event is set, so that the writes that follow form one group."""
    go, busy = threading.Event(), threading.Event()

    def job(_: apsw.Connection) -> None:
        busy.set()
        go.wait()

    thread = threading.Thread(target=database.write, args=(job,))
    thread.start()
    busy.wait()
    return go, thread


def write_together(database: Database, jobs: list[Callable[[apsw.Connection], Any]]) -> list[object]:
    """Write all *jobs* in one group, in order; return the result or the exception of each."""
    outcomes: list[object] = [None] * len(jobs)

    def write(number: int) -> None:
        try:
            outcomes[number] = database.write(jobs[number])
        except Exception as error:
            outcomes[number] = error

    go, first = hold_up(database)
    threads = [first]
    for number in range(len(jobs)):
        threads.append(threading.Thread(target=write, args=(number,)))
        threads[-1].start()
        while database._group.jobs.qsize() <= number:
            time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Database]:
    components = {"notes": ["CREATE TABLE notes (body)"]}
    with contextlib.closing(Database(tmp_path / "notes.db", components)) as database:
        yield database


def note(body: object) -> Callable[[apsw.Connection], Any]:
    return lambda db: db.execute("INSERT INTO notes VALUES (?) RETURNING body", (body,)).get


def bodies(database: Database) -> list[object]:
    return [body for (body,) in database.read(lambda db: db.execute("SELECT body FROM notes").fetchall())]


def test_writes_of_many_callers_share_one_transaction(notes: Database) -> None:
    """Ours: journal rule 7, the writes of many sessions share one transaction."""
    commits: list[int] = []

    def count() -> bool:
        commits.append(1)
        return False

    notes._group.connection.set_commit_hook(count)
    assert write_together(notes, [note(number) for number in range(10)]) == list(range(10))
    assert len(commits) == 2  # one for the job that held up the writer, one for the group
    assert bodies(notes) == list(range(10))


def test_a_failing_job_rolls_back_only_itself(notes: Database) -> None:
    """Ours: an error in one session's write does not roll back the writes of others."""

    def half_done(db: apsw.Connection) -> None:
        note("half")(db)
        raise LookupError("mine")

    first, second, third = write_together(notes, [note(1), half_done, note(3)])
    assert (first, third) == (1, 3)
    assert isinstance(second, LookupError)
    assert bodies(notes) == [1, 3]


def test_a_job_that_makes_sqlite_roll_back_the_transaction_undoes_only_itself(notes: Database) -> None:
    """Ours: a full disk may end the whole transaction; the other jobs are then repeated without it."""

    def give_up(db: apsw.Connection) -> None:
        db.execute("ROLLBACK")
        raise apsw.FullError("database or disk is full")

    first, second, third = write_together(notes, [note(1), give_up, note(3)])
    assert (first, third) == (1, 3)
    assert isinstance(second, StoreUnavailable)
    assert bodies(notes) == [1, 3]


def test_a_failing_commit_fails_every_job_of_its_group(notes: Database) -> None:
    """Ours: no commit is reported as successful before it is on disk."""
    refuse = threading.Event()
    notes._group.connection.set_commit_hook(refuse.is_set)

    def last(db: apsw.Connection) -> None:
        refuse.set()

    outcomes = write_together(notes, [note(1), note(2), last])
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 3
    refuse.clear()
    assert bodies(notes) == []
    assert notes.write(note(3)) == 3


def test_reading_does_not_wait_for_the_writer(store: SqliteSessionStore) -> None:
    """Ours: readers use their own connections."""
    asyncio.run(store.open_session(a_head()))
    go, thread = hold_up(store.database)
    assert asyncio.run(store.head("s1")) == a_head()
    go.set()
    thread.join()


def test_a_lock_that_is_never_released_is_reported(path: Path, store: SqliteSessionStore) -> None:
    """Ours: waiting for another process's lock ends with an error after the busy timeout."""
    with contextlib.closing(Database(path, busy_timeout_ms=50)) as impatient:
        go, thread = hold_up(store.database)
        with pytest.raises(StoreUnavailable, match="locked"):
            impatient.write(lambda db: None)
        go.set()
        thread.join()
        impatient.write(lambda db: None)


# Damage


def asked(store: SqliteSessionStore, use: Callable[[SqliteSessionStore], Awaitable[T]]) -> T:
    async def scenario() -> T:
        return await use(store)

    return asyncio.run(scenario())


def test_swapped_states_are_detected(path: Path, store: SqliteSessionStore) -> None:
    """Ours: the digest covers the keys, so a valid row in the wrong place is an error."""

    async def scenario() -> None:
        for session_id in ("s1", "s2"):
            await store.open_session(a_head(session_id))
            await store.set_state(session_id, a_state(session_id), (), NOW)

    asyncio.run(scenario())
    overwrite(
        path,
        "UPDATE states SET (digest, sum, blobs, body) = "
        "(SELECT digest, sum, blobs, body FROM states WHERE key = 1) WHERE key = 2",
    )
    with pytest.raises(RecordCorrupt, match="state_2"):
        asked(store, lambda store: store.state("state_2"))
    assert asked(store, lambda store: store.state("state_1")) == b"s1"


def test_swapped_snapshots_are_detected(path: Path, store: SqliteSessionStore) -> None:
    """Ours: one session must not get the variables of another."""

    async def scenario() -> None:
        await store.put_snapshot("snap_1", "s1", b"one", NOW)
        await store.put_snapshot("snap_2", "s2", b"two", NOW)

    asyncio.run(scenario())
    overwrite(
        path,
        "UPDATE snapshots SET (digest, data) = "
        "(SELECT digest, data FROM snapshots WHERE snapshot_id = 'snap_1') WHERE snapshot_id = 'snap_2'",
    )
    with pytest.raises(RecordCorrupt, match="snapshot snap_2"):
        asked(store, lambda store: store.snapshot("snap_2"))
    assert asked(store, lambda store: store.snapshot("snap_1")) == b"one"


def test_a_decision_forged_in_the_file_is_detected(path: Path, store: SqliteSessionStore) -> None:
    """Ours: approvals fail closed: a decision that the store did not write is refused."""
    asyncio.run(park(store, a_wait("a1", "approval"), approvals=(an_approval(),)))
    overwrite(path, "UPDATE approvals SET state = 'approved'")
    with pytest.raises(RecordCorrupt, match="approval a1"):
        asked(store, lambda store: store.approval("a1"))
    with pytest.raises(RecordCorrupt, match="approval a1"):
        asked(store, lambda store: store.ended_waits("t1", NOW))


def test_a_session_with_damaged_approvals_can_be_deleted(path: Path, store: SqliteSessionStore) -> None:
    """Ours: the hint of RecordCorrupt recommends it; approvals that cannot be decided are deleted too."""
    asyncio.run(park(store, a_wait("a1", "approval"), approvals=(an_approval(),)))
    overwrite(path, "UPDATE approvals SET body = x'3f'; UPDATE sessions SET head = x'3f'")
    assert asked(store, lambda store: store.delete_session("s1")) is True
    assert asked(store, lambda store: store.approvals()) == []
    assert asked(store, lambda store: store.heads()) == []


def test_text_that_is_not_utf8_is_reported_as_damage(path: Path, store: SqliteSessionStore) -> None:
    """Bug: a flipped bit in a text column made the driver raise UnicodeDecodeError."""
    asyncio.run(park(store, a_wait("a1", "approval"), approvals=(an_approval(),)))
    overwrite(path, "UPDATE approvals SET run_id = CAST(x'ff' AS TEXT)")
    with pytest.raises(RecordCorrupt, match="UTF-8"):
        asked(store, lambda store: store.approvals())


# The disk


@pytest.mark.slow
@pytest.mark.parametrize("acknowledged", [1, 40, 200])
def test_every_acknowledged_write_survives_sigkill(path: Path, acknowledged: int) -> None:
    """Ours: journal rule 7, acknowledged means on disk."""
    script = """
        async def main():
            store = SqliteSessionStore(sys.argv[1])
            number = 0
            while True:
                await store.open_session(a_head(f"s{number}"))
                await store.set_state(f"s{number}", a_state(str(number) * 1000), (), NOW + 1)
                await store.put_snapshot(f"snap_{number}", f"s{number}", b"%d" % number, NOW)
                print(number, flush=True)
                number += 1
        asyncio.run(main())
    """
    writer = child(script, path)
    assert writer.stdout is not None
    for _ in range(acknowledged):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    seen = acknowledged + len(writer.stdout.read().split())
    writer.communicate()

    async def scenario() -> None:
        store = SqliteSessionStore(path)
        for number in range(seen):
            head = await store.head(f"s{number}")
            assert head is not None
            assert head.updated_at == NOW + 1
            assert await store.state(head.state or "") == str(number).encode() * 1000
            assert await store.snapshot(f"snap_{number}") == b"%d" % number
        assert store.database.read(lambda db: db.execute("PRAGMA integrity_check").get) == "ok"
        assert len(await store.heads()) in (seen, seen + 1)
        await store.close()

    asyncio.run(scenario())


def test_every_connection_syncs_its_commits(store: SqliteSessionStore) -> None:
    """Ours: with `synchronous=NORMAL` power loss took acknowledged commits in 408 of 570 trials."""

    def settings_of(db: apsw.Connection) -> list[object]:
        return [db.execute(f"PRAGMA {name}").get for name in ("journal_mode", "synchronous", "foreign_keys")]

    assert store.database.write(settings_of) == ["wal", 2, 1]
    assert store.database.read(settings_of) == ["wal", 2, 1]
