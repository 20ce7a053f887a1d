"""Features of the PostgreSQL store only: its clock, its locks, lost connections, other processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from standfast.errors import (
    InvalidArgument,
    NotConfigured,
    SchemaTooNew,
    SessionBusy,
    StaleState,
    StoreUnavailable,
)
from standfast.model.session import TurnState
from standfast.ports.session_store import WORK, JournalEntry, SessionWork
from standfast.store.postgres import connection
from standfast.store.postgres.connection import Transaction, connect
from standfast.store.postgres.database import PostgresDatabase
from standfast.store.postgres.installation import examine, snapshot_key
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.store.postgres.writer import Attempts
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.session_values import (
    NOW,
    a_blob,
    a_commit,
    a_head,
    a_save,
    an_entry,
    an_input,
    begin,
    claimant,
    is_dead,
    new_turn,
    showing,
)

T = TypeVar("T")


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresSessionStore]:
    store = PostgresSessionStore(url, **options)
    try:
        yield store
    finally:
        await store.close()


def on_a_store(
    postgres: PostgresServer, work: Callable[[PostgresSessionStore], Awaitable[T]], **options: Any
) -> T:
    """Run *work* on a new store with one session."""

    async def run() -> T:
        async with opened(postgres.new_url(), **options) as store:
            await store.open_session(a_head())
            return await work(store)

    return asyncio.run(run())


def query(postgres: PostgresServer, sql: str) -> list[Any]:
    with psycopg.connect(postgres.url, autocommit=True) as raw:
        cursor = raw.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


# Clocks and locks


def test_leases_use_the_clock_of_the_database(postgres: PostgresServer) -> None:
    """Ours: SPEC §7, a worker whose own clock is decades off neither loses nor steals a lease."""

    async def work(store: PostgresSessionStore) -> None:
        held = await store.begin(new_turn("t1"), claimant("w1", now_ms=5, lease_ms=600_000))
        assert held.lease.until_ms == 600_005, "the owner's copy goes by the owner's clock"
        with pytest.raises(SessionBusy):
            await store.take_over("t1", claimant("w2", now_ms=4_000_000_000_000))
        assert await store.unfinished(4_000_000_000_000) == []
        await store.renew((held.lease,), 5, 1)
        while not await store.unfinished(5):
            pass
        taken = await store.take_over("t1", claimant("w2", now_ms=5))
        assert taken.lease.fence > held.lease.fence

    on_a_store(postgres, work)


def test_a_process_looks_for_work_when_a_lease_expires(postgres: PostgresServer) -> None:
    """Ours: another worker takes a turn over when its lease expires, not up to a poll later."""

    async def work(store: PostgresSessionStore) -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()

        def hear(text: str) -> None:
            if text == WORK:
                loop.call_soon_threadsafe(heard.set)

        stop = store.listen(hear)
        await store.begin(new_turn("t1"), claimant("elsewhere", lease_ms=600))
        assert await store.offer(NOW, 1_000, ("helper",), 5) == []
        await asyncio.wait_for(heard.wait(), 30)
        assert await store.offer(NOW, 1_000, ("helper",), 5) == [SessionWork(session_id="s1", turn_id="t1")]
        stop()

    on_a_store(postgres, work)


def test_setting_the_clock_of_one_machine_moves_no_timers(postgres: PostgresServer) -> None:
    """Ours: all machines share the timers in a store, so one machine's clock must not move them."""

    async def work(store: PostgresSessionStore) -> None:
        await store.see_clock("boot", 0)
        assert (await store.see_clock("boot", 864_000_000)).shift_ms == 0

    on_a_store(postgres, work)


def test_writes_of_many_sessions_share_transactions(postgres: PostgresServer) -> None:
    """Ours: SPEC §7, one commit serves many callers."""

    async def work(store: PostgresSessionStore) -> int:
        await asyncio.gather(*(store.open_session(a_head(f"p{n}")) for n in range(40)))
        await asyncio.gather(*(store.begin(new_turn(f"t{n}", f"p{n}"), claimant()) for n in range(40)))
        count = await store._read(lambda db: db.execute("SELECT count(DISTINCT xmin::text) FROM turns").get)
        return int(count)

    assert on_a_store(postgres, work) < 20


def test_a_refused_job_fails_alone_in_its_group(postgres: PostgresServer) -> None:
    """Ours: a refused write does not fail the others of its group, even if the server refuses it."""

    async def work(store: PostgresSessionStore) -> list[Any]:
        leases = []
        for n in range(6):
            await store.open_session(a_head(f"p{n}"))
            leases.append((await begin(store, f"t{n}", f"p{n}")).lease)
        await store.save(leases[3], a_save("t3", an_entry("k")))
        saves = (store.save(lease, a_save(f"t{n}", an_entry("k"))) for n, lease in enumerate(leases))
        done = await asyncio.gather(*saves, return_exceptions=True)
        journals = [await store.open_turn_journal(f"p{n}") for n in range(6)]
        assert [len(it.journal) for it in journals if it is not None] == [1] * 6
        return [type(it) for it in done if isinstance(it, BaseException)]

    assert on_a_store(postgres, work) == [StaleState]


def test_two_stores_that_write_to_the_same_sessions_lose_nothing(postgres: PostgresServer) -> None:
    """Ours: two stores write to the same sessions, and lock them in any order."""

    async def feed(store: PostgresSessionStore, name: str) -> None:
        await asyncio.gather(
            *(
                store.put_input(an_input(f"{name}-{n}-{k}", session_id=f"p{n}"))
                for k in range(10)
                for n in range(10)
            )
        )

    async def run() -> None:
        url = postgres.new_url()
        async with opened(url) as one, opened(url) as two:
            for n in range(10):
                await one.open_session(a_head(f"p{n}"))
            await asyncio.gather(feed(one, "a"), feed(two, "b"))
            for n in range(10):
                waiting = {item.input_id for item in await one.inputs(f"p{n}")}
                assert waiting == {f"{name}-{n}-{k}" for name in "ab" for k in range(10)}

    asyncio.run(run())


def test_two_processes_that_open_one_session_get_the_same_session(postgres: PostgresServer) -> None:
    """Ours: if another transaction inserts the row first, that row is read and no error is raised."""

    async def run() -> None:
        url = postgres.new_url()
        async with opened(url) as one, opened(url) as two:
            for n in range(20):
                heads = await asyncio.gather(
                    one.open_session(a_head(f"p{n}")), two.open_session(a_head(f"p{n}"))
                )
                assert heads[0] == heads[1]

    asyncio.run(run())


def test_a_blob_stored_during_pruning_is_kept(postgres: PostgresServer) -> None:
    """Ours: pruning while a blob is stored never deletes a blob that a record names."""

    async def run() -> None:
        url, blob = postgres.new_url(), a_blob(b"x" * 100)
        async with opened(url) as one, opened(url) as two:
            await one.open_session(a_head())
            for n in range(10):
                item = an_input(f"i{n}")
                showed = type(item)(
                    input_id=item.input_id,
                    session_id="s1",
                    kind="queue",
                    message=showing(blob),
                    created_at=NOW,
                )
                await asyncio.gather(one.put_input(showed, (blob,)), two._write(_prune_blobs))
                assert await two.blob(blob.digest) == blob.data
                await one.withdraw_input(item.input_id)

    from standfast.store.sql.prune import prune_blobs as _prune_blobs

    asyncio.run(run())


# Opening


def test_many_programs_can_open_a_new_store_at_once(postgres: PostgresServer) -> None:
    """Ours: one process migrates and the others wait."""
    url, errors = postgres.new_url(), []

    def open_it() -> None:
        try:
            asyncio.run(PostgresSessionStore(url).close())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len({snapshot_key(url) for _ in range(2)}) == 1


def test_tables_of_a_later_release_are_refused(postgres: PostgresServer) -> None:
    """Ours: a program of an earlier release must not write to newer tables."""
    url = postgres.new_url()
    asyncio.run(PostgresSessionStore(url).close())
    query(postgres, f"UPDATE {url.rpartition('=')[2]}.standfast_schema SET version = 99")
    with pytest.raises(SchemaTooNew, match="version 99"):
        PostgresSessionStore(url)


def test_a_server_that_acknowledges_commits_before_they_are_on_disk_is_refused(
    postgres: PostgresServer,
) -> None:
    """Ours: SPEC §7, an acknowledged write is on disk."""
    with pytest.raises(NotConfigured, match="synchronous_commit = off"):
        PostgresSessionStore(f"{postgres.new_url()}&options=-csynchronous_commit%3Doff")


@pytest.mark.slow
def test_a_server_without_fsync_is_refused_and_one_without_checksums_causes_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ours: damage must be detected, and a crash must lose nothing."""
    with PostgresServer(checksums=False) as server:
        asyncio.run(PostgresSessionStore(server.new_url()).close())
        assert "data_checksums = off" in caplog.text
        server.stop()
        server.settings["fsync"] = "off"
        server.start()
        with pytest.raises(NotConfigured, match="fsync = off"):
            PostgresSessionStore(server.new_url())
        settings, sessions = examine(server.new_url())
        assert [it.name for it in settings if it.refused] == ["fsync"]
        assert sessions is None


def test_an_error_about_a_wrong_address_does_not_contain_the_password() -> None:
    """Ours: errors are shown and logged; passwords must not be."""
    with pytest.raises(StoreUnavailable) as caught:
        PostgresSessionStore("postgresql://me:hunter2@127.0.0.1:1/shop?connect_timeout=2")
    assert "127.0.0.1/shop" in caught.value.message
    assert "hunter2" not in repr(caught.value.error_object())
    with pytest.raises(InvalidArgument, match="the URL of the store is wrong"):
        PostgresSessionStore("postgresql://h/db?nonsense=1")
    with pytest.raises(InvalidArgument, match="schema must be"):
        PostgresSessionStore("postgresql://h/db?schema=a;b")


def test_a_character_that_postgresql_cannot_store_is_refused(postgres: PostgresServer) -> None:
    """Ours: the caller gets an InvalidArgument, not a database error."""

    async def work(store: PostgresSessionStore) -> None:
        for bad in ("a\0b", "\ud800"):
            with pytest.raises(InvalidArgument):
                await store.put_plugin_record("p", "s", bad, b"", NOW)
        await store.put_plugin_record("p", "s", "fine", b"\0", NOW)

    on_a_store(postgres, work)


def test_a_forked_child_gets_an_error_that_names_the_fork(postgres: PostgresServer) -> None:
    """Ours: a connection is never used across a fork."""

    async def work(store: PostgresSessionStore) -> None:
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                store.database.require_open()
            except StoreUnavailable as error:
                os.write(writer, error.message.encode())
            os._exit(0)
        os.waitpid(pid, 0)  # noqa: ASYNC222 (the child ends at once)
        assert b"before this process was forked" in os.read(reader, 1000)
        os.close(reader)
        os.close(writer)
        assert await store.head("s1") is not None

    on_a_store(postgres, work)


# Lost connections


def test_lost_connections_are_replaced(postgres: PostgresServer) -> None:
    """Ours: the store reconnects and retries when it has lost its connection."""

    async def work(store: PostgresSessionStore) -> None:
        for n in range(3):
            await store.head("s1")
            query(
                postgres,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'standfast'",
            )
            await store.put_input(an_input(f"i{n}"))
            assert len(await store.inputs("s1")) == n + 1

    on_a_store(postgres, work)


class Proxy:
    """A TCP proxy that can refuse the next connections, or drop the next commit or the answer to it."""

    def __init__(self, port: int) -> None:
        self.refuse = 0
        self.refused_at: list[float] = []
        self.lose: str | None = None
        self.lost = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                client, _ = self._listener.accept()
                if len(self.refused_at) < self.refuse:
                    self.refused_at.append(time.monotonic())
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        swallowing = False
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            while not self._ended.is_set():
                for ready in select.select([client, server], [], [], 0.2)[0]:
                    try:
                        data = ready.recv(65536)
                    except OSError:
                        return
                    if not data:
                        return
                    if ready is server and swallowing:
                        return
                    commits = b"COMMIT" in data or b"\0sf" in data  # a guarded write commits at its sync
                    if ready is client and self.lose is not None and commits:
                        how, self.lose = self.lose, None
                        self.lost += 1
                        if how == "commit":
                            return
                        swallowing = True
                    (server if ready is client else client).sendall(data)

    def close(self) -> None:
        self._ended.set()
        self._listener.close()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    made = Proxy(postgres.port)
    yield made
    made.close()


@pytest.mark.parametrize("what", ["answer", "commit"])
def test_a_commit_whose_answer_was_lost_happens_once(
    postgres: PostgresServer, proxy: Proxy, what: str
) -> None:
    """Ours: the store asks the server whether the transaction committed; it is neither lost nor repeated."""

    async def run() -> None:
        url = postgres.new_url().replace(str(postgres.port), str(proxy.port))
        async with opened(url) as store:
            await store.open_session(a_head())
            proxy.lose = what
            lease = (await store.begin(new_turn("t1"), claimant())).lease
            for n in range(3):
                proxy.lose = what
                await store.save(lease, a_save("t1", an_entry(f"k{n}")))
            proxy.lose = what
            await store.commit(lease, a_commit("t1"))
            assert [it.turn_id for it in await store.turns("s1")] == ["t1"]
            assert proxy.lost == 5

    asyncio.run(run())


def test_a_commit_lost_in_a_server_crash_is_not_mistaken_for_another_one() -> None:
    """Bug: after a crash the server gave the id of a lost transaction to another one, which committed."""
    with PostgresServer() as server:
        database = PostgresDatabase(server.new_url(), retry_s=30)
        raw = connect(database.address)
        with raw.pipeline():
            lost = Transaction(raw, database.address, database_clock=True)
            lost.begin(to_write=True)
            number = int(lost.number)
        server.stop(signal.SIGQUIT)
        server.start()
        with psycopg.connect(server.url, autocommit=True) as other:
            taken = 0
            while taken < number:
                (text,) = other.execute("SELECT pg_current_xact_id()::text").fetchone() or ("0",)
                taken = int(text)
            assert other.execute(f"SELECT pg_xact_status('{number}')").fetchone() == ("committed",)
        database._group.disconnect()
        with pytest.raises(StoreUnavailable, match="outcome is unknown"):
            database._group._was_committed(lost, Attempts(30))
        database.close()
        raw.close()


def test_a_server_that_stays_unreachable_raises_a_typed_error(postgres: PostgresServer, proxy: Proxy) -> None:
    """Ours: when the time for retries is up, the caller gets a retryable `StoreUnavailable`."""

    async def run() -> None:
        url = postgres.new_url().replace(str(postgres.port), str(proxy.port))
        async with opened(url, retry_s=2) as store:  # a busy machine may take a second to connect
            await store.open_session(a_head())
            proxy.close()
            query(
                postgres,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'standfast'",
            )
            with pytest.raises(StoreUnavailable) as caught:
                await store.put_input(an_input())
            assert caught.value.retryable

    asyncio.run(run())


def test_reads_look_for_the_server_every_second_while_it_is_down(
    postgres: PostgresServer, proxy: Proxy
) -> None:
    """Bug: the pool doubled its pauses, so reads failed for up to two minutes after a long outage."""

    async def run() -> None:
        url = postgres.new_url().replace(str(postgres.port), str(proxy.port))
        async with opened(url) as store:
            proxy.refuse = 5
            assert await store.head("s1") is None
        assert max(after - before for before, after in pairwise(proxy.refused_at)) < 3

    asyncio.run(run())


FAILING = """
SET search_path = {schema};
CREATE SEQUENCE attempts;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('attempts') <= {times} THEN {problem}; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER fail AFTER INSERT ON turns FOR EACH ROW EXECUTE FUNCTION fail();
"""


async def _begin_while_failing(store: PostgresSessionStore, server: PostgresServer, **how: Any) -> None:
    query(server, FAILING.format(schema=store.database.address.schema, **how))
    await store.put_input(an_input("i1"))
    await store.begin(new_turn(consumes="i1"), claimant())


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014", "53200"])
def test_a_transient_error_is_retried_as_a_whole(postgres: PostgresServer, code: str) -> None:
    """Seed: serialization failures and statement timeouts; ours: also deadlocks and lack of memory."""
    problem = f"RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'"

    async def work(store: PostgresSessionStore) -> None:
        await _begin_while_failing(store, postgres, times=2, problem=problem)
        assert [turn.turn_id for turn in await store.turns("s1")] == ["t1"]
        assert await store.inputs("s1") == []

    on_a_store(postgres, work)


def test_an_error_that_persists_is_typed_and_leaves_no_partial_write(postgres: PostgresServer) -> None:
    """Seed: a typed error, never a partial commit: the input that the turn claimed is still queued."""

    async def work(store: PostgresSessionStore) -> None:
        problem = "RAISE EXCEPTION 'not now' USING ERRCODE = '40001'"
        with pytest.raises(StoreUnavailable, match="not now"):
            await _begin_while_failing(store, postgres, times=10**6, problem=problem)
        assert await store.turns("s1") == []
        assert len(await store.inputs("s1")) == 1
        assert await store.open_turn("s1") is None

    on_a_store(postgres, work, retry_s=0.2)


def test_a_statement_that_takes_too_long_is_cancelled_and_retried(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: statement timeouts are enforced by the server."""
    monkeypatch.setattr(connection, "_STATEMENT_MS", 300)

    async def work(store: PostgresSessionStore) -> None:
        await _begin_while_failing(store, postgres, times=1, problem="PERFORM pg_sleep(60)")
        assert [turn.turn_id for turn in await store.turns("s1")] == ["t1"]

    on_a_store(postgres, work)


async def _turns_without_end(store: PostgresSessionStore, session_id: str, stop: asyncio.Event) -> int:
    """Run turns until stopped, at least one; return the number of turns that have ended."""
    count, is_known = 0, False
    while not (stop.is_set() and is_known):
        try:
            await store.open_session(a_head(session_id))
            await _end_turn(store, f"{session_id}-{count}", session_id)
            count, is_known = count + 1, True
        except StoreUnavailable:  # a restarted server cannot report the outcome of a commit
            is_known = False
    return count


async def _end_turn(store: PostgresSessionStore, turn_id: str, session_id: str) -> None:
    """Bring a turn to its end, whatever its state."""
    record = await store.turn(turn_id)
    journal: tuple[JournalEntry, ...] = ()
    if record is None:
        lease = (await store.begin(new_turn(turn_id, session_id), claimant("dead"))).lease
    elif record.state is TurnState.ENDED:
        return
    else:
        taken = await store.take_over(turn_id, claimant("dead"))
        lease, journal = taken.lease, taken.journal
    if not journal:
        await store.save(lease, a_save(turn_id, an_entry("k")))
    await store.commit(lease, a_commit(turn_id))


async def _check_turns(store: PostgresSessionStore, session_id: str, count: int) -> None:
    turns = await store.turns(session_id)
    assert [turn.turn_id for turn in turns] == [f"{session_id}-{n}" for n in range(count)]
    head = await store.head(session_id)
    assert head is not None
    assert head.depth == 2 * count


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_server_restart_loses_and_duplicates_nothing(how: signal.Signals) -> None:
    """Ours: every acknowledged write is present once, and every interrupted one is repeated."""

    async def run(server: PostgresServer) -> None:
        stop = asyncio.Event()
        async with opened(server.new_url(), owner_is_dead=is_dead) as store:
            names = [f"p{n}" for n in range(8)]
            working = [asyncio.create_task(_turns_without_end(store, name, stop)) for name in names]
            for _ in range(3):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.stop, how)
                await asyncio.to_thread(server.start)
            await asyncio.sleep(0.3)
            stop.set()
            for name, count in zip(names, await asyncio.gather(*working), strict=True):
                assert count > 0
                await _check_turns(store, name, count)

    with PostgresServer() as server:
        asyncio.run(run(server))


@pytest.mark.slow
def test_a_failover_to_a_synchronous_standby_loses_nothing() -> None:
    """Ours: the URL names both servers, and the store finds the one that accepts writes."""

    async def run(primary: PostgresServer, standby: PostgresServer) -> None:
        both = primary.new_url().replace(
            f"127.0.0.1:{primary.port}", f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        )
        stop = asyncio.Event()
        async with opened(both, owner_is_dead=is_dead) as store:
            working = asyncio.create_task(_turns_without_end(store, "s1", stop))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(primary.stop, signal.SIGQUIT)
            query(standby, "SELECT pg_promote()")
            await asyncio.sleep(1)
            stop.set()
            await _check_turns(store, "s1", await working)

    with PostgresServer(synchronous_standby_names="*") as primary, primary.standby() as standby:
        asyncio.run(run(primary, standby))


# A pooler


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[int]:
    """Start pgbouncer in transaction mode and return its port."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not installed; make setup installs it")
    home = postgres.directory / "pooler"
    home.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    (home / "ini").write_text(
        f"[databases]\n* = host=127.0.0.1 user=standfast port={postgres.port}\n"
        "[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = any\npool_mode = transaction\nunix_socket_dir =\n"
        "default_pool_size = 3\n"
    )
    home.chmod(0o755)
    user = ("-u", pwd.getpwuid(65_534).pw_name) if os.getuid() == 0 else ()
    command = [program, *user, str(home / "ini")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"process up" in line:
                break
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        yield port
        process.kill()
        drain.join()


def test_the_store_works_through_a_pooler_in_transaction_mode(postgres: PostgresServer, pooler: int) -> None:
    """Ours: the store keeps no state in a connection's session, and polls for announcements instead."""

    async def run() -> None:
        url = postgres.new_url().replace(str(postgres.port), str(pooler))
        stop = asyncio.Event()
        async with opened(url) as one, opened(url) as two:
            end = one.listen(lambda text: None)
            names = [(store, f"p{n}") for n, store in enumerate((one, two) * 3)]
            working = [asyncio.create_task(_turns_without_end(*it, stop)) for it in names]
            await asyncio.sleep(0.5)
            stop.set()
            for (store, name), count in zip(names, await asyncio.gather(*working), strict=True):
                await _check_turns(store, name, count)
            end()
        pooled = [it.value for it in examine(url)[0] if it.name == "pooler"]
        assert pooled == ["yes: no announcements, no prepared statements"]

    asyncio.run(run())


# Other processes


def test_an_announcement_reaches_other_processes(postgres: PostgresServer) -> None:
    """Ours: LISTEN/NOTIFY wakes workers when an input is queued and when a text is announced."""

    async def run() -> None:
        url, heard = postgres.new_url(), asyncio.Queue[str]()
        loop = asyncio.get_running_loop()
        async with opened(url) as one, opened(url) as two:

            def hear(text: str) -> None:
                loop.call_soon_threadsafe(heard.put_nowait, text)

            end = two.listen(hear)
            assert await asyncio.wait_for(heard.get(), 20) == "", "a new connection may have missed some"
            await one.open_session(a_head())
            await one.put_input(an_input())
            assert await asyncio.wait_for(heard.get(), 20) == WORK
            await one.announce("news of s1")
            assert await asyncio.wait_for(heard.get(), 20) == "news of s1"
            end()
            await one.announce("this is not heard")

    asyncio.run(run())


def test_work_is_offered_to_one_process_at_a_time(postgres: PostgresServer) -> None:
    """Ours: work is claimed with SKIP LOCKED; two workers get different sessions, each for its own agents."""

    async def run() -> None:
        url = postgres.new_url()
        async with opened(url) as one, opened(url) as two:
            for n in range(6):
                await one.open_session(a_head(f"p{n}"))
                await one.describe(f"p{n}", agent="other" if n == 5 else "clerk", model="m", host={})
                await one.put_input(an_input(f"i{n}", session_id=f"p{n}"))
            first, second = await asyncio.gather(
                *(store.offer(NOW, 60_000, ("clerk",), 3) for store in (one, two))
            )
            rest = await one.offer(NOW, 60_000, ("clerk",), 3)
            assert len(first) + len(second) + len(rest) == 5, "none is offered twice"
            assert {it.session_id for it in (*first, *second, *rest)} == {f"p{n}" for n in range(5)}
            assert await one.offer(NOW, 60_000, ("clerk",), 10) == []
            assert await one.offer(NOW, 0, ("other",), 10) == [SessionWork(session_id="p5", turn_id=None)]
            assert len(await two.offer(NOW, 60_000, ("other",), 10)) == 1, "an offer of no time is over"

    asyncio.run(run())


def test_a_turn_abandoned_by_its_owner_is_offered(postgres: PostgresServer) -> None:
    """Ours: at once if the owner died on this machine; when the lease expires if it ran elsewhere."""

    async def run() -> None:
        async with opened(postgres.new_url(), owner_is_dead=lambda owner: owner == "dead") as store:
            for n, owner in enumerate(("dead", "alive", "late")):
                await store.open_session(a_head(f"p{n}"))
                await store.begin(
                    new_turn(f"t{n}", f"p{n}"), claimant(owner, lease_ms=0 if owner == "late" else 60_000)
                )
            record = await store.turn("t0")
            assert record is not None
            found = await store.offer(NOW, 1_000, (record.agent,), 10)
            assert found == [
                SessionWork(session_id="p0", turn_id="t0"),
                SessionWork(session_id="p2", turn_id="t2"),
            ]

    asyncio.run(run())


def test_the_test_server_is_a_real_postgresql_server(postgres: PostgresServer) -> None:
    """Ours: the tests start their own PostgreSQL server."""
    assert Path(postgres.directory / "data" / "PG_VERSION").exists()


def test_a_lost_connection_leaves_nothing_in_the_log(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: psycopg printed "error ignored terminating Pipeline" for every connection that was lost."""

    def end_connections() -> None:
        with psycopg.connect(postgres.url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'standfast' AND pid <> pg_backend_pid()"
            )

    async def work(store: PostgresSessionStore) -> None:
        await store.open_session(a_head())
        for number in range(3):
            end_connections()
            await store.put_input(an_input(f"i{number}"))
            end_connections()
            assert len(await store.inputs("s1")) == number + 1
            end_connections()
            assert (
                await store._read(lambda db: (db.execute("SELECT 1").get, db.execute("SELECT 2").get))
            ) == (1, 2)
            lease = (await begin(store, f"t{number}")).lease
            end_connections()
            await store.save(lease, a_save(f"t{number}", an_entry("k")))
            end_connections()
            await store.commit(lease, a_commit(f"t{number}"))

    on_a_store(postgres, work)
    assert [record.getMessage() for record in caplog.records if record.name == "psycopg"] == []
