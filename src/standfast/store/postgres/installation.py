"""Data that all machines of an installation share in its database, besides the sessions."""

from __future__ import annotations

import psycopg

from standfast.errors import StoreUnavailable
from standfast.store.postgres.connection import connect, is_pooled, parse_url, translated
from standfast.store.postgres.schema import migrate
from standfast.store.postgres.settings import Setting, read_settings


def snapshot_key(url: str) -> bytes:
    """Return the key that signs snapshots on all machines that use the store at *url*."""
    address = parse_url(url)
    try:
        with connect(address) as raw:
            migrate(raw, address.schema)
            table = f"SELECT snapshot_key FROM {address.schema}.installation"  # noqa: S608 (a checked name)
            row = raw.execute(table.encode()).fetchone()
    except psycopg.Error as error:
        raise translated(error, address.name) from error
    if row is None:
        raise StoreUnavailable(f"PostgreSQL at {address.name} has no snapshot key in `installation`")
    return bytes(row[0])


def set_snapshot_key(url: str, key: bytes) -> None:
    """Make all machines that use the store at *url* sign snapshots with *key*."""
    address = parse_url(url)
    try:
        with connect(address) as raw:
            raw.execute(f"UPDATE {address.schema}.installation SET snapshot_key = $1".encode(), (key,))  # noqa: S608
    except psycopg.Error as error:
        raise translated(error, address.name) from error


def examine(url: str) -> tuple[tuple[Setting, ...], int | None]:
    """Return the settings of the server at *url*, and the store's number of sessions, None without tables.

    Nothing is changed.
    """
    address = parse_url(url)
    try:
        with connect(address) as raw:
            pooled = "yes: no announcements, no prepared statements" if is_pooled(raw) else "no"
            settings = (*read_settings(raw), Setting("pooler", pooled))
            found = raw.execute(b"SELECT to_regclass($1)", (f"{address.schema}.sessions",)).fetchone()
            if found == (None,):
                return settings, None
            count = raw.execute(f"SELECT count(*) FROM {address.schema}.sessions".encode()).fetchone()  # noqa: S608
    except psycopg.Error as error:
        raise translated(error, address.name) from error
    return settings, 0 if count is None else int(count[0])
