"""Snapshots: a session, with its waiting turn if it has one, as signed bytes.

Layout
------
magic `STANDFST`, format version (u16), HMAC-SHA256 of everything else, header length (u32), header, state

The state is the engine's bytes; for a session with a waiting turn, a `PausedTurn` in MessagePack.

Rules
-----
1. Size and signature are checked before any field is parsed; the signature covers magic and version.
2. The header names the engine and its version, and the contract digest of every capability. Another engine
   version, or a capability that is missing or changed, is refused with a code of its own.
3. Nothing is unpickled. The header is JSON; the state goes to the engine's own process.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final

import msgspec

from standfast.errors import Code, SnapshotRefused
from standfast.model.canonical import Json, digest_bytes
from standfast.model.former_name import FORMER_SNAPSHOT_MAGIC
from standfast.model.session import SNAPSHOT_VERSION, SessionMeta
from standfast.ports.session_store import JournalEntry

MAX_SNAPSHOT_BYTES: Final = 64 << 20
_MAGIC: Final = b"STANDFST"
_HEAD: Final = struct.Struct(">8sH32sI")
_FORMER_VERSION: Final = 1


class PausedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting turn: its input, its journal with the blobs that it names, and the variables before it."""

    input: bytes
    journal: list[JournalEntry]
    blobs: dict[str, bytes]
    variables: bytes = b""


class SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True):
    meta: SessionMeta
    engine: str
    engine_version: str
    capabilities: dict[str, str]
    host: dict[str, Json] = msgspec.field(default_factory=dict)
    """A description of the tools of the process that wrote the snapshot, for creating them elsewhere."""
    paused: bool = False


class _FormerHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of format 1, which stored a waiting run in a form of its own."""

    meta: SessionMeta
    engine: str
    engine_version: str
    capabilities: dict[str, str]
    host: dict[str, Json] = msgspec.field(default_factory=dict)
    paused: dict[str, Json] | None = None


class SnapshotCodec:
    """Seals and opens snapshots with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, header: SnapshotHeader, state: bytes) -> bytes:
        body = msgspec.json.encode(header)
        head = _HEAD.pack(_MAGIC, SNAPSHOT_VERSION, b"\0" * 32, len(body))
        data = head + body + state
        if len(data) > MAX_SNAPSHOT_BYTES:
            raise SnapshotRefused(
                Code.SNAPSHOT_CORRUPT,
                f"the session has {len(data)} bytes, a snapshot may have at most {MAX_SNAPSHOT_BYTES}",
                hint="delete large variables from the session first",
            )
        return _HEAD.pack(_MAGIC, SNAPSHOT_VERSION, self._sign(data), len(body)) + body + state

    def open(self, data: bytes) -> tuple[SnapshotHeader, bytes]:
        """Verify a snapshot and return its header and state."""
        if len(data) > MAX_SNAPSHOT_BYTES:
            raise _corrupt(f"it has {len(data)} bytes, more than the {MAX_SNAPSHOT_BYTES} allowed")
        if len(data) < _HEAD.size:
            raise _corrupt("it is too short")
        magic, version, signature, size = _HEAD.unpack_from(data)
        blank = data[:10] + b"\0" * 32 + data[42:]
        if magic not in (_MAGIC, FORMER_SNAPSHOT_MAGIC) or not hmac.compare_digest(
            signature, self._sign(blank)
        ):
            raise _corrupt("its signature does not match: it was changed, cut, or signed with another key")
        if version not in (_FORMER_VERSION, SNAPSHOT_VERSION):
            raise SnapshotRefused(
                Code.SNAPSHOT_VERSION_MISMATCH,
                f"the snapshot has format {version}, this Standfast reads {SNAPSHOT_VERSION}",
            )
        described = data[_HEAD.size : _HEAD.size + size]
        try:
            if version == SNAPSHOT_VERSION:
                header = msgspec.json.decode(described, type=SnapshotHeader)
            else:
                former = msgspec.json.decode(described, type=_FormerHeader)
                waits = former.paused is not None
                header = SnapshotHeader(**{**msgspec.structs.asdict(former), "paused": waits})
        except msgspec.DecodeError as error:
            raise _corrupt(f"its header cannot be read: {error}") from None
        if version == _FORMER_VERSION and header.paused:
            raise SnapshotRefused(
                Code.SNAPSHOT_VERSION_MISMATCH,
                "the snapshot holds a waiting run of an earlier release, which cannot be continued",
                hint="restore it with that release, and decide or cancel the run there",
            )
        return header, data[_HEAD.size + size :]

    def _sign(self, data: bytes) -> bytes:
        return hmac.new(self._key, data, hashlib.sha256).digest()


def snapshot_id(data: bytes) -> str:
    """Return the id of a snapshot, derived from the digest of its content."""
    return f"snap_{digest_bytes(data)[:40]}"


def check_capabilities(header: SnapshotHeader, registered: dict[str, str]) -> None:
    """Raise `SnapshotRefused` if a capability of the snapshot is not *registered* with the same contract."""
    missing = sorted(set(header.capabilities) - set(registered))
    changed = sorted(
        name for name, digest in header.capabilities.items() if registered.get(name, digest) != digest
    )
    if missing or changed:
        parts = [f"not registered now: {', '.join(missing)}"] if missing else []
        parts += [f"registered with another contract: {', '.join(changed)}"] if changed else []
        raise SnapshotRefused(
            Code.SNAPSHOT_CAPABILITY_MISMATCH,
            f"the snapshot's capabilities are {' and '.join(parts)}",
            hint="register the tools it was made with (on the command line: --tools, --mount, --allow-host)",
        )


def check_engine(header: SnapshotHeader, engine: str, version: str) -> None:
    """Raise `SnapshotRefused` if another engine, or another version of this one, wrote the snapshot."""
    if (header.engine, header.engine_version) != (engine, version):
        raise SnapshotRefused(
            Code.SNAPSHOT_VERSION_MISMATCH,
            f"the snapshot was made by {header.engine} {header.engine_version}, this is {engine} {version}",
        )


def _corrupt(why: str) -> SnapshotRefused:
    return SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the snapshot is refused: {why}")
