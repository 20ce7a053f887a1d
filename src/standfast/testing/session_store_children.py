"""What every session store must do with sessions that others made, and with the creation of sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from standfast.errors import NodeNotFound, SessionExists, SessionNotFound
from standfast.graph.history import messages_of
from standfast.model.capability import SessionToolAccess
from standfast.model.limits import Usage, UsageEntry
from standfast.model.plugin_options import PluginOptions
from standfast.model.session import SessionCharter, SessionHead, SessionPolicy
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
    said,
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
    """Charters, children, and the sessions with input that waits for a turn."""

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
        assert await store.children("missing") == []

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
        """Ours: a copy of a child belongs to its maker; it is not another child of the parent."""
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


_CHARTER = SessionCharter(parent_session_id="s1", depth=1, request="abc")


def a_new_session(session_id: str = "made", charter: SessionCharter = _CHARTER, **given: Any) -> NewSession:
    head = msgspec.structs.replace(a_head(session_id), agent="maker", charter=charter)
    return NewSession(head=head, segment_id=f"a_{session_id}", **given)


def a_line(source: str, tokens: int) -> UsageEntry:
    return UsageEntry(source=source, model="m", usage=Usage(input=tokens, calls=1))


class CreationContract(StoreContract):
    """Sessions that are made with all that they begin with, in one transaction."""

    async def test_a_session_is_made_with_all_that_it_begins_with(self, store: SessionStore) -> None:
        """Ours: history, state, blobs and first input are there together."""
        await store.open_session(a_head())
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
        assert head.state is not None
        assert await store.state(head.state) == b"one"
        assert await store.blob(blob.digest) == blob.data
        assert await store.inputs("made") == [first]
        assert [child.session_id for child in await store.children("s1")] == ["made"]

    async def test_a_session_made_again_is_the_same_if_its_charter_is(self, store: SessionStore) -> None:
        """Ours: what was taken or added in between stays so; another charter is another session."""
        await store.open_session(a_head())
        new = a_new_session(entries=(said("hello"),), first=an_input("first", "first", session_id="made"))
        await store.make_session(new)
        assert await store.withdraw_input("first")
        before = await store.append("made", "more", (said("more"),), None, NOW)
        assert await store.make_session(new) == before
        assert await store.inputs("made") == []
        other = msgspec.structs.replace(_CHARTER, request="other")
        for again in (a_new_session(charter=other), a_new_session("s1")):
            with pytest.raises(SessionExists):
                await store.make_session(again)

    async def test_of_many_who_make_a_session_one_does(self, store: SessionStore) -> None:
        """Ours: all of them are given the same."""
        await store.open_session(a_head())
        made = await asyncio.gather(*(store.make_session(a_new_session()) for _ in range(10)))
        assert len({head.created_at for head in made}) == 1
        assert len(await store.children("s1")) == 1

    async def test_a_session_is_made_over_the_history_of_another(self, store: SessionStore) -> None:
        """Ours: up to a node, with the state that holds there or what is made of it."""
        await store.open_session(a_head())
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
        assert (whole.state, whole.agent, whole.usage, whole.charter) == (
            (await store.head("s1")).state,  # type: ignore[union-attr]
            "maker",
            (),
            _CHARTER,
        )
        assert half.leaf == at
        assert half.state is not None
        assert await store.state(half.state) == b"changed"
        assert half.leaf is not None
        assert messages_of(await store.frame(half.leaf))
        await store.delete_session("s1")
        assert messages_of(await store.frame(half.leaf))

    async def test_a_session_that_cannot_be_made_is_not_there(self, store: SessionStore) -> None:
        """Ours: a wrong source, a wrong node, a state that cannot be made."""
        await store.open_session(a_head())
        await take_turn(store, "t1")

        def broken(held: bytes | None) -> StateRecord | None:
            raise ValueError("no state")

        for new, error in (
            (a_new_session(fork_of="missing"), SessionNotFound),
            (a_new_session(fork_of="s1", at="t9.0"), NodeNotFound),
            (a_new_session(entries=(said("x"),), make_state=broken), ValueError),
        ):
            with pytest.raises(error):
                await store.make_session(new)
            assert await store.head("made") is None
        assert (await store.make_session(a_new_session())).leaf is None

    # Outside of turns

    async def test_what_is_used_outside_of_turns_is_in_the_ledger(self, store: SessionStore) -> None:
        """Ours: the leaf and the revision stay; calls count on."""
        await store.open_session(a_head())
        before = await take_turn(store, "t1")
        await store.add_usage("s1", (a_line("a", 2), a_line("b", 3)), 2, NOW + 5)
        head = await store.add_usage("s1", (a_line("a", 4),), 1, NOW + 6)
        assert head == await store.head("s1")
        added = [line for line in head.usage if line.source in "ab"]
        assert {line.source: line.usage.input for line in added} == {"a": 6, "b": 3}
        assert head.model_calls == before.model_calls + 3
        assert (head.leaf, head.revision, head.updated_at) == (before.leaf, before.revision, NOW + 6)
        with pytest.raises(SessionNotFound):
            await store.add_usage("missing", (), 0, NOW)

    async def test_what_is_used_beside_a_turn_is_added_to_what_the_turn_used(
        self, store: SessionStore
    ) -> None:
        """Ours: no line is lost, in any order of writes."""
        await store.open_session(a_head())
        begun = await begin(store)
        await store.add_usage("s1", (a_line("beside", 2),), 1, NOW)
        commit = msgspec.structs.replace(a_commit(), usage=(a_line("turn", 5),), model_calls=2)
        head = await store.commit(begun.lease, commit)
        assert not isinstance(head, str)
        stored = await store.head("s1")
        assert stored is not None
        assert {line.source: line.usage.input for line in stored.usage} == {"beside": 2, "turn": 5}
        assert stored.model_calls == 3
