"""Statements that are sent to the server at once, committed together and answered in one round trip.

Theory of operation
-------------------
Without `BEGIN`, the server treats everything up to a sync as one transaction and commits it there. So a
transaction that need not read before it writes is one message in each direction. Statements are prepared
under a name when they are first used on the connection, and their values are sent in binary. This talks to
libpq itself: psycopg's cursors cost five times as much CPU time.

Rule: a pooler that gives every transaction another connection knows no names; use none of this with one.
"""

from __future__ import annotations

import itertools
import selectors
import struct
from collections.abc import Sequence
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
_pack_int: Final = struct.Struct(">q").pack
_ANSWERED: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class StatementFailed(Exception):
    """The statement at `index` failed, and nothing was committed."""

    def __init__(self, index: int, sqlstate: str) -> None:
        super().__init__(f"statement {index} failed with {sqlstate}")
        self.index = index
        self.sqlstate = sqlstate


class Pipeline:
    """Transactions on the connection *raw*, between those that psycopg makes on it."""

    def __init__(self, raw: psycopg.Connection[Row]) -> None:
        self._connection = raw.pgconn
        self._names: dict[bytes, bytes] = {}
        self._numbers = itertools.count()
        self._ready = selectors.DefaultSelector()
        self._ready.register(raw.pgconn.socket, selectors.EVENT_READ)

    def close(self) -> None:
        self._ready.close()

    def transact(self, statements: list[Statement]) -> list[PGresult]:
        """Send the statements and commit; return the result of each.

        Raise `StatementFailed` if nothing was committed. After any other error the outcome is unknown and the
        connection of no more use: `psycopg.OperationalError` if it was lost.
        """
        try:
            return self._transact(statements)
        except StatementFailed as failed:
            if failed.sqlstate != _NO_SUCH_NAME:
                raise
        self._names.clear()  # psycopg gives up all names of a connection when it rolls back
        return self._transact(statements)

    def _transact(self, statements: list[Statement]) -> list[PGresult]:
        connection = self._connection
        dumped = [_dump(place, values) for place, (_, values) in enumerate(statements)]
        connection.enter_pipeline_mode()
        named: list[bytes | None] = []
        """For each result, the statement that it says is prepared; None for the result of a statement."""
        for (sql, values), sent in zip(statements, dumped, strict=True):
            if (name := self._names.get(sql)) is None:
                name = self._names[sql] = b"sf%d" % next(self._numbers)
                connection.send_prepare(name, sql, [_OIDS[type(value)] for value in values])
                named.append(sql)
            connection.send_query_prepared(name, sent, [_BINARY] * len(sent), _BINARY)
            named.append(None)
        connection.pipeline_sync()
        results = self._receive()
        connection.exit_pipeline_mode()
        return self._checked(named, results)

    def _receive(self) -> list[PGresult]:
        """Return the results up to the sync, whose own is left out unless it failed."""
        connection, results, silent = self._connection, list[PGresult](), 0
        while connection.flush():
            self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE)
            connection.consume_input()
        while True:
            while connection.is_busy():
                self._wait(selectors.EVENT_READ)
                connection.consume_input()
            result = connection.get_result()
            if result is None:
                silent += 1
                if silent > 1 and connection.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection was lost")
                continue
            silent = 0
            if result.status == ExecStatus.PIPELINE_SYNC:
                return results
            results.append(result)
            if connection.status == ConnStatus.BAD:
                raise psycopg.OperationalError("the connection was lost")

    def _wait(self, events: int) -> None:
        self._ready.modify(self._connection.socket, events)
        self._ready.select()

    def _checked(self, named: list[bytes | None], results: list[PGresult]) -> list[PGresult]:
        """Return the results of statements; forget the names of those that could not be prepared."""
        failed: StatementFailed | None = None
        kept: list[PGresult] = []
        for place, result in enumerate(results):
            sql = named[place] if place < len(named) else None  # the last one may be that of the commit
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
    """Return the only row of a result, of integers."""
    return tuple(
        int.from_bytes(result.get_value(0, column) or b"", "big", signed=True)
        for column in range(result.nfields)
    )


def _dump(place: int, values: Sequence[Value]) -> list[bytes | None]:
    """Return the values of the statement at *place* as they are sent."""
    try:
        return [_dumped(value) for value in values]
    except (UnicodeEncodeError, struct.error):
        raise StatementFailed(place, _NO_SUCH_VALUE) from None


def _dumped(value: Any) -> bytes | None:
    match value:
        case bytes() | None:
            return value
        case str():
            return value.encode()
        case int():
            return _pack_int(value)
        case _:
            raise TypeError(f"{type(value).__name__} cannot be sent")
