"""The contract of session stores for queued inputs and waiting turns."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from standfast import errors
from standfast.model.approval import ApprovalState, Decision
from standfast.model.outcome import Approved, Completed, Denied, Elapsed, Expired, Failed
from standfast.model.session import SessionHead
from standfast.ports.session_store import Begun, CommitRefused, QueuedInput, Save, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_blob,
    a_checkpoint,
    a_commit,
    a_save,
    a_wait,
    an_approval,
    an_entry,
    an_input,
    ask,
    begin,
    claimant,
    new_turn,
    park,
    put,
    refuses,
    showing,
    stopped,
    there,
    waiting,
)


class InputContract(StoreContract, sessions=("s1", "s2")):
    """Messages for a session, while a turn runs and between turns."""

    async def test_inputs_are_queued_in_order_of_arrival(self, store: SessionStore) -> None:
        """Ours: both kinds are durable until they are claimed."""
        items = [an_input("i3"), an_input("i1", "inject"), an_input("i2")]
        await put(store, *items)
        assert await store.inputs("s1") == items
        assert await store.inputs("s2") == []
        await refuses(store.put_input(an_input("i9", session_id="s9")), errors.SessionNotFound)

    async def test_an_input_sent_twice_is_queued_once(self, store: SessionStore) -> None:
        """Ours: a sender that got no answer retries, perhaps later."""
        await put(store, an_input(), msgspec.structs.replace(an_input(), created_at=NOW + 9))
        assert await store.inputs("s1") == [an_input()]
        for other in (an_input(text="other"), an_input(kind="inject")):
            await refuses(store.put_input(other), errors.IdempotencyConflict, match="i1")

    async def test_a_claimed_input_is_not_queued_again(self, store: SessionStore) -> None:
        """Ours: a sender that retries after the claim must not start a second turn."""
        await store.put_input(an_input())
        await store.begin(new_turn(consumes="i1"), claimant())
        await store.put_input(an_input())
        assert await store.inputs("s1") == []
        await refuses(store.put_input(an_input(text="other")), errors.IdempotencyConflict)

    async def test_an_input_can_be_withdrawn_until_it_is_claimed(self, store: SessionStore) -> None:
        """Ours: cancellable until claimed."""
        await put(store, an_input("i1"), an_input("i2"))
        assert await store.withdraw_input("i1") is True
        assert await store.withdraw_input("i1") is False
        await store.begin(new_turn(consumes="i2"), claimant())
        assert await store.withdraw_input("i2") is False
        await store.put_input(an_input("i1", text="anew"))
        assert [it.message.content for it in await store.inputs("s1")] == ["anew"]

    async def test_a_queued_input_starts_one_turn(self, store: SessionStore) -> None:
        """Ours: claiming it and beginning its turn are one transaction."""
        await store.put_input(an_input())
        begun = await store.begin(new_turn(consumes="i1"), claimant("dead"))
        assert isinstance(begun, Begun)
        assert await store.inputs("s1") == []
        await store.commit(begun.lease, a_commit())
        for gone in ("i1", "i9"):
            with pytest.raises(errors.InputNotFound, match=gone):
                await store.begin(new_turn("t2", consumes=gone), claimant())
        assert await store.turn("t2") is None

    async def test_an_input_of_another_session_is_not_consumed(self, store: SessionStore) -> None:
        """Ours: ids give no access to other sessions."""
        await store.put_input(an_input(session_id="s2"))
        await refuses(store.begin(new_turn(consumes="i1"), claimant()), errors.InputNotFound)
        assert len(await store.inputs("s2")) == 1

    async def test_a_refused_begin_claims_nothing(self, store: SessionStore) -> None:
        """Ours: every method is atomic."""
        await begin(store)
        await put(store, an_input("i1"), an_input("i2", "inject"))
        results = await asyncio.gather(
            *(store.begin(new_turn("t2", consumes="i1"), claimant()) for _ in range(3)),
            return_exceptions=True,
        )
        assert all(isinstance(it, Exception) for it in results)
        assert len(await store.inputs("s1")) == 2

    async def test_a_new_turn_claims_the_injected_messages(self, store: SessionStore) -> None:
        """Ours: messages between turns reach the next one."""
        await put(store, an_input("i1", "inject"), an_input("i2"), an_input("i3", "inject"))
        begun = await store.begin(new_turn(), claimant())
        assert isinstance(begun, Begun)
        assert begun.input == b'[null,["i1","i3"]]'
        assert await store.inputs("s1") == [an_input("i2")]

    async def test_a_checkpoint_claims_the_injected_messages(self, store: SessionStore) -> None:
        """Ours: `inject` is delivered at the next checkpoint of this turn, once."""
        begun = await begin(store, claimed_by=claimant("dead"))
        await put(store, an_input("i1", "inject"), an_input("i2"))
        first = Save(turn_id="t1", entries=(an_entry("k"),), make_checkpoint=a_checkpoint("checkpoint.1"))
        saved = await store.save(begun.lease, first)
        assert saved.checkpoint == an_entry("checkpoint.1", b'["i1"]')
        second = Save(turn_id="t1", entries=(), make_checkpoint=a_checkpoint("checkpoint.2"))
        assert (await store.save(begun.lease, second)).checkpoint == an_entry("checkpoint.2", b"[]")
        assert await store.inputs("s1") == [an_input("i2")]
        taken = await store.take_over("t1", claimant())
        assert taken.journal[1] == saved.checkpoint

    async def test_a_refused_checkpoint_claims_nothing(self, store: SessionStore) -> None:
        """Ours: every method is atomic."""
        begun = await begin(store)
        await store.save(begun.lease, a_save("t1", an_entry("k")))
        await store.put_input(an_input("i1", "inject"))
        again = Save(turn_id="t1", entries=(), make_checkpoint=lambda _: an_entry("k"))
        await refuses(store.save(begun.lease, again), errors.StaleState)
        assert len(await store.inputs("s1")) == 1

    async def test_a_turn_cannot_finish_while_an_injected_message_is_unclaimed(
        self, store: SessionStore
    ) -> None:
        """Ours: a message before the end is answered in this turn."""
        begun = await begin(store)
        await store.put_input(an_input("i1", "inject"))
        assert await store.commit(begun.lease, a_commit()) == CommitRefused(reason="injected")
        head = there(await store.head("s1"))
        assert head.leaf is None
        save = Save(turn_id="t1", entries=(), make_checkpoint=a_checkpoint("checkpoint.1"))
        await store.save(begun.lease, save)
        await store.put_input(an_input("i2"))
        assert isinstance(await store.commit(begun.lease, a_commit()), SessionHead)

    async def test_messages_that_a_stopped_turn_did_not_receive_start_the_next_turn(
        self, store: SessionStore
    ) -> None:
        """Ours: an input that misses the last checkpoint becomes the next turn."""
        begun = await begin(store)
        await put(store, an_input("i1", "inject"), an_input("i2"))
        task = an_input("t1.task")
        await store.commit(begun.lease, a_commit(summary=stopped(), enqueue=(task,)))
        left = [(it.input_id, it.kind) for it in await store.inputs("s1")]
        assert left == [("i1", "queue"), ("i2", "queue"), ("t1.task", "queue")]
        await store.put_input(an_input("i1", "inject"))
        assert len(await store.inputs("s1")) == 3
        assert isinstance(await store.begin(new_turn("t2", consumes="i1"), claimant()), Begun)

    async def test_a_first_input_waits_until_a_turn_claims_it(self, store: SessionStore) -> None:
        """Seed: the first turn's input is taken once; turns that begin, save and end do not touch it."""
        first = an_input("i0", "first")
        await put(store, first, first, an_input("i1", "inject"))
        begun = await store.begin(new_turn(), claimant())
        assert isinstance(begun, Begun)
        assert begun.input == b'[null,["i1"]]'
        save = Save(turn_id="t1", entries=(), make_checkpoint=a_checkpoint("checkpoint.1"))
        assert (await store.save(begun.lease, save)).checkpoint == an_entry("checkpoint.1", b"[]")
        assert isinstance(await store.commit(begun.lease, a_commit()), SessionHead)
        second = await begin(store, "t2")
        await store.commit(second.lease, a_commit("t2", stopped()))
        assert await store.inputs("s1") == [first]
        assert [await store.withdraw_input("i0") for _ in range(2)] == [True, False]
        assert await store.inputs("s1") == []

    async def test_a_first_input_starts_the_turn_that_names_it(self, store: SessionStore) -> None:
        """Ours: taking it and beginning its turn can be one transaction, as for any input."""
        await store.put_input(an_input("i0", "first"))
        assert isinstance(await store.begin(new_turn(consumes="i0"), claimant()), Begun)
        assert await store.withdraw_input("i0") is False

    async def test_blobs_are_addressed_by_content(self, store: SessionStore) -> None:
        """Ours: media is never inside a message, and is stored once."""
        one, two = a_blob(b"one" * 10_000), a_blob(b"")
        item = QueuedInput(input_id="i1", session_id="s1", kind="queue", message=showing(one), created_at=NOW)
        await store.put_input(item, (one, one))
        await store.begin(new_turn(blobs=(one, two), consumes="i1"), claimant())
        assert await store.blob(one.digest) == one.data
        assert await store.blob(two.digest) == b""
        assert await store.blob("0" * 64) is None


YES = Decision(approved=True)
NO = Decision(approved=False, reason="too much")
TOKEN = "cpl_t1.x"  # noqa: S105 (of a test)


class WaitContract(StoreContract):
    """Timers, completions and approvals."""

    # Timers

    async def test_a_timer_ends_when_it_is_due(self, store: SessionStore) -> None:
        """Ours: the caller provides the time; the store has no clock."""
        await park(store, a_wait("tick"), a_wait("tock", due_in_ms=2_000))
        assert await store.ended_waits("t1", NOW + 999) == ()
        assert await store.unfinished(NOW + 999) == []
        assert await store.ended_waits("t1", NOW + 1_000) == (("tick", Elapsed()),)
        assert [it.turn_id for it in await store.unfinished(NOW + 1_000)] == ["t1"]
        assert dict(await store.ended_waits("t1", NOW + 9_000)) == {"tick": Elapsed(), "tock": Elapsed()}

    async def test_a_processed_wait_does_not_wake_the_turn_again(self, store: SessionStore) -> None:
        """Ours: a turn that has processed one wait keeps waiting for the others."""
        tick, tock = a_wait("tick"), a_wait("tock", due_in_ms=2_000)
        await park(store, tick, tock)
        taken = await store.take_over("t1", claimant(now_ms=NOW + 1_000))
        assert await store.unfinished(NOW + 1_000) == []
        await store.park(taken.lease, a_save("t1", an_entry("waited.tick")), waiting(tock))
        assert await store.unfinished(NOW + 1_500) == []
        assert len(await store.unfinished(NOW + 2_000)) == 1

    async def test_an_ended_turn_has_no_waits(self, store: SessionStore) -> None:
        """Ours: port rule 5, the commit deletes the waits."""
        await park(store, a_wait("tick"), a_wait(TOKEN, "completion"))
        taken = await store.take_over("t1", claimant())
        await store.commit(taken.lease, a_commit())
        assert await store.ended_waits("t1", NOW + 9_000) == ()
        assert await store.ended_waits("t9", NOW) == ()
        await refuses(store.complete(TOKEN, Completed(), NOW), errors.TokenNotFound)

    # Completions

    async def test_a_completion_is_delivered_once(self, store: SessionStore) -> None:
        """Ours: a wait ends once."""
        await park(store, a_wait(TOKEN, "completion"))
        record = await store.complete(TOKEN, Completed(value={"n": 2**70}), NOW)
        assert record.turn_id == "t1"
        for outcome in (Completed(value={"n": 2**70}), Completed(value=2)):
            await refuses(store.complete(TOKEN, outcome, NOW), errors.TokenAlreadyUsed)
        assert await store.ended_waits("t1", NOW) == ((TOKEN, Completed(value={"n": 2**70})),)
        assert len(await store.unfinished(NOW)) == 1

    async def test_a_completion_may_be_a_failure(self, store: SessionStore) -> None:
        """Ours: external work may fail."""
        await park(store, a_wait(TOKEN, "completion"))
        failed = Failed(error=errors.ErrorObject(code=errors.Code.TOOL_ERROR, message="no luck"))
        await store.complete(TOKEN, failed, NOW)
        assert await store.ended_waits("t1", NOW) == ((TOKEN, failed),)

    async def test_a_completion_may_arrive_before_its_wait(self, store: SessionStore) -> None:
        """Ours: an external system can be faster than our disk."""
        begun = await begin(store)
        await store.complete(TOKEN, Completed(value=1), NOW)
        assert await store.ended_waits("t1", NOW) == ()
        wait = a_wait(TOKEN, "completion")
        await store.park(begun.lease, Save(turn_id="t1", entries=(), waits=(wait,)), waiting(wait))
        assert await store.ended_waits("t1", NOW) == ((TOKEN, Completed(value=1)),)
        assert len(await store.unfinished(NOW)) == 1
        await refuses(store.complete(TOKEN, Completed(), NOW), errors.TokenAlreadyUsed)

    async def test_a_late_completion_is_refused(self, store: SessionStore) -> None:
        """Ours: a wait ends once; other clocks cannot reopen it."""
        await park(store, a_wait(TOKEN, "completion"))
        await refuses(store.complete(TOKEN, Completed(), NOW + 1_000), errors.TokenAlreadyUsed)
        assert [it.turn_id for it in await store.unfinished(NOW + 1_000)] == ["t1"]
        assert await store.ended_waits("t1", NOW + 1_000) == ((TOKEN, Expired()),)
        await refuses(store.complete(TOKEN, Completed(), NOW), errors.TokenAlreadyUsed)
        assert await store.ended_waits("t1", NOW) == ((TOKEN, Expired()),)

    async def test_an_unknown_token_is_not_found(self, store: SessionStore) -> None:
        """Ours: tokens come from outside."""
        await begin(store)
        for token in ("cpl_t9.x", "cpl_t1", "t1.x", "", "cpl_.x", "cpl_t1."):
            await refuses(store.complete(token, Completed(), NOW), errors.TokenNotFound)

    async def test_exactly_one_of_many_concurrent_completions_succeeds(self, store: SessionStore) -> None:
        """Ours: a wait ends once."""
        await park(store, a_wait(TOKEN, "completion"))
        results = await asyncio.gather(
            *(store.complete(TOKEN, Completed(value=n), NOW) for n in range(5)), return_exceptions=True
        )
        assert sum(isinstance(it, errors.TokenAlreadyUsed) for it in results) == 4

    # Approvals

    async def test_an_approval_is_requested_together_with_the_journal(self, store: SessionStore) -> None:
        """Ours: the request and the wait are one transaction; arguments are returned unchanged."""
        asked = an_approval()
        await park(store, a_wait("a1", "approval"), approvals=(asked,))
        assert await store.approval("a1") == asked
        assert await store.approval("a9") is None
        assert await store.approvals() == [asked]
        assert await store.approvals(session_id="s1") == await store.approvals(turn_id="t1") == [asked]
        assert await store.approvals(session_id="s2") == await store.approvals(turn_id="t2") == []

    async def test_an_approval_is_requested_once(self, store: SessionStore) -> None:
        """Ours: an id names one thing forever; a rejected save writes nothing."""
        begun = await begin(store, claimed_by=claimant("dead"))
        save = Save(turn_id="t1", entries=(an_entry("k"),), approvals=(an_approval(),) * 2)
        await refuses(store.save(begun.lease, save), errors.StaleState)
        assert await store.approvals() == []
        assert (await store.take_over("t1", claimant())).journal == ()

    async def test_approving_or_denying_ends_the_wait(self, store: SessionStore) -> None:
        """Ours: decisions reach the requesting turn."""
        await ask(store, "a1", "a2", "a3")
        assert await store.unfinished(NOW) == []
        yes = await store.decide("a1", YES, now_ms=NOW, edited_digest=None)
        assert (yes.state, yes.decided_at) == (ApprovalState.APPROVED, NOW)
        assert len(await store.unfinished(NOW)) == 1
        await store.decide("a2", NO, now_ms=NOW, edited_digest=None)
        edited = Decision(approved=True, kwargs={"cents": 1})
        await store.decide("a3", edited, now_ms=NOW, edited_digest="e")
        assert dict(await store.ended_waits("t1", NOW)) == {
            "a1": Approved(),
            "a2": Denied(reason="too much"),
            "a3": Approved(arguments={"cents": 1}),
        }

    async def test_approvals_are_listed_by_age_and_then_in_code_order(self, store: SessionStore) -> None:
        """Ours: a person sees open requests in the code's order, by session and by turn."""
        replace = msgspec.structs.replace
        first, second = replace(an_approval("z"), call_id=1), replace(an_approval("b"), call_id=2)
        await park(store, a_wait("z", "approval"), approvals=(second, first))
        other = await begin(store, "t2", "s2")
        asked = replace(an_approval("c", "t2"), session_id="s2", requested_at=NOW - 1)
        await store.save(other.lease, Save(turn_id="t2", entries=(), approvals=(asked,)))
        assert [it.approval_id for it in await store.approvals()] == ["c", "z", "b"]
        assert [it.approval_id for it in await store.approvals(session_id="s1")] == ["z", "b"]
        assert [it.approval_id for it in await store.approvals(turn_id="t2")] == ["c"]
        assert await store.approvals(session_id="s1", turn_id="t2") == []

    async def test_a_decision_is_stored_with_its_reason_and_who_made_it(self, store: SessionStore) -> None:
        """Seed: an approval is approved, or denied with a reason."""
        asked = (an_approval("a1"), an_approval("a2"))
        await park(store, a_wait("a1", "approval"), approvals=asked)
        for approval, state in zip(asked, (ApprovalState.APPROVED, ApprovalState.DENIED), strict=True):
            decision = Decision(
                approved=state is ApprovalState.APPROVED, reason="because", decided_by="ada@example.org"
            )
            after = await store.decide(approval.approval_id, decision, now_ms=NOW + 7, edited_digest=None)
            assert after == msgspec.structs.replace(
                approval, state=state, decided_at=NOW + 7, reason="because", decided_by="ada@example.org"
            )
            assert await store.approval(approval.approval_id) == after

    async def test_approving_may_replace_the_arguments_and_denying_keeps_them(
        self, store: SessionStore
    ) -> None:
        """Ours: an approval with edited arguments records their digest; a denial keeps the original ones."""
        approvals = tuple(map(an_approval, ("a1", "a2", "a3", "a4")))
        await park(store, a_wait("a1", "approval"), approvals=approvals)

        async def decide(approval_id: str, decision: Decision) -> tuple[object, object, str | None]:
            after = await store.decide(approval_id, decision, now_ms=NOW, edited_digest="e")
            assert await store.approval(approval_id) == after
            return after.args, after.kwargs, after.edited_digest

        kwargs = an_approval().kwargs
        assert await decide("a1", Decision(approved=True, args=[2])) == ([2], kwargs, "e")
        assert await decide("a2", Decision(approved=True, kwargs={})) == ([], {}, "e")
        assert await decide("a3", Decision(approved=True)) == ([], kwargs, None)
        assert await decide("a4", Decision(approved=False, args=[2])) == ([], kwargs, None)

    async def test_an_approval_is_decided_once(self, store: SessionStore) -> None:
        """Ours: the rules of approvals; later callers learn the decision."""
        await ask(store, "a1")
        tries = (store.decide("a1", YES, now_ms=NOW, edited_digest=None) for _ in range(5))
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(it, errors.ApprovalAlreadyDecided) for it in results) == 4
        with pytest.raises(errors.ApprovalAlreadyDecided, match="approved"):
            await store.decide("a1", NO, now_ms=NOW, edited_digest=None)
        await refuses(store.decide("a9", NO, now_ms=NOW, edited_digest=None), errors.ApprovalNotFound)

    async def test_an_expired_approval_cannot_be_decided(self, store: SessionStore) -> None:
        """Ours: the first process that notices the expiry records it."""
        await ask(store, "a1", "a2")
        late = await store.decide("a1", YES, now_ms=NOW + 1_000, edited_digest=None)
        assert late.state is ApprovalState.EXPIRED
        assert len(await store.unfinished(NOW + 1_000)) == 1
        assert dict(await store.ended_waits("t1", NOW + 1_000)) == {"a1": Expired(), "a2": Expired()}
        with pytest.raises(errors.ApprovalAlreadyDecided, match="expired"):
            await store.decide("a2", YES, now_ms=NOW, edited_digest=None)

    async def test_open_approvals_end_with_their_turn(self, store: SessionStore) -> None:
        """Ours: an approval without a waiting turn is not requested."""
        await ask(store, "a1", "a2")
        await store.decide("a1", YES, now_ms=NOW, edited_digest=None)
        taken = await store.take_over("t1", claimant())
        await store.commit(taken.lease, a_commit(summary=stopped()))
        states = {it.approval_id: it.state for it in await store.approvals()}
        assert states == {"a1": ApprovalState.APPROVED, "a2": ApprovalState.CANCELLED}
        with pytest.raises(errors.ApprovalAlreadyDecided, match="cancelled"):
            await store.decide("a2", YES, now_ms=NOW, edited_digest=None)

    async def test_open_approvals_end_with_their_session(self, store: SessionStore) -> None:
        """Ours: an approval without a waiting turn is not requested."""
        await ask(store, "a1")
        await store.delete_session("s1")
        assert [it.state for it in await store.approvals()] == [ApprovalState.CANCELLED]

    async def test_changing_a_returned_value_does_not_change_the_store(self, store: SessionStore) -> None:
        """Ours: a caller may edit arguments before it decides."""
        await ask(store, "a1")
        found = there(await store.approval("a1"))
        found.kwargs["cents"] = 0
        assert await store.approval("a1") == an_approval()
