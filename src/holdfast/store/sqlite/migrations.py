"""The versions of the tables in a SQLite file, and how they are brought to the last one.

A component brings its tables as migrations. `holdfast_schema` has how many of them the file has had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import SchemaTooNew

Components = Mapping[str, Sequence[str]]
"""Migrations by the name of their component."""

_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS holdfast_schema (
    component TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT
"""


def is_behind(db: apsw.Connection, components: Components) -> bool:
    return any(_version(db, name) != len(known) for name, known in components.items())


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
                f"this Holdfast knows versions up to {len(known)}",
                hint="upgrade Holdfast, or use another file",
            )


def migrate_all(db: apsw.Connection, components: Components, path: Path) -> None:
    """Bring all tables of the file *path* to their last version, inside the caller's transaction."""
    refuse_newer(db, components, path)
    for name, known in components.items():
        _migrate(db, name, known)


def _migrate(db: apsw.Connection, component: str, migrations: Sequence[str]) -> None:
    version = _version(db, component)
    db.execute(_VERSIONS)
    for migration in migrations[version:]:
        db.execute(migration)
    db.execute(
        "INSERT INTO holdfast_schema VALUES (?1, ?2) ON CONFLICT DO UPDATE SET version = ?2",
        (component, len(migrations)),
    )


def _version(db: apsw.Connection, component: str) -> int:
    # `table_exists` would answer from what this connection knew before others made the table.
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdfast_schema'").get is None:
        return 0
    found = db.execute("SELECT version FROM holdfast_schema WHERE component = ?", (component,)).get
    return int(found or 0)


def _changes_tables(migration: str) -> bool:
    """Whether there is more in a migration than comments."""
    lines = (line.strip() for line in migration.splitlines())
    return any(line and not line.startswith("--") for line in lines)
