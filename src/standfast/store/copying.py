"""Copying a store: every row of one SQL store is copied to another, which is then identical.

Theory of operation
-------------------
Both stores have the same tables, and every row has a digest. Table by table, the keys and digests of both
sides are compared; differing and surplus rows of the target are deleted, and missing rows are copied, in
transactions of limited size. So an interrupted copy is resumed by starting it again. At the end every table
is compared once more, and every row of the target is read and checked against its digest.

Rules
-----
1. A target that has sessions is only written to if it is an unfinished copy of the same source.
2. The source must not be in use. A source with a turn that a live process runs is refused. If the source
   changes during the copy, the last comparison fails, and the copy has to be started again.
3. Blobs in an object store stay there, and both stores refer to them. So that neither deletes them, each
   store gets a new folder (`object_blobs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument, SessionBusy, StoreError
from standfast.store.sql import records
from standfast.store.sql.connection import Connection, Row
from standfast.store.sql.sessions import SqlDatabase
from standfast.store.sql.tables import CHECKS, TABLES, Table

_BATCH: Final = 200
_BATCH_BYTES: Final = 8_000_000
_MARK: Final = ("standfast", "copy", "source")
"""The key of the plugin record that names the source of an unfinished copy."""

_OWN: Final = (_MARK, records.FOLDER)
"""Records that are not copied, because each store has its own."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows in the target, and how many of them this run copied."""

    rows: int
    copied: int


def copy_store(
    source: SqlDatabase,
    target: SqlDatabase,
    name: str,
    now_ms: int,
    is_dead: Callable[[str], bool],
    copy_key: Callable[[], None] = lambda: None,
) -> Copied:
    """Copy *source* to *target*. *name* identifies the source if the copy is interrupted and resumed.

    *copy_key* copies what is not in the tables: the key that signs snapshots.
    """
    sql = "SELECT id, owner FROM sessions WHERE owner IS NOT NULL AND until_ms > ?"
    for session_id, owner in source.read_consistently(lambda db: db.execute(sql, (now_ms,)).fetchall()):
        if not is_dead(owner):
            raise SessionBusy(session_id, owner)
    _claim(target, name, now_ms)
    copied = sum(_copy_table(source, target, table) for table in TABLES)
    target.write(lambda db: db.skip_used_keys())
    rows = _verify(source, target)
    if source.read_consistently(lambda db: records.plugin_record(db, *records.FOLDER)) is not None:
        source.write(lambda db: records.put_plugin_record(db, *records.FOLDER, None, now_ms))
    copy_key()
    target.write(lambda db: records.put_plugin_record(db, *_MARK, None, now_ms))  # cannot be resumed any more
    return Copied(rows=rows, copied=copied)


def _claim(target: SqlDatabase, name: str, now_ms: int) -> None:
    """Mark the target as a copy of *name*; raise `InvalidArgument` if it has sessions of its own."""

    def claim(db: Connection) -> None:
        found = records.plugin_record(db, *_MARK)
        if found is None and db.execute("SELECT 1 FROM sessions LIMIT 1").get is not None:
            raise InvalidArgument("the target already has sessions", hint="name an empty store")
        if found is not None and found != name.encode():
            raise InvalidArgument(
                f"the target is an unfinished copy of {found.decode(errors='replace')}",
                hint="finish that copy, or name an empty store",
            )
        records.put_plugin_record(db, *_MARK, name.encode(), now_ms)

    target.write(claim)


def _copy_table(source: SqlDatabase, target: SqlDatabase, table: Table) -> int:
    """Copy the rows of a table that are missing in the target; return how many."""
    wanted, there = _digests(source, table), _digests(target, table)
    too_many = [key for key, digest in there.items() if wanted.get(key) != digest]
    for keys in _batches(too_many):
        target.write(partial(_delete, table=table, keys=keys))
    missing = [key for key, digest in wanted.items() if there.get(key) != digest]
    for rows in _rows(source, table, missing):
        target.write(partial(_insert, table=table, rows=rows))
    return len(missing)


def _digests(database: SqlDatabase, table: Table) -> dict[Row, Any]:
    """Return the digest of every row of a table by key, except for records that each store has of its own."""
    sql = f"SELECT {', '.join((*table.key, table.digest))} FROM {table.name}"  # noqa: S608 (our own names)
    found: list[Row] = database.read_consistently(lambda db: db.execute(sql).fetchall())
    return {tuple(row[:-1]): row[-1] for row in found if tuple(row[:-1]) not in _OWN}


def _rows(source: SqlDatabase, table: Table, keys: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows of these keys, in lists of limited size."""
    pending: list[Row] = []
    size = 0
    for batch in _batches(keys, 1 if table.name == "blobs" else _BATCH):
        found = source.read_consistently(partial(_read, table=table, keys=batch))
        pending += found
        size += sum(len(value) for row in found for value in row if isinstance(value, (bytes, str)))
        if size > _BATCH_BYTES or len(pending) >= _BATCH:
            yield pending
            pending, size = [], 0
    if pending:
        yield pending


def _read(db: Connection, table: Table, keys: list[Row]) -> list[Row]:
    columns = ", ".join(table.columns)
    sql = f"SELECT {columns} FROM {table.name} WHERE {_in(table, len(keys))}"  # noqa: S608
    return db.execute(sql, _flat(keys)).fetchall()


def _delete(db: Connection, table: Table, keys: list[Row]) -> None:
    db.execute(f"DELETE FROM {table.name} WHERE {_in(table, len(keys))}", _flat(keys))  # noqa: S608


def _insert(db: Connection, table: Table, rows: list[Row]) -> None:
    places = ", ".join("?" * len(table.columns))
    sql = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"  # noqa: S608
    for row in rows:
        db.execute(sql, row)


def _verify(source: SqlDatabase, target: SqlDatabase) -> int:
    """Compare all tables, and check every row of the target; return how many rows it has."""
    count = 0
    for table in TABLES:
        there = _digests(target, table)
        if _digests(source, table) != there:
            raise StoreError(
                f"the table {table.name} of the source was changed while it was copied",
                hint="end the programs that use the source, then run the command again",
            )
        count += len(there)
    for sql, check in CHECKS:
        target.read_consistently(partial(_check, sql=sql, check=check))
    return count


def _check(db: Connection, sql: str, check: Callable[[Row], object]) -> None:
    for row in db.execute(sql):
        check(row)


def _in(table: Table, count: int) -> str:
    """Return the condition that a row has one of *count* keys."""
    one = f"({', '.join('?' * len(table.key))})"
    return f"({', '.join(table.key)}) IN (VALUES {', '.join([one] * count)})"


def _flat(keys: list[Row]) -> Row:
    return tuple(value for key in keys for value in key)


def _batches(keys: list[Row], size: int = _BATCH) -> Iterator[list[Row]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]
