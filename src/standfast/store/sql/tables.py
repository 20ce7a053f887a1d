"""The tables that every SQL store has: their columns and keys, and the functions that check their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from standfast.store.sql import history, inputs, records, rows, waits
from standfast.store.sql.connection import Row


class Table(NamedTuple):
    """A table: the columns of its key, the others, and the digest that covers them (`digest` by default)."""

    name: str
    key: tuple[str, ...]
    others: tuple[str, ...]
    digest: str = "digest"

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.key, *self.others)


TABLES: Final = (
    Table(
        "sessions",
        ("key",),
        ("id", "family", "leaf_key", "fence", "owner", "until_ms", "digest", "head", "parent"),
    ),
    Table(
        "segments",
        ("key",),
        (
            "segment_id",
            "session_id",
            "family",
            "up",
            "up_at",
            "opens_at",
            "depth",
            "model_calls",
            "parent",
            "frame",
            "caused_by",
            "state",
            "digest",
            "body",
        ),
    ),
    Table(
        "turns",
        ("key",),
        (
            "turn_id",
            "session",
            "state",
            "created_at",
            "ended_at",
            "cancel",
            "echoes",
            "agent",
            "input_digest",
            "idempotency_key",
            "digest",
            "summary",
            "input",
        ),
    ),
    Table("journal", ("turn_id", "name", "kind"), ("seq", "digest", "body")),
    Table("journals", ("key",), ("ended_at", "digest", "body")),
    Table("inputs", ("seq",), ("input_id", "session", "kind", "content", "digest", "body")),
    Table("waits", ("turn_id", "wait_id"), ("stands", "digest", "wait", "outcome")),
    Table("blobs", ("digest",), ("seal", "data"), "seal"),
    Table(
        "states",
        ("key",),
        ("family", "session", "previous", "node", "depth", "digest", "sum", "blobs", "body"),
    ),
    Table("plugin_records", ("plugin_id", "scope", "name"), ("updated_at", "digest", "body")),
    Table("tasks", ("seq",), ("session", "task_id", "live", "digest", "body")),
    Table("triggers", ("name",), ("session", "due", "digest", "body")),
    Table("occurrences", ("source", "key"), ("at_ms", "digest")),
    Table("clocks", ("boot",), ("lease_offset_ms", "seen_offset_ms", "digest")),
    Table("snapshots", ("snapshot_id",), ("session_id", "created_at", "digest", "data")),
    Table("approvals", ("approval_id",), ("session_id", "run_id", "state", "digest", "body")),
)

CHECKS: Final[tuple[tuple[str, Callable[[Row], object]], ...]] = (
    (waits.APPROVALS, waits.approval_of),
    (records.SNAPSHOTS, records.snapshot_of),
    (rows.SESSIONS, rows.session_of),
    (rows.SEGMENTS, rows.segment_of),
    (rows.TURNS, lambda row: rows.turn_of(row[:-1], str(row[-1]))),
    (rows.ENTRIES, rows.entry_of),
    (rows.KEPT, rows.kept_journal_of),
    (inputs.INPUTS, inputs.check_input),
    (inputs.BLOBS, inputs.blob_of),
    (history.STATES, history.state_body_of),
    (waits.WAITS, waits.wait_of),
    (records.PLUGIN_RECORDS, records.plugin_record_of),
    (records.TASKS, records.task_of),
    (inputs.TRIGGERS, inputs.trigger_of),
    (inputs.OCCURRENCES, inputs.check_occurrence),
    (waits.CLOCKS, waits.check_clock),
)
"""The query for the rows of each table, and the function that raises `RecordCorrupt` for a wrong digest."""
