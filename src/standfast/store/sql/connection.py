"""The connection interface of this package, which every SQL database implements.

Theory of operation
-------------------
The other modules of this package contain the work inside transactions, in SQLite's dialect of SQL. SQLite's
connection executes it unchanged. PostgreSQL's translates the few fragments that differ (`postgres.dialect`),
sends a statement whose result is not read immediately together with the next ones, and takes the locks that
SQLite's single writer makes unnecessary.

Rules
-----
1. A statement whose rows are not read costs no round trip. So a write reads first and writes last, and its
   statements that write return no rows.
2. A write that changes data of a session locks the session first and reads it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]


class ResultRows(Protocol):
    """The rows of one statement."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...

    @property
    def get(self) -> Any:
        """Return the first row, or its value if it has one column; None if there is no row."""


class Connection(Protocol):
    """A connection inside a transaction.

    `indexes_journal` tells whether the journal has a unique index of turn, name and kind.
    """

    indexes_journal: bool

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> ResultRows: ...

    def insert_new(
        self, sql: str, values: Sequence[Any], refusal: Callable[..., Exception], *about: Any
    ) -> None:
        """Insert a row; raise *refusal* of *about*, here or at the transaction's end, if its key is taken."""

    def lock_sessions(self, session_ids: Iterable[str]) -> None:
        """Keep others from changing these sessions, as far as they exist, until the transaction ends."""

    def lock_family(self, family: int) -> None:
        """Keep others from changing the sessions of a family, or adding one, until the transaction ends."""

    def lock_blobs(self) -> None:
        """Keep others from storing blobs until the transaction ends."""

    def skip_used_keys(self) -> None:
        """Advance the key sequences past rows that were inserted with explicit keys."""

    def announce(self, text: str) -> None:
        """Send *text* to the listening processes when the transaction is committed."""

    def size_bytes(self) -> int:
        """Return the size of the database on disk, in bytes."""

    def lease_now(self, claimed_ms: int) -> int:
        """Return the time of the leases' clock: the database's, or *claimed_ms*, the caller's."""
