"""The contract of session stores for sessions and their history."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from standfast import errors
from standfast.graph.history import messages_of
from standfast.model.session import Blocked, SessionHead
from standfast.ports.session_store import SessionStore
from standfast.testing.session_values import (
    NOW,
    USAGE,
    StoreContract,
    a_commit,
    a_head,
    a_save,
    a_wait,
    an_input,
    begin,
    claimant,
    opened,
    park,
    refuses,
    replied,
    said,
    take_turn,
    take_turns,
    there,
    waiting,
)


class HistoryContract(StoreContract):
    """Sessions, nodes, branches and frames."""

    # Sessions

    async def test_a_session_that_was_never_opened_is_none(self, store: SessionStore) -> None:
        """Ours: absence is a value; the caller decides whether it is an error."""
        assert await store.head("s1") is None
        assert await store.heads() == []
        assert await store.turns("s1") == []
        assert await store.inputs("s1") == []
        assert await store.delete_session("s1") is False

    async def test_a_session_is_created_once_and_then_opened_unchanged(self, store: SessionStore) -> None:
        """Ours: opening a session twice, even from another process, gives one session."""
        made = await store.open_session(a_head())
        assert made == a_head()
        head = await take_turn(store)
        assert await store.open_session(a_head(at_ms=NOW + 5)) == head
        assert await store.head("s1") == head

    async def test_concurrent_callers_open_the_same_session(self, store: SessionStore) -> None:
        """Ours: two requests for a new session race."""
        opened_ones = await asyncio.gather(*(store.open_session(a_head(at_ms=NOW + n)) for n in range(5)))
        assert len(set(map(repr, opened_ones))) == 1

    async def test_sessions_are_listed_most_recently_used_first(self, store: SessionStore) -> None:
        """Ours: users look for what they did last."""
        for number, session_id in enumerate(("old", "new", "middle")):
            await store.open_session(a_head(session_id, NOW + number))
        await take_turn(store, "t1", "old", now_ms=NOW + 10)
        await take_turn(store, "t2", "new", now_ms=NOW + 30)
        await take_turn(store, "t3", "middle", now_ms=NOW + 20)
        assert [head.session_id for head in await store.heads()] == ["new", "middle", "old"]

    async def test_sessions_are_listed_page_by_page(self, store: SessionStore) -> None:
        """Ours: a page begins after the last session of the previous one, even if both have the same time."""
        for number in range(7):
            head = msgspec.structs.replace(a_head(f"p{number}"), updated_at=NOW + number // 3)
            agent = "even" if number % 2 == 0 else "odd"
            await store.open_session(msgspec.structs.replace(head, agent=agent))
        every = [head.session_id for head in await store.heads()]
        assert every == ["p6", "p5", "p4", "p3", "p2", "p1", "p0"]
        found: list[str] = []
        after = None
        while page := await store.heads(after=after, limit=2):
            assert len(page) == min(2, 7 - len(found))
            found += [head.session_id for head in page]
            after = page[-1].updated_at, page[-1].session_id
        assert found == every
        assert [head.session_id for head in await store.heads(agent="even", limit=3)] == ["p6", "p4", "p2"]
        assert [head.session_id for head in await store.heads(agent="odd")] == ["p5", "p3", "p1"]
        assert await store.heads(agent="none", limit=3) == []

    async def test_active_sessions_can_be_listed_alone(self, store: SessionStore) -> None:
        """Ours: listing running or waiting sessions must not read every session that ever existed."""
        for number in range(6):
            await store.open_session(a_head(f"a{number}"))
        for turn_id, session_id in (("t1", "a1"), ("t2", "a2")):
            lease = (await begin(store, turn_id, session_id)).lease
        await store.commit(lease, a_commit("t2"))
        await store.put_input(an_input("i1", session_id="a3"))
        await store.put_input(an_input("i2", kind="inject", session_id="a4"))
        assert [head.session_id for head in await store.heads(active=True)] == ["a3", "a1"]
        assert [head.session_id for head in await store.heads(active=True, limit=1)] == ["a3"]
        assert await store.heads(active=True, agent="none") == []

    async def test_describing_a_session_keeps_its_history(self, store: SessionStore) -> None:
        """Ours: the CLI resumes sessions of other agents."""
        before = await take_turn(store)
        host: dict[str, object] = {"tools": ["pay"], "big": 2**70}
        await store.describe("s1", agent="helper", model="m2", host=host)
        head = there(await store.head("s1"))
        assert (head.agent, head.model, head.host) == ("helper", "m2", host)
        assert (head.leaf, head.revision, head.usage) == (before.leaf, before.revision, before.usage)
        await refuses(store.describe("s2", agent="a", model="m", host={}), errors.SessionNotFound)

    async def test_the_metadata_of_a_session_is_kept_until_replaced(self, store: SessionStore) -> None:
        """Ours: a process that resumes the session's turns derives deps from it; forks have it too."""
        await store.open_session(msgspec.structs.replace(a_head(), metadata={"tenant": "acme"}))
        await take_turn(store, "t1")
        await store.describe("s1", agent="helper", model="m1", host={})
        forked = await store.fork("s1", "s2", None, NOW)
        assert forked.metadata == {"tenant": "acme"}
        await store.describe("s1", agent="helper", model="m1", host={}, metadata={"tenant": "other"})
        heads = {head.session_id: head.metadata["tenant"] for head in await store.heads()}
        assert heads == {"s1": "other", "s2": "acme"}

    async def test_the_note_of_a_blocked_session_is_kept_until_cleared(self, store: SessionStore) -> None:
        """Ours: it moves nothing; forks do not have it, and a deleted session needs none."""
        await store.open_session(a_head())
        before = await take_turn(store, "t1")
        why = errors.ErrorObject(code=errors.TurnCode.DEPS_MISSING, message="no deps")
        note = Blocked(error=why, at_ms=NOW, turn_id="t2")
        await store.note_blocked("s1", note)
        assert await store.head("s1") == msgspec.structs.replace(before, blocked=note)
        assert (await store.fork("s1", "s2", None, NOW)).blocked is None
        await store.note_blocked("s1", None)
        assert await store.head("s1") == before
        await store.note_blocked("missing", note)
        assert await store.head("missing") is None

    async def test_a_deleted_session_is_gone_with_its_turns_and_inputs(self, store: SessionStore) -> None:
        """Ours: deleting means deleting."""
        head = await take_turn(store)
        await store.put_input(an_input())
        assert head.leaf is not None
        assert await store.delete_session("s1") is True
        assert await store.head("s1") is None
        assert await store.turn("t1") is None
        assert await store.turns("s1") == []
        assert await store.inputs("s1") == []
        assert await store.withdraw_input("i1") is False
        assert await store.path(head.leaf) == ()
        assert await store.delete_session("s1") is False

    async def test_a_session_with_a_running_turn_cannot_be_deleted(self, store: SessionStore) -> None:
        """Ours: deleting must not remove the session of a running turn."""
        begun = await begin(store)
        await refuses(store.delete_session("s1"), errors.SessionBusy, match="w1")
        await store.save(begun.lease, a_save())

    async def test_a_session_without_a_running_turn_can_be_deleted(self, store: SessionStore) -> None:
        """Ours: a session without a running turn belongs to its user."""
        await park(store, a_wait("tick"))
        assert await store.delete_session("s1") is True
        await begin(store, "t2", "s2", claimant("dead"))
        assert await store.delete_session("s2") is True
        assert await store.unfinished(NOW) == []
        await refuses(store.take_over("t1", claimant()), errors.TurnNotFound)

    async def test_deleting_a_session_leaves_its_forks_their_history(self, store: SessionStore) -> None:
        """Ours: forks share nodes, not fates."""
        await take_turn(store, "t1")
        head = await take_turn(store, "t2")
        fork = await store.fork("s1", "s2", None, NOW)
        assert fork.leaf == head.leaf == "t2.1"
        path = await store.path("t2.1")
        await store.delete_session("s1")
        assert await store.path("t2.1") == path
        assert (await take_turn(store, "t3", "s2")).depth == 6

    # The graph

    async def test_committed_turns_form_one_path(self, store: SessionStore) -> None:
        """Seed: a session persists between turns."""
        await take_turn(store, "t1", now_ms=NOW + 1)
        head = await take_turn(store, "t2", entries=(said("more?"), replied("No.")), now_ms=NOW + 2)
        assert (head.leaf, head.depth, head.revision, head.model_calls) == ("t2.1", 4, 2, 2)
        assert head.updated_at == NOW + 2
        assert head.usage[0].usage == USAGE[0].usage + USAGE[0].usage
        first, second = await store.path("t2.1")
        assert (first.segment_id, first.parent, first.depth, first.model_calls) == ("t1", None, 0, 1)
        assert (second.segment_id, second.parent, second.depth, second.model_calls) == ("t2", "t1.1", 2, 2)
        assert (second.session_id, second.caused_by, second.frame) == ("s1", "t2", "initial")
        assert second.entries == (said("more?"), replied("No."))

    async def test_a_path_ends_at_its_leaf_and_may_start_at_a_later_node(self, store: SessionStore) -> None:
        """Ours: readers ask only for what they have not seen."""
        await take_turns(store, "t1", "t2", "t3", "t4")
        assert [len(it.entries) for it in await store.path("t3.0")] == [2, 2, 1]
        assert [it.segment_id for it in await store.path("t4.1", after_depth=4)] == ["t3", "t4"]
        assert [it.segment_id for it in await store.path("t4.1", after_depth=5)] == ["t3", "t4"]
        assert await store.path("t4.1", after_depth=8) == ()
        assert await store.path("nothing.0") == ()

    async def test_a_frame_starts_at_the_node_that_opened_it(self, store: SessionStore) -> None:
        """Ours: the model sees the current frame; everything older stays readable."""
        await take_turn(store, "t1")
        await take_turn(store, "t2", entries=(said("long"), opened("f2")))
        head = await take_turn(store, "t3")
        assert head.frame == "f2"
        assert [it.segment_id for it in await store.frame("t3.1")] == ["t2", "t3"]
        assert [it.segment_id for it in await store.path("t3.1")] == ["t1", "t2", "t3"]
        assert [it.segment_id for it in await store.frame("t1.1")] == ["t1"]

    async def test_a_leaf_before_a_frame_opens_belongs_to_the_previous_frame(
        self, store: SessionStore
    ) -> None:
        """Ours: a segment cut before the node that opens a frame opens none."""
        await take_turn(store, "t1")
        await take_turn(store, "t2", entries=(said("long"), opened("f2"), said("short")))
        assert [it.segment_id for it in await store.frame("t2.0")] == ["t1", "t2"]
        assert [it.segment_id for it in await store.frame("t2.1")] == ["t2"]
        assert (await store.rewind("s1", "t2.0", NOW)).frame == "initial"
        assert (await store.rewind("s1", "t2.2", NOW)).frame == "f2"

    async def test_the_known_part_of_a_frame_is_not_read_again(self, store: SessionStore) -> None:
        """Ours: a turn does not load the whole history."""
        await take_turns(store, "t1", "t2", "t3", "t4")
        assert [it.segment_id for it in await store.frame("t4.1", known="t2.1")] == ["t3", "t4"]
        assert await store.frame("t4.1", known="t4.1") == ()

    async def test_a_known_node_that_is_not_on_the_path_is_ignored(self, store: SessionStore) -> None:
        """Ours: after a rewind a cache holds nodes of another branch."""
        await take_turns(store, "t1", "t2", "t3")
        await store.rewind("s1", "t2.0", NOW)
        await take_turn(store, "t4")
        whole = await store.frame("t4.1")
        assert [it.segment_id for it in whole] == ["t1", "t2", "t4"]
        for elsewhere in ("t3.1", "t2.1", "nothing.0"):
            assert await store.frame("t4.1", known=elsewhere) == whole
        assert [it.segment_id for it in await store.frame("t4.1", known="t2.0")] == ["t4"]

    # Appending, forking, rewinding

    async def test_nodes_are_appended_under_the_leaf(self, store: SessionStore) -> None:
        """Seed: `append_session_nodes`."""
        await take_turn(store)
        head = await store.append("s1", "n1", (said("noted"),), "t1.0", NOW + 9)
        assert (head.leaf, head.depth, head.revision, head.updated_at) == ("n1.0", 3, 2, NOW + 9)
        assert [it.segment_id for it in await store.path("n1.0")] == ["t1", "n1"]
        await refuses(store.append("s2", "n2", (said(),), None, NOW), errors.SessionNotFound)

    async def test_an_append_that_needs_another_branch_writes_nothing(self, store: SessionStore) -> None:
        """Seed: `StaleBranch` names the current leaf, and nothing is written."""
        await take_turns(store, "t1", "t2")
        head = await store.rewind("s1", "t1.1", NOW)
        for gone in ("t2.0", "t2.1", "t1.5", "nothing.0"):
            with pytest.raises(errors.StaleBranch) as caught:
                await store.append("s1", "n1", (said(),), gone, NOW)
            assert caught.value.current_leaf_node_id == "t1.1"
        assert await store.head("s1") == head
        assert await store.path("n1.0") == ()

    async def test_an_append_to_an_empty_session_can_require_nothing(self, store: SessionStore) -> None:
        """Ours: there is no path, so no node is on it."""
        await store.open_session(a_head())
        await refuses(store.append("s1", "n1", (said(),), "t1.0", NOW), errors.StaleBranch)
        assert (await store.append("s1", "n1", (said(),), None, NOW)).leaf == "n1.0"

    async def test_a_fork_diverges_from_its_shared_history(self, store: SessionStore) -> None:
        """Seed: fork makes a new session over shared history."""
        await store.open_session(a_head())
        await store.describe("s1", agent="helper", model="m1", host={"k": 1})
        await take_turns(store, "t1", "t2")
        fork = await store.fork("s1", "s2", "t1.1", NOW + 7)
        assert (fork.session_id, fork.leaf, fork.depth, fork.revision) == ("s2", "t1.1", 2, 0)
        assert (fork.forked_from, fork.created_at, fork.updated_at) == ("s1", NOW + 7, NOW + 7)
        assert (fork.agent, fork.model, fork.host, fork.usage) == ("helper", "m1", {"k": 1}, ())
        assert fork.model_calls == 1
        await take_turn(store, "t3", "s2")
        assert [it.segment_id for it in await store.path("t3.1")] == ["t1", "t3"]
        origin = there(await store.head("s1"))
        assert origin.leaf == "t2.1"

    async def test_a_fork_of_a_session_without_history_has_none(self, store: SessionStore) -> None:
        """Ours: the smallest case."""
        await store.open_session(a_head())
        assert (await store.fork("s1", "s2", None, NOW)).leaf is None

    async def test_a_fork_of_a_fork_reaches_the_nodes_of_the_original(self, store: SessionStore) -> None:
        """Ours: every node of the active path is the session's, including one that the host appended."""
        await take_turn(store, "t1")
        await store.fork("s1", "s2", None, NOW)
        await take_turn(store, "t2", "s2")
        assert (await store.fork("s2", "s3", "t1.0", NOW)).leaf == "t1.0"

    async def test_an_impossible_fork_raises_an_error_that_says_why(self, store: SessionStore) -> None:
        """Ours: each error names the problem."""
        await take_turn(store, "t1")
        await take_turn(store, "t2", "s2")
        await refuses(store.fork("s9", "s3", None, NOW), errors.SessionNotFound)
        await refuses(store.fork("s1", "s2", None, NOW), errors.SessionExists)
        for foreign in ("t2.1", "t1.2", "nothing.0"):
            await refuses(store.fork("s1", "s3", foreign, NOW), errors.NodeNotFound)
        await refuses(store.fork("s1", "no good", None, NOW), errors.InvalidSessionId)
        assert await store.head("s3") is None

    async def test_a_rewind_moves_the_leaf_backwards_and_forwards(self, store: SessionStore) -> None:
        """Seed: rewind moves the leaf; branching never rewrites."""
        await take_turns(store, "t1", "t2")
        back = await store.rewind("s1", "t1.0", NOW + 3)
        assert (back.leaf, back.depth, back.revision, back.model_calls) == ("t1.0", 1, 3, 0)
        assert back.updated_at == NOW + 3
        forth = await store.rewind("s1", "t2.1", NOW)
        assert (forth.leaf, forth.depth, forth.model_calls) == ("t2.1", 4, 2)
        messages = messages_of(await store.frame("t2.1"))
        assert len(messages) == 4

    async def test_a_rewind_reaches_only_the_sessions_own_history(self, store: SessionStore) -> None:
        """Ours: for a session, the nodes of others do not exist."""
        await take_turn(store, "t1")
        await store.fork("s1", "s2", None, NOW)
        await take_turn(store, "t2", "s1")
        for foreign in ("t2.0", "t1.9", "nothing.0"):
            await refuses(store.rewind("s2", foreign, NOW), errors.NodeNotFound)
        assert (await store.rewind("s2", "t1.0", NOW)).leaf == "t1.0"
        await refuses(store.rewind("s9", "t1.0", NOW), errors.SessionNotFound)

    async def test_a_session_with_an_unfinished_turn_cannot_be_rewound(self, store: SessionStore) -> None:
        """Ours: a turn commits under the leaf that it began at."""
        await take_turn(store, "t1")
        begun = await begin(store, "t2")
        await refuses(store.rewind("s1", "t1.0", NOW), errors.SessionBusy)
        await store.park(begun.lease, a_save("t2"), waiting(a_wait("tick")))
        await refuses(store.rewind("s1", "t1.0", NOW), errors.SessionBusy)

    async def test_a_commit_without_nodes_does_not_move_the_leaf(self, store: SessionStore) -> None:
        """Ours: the revision increases when the leaf moves, and only then."""
        before = await take_turn(store, "t1")
        after = await take_turn(store, "t2", entries=())
        assert isinstance(after, SessionHead)
        assert (after.leaf, after.revision, after.depth) == (before.leaf, before.revision, before.depth)
