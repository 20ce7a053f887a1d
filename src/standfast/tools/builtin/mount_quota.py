"""How much a writable mount may hold: bytes and files, whoever made them.

Rules
-----
1. What is refused is refused before the file is made or emptied. A write that does not grow the mount is
   always allowed, also where the mount holds too much already.
2. Writes through this process to one directory happen one after the other, so that together they keep the
   quota. Other processes are noticed when the directory is counted again, after a second at most.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from standfast.errors import ToolError

QUOTA_EXCEEDED: Final = "QUOTA_EXCEEDED"
_FRESH_S: Final = 1.0


class MountQuota:
    """What a directory of the host holds, as counted last."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._bytes = 0
        self._files = 0
        self._counted_at = float("-inf")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let one write happen at a time; if it fails, count anew before the next."""
        with self._lock:
            try:
                yield
            except BaseException:
                self._counted_at = float("-inf")
                raise

    def require(self, shown: str, grows: int, new_files: int, limits: tuple[int | None, int | None]) -> None:
        """Raise QUOTA_EXCEEDED if the mount would hold too much; else count the write as done."""
        if grows > 0 or new_files:
            if not self._fits(grows, new_files, limits) or time.monotonic() - self._counted_at > _FRESH_S:
                self._count()
            if not self._fits(grows, new_files, limits):
                raise self._refusal(shown, grows, limits)
        self._bytes += grows
        self._files += new_files

    def _fits(self, grows: int, new_files: int, limits: tuple[int | None, int | None]) -> bool:
        max_bytes, max_files = limits
        too_large = max_bytes is not None and grows > 0 and self._bytes + grows > max_bytes
        return not too_large and not (max_files is not None and new_files and self._files >= max_files)

    def _refusal(self, shown: str, grows: int, limits: tuple[int | None, int | None]) -> ToolError:
        max_bytes, max_files = limits
        if max_bytes is not None and grows > 0 and self._bytes + grows > max_bytes:
            held = f"holds {self._bytes} bytes, and {grows} more exceed its quota of {max_bytes}"
        else:
            held = f"holds {self._files} files and directories, its quota is {max_files}"
        return ToolError(
            QUOTA_EXCEEDED,
            f"{shown} cannot be written: its mount {held}",
            hint="write less, or overwrite a file; Mount(max_bytes=..., max_files=...) allows more",
        )

    def _count(self) -> None:
        self._bytes = self._files = 0
        pending = [self._path]
        while pending:
            try:
                with os.scandir(pending.pop()) as found:
                    for entry in found:
                        self._files += 1
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                        else:
                            self._bytes += entry.stat(follow_symlinks=False).st_size
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue  # it is gone, or not ours to look into
        self._counted_at = time.monotonic()


@functools.lru_cache(maxsize=1024)
def quota_of(path: str) -> MountQuota:
    """The count of a directory: one for all sandboxes of the process."""
    return MountQuota(path)
