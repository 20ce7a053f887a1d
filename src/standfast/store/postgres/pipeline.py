"""Statements that are sent together, committed together and answered in one round trip.

Theory of operation
-------------------
Without `BEGIN`, the server treats all statements up to a sync as one transaction and commits it there. So a
transaction that need not read before it writes is one message in each direction. Statements are prepared when
they are first used on the connection, and their values are sent in binary. This module calls libpq directly:
psycopg's cursors take five times as much CPU time.

Rule: do not use this with a pooler that assigns a connection per transaction, which loses prepared
statements.
"""

from __future__ import annotations

import itertools
import selectors
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from standfast.store.sql.connection import Row

Value = str | int | bytes | None
Statement = tuple[bytes, Sequence[Value]]

_BINARY: Final = 1
_NO_SUCH_NAME, _NO_SUCH_VALUE = "26000", "22000"
_OIDS: Final = {int: 20, str: 25, bytes: 17, type(None): 0}
_BIGINT: Final = struct.Struct(">q")
_DUMPERS: Final[dict[type, Callable[[Any], bytes | None]]] = {
    int: _BIGINT.pack,
    str: str.encode,
    bytes: bytes,
    type(None): lambda value: value,
}
_ANSWERED: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class StatementFailed(Exception):
    """The statement at `index` failed, and nothing was committed."""

    def __init__(self, index: int, sqlstate: str) -> None:
        super().__init__(f"statement {index} failed with {sqlstate}")
        self.index = index
        self.sqlstate = sqlstate


class Pipeline:
    """Sends transactions on the connection *raw*, while psycopg has none open on it.

    `transact` waits for the server. A caller that must not wait calls `send`, and `receive` whenever the
    socket becomes ready.
    """

    def __init__(self, raw: psycopg.Connection[Row]) -> None:
        self._connection = raw.pgconn
        self.socket: int = raw.pgconn.socket
        self._names: dict[bytes, bytes] = {}
        self._numbers = itertools.count()
        self._ready = selectors.DefaultSelector()
        self._ready.register(self.socket, selectors.EVENT_READ)
        self._sent: list[Statement] = []
        self._named: list[bytes | None] = []
        """For each expected result, the statement that it reports as prepared; None if it was executed."""
        self._results: list[PGresult] = []
        self._has_failed = False
        self._repeated = False
        self.unsent = False
        """Whether data is left to send, by `receive`, when the socket becomes writable."""

    def close(self) -> None:
        self._ready.close()

    def transact(self, statements: list[Statement]) -> list[PGresult]:
        """Send the statements and commit; return the result of each. Raises the exceptions of `receive`."""
        self.send(statements)
        return self.wait()

    def wait(self) -> list[PGresult]:
        """Wait for the results of the statements that were sent. Raises the exceptions of `receive`."""
        while True:
            wanted = selectors.EVENT_READ | selectors.EVENT_WRITE if self.unsent else selectors.EVENT_READ
            self._ready.modify(self.socket, wanted)
            self._ready.select()
            if (results := self.receive()) is not None:
                return results

    def send(self, statements: list[Statement]) -> None:
        """Send the statements and a sync, which commits them, as far as the socket accepts data immediately.

        Raise `StatementFailed`, and send nothing, if a value cannot be encoded.
        """
        self._repeated = False
        self._send(statements)

    def _send(self, statements: list[Statement]) -> None:
        connection, names = self._connection, self._names
        dumped = [_dump(place, values) for place, (_, values) in enumerate(statements)]
        self._sent, self._results, self._named, self._has_failed = statements, [], [], False
        connection.enter_pipeline_mode()
        for (sql, values), sent in zip(statements, dumped, strict=True):
            if (name := names.get(sql)) is None:
                name = names[sql] = b"sf%d" % next(self._numbers)
                connection.send_prepare(name, sql, [_OIDS[type(value)] for value in values])
                self._named.append(sql)
            connection.send_query_prepared(name, sent, [_BINARY] * len(sent), _BINARY)
            self._named.append(None)
        connection.pipeline_sync()
        self.unsent = bool(connection.flush())

    def receive(self) -> list[PGresult] | None:
        """Return the result of each statement that was sent; None while the server has not answered all.

        Raise `StatementFailed` if nothing was committed. After any other error, such as
        `psycopg.OperationalError` for a lost connection, the outcome is unknown and the connection unusable.
        """
        connection = self._connection
        connection.consume_input()
        if self.unsent:
            self.unsent = bool(connection.flush())
        if not self._read_results():
            return None
        connection.exit_pipeline_mode()
        if not self._has_failed and len(self._results) == len(self._sent):
            return self._results  # nothing had to be prepared
        try:
            return self._checked(self._named, self._results)
        except StatementFailed as failed:
            if failed.sqlstate != _NO_SUCH_NAME or self._repeated:
                raise
        self._names.clear()  # psycopg drops all prepared statements of a connection when it rolls back
        self._repeated = True
        self._send(self._sent)
        return None

    def _read_results(self) -> bool:
        """Read the results that have arrived; return whether they are complete, up to the sync."""
        connection, silent = self._connection, 0
        while not connection.is_busy():
            result = connection.get_result()
            if result is None:
                silent += 1
                if silent > 1 and connection.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection was lost")
                continue
            silent, status = 0, result.status
            if status == ExecStatus.PIPELINE_SYNC:
                return True
            self._results.append(result)
            self._has_failed = self._has_failed or status not in _ANSWERED
            if connection.status == ConnStatus.BAD:
                raise psycopg.OperationalError("the connection was lost")
        return False

    def _checked(self, named: list[bytes | None], results: list[PGresult]) -> list[PGresult]:
        """Return the results of the statements; forget the names of those that could not be prepared."""
        failed: StatementFailed | None = None
        kept: list[PGresult] = []
        for place, result in enumerate(results):
            sql = named[place] if place < len(named) else None  # the last error may be that of the commit
            if result.status in _ANSWERED:
                if sql is None:
                    kept.append(result)
                continue
            if sql is not None:
                del self._names[sql]
            if failed is None:
                sqlstate = result.error_field(DiagnosticField.SQLSTATE) or b""
                failed = StatementFailed(len(kept), sqlstate.decode())
        if failed is not None:
            raise failed
        return kept


def read_ints(result: PGresult) -> tuple[int, ...]:
    """Return the only value of a result: a bigint, or an array of them."""
    value = result.get_value(0, 0) or b""
    if len(value) == _BIGINT.size:
        return _BIGINT.unpack(value)
    # an array has a header of 20 bytes, and a length of 4 before each value
    return tuple([_BIGINT.unpack_from(value, place)[0] for place in range(24, len(value), 12)])


def _dump(place: int, values: Sequence[Value]) -> list[bytes | None]:
    """Encode the values of the statement at *place*."""
    try:
        return [_DUMPERS[type(value)](value) for value in values]
    except (UnicodeEncodeError, struct.error):
        raise StatementFailed(place, _NO_SUCH_VALUE) from None
