"""The numeric settings of a runtime."""

from __future__ import annotations

from typing import Final

import msgspec

DEFAULT_TIMEOUT_S: Final = 60.0
"""The time that the hooks of one stage have together."""


class RuntimeSettings(msgspec.Struct, frozen=True):
    """The numeric settings of a runtime.

    Above `cached_sessions` or `cached_messages`, the least recently used sessions are evicted from memory.
    Journals of ended turns are kept for `keep_journals_ms`; 0 means not at all.
    """

    epoch: str
    lease_ms: int = 30_000
    approval_ttl_ms: int = 24 * 3600 * 1000
    busy_timeout_ms: int = 60_000
    hook_timeout_s: float = DEFAULT_TIMEOUT_S
    cached_sessions: int = 256
    cached_messages: int = 50_000
    keep_journals_ms: int = 0
