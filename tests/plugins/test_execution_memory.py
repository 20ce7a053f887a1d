"""The stored state of code: its form, when it is written, and how it is read again."""

from __future__ import annotations

import base64
import zlib
from typing import Any, cast

import msgspec
import pytest

from standfast.errors import PluginStateLost
from standfast.model.canonical import digest_bytes
from standfast.model.plugin_state import PluginSnapshotEntry, PluginSnapshotMeta, decode_entry, encode_entry
from standfast.plugins.stored_states import _INLINE_BYTES as INLINE
from standfast.plugins.stored_states import _PACKED_BYTES as PACKED
from standfast.plugins.stored_states import STATE, ExecutionMemory

SIZES = [0, 1, INLINE, INLINE + 1, PACKED - 1, PACKED, 1 << 20]


class Executor:
    """An executor whose state is bytes."""

    def __init__(self) -> None:
        self.data = b""
        self.dirty = False
        self.asked = 0
        self.named: dict[str, str] = {}

    def leave(self, data: bytes) -> None:
        self.data, self.dirty = data, True

    def execution_state_dirty(self) -> bool:
        return self.dirty

    def snapshot_execution_state(self) -> bytes:
        self.asked += 1
        self.dirty = False
        return self.data

    def referenced_blobs(self) -> dict[str, str]:
        return self.named

    def restore_execution_state(self, data: bytes) -> None:
        self.data = data


def memory_of(executor: Executor | None) -> ExecutionMemory:
    """Return the memory of a session with this executor."""
    return ExecutionMemory(cast("Any", executor), "code" if executor else "")


def noise(size: int) -> bytes:
    """Return bytes that do not compress."""
    return b"".join(bytes.fromhex(digest_bytes(str(n).encode())) for n in range(size // 32 + 1))[:size]


def written(data: bytes) -> tuple[PluginSnapshotEntry, dict[str, bytes]]:
    executor = Executor()
    executor.leave(data)
    changed = memory_of(executor).changed()
    assert changed is not None
    entry, blobs = changed
    return entry, {blob.digest: blob.data for blob in blobs}


@pytest.mark.parametrize("size", SIZES)
def test_a_stored_state_is_read_back_unchanged(size: int) -> None:
    """Ours: a small state is in the record, a medium one in a blob, a large one in a compressed blob."""
    data = noise(size)
    entry, blobs = written(data)
    read = Executor()
    memory_of(read).restore(decode_entry(encode_entry(entry)), blobs)
    assert read.data == data
    assert set(entry.artifacts.values()) == set(blobs)
    assert len(blobs) == (size > INLINE)


def test_a_small_state_is_stored_in_the_record() -> None:
    """Ours: a session with three variables needs no blob."""
    entry, blobs = written(b"abc")
    stored = decode_entry(encode_entry(entry))
    assert (stored.meta.state, stored.artifacts, blobs) == ({"data": "YWJj"}, {}, {})


def test_a_large_state_is_compressed() -> None:
    """Ours: large states are mostly text."""
    entry, blobs = written(b"row " * 100_000)
    (data,) = blobs.values()
    assert len(data) < 10_000
    assert zlib.decompress(data) == b"row " * 100_000
    assert entry.meta.state == {"packed": True}


def test_equal_states_share_a_blob() -> None:
    """Ours: blobs are named by their content, so equal states are stored once."""
    assert written(b"row " * 100_000)[1].keys() == written(b"row " * 100_000)[1].keys()


def test_an_unchanged_state_is_not_written() -> None:
    """Ours: an unchanged executor is not asked for its state."""
    executor = Executor()
    memory = memory_of(executor)
    assert memory.changed() is None
    executor.leave(b"one")
    first = memory.changed()
    assert first is not None
    assert (memory.changed(), executor.asked) == (None, 1)
    executor.leave(b"two")
    second = memory.changed()
    assert second is not None
    assert [one.meta.revision for one, _ in (first, second)] == [1, 2]
    assert memory.entry is second[0]


def test_revisions_continue_after_a_restart() -> None:
    """Ours: `revision` rises with every change of the state, across restarts."""
    entry, blobs = written(b"one")
    executor = Executor()
    memory = memory_of(executor)
    memory.restore(entry, blobs)
    executor.leave(b"two")
    changed = memory.changed()
    assert changed is not None
    assert (changed[0].meta.revision, changed[0].meta.plugin_id) == (2, "code")


def test_without_an_executor_the_state_is_kept() -> None:
    """Ours: the state of a plugin that is not installed is kept."""
    entry, _ = written(b"x" * (INLINE + 1))
    memory = memory_of(None)
    memory.restore(entry, {})
    assert (memory.changed(), memory.entry) == (None, entry)


def test_a_session_without_a_state_restores_nothing() -> None:
    """Ours: without a stored state the executor is not called."""
    executor = Executor()
    executor.data = b"as it was"
    memory = memory_of(executor)
    memory.restore(None, {})
    assert (executor.data, memory.entry) == (b"as it was", None)


def _entry(state: Any, **artifacts: str) -> PluginSnapshotEntry:
    meta = PluginSnapshotMeta(plugin_id="code", plugin_version="1", revision=1, state=state)
    return PluginSnapshotEntry(meta=meta, artifacts=artifacts)


@pytest.mark.parametrize(
    ("entry", "fetched"),
    [
        (_entry(None), {}),
        (_entry([1]), {}),
        (_entry({"data": "not base64!"}), {}),
        (_entry({"data": 5}), {}),
        (_entry({}), {}),
        (_entry({}, execution="ab"), {}),
        (_entry({"packed": True}, execution="ab"), {"ab": b"not compressed"}),
        (_entry({"packed": True}, execution="ab"), {"ab": zlib.compress(b"x" * 100_000)[:-9]}),
    ],
)
def test_a_damaged_state_is_refused_and_names_its_plugin(
    entry: PluginSnapshotEntry, fetched: dict[str, bytes]
) -> None:
    """Ours: every fault raises a typed error, and stored data stays unchanged."""
    executor = Executor()
    memory = memory_of(executor)
    with pytest.raises(PluginStateLost, match="the stored variables of its code cannot be read") as refused:
        memory.restore(entry, fetched)
    assert refused.value.plugin_id == "code"
    assert executor.data == b""
    assert memory.entry == entry


def test_the_record_is_json() -> None:
    """Ours: the record is part of the session's state, which is JSON."""
    entry, _ = written(noise(100))
    state = msgspec.json.decode(encode_entry(entry))["meta"]["state"]
    assert base64.b64decode(state["data"]) == noise(100)


def test_blobs_that_the_state_refers_to_are_kept_with_it() -> None:
    """Bug: pruning frames deleted inputs that code could still read."""
    executor = Executor()
    memory = memory_of(executor)
    executor.named = {"input.text": "abc"}
    executor.leave(b"x" * 10_000)
    changed = memory.changed()
    assert changed is not None
    entry, blobs = changed
    assert entry.artifacts == {"input.text": "abc", STATE: blobs[0].digest}
