"""Blobs of a plugin's state: pieces that are too large for its JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from standfast.model.canonical import digest_bytes
from standfast.ports.session_store import Blob


class SnapshotWriter(msgspec.Struct):
    """Collects blobs of a plugin's state. Each is stored once, under its digest."""

    artifacts: dict[str, str] = msgspec.field(default_factory=dict)
    blobs: list[Blob] = msgspec.field(default_factory=list)

    def write_blob(self, name: str, data: bytes) -> None:
        digest = digest_bytes(data)
        self.artifacts[name] = digest
        self.blobs.append(Blob(digest=digest, data=data))


class SnapshotReader(msgspec.Struct, frozen=True):
    """Reads the fetched blobs of one plugin's state."""

    artifacts: Mapping[str, str]
    fetched: Mapping[str, bytes]

    def read_blob(self, name: str) -> bytes | None:
        digest = self.artifacts.get(name)
        return None if digest is None else self.fetched.get(digest)


NO_ARTIFACTS = SnapshotReader({}, {})
