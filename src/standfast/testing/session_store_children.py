"""What every session store must do with sessions that others made, and with those that wait for a turn."""

from __future__ import annotations

import msgspec

from standfast.model.capability import SessionToolAccess
from standfast.model.plugin_options import PluginOptions
from standfast.model.session import SessionCharter, SessionHead, SessionPolicy
from standfast.ports.session_store import PruneRequest, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_commit,
    a_head,
    a_wait,
    an_input,
    begin,
    claimant,
    new_turn,
    park,
    stopped,
    take_turn,
)


def a_child(session_id: str, parent: str = "s1", at_ms: int = NOW) -> SessionHead:
    """A session that another one made."""
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
    """Charters, children, and the sessions that somebody should begin a turn for."""

    async def test_a_charter_is_kept_as_the_session_was_made(self, store: SessionStore) -> None:
        """Ours: what a session may do is fixed when it is made, through turns, rewinds and descriptions."""
        made = await store.open_session(a_child("c1"))
        assert made == a_child("c1")
        assert await store.open_session(a_head("c1")) == made
        await take_turn(store, "t1", "c1")
        await take_turn(store, "t2", "c1")
        await store.rewind("c1", "t1.1", NOW)
        await store.describe("c1", agent="helper", model="m1", host={})
        head = await store.head("c1")
        assert head is not None
        assert (head.charter, head.agent, head.leaf) == (made.charter, "helper", "t1.1")

    async def test_children_are_listed_by_age(self, store: SessionStore) -> None:
        """Ours: a session finds what it made; roots and the children of others are not among it."""
        await store.open_session(a_head("s1"))
        for child in (a_child("c3", at_ms=NOW + 2), a_child("c2"), a_child("c1"), a_child("c4", "c1")):
            await store.open_session(child)
        assert [head.session_id for head in await store.children("s1")] == ["c2", "c1", "c3"]
        assert await store.children("c1") == [a_child("c4", "c1")]
        assert await store.children("c4") == []
        assert await store.children("nobody") == []

    async def test_a_child_is_listed_where_it_stands_until_it_goes(self, store: SessionStore) -> None:
        """Ours: what is listed are heads as they are now."""
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
        """Ours: a copy of a child is for whoever copies it, not one more child of its parent."""
        await store.open_session(a_child("c1"))
        await take_turn(store, "t1", "c1")
        for at in (None, "t1.0"):
            fork = await store.fork("c1", f"f_{at is None}", at, NOW)
            assert (fork.charter, fork.forked_from) == (None, "c1")
        assert [it.session_id for it in await store.children("s1")] == ["c1"]

    async def test_sessions_with_queued_input_are_those_that_could_begin(self, store: SessionStore) -> None:
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
        """Ours: running, waiting or left by its owner: its turn comes first."""
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

    async def test_what_a_stopped_turn_did_not_hear_wakes_the_session(self, store: SessionStore) -> None:
        """Ours: what misses the last checkpoint becomes the next turn."""
        begun = await begin(store)
        await store.put_input(an_input("i1", "inject"))
        await store.commit(begun.lease, a_commit(summary=stopped()))
        assert await store.with_queued() == ["s1"]
