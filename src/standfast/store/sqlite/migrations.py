"""The versions of the tables in a SQLite file, and how they are brought to the last one.

A component brings its tables as migrations: SQL, or a function that is given the connection.
`standfast_schema` has how many of them the file has had. Components are migrated in their order, so that a
function may use the tables of those before its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import apsw

from standfast.errors import SchemaTooNew
from standfast.model.former_name import FORMER_SCHEMA_TABLE

_TABLE: Final = "standfast_schema"

Migration = str | Callable[[apsw.Connection], None]
Components = Mapping[str, Sequence[Migration]]
"""Migrations by the name of their component."""

_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS standfast_schema (
    component TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT
"""


def is_behind(db: apsw.Connection, components: Components) -> bool:
    return _version_table(db) == FORMER_SCHEMA_TABLE or any(
        _version(db, name) != len(known) for name, known in components.items()
    )


def has_old_tables(db: apsw.Connection, components: Components) -> bool:
    """Whether a reader needs migrations that change more than the version."""
    missing = [one for name, known in components.items() for one in known[_version(db, name) :]]
    return any(map(_changes_tables, missing))


def refuse_newer(db: apsw.Connection, components: Components, path: Path) -> None:
    """Raise `SchemaTooNew` if a later release has migrated the file *path*."""
    for name, known in components.items():
        if (version := _version(db, name)) > len(known):
            raise SchemaTooNew(
                f"{path} has version {version} of the {name} tables, "
                f"this Standfast knows versions up to {len(known)}",
                hint="upgrade Standfast, or use another file",
            )


def migrate_all(db: apsw.Connection, components: Components, path: Path) -> None:
    """Bring all tables of the file *path* to their last version, inside the caller's transaction."""
    refuse_newer(db, components, path)
    if _version_table(db) == FORMER_SCHEMA_TABLE:
        db.execute(f"ALTER TABLE {FORMER_SCHEMA_TABLE} RENAME TO {_TABLE}")
    db.execute(_VERSIONS)
    for name, known in components.items():
        for migration in known[_version(db, name) :]:
            if callable(migration):
                migration(db)
            else:
                db.execute(migration)
        db.execute(
            "INSERT INTO standfast_schema VALUES (?1, ?2) ON CONFLICT DO UPDATE SET version = ?2",
            (name, len(known)),
        )


def _version(db: apsw.Connection, component: str) -> int:
    table = _version_table(db)
    if table is None:
        return 0
    return int(db.execute(f"SELECT version FROM {table} WHERE component = ?", (component,)).get or 0)  # noqa: S608


def _version_table(db: apsw.Connection) -> str | None:
    """Return the name of the table with the versions, which may be its former one; None in a new file."""
    # `table_exists` would answer from what this connection knew before others made the table.
    names = "SELECT name FROM sqlite_schema WHERE name IN (?, ?) ORDER BY name DESC"
    found: str | None = db.execute(names, (_TABLE, FORMER_SCHEMA_TABLE)).get
    return found


def _changes_tables(migration: Migration) -> bool:
    """Whether there is more in a migration than comments."""
    if callable(migration):
        return True
    lines = (line.strip() for line in migration.splitlines())
    return any(line and not line.startswith("--") for line in lines)
