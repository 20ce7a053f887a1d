"""Errors of the store: a stored record cannot be read or written."""

from __future__ import annotations

from standfast.errors.codes import Code
from standfast.errors.kinds import StoreError


class RecordCorrupt(StoreError):
    """A stored record does not match its digest."""

    code = Code.RECORD_CORRUPT
    hint = "the file was changed or damaged; restore it from a backup, or delete that record"

    def __init__(self, what: str) -> None:
        super().__init__(f"stored record {what} does not match its digest")


class SchemaTooNew(StoreError):
    """The file was written by a later version of Standfast."""

    code = Code.SCHEMA_TOO_NEW


class StaleState(StoreError):
    """Another process changed the session between our read and our write."""

    code = Code.STALE_STATE
    retryable = True


class LeaseLost(StoreError):
    """Another worker took the session over; this write was rejected."""

    code = Code.LEASE_LOST
    hint = "another process continues the turn"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"the lease on session {session_id!r} was lost, nothing was written")
        self.session_id = session_id


class StoreUnavailable(StoreError):
    """The store could not be read or written: disk full, locked or unreadable."""

    code = Code.STORE_UNAVAILABLE
    retryable = True
