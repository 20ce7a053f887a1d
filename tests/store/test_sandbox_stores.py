"""Every store against the contract, the two against each other, and SQLite against the world."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from standfast.errors import (
    InvalidArgument,
    InvalidSessionId,
    RecordCorrupt,
    SchemaTooNew,
    StandfastError,
    StoreError,
    StoreUnavailable,
)
from standfast.model.approval import Decision
from standfast.ports.sandbox_store import SandboxStore
from standfast.store.memory import MemorySandboxStore
from standfast.store.sqlite.checksums import open_checked
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.sandbox import SqliteSandboxStore
from standfast.testing.stores import (
    SandboxStoreContract,
    a_run,
    a_session,
    a_settled,
    an_approval,
)

pytestmark = pytest.mark.slow


class TestMemory(SandboxStoreContract):
    @pytest.fixture
    def store(self) -> SandboxStore:
        return MemorySandboxStore()


class TestSqlite(SandboxStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SandboxStore]:
        with contextlib.closing(SqliteSandboxStore(tmp_path / "standfast.db")) as store:
            yield store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "standfast.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteSandboxStore]:
    with contextlib.closing(SqliteSandboxStore(path)) as store:
        yield store


_PRELUDE = """
import sys, msgspec
from standfast.errors import *
from standfast.model import *
from standfast.store.sqlite.sandbox import SqliteSandboxStore
from standfast.testing.stores import *
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that runs *script* after the prelude."""
    source = _PRELUDE + textwrap.dedent(script)
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def outputs(script: str, count: int, *arguments: object) -> list[str]:
    """Start *count* processes, let them go at once, and give what each one said after `ready()`."""
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


def overwrite(path: Path, table: str, column: str, value: bytes | str) -> None:
    with contextlib.closing(open_checked(str(path))) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))


# Files


def test_a_new_store_is_for_its_user_only(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: sessions hold what users typed; directory 0700, file 0600."""
    store.save_session(a_session())
    with store.hold("s1"):
        pass
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.rglob("*")}
    assert modes == {
        "standfast.db": 0o600,
        "standfast.db-wal": 0o600,
        "standfast.db-shm": 0o600,
        "locks": 0o700,
        "s1.lock": 0o600,
    }


def test_a_store_survives_its_process(path: Path) -> None:
    """Seed: a session survives the death of its process."""
    script = """
        store = SqliteSandboxStore(sys.argv[1])
        store.save_session(a_session(state=b"kept"))
        store.park(a_run(), b"dump", [an_approval()])
        ready()
        store.close()
    """
    outputs(script, 1, path)
    with contextlib.closing(SqliteSandboxStore(path)) as store:
        loaded = store.load_session("s1")
        assert loaded is not None
        assert loaded.state == b"kept"
        assert store.waiting_run("s1") == a_run()
        assert store.approvals() == [an_approval()]


@pytest.mark.slow
def test_processes_that_open_a_fresh_file_at_once_all_succeed(path: Path) -> None:
    """Ours: `database is locked` is what users of others suffer from."""
    script = """
        ready()
        store = SqliteSandboxStore(sys.argv[1])
        store.save_session(a_session(f"s{sys.argv[2]}"))
        store.close()
    """
    outputs(script, 6, path)
    with contextlib.closing(SqliteSandboxStore(path)) as store:
        assert len(store.list_sessions()) == 6


def test_a_schema_from_the_future_is_refused(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: an old version must not write what it does not understand."""
    store.database.write(lambda db: db.execute("UPDATE standfast_schema SET version = 99"))
    with pytest.raises(SchemaTooNew, match="version 99"):
        SqliteSandboxStore(path)


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    """Ours: a wrong path must not cost anyone their file."""
    path.parent.mkdir()
    path.write_text("dear diary\n" * 500)
    with pytest.raises(StoreError, match="not a SQLite database"):
        SqliteSandboxStore(path)
    assert path.read_text() == "dear diary\n" * 500


def test_a_path_that_cannot_be_a_file_is_unavailable(tmp_path: Path) -> None:
    """Ours: every failure of the disk is a StoreUnavailable with the path in it."""
    with pytest.raises(StoreUnavailable, match=str(tmp_path)):
        SqliteSandboxStore(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="file"):
        SqliteSandboxStore(tmp_path / "file" / "standfast.db")


def test_a_closed_store_says_so_and_closes_twice(path: Path) -> None:
    """Ours: no call may hang on a writer that is gone."""
    store = SqliteSandboxStore(path)
    store.close()
    store.close()
    for use in (store.list_sessions, lambda: store.save_session(a_session()), lambda: store.hold("s1")):
        with pytest.raises(StoreUnavailable, match="closed"):
            use()


def test_a_forked_child_is_told_to_open_the_file_itself(store: SqliteSandboxStore) -> None:
    """Ours: a SQLite connection must not cross a fork."""
    if (pid := os.fork()) == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                store.save_session(a_session())
            except StoreUnavailable as error:
                code = 0 if "fork" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_text_that_cannot_be_stored_is_the_callers_fault(store: SqliteSandboxStore) -> None:
    """Bug: bytes of a command line that are not UTF-8 arrive as lone surrogates."""
    with pytest.raises(InvalidArgument, match="surrogate"):
        store.approval("\udcff")


def test_a_session_id_never_leaves_the_lock_directory(store: SqliteSandboxStore) -> None:
    """Ours: ids become file names here."""
    with pytest.raises(InvalidSessionId):
        store.hold("../../etc/passwd")


# Many writers


@pytest.mark.slow
def test_one_of_eight_processes_decides(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: port rule 3, between processes."""
    store.park(a_run(), b"", [an_approval()])
    script = """
        store = SqliteSandboxStore(sys.argv[1])
        ready()
        try:
            now_ms = int(sys.argv[2])
            print(store.decide("a1", Decision(approved=True), now_ms=now_ms, edited_digest=None).decided_at)
        except ApprovalAlreadyDecided as error:
            print(error.state)
    """
    said = outputs(script, 8, path)
    assert said.count("approved") == 7
    approval = store.approval("a1")
    assert approval is not None
    assert str(approval.decided_at) in said


@pytest.mark.slow
def test_processes_that_hold_a_session_lose_no_update(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: two runs on one session queue; they never lose state."""
    store.save_session(a_session(state=b"0"))
    script = """
        store = SqliteSandboxStore(sys.argv[1])
        ready()
        for _ in range(50):
            with store.hold("s1"):
                session = store.load_session("s1")
                after = b"%d" % (int(session.state) + 1)
                store.save_session(msgspec.structs.replace(session, state=after))
    """
    outputs(script, 4, path)
    loaded = store.load_session("s1")
    assert loaded is not None
    assert (loaded.state, loaded.epoch) == (b"200", 201)


def test_a_session_held_by_a_process_that_dies_is_free(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: an owner that is provably dead is succeeded at once."""
    holder = child("with SqliteSandboxStore(sys.argv[1]).hold('s1'): ready()", path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    entered = threading.Event()

    def wait() -> None:
        with store.hold("s1"):
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    with store.hold("s2"):
        assert not entered.wait(0.05)
    holder.kill()
    thread.join(10)
    assert entered.is_set()
    holder.communicate()


def test_two_threads_that_hold_one_session_take_turns(store: SqliteSandboxStore) -> None:
    """Ours: the lock belongs to an open file, and no two holders share one."""
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            with store.hold("s1"):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


@pytest.mark.slow
def test_a_process_is_not_starved_by_one_that_writes_all_the_time(
    path: Path, store: SqliteSandboxStore
) -> None:
    """Bug: with SQLite's own waiting one process made 6,804 commits while the other made 1."""
    script = """
        store = SqliteSandboxStore(sys.argv[1])
        session = store.save_session(a_session("busy"))
        print("ready", flush=True)
        while True:
            session = store.save_session(session)
    """
    busy = child(script, path)
    assert busy.stdout is not None
    assert busy.stdout.readline() == "ready\n"
    session = store.save_session(a_session())
    started = time.monotonic()
    for _ in range(50):
        session = store.save_session(session)
    elapsed = time.monotonic() - started
    busy.kill()
    busy.communicate()
    assert elapsed < 5


# Groups


def hold_up(database: Database) -> tuple[threading.Event, threading.Thread]:
    """Keep the writer busy until the event is set, so that what follows is one group."""
    go, busy = threading.Event(), threading.Event()

    def job(_: apsw.Connection) -> None:
        busy.set()
        go.wait()

    thread = threading.Thread(target=database.write, args=(job,))
    thread.start()
    busy.wait()
    return go, thread


def write_together(database: Database, jobs: list[Callable[[apsw.Connection], Any]]) -> list[object]:
    """Write all *jobs* in one group, in order; what each one returned or raised."""
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
    """Ours: journal rule 7, many sessions' writes share one transaction."""
    commits: list[int] = []

    def count() -> bool:
        commits.append(1)
        return False

    notes._group.connection.set_commit_hook(count)
    assert write_together(notes, [note(number) for number in range(10)]) == list(range(10))
    assert len(commits) == 2  # what held the writer up, and the group
    assert bodies(notes) == list(range(10))


def test_a_job_that_fails_undoes_only_itself(notes: Database) -> None:
    """Ours: one session's error is not another's."""

    def half_done(db: apsw.Connection) -> None:
        note("half")(db)
        raise LookupError("mine")

    first, second, third = write_together(notes, [note(1), half_done, note(3)])
    assert (first, third) == (1, 3)
    assert isinstance(second, LookupError)
    assert bodies(notes) == [1, 3]


def test_a_job_that_makes_sqlite_give_up_the_transaction_undoes_only_itself(notes: Database) -> None:
    """Ours: a full disk may end the whole transaction, the others are then written without the culprit."""

    def give_up(db: apsw.Connection) -> None:
        db.execute("ROLLBACK")
        raise apsw.FullError("database or disk is full")

    first, second, third = write_together(notes, [note(1), give_up, note(3)])
    assert (first, third) == (1, 3)
    assert isinstance(second, StoreUnavailable)
    assert bodies(notes) == [1, 3]


def test_a_commit_that_fails_fails_every_job_of_the_group(notes: Database) -> None:
    """Ours: nobody is told that something is on disk which is not."""
    refuse = threading.Event()
    notes._group.connection.set_commit_hook(refuse.is_set)

    def last(db: apsw.Connection) -> None:
        refuse.set()

    outcomes = write_together(notes, [note(1), note(2), last])
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 3
    refuse.clear()
    assert bodies(notes) == []
    assert notes.write(note(3)) == 3


def test_reading_does_not_wait_for_the_writer(store: SqliteSandboxStore) -> None:
    """Ours: readers use connections of their own."""
    store.save_session(a_session())
    go, thread = hold_up(store.database)
    assert store.stamp("s1")[0] == 1
    go.set()
    thread.join()


def test_a_lock_that_is_not_given_up_is_reported(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: waiting for another process ends."""
    with contextlib.closing(Database(path, busy_timeout_ms=50)) as impatient:
        go, thread = hold_up(store.database)
        with pytest.raises(StoreUnavailable, match="locked"):
            impatient.write(lambda db: None)
        go.set()
        thread.join()
        impatient.write(lambda db: None)


# Damage

DAMAGE = [
    ("sandbox_sessions", "state", "session s1", lambda store: store.load_session("s1")),
    ("sandbox_sessions", "meta", "session s1", lambda store: store.list_sessions()),
    ("sandbox_sessions", "meta", "session s1", lambda store: store.load_session("s1")),
    ("sandbox_snapshots", "data", "snapshot snap_1", lambda store: store.get_snapshot("snap_1")),
    ("sandbox_runs", "body", "run r1 of session s1", lambda store: store.waiting_run("s1")),
    ("sandbox_runs", "body", "run r1 of session s1", lambda store: store.claim_run("r1", "p", None)),
    ("approvals", "body", "approval a1", lambda store: store.approvals()),
    ("sandbox_calls", "outcome", "call 1 of run r1", lambda store: store.found("r1", 1, "d1")),
]


def fill(store: SqliteSandboxStore) -> None:
    """One record of each kind."""
    store.save_session(a_session(state=b"state" * 100))
    store.park(a_run(), b"dump" * 100, [an_approval()])
    store.settle("r1", 1, a_settled())


@pytest.mark.parametrize(("table", "column", "name", "read"), DAMAGE)
def test_one_flipped_byte_is_an_error_that_names_the_record(
    path: Path, store: SqliteSandboxStore, table: str, column: str, name: str, read: Callable[[Any], object]
) -> None:
    """Ours: 710 of 1,000 flips changed rows silently while SQLite's own check said ok."""
    fill(store)
    good = store.database.read(lambda db: db.execute(f"SELECT {column} FROM {table}").get)
    overwrite(path, table, column, good[:20] + bytes([good[20] ^ 1]) + good[21:])
    with pytest.raises(RecordCorrupt, match=name):
        read(store)
    overwrite(path, table, column, good)
    read(store)


def test_a_byte_flipped_in_the_file_itself_is_found(path: Path) -> None:
    """Ours: journal rule 6, never a wrong answer."""
    with contextlib.closing(SqliteSandboxStore(path)) as store:
        store.save_session(a_session(state=b"0123456789" * 1000))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"0123456789")] ^= 1
    path.write_bytes(data)
    with contextlib.closing(SqliteSandboxStore(path)) as store:
        with pytest.raises(RecordCorrupt, match=r"page \d+ does not match its checksum"):
            store.load_session("s1")
        assert [session.meta.id for session in store.list_sessions()] == ["s1"]
        assert store.delete_session("s1") is True


def test_states_that_were_swapped_are_found(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: the digest covers the keys, so a good row in the wrong place is not good."""
    store.save_session(a_session("s1", b"one"))
    store.save_session(a_session("s2", b"two"))
    sql = (
        "UPDATE sandbox_sessions SET (state, state_digest) = "
        "(SELECT state, state_digest FROM sandbox_sessions WHERE id = 's1') WHERE id = 's2'"
    )
    store.database.write(lambda db: db.execute(sql))
    with pytest.raises(RecordCorrupt, match="session s2"):
        store.load_session("s2")
    assert store.load_session("s1") is not None


def test_a_decision_forged_in_the_file_is_found(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: approvals fail closed."""
    fill(store)
    overwrite(path, "approvals", "state", "approved")
    with pytest.raises(RecordCorrupt, match="approval a1"):
        store.approval("a1")


def test_a_session_with_damaged_records_can_be_destroyed(path: Path, store: SqliteSandboxStore) -> None:
    """Ours: the hint of RecordCorrupt says so."""
    fill(store)
    for table, column in (("sandbox_sessions", "meta"), ("sandbox_runs", "body"), ("approvals", "body")):
        overwrite(path, table, column, b"?")
    assert store.delete_session("s1") is True
    assert (store.list_sessions(), store.waiting_run("s1"), store.approvals()) == ([], None, [])


def test_text_that_is_not_utf8_is_damage(store: SqliteSandboxStore) -> None:
    """Bug: a flip in a text column makes the driver raise UnicodeDecodeError."""
    fill(store)
    sql = "UPDATE approvals SET run_id = CAST(x'ff' AS TEXT)"
    store.database.write(lambda db: db.execute(sql))
    with pytest.raises(RecordCorrupt, match="UTF-8"):
        store.approvals()


# The disk


def test_a_full_disk_is_reported_and_the_store_works_again_afterwards(store: SqliteSandboxStore) -> None:
    """Ours: StoreUnavailable says that the disk is full, and nothing is half written."""
    saved = store.save_session(a_session())

    def limit(pages: int) -> None:
        store.database.write(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").get)

    limit(1)
    with pytest.raises(StoreUnavailable, match="disk is full") as raised:
        store.save_session(msgspec.structs.replace(saved, state=b"x" * 1_000_000))
    assert raised.value.retryable
    assert store.load_session("s1") == saved
    limit(1_000_000)
    assert store.save_session(msgspec.structs.replace(saved, state=b"x" * 1_000_000)).epoch == 2


def test_a_commit_that_the_disk_refuses_is_reported_and_undone(path: Path) -> None:
    """Ours: the write may also fail at the commit, in the log file."""
    script = """
        import resource
        store = SqliteSandboxStore(sys.argv[1])
        saved = store.save_session(a_session())
        ready()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            store.save_session(msgspec.structs.replace(saved, state=bytes(500_000)))
        except StoreUnavailable as error:
            print("refused")
        assert store.load_session("s1") == saved
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        saved = store.save_session(msgspec.structs.replace(saved, state=bytes(500_000)))
        assert store.load_session("s1") == saved
        print("written")
    """
    assert outputs(script, 1, path) == ["refused\nwritten"]


@pytest.mark.slow
@pytest.mark.parametrize("acknowledged", [1, 40, 200])
def test_every_acknowledged_write_survives_sigkill(path: Path, acknowledged: int) -> None:
    """Ours: journal rule 7, acknowledged means on disk."""
    script = """
        store = SqliteSandboxStore(sys.argv[1])
        number = 0
        while True:
            session = store.save_session(a_session(f"s{number}", b"%d" % number * 1000))
            store.save_session(session)
            print(number, flush=True)
            number += 1
    """
    writer = child(script, path)
    assert writer.stdout is not None
    for _ in range(acknowledged):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    seen = acknowledged + len(writer.stdout.read().split())
    writer.communicate()
    with contextlib.closing(SqliteSandboxStore(path)) as store:
        for number in range(seen):
            session = store.load_session(f"s{number}")
            assert session is not None
            assert (session.state, session.epoch) == (b"%d" % number * 1000, 2)
        assert store.database.read(lambda db: db.execute("PRAGMA integrity_check").get) == "ok"
        assert len(store.list_sessions()) in (seen, seen + 1)


def test_every_connection_syncs_its_commits(store: SqliteSandboxStore) -> None:
    """Ours: with `synchronous=NORMAL` power loss took acknowledged commits in 408 of 570 trials."""

    def settings_of(db: apsw.Connection) -> list[object]:
        return [db.execute(f"PRAGMA {name}").get for name in ("journal_mode", "synchronous", "foreign_keys")]

    assert store.database.write(settings_of) == ["wal", 2, 1]
    assert store.database.read(settings_of) == ["wal", 2, 1]


# The two stores against each other

SESSIONS = st.sampled_from(["s1", "s2"])
RUNS = st.sampled_from(["r1", "r2", "r3"])
APPROVALS = st.sampled_from(["a1", "a2", "a3"])
OWNERS = st.sampled_from([None, "p1", "p2"])
DIGESTS = st.sampled_from(["d1", "d2"])
CALLS = st.integers(1, 2)


class TwoStores(RuleBasedStateMachine):
    """Whatever is done to both, both answer the same and hold the same."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.memory = MemorySandboxStore()
        self.sqlite = SqliteSandboxStore(Path(self.directory.name) / "standfast.db")

    def teardown(self) -> None:
        self.sqlite.close()
        self.directory.cleanup()

    def both(self, call: Callable[[SandboxStore], object]) -> None:
        assert _outcome(call, self.memory) == _outcome(call, self.sqlite)

    @rule(session_id=SESSIONS, state=st.binary(max_size=3), behind=st.integers(0, 1), run=st.none() | RUNS)
    def save(self, session_id: str, state: bytes, behind: int, run: str | None) -> None:
        epoch = max(0, (self.memory.stamp(session_id)[0] or 0) - behind)
        session = msgspec.structs.replace(a_session(session_id, state), epoch=epoch)
        self.both(lambda store: store.save_session(session, finished_run=run))

    @rule(session_id=SESSIONS)
    def delete(self, session_id: str) -> None:
        self.both(lambda store: store.delete_session(session_id))

    @rule(run_id=RUNS, session_id=SESSIONS, asked=st.lists(APPROVALS, max_size=2), dump=st.binary(max_size=3))
    def park(self, run_id: str, session_id: str, asked: list[str], dump: bytes) -> None:
        requested = [an_approval(approval_id, run_id, session_id) for approval_id in asked]
        self.both(lambda store: store.park(a_run(run_id, session_id), dump, requested))

    @rule(run_id=RUNS, owner=st.sampled_from(["p1", "p2"]), previous=OWNERS)
    def claim(self, run_id: str, owner: str, previous: str | None) -> None:
        self.both(lambda store: store.claim_run(run_id, owner, previous))

    @rule(run_id=RUNS, owner=st.sampled_from(["p1", "p2"]))
    def release(self, run_id: str, owner: str) -> None:
        self.both(lambda store: store.release_run(run_id, owner))

    @rule(run_id=RUNS)
    def drop(self, run_id: str) -> None:
        self.both(lambda store: store.drop_run(run_id))

    @rule(
        approval_id=APPROVALS,
        approved=st.booleans(),
        args=st.none() | st.just([2**80]),
        now_ms=st.sampled_from([9, 9_999, 10_000]),
    )
    def decide(self, approval_id: str, approved: bool, args: list[Any] | None, now_ms: int) -> None:
        decision = Decision(approved=approved, reason="é", args=args)
        self.both(lambda store: store.decide(approval_id, decision, now_ms=now_ms, edited_digest="e"))

    @rule(run_id=RUNS, call_id=CALLS, digest=DIGESTS)
    def intend(self, run_id: str, call_id: int, digest: str) -> None:
        self.both(lambda store: store.intend(run_id, call_id, digest))

    @rule(run_id=RUNS, call_id=CALLS, digest=DIGESTS, value=st.sampled_from([None, "x", {"k": [1.5]}]))
    def settle(self, run_id: str, call_id: int, digest: str, value: object) -> None:
        self.both(lambda store: store.settle(run_id, call_id, a_settled(value, digest)))

    @rule(run_id=RUNS, call_id=CALLS, digest=DIGESTS)
    def find(self, run_id: str, call_id: int, digest: str) -> None:
        self.both(lambda store: store.found(run_id, call_id, digest))

    @invariant()
    def both_hold_the_same(self) -> None:
        self.both(lambda store: [store.list_sessions(), store.approvals(), store.get_snapshot("snap_1")])
        for session_id in ("s1", "s2"):
            self.both(_sessions_view(session_id))


def _sessions_view(session_id: str) -> Callable[[SandboxStore], object]:
    return lambda store: [
        store.load_session(session_id),
        store.session_state_bytes(session_id),
        store.waiting_run(session_id),
        store.approvals(session_id=session_id),
    ]


def _outcome(call: Callable[[SandboxStore], object], store: SandboxStore) -> object:
    try:
        return call(store)
    except StandfastError as error:
        return type(error), str(error)


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
