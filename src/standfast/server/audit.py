"""The audit log: one line of JSON for each decision, sign-in and rejected request.

The server records up to `Limits.failures_per_min` rejected requests of one address in a minute.

Rules
-----
1. A line identifies the credential by its id; it never contains a token, a code or a cookie.
2. A line is one write, so several processes can share a file. At `MAX_BYTES` the file is renamed to `NAME.1`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from standfast.model.limits import U64
from standfast.ports.clock import Clock

MAX_BYTES: Final = 64 << 20
_log: Final = logging.getLogger("standfast.audit")


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision, or the reason why a request was rejected.

    `credential` is empty if the request had no valid one.
    """

    at_ms: U64
    kind: str
    credential: str = ""
    tenant: str = ""
    client: str = ""
    method: str = ""
    path: str = ""
    status: int = 0
    code: str = ""
    subject: str = ""
    detail: str = ""


class AuditLog:
    """Writes records to a file, or to the logger `standfast.audit` if no file is given."""

    def __init__(self, clock: Clock, file: Path | None = None) -> None:
        self._clock = clock
        self._file = file
        self._descriptor = -1
        self._size = 0

    def record(self, kind: str, **facts: str | int) -> None:
        """Write one record of *kind* with the given *facts*."""
        fields = {name: value if isinstance(value, int) else value[:500] for name, value in facts.items()}
        record = AuditRecord(at_ms=self._clock.now_ms(), kind=kind, **fields)  # type: ignore[arg-type]
        line = msgspec.json.encode(record)
        if self._file is None:
            _log.info("%s", line.decode())
            return
        if self._descriptor < 0 or self._size > MAX_BYTES:
            self.close()
            if self._file.exists() and self._file.stat().st_size > MAX_BYTES:
                self._file.replace(f"{self._file}.1")
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(self._descriptor).st_size
        self._size += os.write(self._descriptor, line + b"\n")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
