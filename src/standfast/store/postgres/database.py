"""A PostgreSQL database: one connection that commits for many callers, and a pool of connections that read.

Theory of operation
-------------------
Writes are jobs that share transactions (see `writer`). Queries run on the connections of a pool; one with
several statements runs in a transaction that sees a consistent state.

Rules
-----
1. An acknowledged write is on disk: a write returns after the server has confirmed the commit (see
   `settings`).
2. A transient error (lost connection, failover, conflict, timeout) is retried for up to `RETRY_S`, on a new
   connection if necessary, and then raised as `StoreUnavailable`. A transaction is committed as a whole or
   not at all; if the answer to a commit was lost, the server is asked for its outcome. If the server cannot
   know it, because it was restarted, `StoreUnavailable` is raised too, and nothing is repeated.
3. A connection is never used after a fork; the child process has to open the store again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import psycopg_pool

from standfast.errors import StoreUnavailable
from standfast.store.postgres.connection import (
    PostgresCursor,
    SeveralStatements,
    SingleRead,
    Transaction,
    configure,
    connect,
    is_own,
    is_transient,
    parse_url,
    pipelined,
    translated,
)
from standfast.store.postgres.notices import Announcer
from standfast.store.postgres.schema import migrate
from standfast.store.postgres.settings import require_durable
from standfast.store.postgres.writer import Attempts, PostgresWriter, roll_back
from standfast.store.sql.connection import Row
from standfast.store.sql.group_writer import Haste, Job, WriteScope

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

MAX_READERS: Final = 8
RETRY_S: Final = 30.0
_RECONNECT_S: Final = 2.0
"""After this time the pool starts anew to reconnect, because it doubles the pauses between its attempts."""


class PostgresDatabase:
    """The tables of a store at *url*, created or migrated by the first program that opens it.

    `write` and `read_consistently` may be called from any thread, `write_soon` from any loop.
    """

    def __init__(self, url: str, *, database_clock: bool = True, retry_s: float = RETRY_S) -> None:
        self.address = parse_url(url)
        self._database_clock = database_clock
        self._retry_s = retry_s
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._closed = False
        try:
            first = connect(self.address)
            try:
                require_durable(first, self.address.name)
                migrate(first, self.address.schema)
            except BaseException:
                first.close()
                raise
        except psycopg.Error as error:
            raise self._translated(error) from error
        self.announcer = Announcer(self.address)
        self._several: set[str] = set()
        self._group = PostgresWriter(
            first, self.address, self._translated, database_clock, retry_s, self.announcer.announce
        )
        self.guarded = self._group.guarded
        self._readers: psycopg_pool.ConnectionPool[psycopg.Connection[Row]] = psycopg_pool.ConnectionPool(
            self.address.conninfo,
            min_size=0,
            max_size=MAX_READERS,
            open=True,
            num_workers=1,
            reconnect_timeout=_RECONNECT_S,
            reconnect_failed=lambda pool: pool.check(),
            configure=lambda raw: configure(raw, self.address.schema),
            kwargs={"autocommit": True, "cursor_factory": PostgresCursor},
            name="standfast-readers",
        )

    def write(self, job: Callable[[Any], T], scope: WriteScope | None = None) -> T:
        """Run *job* in a transaction; return once it is committed."""
        self.require_open()  # before the gate, which may be locked after a fork
        queued = Job(job, None, scope)
        with self._gate:
            self.require_open()
            self._group.jobs.put(queued)
        self._group.finish(queued)
        if queued.error is not None:
            raise self._translated(queued.error)
        return queued.result

    def write_soon(
        self, job: Callable[[Any], T], scope: WriteScope | None = None, haste: Haste = ""
    ) -> asyncio.Future[T]:
        """Run *job* in a transaction, whether or not the caller keeps waiting; return after the commit."""
        from standfast.durable.prompt_future import PromptFuture  # imported only for callers that use asyncio

        self.require_open()  # before the gate, which may be locked after a fork
        future: PromptFuture[T] = PromptFuture()
        loop = future.get_loop()
        with self._gate:
            if self._closed:
                self.require_open()
            self._group.write_soon(Job(job, future, scope, brief=bool(haste)), loop, at_once=haste == "alone")
        return future

    def can_read_at_once(self) -> bool:
        """Return False: a query waits for the server."""
        return False

    def read_consistently(self, query: Callable[[Any], T]) -> T:
        """Run *query* in a transaction that sees a consistent state, including every acknowledged write."""
        self.require_open()
        attempts = Attempts(self._retry_s)
        while True:
            try:
                return self._read(query)
            except psycopg.Error as error:
                if not is_transient(error) or not attempts.another():
                    raise self._translated(error) from error
                if error.sqlstate is None:
                    self._readers.check()  # drops the connections that the server has closed
            except UnicodeError as error:
                raise self._translated(error) from error

    def _read(self, query: Callable[[Any], T]) -> T:
        with self._readers.connection(timeout=self._retry_s) as raw:
            try:
                if is_own(raw):
                    with contextlib.suppress(SeveralStatements):
                        return query(SingleRead(raw, self._several))
                with pipelined(raw):
                    transaction = Transaction(raw, self.address, database_clock=self._database_clock)
                    transaction.begin(to_write=False)
                    result = query(transaction)
                    transaction.commit()
                return result
            except BaseException as error:
                roll_back(raw, error)
                raise

    def require_open(self) -> None:
        """Raise `StoreUnavailable` if the store was closed, or belongs to the parent process."""
        problem, hint = "is closed", None
        if os.getpid() != self._pid:
            problem, hint = "was opened before this process was forked", "open it again in the child process"
        elif not self._closed:
            return
        error = StoreUnavailable(f"the store {self.address.name} {problem}", hint=hint)
        error.retryable = False
        raise error

    def close(self) -> None:
        """Finish the queued writes and disconnect. Has no effect if repeated, or after a fork."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
        self._group.close()
        self.announcer.close()
        self._readers.close()

    def _translated(self, error: BaseException) -> BaseException:
        return translated(error, self.address.name)
