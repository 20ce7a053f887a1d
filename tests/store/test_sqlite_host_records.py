"""Children, tasks and triggers in a SQLite file: other processes, kills, cost, damage, and older files."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import apsw
import interpreters
import pytest

from standfast.errors import RecordCorrupt
from standfast.model.outcome import Completed
from standfast.model.task import TaskState
from standfast.ports.session_store import Repeated
from standfast.store.memory_sessions import MemorySessionStore
from standfast.store.sqlite import schema
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_store_children import a_child
from standfast.testing.session_store_tasks import a_task, a_trigger, an_occurrence, becomes, delivery, ids
from standfast.testing.session_values import (
    NOW,
    a_blob,
    a_commit,
    a_head,
    a_state_entry,
    an_approval,
    an_entry,
    an_input,
    claimant,
    finished,
    is_dead,
    new_turn,
    take_turn,
)

VERSION_2 = Path(__file__).parent / "files" / "sessions_version_2.sql"
"""The rows of a file that the second version wrote."""


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


_PRELUDE = """
import asyncio, sys
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_store_tasks import *
from standfast.testing.session_store_tasks import *
from standfast.testing.session_values import *
store = SqliteSessionStore(sys.argv[1])
def tell(*words):
    print(*words, flush=True)
"""


def start(script: str, path: Path) -> subprocess.Popen[str]:
    """Start another process that runs *script* on the file; it prints `ready` when it waits for a line."""
    source = _PRELUDE + textwrap.dedent(script)
    command = [sys.executable, "-c", source, str(path)]
    return interpreters.Interpreter(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def release_together(children: list[subprocess.Popen[str]]) -> None:
    """Wait until all processes are ready, then let them continue at once."""
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def read_lines_then_kill(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the output of a process that is killed in the middle of its work after *count* lines.

    `communicate` would lose the lines that `readline` has read ahead.
    """
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    process.kill()
    rest = process.stdout.read().splitlines()
    process.communicate()
    return [line.strip() for line in (*lines, *rest)]


# Several processes


@pytest.mark.slow
def test_an_occurrence_reported_by_several_processes_is_delivered_once(path: Path) -> None:
    """Ours: each occurrence is delivered exactly once, whichever process reports it first."""
    script = """
        async def main():
            await store.open_session(a_head())
            tell("ready")
            sys.stdin.readline()
            told = [f"k{number}" for number in range(1_000)]
            heard = await asyncio.gather(
                *(store.occur(an_occurrence(key), (delivery(key),)) for key in told for _ in range(2))
            )
            tell(sum(heard))
            await store.close()
        asyncio.run(main())
    """
    children = [start(script, path) for _ in range(2)]
    release_together(children)
    heard = [int(process.communicate(timeout=120)[0]) for process in children]
    assert sum(heard) == 1_000

    async def check() -> None:
        store = SqliteSessionStore(path)
        found = [it.input_id for it in await store.inputs("s1")]
        assert sorted(found) == sorted(f"occ_s1_k{number}" for number in range(1_000))
        await store.close()

    asyncio.run(check())


@pytest.mark.slow
def test_an_occurrence_of_a_source_that_is_killed_and_restarted_is_delivered_once(path: Path) -> None:
    """Ours: an occurrence and its inputs are on disk together, before the source gets an acknowledgement."""
    script = """
        async def say(number):
            await store.occur(an_occurrence(f"k{number}"), (delivery(f"k{number}"),))
            tell(f"occ_s1_k{number}")
        async def main():
            await store.open_session(a_head())
            for first in range(0, 1_000_000, 20):
                await asyncio.gather(*(say(number) for number in range(first, first + 20)))
        asyncio.run(main())
    """
    told = read_lines_then_kill(start(script, path), 100)

    async def check() -> None:
        store = SqliteSessionStore(path)
        there = {it.input_id for it in await store.inputs("s1")}
        assert set(told) <= there
        count = len(told) + 100
        for number in range(count):
            new = await store.occur(an_occurrence(f"k{number}"), (delivery(f"k{number}"),))
            assert new is (delivery(f"k{number}").input_id not in there)
        assert len(await store.inputs("s1")) == max(count, len(there))
        await store.close()

    asyncio.run(check())


@pytest.mark.slow
def test_tasks_survive_a_kill(path: Path) -> None:
    """Ours: a process that recovers finds every acknowledged task in its acknowledged state."""
    script = """
        async def main():
            await store.open_session(a_head())
            for number in range(1_000_000):
                await store.add_task(a_task(f"n{number}"))
                tell(f"n{number} running")
                if number % 2:
                    await store.change_task("s1", f"n{number}", becomes(TaskState.COMPLETED))
                    tell(f"n{number} completed")
        asyncio.run(main())
    """
    last = dict(line.split() for line in read_lines_then_kill(start(script, path), 100))

    async def check() -> None:
        store = SqliteSessionStore(path)
        found = {task.id: task.state.value for task in await store.tasks()}
        # The last change may have been written although the process could not report it.
        behind = {name for name in last.keys() | found.keys() if last.get(name) != found.get(name)}
        assert len(behind) <= 1
        live = {task.id for task in await store.tasks(live=True)}
        assert live == {name for name, state in found.items() if state == "running"}
        await store.close()

    asyncio.run(check())


# Cost


@pytest.mark.slow
def test_ten_thousand_occurrences_reported_twice_share_transactions(store: SqliteSessionStore) -> None:
    """Ours: a burst of occurrences costs a few syncs, and each occurrence is delivered once."""
    commits: list[int] = []

    async def scenario() -> None:
        await store.open_session(a_head())
        store.database._group.connection.set_commit_hook(lambda: commits.append(1) is not None)
        told = [f"k{number}" for number in range(10_000)] * 2
        heard = await asyncio.gather(*(store.occur(an_occurrence(key), (delivery(key),)) for key in told))
        assert sum(heard) == 10_000
        assert len(await store.inputs("s1")) == 10_000
        assert await store.with_queued() == ["s1"]

    asyncio.run(scenario())
    assert len(commits) < 2_000


def test_a_thousand_tasks_are_added_and_cancelled_in_a_few_transactions(store: SqliteSessionStore) -> None:
    """Ours: registering, listing and cancelling a thousand tasks stays cheap."""
    commits: list[int] = []
    names = [f"n{number}" for number in range(1_000)]

    async def scenario() -> None:
        await store.open_session(a_head())
        store.database._group.connection.set_commit_hook(lambda: commits.append(1) is not None)
        await asyncio.gather(*(store.add_task(a_task(name)) for name in names))
        assert [it.id for it in await store.tasks(session_id="s1", live=True)] == names
        cancel = becomes(TaskState.CANCELLED)
        await asyncio.gather(*(store.change_task("s1", name, cancel) for name in names))
        assert await store.tasks(live=True) == []
        await asyncio.gather(*(store.remove_task("s1", name) for name in names))
        assert await store.tasks() == []

    asyncio.run(scenario())
    assert len(commits) < 300


def test_listing_some_records_reads_no_others(store: SqliteSessionStore) -> None:
    """Ours: the cost of a list depends on its length, and damage elsewhere does not affect it."""

    async def scenario() -> None:
        for head in (a_head("s1"), a_child("c1"), a_head("other"), a_child("c2", "other")):
            await store.open_session(head)
        await store.add_task(a_task("over", state=TaskState.COMPLETED))
        await store.add_task(a_task("live"))
        await store.add_task(a_task("live", "other"))
        change(store, "UPDATE tasks SET digest = x'00' WHERE task_id = 'over'")
        assert len(await store.tasks(live=True)) == 2
        assert ids(await store.tasks(session_id="s1", live=True)) == [("s1", "live")]
        assert ids(await store.tasks(session_id="other")) == [("other", "live")]
        with pytest.raises(RecordCorrupt, match="task over"):
            await store.tasks(session_id="s1")
        change(store, "UPDATE sessions SET digest = x'00' WHERE id = 'other'")
        change(store, "UPDATE sessions SET digest = x'00' WHERE parent = 'other'")
        assert await store.children("s1") == [a_child("c1")]

    asyncio.run(scenario())


# Damage


def test_a_child_under_the_wrong_parent_is_detected(store: SqliteSessionStore) -> None:
    """Ours: the parent column must agree with the charter, or the record is damaged."""

    async def scenario() -> None:
        await store.open_session(a_child("c1"))
        change(store, "UPDATE sessions SET parent = 's2'")
        with pytest.raises(RecordCorrupt, match="session c1"):
            await store.children("s2")

    asyncio.run(scenario())


def test_errors_about_damaged_records_name_the_record(store: SqliteSessionStore) -> None:
    """Ours: journal rule 6, no record is changed, moved or delivered because of a damaged one."""

    async def scenario() -> None:
        await store.open_session(a_head("s1"))
        await store.open_session(a_head("s2"))
        await store.add_task(a_task())
        await store.put_trigger(a_trigger())
        await store.occur(an_occurrence(), ())
        for table in ("tasks", "triggers", "occurrences"):
            change(store, f"UPDATE {table} SET digest = x'00'")
        damaged = {
            "task watch": (
                store.task("s1", "watch"),
                store.add_task(a_task()),
                store.change_task("s1", "watch", becomes(TaskState.IDLE)),
                store.move_tasks("s1", "s2", ("watch",), NOW),
            ),
            "trigger nightly": (
                store.trigger("nightly"),
                store.occur(an_occurrence("k2"), (delivery("k2"),), a_trigger(next_at=NOW + 1)),
            ),
            "occurrence k1 of source/nightly": (store.occur(an_occurrence(), (delivery(),)),),
        }
        for name, uses in damaged.items():
            for use in uses:
                with pytest.raises(RecordCorrupt, match=name):
                    await use
        assert await store.inputs("s1") == []
        assert await store.remove_task("s1", "watch") is True
        await store.put_trigger(a_trigger())
        assert await store.trigger("nightly") == a_trigger()

    asyncio.run(scenario())


# Forks as children


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_fork_with_a_charter_is_a_child(path: Path, kind: str) -> None:
    """Seed: a child may begin with the history of the session that created it."""

    async def scenario() -> None:
        store = MemorySessionStore() if kind == "memory" else SqliteSessionStore(path)
        await take_turn(store)
        charter = a_child("c1").charter
        fork = await store.fork("s1", "c1", None, NOW, charter=charter)
        assert (fork.charter, fork.leaf) == (charter, "t1.1")
        assert await store.children("s1") == [fork]
        assert await store.head("c1") == fork
        await store.delete_session("c1")
        assert await store.children("s1") == []
        await store.close()

    asyncio.run(scenario())


# Older files


def write_version_2(path: Path) -> None:
    """Create a file as the second version wrote it."""
    with contextlib.closing(apsw.Connection(str(path))) as db, db:
        db.execute(
            "CREATE TABLE standfast_schema (component TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT"
        )
        for migration in (schema.SANDBOX_BEFORE[0], *schema.SESSIONS[:2]):
            db.execute(str(migration))
        db.execute(VERSION_2.read_text())


def test_a_file_of_the_second_version_stays_usable(path: Path) -> None:
    """Ours: an upgrade loses nothing; sessions, states, turns, waits, inputs and blobs are unchanged."""
    write_version_2(path)

    async def scenario() -> None:
        store = SqliteSessionStore(path, owner_is_dead=is_dead)
        assert {it.session_id: (it.leaf, it.state, it.charter) for it in await store.heads()} == {
            "s1": ("t0.1", "state_2", None),
            "s2": (None, None, None),
            "s3": ("t3.1", "state_3", None),
        }
        assert [await store.state(f"state_{number}") for number in (1, 2, 3)] == [b"one", b"two", b"three"]
        assert await store.plugin_record("notes", "all", "k") == b"kept"
        repeated = await store.begin(new_turn("t9", key="k"), claimant())
        assert isinstance(repeated, Repeated)
        assert repeated.record.summary == finished()
        assert await store.inputs("s1") == [an_input("i1")]
        assert await store.blob(a_blob().digest) == a_blob().data
        assert await store.approvals() == [an_approval()]
        assert dict(await store.ended_waits("t1", NOW)) == {"cpl_t1.x": Completed(value="done")}
        taken = await store.take_over("t2", claimant())
        entries = (an_entry("model.1"), an_entry("tool.1", b"result"), a_state_entry("plugin.p"))
        assert taken.journal == entries
        await store.commit(taken.lease, a_commit("t2"))
        await store.close()

    asyncio.run(scenario())


def test_sessions_of_the_second_version_can_use_the_new_features(path: Path) -> None:
    """Ours: children, tasks, triggers and queued input work for sessions from before the upgrade."""
    write_version_2(path)

    async def scenario() -> None:
        store = SqliteSessionStore(path, owner_is_dead=is_dead)
        assert await store.with_queued() == []
        taken = await store.take_over("t1", claimant())
        await store.commit(taken.lease, a_commit("t1"))
        assert await store.with_queued() == ["s1"]
        await store.open_session(a_child("c1"))
        assert await store.children("s1") == [a_child("c1")]
        await store.add_task(a_task())
        await store.put_trigger(a_trigger())
        assert await store.occur(an_occurrence(), (delivery(),)) is True
        await store.delete_session("s1")
        assert (await store.tasks(), await store.triggers()) == ([], [])
        await store.close()

    asyncio.run(scenario())
