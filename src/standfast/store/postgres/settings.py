"""The server settings on which the rules of the journal depend, and the meaning of each.

A store rejects a server that acknowledges commits before they are on disk, and logs a warning about one that
would not detect damage. `standfast doctor` shows all of these settings.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import psycopg

from standfast.errors import NotConfigured
from standfast.store.sql.connection import Row

_log: Final = logging.getLogger("standfast")

_OLDEST: Final = 13
_READ: Final = b"""
SELECT current_setting('server_version'), current_setting('server_version_num')::int / 10000,
    current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
    current_setting('data_checksums'), current_setting('synchronous_standby_names')
"""


class Setting(NamedTuple):
    """One setting. `refused` is the reason why a store cannot use the server, `warning` what may go wrong."""

    name: str
    value: str
    refused: str | None = None
    warning: str | None = None


def read_settings(raw: psycopg.Connection[Row]) -> tuple[Setting, ...]:
    """Read the settings of the server behind a connection."""
    found = raw.execute(_READ).fetchone()
    assert found is not None
    version, major, fsync, commit, full_pages, checksums, standbys = found
    return (
        Setting("version", version, None if major >= _OLDEST else f"PostgreSQL {_OLDEST} or later is needed"),
        Setting("fsync", fsync, None if fsync == "on" else "a crash of the machine damages the database"),
        Setting(
            "synchronous_commit",
            commit,
            None if commit != "off" else "a crash of the server loses turns that were acknowledged",
            "after a failover the last turns may be missing" if standbys and commit == "local" else None,
        ),
        Setting(
            "full_page_writes",
            full_pages,
            warning=None if full_pages == "on" else "a power failure can damage pages",
        ),
        Setting(
            "data_checksums",
            checksums,
            warning=None if checksums == "on" else "a damaged page is not detected; see pg_checksums",
        ),
        Setting(
            "synchronous_standby_names",
            standbys or "(none)",
            warning=None if standbys else "a failover loses what its standby has not received yet",
        ),
    )


def require_durable(raw: psycopg.Connection[Row], name: str) -> None:
    """Raise `NotConfigured` if the server at *name* may lose acknowledged commits; log what else is wrong."""
    for setting in read_settings(raw):
        if setting.refused is not None:
            raise NotConfigured(
                f"PostgreSQL at {name} has {setting.name} = {setting.value}: {setting.refused}",
                hint=f"set {setting.name} = on on the server, or use another server",
            )
        if setting.warning is not None and setting.name != "synchronous_standby_names":
            _log.warning(
                "PostgreSQL at %s has %s = %s: %s", name, setting.name, setting.value, setting.warning
            )
