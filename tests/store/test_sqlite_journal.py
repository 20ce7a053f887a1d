"""The journal in SQLite, which has no index: a turn's rows are found by the places that the store caches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from standfast.errors import LeaseLost, StaleState
from standfast.ports.session_store import Lease
from standfast.store.sqlite.connection import connect
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_values import (
    NOW,
    a_blob,
    a_commit,
    a_save,
    a_state_entry,
    an_entry,
    begin,
    claimant,
    is_dead,
    there,
)

LEASE_MS = 60_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "standfast.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteSessionStore]:
    with opened(path) as store:
        yield store


@contextlib.contextmanager
def opened(path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(path, owner_is_dead=is_dead)
    try:
        yield store
    finally:
        store.database.close()


def rows_in(store: SqliteSessionStore) -> list[tuple[str, str]]:
    """Return turn and name of the rows of the journal."""
    found = store.database.read(lambda db: db.execute("SELECT turn_id, name FROM journal").fetchall())
    return [(str(turn_id), str(name)) for turn_id, name in found]


async def refuses_a_second(store: SqliteSessionStore, lease: Lease, *names: str) -> None:
    before = rows_in(store)
    for name in names:
        with pytest.raises(StaleState, match=name):
            await store.save(lease, a_save("t1", an_entry(name)))
    assert rows_in(store) == before


def test_a_store_that_did_not_begin_the_turn_knows_its_entries_too(
    path: Path, store: SqliteSessionStore
) -> None:
    """Ours: the places of a turn's rows are read if they are not cached for its lease."""

    async def scenario() -> None:
        begun = await begin(store)
        await store.save(begun.lease, a_save("t1", an_entry("a"), a_state_entry("s", b"1")))
        with opened(path) as other:
            await refuses_a_second(other, begun.lease, "a")
            await other.save(begun.lease, a_save("t1", an_entry("b"), a_state_entry("s", b"2")))
            await refuses_a_second(other, begun.lease, "a", "b")
            assert rows_in(other) == [("t1", "a"), ("t1", "b"), ("t1", "s")]
            await other.commit(begun.lease, a_commit("t1"))
            assert rows_in(other) == []

    asyncio.run(scenario())


def test_places_are_forgotten_when_another_process_takes_the_turn_over(
    path: Path, store: SqliteSessionStore
) -> None:
    """Ours: cached places belong to a lease; the earlier owner can neither write nor use them later."""

    async def scenario() -> None:
        begun = await begin(store, claimed_by=claimant("w1"))
        await store.save(begun.lease, a_save("t1", an_entry("a"), a_state_entry("s", b"1")))
        with opened(path) as other:
            taken = await other.take_over("t1", claimant("w2", NOW + LEASE_MS))
            await other.save(taken.lease, a_save("t1", an_entry("b"), a_state_entry("s", b"2")))
            await refuses_a_second(store, taken.lease, "b")
            with pytest.raises(LeaseLost):
                await store.save(begun.lease, a_save("t1", an_entry("c")))
            again = await store.take_over("t1", claimant("w1", NOW + 3 * LEASE_MS))
            with pytest.raises(LeaseLost):
                await other.save(taken.lease, a_save("t1", an_entry("c")))
        assert again.journal == (an_entry("a"), an_entry("b"), a_state_entry("s", b"2"))
        await refuses_a_second(store, again.lease, "a", "b")
        await store.save(again.lease, a_save("t1", an_entry("c"), a_state_entry("s", b"3")))
        assert rows_in(store) == [("t1", "a"), ("t1", "b"), ("t1", "c"), ("t1", "s")]

    asyncio.run(scenario())


def test_saves_at_once_know_the_entries_of_each_other(store: SqliteSessionStore) -> None:
    """Ours: a save that begins while another is running cannot use the places cached before both."""

    async def scenario() -> None:
        lease = (await begin(store)).lease
        saves = [store.save(lease, a_save("t1", an_entry(name))) for name in ("a", "b", "a", "c", "b")]
        found = await asyncio.gather(*saves, return_exceptions=True)
        assert [isinstance(it, StaleState) for it in found] == [False, False, True, False, True]
        await refuses_a_second(store, lease, "a", "b", "c")
        await store.save(lease, a_save("t1", an_entry("d")))
        await refuses_a_second(store, lease, "a", "d")
        await store.commit(lease, a_commit("t1"))
        assert rows_in(store) == []

    asyncio.run(scenario())


def test_a_save_after_the_first_of_two_at_once_knows_the_entries_of_both(store: SqliteSessionStore) -> None:
    """Ours: the caller of the first save may continue before the second save has returned."""

    async def scenario() -> None:
        lease = (await begin(store)).lease
        await begin(store, "t2", "s2")  # so that saves wait for the end of the loop's cycle

        async def first() -> None:
            await store.save(lease, a_save("t1", an_entry("a")))
            await refuses_a_second(store, lease, "b")

        await asyncio.gather(first(), store.save(lease, a_save("t1", an_entry("b"))))

    asyncio.run(scenario())


def test_places_are_read_again_after_a_save_of_unknown_outcome(store: SqliteSessionStore) -> None:
    """Ours: a save whose caller stops waiting may be written all the same."""

    async def scenario() -> None:
        lease = (await begin(store)).lease
        await store.save(lease, a_save("t1", an_entry("a")))
        await begin(store, "t2", "s2")  # so that saves wait for the end of the loop's cycle
        task = asyncio.create_task(store.save(lease, a_save("t1", an_entry("b"))))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for name in ("a", "b"):
            with pytest.raises(StaleState):
                await store.save(lease, a_save("t1", an_entry(name)))
        assert rows_in(store) == [("t1", "a"), ("t1", "b")]

    asyncio.run(scenario())


def test_a_commit_deletes_the_rows_of_its_own_turn(store: SqliteSessionStore) -> None:
    """Ours: turns of several sessions write to the journal in turn; a row of a blob is deleted as well."""

    async def scenario() -> None:
        leases = {name: (await begin(store, f"t{name}", f"s{name}")).lease for name in "12"}
        for key in ("a", "b"):
            for name, lease in leases.items():
                blobs = (a_blob(name.encode()),)
                await store.save(lease, replace(a_save(f"t{name}", an_entry(key)), blobs=blobs))
        await store.commit(leases["1"], a_commit("t1"))
        assert rows_in(store) == [("t2", "a"), ("t2", a_blob(b"2").digest), ("t2", "b")]

    asyncio.run(scenario())


def test_a_commit_keeps_the_entries_of_a_save_that_has_not_returned(store: SqliteSessionStore) -> None:
    """Ours: while a save is running, neither the places nor the entries of its turn are known."""

    async def scenario() -> None:
        lease = (await begin(store)).lease
        await begin(store, "t2", "s2")  # so that writes wait for the end of the loop's cycle
        await store.save(lease, a_save("t1", an_entry("a")))
        commit = replace(a_commit("t1"), journal=(an_entry("c"),))
        await asyncio.gather(store.save(lease, a_save("t1", an_entry("b"))), store.commit(lease, commit))
        assert there(await store.turn_journal("t1")).journal == (an_entry("a"), an_entry("b"), an_entry("c"))
        assert rows_in(store) == []

    asyncio.run(scenario())


def test_a_plain_turn_does_not_depend_on_the_size_of_the_journal(store: SqliteSessionStore) -> None:
    """Ours: unfinished turns may wait for weeks with large journals, which no other turn reads."""
    steps: list[int] = []

    async def scenario() -> None:
        waiting = await begin(store, "t0", "s0")
        entries = [an_entry(str(number)) for number in range(5_000)]
        await store.save(waiting.lease, a_save("t0", *entries))
        db = store.database._group.connection
        db.set_progress_handler(lambda: steps.append(1) is not None, 1_000)
        lease = (await begin(store)).lease
        for number in range(10):
            await store.save(lease, a_save("t1", an_entry(f"model.{number}"), a_state_entry("s")))
        await store.commit(lease, a_commit("t1"))

    asyncio.run(scenario())
    assert len(steps) < 10


def test_a_file_with_the_former_index_and_an_unfinished_turn_stays_usable(path: Path) -> None:
    """Ours: entries that were written under the index are found without it."""

    async def write() -> None:
        with opened(path) as store:
            begun = await begin(store, claimed_by=claimant("dead"))
            await store.save(begun.lease, a_save("t1", an_entry("a"), a_state_entry("s", b"1")))

    async def resume() -> None:
        with opened(path) as store:
            taken = await store.take_over("t1", claimant())
            assert taken.journal == (an_entry("a"), a_state_entry("s", b"1"))
            await refuses_a_second(store, taken.lease, "a")
            await store.commit(taken.lease, a_commit("t1"))
            assert rows_in(store) == []

    asyncio.run(write())
    with contextlib.closing(connect(path, 1_000)) as db:
        db.execute(
            "CREATE UNIQUE INDEX journal_by_turn ON journal (turn_id, name, kind);"
            "UPDATE standfast_schema SET version = 7 WHERE component = 'sessions'"
        )
    asyncio.run(resume())


def test_a_state_that_a_save_contains_twice_is_stored_once(store: SqliteSessionStore) -> None:
    """Ours: the later state replaces the earlier one, also within a save."""

    async def scenario() -> None:
        lease = (await begin(store, claimed_by=claimant("dead"))).lease
        for body in (b"1", b"2"):
            states = [a_state_entry("s", body), an_entry(f"a{body!r}"), a_state_entry("s", body + b"0")]
            await store.save(lease, a_save("t1", *states, an_entry(f"b{body!r}")))
        taken = await store.take_over("t1", claimant())
        assert [entry.body for entry in taken.journal] == [b"{}", b"{}", b"{}", b"20", b"{}"]

    asyncio.run(scenario())
