"""The contract of session stores for children, new sessions, snapshots and plugin records."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from standfast.errors import NodeNotFound, SessionExists, SessionNotFound
from standfast.graph.history import messages_of
from standfast.model.capability import SessionToolAccess
from standfast.model.code import Language
from standfast.model.limits import SessionLimits, Usage, UsageEntry
from standfast.model.plugin_options import PluginOptions
from standfast.model.session import CodeSettings, SessionCharter, SessionHead, SessionPolicy
from standfast.ports.session_store import NewSession, PruneRequest, SessionStore, StateRecord
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_blob,
    a_commit,
    a_head,
    a_state,
    a_wait,
    an_input,
    begin,
    claimant,
    new_turn,
    opened,
    park,
    refuses,
    said,
    stopped,
    take_turn,
    take_turns,
    there,
)


def a_child(session_id: str, parent: str = "s1", at_ms: int = NOW) -> SessionHead:
    """Return the head of a session that another one created."""
    charter = SessionCharter(
        parent_session_id=parent,
        depth=1,
        task="look it up",
        subagent=True,
        tool_access=SessionToolAccess(tools=("search",), hidden_tools=()),
        plugin_options=PluginOptions(plugins={"plan": {"max_items": 2**70}}),
        policy=SessionPolicy(model="m2"),
    )
    return msgspec.structs.replace(a_head(session_id, at_ms), charter=charter)


class ChildContract(StoreContract):
    """Charters, children, and sessions with queued input."""

    async def test_a_charter_does_not_change_after_creation(self, store: SessionStore) -> None:
        """Ours: what a session may do is fixed on creation, through turns, rewinds and descriptions."""
        made = await store.open_session(a_child("c1"))
        assert made == a_child("c1")
        assert await store.open_session(a_head("c1")) == made
        await take_turns(store, "t1", "t2", session_id="c1")
        await store.rewind("c1", "t1.1", NOW)
        await store.describe("c1", agent="helper", model="m1", host={})
        head = there(await store.head("c1"))
        assert (head.charter, head.agent, head.leaf) == (made.charter, "helper", "t1.1")

    async def test_children_are_listed_by_age(self, store: SessionStore) -> None:
        """Ours: a session finds its own children; roots and the children of others are not listed."""
        await store.open_session(a_head("s1"))
        for child in (a_child("c3", at_ms=NOW + 2), a_child("c2"), a_child("c1"), a_child("c4", "c1")):
            await store.open_session(child)
        assert [head.session_id for head in await store.children("s1")] == ["c2", "c1", "c3"]
        assert await store.children("c1") == [a_child("c4", "c1")]
        assert await store.children("c4") == []
        assert await store.children("missing") == []

    async def test_a_child_is_listed_with_its_current_head_until_it_is_deleted(
        self, store: SessionStore
    ) -> None:
        """Ours: the list has current heads."""
        await store.open_session(a_child("c1"))
        await store.open_session(a_child("c2"))
        head = await take_turn(store, "t1", "c1")
        assert (await store.children("s1"))[0] == head
        await store.delete_session("c1")
        assert [it.session_id for it in await store.children("s1")] == ["c2"]
        await store.prune(PruneRequest(sessions_before_ms=NOW + 1))
        assert await store.children("s1") == []
        await store.open_session(a_head("c1"))
        assert await store.children("s1") == []

    async def test_a_fork_is_a_root(self, store: SessionStore) -> None:
        """Ours: the fork of a child belongs to the session that made it, not to the parent."""
        await store.open_session(a_child("c1"))
        await take_turn(store, "t1", "c1")
        for at in (None, "t1.0"):
            fork = await store.fork("c1", f"f_{at is None}", at, NOW)
            assert (fork.charter, fork.forked_from) == (None, "c1")
        assert [it.session_id for it in await store.children("s1")] == ["c1"]

    async def test_only_sessions_with_queued_input_are_listed(self, store: SessionStore) -> None:
        """Ours: a queued wake starts a turn by itself when the session is idle."""
        assert await store.with_queued() == []
        for number in (1, 2, 3, 4):
            await store.open_session(a_head(f"s{number}"))
        await store.put_input(an_input("i1", session_id="s3"))
        await store.put_input(an_input("i2", session_id="s2"))
        await store.put_input(an_input("i3", session_id="s3"))
        await store.put_input(an_input("i4", "inject", session_id="s1"))
        await store.put_input(an_input("i5", "first", session_id="s4"))
        assert await store.with_queued() == ["s3", "s2"]
        await store.withdraw_input("i2")
        assert await store.with_queued() == ["s3"]
        await store.delete_session("s3")
        assert await store.with_queued() == []

    async def test_a_session_with_an_unfinished_turn_is_not_woken(self, store: SessionStore) -> None:
        """Ours: whether running, waiting or left by its owner, its turn comes first."""
        begun = await begin(store, "t2", "s2")
        await begin(store, "t3", "s3", claimant("dead"))
        await park(store, a_wait("tick"))
        for session_id in ("s1", "s2", "s3"):
            await store.put_input(an_input(f"i_{session_id}", session_id=session_id))
        assert await store.with_queued() == []
        await store.commit(begun.lease, a_commit("t2"))
        assert await store.with_queued() == ["s2"]
        await store.begin(new_turn("t4", "s2", consumes="i_s2"), claimant())
        assert await store.with_queued() == []

    async def test_input_that_a_stopped_turn_did_not_receive_wakes_the_session(
        self, store: SessionStore
    ) -> None:
        """Ours: an input that misses the last checkpoint becomes the next turn."""
        begun = await begin(store)
        await store.put_input(an_input("i1", "inject"))
        await store.commit(begun.lease, a_commit(summary=stopped()))
        assert await store.with_queued() == ["s1"]


_CHARTER = SessionCharter(parent_session_id="s1", depth=1, request="abc")


def a_new_session(session_id: str = "made", charter: SessionCharter = _CHARTER, **given: Any) -> NewSession:
    head = msgspec.structs.replace(a_head(session_id), agent="maker", charter=charter)
    return NewSession(head=head, segment_id=f"a_{session_id}", **given)


def a_line(source: str, tokens: int) -> UsageEntry:
    return UsageEntry(source=source, model="m", usage=Usage(input=tokens, calls=1))


class CreationContract(StoreContract, sessions=("s1",)):
    """Sessions that are created with their initial contents in one transaction."""

    async def test_a_session_is_created_with_all_its_initial_contents(self, store: SessionStore) -> None:
        """Ours: history, state, blobs and first input appear together."""
        blob, first = a_blob(), an_input("first", "first", session_id="made")
        new = a_new_session(
            entries=(opened("f"), said("hello")),
            make_state=lambda held: a_state(b"one" if held is None else b"other", blob),
            blobs=(blob,),
            first=first,
        )
        head = await store.make_session(new)
        assert head == await store.head("made")
        assert (head.charter, head.agent, head.depth, head.frame) == (_CHARTER, "maker", 2, "f")
        assert await store.state(there(head.state)) == b"one"
        assert await store.blob(blob.digest) == blob.data
        assert await store.inputs("made") == [first]
        assert [child.session_id for child in await store.children("s1")] == ["made"]

    async def test_creating_a_session_again_returns_it_if_the_charter_is_the_same(
        self, store: SessionStore
    ) -> None:
        """Ours: later changes are kept; another charter is another session."""
        new = a_new_session(entries=(said("hello"),), first=an_input("first", "first", session_id="made"))
        await store.make_session(new)
        assert await store.withdraw_input("first")
        before = await store.append("made", "more", (said("more"),), None, NOW)
        assert await store.make_session(new) == before
        assert await store.inputs("made") == []
        other = msgspec.structs.replace(_CHARTER, request="other")
        for again in (a_new_session(charter=other), a_new_session("s1")):
            await refuses(store.make_session(again), SessionExists)

    async def test_of_many_concurrent_creators_of_a_session_one_succeeds(self, store: SessionStore) -> None:
        """Ours: all callers get the same session."""
        made = await asyncio.gather(*(store.make_session(a_new_session()) for _ in range(10)))
        assert len({head.created_at for head in made}) == 1
        assert len(await store.children("s1")) == 1

    async def test_a_session_is_created_over_the_history_of_another(self, store: SessionStore) -> None:
        """Ours: up to a node, with the state at that node or one derived from it."""
        first = await take_turn(store, "t1", state=a_state(b"first"))
        await take_turn(store, "t2", state=a_state(b"second"))
        at = first.leaf
        held: list[bytes | None] = []

        def make(body: bytes | None) -> StateRecord | None:
            held.append(body)
            return None if body == b"second" else a_state(b"changed")

        whole = await store.make_session(a_new_session("whole", fork_of="s1", make_state=make))
        half = await store.make_session(a_new_session("half", fork_of="s1", at=at, make_state=make))
        assert set(held) == {b"second", b"first"}
        assert whole.state == there(await store.head("s1")).state
        assert (whole.agent, whole.usage, whole.charter) == ("maker", (), _CHARTER)
        assert half.leaf == at
        assert await store.state(there(half.state)) == b"changed"
        assert messages_of(await store.frame(there(at)))
        await store.delete_session("s1")
        assert messages_of(await store.frame(there(at)))

    async def test_a_session_that_cannot_be_created_does_not_exist(self, store: SessionStore) -> None:
        """Ours: a wrong source, a wrong node, a state that cannot be created."""
        await take_turn(store, "t1")

        def broken(held: bytes | None) -> StateRecord | None:
            raise ValueError("no state")

        for new, error in (
            (a_new_session(fork_of="missing"), SessionNotFound),
            (a_new_session(fork_of="s1", at="t9.0"), NodeNotFound),
            (a_new_session(entries=(said("x"),), make_state=broken), ValueError),
        ):
            await refuses(store.make_session(new), error)
            assert await store.head("made") is None
        assert (await store.make_session(a_new_session())).leaf is None

    # Outside of turns

    async def test_usage_outside_of_turns_is_in_the_ledger(self, store: SessionStore) -> None:
        """Ours: the leaf and the revision are unchanged; the count of calls increases."""
        before = await take_turn(store, "t1")
        await store.add_usage("s1", (a_line("a", 2), a_line("b", 3)), 2, NOW + 5)
        head = await store.add_usage("s1", (a_line("a", 4),), 1, NOW + 6)
        assert head == await store.head("s1")
        added = [line for line in head.usage if line.source in "ab"]
        assert {line.source: line.usage.input for line in added} == {"a": 6, "b": 3}
        assert head.model_calls == before.model_calls + 3
        assert (head.leaf, head.revision, head.updated_at) == (before.leaf, before.revision, NOW + 6)
        await refuses(store.add_usage("missing", (), 0, NOW), SessionNotFound)

    async def test_usage_beside_a_turn_is_added_to_that_of_the_turn(self, store: SessionStore) -> None:
        """Ours: no ledger line is lost, in any order of writes."""
        begun = await begin(store)
        await store.add_usage("s1", (a_line("beside", 2),), 1, NOW)
        commit = msgspec.structs.replace(a_commit(), usage=(a_line("turn", 5),), model_calls=2)
        head = await store.commit(begun.lease, commit)
        assert not isinstance(head, str)
        stored = there(await store.head("s1"))
        assert {line.source: line.usage.input for line in stored.usage} == {"beside": 2, "turn": 5}
        assert stored.model_calls == 3


def a_code_head(session_id: str = "s1", expires_at: int | None = None) -> SessionHead:
    """Return the head of a session without a model."""
    code = CodeSettings(
        language=Language.PYTHON, engine="monty", limits=SessionLimits(), expires_at=expires_at
    )
    return msgspec.structs.replace(a_head(session_id), code=code)


class SnapshotContract(StoreContract):
    """Snapshots by id, and sessions that run code."""

    async def test_a_snapshot_is_read_back_byte_for_byte(self, store: SessionStore) -> None:
        """Seed: a snapshot is bytes; the last one with an id counts."""
        data = bytes(range(256)) * 40
        assert await store.snapshot("snap_1") is None
        await store.put_snapshot("snap_1", "s1", b"before", NOW)
        await store.put_snapshot("snap_1", "s1", data, NOW + 1)
        await store.put_snapshot("snap_2", "s1", b"", NOW)
        assert await store.snapshot("snap_1") == data
        assert await store.snapshot("snap_2") == b""

    async def test_snapshots_outlive_their_session(self, store: SessionStore) -> None:
        """Ours: a deleted session can be restored from a snapshot."""
        await store.open_session(a_code_head())
        await store.put_snapshot("snap_1", "s1", b"variables", NOW)
        assert await store.delete_session("s1")
        assert await store.snapshot("snap_1") == b"variables"

    async def test_old_snapshots_are_pruned_by_age_and_by_session(self, store: SessionStore) -> None:
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
        """Ours: language, engine, limits and expiry are kept until described again; a fork has them."""
        head = await store.open_session(a_code_head(expires_at=NOW + 9))
        assert await store.head("s1") == head == a_code_head(expires_at=NOW + 9)
        await store.describe("s1", agent="(sandbox)", model="", host={"tools": []})
        described = there(await store.head("s1"))
        assert (described.code, described.host) == (head.code, {"tools": []})
        assert (await store.fork("s1", "s2", None, NOW)).code == head.code
        later = a_code_head(expires_at=NOW + 99).code
        await store.describe("s1", agent="(sandbox)", model="", host={}, code=later)
        changed = there(await store.head("s1"))
        assert changed.code == later

    async def test_expired_sessions_are_pruned(self, store: SessionStore) -> None:
        """Ours: an expired session is deleted, however recently it was used."""
        for session_id, expires_at in (("past", NOW), ("later", NOW + 1), ("never", None)):
            await store.open_session(a_code_head(session_id, expires_at))
        assert (await store.prune(PruneRequest(branches=True))).sessions == 0
        assert (await store.prune(PruneRequest(now_ms=NOW, session_id="later"))).sessions == 0
        assert (await store.prune(PruneRequest(now_ms=NOW))).sessions == 1
        assert {head.session_id for head in await store.heads()} == {"later", "never"}

    async def test_an_expired_session_is_kept_only_while_a_turn_runs(self, store: SessionStore) -> None:
        """Ours: a running turn keeps its session; a pending approval does not."""
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

    async def test_a_missing_plugin_record_is_none(self, store: SessionStore) -> None:
        """Ours: absence is a value; deleting nothing is not an error."""
        assert await store.plugin_record("notes", "all", "k") is None
        assert await store.plugin_records("notes", "all") == []
        await store.put_plugin_record("notes", "all", "k", None, NOW)
        assert await store.plugin_records("notes", "all") == []

    async def test_the_last_body_stored_under_a_key_is_kept(self, store: SessionStore) -> None:
        """Ours: a key has one record, and none after its deletion."""
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
        """Ours: the order does not depend on the writer, the time or the store."""
        names = ["b", "a", "é", "B", "10", "9", "𝒳", ""]
        for name in names:
            await store.put_plugin_record("notes", "all", name, name.encode(), NOW)
        await store.put_plugin_record("notes", "all", "a", b"again", NOW)
        await store.put_plugin_record("notes", "all", "9", None, NOW)
        listed = await store.plugin_records("notes", "all")
        assert [name for name, _ in listed] == sorted(set(names) - {"9"})
        assert dict(listed)["a"] == b"again"

    async def test_records_of_plugins_outlive_sessions(self, store: SessionStore) -> None:
        """Ours: a record belongs to a plugin; session retention does not touch it."""
        await take_turn(store)
        await store.put_plugin_record("notes", "s1", "k", b"kept", NOW)
        await store.delete_session("s1")
        await store.prune(PruneRequest(sessions_before_ms=NOW + 100, frames=True, branches=True))
        assert await store.plugin_record("notes", "s1", "k") == b"kept"
