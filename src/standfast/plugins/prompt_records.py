"""Records of the prompts, tools and settings of model calls, each stored once for all calls that share it.

Rule: a record is written with the first call that uses it, and again after an hour, because the stored one
may have been deleted together with the only session that referred to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from standfast.model.canonical import digest_bytes
from standfast.model.capability import Capability
from standfast.model.prompt import PromptContribution, PromptLayer
from standfast.model.prompt_record import PromptRecord, Reading

_MAX_RECORDS: Final = 8
_AGAIN_MS: Final = 3_600_000

NamedLayers = tuple[tuple[str, PromptLayer], ...]


class PromptSource(msgspec.Struct, frozen=True):
    """The contents of a record; equal sources give equal records."""

    layers: NamedLayers
    protocol: tuple[PromptContribution, ...]
    tools: tuple[Capability, ...]
    output_schema: dict[str, Any] | None
    settings: dict[str, Any]
    reading: Reading


def recorded_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return *settings* without the values of headers, which may be API keys and must not be stored."""
    headers = settings.get("extra_headers")
    if not isinstance(headers, dict) or not headers:
        return settings
    return {**settings, "extra_headers": dict.fromkeys(headers, "[redacted]")}


class _Kept(msgspec.Struct):
    source: PromptSource
    digest: str
    data: bytes
    written_ms: int


class PromptRecords:
    """The recently used records of one agent's sessions, the most recent first."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def digest_of(self, source: PromptSource, now_ms: int, keep: Callable[[bytes], str]) -> str:
        """Return the digest of a record; *keep* stores its bytes with the next write of the turn."""
        for place, one in enumerate(self._kept):
            if one.source == source:
                if place:
                    self._kept.insert(0, self._kept.pop(place))
                if now_ms - one.written_ms >= _AGAIN_MS:
                    keep(one.data)
                    one.written_ms = now_ms
                return one.digest
        record = PromptRecord(**{name: getattr(source, name) for name in source.__struct_fields__})
        data = msgspec.json.encode(record)
        keep(data)
        digest = digest_bytes(data)
        self._kept = [_Kept(source, digest, data, now_ms), *self._kept[: _MAX_RECORDS - 1]]
        return digest
