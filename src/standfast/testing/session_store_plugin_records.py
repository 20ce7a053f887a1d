"""What every session store must do with what plugins keep beyond one session."""

from __future__ import annotations

from standfast.ports.session_store import PruneRequest, SessionStore
from standfast.testing.session_values import NOW, StoreContract, take_turn


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
