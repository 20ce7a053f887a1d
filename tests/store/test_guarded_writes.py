"""Guarded writes: they read nothing first and still detect what another process has changed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg
import pytest
import uvloop
from msgspec.structs import replace
from psycopg.pq.abc import PGresult

from standfast.errors import (
    InputNotFound,
    InvalidArgument,
    LeaseLost,
    SessionBusy,
    StaleState,
    StoreUnavailable,
)
from standfast.model.session import SessionHead
from standfast.ports.session_store import Begun, CommitRefused
from standfast.store.postgres.pipeline import Pipeline, Statement, StatementFailed
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.session_values import (
    a_checkpoint,
    a_commit,
    a_head,
    a_save,
    a_state_entry,
    an_entry,
    an_input,
    begin,
    claimant,
    new_turn,
)

Work = Callable[[PostgresSessionStore, PostgresSessionStore], Awaitable[None]]


def on_two_stores(postgres: PostgresServer, work: Work) -> None:
    """Run *work* on one store as two processes see it, with the session `s1`."""

    @contextlib.asynccontextmanager
    async def opened(url: str) -> AsyncIterator[PostgresSessionStore]:
        store = PostgresSessionStore(url)
        try:
            yield store
        finally:
            await store.close()

    async def run() -> None:
        url = postgres.new_url()
        async with opened(url) as one, opened(url) as other:
            await one.open_session(a_head())
            await work(one, other)

    asyncio.run(run())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with the number of statements that each guarded write sends, including failed writes."""
    counts: list[int] = []
    send = Pipeline.send

    def counted(self: Pipeline, statements: list[Statement]) -> None:
        counts.append(len(statements))
        send(self, statements)

    monkeypatch.setattr(Pipeline, "send", counted)
    return counts


async def take_turn(store: PostgresSessionStore, turn_id: str, *keys: str) -> SessionHead:
    lease = (await begin(store, turn_id)).lease
    for key in keys:
        await store.save(lease, a_save(turn_id, an_entry(key)))
    head = await store.commit(lease, a_commit(turn_id))
    assert isinstance(head, SessionHead)
    return head


def test_a_turn_of_a_known_session_reads_nothing(postgres: PostgresServer, sent: list[int]) -> None:
    """Ours: begin, save and commit are one round trip each: a guard, and the writes."""

    async def work(one: PostgresSessionStore, other: PostgresSessionStore) -> None:
        await take_turn(one, "t1")
        reads: list[object] = []
        one.database._group._attempt = lambda *args: reads.append(args)  # type: ignore[method-assign]
        sent.clear()
        head = await take_turn(one, "t2", "a", "b")
        assert (len(sent), reads) == (4, [])
        assert sent[1:3] == [2, 2], "a guard and one entry"
        assert await other.head("s1") == head
        assert [turn.turn_id for turn in await other.turns("s1")] == ["t1", "t2"]

    on_two_stores(postgres, work)


def test_a_process_whose_turn_was_taken_over_can_write_nothing(postgres: PostgresServer) -> None:
    """Ours: SPEC §7, the process that lost its lease still has the old rows in its cache."""

    async def work(one: PostgresSessionStore, other: PostgresSessionStore) -> None:
        lease = (await begin(one)).lease
        await one.save(lease, a_save("t1", an_entry("a")))
        await other.renew((lease,), 0, 0)
        taken = await other.take_over("t1", claimant("w2"))
        assert [entry.key for entry in taken.journal] == ["a"]
        with pytest.raises(LeaseLost):
            await one.save(lease, a_save("t1", an_entry("late")))
        with pytest.raises(LeaseLost):
            await one.commit(lease, a_commit("t1"))
        await other.save(taken.lease, a_save("t1", an_entry("b")))
        kept = await one.turn_journal("t1")
        assert kept is not None
        assert [entry.key for entry in kept.journal] == ["a", "b"]

    on_two_stores(postgres, work)


def test_a_message_or_a_cancellation_from_another_process_refuses_the_commit(
    postgres: PostgresServer,
) -> None:
    """Ours: SPEC §7, neither changes all the rows that this process has in its cache."""

    async def work(one: PostgresSessionStore, other: PostgresSessionStore) -> None:
        lease = (await begin(one)).lease
        await other.put_input(an_input("i1", kind="inject"))
        assert await one.commit(lease, a_commit("t1")) == CommitRefused(reason="injected")
        passed = await one.save(lease, replace(a_save("t1"), make_checkpoint=a_checkpoint("c")))
        assert passed.checkpoint == an_entry("c", b'["i1"]')
        await other.cancel("t1")
        saved = await one.save(lease, a_save("t1", an_entry("a")))
        assert saved.cancel_requested
        assert await one.commit(lease, a_commit("t1")) == CommitRefused(reason="cancelled")

    on_two_stores(postgres, work)


def test_a_turn_begins_at_the_new_leaf_of_a_session_that_another_process_used(
    postgres: PostgresServer,
) -> None:
    """Ours: the row in this process's cache is older than the other process's turn."""

    async def work(one: PostgresSessionStore, other: PostgresSessionStore) -> None:
        await take_turn(one, "t1")
        between = await take_turn(other, "t2")
        assert (await begin(one, "t3")).head == between
        with pytest.raises(SessionBusy):
            await other.begin(new_turn("t4"), claimant("w2"))

    on_two_stores(postgres, work)


def test_an_input_is_consumed_once_even_if_two_processes_have_read_it(postgres: PostgresServer) -> None:
    """Ours: SPEC §7; both processes read the input before one of them consumes it."""

    async def work(one: PostgresSessionStore, other: PostgresSessionStore) -> None:
        await one.put_input(an_input("i1"))
        assert await one.inputs("s1") == await other.inputs("s1")
        begun = await one.begin(new_turn("t1", consumes="i1"), claimant())
        assert isinstance(begun, Begun)
        await one.commit(begun.lease, a_commit("t1"))
        with pytest.raises(InputNotFound):
            await other.begin(new_turn("t2", consumes="i1"), claimant("w2"))

    on_two_stores(postgres, work)


def test_a_kept_journal_has_the_entries_of_both_processes(postgres: PostgresServer) -> None:
    """Ours: the committing process has its own entries in memory, and reads the earlier ones."""

    async def work(one: PostgresSessionStore, other: PostgresSessionStore) -> None:
        lease = (await begin(one)).lease
        for body in (b"1", b"2"):
            await one.save(lease, a_save("t1", an_entry(f"a{body!r}"), a_state_entry("plugin", body)))
        await other.renew((lease,), 0, 0)
        taken = await other.take_over("t1", claimant("w2"))
        await other.save(taken.lease, a_save("t1", an_entry("b")))
        await other.commit(taken.lease, replace(a_commit("t1"), journal=(an_entry("last"),)))
        kept = await one.turn_journal("t1")
        assert kept is not None
        assert [(it.key, it.body) for it in kept.journal if it.kind == "state"] == [("plugin", b"2")]
        assert [it.key for it in kept.journal] == ["ab'1'", "ab'2'", "plugin", "b", "last"]

    on_two_stores(postgres, work)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_write_lost_in_a_server_crash_is_executed_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Ours: the tables show whether a guarded write happened, so a crash leaves no unknown outcome.

    uvloop calls a reader once when a connection is reset, and never again.
    """
    with PostgresServer() as server:

        async def run() -> None:
            store = PostgresSessionStore(server.new_url())
            await store.open_session(a_head())
            lease = (await begin(store)).lease
            for number in range(4):
                await store.save(lease, a_save("t1", an_entry(f"k{number}")))
                server.stop(signal.SIGQUIT)
                restart = asyncio.get_running_loop().run_in_executor(None, server.start)
                await store.save(lease, a_save("t1", an_entry(f"late{number}")))
                await restart
            with pytest.raises(StaleState):
                await store.save(lease, a_save("t1", an_entry("k0")))
            journal = await store.turn_journal("t1")
            assert journal is not None
            assert len(journal.journal) == 8
            await store.close()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())


def test_a_write_with_an_unknown_outcome_may_be_repeated() -> None:
    """Bug: a save succeeded, but its answer was lost and the server stayed away; repeating it was refused."""
    with PostgresServer() as server:

        async def run() -> None:
            store = PostgresSessionStore(server.new_url(), retry_s=0.3)
            await store.open_session(a_head())
            lease = (await begin(store)).lease
            receive = Pipeline.receive

            def lose(self: Pipeline) -> list[PGresult] | None:
                if receive(self) is None:
                    return None
                server.stop(signal.SIGQUIT)
                raise psycopg.OperationalError("the connection was lost")

            save, commit = a_save("t1", an_entry("k")), a_commit("t1")
            for write in (lambda: store.save(lease, save), lambda: store.commit(lease, commit)):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Pipeline, "receive", lose)
                    with pytest.raises(StoreUnavailable):
                        await write()
                server.start()
                await write()
            with pytest.raises(StaleState):
                await store.save((await begin(store, "t2")).lease, a_save("t2", *[an_entry("k")] * 2))
            assert [turn.turn_id for turn in await store.turns("s1")] == ["t1", "t2"]
            await store.close()

        asyncio.run(run())


def test_a_value_that_cannot_be_sent_fails_only_its_own_write(postgres: PostgresServer) -> None:
    """Ours: values are encoded before anything is sent, so that the connection stays usable."""

    async def work(one: PostgresSessionStore, other: PostgresSessionStore) -> None:
        await one.open_session(a_head("s2"))
        leases = (await begin(one, "t1", "s1")).lease, (await begin(one, "t2", "s2")).lease
        done = await asyncio.gather(
            one.save(leases[0], a_save("t1", an_entry("\ud800"))),
            one.save(leases[1], a_save("t2", an_entry("k"))),
            return_exceptions=True,
        )
        assert isinstance(done[0], InvalidArgument)
        assert not isinstance(done[1], BaseException)
        await one.save(leases[0], a_save("t1", an_entry("k")))

    on_two_stores(postgres, work)


def test_a_pipeline_commits_all_or_nothing(postgres: PostgresServer) -> None:
    """Ours: the statements before a sync are one transaction, even if psycopg has dropped their names."""
    with psycopg.connect(postgres.url, autocommit=True) as raw:
        raw.execute("CREATE TEMP TABLE pairs (key bigint PRIMARY KEY, body text)")
        pipeline = Pipeline(raw)
        add = b"INSERT INTO pairs VALUES ($1, $2)"
        pipeline.transact([(add, (1, "a")), (add, (2, None))])
        with pytest.raises(StatementFailed) as failed:
            pipeline.transact([(add, (3, "c")), (b"SELECT $1::text", ("new",)), (add, (1, "b"))])
        assert (failed.value.index, failed.value.sqlstate) == (2, "23505")
        raw.execute("DEALLOCATE ALL")
        pipeline.transact([(b"SELECT $1::text", ("new",)), (add, (4, "é" * 400_000))])
        assert raw.execute("SELECT key, length(body) FROM pairs ORDER BY key").fetchall() == [
            (1, 1),
            (2, None),
            (4, 400_000),
        ]
        pipeline.close()
