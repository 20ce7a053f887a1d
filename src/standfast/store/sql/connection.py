"""The connection that the functions of this package write through, whichever database is behind it.

Theory of operation
-------------------
The modules beside this one hold what happens inside a transaction, in SQL that SQLite understands. SQLite's
connection runs it as it is. PostgreSQL's translates the few fragments that differ (`postgres.dialect`), sends
a statement whose result is not read at once together with the next ones, and takes the locks that SQLite's
single writer makes unnecessary.

Rules
-----
1. A statement whose rows are not read costs no round trip. So a write reads first, writes last, and learns
   nothing from what it writes.
2. A write that changes what belongs to a session locks the session first and reads it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]


class Cursor(Protocol):
    """The rows of one statement."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...

    @property
    def get(self) -> Any:
        """The first row, or its value if it has one column; None if there is no row."""


class Connection(Protocol):
    """A connection inside a transaction."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor: ...

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
        """Make no key again that a row has which was inserted with its key."""

    def announce(self, text: str) -> None:
        """Tell the processes that listen, when the transaction is committed."""

    def size_bytes(self) -> int:
        """Return how many bytes the database has on disk."""

    def lease_now(self, claimed_ms: int) -> int:
        """Return the time that leases go by: the database's, or *claimed_ms*, which is the caller's."""
