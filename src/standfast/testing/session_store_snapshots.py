"""What every session store must do with snapshots, sessions that expire, and the records of plugins."""

from __future__ import annotations

import msgspec

from standfast.model.language import Language
from standfast.model.limits import SessionLimits
from standfast.model.session import CodeSettings, SessionHead
from standfast.ports.session_store import PruneRequest, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_commit,
    a_head,
    a_wait,
    begin,
    claimant,
    park,
    stopped,
    take_turn,
)


def a_code_head(session_id: str = "s1", expires_at: int | None = None) -> SessionHead:
    """Return the head of a session without a model."""
    code = CodeSettings(
        language=Language.PYTHON, engine="monty", limits=SessionLimits(), expires_at=expires_at
    )
    return msgspec.structs.replace(a_head(session_id), code=code)


class SnapshotContract(StoreContract):
    """Snapshots by id, and sessions that run code."""

    async def test_a_snapshot_is_read_back_byte_for_byte(self, store: SessionStore) -> None:
        """Seed: a snapshot is bytes; the last one of an id counts."""
        data = bytes(range(256)) * 40
        assert await store.snapshot("snap_1") is None
        await store.put_snapshot("snap_1", "s1", b"before", NOW)
        await store.put_snapshot("snap_1", "s1", data, NOW + 1)
        await store.put_snapshot("snap_2", "s1", b"", NOW)
        assert await store.snapshot("snap_1") == data
        assert await store.snapshot("snap_2") == b""

    async def test_snapshots_outlive_their_session(self, store: SessionStore) -> None:
        """Ours: a snapshot is what a session is restored from after it was deleted."""
        await store.open_session(a_code_head())
        await store.put_snapshot("snap_1", "s1", b"variables", NOW)
        assert await store.delete_session("s1")
        assert await store.snapshot("snap_1") == b"variables"

    async def test_old_snapshots_go_by_age_and_by_session(self, store: SessionStore) -> None:
        """Ours: retention covers snapshots; other sessions keep theirs."""
        await store.put_snapshot("snap_old", "s1", b"old", NOW)
        await store.put_snapshot("snap_new", "s1", b"new", NOW + 100)
        await store.put_snapshot("snap_other", "s2", b"other", NOW)
        only = PruneRequest(sessions_before_ms=NOW + 100, session_id="s1")
        assert (await store.prune(only)).records == 1
        found = [await store.snapshot(f"snap_{name}") for name in ("old", "new", "other")]
        assert found == [None, b"new", b"other"]
        assert (await store.prune(PruneRequest(sessions_before_ms=NOW + 100))).records == 1
        assert await store.snapshot("snap_other") is None
        assert await store.snapshot("snap_new") == b"new"

    async def test_the_settings_of_code_are_part_of_the_session(self, store: SessionStore) -> None:
        """Ours: language, engine, limits and expiry stay until described anew; a fork has them."""
        head = await store.open_session(a_code_head(expires_at=NOW + 9))
        assert await store.head("s1") == head == a_code_head(expires_at=NOW + 9)
        await store.describe("s1", agent="(sandbox)", model="", host={"tools": []})
        described = await store.head("s1")
        assert described is not None
        assert (described.code, described.host) == (head.code, {"tools": []})
        assert (await store.fork("s1", "s2", None, NOW)).code == head.code
        later = a_code_head(expires_at=NOW + 99).code
        await store.describe("s1", agent="(sandbox)", model="", host={}, code=later)
        changed = await store.head("s1")
        assert changed is not None
        assert changed.code == later

    async def test_sessions_past_their_time_are_pruned(self, store: SessionStore) -> None:
        """Ours: a session with an expiry goes when it is over, however recently it was used."""
        for session_id, expires_at in (("past", NOW), ("later", NOW + 1), ("never", None)):
            await store.open_session(a_code_head(session_id, expires_at))
        assert (await store.prune(PruneRequest(branches=True))).sessions == 0
        assert (await store.prune(PruneRequest(now_ms=NOW, session_id="later"))).sessions == 0
        assert (await store.prune(PruneRequest(now_ms=NOW))).sessions == 1
        assert {head.session_id for head in await store.heads()} == {"later", "never"}

    async def test_a_session_past_its_time_waits_for_a_turn_that_runs_and_for_no_other(
        self, store: SessionStore
    ) -> None:
        """Ours: a running turn keeps its session; a pending approval does not keep a session."""
        now = PruneRequest(now_ms=NOW + 10)
        await store.open_session(a_code_head("runs", NOW))
        running = await begin(store, "t1", "runs", claimant())
        await store.open_session(a_code_head("s1", NOW))
        await park(store, a_wait("tick"), turn_id="t2")
        assert (await store.prune(now)).sessions == 1
        assert [head.session_id for head in await store.heads()] == ["runs"]
        await store.commit(running.lease, a_commit("t1", summary=stopped()))
        assert (await store.prune(now)).sessions == 1


class PluginRecordsContract(StoreContract):
    """Durable data of a plugin, by scope and key."""

    async def test_a_record_that_was_never_put_is_none(self, store: SessionStore) -> None:
        """Ours: absence is a value; taking nothing away is no error."""
        assert await store.plugin_record("notes", "all", "k") is None
        assert await store.plugin_records("notes", "all") == []
        await store.put_plugin_record("notes", "all", "k", None, NOW)
        assert await store.plugin_records("notes", "all") == []

    async def test_the_last_body_of_a_key_is_the_one_that_is_kept(self, store: SessionStore) -> None:
        """Ours: a key has one record, and none after it was deleted."""
        await store.put_plugin_record("notes", "all", "k", b"one", NOW)
        await store.put_plugin_record("notes", "all", "k", b"two\x00\xff", NOW + 1)
        assert await store.plugin_record("notes", "all", "k") == b"two\x00\xff"
        await store.put_plugin_record("notes", "all", "k", b"", NOW + 2)
        assert await store.plugin_record("notes", "all", "k") == b""
        await store.put_plugin_record("notes", "all", "k", None, NOW + 3)
        assert await store.plugin_record("notes", "all", "k") is None

    async def test_plugins_and_scopes_do_not_see_each_other(self, store: SessionStore) -> None:
        """Ours: a plugin's data is its own; names cannot run together."""
        places = [("a", "b", "c"), ("a", "bc", ""), ("ab", "", "c"), ("a", "", "bc"), ("", "ab", "c")]
        for plugin_id, scope, key in places:
            await store.put_plugin_record(plugin_id, scope, key, f"{plugin_id}/{scope}/{key}".encode(), NOW)
        for plugin_id, scope, key in places:
            body = f"{plugin_id}/{scope}/{key}".encode()
            assert await store.plugin_record(plugin_id, scope, key) == body
            assert await store.plugin_records(plugin_id, scope) == [(key, body)]
        assert await store.plugin_record("a", "b", "other") is None

    async def test_a_scope_is_listed_by_key(self, store: SessionStore) -> None:
        """Ours: an order that does not depend on who wrote when, or on which store it is."""
        names = ["b", "a", "é", "B", "10", "9", "𝒳", ""]
        for name in names:
            await store.put_plugin_record("notes", "all", name, name.encode(), NOW)
        await store.put_plugin_record("notes", "all", "a", b"again", NOW)
        await store.put_plugin_record("notes", "all", "9", None, NOW)
        listed = await store.plugin_records("notes", "all")
        assert [name for name, _ in listed] == sorted(set(names) - {"9"})
        assert dict(listed)["a"] == b"again"

    async def test_records_of_plugins_outlive_sessions(self, store: SessionStore) -> None:
        """Ours: it belongs to a plugin; retention of sessions leaves it alone."""
        await take_turn(store)
        await store.put_plugin_record("notes", "s1", "k", b"kept", NOW)
        await store.delete_session("s1")
        await store.prune(PruneRequest(sessions_before_ms=NOW + 100, frames=True, branches=True))
        assert await store.plugin_record("notes", "s1", "k") == b"kept"
