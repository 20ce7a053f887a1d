"""The contract of session stores for the state of plugins and tools."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from standfast.errors import IdempotencyConflict, LeaseLost, NodeNotFound, SessionBusy, SessionNotFound
from standfast.model.session import SessionHead
from standfast.ports.session_store import CommitRefused, PruneRequest, Save, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_blob,
    a_commit,
    a_head,
    a_save,
    a_state,
    a_state_entry,
    a_wait,
    an_entry,
    an_input,
    begin,
    claimant,
    opened,
    park,
    refuses,
    replied,
    said,
    take_turn,
    there,
    waiting,
)

EVERYTHING = PruneRequest(frames=True, branches=True)


async def change(store: SessionStore, body: str, session_id: str = "s1") -> SessionHead:
    """Set another state of a session between turns."""
    return await store.set_state(session_id, a_state(body), (), NOW)


async def state_of(store: SessionStore, session_id: str = "s1") -> str | None:
    """Return the current state of a session."""
    head = there(await store.head(session_id))
    return await text_of(store, head)


async def text_of(store: SessionStore, head: SessionHead) -> str | None:
    """Return the state that a head names, which must exist."""
    if head.state is None:
        return None
    body = there(await store.state(head.state))
    return body.decode()


async def check_rewinds(store: SessionStore, held: Mapping[str, str | None]) -> None:
    """Rewind `s1` to every node of *held* and back; the state at each node must be restored."""
    for node, state in (*held.items(), *reversed([*held.items()])):
        assert await text_of(store, await store.rewind("s1", node, NOW)) == state, node


class StateContract(StoreContract):
    """States along the paths of sessions, and in the middle of turns."""

    async def test_a_session_has_no_state_until_one_is_stored(self, store: SessionStore) -> None:
        """Ours: most sessions have no plugins with state."""
        assert (await take_turn(store)).state is None
        assert await store.state("nothing") is None

    async def test_a_commit_stores_the_state(self, store: SessionStore) -> None:
        """Ours: journal rule 5; a commit without a state keeps the session's."""
        first = await take_turn(store, "t1", state=a_state("one"))
        assert await text_of(store, first) == "one"
        same = await take_turn(store, "t2")
        assert same.state == first.state
        assert await store.head("s1") == same
        other = await take_turn(store, "t3", state=a_state("two"))
        assert other.state != first.state
        assert await text_of(store, other) == "two"
        assert await text_of(store, first) == "one"

    async def test_a_turn_has_the_states_before_and_after_it(self, store: SessionStore) -> None:
        """Ours: the variables around a cell, without states that the session wrote later."""
        await take_turn(store, "t1", state=a_state("one"))
        await change(store, "reset")
        await take_turn(store, "t2")
        await take_turn(store, "t3", state=a_state("two"))
        found = []
        for turn_id in ("t1", "t2", "t3"):
            around = there(await store.turn_states(turn_id))
            bodies = [
                None if name is None else await store.state(name) for name in (around.before, around.after)
            ]
            found.append([None if body is None else body.decode() for body in bodies])
        assert found == [[None, "one"], ["reset", "reset"], ["reset", "two"]]
        assert await store.turn_states("nothing") is None

    async def test_a_commit_without_nodes_may_change_the_state(self, store: SessionStore) -> None:
        """Ours: a turn without nodes may have changed a plugin's state."""
        await take_turn(store, "t1", state=a_state("one"))
        head = await take_turn(store, "t2", entries=(), state=a_state("two"))
        assert (await text_of(store, head), head.leaf) == ("two", "t1.1")
        assert (await take_turn(store, "t3")).state == head.state
        assert await text_of(store, await store.rewind("s1", "t1.1", NOW)) == "two"

    async def test_a_commit_that_is_refused_changes_no_state(self, store: SessionStore) -> None:
        """Ours: nothing is written, not even the blobs."""
        blob = a_blob()
        commit = a_commit(state=a_state("one", blob), blobs=(blob,))
        begun = await begin(store)
        await store.put_input(an_input("i1", "inject"))
        assert isinstance(await store.commit(begun.lease, commit), CommitRefused)
        lost = msgspec.structs.replace(begun.lease, fence=begun.lease.fence + 1)
        await refuses(store.commit(lost, commit), LeaseLost)
        assert await state_of(store) is None
        assert await store.blob(blob.digest) is None

    async def test_inputs_that_a_turn_enqueues_arrive_in_order_or_not_at_all(
        self, store: SessionStore
    ) -> None:
        """Ours: a plugin may start several turns; an input that conflicts with a stored one is an error."""
        begun = await begin(store)
        await store.put_input(an_input("i0"))
        items = (an_input("i2"), an_input("i1"), an_input("i2"), an_input("i0"))
        for other in (an_input("i0", text="other"), an_input("i2", text="other")):
            with pytest.raises(IdempotencyConflict):
                await store.commit(begun.lease, a_commit(enqueue=(*items, other), state=a_state("one")))
        with pytest.raises(SessionNotFound):
            await store.commit(begun.lease, a_commit(enqueue=(an_input("i3", session_id="s9"),)))
        assert await state_of(store) is None
        assert len(await store.inputs("s1")) == 1
        await store.commit(begun.lease, a_commit(enqueue=items))
        assert [it.input_id for it in await store.inputs("s1")] == ["i0", "i2", "i1"]

    async def test_a_turn_enqueues_for_the_session_that_an_input_names(self, store: SessionStore) -> None:
        """Ours: an input is queued in the session that it is addressed to."""
        await store.open_session(a_head("s2"))
        begun = await begin(store)
        await store.commit(begun.lease, a_commit(enqueue=(an_input("i1", session_id="s2"),)))
        assert await store.inputs("s1") == []
        assert await store.inputs("s2") == [an_input("i1", session_id="s2")]

    async def test_a_state_can_change_between_turns(self, store: SessionStore) -> None:
        """Ours: a plugin's action, or a disabled tool; neither the leaf nor the revision moves."""
        before = await take_turn(store)
        head = await store.set_state("s1", a_state("off"), (), NOW + 5)
        assert await text_of(store, head) == "off"
        assert msgspec.structs.replace(head, state=None, updated_at=before.updated_at) == before
        assert head.updated_at == NOW + 5
        assert await store.head("s1") == head
        assert (await begin(store, "t2")).head.state == head.state

    async def test_a_state_cannot_change_during_an_unfinished_turn(self, store: SessionStore) -> None:
        """Ours: a turn works on the state that it began with."""
        await refuses(change(store, "one"), SessionNotFound)
        begun = await begin(store)
        await refuses(change(store, "one"), SessionBusy, match="w1")
        await store.park(begun.lease, a_save(), waiting(a_wait("tick")))
        await refuses(change(store, "one"), SessionBusy, match="t1")
        await begin(store, "t2", "s2", claimant("dead"))
        await refuses(change(store, "one", "s2"), SessionBusy)
        assert await state_of(store) is None

    async def test_a_process_that_takes_over_gets_the_state_of_the_session(self, store: SessionStore) -> None:
        """Ours: a turn resumes in another process with the plugin state it had."""
        await take_turn(store, "t0", state=a_state("one"))
        await begin(store, "t1", claimed_by=claimant("dead"))
        taken = await store.take_over("t1", claimant())
        assert await text_of(store, taken.head) == "one"

    async def test_a_body_is_stored_unchanged(self, store: SessionStore) -> None:
        """Ours: states are opaque, and may be empty or large."""
        for number, body in enumerate((b"", bytes(range(256)) * 100)):
            head = await take_turn(store, f"t{number}", state=a_state(body))
            assert await store.state(there(head.state)) == body

    async def test_appending_nodes_does_not_change_the_state(self, store: SessionStore) -> None:
        """Ours: the host's nodes are not a turn."""
        before = await take_turn(store, "t1", state=a_state("one"))
        after = await store.append("s1", "n1", (said(),), None, NOW)
        assert after.state == before.state
        assert await text_of(store, await store.rewind("s1", "n1.0", NOW)) == "one"

    async def test_rewinding_restores_the_state_at_the_node(self, store: SessionStore) -> None:
        """Ours: a plugin must not remember events of another branch."""
        await take_turn(store, "t1", state=a_state("one"))
        await take_turn(store, "t2")
        await take_turn(store, "t3", state=a_state("three"))
        held = {"t1.0": None, "t1.1": "one", "t2.0": "one", "t2.1": "one", "t3.0": "one", "t3.1": "three"}
        await check_rewinds(store, held)

    async def test_a_state_between_turns_belongs_to_the_leaf_at_that_time(self, store: SessionStore) -> None:
        """Ours: the newest state at a leaf wins; a state before the first node holds from the root on."""
        await store.open_session(a_head())
        await change(store, "root")
        await take_turn(store, "t1")
        await change(store, "a")
        await change(store, "b")
        await take_turn(store, "t2", state=a_state("two"))
        await change(store, "c")
        held = {"t1.0": "root", "t1.1": "b", "t2.0": "b", "t2.1": "c"}
        await check_rewinds(store, held)

    async def test_a_branch_continues_from_the_state_at_its_root(self, store: SessionStore) -> None:
        """Ours: branches have their own states."""
        await take_turn(store, "t1", state=a_state("one"))
        await take_turn(store, "t2", state=a_state("two"))
        await store.rewind("s1", "t1.0", NOW)
        await change(store, "branch")
        await take_turn(store, "t3")
        await take_turn(store, "t4", state=a_state("four"))
        held = {"t1.0": "branch", "t3.1": "branch", "t4.0": "branch", "t4.1": "four", "t1.1": "one"}
        held |= {"t2.0": "one", "t2.1": "two"}
        await check_rewinds(store, held)

    async def test_a_rewind_or_fork_at_an_unknown_node_changes_nothing(self, store: SessionStore) -> None:
        """Ours: a rejected request changes nothing."""
        before = await take_turn(store, "t1", state=a_state("one"))
        await refuses(store.rewind("s1", "t1.7", NOW), NodeNotFound)
        await refuses(store.fork("s1", "s2", "t9.0", NOW), NodeNotFound)
        assert await store.head("s1") == before

    async def test_a_fork_begins_with_the_state_at_its_node(self, store: SessionStore) -> None:
        """Ours: a fork is the session as it was at that node."""
        await take_turn(store, "t1", state=a_state("one"))
        await change(store, "between")
        await take_turn(store, "t2", state=a_state("two"))
        for name, node, state in (
            ("f1", None, "two"),
            ("f2", "t2.1", "two"),
            ("f3", "t2.0", "between"),
            ("f4", "t1.1", "between"),
            ("f5", "t1.0", None),
        ):
            assert await text_of(store, await store.fork("s1", name, node, NOW)) == state, name

    async def test_a_fork_of_a_session_without_nodes_keeps_its_state(self, store: SessionStore) -> None:
        """Ours: tools may be disabled before the first turn."""
        await store.open_session(a_head())
        await change(store, "root")
        assert await text_of(store, await store.fork("s1", "s2", None, NOW)) == "root"
        await change(store, "mine")
        await take_turn(store, "t1", "s2")
        assert await text_of(store, await store.rewind("s2", "t1.0", NOW)) == "root"

    async def test_writes_after_a_fork_do_not_affect_the_other_session(self, store: SessionStore) -> None:
        """Ours: two sessions at one node do not change each other's plugins."""
        await take_turn(store, "t1", state=a_state("one"))
        await change(store, "shared")
        await store.fork("s1", "s2", None, NOW)
        await change(store, "of s1")
        await change(store, "of s2", "s2")
        await store.fork("s1", "s3", "t1.1", NOW)
        await take_turn(store, "t2")
        await take_turn(store, "t3", "s2")
        await take_turn(store, "t4", "s3")
        for session_id, body in (("s1", "of s1"), ("s2", "of s2"), ("s3", "of s1")):
            assert await state_of(store, session_id) == body
            assert await text_of(store, await store.rewind(session_id, "t1.1", NOW)) == body
            assert await text_of(store, await store.rewind(session_id, "t1.0", NOW)) is None

    async def test_a_fork_finds_the_states_of_shared_history(self, store: SessionStore) -> None:
        """Ours: rewinding works in a fork too."""
        await take_turn(store, "t1", state=a_state("one"))
        await change(store, "between")
        await take_turn(store, "t2", state=a_state("two"))
        await store.fork("s1", "s2", None, NOW)
        await store.delete_session("s1")
        await take_turn(store, "t3", "s2", state=a_state("three"))
        for node, state in (("t2.1", "two"), ("t2.0", "between"), ("t1.1", "between"), ("t1.0", None)):
            assert await text_of(store, await store.rewind("s2", node, NOW)) == state, node
        assert await text_of(store, await store.rewind("s2", "t3.1", NOW)) == "three"

    async def test_a_later_state_of_a_turn_replaces_the_earlier_one(self, store: SessionStore) -> None:
        """Ours: rule 4; it is positioned at its last write, and inputs stay unique."""
        begun = await begin(store, claimed_by=claimant("dead"))
        one, two = a_state_entry("plugin.p", b"1"), a_state_entry("plugin.p", b"2")
        other = a_state_entry("plugin.q", b"1")
        await store.save(begun.lease, a_save("t1", one, an_entry("plugin.p"), other))
        await store.save(begun.lease, a_save("t1", an_entry("model.1"), one, two))
        taken = await store.take_over("t1", claimant("dead"))
        assert taken.journal == (an_entry("plugin.p"), other, an_entry("model.1"), two)
        await store.park(taken.lease, a_save("t1", other), waiting(a_wait("tick")))
        taken = await store.take_over("t1", claimant())
        assert taken.journal == (an_entry("plugin.p"), an_entry("model.1"), two, other)
        await store.commit(taken.lease, a_commit())
        assert len((await store.take_over((await begin_dead(store)), claimant())).journal) == 0


class StateRetentionContract(StoreContract):
    """Which states and blobs a store deletes, and which it keeps."""

    async def test_blobs_of_a_save_stay_until_the_turn_ends(self, store: SessionStore) -> None:
        """Ours: while the turn runs no record needs to reference them; they are not journal entries."""
        saved, parked = a_blob(b"saved"), a_blob(b"parked")
        begun = await begin(store)
        await store.save(begun.lease, Save(turn_id="t1", entries=(), blobs=(saved, saved)))
        await store.save(begun.lease, Save(turn_id="t1", entries=(an_entry("k"),), blobs=(saved,)))
        save = Save(turn_id="t1", entries=(), blobs=(parked,))
        await store.park(begun.lease, save, waiting(a_wait("tick")))
        assert (await store.prune(EVERYTHING)).blobs == 0
        taken = await store.take_over("t1", claimant())
        assert taken.journal == (an_entry("k"),)
        for blob in (saved, parked):
            assert await store.blob(blob.digest) == blob.data
        await store.commit(taken.lease, a_commit(state=a_state("one", saved)))
        assert (await store.prune(EVERYTHING)).blobs == 1
        assert await store.blob(parked.digest) is None
        assert await store.blob(saved.digest) == saved.data

    async def test_blobs_of_a_save_are_deleted_with_their_session(self, store: SessionStore) -> None:
        """Ours: deleting means deleting, even in the middle of a turn."""
        blob = a_blob()
        begun = await begin(store)
        save = Save(turn_id="t1", entries=(), blobs=(blob,))
        await store.park(begun.lease, save, waiting(a_wait("tick")))
        await store.delete_session("s1")
        assert (await store.prune(PruneRequest())).blobs == 1

    async def test_blobs_that_a_state_lists_stay_with_it(self, store: SessionStore) -> None:
        """Ours: a state's body is opaque; its list of blobs counts."""
        committed, between, unlisted = a_blob(b"1"), a_blob(b"2"), a_blob(b"3")
        begun = await begin(store)
        state = a_state(unlisted.digest, committed)
        await store.commit(begun.lease, a_commit(state=state, blobs=(committed, unlisted)))
        await store.set_state("s1", a_state(b"", committed, between), (between,), NOW)
        assert (await store.prune(PruneRequest())).blobs == 1
        for blob in (committed, between):
            assert await store.blob(blob.digest) == blob.data
        await store.delete_session("s1")
        assert (await store.prune(PruneRequest())).blobs == 2

    async def test_states_are_deleted_with_their_branch(self, store: SessionStore) -> None:
        """Ours: retention by branch; the current state is always kept."""
        await take_turn(store, "t1", state=a_state("one"))
        left = await take_turn(store, "t2", state=a_state("two"))
        later = await change(store, "later")
        await store.rewind("s1", "t1.1", NOW)
        await take_turn(store, "t3")
        assert (await store.prune(PruneRequest())).states == 0
        assert (await store.prune(PruneRequest(branches=True))).states == 2
        for head in (left, later):
            assert await store.state(there(head.state)) is None
        assert await state_of(store) == "one"

    async def test_states_are_deleted_with_their_frame(self, store: SessionStore) -> None:
        """Ours: retention by frame; the remaining nodes find their state."""
        blob = a_blob()
        await take_turn(store, "t0", state=a_state("zero", blob))
        await take_turn(store, "t1", state=a_state("one"))
        await take_turn(store, "t2", entries=(opened("f2"), replied()))
        await take_turn(store, "t3", state=a_state("three"))
        assert (await store.prune(PruneRequest(frames=True))).states == 1
        held = {"t2.0": "one", "t2.1": "one", "t3.0": "one", "t3.1": "three"}
        await check_rewinds(store, held)

    async def test_a_state_that_a_head_names_outlives_its_segment(self, store: SessionStore) -> None:
        """Ours: pruning old frames does not erase plugin state, nor that of a waiting turn."""
        await take_turn(store, "t1", state=a_state("one"))
        await take_turn(store, "t2", entries=(opened("f2"),))
        await park(store, a_wait("tick"), turn_id="t3")
        assert (await store.prune(EVERYTHING)).segments == 1
        taken = await store.take_over("t3", claimant())
        assert await text_of(store, taken.head) == "one"
        await store.commit(taken.lease, a_commit("t3"))
        assert await text_of(store, await store.rewind("s1", "t2.0", NOW)) == "one"

    async def test_states_that_were_replaced_at_their_leaf_are_deleted(self, store: SessionStore) -> None:
        """Ours: a tool toggled often leaves nothing behind; a fork's state is kept."""
        await take_turn(store, "t1", state=a_state("one"))
        await change(store, "shared")
        await store.fork("s1", "s2", None, NOW)
        for number in range(5):
            await change(store, f"{number}")
        assert (await store.prune(PruneRequest())).states == 4
        assert [await state_of(store, it) for it in ("s1", "s2")] == ["4", "shared"]
        await take_turn(store, "t2", "s2")
        assert await text_of(store, await store.rewind("s2", "t1.1", NOW)) == "shared"

    async def test_states_are_deleted_with_their_session(self, store: SessionStore) -> None:
        """Ours: unless another session shares them."""
        shared = await take_turn(store, "t1", state=a_state("one"))
        await store.fork("s1", "s2", None, NOW)
        mine = await take_turn(store, "t2", state=a_state("two"))
        between = await change(store, "between")
        await store.delete_session("s1")
        for head in (mine, between):
            assert await store.state(there(head.state)) is None
        assert await text_of(store, shared) == "one"
        assert await state_of(store, "s2") == "one"
        await store.delete_session("s2")
        assert await store.state(there(shared.state)) is None

    async def test_a_session_that_reuses_a_name_has_no_earlier_states(self, store: SessionStore) -> None:
        """Ours: a name is not an identity."""
        await take_turn(store, "t1", state=a_state("one"))
        await store.fork("s1", "s2", None, NOW)
        await change(store, "of the first s1")
        await store.delete_session("s1")
        await store.fork("s2", "s1", None, NOW)
        await take_turn(store, "t2")
        assert await text_of(store, await store.rewind("s1", "t1.1", NOW)) == "one"
        await change(store, "of s2", "s2")
        await store.fork("s2", "s3", None, NOW)
        await store.delete_session("s1")
        await store.fork("s3", "s1", None, NOW)
        assert await text_of(store, await store.rewind("s1", "t1.1", NOW)) == "of s2"
        await store.delete_session("s1")
        await store.open_session(a_head())
        assert await state_of(store) is None

    async def test_a_state_id_is_never_used_again(self, store: SessionStore) -> None:
        """Ours: a remembered state id must never name another state."""
        seen: set[str | None] = set()
        for number in range(3):
            head = await take_turn(store, f"t{number}", state=a_state("one"))
            assert head.state not in seen
            seen.add(head.state)
            await store.delete_session("s1")


async def begin_dead(store: SessionStore) -> str:
    """Begin a second turn under an owner that died; return its id."""
    return (await begin(store, "t2", claimed_by=claimant("dead"))).record.turn_id
