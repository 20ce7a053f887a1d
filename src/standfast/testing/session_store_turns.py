"""The contract of session stores for turns: leases, fences, journals, commits."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from standfast import errors
from standfast.model.message import AssistantMessage
from standfast.model.session import Entry, SessionHead, TurnState
from standfast.ports.session_store import (
    Begun,
    CommitRefused,
    JournalEntry,
    Repeated,
    Save,
    SessionOutline,
    SessionStore,
    TurnCounts,
)
from standfast.testing.session_values import (
    LEASE_MS,
    NOW,
    StoreContract,
    a_commit,
    a_head,
    a_save,
    a_wait,
    an_entry,
    an_input,
    begin,
    claimant,
    finished,
    new_turn,
    park,
    refuses,
    replied,
    said,
    stopped,
    take_turn,
    there,
    waiting,
)


class TurnContract(StoreContract):
    """The beginning of a turn, and idempotency keys."""

    async def test_a_begun_turn_is_durable_with_its_input(self, store: SessionStore) -> None:
        """Ours: journal rule 1, a turn's input is durable before anything runs."""
        head = await take_turn(store, "t0")
        begun = await begin(store)
        assert begun.head == head
        assert begun.input == b'["t0.1",[]]'
        assert (begun.lease.session_id, begun.lease.owner) == ("s1", "w1")
        assert begun.lease.until_ms == NOW + LEASE_MS
        record = begun.record
        assert (record.state, record.created_at, record.agent) == (TurnState.RUNNING, NOW, "helper")
        assert (record.summary, record.ended_at, record.cancel_requested) == (None, None, False)
        assert await store.turn("t1") == record
        assert [it.turn_id for it in await store.turns("s1")] == ["t0", "t1"]

    async def test_a_turn_needs_a_session(self, store: SessionStore) -> None:
        """Ours: a typo must not create a session."""
        await refuses(store.begin(new_turn(), claimant()), errors.SessionNotFound)
        assert await store.turn("t1") is None
        assert await store.cancel("t1") is False

    async def test_a_session_has_one_turn_at_a_time(self, store: SessionStore) -> None:
        """Ours: port rule 3; the error names the owner, even to itself."""
        await begin(store)
        for owner in ("w1", "w2"):
            await refuses(store.begin(new_turn("t2"), claimant(owner)), errors.SessionBusy, match="w1")
        assert await store.turn("t2") is None

    async def test_exactly_one_of_many_concurrent_begins_succeeds(self, store: SessionStore) -> None:
        """Ours: one writer per session."""
        await store.open_session(a_head())
        tries = (store.begin(new_turn(f"t{n}"), claimant(f"w{n}")) for n in range(8))
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(it, Begun) for it in results) == 1
        assert sum(isinstance(it, errors.SessionBusy) for it in results) == 7
        assert len(await store.turns("s1")) == 1

    async def test_turns_of_many_sessions_begin_and_end_at_once(self, store: SessionStore) -> None:
        """Ours: sessions do not wait for each other."""
        heads = await asyncio.gather(*(take_turn(store, f"t{n}", f"s{n}") for n in range(30)))
        assert [head.leaf for head in heads] == [f"t{n}.1" for n in range(30)]

    async def test_an_unfinished_turn_comes_first(self, store: SessionStore) -> None:
        """Ours: a waiting or interrupted turn is resumed, not forgotten."""
        await park(store, a_wait("tick"))
        with pytest.raises(errors.TurnUnfinished) as waits:
            await store.begin(new_turn("t2"), claimant())
        assert (waits.value.turn_id, waits.value.waits) == ("t1", True)
        await begin(store, "t3", "s2", claimant("dead"))
        await begin(store, "t4", "s3")
        for session_id, turn_id, now_ms in (("s2", "t3", NOW), ("s3", "t4", NOW + LEASE_MS)):
            with pytest.raises(errors.TurnUnfinished) as left:
                await store.begin(new_turn("t5", session_id), claimant(now_ms=now_ms))
            assert (left.value.turn_id, left.value.waits) == (turn_id, False)
        assert await store.turn("t5") is None

    async def test_a_turn_id_is_used_once(self, store: SessionStore) -> None:
        """Ours: an id names one thing forever."""
        await take_turn(store, "t1")
        await refuses(store.begin(new_turn("t1"), claimant()), errors.IdempotencyConflict)
        await take_turn(store, "t2")

    async def test_the_same_key_and_content_is_the_same_turn(self, store: SessionStore) -> None:
        """Ours: journal rule 1, a sender may retry at any time."""
        await store.open_session(a_head())
        begun = await store.begin(new_turn("t1", key="k"), claimant())
        assert isinstance(begun, Begun)
        while_running = await store.begin(new_turn("t2", key="k"), claimant("w2"))
        assert while_running == Repeated(record=begun.record)
        await store.commit(begun.lease, a_commit())
        afterwards = await store.begin(new_turn("t3", key="k"), claimant())
        assert isinstance(afterwards, Repeated)
        assert afterwards.record == await store.turn("t1")
        assert afterwards.record.summary == finished()
        assert [it.turn_id for it in await store.turns("s1")] == ["t1"]

    async def test_the_same_key_with_other_content_conflicts(self, store: SessionStore) -> None:
        """Ours: journal rule 1."""
        await store.open_session(a_head())
        await store.begin(new_turn("t1", key="k"), claimant())
        with pytest.raises(errors.IdempotencyConflict, match="'k'"):
            await store.begin(new_turn("t2", key="k", input_digest="d2"), claimant())

    async def test_idempotency_keys_are_scoped_to_a_session(self, store: SessionStore) -> None:
        """Ours: clients of different sessions are independent."""
        for session_id in ("s1", "s2"):
            await store.open_session(a_head(session_id))
            begun = await store.begin(new_turn(f"t_{session_id}", session_id, key="k"), claimant())
            assert isinstance(begun, Begun)

    async def test_concurrent_begins_with_one_key_start_one_turn(self, store: SessionStore) -> None:
        """Ours: a client that retries too early gets the same turn."""
        await store.open_session(a_head())
        tries = (store.begin(new_turn(f"t{n}", key="k"), claimant()) for n in range(6))
        results = await asyncio.gather(*tries)
        assert sum(isinstance(it, Begun) for it in results) == 1
        assert len({it.record.turn_id for it in results}) == 1


class LeaseContract(StoreContract):
    """The journal of a turn, and the lease without which it cannot be written."""

    async def test_saved_entries_are_returned_in_order(self, store: SessionStore) -> None:
        """Ours: a recovered turn feeds the journal to a fresh machine."""
        begun = await begin(store, claimed_by=claimant("dead"))
        intent = JournalEntry(key="tool.1", kind="intent")
        saved = await store.save(begun.lease, a_save("t1", an_entry("model.1", b"\0\xff"), intent))
        assert (saved.cancel_requested, saved.checkpoint) == (False, None)
        await store.save(begun.lease, a_save("t1", an_entry("tool.1"), an_entry("a")))
        taken = await store.take_over("t1", claimant("w2"))
        assert taken.input == begun.input
        assert taken.journal == (an_entry("model.1", b"\0\xff"), intent, an_entry("tool.1"), an_entry("a"))
        assert (taken.record, taken.head) == (begun.record, begun.head)

    async def test_a_key_is_journaled_once_for_each_kind(self, store: SessionStore) -> None:
        """Ours: port rule 4; an intent and its outcome share a name. A rejected save writes nothing."""
        begun = await begin(store, claimed_by=claimant("dead"))
        await store.save(begun.lease, a_save("t1", an_entry("k")))
        for twice in (a_save("t1", an_entry("new"), an_entry("k")), a_save("t1", *[an_entry("b")] * 2)):
            await refuses(store.save(begun.lease, twice), errors.StaleState)
        assert (await store.take_over("t1", claimant())).journal == (an_entry("k"),)

    async def test_turns_of_different_sessions_use_the_same_keys(self, store: SessionStore) -> None:
        """Ours: journals do not mix."""
        for number in (1, 2):
            begun = await begin(store, f"t{number}", f"s{number}", claimant("dead"))
            await store.save(begun.lease, a_save(f"t{number}", an_entry("k", str(number).encode())))
        assert (await store.take_over("t1", claimant())).journal == (an_entry("k", b"1"),)
        assert (await store.take_over("t2", claimant())).journal == (an_entry("k", b"2"),)

    async def test_a_live_lease_cannot_be_taken_over(self, store: SessionStore) -> None:
        """Ours: one writer per session."""
        await begin(store)
        for owner in ("w1", "w2"):
            with pytest.raises(errors.SessionBusy, match="w1"):
                await store.take_over("t1", claimant(owner, NOW + LEASE_MS - 1))

    async def test_a_lease_ends_when_it_expires_or_its_owner_dies(self, store: SessionStore) -> None:
        """Ours: a dead owner is replaced immediately, a hanging one after its lease expires."""
        late = await begin(store, "t1", "s1")
        dead = await begin(store, "t2", "s2", claimant("dead"))
        first = await store.take_over("t1", claimant("w2", NOW + LEASE_MS))
        second = await store.take_over("t2", claimant("w2"))
        assert first.lease.fence > late.lease.fence
        assert second.lease.fence > dead.lease.fence
        assert first.lease.owner == "w2"

    async def test_every_unfinished_turn_is_counted_once(self, store: SessionStore) -> None:
        """Ours: an operator sees queued inputs, and turns that run, wait, or have lost their process."""
        assert await store.turn_counts(NOW) == TurnCounts()
        await begin(store, "t1", "s1")
        await begin(store, "t2", "s2", claimant("dead"))
        tick = a_wait("tick", due_in_ms=10 * LEASE_MS)
        for number in (3, 4, 5):
            begun = await begin(store, f"t{number}", f"s{number}")
            await store.park(
                begun.lease, Save(turn_id=f"t{number}", entries=(), waits=(tick,)), waiting(tick)
            )
        await store.cancel("t5")
        await take_turn(store, "t6", "s6")
        for number, kind in enumerate(("queue", "queue", "inject")):
            await store.put_input(an_input(f"i{number}", kind))
        assert await store.turn_counts(NOW) == TurnCounts(queued=2, running=1, waiting=2, stuck=2)
        late = NOW + 2 * LEASE_MS
        assert await store.turn_counts(late) == TurnCounts(queued=2, waiting=2, stuck=3)
        assert len(await store.unfinished(late)) == 3

    async def test_an_owner_that_lost_its_lease_can_write_nothing(self, store: SessionStore) -> None:
        """Ours: port rule 2, fencing. Not even with the same owner's name."""
        stale = (await begin(store, claimed_by=claimant("dead"))).lease
        taken = await store.take_over("t1", claimant("dead"))
        await refuses(store.save(stale, a_save("t1", an_entry("k"))), errors.LeaseLost)
        await refuses(store.park(stale, a_save("t1"), waiting(a_wait("tick"))), errors.LeaseLost)
        await refuses(store.commit(stale, a_commit()), errors.LeaseLost)
        renewed = await store.renew((stale, taken.lease), NOW, LEASE_MS)
        assert renewed.lost == {"s1"}
        assert (await store.take_over("t1", claimant())).journal == ()

    async def test_a_lease_is_over_after_commit_and_park(self, store: SessionStore) -> None:
        """Ours: port rule 2."""
        over = (await begin(store)).lease
        await store.commit(over, a_commit())
        parked = await park(store, a_wait("tick"), turn_id="t2")
        for lease, turn_id in ((over, "t1"), (parked, "t2")):
            await refuses(store.save(lease, a_save(turn_id, an_entry("late"))), errors.LeaseLost)
            await refuses(store.commit(lease, a_commit(turn_id)), errors.LeaseLost)
            assert (await store.renew((lease,), NOW, LEASE_MS)).lost == {"s1"}

    async def test_fences_only_rise_even_across_a_deleted_session(self, store: SessionStore) -> None:
        """Ours: an old lease of a deleted session can write nothing."""
        old = (await begin(store, "t1", claimed_by=claimant("dead"))).lease
        await store.delete_session("s1")
        new = await begin(store, "t1", claimed_by=claimant("dead"))
        assert new.lease.fence > old.fence
        await refuses(store.save(old, a_save()), errors.LeaseLost)
        await store.commit(new.lease, a_commit())
        fences = [(await begin(store, f"u{n}")).lease.fence for n in range(1)]
        assert fences[0] > new.lease.fence

    async def test_a_lease_is_valid_for_its_own_turn_only(self, store: SessionStore) -> None:
        """Ours: mixing up turns is a defect of the caller, and writes nothing."""
        mine = await begin(store, "t1", "s1")
        await begin(store, "t2", "s2")
        await refuses(store.save(mine.lease, a_save("t2", an_entry("k"))), errors.StandfastError)
        await refuses(store.commit(mine.lease, a_commit("t2")), errors.StandfastError)
        other = there(await store.turn("t2"))
        assert other.state is TurnState.RUNNING

    async def test_a_renewed_lease_lasts_longer(self, store: SessionStore) -> None:
        """Ours: 30 s, renewed every 10 s."""
        one, two = await begin(store, "t1", "s1"), await begin(store, "t2", "s2")
        renewed = await store.renew((one.lease, two.lease), NOW + 10_000, LEASE_MS)
        assert (renewed.lost, renewed.cancelled) == (frozenset(), frozenset())
        await refuses(store.take_over("t1", claimant("w2", NOW + LEASE_MS + 1)), errors.SessionBusy)
        await store.take_over("t1", claimant("w2", NOW + 10_000 + LEASE_MS))
        await store.delete_session("s9")
        gone = msgspec.structs.replace(one.lease, session_id="s9")
        assert (await store.renew((gone,), NOW, LEASE_MS)).lost == {"s9"}

    async def test_renewing_a_lease_for_no_time_releases_it(self, store: SessionStore) -> None:
        """Ours: a process that shuts down in order does not keep others waiting."""
        begun = await begin(store)
        await store.renew((begun.lease,), NOW, 0)
        assert [it.turn_id for it in await store.unfinished(NOW)] == ["t1"]
        await store.take_over("t1", claimant("w2"))

    async def test_an_ended_or_unknown_turn_cannot_be_taken_over(self, store: SessionStore) -> None:
        """Ours: recovery races with the end of the turn."""
        await take_turn(store)
        for turn_id in ("t1", "t9"):
            await refuses(store.take_over(turn_id, claimant()), errors.TurnNotFound)

    async def test_exactly_one_of_many_concurrent_takeovers_succeeds(self, store: SessionStore) -> None:
        """Ours: every process recovers turns on startup."""
        await begin(store, claimed_by=claimant("dead"))
        tries = (store.take_over("t1", claimant(f"w{n}")) for n in range(6))
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(it, errors.SessionBusy) for it in results) == 5


class TurnEndContract(StoreContract):
    """Parking, committing, cancelling and recovering turns, and reading an open turn."""

    async def test_a_parked_turn_waits_and_resumes_where_it_stopped(self, store: SessionStore) -> None:
        """Ours: suspension is a value; days later another process resumes the turn."""
        lease = await park(store, a_wait("tick"))
        record = there(await store.turn("t1"))
        assert (record.state, record.summary) == (TurnState.WAITING, waiting(a_wait("tick")))
        taken = await store.take_over("t1", claimant("w2"))
        assert taken.lease.fence > lease.fence
        assert (taken.record.state, taken.record.summary) == (TurnState.RUNNING, None)
        assert taken.journal == (an_entry("model.1"),)
        assert await store.turn("t1") == taken.record
        await store.save(taken.lease, a_save("t1", an_entry("waited.tick")))
        assert isinstance(await store.commit(taken.lease, a_commit()), SessionHead)

    async def test_a_commit_ends_the_turn_and_its_lease(self, store: SessionStore) -> None:
        """Ours: port rule 5, one transaction, which also deletes the journal."""
        begun = await begin(store)
        await store.save(begun.lease, a_save("t1", an_entry("model.1")))
        head = await store.commit(begun.lease, a_commit(now_ms=NOW + 5))
        assert isinstance(head, SessionHead)
        assert await store.head("s1") == head
        record = there(await store.turn("t1"))
        assert (record.state, record.ended_at, record.summary) == (TurnState.ENDED, NOW + 5, finished())
        assert [it.turn_id for it in await store.turns("s1")] == ["t1"]
        assert await store.unfinished(NOW + 2 * LEASE_MS) == []
        await begin(store, "t2")

    async def test_the_record_of_a_turn_has_its_answer_with_any_nodes(self, store: SessionStore) -> None:
        """Ours: a store may store an answer once, but must not return a different one."""
        cases = (
            ("t1", (said(), replied("yes")), finished("yes", value={"n": 2**70})),
            ("t2", (said(), replied("one"), replied("two")), finished("two")),
            ("t3", (said(), replied("one"), replied("two")), finished("one")),
            ("t4", (said(),), finished("nowhere")),
            ("t5", (), finished("")),
            ("t6", (replied(""),), finished("")),
            ("t7", (said(), Entry(at_ms=NOW, payload=AssistantMessage(text="é\n\"'"))), finished("é\n\"'")),
        )
        for turn_id, entries, summary in cases:
            begun = await begin(store, turn_id)
            await store.commit(begun.lease, a_commit(turn_id, summary, entries))
        records = await store.turns("s1")
        assert [it.summary for it in records] == [summary for _, _, summary in cases]
        assert [await store.turn(it.turn_id) for it in records] == records

    async def test_a_cancelled_turn_cannot_finish(self, store: SessionStore) -> None:
        """Ours: a cancellation wins or loses once."""
        begun = await begin(store)
        assert await store.cancel("t1") is True
        assert await store.cancel("t1") is True
        assert (await store.renew((begun.lease,), NOW, LEASE_MS)).cancelled == {"t1"}
        assert (await store.save(begun.lease, a_save())).cancel_requested is True
        assert await store.commit(begun.lease, a_commit()) == CommitRefused(reason="cancelled")
        record = there(await store.turn("t1"))
        assert (record.state, record.cancel_requested) == (TurnState.RUNNING, True)
        assert isinstance(await store.commit(begun.lease, a_commit(summary=stopped())), SessionHead)
        assert await store.cancel("t1") is False

    async def test_cancelling_an_ended_turn_has_no_effect(self, store: SessionStore) -> None:
        """Ours: a cancellation wins or loses once."""
        await take_turn(store)
        assert await store.cancel("t1") is False
        record = there(await store.turn("t1"))
        assert record.cancel_requested is False

    async def test_turns_without_a_live_owner_are_found(self, store: SessionStore) -> None:
        """Ours: recovery finds interrupted turns, and does not touch live ones."""
        await begin(store, "t1", "s1")
        await begin(store, "t2", "s2", claimant("dead"))
        await take_turn(store, "t3", "s3")
        assert [it.turn_id for it in await store.unfinished(NOW)] == ["t2"]
        assert [it.turn_id for it in await store.unfinished(NOW + LEASE_MS)] == ["t1", "t2"]

    async def test_the_cancelled_turns_of_many_are_read_together(self, store: SessionStore) -> None:
        """Ours: a process with many running turns polls once a second, not once for each turn."""
        await store.open_session(a_head("s2"))
        await begin(store, "t1")
        await begin(store, "t2", "s2")
        assert await store.cancelled(("t1", "t2", "missing")) == frozenset()
        await store.cancel("t2")
        assert await store.cancelled(("t1", "t2", "missing")) == {"t2"}
        assert await store.cancelled(()) == frozenset()

    async def test_a_waiting_turn_that_was_cancelled_is_found(self, store: SessionStore) -> None:
        """Ours: otherwise no process would ever end it."""
        await park(store, a_wait("tick"))
        assert await store.unfinished(NOW) == []
        await store.cancel("t1")
        (found,) = await store.unfinished(NOW)
        assert (found.turn_id, found.cancel_requested) == ("t1", True)

    async def test_a_checkpoint_without_input_is_journaled_too(self, store: SessionStore) -> None:
        """Ours: a recovered turn passes the same checkpoints."""
        begun = await begin(store, claimed_by=claimant("dead"))
        save = Save(turn_id="t1", entries=(), make_checkpoint=lambda claimed: an_entry("checkpoint.1"))
        saved = await store.save(begun.lease, save)
        assert saved.checkpoint == an_entry("checkpoint.1")
        assert (await store.take_over("t1", claimant())).journal == (an_entry("checkpoint.1"),)

    async def test_the_open_turn_of_a_session_is_found_with_its_journal(self, store: SessionStore) -> None:
        """Ours: the state of plugins in a turn can be read without taking the turn over."""
        begun = await begin(store)
        turn_id = begun.record.turn_id
        entry = JournalEntry(key="model.1", kind="input", body=b"{}")
        await store.save(begun.lease, Save(turn_id=turn_id, entries=(entry,)))
        found = there(await store.open_turn("s1"))
        assert (found.turn_id, found.state) == (turn_id, TurnState.RUNNING)
        whole = there(await store.open_turn_journal("s1"))
        assert (whole.record.turn_id, whole.input, whole.journal) == (turn_id, begun.input, (entry,))

    async def test_a_list_shows_how_many_turns_sessions_have_and_which_is_open(
        self, store: SessionStore
    ) -> None:
        """Ours: a list of sessions does not load their turns."""
        for name in ("s2", "s3"):
            await store.open_session(a_head(name))
        await take_turn(store, "t1")
        begun = await begin(store, "t2")
        await take_turn(store, "t3", session_id="s2")
        found = await store.outlines(("s1", "s2", "s3", "missing"))
        assert found == {
            "s1": SessionOutline(turns=2, open_turn=begun.record),
            "s2": SessionOutline(turns=1),
        }
        assert await store.outlines(()) == {}

    async def test_an_ended_turn_is_not_open_and_has_no_journal(self, store: SessionStore) -> None:
        """Ours: the journal is deleted when the turn ends."""
        await take_turn(store, "t1")
        assert await store.open_turn("s1") is None
        assert await store.open_turn("missing") is None
        assert await store.open_turn_journal("s1") is None
        assert await store.open_turn_journal("missing") is None
