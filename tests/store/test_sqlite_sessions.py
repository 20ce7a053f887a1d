"""Features of the SQLite session store only: a file, a disk, other processes, damage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import interpreters
import msgspec
import pytest

from standfast.errors import (
    LeaseLost,
    RecordCorrupt,
    SchemaTooNew,
    SessionBusy,
    SessionNotFound,
    StoreError,
    StoreUnavailable,
    TurnNotFound,
)
from standfast.model.outcome import Completed
from standfast.model.session import Entry, SessionHead
from standfast.model.task import TaskState
from standfast.ports.session_store import Begun, JournalEntry, PruneRequest, Repeated, Save, TurnCommit
from standfast.store.sql.rows import JOURNAL
from standfast.store.sqlite.connection import SqliteConnection, open_checked
from standfast.store.sqlite.sandbox_migration import COMPONENTS
from standfast.store.sqlite.schema import migrate_all
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_store_children import a_child
from standfast.testing.session_store_tasks import a_task, a_trigger, an_occurrence, delivery
from standfast.testing.session_values import (
    NOW,
    a_blob,
    a_checkpoint,
    a_commit,
    a_head,
    a_save,
    a_state,
    a_state_entry,
    a_wait,
    an_approval,
    an_entry,
    an_input,
    begin,
    claimant,
    finished,
    is_dead,
    new_turn,
    opened,
    park,
    replied,
    said,
    showing,
    take_turn,
    waiting,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "standfast.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(path, owner_is_dead=is_dead)
    yield store
    asyncio.run(store.close())


def reopened(path: Path) -> SqliteSessionStore:
    return SqliteSessionStore(path, owner_is_dead=is_dead)


_PRELUDE = """
import asyncio, sys
from standfast.errors import *
from standfast.ports.session_store import *
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_values import *
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start another process that runs *script* after the prelude."""
    source = _PRELUDE + textwrap.dedent(script)
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return interpreters.Interpreter(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def outputs(script: str, count: int, *arguments: object) -> list[str]:
    """Start *count* processes, release them together, and return the output of each after `ready()`."""
    children = [start(script, *arguments, number) for number in range(count)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said_by_all = [process.communicate(timeout=120)[0].strip() for process in children]
    assert [process.returncode for process in children] == [0] * count
    return said_by_all


# Reopening


async def fill(store: SqliteSessionStore) -> None:
    """Write one of everything: history, states, waiting and running turns, inputs, blobs, tasks, triggers."""
    blob = a_blob()
    shown = (Entry(at_ms=NOW, payload=showing(blob)), replied())
    await store.open_session(a_head())
    begun = await store.begin(new_turn("t0", key="k", blobs=(blob,)), claimant())
    assert isinstance(begun, Begun)
    await store.commit(begun.lease, a_commit("t0", entries=shown, state=a_state("one", blob)))
    await store.set_state("s1", a_state("two"), (), NOW)
    await store.put_plugin_record("notes", "all", "k", b"kept", NOW)
    await store.put_snapshot("snap_1", "s1", b"variables", NOW)
    waits = (a_wait("tick"), a_wait("cpl_t1.x", "completion"), a_wait("a1", "approval"))
    await park(store, *waits, approvals=(an_approval(),))
    await store.complete("cpl_t1.x", Completed(value="done"), NOW)
    await store.put_input(an_input("i1"))
    await store.open_session(a_child("s2"))
    await store.add_task(a_task())
    await store.add_task(a_task("over", "s2", TaskState.COMPLETED))
    await store.put_trigger(a_trigger())
    await store.occur(an_occurrence(), (delivery(),))
    await store.see_clock("boot", 5)
    running = await begin(store, "t2", "s2", claimant("dead"))
    await store.save(running.lease, a_save("t2", an_entry("model.1"), an_entry("tool.1", b"result")))
    state = Save(turn_id="t2", entries=(a_state_entry("plugin.p"),), blobs=(a_blob(b"other"),))
    await store.save(running.lease, state)


async def everything(store: SqliteSessionStore) -> list[object]:
    """Return everything that `fill` wrote and that can be read without changing anything."""
    blob = a_blob()
    return [
        await store.heads(),
        await store.head("s1"),
        await store.frame("t0.1"),
        await store.path("t0.1"),
        [await store.turns(session_id) for session_id in ("s1", "s2")],
        [await store.turn(turn_id) for turn_id in ("t0", "t1", "t2")],
        await store.inputs("s1"),
        [await store.blob(it.digest) for it in (blob, a_blob(b"other"))],
        [await store.state(f"state_{number}") for number in (1, 2)],
        await store.plugin_record("notes", "all", "k"),
        await store.snapshot("snap_1"),
        await store.plugin_records("notes", "all"),
        await store.children("s1"),
        [await store.tasks(), await store.tasks(live=True), await store.tasks(session_id="s2")],
        [await store.task("s1", "watch"), await store.task("s2", "over")],
        [await store.triggers(), await store.trigger("nightly")],
        await store.occur(an_occurrence(), ()),
        await store.ended_waits("t1", NOW),
        await store.approvals(),
        await store.approval("a1"),
        await store.unfinished(NOW),
        await store.see_clock("boot", 5),
    ]


async def read_and_take_over(store: SqliteSessionStore) -> None:
    """Read everything that `fill` wrote, including the journals."""
    await everything(store)
    await store.take_over("t1", claimant("dead"))
    await store.take_over("t2", claimant("dead"))


def test_everything_survives_the_death_of_the_process(path: Path) -> None:
    """Ours: an acknowledged write is on disk, even if the process is killed right after it."""
    child = start(
        """
        async def main():
            store = SqliteSessionStore(sys.argv[1])
            await take_turn(store, "t0")
            await park(store, a_wait("tick"), approvals=(an_approval(),))
            running = await begin(store, "t2", "s2", claimant("dead"))
            await store.save(running.lease, a_save("t2", an_entry("model.1", b"reply")))
            await store.put_input(an_input(), (a_blob(),))
            ready()
        asyncio.run(main())
        """,
        path,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.kill()
    child.communicate()

    async def check() -> None:
        store = reopened(path)
        taken = await store.take_over("t2", claimant())
        assert taken.journal == (an_entry("model.1", b"reply"),)
        assert [it.turn_id for it in await store.unfinished(NOW + 1_000)] == ["t1"]
        assert await store.approvals() == [an_approval()]
        assert await store.inputs("s1") == [an_input()]
        assert await store.blob(a_blob().digest) == a_blob().data
        assert len(await store.frame("t0.1")) == 1
        await store.close()

    asyncio.run(check())


def test_a_reopened_store_reads_the_same_data(path: Path) -> None:
    """Ours: no state is kept in memory only."""

    async def scenario() -> None:
        store = reopened(path)
        await fill(store)
        before = await everything(store)
        assert [b"one", b"two"] in before
        await store.close()
        store = reopened(path)
        assert await everything(store) == before
        repeated = await store.begin(new_turn("t9", key="k"), claimant())
        assert isinstance(repeated, Repeated)
        assert repeated.record.summary == finished()
        await store.close()

    asyncio.run(scenario())


def test_a_file_of_a_later_schema_version_is_refused(path: Path, store: SqliteSessionStore) -> None:
    """Ours: an earlier version must not write to tables that it does not understand."""
    store.database.write(
        lambda db: db.execute("UPDATE standfast_schema SET version = 99 WHERE component = 'sessions'")
    )
    with pytest.raises(SchemaTooNew, match="version 99 of the sessions tables"):
        SqliteSessionStore(path)


def test_a_closed_store_raises_and_can_be_closed_twice(path: Path) -> None:
    """Ours: no call may wait for a writer that has ended."""

    async def scenario() -> None:
        store = reopened(path)
        await take_turn(store)
        await store.close()
        await store.close()
        for use in (store.heads(), store.open_session(a_head()), store.begin(new_turn(), claimant())):
            with pytest.raises(StoreUnavailable, match="closed"):
                await use

    asyncio.run(scenario())


def test_a_forked_child_cannot_use_the_store(store: SqliteSessionStore) -> None:
    """Ours: neither a connection nor the writer thread survives a fork."""
    asyncio.run(take_turn(store))
    if (pid := os.fork()) == 0:
        code = 1
        try:
            asyncio.run(store.begin(new_turn("t2"), claimant()))
        except StoreUnavailable:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# The writer thread


def test_writes_of_many_sessions_share_transactions(store: SqliteSessionStore) -> None:
    """Ours: journal rule 7, a hundred sessions share a few syncs."""
    commits: list[int] = []
    store.database._group.connection.set_commit_hook(lambda: commits.append(1) is not None)

    async def scenario() -> None:
        await asyncio.gather(*(store.open_session(a_head(f"s{n}")) for n in range(100)))
        commits.clear()
        await asyncio.gather(*(take_turn(store, f"t{n}", f"s{n}") for n in range(100)))
        assert len(commits) < 60

    asyncio.run(scenario())


def test_a_plain_turn_takes_two_transactions(store: SqliteSessionStore) -> None:
    """Ours: each transaction costs a sync."""
    asyncio.run(take_turn(store, "t0"))
    commits: list[int] = []
    store.database._group.connection.set_commit_hook(lambda: commits.append(1) is not None)
    asyncio.run(take_turn(store, "t1"))
    assert len(commits) == 2


def test_a_write_group_wakes_its_loop_once(
    store: SqliteSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: waking a loop costs more than a statement."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        wakes: list[int] = []
        wake = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
            wakes.append(1)
            return wake(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        with store.database._group.writing:
            futures = [store.database.write_soon(lambda db, n=n: n) for n in range(50)]  # type: ignore[misc]
        assert await asyncio.gather(*futures) == list(range(50))
        assert len(wakes) == 1

    asyncio.run(scenario())


def test_a_failing_job_fails_alone_in_its_group(store: SqliteSessionStore) -> None:
    """Ours: an error in one session does not affect another, before or after it has written."""

    def half_done(db: apsw.Connection) -> None:
        db.execute("UPDATE sessions SET fence = fence + 1")
        raise LookupError("mine")

    def refused(db: apsw.Connection) -> None:
        raise SessionNotFound("s9")

    async def scenario() -> None:
        await store.open_session(a_head())
        write = store.database.write_soon
        with store.database._group.writing:
            jobs: list[Any] = [write(refused), write(half_done), write(lambda db: 3), write(refused)]
            begun = asyncio.ensure_future(store.begin(new_turn(), claimant()))
            await asyncio.sleep(0)
        results = await asyncio.gather(*jobs, begun, return_exceptions=True)
        assert [type(it) for it in results] == [SessionNotFound, LookupError, int, SessionNotFound, Begun]
        assert await store.head("s1") is not None

    asyncio.run(scenario())


def test_a_cancelled_caller_breaks_nothing(store: SqliteSessionStore) -> None:
    """Ours: a cancelled caller's write may still happen, and every other write does."""

    async def scenario() -> None:
        await store.open_session(a_head())
        await store.open_session(a_head("s2"))
        with store.database._group.writing:
            given_up = asyncio.ensure_future(store.begin(new_turn(), claimant()))
            other = asyncio.ensure_future(store.begin(new_turn("t2", "s2"), claimant()))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.sleep(0)
        assert isinstance(await other, Begun)
        assert given_up.cancelled()
        assert await store.turn("t1") is not None

    asyncio.run(scenario())


def test_closing_completes_queued_writes(path: Path) -> None:
    """Ours: every accepted write gets its result before the store closes."""

    async def scenario() -> None:
        store = reopened(path)
        await store.open_session(a_head())
        with store.database._group.writing:
            begun = asyncio.ensure_future(store.begin(new_turn(), claimant()))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(0)
        await closing
        assert isinstance(await begun, Begun)
        assert not any(it.name == "standfast-writer" and it.is_alive() for it in _threads_of(store))

    asyncio.run(scenario())


def test_a_turn_with_small_blobs_and_the_lists_of_background_work_need_no_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: starting threads and passing work to them took a millisecond of each opening of a session."""
    monkeypatch.setattr("standfast.store.sqlite.database._SLOW_S", 60.0)

    async def use(store: SqliteSessionStore) -> None:
        assert await store.unfinished(NOW) == []
        assert await store.with_queued() == []
        assert await store.triggers() == []
        assert await store.tasks(live=True) == []
        lease = (await begin(store)).lease
        save = msgspec.structs.replace(a_save("t1", an_entry("k")), blobs=(a_blob(b"small"),))
        await store.save(lease, save)
        await store.commit(lease, a_commit(blobs=(a_blob(b"also small"),)))

    async def scenario() -> None:
        store = reopened(path)
        await store.open_session(a_head())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", lambda thread: pytest.fail(thread.name))
            await use(store)
        await store.close()

    asyncio.run(scenario())


def _commit_and_keep(*entries: JournalEntry) -> TurnCommit:
    return msgspec.structs.replace(a_commit(), journal=entries)


def test_the_journal_of_a_turn_that_ran_in_this_store_is_not_read_again(store: SqliteSessionStore) -> None:
    """Ours: with forty entries, reading and checking them took longer than the rest of the commit."""
    read: list[str] = []

    async def scenario() -> None:
        lease = (await begin(store)).lease
        await store.save(lease, a_save("t1", an_entry("model.1"), a_state_entry("code", b"1")))
        await store.save(lease, a_save("t1", an_entry("tool.1"), a_state_entry("code", b"2")))
        store.database._group.connection.set_exec_trace(lambda cursor, sql, values: read.append(sql) is None)
        await store.commit(lease, _commit_and_keep(an_entry("model.2")))
        found = await store.turn_journal("t1")
        assert found is not None
        assert found.journal == (
            an_entry("model.1"), an_entry("tool.1"), a_state_entry("code", b"2"), an_entry("model.2"),
        )  # fmt: skip

    asyncio.run(scenario())
    assert len(read) > 5
    assert not [sql for sql in read if sql == JOURNAL]


def test_a_journal_that_is_not_completely_in_memory_is_read(path: Path, store: SqliteSessionStore) -> None:
    """Ours: another store of this process wrote to it, or a caller did not wait for its save."""

    async def scenario() -> None:
        other = reopened(path)
        lease = (await begin(store)).lease
        await store.save(lease, a_save("t1", an_entry("a")))
        await other.save(lease, a_save("t1", an_entry("b")))
        with store.database._group.writing:
            given_up = asyncio.ensure_future(store.save(lease, a_save("t1", an_entry("c"))))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.sleep(0)
        await store.commit(lease, _commit_and_keep(an_entry("d")))
        found = await store.turn_journal("t1")
        assert found is not None
        assert [entry.key for entry in found.journal] == ["a", "b", "c", "d"]
        await other.close()

    asyncio.run(scenario())


def _statements_of(store: SqliteSessionStore) -> list[str]:
    """Record the statements that the writer executes, by their first words."""
    found: list[str] = []
    store.database._group.connection.exec_trace = lambda cursor, sql, values: (
        found.append(" ".join(sql.split()[:2])) is None
    )
    return found


@pytest.mark.usefixtures("fast_disk")
def test_consecutive_saves_do_not_read_the_lease_again(store: SqliteSessionStore) -> None:
    """Ours: if nothing was written to the file in between, the lease is unchanged."""

    async def scenario() -> None:
        lease = (await begin(store)).lease
        await store.save(lease, a_save("t1", an_entry("a")))
        executed = _statements_of(store)
        await store.save(lease, a_save("t1", an_entry("b"), an_entry("c")))
        assert executed == ["BEGIN IMMEDIATE", "INSERT INTO", "COMMIT"]
        await store.open_session(a_head("s2"))
        executed.clear()
        await store.save(lease, a_save("t1", an_entry("d")))
        assert executed == ["BEGIN IMMEDIATE", "SELECT s.key,", "INSERT INTO", "COMMIT"]
        taken = await store.take_over("t1", claimant("w2", NOW + 10 * 60_000))
        assert [entry.key for entry in taken.journal] == ["a", "b", "c", "d"]

    asyncio.run(scenario())


@pytest.mark.usefixtures("fast_disk")
@pytest.mark.parametrize("other", ["the same store", "another store"])
def test_a_save_sees_writes_by_others_since_the_previous_save(
    path: Path, store: SqliteSessionStore, other: str
) -> None:
    """Ours: a cancellation, an injected message and the loss of the lease, from this process or another."""
    writer = store if other == "the same store" else reopened(path)

    async def scenario() -> None:
        lease = (await begin(store)).lease
        await store.save(lease, a_save("t1", an_entry("a")))
        await writer.put_input(an_input("i1", kind="inject"))
        checkpoint = msgspec.structs.replace(a_save("t1"), make_checkpoint=a_checkpoint("c"))
        saved = await store.save(lease, checkpoint)
        assert saved.checkpoint is not None
        assert b"i1" in saved.checkpoint.body
        await store.save(lease, a_save("t1", an_entry("b")))
        await writer.cancel("t1")
        assert (await store.save(lease, a_save("t1", an_entry("d")))).cancel_requested
        assert (await store.save(lease, a_save("t1", an_entry("e")))).cancel_requested
        await writer.take_over("t1", claimant("w2", NOW + 10 * 60_000))
        with pytest.raises(LeaseLost):
            await store.save(lease, a_save("t1", an_entry("f")))

    asyncio.run(scenario())


@pytest.mark.usefixtures("fast_disk")
def test_a_former_lease_holder_in_the_same_process_is_refused(
    store: SqliteSessionStore,
) -> None:
    """Bug: after a save by the turn's new holder, one under the old lease was not refused."""

    async def scenario() -> None:
        old = (await begin(store)).lease
        await store.save(old, a_save("t1", an_entry("a")))
        new = (await store.take_over("t1", claimant("w2", NOW + 10 * 60_000))).lease
        await store.save(new, a_save("t1", an_entry("b")))
        with pytest.raises(LeaseLost):
            await store.save(old, a_save("t1", an_entry("c")))
        await store.save(new, a_save("t1", an_entry("d")))
        with pytest.raises(TurnNotFound):
            await store.save(new, a_save("t2", an_entry("e")))

    asyncio.run(scenario())


@pytest.mark.usefixtures("fast_disk")
def test_after_a_failed_save_the_lease_is_read_again(path: Path, store: SqliteSessionStore) -> None:
    """Ours: after a failed commit, another process may have taken the lease."""

    async def scenario() -> None:
        lease = (await begin(store)).lease
        await store.save(lease, a_save("t1", an_entry("a")))
        connection = store.database._group.connection
        connection.set_commit_hook(lambda: True)
        with pytest.raises(StoreError):
            await store.save(lease, a_save("t1", an_entry("b")))
        connection.set_commit_hook(None)
        await reopened(path).take_over("t1", claimant("w2", NOW + 10 * 60_000))
        with pytest.raises(LeaseLost):
            await store.save(lease, a_save("t1", an_entry("b")))

    asyncio.run(scenario())


def test_a_turn_that_fails_to_begin_is_not_counted_as_running(store: SqliteSessionStore) -> None:
    """Ours: other turns would wait for it at the end of every round."""

    async def scenario() -> None:
        await begin(store)
        running = dict(store._running)
        with pytest.raises(SessionNotFound):
            await store.begin(new_turn("t2", "s9"), claimant())
        with pytest.raises(SessionBusy):
            await store.begin(new_turn("t2"), claimant("w2"))
        assert store._running == running

    asyncio.run(scenario())


def _threads_of(store: SqliteSessionStore) -> list[threading.Thread]:
    thread = store.database._group._thread
    return [] if thread is None else [thread]


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commits count as fast, whatever this machine's disk."""
    monkeypatch.setattr("standfast.store.sqlite.database._SLOW_S", 60.0)


@pytest.mark.usefixtures("fast_disk")
def test_a_lone_turn_is_committed_on_the_loops_thread(store: SqliteSessionStore) -> None:
    """Ours: two thread switches and two wake-ups cost more than a commit to a fast disk."""

    async def scenario() -> None:
        await take_turn(store, "t0")
        rounds: list[int] = []
        asyncio.get_running_loop().call_soon(rounds.append, 1)
        await take_turn(store, "t1")
        assert not rounds

    asyncio.run(scenario())
    assert not _threads_of(store)


@pytest.mark.usefixtures("fast_disk")
def test_concurrent_turns_share_the_transactions_of_a_loop_round(store: SqliteSessionStore) -> None:
    """Ours: writes of all tasks in one round of the loop are committed at its end, on the loop's thread."""
    commits: list[int] = []

    async def scenario() -> None:
        for number in range(20):
            await store.open_session(a_head(f"s{number}"))
        store.database._group.connection.set_commit_hook(lambda: commits.append(1) is not None)
        await asyncio.gather(*(take_turn(store, f"t{n}", f"s{n}") for n in range(20)))

    asyncio.run(scenario())
    assert len(commits) <= 6
    assert not _threads_of(store)


@pytest.mark.usefixtures("fast_disk")
def test_a_task_that_ends_the_loop_leaves_no_write_of_its_group_without_a_result(
    store: SqliteSessionStore,
) -> None:
    """Ours: the tasks of a group continue within one callback, which `SystemExit` leaves early."""
    loop = asyncio.new_event_loop()

    async def leave() -> None:
        await take_turn(store, "t0", "s0")
        raise SystemExit

    async def start() -> list[asyncio.Task[Any]]:
        for number in range(4):
            await store.open_session(a_head(f"s{number}"))
        works = [take_turn(store, "t1", "s1"), leave(), *(take_turn(store, f"t{n}", f"s{n}") for n in (2, 3))]
        return [loop.create_task(work) for work in works]

    try:
        first, leaving, *others = loop.run_until_complete(start())
        with pytest.raises(SystemExit):
            loop.run_until_complete(leaving)
        assert not any(task.done() for task in others)
        loop.run_until_complete(asyncio.wait_for(asyncio.gather(first, *others), 30))
    finally:
        loop.close()


def test_a_loop_is_not_blocked_by_another_process_that_writes(store: SqliteSessionStore, path: Path) -> None:
    """Ours: the writer thread waits for the lock; the loop's other tasks run meanwhile."""

    async def scenario() -> None:
        await store.open_session(a_head())
        other = open_checked(str(path))
        other.execute("BEGIN IMMEDIATE")
        begun = asyncio.ensure_future(store.begin(new_turn(), claimant()))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not begun.done()
        other.execute("COMMIT")
        other.close()
        assert isinstance(await begun, Begun)

    asyncio.run(scenario())


def test_a_slow_disk_is_left_to_the_writer_thread(store: SqliteSessionStore) -> None:
    """Ours: a loop serves other sessions while a commit takes a long time."""
    asyncio.run(store.open_session(a_head()))
    store.database._group._commit_s = 1.0
    asyncio.run(take_turn(store))
    assert _threads_of(store)


@pytest.mark.usefixtures("fast_disk")
def test_the_write_ahead_log_does_not_grow_without_bounds(store: SqliteSessionStore, path: Path) -> None:
    """Bug: after the second checkpoint, the log was copied to the file less and less often."""

    async def scenario() -> None:
        await store.open_session(a_head())
        for number in range(900):
            await take_turn(store, f"t{number}")
            if number % 50 == 0:
                await asyncio.sleep(0.02)  # the writer thread copies the log

    asyncio.run(scenario())
    assert path.with_name(path.name + "-wal").stat().st_size < 8 << 20


def test_a_closed_loop_does_not_stop_the_writer(store: SqliteSessionStore) -> None:
    """Ours: rule 4 of the writer, a caller's closed loop does not stop the writer thread."""

    async def leave() -> None:
        store.database.write_soon(lambda db: 1)

    writing = store.database._group.writing
    with writing:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave())
        loop.close()
    asyncio.run(take_turn(store))


def test_blocking_and_awaiting_callers_share_the_writer(store: SqliteSessionStore) -> None:
    """Ours: the sandbox's store blocks and the session store awaits, on the same file."""

    async def scenario() -> None:
        await store.open_session(a_head())
        blocking = [
            asyncio.to_thread(store.database.write, lambda db, n=n: db.execute("SELECT ?", (n,)).get)
            for n in range(20)
        ]
        awaiting = [take_turn(store, f"t{n}", f"u{n}") for n in range(20)]
        numbers, heads = await asyncio.gather(asyncio.gather(*blocking), asyncio.gather(*awaiting))
        assert numbers == list(range(20))
        assert all(isinstance(head, SessionHead) for head in heads)

    asyncio.run(scenario())


# Damage

_FOUND_BY = {
    # Columns that rows are found by: with another value the row is missing, or elsewhere in a list.
    ("waits", "turn_id"),
    ("inputs", "session"),
    ("inputs", "seq"),
    ("blobs", "digest"),
    ("turns", "key"),
    ("segments", "key"),
    ("states", "key"),
    ("plugin_records", "plugin_id"),
    ("plugin_records", "scope"),
    ("snapshots", "snapshot_id"),
    ("approvals", "approval_id"),
    ("approvals", "run_id"),
    ("sessions", "parent"),
    ("tasks", "seq"),
    ("occurrences", "source"),
    ("occurrences", "key"),
    ("clocks", "boot"),
}


def columns() -> list[tuple[str, str]]:
    """Return the columns of all tables, except those that rows are looked up by."""
    with contextlib.closing(SqliteConnection(":memory:")) as db:
        migrate_all(db, COMPONENTS, Path(":memory:"))
        tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        pairs = [
            (table, str(column))
            for table in tables
            if table not in ("sqlite_sequence", "standfast_schema")
            for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
        ]
    return [pair for pair in pairs if pair not in _FOUND_BY]


def damaged(value: object) -> object:
    """Return *value* with one bit flipped; None stays None."""
    match value:
        case int():
            return value ^ (1 << 20)
        case str():
            return value[:-1] + chr(ord(value[-1]) ^ 0x10) if value else "x"
        case bytes():
            middle = len(value) // 2
            return value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :] if value else b"x"
        case _:
            return None


@pytest.mark.slow
@pytest.mark.sampled(3, each="table")
@pytest.mark.parametrize(("table", "column"), columns())
def test_a_flipped_bit_is_detected_when_the_record_is_read(path: Path, table: str, column: str) -> None:
    """Ours: journal rule 6, an error that names the record, never a wrong answer."""

    async def scenario() -> None:
        store = reopened(path)
        await fill(store)
        key = {"waits": "wait_id", "occurrences": "key", "clocks": "boot"}.get(table, "rowid")
        db = open_checked(str(path))
        db.execute("DROP INDEX turns_open")  # the index would reject the damage itself
        for row, value in db.execute(f'SELECT {key}, "{column}" FROM {table}').fetchall():
            if value is None:
                continue
            change = f'UPDATE {table} SET "{column}" = ?2 WHERE "{column}" IS ?1 AND ({key} = ?3 OR ?4)'
            moves = column in ("wait_id", "key", "seq")
            db.execute(change, (value, damaged(value), row, moves))
            with pytest.raises(RecordCorrupt):
                await read_and_take_over(store)
            db.execute(change, (damaged(value), value, row, moves))
        await everything(store)
        db.close()
        await store.close()

    asyncio.run(scenario())


def test_a_link_to_a_misplaced_segment_is_detected(path: Path, store: SqliteSessionStore) -> None:
    """Ours: a pruned parent is not an error, but an existing one must match."""

    async def scenario() -> None:
        await take_turn(store, "t1")
        await take_turn(store, "t2")
        store.database.write(lambda db: db.execute("UPDATE segments SET key = 99 WHERE segment_id = 't1'"))
        for read in (store.frame("t2.1"), store.path("t2.1")):
            with pytest.raises(RecordCorrupt, match="segment t2"):
                await read

    asyncio.run(scenario())


def test_a_damaged_session_can_be_deleted(store: SqliteSessionStore) -> None:
    """Ours: an operator can always get rid of a damaged session."""

    async def scenario() -> None:
        await fill(store)
        tables = "sessions segments states turns journal waits inputs tasks triggers occurrences"
        for table in tables.split():
            store.database.write(lambda db, table=table: db.execute(f"UPDATE {table} SET digest = x'00'"))  # type: ignore[misc]
        with pytest.raises(RecordCorrupt):
            await store.heads()
        assert await store.delete_session("s1") is True
        assert await store.delete_session("s2") is True
        assert (await store.heads(), await store.tasks(), await store.triggers()) == ([], [], [])
        await store.prune(PruneRequest(sessions_before_ms=NOW + 1))
        assert await store.occur(an_occurrence(), ()) is True
        await take_turn(store, "t0")

    asyncio.run(scenario())


# A full disk


def test_a_full_disk_is_an_error_and_writes_nothing(store: SqliteSessionStore) -> None:
    """Ours: there is no partial commit, and the store works again once there is space."""

    async def scenario() -> None:
        await take_turn(store, "t0")
        begun = await begin(store, "t1")
        writer = store.database._group.connection
        pages = writer.execute("PRAGMA page_count").get
        writer.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        large = a_save("t1", *(an_entry(f"k{n}", b"x" * 5_000) for n in range(10)))
        with pytest.raises(StoreUnavailable, match="full"):
            await store.save(begun.lease, large)
        text = secrets.token_hex(50_000)  # incompressible, so that it does not fit into the existing page
        commit = a_commit("t1", entries=(said(text), replied()))
        with pytest.raises(StoreUnavailable, match="full"):
            await store.commit(begun.lease, commit)
        head, record = await store.head("s1"), await store.turn("t1")
        assert head == begun.head
        assert record == begun.record
        writer.execute("PRAGMA max_page_count = 1000000").fetchall()
        await store.save(begun.lease, large)
        assert isinstance(await store.commit(begun.lease, commit), SessionHead)

    asyncio.run(scenario())


def test_a_disk_that_fails_raises_errors_until_it_works_again(path: Path) -> None:
    """Ours: I/O errors are typed, and every acknowledged turn is present afterwards."""
    script = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        async def main():
            store = SqliteSessionStore(sys.argv[1])
            ready()
            await take_turn(store, "t0")
            resource.setrlimit(resource.RLIMIT_FSIZE, (370_000, hard))
            done, failed = ["t0"], 0
            for number in range(1, 300):
                try:
                    await take_turn(store, f"t{number}", f"s{number}")
                    done.append(f"t{number}")
                except StoreUnavailable:
                    failed += 1
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            await take_turn(store, "last")
            await store.close()
            print(failed > 0, *done, "last")
        asyncio.run(main())
    """
    ((failed, *done),) = [said_by_one.split() for said_by_one in outputs(script, 1, path)]
    assert failed == "True"

    async def check() -> None:
        store = reopened(path)
        for turn_id in done:
            assert len(await store.frame(f"{turn_id}.1")) >= 1
        await store.close()

    asyncio.run(check())


# Several processes


@pytest.mark.slow
def test_several_processes_take_turns_on_one_session(path: Path) -> None:
    """Ours: one writer per session, no `database is locked`, and nothing is lost."""
    script = """
        async def main():
            store = SqliteSessionStore(sys.argv[1])
            me = sys.argv[2]
            await store.open_session(a_head())
            ready()
            done = 0
            while done < 25:
                try:
                    begun = await store.begin(new_turn(f"t{me}_{done}"), claimant(f"w{me}"))
                except SessionBusy:
                    await asyncio.sleep(0)
                    continue
                head = await store.commit(begun.lease, a_commit(begun.record.turn_id))
                assert head.depth == begun.head.depth + 2
                done += 1
            await store.close()
        asyncio.run(main())
    """
    outputs(script, 4, path)

    async def check() -> None:
        store = reopened(path)
        head = await store.head("s1")
        assert head is not None
        assert (head.depth, head.revision) == (200, 100)
        assert head.leaf is not None
        assert len(await store.path(head.leaf)) == 100
        await store.close()

    asyncio.run(check())


@pytest.mark.slow
def test_processes_with_separate_sessions_do_not_starve(path: Path) -> None:
    """Ours: the writers of several processes share one file fairly."""
    script = """
        import time
        async def main():
            store = SqliteSessionStore(sys.argv[1])
            me = sys.argv[2]
            ready()
            done, until = 0, time.monotonic() + 1.5
            while time.monotonic() < until:
                await asyncio.gather(
                    *(take_turn(store, f"t{me}_{done}_{n}", f"s{me}_{n}") for n in range(5))
                )
                done += 5
            await store.close()
            print(done)
        asyncio.run(main())
    """
    counts = list(map(int, outputs(script, 4, path)))
    assert min(counts) > 0
    assert max(counts) < 20 * min(counts)


def test_a_worker_whose_turn_another_process_took_over_cannot_write(path: Path) -> None:
    """Ours: the fencing number is enforced across processes."""

    async def scenario() -> None:
        store = reopened(path)
        begun = await begin(store, claimed_by=claimant("dead"))
        script = """
            async def main():
                store = SqliteSessionStore(sys.argv[1], owner_is_dead=is_dead)
                ready()
                taken = await store.take_over("t1", claimant("w2"))
                await store.save(taken.lease, a_save("t1", an_entry("mine")))
                await store.close()
            asyncio.run(main())
        """
        await asyncio.to_thread(outputs, script, 1, path)
        for write in (
            store.save(begun.lease, a_save("t1", an_entry("late"))),
            store.commit(begun.lease, a_commit()),
            store.park(begun.lease, Save(turn_id="t1", entries=()), waiting(a_wait("tick"))),
        ):
            with pytest.raises(LeaseLost):
                await write
        await store.close()

    asyncio.run(scenario())


# Size


def test_earlier_frames_are_not_read(store: SqliteSessionStore) -> None:
    """Ours: a turn does not load the whole history, so damage there does not affect it."""

    async def scenario() -> None:
        for number in range(50):
            await take_turn(store, f"t{number}")
        await take_turn(store, "open", entries=(said("long"), opened("f2")))
        await take_turn(store, "last")
        store.database.write(
            lambda db: db.execute("UPDATE segments SET body = x'00' WHERE segment_id GLOB 't[0-9]*'")
        )
        assert [it.segment_id for it in await store.frame("last.1")] == ["open", "last"]
        assert len(await store.frame("last.1", known="open.1")) == 1
        await take_turn(store, "more")
        await store.fork("s1", "s2", None, NOW)
        with pytest.raises(RecordCorrupt):
            await store.path("last.1")

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_turn_takes_the_same_space_however_many_turns_there_are(path: Path) -> None:
    """Ours: storage does not grow with the square of the number of turns."""

    async def grow(first: int) -> None:
        store = reopened(path)
        for number in range(first, first + 500):
            entries = (said("u" * 200), replied("a" * 400))
            begun = await begin(store, f"t_{number:030x}")
            commit = a_commit(f"t_{number:030x}", finished("a" * 400), entries)
            await store.commit(begun.lease, commit)
        await store.close()

    sizes: list[int] = []
    for first in (0, 500):
        asyncio.run(grow(first))
        sizes.append(path.stat().st_size)
    assert sizes[1] / 1_000 < 1_700
    assert sizes[1] - sizes[0] < 1.1 * sizes[0]


def test_pruning_frees_disk_space(path: Path, store: SqliteSessionStore) -> None:
    """Ours: retention must make the file smaller."""

    async def scenario() -> None:
        for number in range(40):
            await take_turn(store, f"t{number}", entries=(said("x" * 20_000), replied()))
        await take_turn(store, "open", entries=(said(), opened("f2")))
        blob = a_blob(b"y" * 200_000)
        await store.put_input(an_input(), (blob,))
        await store.withdraw_input("i1")
        before = store.database.bytes_on_disk()
        pruned = await store.prune(PruneRequest(frames=True))
        assert (pruned.segments, pruned.blobs) == (40, 1)
        assert pruned.bytes_freed == before - store.database.bytes_on_disk()
        assert pruned.bytes_freed > 900_000
        assert store.database.bytes_on_disk() < 250_000
        assert (await take_turn(store, "more")).depth == 84

    asyncio.run(scenario())


def test_deleting_the_last_fork_deletes_the_shared_history(store: SqliteSessionStore) -> None:
    """Ours: history that no session can reach any more is deleted."""

    async def scenario() -> None:
        await take_turn(store, "t1")
        await take_turn(store, "t2")
        await store.fork("s1", "s2", "t1.1", NOW)
        await take_turn(store, "t3", "s2")
        await store.delete_session("s1")
        assert await store.path("t2.1") == ()
        assert len(await store.path("t3.1")) == 2
        await store.delete_session("s2")

    asyncio.run(scenario())
    assert store.database.read(lambda db: db.execute("SELECT count(*) FROM segments").get) == 0
