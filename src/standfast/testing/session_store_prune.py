"""The contract of session stores for pruning: what must be deleted, and what must be kept."""

from __future__ import annotations

import msgspec

from standfast.model.approval import Decision
from standfast.model.message import ToolMessage
from standfast.model.session import Entry, SessionHead
from standfast.ports.session_store import Begun, Blob, PruneRequest, QueuedInput, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_blob,
    a_commit,
    a_head,
    a_save,
    an_entry,
    an_input,
    ask,
    attached,
    begin,
    claimant,
    finished,
    new_turn,
    opened,
    replied,
    said,
    showing,
    stopped,
    take_turn,
    take_turns,
    there,
)

OLD = PruneRequest(sessions_before_ms=NOW + 100)
FRAMES = PruneRequest(frames=True)
BRANCHES = PruneRequest(branches=True)


class PruneContract(StoreContract):
    """Retention: by age, by frame, by branch; unreferenced blobs."""

    async def test_only_what_was_requested_is_pruned(self, store: SessionStore) -> None:
        """Ours: an empty request deletes nothing."""
        await take_turn(store)
        pruned = await store.prune(PruneRequest())
        assert (pruned.sessions, pruned.segments, pruned.blobs, pruned.records) == (0, 0, 0, 0)
        assert len(await store.path("t1.1")) == 1

    # By age

    async def test_old_idle_sessions_are_pruned(self, store: SessionStore) -> None:
        """Ours: retention by age; the last use counts, not the first."""
        await take_turn(store, "t1", "old", now_ms=NOW + 99)
        await take_turn(store, "t2", "new", now_ms=NOW + 100)
        await store.open_session(a_head("empty"))
        pruned = await store.prune(OLD)
        assert (pruned.sessions, pruned.segments) == (2, 1)
        assert [head.session_id for head in await store.heads()] == ["new"]
        assert await store.path("t1.1") == ()
        assert await store.turn("t1") is None
        assert await store.turn("t2") is not None

    async def test_a_session_with_pending_work_is_never_pruned_by_age(self, store: SessionStore) -> None:
        """Ours: an approval may wait for weeks."""
        await ask(store, "a1")
        await begin(store, "t2", "s2", claimant("dead"))
        await store.open_session(a_head("s3"))
        await store.put_input(an_input(session_id="s3"))
        await store.decide("a1", Decision(approved=True), now_ms=NOW, edited_digest=None)
        pruned = await store.prune(OLD)
        assert (pruned.sessions, pruned.records) == (0, 0)
        assert (await store.take_over("t1", claimant())).journal == (an_entry("model.1"),)
        assert len(await store.ended_waits("t1", NOW)) == 1
        await store.take_over("t2", claimant())
        assert len(await store.inputs("s3")) == 1

    async def test_pruning_old_records_keeps_the_conversation(self, store: SessionStore) -> None:
        """Ours: ended turns and decided approvals are an audit trail with limited retention."""
        await ask(store, "a1")
        await store.decide("a1", Decision(approved=True), now_ms=NOW, edited_digest=None)
        taken = await store.take_over("t1", claimant())
        await store.commit(taken.lease, a_commit())
        await take_turn(store, "t2", now_ms=NOW + 100)
        pruned = await store.prune(OLD)
        assert (pruned.sessions, pruned.segments, pruned.records) == (0, 0, 2)
        assert await store.approvals() == []
        assert [it.turn_id for it in await store.turns("s1")] == ["t2"]
        assert len(await store.path("t2.1")) == 2

    async def test_a_single_session_can_be_pruned(self, store: SessionStore) -> None:
        """Ours: a request for one session does not touch the others."""
        await take_turn(store, "t1", "s1")
        await take_turn(store, "t2", "s2")
        request = PruneRequest(sessions_before_ms=NOW + 100, session_id="s1")
        assert (await store.prune(request)).sessions == 1
        assert [head.session_id for head in await store.heads()] == ["s2"]
        assert await store.turn("t2") is not None

    async def test_a_fork_keeps_the_history_it_shares_with_a_deleted_session(
        self, store: SessionStore
    ) -> None:
        """Ours: shared segments are never deleted while a session needs them."""
        await take_turns(store, "t1", "t2")
        await store.fork("s1", "s2", "t1.1", NOW + 100)
        assert (await store.prune(OLD)).sessions == 1
        assert len(await store.path("t1.1")) == 1
        await take_turn(store, "t3", "s2", now_ms=NOW + 100)

    # By frame

    async def test_history_before_the_current_frame_is_pruned(self, store: SessionStore) -> None:
        """Ours: retention by frame; the session continues as before."""
        await take_turn(store, "t1")
        await take_turn(store, "t2", entries=(said("long"), replied("yes"), opened("f2")))
        await take_turn(store, "t3")
        frame = await store.frame("t3.1")
        pruned = await store.prune(FRAMES)
        assert (pruned.sessions, pruned.segments) == (0, 1)
        assert await store.frame("t3.1") == frame
        assert [it.segment_id for it in await store.path("t3.1")] == ["t2", "t3"]
        head = await take_turn(store, "t4")
        assert (head.leaf, head.depth) == ("t4.1", 9)
        assert (await store.prune(FRAMES)).segments == 0

    async def test_an_answer_outlives_its_frame(self, store: SessionStore) -> None:
        """Ours: the record of a turn is pruned by age, not with its nodes."""
        await take_turn(store, "t1", entries=(said(), replied()))
        await take_turn(store, "t2", entries=(said(), opened("f2")))
        await store.prune(FRAMES)
        record = there(await store.turn("t1"))
        assert record.summary == finished()
        assert [it.turn_id for it in await store.turns("s1")] == ["t1", "t2"]

    async def test_a_fork_in_an_old_frame_keeps_that_frame(self, store: SessionStore) -> None:
        """Ours: a frame is pruned when no session is in it any more."""
        await take_turn(store, "t1")
        await store.fork("s1", "s2", None, NOW)
        await take_turn(store, "t2")
        await take_turn(store, "t3", entries=(opened("f2"), said()))
        assert (await store.prune(FRAMES)).segments == 1
        assert [it.segment_id for it in await store.path("t1.1")] == ["t1"]
        assert await store.path("t2.1") == ()
        await take_turn(store, "t4", "s2", entries=(opened("f3"), said()))
        only = PruneRequest(frames=True, session_id="s1")
        assert (await store.prune(only)).segments == 0
        assert (await store.prune(FRAMES)).segments == 1

    # By branch

    async def test_history_on_no_active_path_is_pruned(self, store: SessionStore) -> None:
        """Ours: retention by branch."""
        await take_turns(store, "t1", "t2", "t3")
        await store.rewind("s1", "t1.1", NOW)
        await take_turn(store, "t4")
        assert (await store.prune(BRANCHES)).segments == 2
        assert [it.segment_id for it in await store.path("t4.1")] == ["t1", "t4"]
        assert await store.path("t3.1") == ()

    async def test_a_branch_that_a_fork_uses_is_kept(self, store: SessionStore) -> None:
        """Ours: one session's dead branch is another's conversation."""
        await take_turns(store, "t1", "t2", "t3")
        await store.fork("s1", "s2", "t2.1", NOW)
        await store.rewind("s1", "t1.1", NOW)
        for request in (PruneRequest(branches=True, session_id="s2"), BRANCHES):
            await store.prune(request)
        assert [it.segment_id for it in await store.path("t2.1")] == ["t1", "t2"]
        assert await store.path("t3.1") == ()

    async def test_pruning_does_not_affect_a_running_turn(self, store: SessionStore) -> None:
        """Ours: pruning may run at any time."""
        await take_turn(store, "t1", entries=(said(), opened("f2")))
        begun = await begin(store, "t2")
        await store.save(begun.lease, a_save("t2", an_entry("k")))
        everything = PruneRequest(sessions_before_ms=NOW + 100, frames=True, branches=True)
        await store.prune(everything)
        await store.save(begun.lease, a_save("t2", an_entry("l")))
        await store.commit(begun.lease, a_commit("t2"))
        assert len(await store.frame("t2.1")) == 2

    # Blobs

    async def test_a_blob_is_kept_while_something_refers_to_it(self, store: SessionStore) -> None:
        """Ours: nodes, queued inputs and unfinished turns refer to blobs; nothing else does."""
        in_node, in_input, in_turn, unnamed = (a_blob(name) for name in (b"1", b"2", b"3", b"4"))
        shown = (Entry(at_ms=NOW, payload=showing(in_node)), replied())
        await take_turn(store, "t1", entries=shown)
        await store.put_input(_showing("i1", in_node), (in_node, unnamed))
        await store.withdraw_input("i1")
        await store.put_input(_showing("i2", in_input), (in_input,))
        await store.open_session(a_head("s2"))
        await store.put_input(_showing("i3", in_turn, "inject", "s2"), (in_turn,))

        def keep_messages(head: SessionHead, claimed: tuple[QueuedInput, ...]) -> bytes:
            return msgspec.json.encode([item.message for item in claimed])

        begun = await store.begin(
            msgspec.structs.replace(new_turn("t2", "s2"), make_input=keep_messages), claimant()
        )
        assert isinstance(begun, Begun)
        assert (await store.prune(PruneRequest())).blobs == 1
        assert await store.blob(unnamed.digest) is None
        for blob in (in_node, in_input, in_turn):
            assert await store.blob(blob.digest) == blob.data
        await store.commit(begun.lease, a_commit("t2", stopped(), ()))
        await store.withdraw_input("i2")
        assert (await store.prune(PruneRequest())).blobs == 2
        assert await store.blob(in_node.digest) == in_node.data

    async def test_the_attachments_of_a_result_are_kept_with_it(self, store: SessionStore) -> None:
        """Ours: attachments of results are referenced like those of messages."""
        blob = a_blob()
        result = ToolMessage(call_id=1, name="look", attachments=(attached(blob),))
        begun = await begin(store)
        entries = (said(), Entry(at_ms=NOW, payload=result), replied())
        await store.commit(begun.lease, a_commit(entries=entries, blobs=(blob,)))
        assert (await store.prune(PruneRequest())).blobs == 0
        assert await store.blob(blob.digest) == blob.data
        await store.delete_session("s1")
        assert (await store.prune(PruneRequest())).blobs == 1


def _showing(input_id: str, blob: Blob, kind: str = "queue", session_id: str = "s1") -> QueuedInput:
    item = an_input(input_id, kind, session_id=session_id)
    return msgspec.structs.replace(item, message=showing(blob))
