"""Moving a store between SQLite and PostgreSQL: complete, resumable and verified."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import InvalidArgument, RecordCorrupt, SessionBusy, StoreError
from standfast.ports.session_store import Save
from standfast.store.copying import copy_store
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.store.sql import records
from standfast.store.sql.tables import TABLES
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.session_values import (
    NOW,
    a_blob,
    a_commit,
    a_head,
    a_save,
    a_state,
    a_wait,
    an_approval,
    an_entry,
    an_input,
    begin,
    take_turn,
    waiting,
)

Store = SqliteSessionStore | PostgresSessionStore
Make = Callable[[], Store]


@pytest.fixture
def makers(tmp_path: Path, postgres: PostgresServer) -> Iterator[tuple[Make, Make]]:
    """Return functions that make a store in SQLite and one in PostgreSQL."""
    made: list[Store] = []

    def sqlite() -> Store:
        made.append(SqliteSessionStore(tmp_path / f"{len(made)}.db"))
        return made[-1]

    def in_postgres() -> Store:
        made.append(PostgresSessionStore(postgres.new_url(), database_clock=False))
        return made[-1]

    yield sqlite, in_postgres
    for store in made:
        asyncio.run(store.close())


async def fill(store: Store) -> None:
    """Store something in every table."""
    await store.open_session(a_head("s1"))
    for n in range(5):
        await take_turn(store, f"t{n}", "s1")
    await store.fork("s1", "fork", None, NOW)
    blob = a_blob()
    await store.set_state("s1", a_state(b"{}", blob), (blob,), NOW)
    await store.open_session(a_head("s2"))
    lease = (await begin(store, "w1", "s2")).lease
    save = Save(
        turn_id="w1",
        entries=(an_entry("k1"), an_entry("k2", b"\0\xff")),
        waits=(a_wait("tick", due_in_ms=10_000_000),),
        approvals=(an_approval("a1", "w1"),),
    )
    await store.park(lease, save, waiting(a_wait("tick", due_in_ms=10_000_000)))
    await store.put_input(an_input("i1", session_id="s1"))
    await store.put_plugin_record("p", "scope", "name", b"body", NOW)
    await store.put_snapshot("snap", "s1", b"data", NOW)


def copy(source: Store, target: Store, copy_key: Callable[[], None] = lambda: None) -> tuple[int, int]:
    databases = source.database, target.database
    done = copy_store(*databases, "source", NOW, lambda owner: False, copy_key)
    return done.rows, done.copied


def contents(store: Store) -> dict[str, list[object]]:
    return {
        table.name: sorted(
            store.database.read_consistently(
                lambda db, t=table: db.execute(f"SELECT {', '.join(t.columns)} FROM {t.name}").fetchall()  # type: ignore[misc]
            ),
            key=str,
        )
        for table in TABLES
    }


@pytest.mark.parametrize("there_and_back", [False, True])
def test_a_copy_has_every_row_and_continues_where_the_source_stopped(
    makers: tuple[Make, Make], there_and_back: bool
) -> None:
    """Ours: a store can move from a SQLite file to PostgreSQL and back."""
    first, second = makers
    source, target = first(), second()
    asyncio.run(fill(source))
    rows, copied = copy(source, target)
    assert rows == copied > 15
    if there_and_back:
        source, target = target, first()
        assert copy(source, target) == (rows, rows)
    assert contents(source) == contents(target)
    assert copy(source, first() if not there_and_back else second())[0] == rows

    async def continues() -> None:
        lease = (await begin(target, "w2", "s1")).lease
        await target.save(lease, a_save("w2", an_entry("k")))
        head = await target.commit(lease, a_commit("w2"))
        assert head.depth == 12
        assert [it.input_id for it in await target.inputs("s1")] == ["i1"]
        await target.put_input(an_input("i2", session_id="s1"))
        await target.open_session(a_head("new"))
        assert await target.state((await target.set_state("new", a_state(b"x"), (), NOW)).state or "") == b"x"

    asyncio.run(continues())


def test_an_interrupted_copy_is_resumed(makers: tuple[Make, Make], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: rows already copied are not copied again unless they have changed meanwhile."""
    first, second = makers
    source, target = first(), second()
    asyncio.run(fill(source))
    write = target.database.write
    left = [4]

    def write_a_little(job: object, scope: object = None) -> object:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return write(job, scope)  # type: ignore[arg-type]

    monkeypatch.setattr(target.database, "write", write_a_little)
    with pytest.raises(KeyboardInterrupt):
        copy(source, target)
    monkeypatch.undo()
    with pytest.raises(InvalidArgument, match="unfinished copy of source"):
        copy_store(source.database, target.database, "another", NOW, lambda owner: False)
    asyncio.run(source.put_input(an_input("late", session_id="s1")))
    asyncio.run(source.describe("s1", agent="other", model="m", host={}))
    rows, copied = copy(source, target)
    assert 0 < copied < rows
    assert contents(source) == contents(target)


def test_a_copy_can_be_resumed_wherever_it_was_interrupted(
    makers: tuple[Make, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a copy interrupted at its end could not be resumed, and lacked the key for snapshots.

    The source still had the folder of its objects, so that pruning it deleted those of the target.
    """
    first, _ = makers
    source = first()
    asyncio.run(fill(source))

    def folder() -> bytes | None:
        return source.database.read_consistently(lambda db: records.plugin_record(db, *records.FOLDER))

    for last in itertools.count(1):
        source.database.write(lambda db: records.own_folder(db, "objects"))
        target, done = first(), [0]
        steps: list[str] = []

        def step(what: str, work: Callable[..., Any], *given: Any) -> Any:
            done[0] += 1  # noqa: B023
            if done[0] == last:  # noqa: B023
                raise KeyboardInterrupt
            steps.append(what)  # noqa: B023
            return work(*given)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            for store in (source, target):
                patch.setattr(store.database, "write", partial(step, "write", store.database.write))
            copy(source, target, partial(step, "key", int))
        if done[0] < last:
            break
        copy(source, target, lambda: steps.append("key"))  # noqa: B023
        assert "key" in steps
        assert folder() is None
        assert contents(source) == contents(target)
    assert last > 10


def test_a_target_that_has_its_own_sessions_is_refused(makers: tuple[Make, Make]) -> None:
    """Ours: a copy never deletes rows that it did not write."""
    first, second = makers
    source, target = first(), second()
    asyncio.run(fill(source))
    asyncio.run(target.open_session(a_head("mine")))
    with pytest.raises(InvalidArgument, match="the target already has sessions"):
        copy(source, target)
    copy(source, finished := second())
    with pytest.raises(InvalidArgument, match="the target already has sessions"):
        copy(source, finished)


def test_a_source_that_is_in_use_or_damaged_is_refused(makers: tuple[Make, Make]) -> None:
    """Ours: a copy is complete and verified, or it fails."""
    first, second = makers
    source, target = first(), second()
    asyncio.run(fill(source))
    asyncio.run(begin(source, "running", "s1"))
    with pytest.raises(SessionBusy):
        copy(source, target)
    assert copy_store(source.database, second().database, "source", NOW, lambda owner: True).rows > 15
    damaged = first()
    asyncio.run(fill(damaged))
    damaged.database.write(lambda db: db.execute("UPDATE segments SET depth = 77 WHERE key = 1") and None)
    with pytest.raises((RecordCorrupt, StoreError)):
        copy(damaged, second())
