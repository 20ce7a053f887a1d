"""The tables of a store, and their migrations to the latest version.

Theory of operation
-------------------
A component defines its tables as migrations: SQL, or a function of the connection.
`standfast_schema` records how many of them have been applied to the file. Components are migrated in their
order, so a function may use the tables of those before its own.

Rules
-----
1. A released migration never changes; a new one is appended to its component's list.
2. Blobs come last in a row, so that SQLite can read the columns before them without reading the blobs.
3. Segments and sessions are linked by integers: a path is walked inside SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from standfast.errors import SchemaTooNew
from standfast.model.former_name import FORMER_SCHEMA_TABLE
from standfast.store.sqlite.connection import SqliteConnection

_TABLE: Final = "standfast_schema"

Migration = str | Callable[[SqliteConnection], None]
Components = Mapping[str, Sequence[Migration]]
"""Migrations by the name of their component."""

_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS standfast_schema (
    component TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT
"""

SESSIONS: Final[tuple[Migration, ...]] = (
    """
    -- `family` is shared by a session and its forks; `leaf_key` is the segment of the leaf. `owner` holds the
    -- lease, if any process does. Keys are never reused, and a session's fences start at key << 32, so an old
    -- owner's fence is invalid for a later session of the same name.
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        family INTEGER NOT NULL,
        leaf_key INTEGER,
        fence INTEGER NOT NULL,
        owner TEXT,
        until_ms INTEGER NOT NULL,
        digest BLOB NOT NULL,
        head BLOB NOT NULL
    ) STRICT;
    CREATE INDEX sessions_by_family ON sessions (family);

    -- `up` is the parent's segment and `up_at` the parent's position in it; `opens_at` is the position of the
    -- first node that opens a frame.
    CREATE TABLE segments (
        key INTEGER PRIMARY KEY,
        segment_id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL,
        family INTEGER NOT NULL,
        up INTEGER,
        up_at INTEGER,
        opens_at INTEGER,
        depth INTEGER NOT NULL,
        model_calls INTEGER NOT NULL,
        parent TEXT,
        frame TEXT NOT NULL,
        caused_by TEXT,
        digest BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX segments_by_family ON segments (family);

    CREATE TABLE turns (
        key INTEGER PRIMARY KEY,
        turn_id TEXT NOT NULL UNIQUE,
        session INTEGER NOT NULL,
        state TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        ended_at INTEGER,
        cancel INTEGER NOT NULL,
        echoes INTEGER NOT NULL,
        agent TEXT NOT NULL,
        input_digest TEXT NOT NULL,
        idempotency_key TEXT,
        digest BLOB NOT NULL,
        summary BLOB,
        input BLOB
    ) STRICT;
    CREATE INDEX turns_by_session ON turns (session);
    CREATE UNIQUE INDEX turns_open ON turns (session) WHERE state <> 'ended';
    CREATE UNIQUE INDEX turns_by_idempotency_key ON turns (session, idempotency_key)
        WHERE idempotency_key IS NOT NULL;

    CREATE TABLE journal (
        seq INTEGER PRIMARY KEY,
        turn_id TEXT NOT NULL,
        name TEXT NOT NULL,
        kind TEXT NOT NULL,
        digest BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX journal_by_turn ON journal (turn_id, name, kind);

    -- A claimed input keeps its row without its body, so that a repeated input is not delivered twice.
    CREATE TABLE inputs (
        seq INTEGER PRIMARY KEY,
        input_id TEXT NOT NULL UNIQUE,
        session INTEGER NOT NULL,
        kind TEXT NOT NULL,
        content BLOB NOT NULL,
        digest BLOB NOT NULL,
        body BLOB
    ) STRICT;
    CREATE INDEX inputs_by_session ON inputs (session, kind);

    -- Without `wait`, the row is a completion that arrived before its wait was saved. `stands` means that the
    -- turn resumes when this wait is over.
    CREATE TABLE waits (
        turn_id TEXT NOT NULL,
        wait_id TEXT NOT NULL,
        stands INTEGER NOT NULL,
        digest BLOB NOT NULL,
        wait BLOB,
        outcome BLOB,
        PRIMARY KEY (turn_id, wait_id)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE blobs (
        digest TEXT PRIMARY KEY,
        seal BLOB NOT NULL,
        data BLOB NOT NULL
    ) STRICT;

    -- Journals that no sandbox run owns, and when that was first noticed.
    CREATE TABLE sandbox_leftovers (
        run_id TEXT PRIMARY KEY,
        seen_at INTEGER NOT NULL
    ) STRICT;
    """,
    """
    -- The state at the segment's end when it was appended. A row's digest covers it only if it is set, so
    -- that the digests of older segments stay valid.
    ALTER TABLE segments ADD COLUMN state INTEGER;

    -- The state of plugins and tools. `session` wrote it when `node` was its leaf; `previous` is the state
    -- before. `sum` is the digest of `body`, so that a line of states is walked and checked without the
    -- bodies. Keys are never reused, because other records refer to a state by its key.
    CREATE TABLE states (
        key INTEGER PRIMARY KEY AUTOINCREMENT,
        family INTEGER NOT NULL,
        session INTEGER NOT NULL,
        previous INTEGER,
        node TEXT,
        depth INTEGER NOT NULL,
        digest BLOB NOT NULL,
        sum BLOB NOT NULL,
        blobs BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX states_by_family ON states (family);
    CREATE INDEX states_by_node ON states (session, node);

    -- Data that plugins store beyond one session.
    CREATE TABLE shelf (
        plugin_id TEXT NOT NULL,
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        updated_at INTEGER NOT NULL,
        digest BLOB NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (plugin_id, scope, name)
    ) STRICT;
    """,
    """
    -- The session that created this one, as in the head's charter, for finding the children of a session.
    ALTER TABLE sessions ADD COLUMN parent TEXT;
    CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;

    -- For finding the sessions in which a turn could begin.
    CREATE INDEX inputs_queued ON inputs (session) WHERE kind = 'queue';

    -- `live` is 1 until the task is over.
    CREATE TABLE tasks (
        seq INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        task_id TEXT NOT NULL,
        live INTEGER NOT NULL,
        digest BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX tasks_by_session ON tasks (session, task_id);
    CREATE INDEX tasks_live ON tasks (session) WHERE live = 1;

    -- `due` is the next scheduled time of the source.
    CREATE TABLE triggers (
        name TEXT PRIMARY KEY,
        session INTEGER NOT NULL,
        due INTEGER,
        digest BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX triggers_by_session ON triggers (session);

    -- Delivered occurrences, so that none is delivered again. Their contents are in the inputs that they
    -- became.
    CREATE TABLE occurrences (
        source TEXT NOT NULL,
        key TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        digest BLOB NOT NULL,
        PRIMARY KEY (source, key)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    -- The offset of the time of day from the boot-time clock: the one used for leases of this boot, and the
    -- last one seen.
    CREATE TABLE clocks (
        boot TEXT PRIMARY KEY,
        lease_offset_ms INTEGER NOT NULL,
        seen_offset_ms INTEGER NOT NULL,
        digest BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    """
    DROP TABLE sandbox_leftovers;
    ALTER TABLE shelf RENAME TO plugin_records;
    """,
    """
    -- The journals of turns that have ended, as far as they are kept. `key` is the turn's.
    CREATE TABLE journals (
        key INTEGER PRIMARY KEY,
        ended_at INTEGER NOT NULL,
        digest BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    """,
    """
    -- From here on, bodies of segments and journals may be packed (`packing`). The tables are unchanged: the
    -- version is raised so that programs that cannot unpack them refuse the file.
    """,
    """
    -- Every save wrote a page of it. `rows` finds a turn's entries without it.
    DROP INDEX journal_by_turn;

    -- Only forks are in these indexes: a family has the key of its first session, and most have no other.
    DROP INDEX sessions_by_family;
    CREATE INDEX sessions_by_family ON sessions (family) WHERE family <> key;
    DROP INDEX states_by_family;
    CREATE INDEX states_by_family ON states (family) WHERE family <> session;
    """,
)

SANDBOX_BEFORE: Final = (
    """
    CREATE TABLE sandbox_sessions (
        id TEXT PRIMARY KEY,
        epoch INTEGER NOT NULL,
        expires_at INTEGER,
        meta BLOB NOT NULL,
        head_digest TEXT NOT NULL,
        state_digest TEXT NOT NULL,
        state BLOB NOT NULL
    ) STRICT;

    -- The highest epoch of any deleted session. New sessions start above it, so that a session of the same
    -- name never has an epoch that a process has cached for its predecessor.
    CREATE TABLE sandbox_retired (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 0),
        epoch INTEGER NOT NULL
    ) STRICT;

    CREATE TABLE sandbox_snapshots (
        snapshot_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        digest TEXT NOT NULL,
        data BLOB NOT NULL
    ) STRICT;

    CREATE TABLE sandbox_runs (
        run_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL UNIQUE,
        digest TEXT NOT NULL,
        body BLOB NOT NULL
    ) STRICT;

    CREATE TABLE sandbox_calls (
        run_id TEXT NOT NULL,
        call_id INTEGER NOT NULL,
        request_digest TEXT NOT NULL,
        digest TEXT NOT NULL,
        outcome BLOB,
        PRIMARY KEY (run_id, call_id)
    ) STRICT;

    CREATE TABLE approvals (
        approval_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        state TEXT NOT NULL,
        digest TEXT NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX approvals_by_session ON approvals (session_id);
    CREATE INDEX approvals_by_run ON approvals (run_id);
    """,
    """
    -- From here on, every page of the file has a checksum (`connection`). The tables are unchanged: the
    -- version is raised so that programs that write no checksums refuse the file.
    """,
)
"""The tables of the time when the sandbox had its own store. `sandbox_migration` converts them."""


def is_behind(db: SqliteConnection, components: Components) -> bool:
    if (table := _version_table(db)) != _TABLE:
        return table is not None or any(components.values())
    found = db.execute(f"SELECT component, version FROM {_TABLE}").fetchall()  # noqa: S608 (a constant)
    versions = {row[0]: row[1] for row in found}
    return any(versions.get(name, 0) != len(known) for name, known in components.items())


def has_old_tables(db: SqliteConnection, components: Components) -> bool:
    """Return whether a reader needs migrations that change more than the version."""
    missing = [one for name, known in components.items() for one in known[_version(db, name) :]]
    return any(map(_changes_tables, missing))


def refuse_newer(db: SqliteConnection, components: Components, path: Path) -> None:
    """Raise `SchemaTooNew` if a later release has migrated the file *path*."""
    for name, known in components.items():
        if (version := _version(db, name)) > len(known):
            raise SchemaTooNew(
                f"{path} has version {version} of the {name} tables, "
                f"this Standfast supports versions up to {len(known)}",
                hint="upgrade Standfast, or use another file",
            )


def migrate_all(db: SqliteConnection, components: Components, path: Path) -> None:
    """Migrate all tables of the file *path* to their latest version, inside the caller's transaction."""
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


def _version(db: SqliteConnection, component: str) -> int:
    table = _version_table(db)
    if table is None:
        return 0
    return int(db.execute(f"SELECT version FROM {table} WHERE component = ?", (component,)).get or 0)  # noqa: S608


def _version_table(db: SqliteConnection) -> str | None:
    """Return the name of the table with the versions, which may be its former name; None for a new file."""
    # `table_exists` would use this connection's cached schema, which may predate the table.
    names = "SELECT name FROM sqlite_schema WHERE name IN (?, ?) ORDER BY name DESC"
    found: str | None = db.execute(names, (_TABLE, FORMER_SCHEMA_TABLE)).get
    return found


def _changes_tables(migration: Migration) -> bool:
    """Return whether a migration has more than comments."""
    if callable(migration):
        return True
    lines = (line.strip() for line in migration.splitlines())
    return any(line and not line.startswith("--") for line in lines)
