"""Snapshots: signed, verified before they are read, and restored anywhere."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast import BlockingSandbox, CapabilityLimits, tool
from standfast.errors import InvalidArgument, NotConfigured, SnapshotRefused, StandfastError
from standfast.model.canonical import digest_bytes
from standfast.model.session import SessionMeta
from standfast.sandbox.snapshots import MAX_SNAPSHOT_BYTES, SnapshotCodec, SnapshotHeader, snapshot_id

KEY = b"k" * 32


@tool(side_effect="read")
def price(item: str) -> int:
    return len(item)


@tool(approval="manual")
def ask() -> str:
    return "asked"


@pytest.fixture(scope="module")
def kbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingSandbox]:
    """Return a sandbox with tools, on disk."""
    with BlockingSandbox(tools=[price, ask], data_dir=tmp_path_factory.mktemp("data")) as box:
        yield box


def _codec(box: BlockingSandbox) -> SnapshotCodec:
    return SnapshotCodec((Path(box.options.data_dir) / "snapshot.key").read_bytes())  # type: ignore[arg-type]


def _refused(box: BlockingSandbox, data: bytes, code: str) -> None:
    with pytest.raises(SnapshotRefused) as caught:
        box.restore(data, session="target")
    assert caught.value.code == code
    assert not box.can_restore(data)


def test_a_snapshot_restores_a_session(kbox: BlockingSandbox, sid: str) -> None:
    """Seed: snapshot_session and restore_session."""
    kbox.run("x = [1]\ndef f():\n    return len(x)", session=sid)
    data = kbox.export_snapshot(sid)
    kbox.run("x.append(2)\ny = 1", session=sid)
    assert kbox.can_restore(data)
    assert kbox.restore(data) == sid
    assert kbox.run("[x, f()]", session=sid).result == [[1], 1]
    assert kbox.run("y", session=sid).status == "runtime_error"


def test_a_snapshot_can_be_restored_under_another_id(kbox: BlockingSandbox, sid: str) -> None:
    """Seed: restore_session takes an optional id."""
    kbox.create(sid, limits={"memory_mb": 20})
    kbox.run("x = 1", session=sid)
    name = kbox.snapshot(sid)
    assert kbox.restore(name, session=f"{sid}-copy") == f"{sid}-copy"
    kbox.run("x = 2", session=f"{sid}-copy")
    assert kbox.run("x", session=sid).result == 1
    assert kbox.session(f"{sid}-copy").meta.limits.memory_mb == 20
    assert kbox.session(f"{sid}-copy").meta.id == f"{sid}-copy"


def test_a_snapshot_of_an_empty_session_can_be_restored(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: an empty state is a state too."""
    kbox.create(sid)
    data = kbox.export_snapshot(sid)
    kbox.run("x = 1", session=sid)
    kbox.restore(data)
    assert kbox.run("x", session=sid).status == "runtime_error"


def test_a_snapshot_id_is_a_digest_and_names_a_stored_snapshot(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: SPEC §5; an id names a stored snapshot; the seed's id names nothing."""
    result = kbox.run("x = 1\nx", session=sid, snapshot=True)
    assert result.snapshot_id is not None
    data = kbox.export_snapshot(result.snapshot_id)
    assert result.snapshot_id == snapshot_id(data)
    assert result.snapshot_id.startswith("snap_")
    assert digest_bytes(data).startswith(result.snapshot_id.removeprefix("snap_"))
    kbox.run("x = 2", session=sid)
    kbox.restore(result.snapshot_id)
    assert kbox.run("x", session=sid).result == 1
    assert kbox.run("x", session=sid).snapshot_id is None


def test_a_failed_run_stores_no_snapshot(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: a snapshot is taken only of a successful run."""
    assert kbox.run("1 / 0", session=sid, snapshot=True).snapshot_id is None


@pytest.mark.parametrize("name", ["snap_nope", "snap_" + "0" * 40, "snap_../../etc/passwd", "snap_"])
def test_an_unknown_snapshot_is_not_found(kbox: BlockingSandbox, name: str) -> None:
    """Ours: an id that names nothing stored is an error."""
    with pytest.raises(InvalidArgument):
        kbox.restore(name)
    with pytest.raises(InvalidArgument):
        kbox.export_snapshot(name)


def test_every_flipped_byte_is_refused(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: the bare engine loaded 172 of 600 dumps with a flipped bit."""
    kbox.run("x = 'text' * 100\ny = [1.5, None, {'k': 2}]", session=sid)
    data = kbox.export_snapshot(sid)
    chosen = random.Random(7)
    places = {*range(min(len(data), 60)), *range(len(data) - 20, len(data))}
    places |= {chosen.randrange(len(data)) for _ in range(500)}
    for at in places:
        flipped = bytearray(data)
        flipped[at] ^= 1 << chosen.randrange(8)
        assert not kbox.can_restore(bytes(flipped)), at
    for at in list(places)[:20]:
        flipped = bytearray(data)
        flipped[at] ^= 0xFF
        _refused(kbox, bytes(flipped), "SNAPSHOT_CORRUPT")
    assert kbox.can_restore(data)


def test_every_truncated_or_extended_snapshot_is_refused(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: the size is checked before anything is parsed."""
    kbox.run("x = 1", session=sid)
    data = kbox.export_snapshot(sid)
    for size in [*range(60), *range(60, len(data), 17), len(data) - 1]:
        assert not kbox.can_restore(data[:size]), size
    for wrong in (b"", b"x", data[:10], data[:-1], data + b"\0", data + data, data[1:]):
        _refused(kbox, wrong, "SNAPSHOT_CORRUPT")


@pytest.mark.parametrize("wrong", ["x" * 10, "", b"\0" * 100], ids=repr)
def test_a_value_that_is_not_a_snapshot_is_a_typed_error(kbox: BlockingSandbox, wrong: Any) -> None:
    """Ours: any value gives a typed error instead of an AttributeError."""
    with pytest.raises(StandfastError):
        kbox.restore(wrong)


def test_a_snapshot_signed_with_another_key_is_refused(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: each installation signs snapshots with its own key."""
    with BlockingSandbox(tools=[price, ask]) as other:
        other.run("x = 1")
        _refused(kbox, other.export_snapshot("default"), "SNAPSHOT_CORRUPT")


def _resigned(data: bytes, key: bytes, *, version: int | None = None, magic: bytes | None = None) -> bytes:
    """Return the snapshot with another version or magic number, signed with the right key."""
    head = bytearray(data)
    if version is not None:
        head[8:10] = struct.pack(">H", version)
    if magic is not None:
        head[:8] = magic
    head[10:42] = b"\0" * 32
    head[10:42] = hmac.new(key, bytes(head), hashlib.sha256).digest()
    return bytes(head)


def test_another_format_version_with_a_valid_signature_is_a_version_mismatch(
    kbox: BlockingSandbox, sid: str
) -> None:
    """Ours: the error is SNAPSHOT_VERSION_MISMATCH."""
    key = (Path(kbox.options.data_dir) / "snapshot.key").read_bytes()  # type: ignore[arg-type]
    kbox.run("x = 1", session=sid)
    data = kbox.export_snapshot(sid)
    assert _resigned(data, key) == data
    for version in (0, 3, 65_535):
        _refused(kbox, _resigned(data, key, version=version), "SNAPSHOT_VERSION_MISMATCH")
    _refused(
        kbox, _resigned(data, key, version=1), "SNAPSHOT_CORRUPT"
    )  # an earlier format, with a different header
    _refused(kbox, _resigned(data, key, magic=b"NOTOURS!"), "SNAPSHOT_CORRUPT")


def test_another_engine_or_engine_version_is_a_version_mismatch(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: dumps load only in the engine that wrote them."""
    codec = _codec(kbox)
    kbox.run("x = 1", session=sid)
    header, state = codec.open(kbox.export_snapshot(sid))
    for change in ({"engine": "quickjs"}, {"engine_version": "9.9.9"}):
        forged = codec.seal(msgspec.structs.replace(header, **change), state)
        _refused(kbox, forged, "SNAPSHOT_VERSION_MISMATCH")


def test_a_missing_or_changed_capability_is_a_capability_mismatch(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: SPEC §5; every capability must be registered now with the same digest."""
    kbox.run("x = 1", session=sid)
    data = kbox.export_snapshot(sid)
    home = Path(kbox.options.data_dir)  # type: ignore[arg-type]

    @tool(name="price", side_effect="read", limits=CapabilityLimits(timeout_ms=1))
    def changed(item: str) -> int:
        return 0

    @tool(side_effect="read")
    def extra() -> None: ...

    for tools in ([ask], [], [ask, changed]):
        with BlockingSandbox(tools=tools, data_dir=home) as other:
            _refused(other, data, "SNAPSHOT_CAPABILITY_MISMATCH")
    with BlockingSandbox(tools=[price, ask, extra], data_dir=home) as other:
        assert other.can_restore(data)


def test_an_undecodable_header_is_corrupt_even_if_signed() -> None:
    """Ours: any content is refused with a typed error."""
    codec = SnapshotCodec(KEY)
    header = SnapshotHeader(meta=SessionMeta(), engine="monty", engine_version="1", capabilities={})
    data = codec.seal(header, b"state")
    assert codec.open(data) == (header, b"state")
    broken = bytearray(data)
    broken[46] = ord("x")
    with pytest.raises(SnapshotRefused) as caught:
        codec.open(_resigned(bytes(broken), KEY))
    assert caught.value.code == "SNAPSHOT_CORRUPT"
    with pytest.raises(SnapshotRefused):
        codec.open(_resigned(data[:42] + struct.pack(">I", 2**31) + data[46:], KEY))


def test_a_session_id_in_a_signed_header_is_validated_like_any_other() -> None:
    """Ours: SPEC §3; ids are validated on every decode."""
    codec = SnapshotCodec(KEY)
    body = msgspec.json.encode(
        {"meta": {"id": "../x"}, "engine": "monty", "engine_version": "1", "capabilities": {}}
    )
    data = _resigned(struct.pack(">8sH32sI", b"STANDFAST", 1, b"\0" * 32, len(body)) + body, KEY)
    with pytest.raises(StandfastError):
        codec.open(data)


def test_a_malformed_state_with_a_valid_signature_is_refused(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: the engine's process reads the state, and its failure is reported."""
    codec = _codec(kbox)
    kbox.run("x = 1", session=sid)
    header, _ = codec.open(kbox.export_snapshot(sid))
    with pytest.raises(StandfastError):
        kbox.restore(codec.seal(header, b"\xc1rubbish"), session=f"{sid}x")
    assert kbox.run("x", session=sid).result == 1


def test_an_oversize_snapshot_is_refused_before_it_is_read(kbox: BlockingSandbox) -> None:
    """Ours: SPEC §5; the limit is 64 MiB."""
    codec = SnapshotCodec(KEY)
    header = SnapshotHeader(meta=SessionMeta(), engine="monty", engine_version="1", capabilities={})
    with pytest.raises(SnapshotRefused):
        codec.seal(header, b"x" * MAX_SNAPSHOT_BYTES)
    with pytest.raises(SnapshotRefused):
        codec.open(b"x" * (MAX_SNAPSHOT_BYTES + 1))
    assert MAX_SNAPSHOT_BYTES == 64 << 20


def test_only_the_owner_can_read_the_key_file(kbox: BlockingSandbox) -> None:
    """Ours: SPEC §5; a 0600 file in the data directory."""
    path = Path(kbox.options.data_dir) / "snapshot.key"  # type: ignore[arg-type]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) >= 32


def test_the_key_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: SPEC §5; STANDFAST_SNAPSHOT_KEY sets the key."""
    monkeypatch.setenv("STANDFAST_SNAPSHOT_KEY", "a key that two machines share")
    with BlockingSandbox(data_dir=tmp_path / "a") as one:
        one.run("x = 5")
        data = one.export_snapshot("default")
    assert not (tmp_path / "a" / "snapshot.key").exists()
    with BlockingSandbox(data_dir=tmp_path / "b") as two:
        two.restore(data)
        assert two.run("x").result == 5
    with BlockingSandbox() as memory:
        assert memory.can_restore(data)
    monkeypatch.setenv("STANDFAST_SNAPSHOT_KEY", "another key of some length")
    with BlockingSandbox(data_dir=tmp_path / "c") as three:
        assert not three.can_restore(data)


@pytest.mark.parametrize("key", ["", "short"])
def test_a_key_that_is_too_short_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Ours: an empty variable must not become an empty signing key."""
    monkeypatch.setenv("STANDFAST_SNAPSHOT_KEY", key)
    with pytest.raises(NotConfigured), BlockingSandbox(data_dir=tmp_path / "a"):
        pass


def test_a_damaged_key_file_is_not_replaced(tmp_path: Path) -> None:
    """Ours: a new key would silently invalidate every earlier snapshot."""
    with BlockingSandbox(data_dir=tmp_path) as box:
        box.run("1")
    (tmp_path / "snapshot.key").write_bytes(b"cut")
    with pytest.raises(NotConfigured), BlockingSandbox(data_dir=tmp_path):
        pass
    assert (tmp_path / "snapshot.key").read_bytes() == b"cut"


def test_restoring_into_a_waiting_session_ends_its_waiting_run(kbox: BlockingSandbox, sid: str) -> None:
    """Ours: a restored session has only what the snapshot contains."""
    kbox.run("x = 1", session=sid)
    data = kbox.export_snapshot(sid)
    assert kbox.run("x = 2\nask()", session=sid).status == "waiting_for_approval"
    (approval,) = kbox.approvals(session=sid, pending=True)
    kbox.restore(data)
    assert kbox.approval(approval.approval_id).state == "cancelled"
    assert kbox.run("x", session=sid).result == 1


def test_only_the_owner_can_access_the_data_directory(tmp_path: Path) -> None:
    """Ours: SPEC §11; sessions hold the results of guests."""
    with BlockingSandbox(data_dir=tmp_path / "data") as box:
        box.run("1")
        for path in [tmp_path / "data", *(tmp_path / "data").iterdir()]:
            assert not stat.S_IMODE(os.stat(path).st_mode) & 0o077, path
