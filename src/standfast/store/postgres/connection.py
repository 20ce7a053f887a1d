"""Access to PostgreSQL: URLs, connections, transactions, and the translation of errors.

Theory of operation
-------------------
A transaction is a pipeline: a statement is sent immediately, and its result is read when the caller needs it,
or at the end. So a write takes two round trips, one for its reads and one for its writes with the commit. The
first statement of every transaction sets the schema and the timeouts for this transaction alone, and reads
the transaction's number and the time. So nothing depends on the state of the connection, which a pooler may
change for every transaction. Without a pooler, these settings are made once, when the connection is opened,
and only writes read their number.

Rules
-----
1. The isolation level is `READ COMMITTED`, and a write locks its sessions before it reads them
   (`store.sql.connection`). A statement after the lock sees everything that earlier transactions committed.
2. If the answer to a commit was lost, its outcome is looked up by the transaction's number, never guessed.
3. The server ends a transaction that is idle for `_IDLE_MS`, so that a stopped or disconnected process keeps
   no locks.
4. Error messages contain the host and the database, never the password.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg import conninfo
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

from standfast.errors import InvalidArgument, RecordCorrupt, StandfastError, StoreError, StoreUnavailable
from standfast.store.postgres.dialect import ENTRIES_PER_WRITE, is_query, to_postgres
from standfast.store.sql.connection import Row

_SCHEMA: Final = "standfast"
_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_STATEMENT_MS: Final = 60_000
_LOCK_MS: Final = 10_000
_IDLE_MS: Final = 5_000
_DEFAULTS: Final = {
    "application_name": "standfast",
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",
}

_SERVER_KEEPALIVE: Final = b"""
SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '10000', false)
"""
"""The server, too, must detect a disconnected client: in a pipeline, no other timeout ends its transaction,
which would keep its sessions locked for two hours, the system's default."""

NOW_MS: Final = b"(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_NUMBER: Final = b"pg_current_xact_id()::text, pg_postmaster_start_time()::text"


def _settings(*, local: bool) -> bytes:
    """Return columns of a SELECT that makes the settings, of a transaction if *local*; $1 is the schema."""
    until = "true" if local else "false"
    values = {"statement_timeout": _STATEMENT_MS, "lock_timeout": _LOCK_MS}
    values["idle_in_transaction_session_timeout"] = _IDLE_MS
    timeouts = [f"set_config('{name}', '{value}', {until})" for name, value in values.items()]
    return ", ".join([f"set_config('search_path', $1, {until})", *timeouts]).encode()


_SEQUENCES: Final = {
    "'segments_key'": "SELECT max(key) FROM segments",
    "'states_key'": "SELECT max(key) FROM states",
    "'journal_seq'": f"SELECT max(seq) / {ENTRIES_PER_WRITE} FROM journal",  # noqa: S608
    "pg_get_serial_sequence('sessions', 'key')": "SELECT max(key) FROM sessions",
    "pg_get_serial_sequence('turns', 'key')": "SELECT max(key) FROM turns",
    "pg_get_serial_sequence('inputs', 'seq')": "SELECT max(seq) FROM inputs",
    "pg_get_serial_sequence('tasks', 'seq')": "SELECT max(seq) FROM tasks",
}
"""The sequences of keys, each with a query for the highest key in use."""

_LOCK_SESSIONS: Final = b"SELECT 1 FROM sessions WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"
_LOCK_FAMILY: Final = b"SELECT 1 FROM sessions WHERE family = $1 ORDER BY id FOR NO KEY UPDATE"


class Address(msgspec.Struct, frozen=True):
    """The location of a store: the connection parameters, the schema of the tables, and a name for messages.

    `blobs` is the URL of the object store for large blobs.
    """

    conninfo: str
    schema: str
    name: str
    blobs: str | None = None

    @property
    def channel(self) -> str:
        """The name of the channel for announcements."""
        return f"standfast_{self.schema}"[:63]


def parse_url(url: str) -> Address:
    """Parse a libpq URL. `schema=` may name the schema of the tables, `blobs=` the store for large blobs."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    schema = dict(options).get("schema", _SCHEMA)
    if not _SCHEMA_NAME.fullmatch(schema):
        raise InvalidArgument(
            f"schema must be a name of lower-case letters, digits and _, got {schema[:80]!r}"
        )
    rest = urlencode([(name, value) for name, value in options if name not in ("schema", "blobs")])
    try:
        given = conninfo.conninfo_to_dict(urlunsplit(parts._replace(query=rest)))
    except psycopg.Error as error:
        raise InvalidArgument(
            f"the URL of the store is wrong: {str(error).strip()}",
            hint="write postgresql://USER:PASSWORD@HOST:PORT/DATABASE",
        ) from None
    name = f"{given.get('host') or given.get('hostaddr') or 'localhost'}/{given.get('dbname') or ''}"
    settings: dict[str, Any] = {**_DEFAULTS, **given}
    return Address(conninfo.make_conninfo(**settings), schema, name, dict(options).get("blobs"))


class PostgresCursor(psycopg.RawCursor[Row]):
    """A cursor for `store.sql`, with numbered placeholders and binary results."""

    @property
    def get(self) -> Any:
        row = self.fetchone()
        return row[0] if row is not None and len(row) == 1 else row


class _IntDumper(Int8BinaryDumper):
    """Sends every integer as bigint, so that a statement is prepared once, not once per integer size."""


def connect(address: Address) -> psycopg.Connection[Row]:
    """Open a connection. It uses prepared statements, unless there is a pooler before the server."""
    raw: psycopg.Connection[Row] = psycopg.connect(
        address.conninfo, autocommit=True, cursor_factory=PostgresCursor
    )
    configure(raw, address.schema)
    return raw


def configure(raw: psycopg.Connection[Row], schema: str) -> None:
    """Prepare a new connection for the statements of a store in *schema*."""
    raw.adapters.register_dumper(int, _IntDumper)
    raw.adapters.register_dumper(str, StrBinaryDumper)
    pooled = is_pooled(raw)
    raw.prepare_threshold = None if pooled else 2
    if not pooled:
        raw.execute(_SERVER_KEEPALIVE)
        raw.execute(b"SELECT " + _settings(local=False), (schema,))


def is_own(raw: psycopg.Connection[Row]) -> bool:
    """Return whether `configure` found no pooler: settings and prepared statements outlast transactions."""
    return raw.prepare_threshold is not None


def is_pooled(raw: psycopg.Connection[Row]) -> bool:
    """Return whether the connection is to a pooler, which reports process ids of its own."""
    found = raw.execute(b"SELECT pg_backend_pid()").fetchone()
    return found is not None and found[0] != raw.info.backend_pid


@contextlib.contextmanager
def pipelined(raw: psycopg.Connection[Row]) -> Iterator[None]:
    """Send statements without waiting for the results of earlier ones. The first of several errors is raised.

    psycopg's own context manager would log the errors that follow a lost connection.
    """
    failed: BaseException | None = None
    try:
        with raw.pipeline():
            try:
                yield
            except BaseException as error:
                failed = error
    except Exception:
        if failed is None:
            raise
    if failed is not None:
        raise failed


class Transaction:
    """One transaction on a connection in pipeline mode. It implements `store.sql.connection.Connection`.

    With *database_clock*, leases use the server's time instead of the caller's.
    """

    indexes_journal = True

    def __init__(self, raw: psycopg.Connection[Row], address: Address, *, database_clock: bool) -> None:
        self._raw = raw
        self._address = address
        self._database_clock = database_clock
        self._opened: PostgresCursor | None = None
        self._opening: Row | None = None
        self._sent: list[tuple[PostgresCursor, Exception | None, object]] = []
        self.asked: dict[tuple[str, tuple[Any, ...]], PostgresCursor] = {}
        """Queries that were sent ahead, and whose results have not been requested yet."""
        self._locked: set[str] = set()
        self.announced: list[str] = []
        """The texts to announce once the transaction is committed."""
        self.writes = 0
        """The number of sent statements that may change something."""
        self.sender: object = None
        """The job whose statements are being sent."""
        self.committing = False
        """Whether the COMMIT may have reached the server."""

    def begin(self, *, to_write: bool) -> None:
        if to_write:
            self._send(b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        else:
            self._send(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        wanted = [NOW_MS, _NUMBER] if to_write else []
        if is_own(self._raw):
            self._opened = self._send(b"SELECT " + b", ".join(wanted)) if to_write else None
        else:
            columns = b", ".join([*(wanted or [NOW_MS]), _settings(local=True)])
            self._opened = self._send(b"SELECT " + columns, (self._address.schema,))

    def commit(self) -> None:
        """Send the commit. Leaving the pipeline waits for the answer."""
        if not self.writes:
            self._send(b"COMMIT")  # not ROLLBACK, after which psycopg would prepare its statements again
            return
        self._read_opening()  # the number of the transaction must be known before the commit is sent
        self.committing = True
        self._send(b"COMMIT")

    @property
    def number(self) -> str:
        """The number of this transaction, with which the server can be asked whether it was committed."""
        return str(self._read_opening()[1])

    @property
    def server_start(self) -> str:
        """The start time of the server that ran this transaction.

        After a crash, the server reuses numbers.
        """
        return str(self._read_opening()[2])

    def failed(self) -> tuple[object, Exception | None]:
        """Return the job whose statement failed, and the error that the failure represents, if known."""
        for cursor, refusal, sender in self._sent:
            if cursor.pgresult is None:
                return sender, refusal
        return None, None

    def ask(self, sql: str, values: tuple[Any, ...]) -> None:
        """Send a query ahead; a later `execute` of the same query returns its result."""
        self.asked[sql, values] = self._send(to_postgres(sql), values)

    # The interface that the functions of `store.sql` use

    def execute(self, sql: str, values: Sequence[Any] = ()) -> PostgresCursor:
        if self.asked and (asked := self.asked.pop((sql, tuple(values)), None)) is not None:
            return asked
        self.writes += not is_query(sql)
        return self._send(to_postgres(sql), values)

    def insert_new(
        self, sql: str, values: Sequence[Any], refusal: Callable[..., Exception], *about: Any
    ) -> None:
        self.writes += 1
        self._send(to_postgres(sql), values, refusal(*about))

    def lock_sessions(self, session_ids: Iterable[str]) -> None:
        if wanted := set(session_ids) - self._locked:
            self._locked |= wanted
            self._send(_LOCK_SESSIONS, (sorted(wanted),))

    def lock_family(self, family: int) -> None:
        self._send(_LOCK_FAMILY, (family,))

    def lock_blobs(self) -> None:
        self._send(b"LOCK TABLE blobs IN SHARE ROW EXCLUSIVE MODE")

    def skip_used_keys(self) -> None:
        self.writes += 1
        for sequence, highest in _SEQUENCES.items():
            self._send(f"SELECT setval({sequence}, coalesce(({highest}), 0) + 1)".encode())

    def announce(self, text: str) -> None:
        self.announced.append(text)

    def size_bytes(self) -> int:
        sql = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = current_schema() AND c.relkind = 'r'"
        )
        return int(self.execute(sql).get)

    def lease_now(self, claimed_ms: int) -> int:
        return int(self._read_opening()[0]) if self._database_clock else claimed_ms

    def _read_opening(self) -> Row:
        if self._opening is None:
            opened = self._opened or self._send(b"SELECT " + NOW_MS)
            self._opening = opened.fetchone()
            assert self._opening is not None
        return self._opening

    def _send(
        self, sql: bytes, values: Sequence[Any] = (), refusal: Exception | None = None
    ) -> PostgresCursor:
        cursor: PostgresCursor = self._raw.cursor(binary=True)  # type: ignore[assignment]
        self._sent.append((cursor, refusal, self.sender))
        cursor.execute(sql, values)
        return cursor


class SeveralStatements(Exception):
    """A query needs a transaction, because it has more than one statement."""


class SingleRead:
    """A connection for queries of a single statement, which needs no transaction to see a consistent state.

    It raises `SeveralStatements` for any other query. *several* has the first statements of such queries that
    were met before; these are rejected without sending anything.
    """

    def __init__(self, raw: psycopg.Connection[Row], several: set[str]) -> None:
        self._raw = raw
        self._several = several
        self._first = ""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> PostgresCursor:
        if self._first or sql in self._several:
            self._several.add(self._first or sql)
            raise SeveralStatements
        self._first = sql
        cursor: PostgresCursor = self._raw.cursor(binary=True)  # type: ignore[assignment]
        cursor.execute(to_postgres(sql), values)
        return cursor

    def __getattr__(self, name: str) -> Any:
        raise SeveralStatements


# Errors

_TRANSIENT: Final = ("08", "25006", "25P03", "26000", "40", "53", "55P03", "57")
"""Prefixes of the codes of transient errors: lost connections, a server that became a standby, lost prepared
statements, conflicts of transactions, exhausted resources, locks, timeouts, a server that shuts down."""

_DAMAGED: Final = ("XX001", "XX002")


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt, perhaps on another connection, may succeed."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return error.sqlstate.startswith(_TRANSIENT)


def translated(error: BaseException, name: str) -> BaseException:
    """Convert an error of the server at *name* to one of ours; return any other error unchanged."""
    match error:
        case StandfastError():
            return error
        case UnicodeEncodeError():
            found: StandfastError = InvalidArgument("a string holds a lone surrogate")
        case psycopg.DataError() if error.sqlstate in (None, "22021"):
            found = InvalidArgument("a string holds a NUL character, which PostgreSQL cannot store")
        case psycopg.Error():
            found = _store_error(error, name)
        case _:
            return error
    found.__cause__ = error
    return found


def _store_error(error: psycopg.Error, name: str) -> StandfastError:
    problem = str(error).strip().partition("\n")[0]
    if error.sqlstate in _DAMAGED:
        damaged = RecordCorrupt("")
        damaged.message = f"PostgreSQL at {name} is damaged: {problem}"
        damaged.hint = "restore the database from a backup and check the server's disk"
        return damaged
    if is_transient(error):
        return StoreUnavailable(
            f"PostgreSQL at {name} is not available: {problem}", hint="check the server, then retry"
        )
    return StoreError(f"PostgreSQL at {name} refused: {problem}")
