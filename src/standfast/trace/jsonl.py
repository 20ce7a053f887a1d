"""A trace as a file of JSON lines, one per record, without secrets (see `redaction`).

A line is one write to a file that is open for appending, so several processes can share it, and a killed
process loses no finished span. No failure here reaches the turn: a file that cannot be written is logged
once.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from standfast.errors import InvalidArgument
from standfast.model.trace_record import TraceRecord
from standfast.trace.redaction import Redaction, Redactor

log: Final = logging.getLogger("standfast")


class JsonlTrace:
    """A trace sink for `Runtime(trace=...)`; the first record creates the file.

    Args:
        path: the file.
        max_bytes: rename a longer file to `<path>.1`, replacing an older one.
        contents: also write messages, and the arguments and results of calls.
        redact: changes a record before it is written, or omits it with None.
        secrets: texts that never reach the file, besides those that look like keys.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        contents: bool = False,
        redact: Redactor | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise InvalidArgument(f"max_bytes must be at least 1, got {max_bytes}")
        self.path = Path(path)
        self.contents = contents
        self._max_bytes = max_bytes
        self._redaction = Redaction(redact, secrets=secrets)
        self._file = -1
        self._torn = False
        self._warned = False
        self._lock = threading.Lock()

    def record(self, record: TraceRecord) -> None:
        line = self._redaction.line(record)
        if line is None:
            return
        try:
            with self._lock:
                self._write(line + b"\n")
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("the trace %s cannot be written: %s", self.path, error)

    def close(self) -> None:
        """Close the file. A later record opens it again."""
        with self._lock:
            self._close_file()

    def __enter__(self) -> JsonlTrace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        if self._file < 0:
            self._open()
        elif self._max_bytes is not None and not self._is_current():  # another process has begun a new file
            self._close_file()
            self._open()
        if self._torn:
            line = b"\n" + line
        self._torn = True  # until all of it has been written
        self._torn = os.write(self._file, line) < len(line)
        if self._max_bytes is not None and os.fstat(self._file).st_size >= self._max_bytes:
            fcntl.flock(self._file, fcntl.LOCK_EX)  # only one of several processes rotates the file
            with contextlib.suppress(FileNotFoundError):
                if self._is_current():
                    os.replace(self.path, f"{self.path}.1")
            self._close_file()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o600)

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except FileNotFoundError:
            return False
