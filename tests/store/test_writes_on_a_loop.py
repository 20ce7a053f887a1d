"""Writes that a loop's thread sends to PostgreSQL: the loop never blocks, and no group in flight is lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from msgspec.structs import replace

from standfast.model.session import SessionHead
from standfast.ports.session_store import Lease
from standfast.store.postgres.pipeline import Pipeline, Statement
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.session_values import a_commit, a_head, a_save, an_entry, begin


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresSessionStore]:
    store = PostgresSessionStore(url)
    try:
        yield store
    finally:
        await store.close()


async def begin_known(store: PostgresSessionStore, session_id: str, turn_id: str) -> Lease:
    """Begin a turn of a new session whose rows the store then has in its cache."""
    await store.open_session(a_head(session_id))
    return (await begin(store, turn_id, session_id)).lease


@contextlib.contextmanager
def locked(url: str, session_id: str) -> Iterator[None]:
    """Keep the server from answering writes to a session."""
    base, _, schema = url.partition("?schema=")
    with psycopg.connect(base) as other:
        other.execute(f"SELECT 1 FROM {schema}.sessions WHERE id = %s FOR UPDATE", (session_id,))
        yield
        other.rollback()


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list of the thread that sent each group and the number of its statements."""
    seen: list[tuple[str, int]] = []
    send = Pipeline.send

    def note(self: Pipeline, statements: list[Statement]) -> None:
        seen.append((threading.current_thread().name, len(statements)))
        send(self, statements)

    monkeypatch.setattr(Pipeline, "send", note)
    return seen


def test_a_turn_of_a_known_session_wakes_no_other_thread(
    postgres: PostgresServer, senders: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: passing each write to another thread and back took longer than the write."""

    async def run() -> None:
        async with opened(postgres.new_url()) as store:
            lease = await begin_known(store, "s1", "t1")
            await store.commit(lease, a_commit("t1"))
            group, wake = store.database._group, store.database._group.wake
            while group.writing.locked():  # noqa: ASYNC110 - the writer thread answers a write before it lets go
                await asyncio.sleep(0.001)
            senders.clear()
            woken: list[object] = []

            def note() -> None:
                woken.append(1)
                wake()

            monkeypatch.setattr(group, "wake", note)
            lease = (await begin(store, "t2")).lease
            await store.save(lease, a_save("t2", an_entry("k")))
            assert isinstance(await store.commit(lease, a_commit("t2")), SessionHead)
            assert not woken
            monkeypatch.setattr(group, "wake", wake)

    asyncio.run(run())
    assert [thread for thread, _ in senders] == [threading.current_thread().name] * 3


def test_a_server_that_does_not_answer_delays_nothing_else_on_the_loop(postgres: PostgresServer) -> None:
    """Ours: no session may delay another: the server waits for a lock, and the loop runs other tasks."""

    async def run() -> None:
        url = postgres.new_url()
        async with opened(url) as store:
            lease = await begin_known(store, "s1", "t1")
            with locked(url, "s1"):
                saving = asyncio.ensure_future(store.save(lease, a_save("t1", an_entry("k"))))
                slowest = 0.0
                for _ in range(50):
                    began = time.monotonic()
                    await asyncio.sleep(0.002)
                    slowest = max(slowest, time.monotonic() - began)
                assert not saving.done()
                assert (await store.head("s1")) is not None, "queries have connections of their own"
            await saving
            assert slowest < 1

    asyncio.run(run())


def test_writes_made_while_a_group_is_in_flight_form_one_group(
    postgres: PostgresServer, senders: list[tuple[str, int]]
) -> None:
    """Ours: with group commit, forty turns share two round trips."""

    async def run() -> None:
        async with opened(postgres.new_url()) as store:
            leases = [await begin_known(store, f"s{n}", f"t{n}") for n in range(40)]
            senders.clear()
            saves = (store.save(lease, a_save(f"t{n}", an_entry("k"))) for n, lease in enumerate(leases))
            await asyncio.gather(*saves)
            assert len(senders) <= 2, senders
            assert sum(statements for _, statements in senders) == 80, "a guard and an entry each"

    asyncio.run(run())


def test_a_refused_write_in_flight_does_not_fail_the_others(postgres: PostgresServer) -> None:
    """Ours: the writer thread repeats the group without the write that was refused."""

    async def run() -> None:
        url = postgres.new_url()
        async with opened(url) as store, opened(url) as other:
            leases = [await begin_known(store, f"s{n}", f"t{n}") for n in range(4)]
            await other.cancel("t2")
            saves = (store.save(lease, a_save(f"t{n}", an_entry("k"))) for n, lease in enumerate(leases))
            saved = await asyncio.gather(*saves)
            assert [one.cancel_requested for one in saved] == [False, False, True, False]
            for number in range(4):
                journal = await other.turn_journal(f"t{number}")
                assert journal is not None
                assert [entry.key for entry in journal.journal] == ["k"]

    asyncio.run(run())


@pytest.mark.parametrize("closed", [False, True])
def test_the_next_thread_completes_a_group_whose_loop_was_stopped(
    postgres: PostgresServer, closed: bool
) -> None:
    """Ours: a program may leave `asyncio.run` while a write is in flight, and the store stays usable."""
    url = postgres.new_url()
    loop = asyncio.new_event_loop()
    store = PostgresSessionStore(url)

    async def send() -> Lease:
        lease = await begin_known(store, "s1", "t1")
        with locked(url, "s1"):
            saving = asyncio.ensure_future(store.save(lease, a_save("t1", an_entry("k"))))
            await asyncio.sleep(0.01)
            saving.cancel()
            return lease

    lease = loop.run_until_complete(send())
    if closed:
        loop.close()

    async def save_again() -> None:
        await store.save(lease, a_save("t1", an_entry("l")))
        journal = await store.turn_journal("t1")
        assert journal is not None
        assert [entry.key for entry in journal.journal] == ["k", "l"]
        await store.close()

    asyncio.run(save_again())
    if not closed:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_busy_loop_does_not_block_writes_of_other_threads(postgres: PostgresServer) -> None:
    """Ours: a tool that blocks its loop must not stop the writes of other threads."""

    async def run() -> None:
        async with opened(postgres.new_url()) as store:
            lease = await begin_known(store, "s1", "t1")
            saving = asyncio.ensure_future(store.save(lease, a_save("t1", an_entry("k"))))
            await asyncio.sleep(0)  # sent
            written = threading.Event()

            def write() -> None:
                store.database.write(lambda db: db.execute("SELECT 1").get)
                written.set()

            thread = threading.Thread(target=write)
            thread.start()
            assert written.wait(20), "this thread is the loop's"
            await saving
            thread.join()

    asyncio.run(run())


def test_a_store_can_be_closed_on_its_loops_thread_while_a_group_is_in_flight(
    postgres: PostgresServer,
) -> None:
    """Ours: queued writes are executed before the connection is closed."""

    async def run() -> None:
        url = postgres.new_url()
        store = PostgresSessionStore(url)
        lease = await begin_known(store, "s1", "t1")
        saving = asyncio.ensure_future(store.save(lease, a_save("t1", an_entry("k"))))
        await asyncio.sleep(0)  # sent
        store.database.close()
        await saving
        await store.close()
        async with opened(url) as other:
            journal = await other.turn_journal("t1")
            assert journal is not None
            assert len(journal.journal) == 1

    asyncio.run(run())


def test_a_write_that_does_not_fit_into_the_socket_buffer_is_sent_later(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the loop sends the rest when the socket becomes writable."""
    monkeypatch.setattr("standfast.store.postgres.sessions.is_brief", lambda save: True)

    async def run() -> None:
        async with opened(postgres.new_url()) as store:
            lease = await begin_known(store, "s1", "t1")
            body = b'"' + b"x" * (24 << 20) + b'"'
            saving = asyncio.ensure_future(store.save(lease, a_save("t1", an_entry("k", body))))
            await asyncio.sleep(0)
            pipeline = store.database._group.guarded._pipeline
            assert pipeline is not None
            assert pipeline.unsent
            await saving
            journal = await store.turn_journal("t1")
            assert journal is not None
            assert journal.journal[0].body == body

    asyncio.run(run())


def test_a_large_journal_is_not_compressed_on_the_loop(
    postgres: PostgresServer, senders: list[tuple[str, int]]
) -> None:
    """Ours: compressing a megabyte takes 10 ms, in which no other session could run."""

    async def run() -> None:
        async with opened(postgres.new_url()) as store:
            for turn_id, size in (("t1", 10), ("t2", 200_000), ("t3", 10)):
                lease = await begin_known(store, turn_id, turn_id)
                while store.database._group.writing.locked():  # noqa: ASYNC110 - the writer thread is done soon
                    await asyncio.sleep(0.001)
                body = b'"' + b"x" * size + b'"'
                await store.save(lease, a_save(turn_id, an_entry("k", body)))
                commit = replace(a_commit(turn_id), journal=(an_entry("last"),))
                assert isinstance(await store.commit(lease, commit), SessionHead)

    asyncio.run(run())
    here, writer = threading.current_thread().name, "standfast-writer"
    assert [thread for thread, _ in senders] == [
        *(writer, here, here),  # begin, of a session that is not cached yet; save; commit
        *(writer, writer, writer),
        *(writer, here, here),
    ]


def test_two_loops_write_through_one_store(postgres: PostgresServer) -> None:
    """Ours: a group may have writes of several loops; each gets its results on its own thread."""
    url = postgres.new_url()
    store = PostgresSessionStore(url)

    async def take_turns(name: str) -> None:
        thread = threading.get_ident()
        await store.open_session(a_head(name))
        for number in range(30):
            turn_id = f"{name}-{number}"
            lease = (await begin(store, turn_id, name)).lease
            await store.save(lease, a_save(turn_id, an_entry("k")))
            assert isinstance(await store.commit(lease, a_commit(turn_id)), SessionHead)
            assert threading.get_ident() == thread

    threads = [
        threading.Thread(target=lambda it=name: asyncio.run(take_turns(it))) for name in ("a", "b", "c")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

    async def count() -> list[int]:
        counts = [len(await store.turns(name)) for name in "abc"]
        await store.close()
        return counts

    assert asyncio.run(count()) == [30, 30, 30]
