"""What every session store must do with input that waits for a turn, and with attachments."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from standfast.errors import IdempotencyConflict, InputNotFound, SessionNotFound, StaleState
from standfast.model.session import SessionHead
from standfast.ports.session_store import Begun, CommitRefused, QueuedInput, Save, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_blob,
    a_checkpoint,
    a_commit,
    a_head,
    a_save,
    an_entry,
    an_input,
    begin,
    claimant,
    new_turn,
    showing,
    stopped,
)


class InputContract(StoreContract):
    """Messages for a session, while a turn runs and between turns."""

    async def test_inputs_wait_in_the_order_they_came(self, store: SessionStore) -> None:
        """Ours: both kinds are durable until they are claimed."""
        await store.open_session(a_head())
        items = [an_input("i3"), an_input("i1", "inject"), an_input("i2")]
        for item in items:
            await store.put_input(item)
        assert await store.inputs("s1") == items
        assert await store.inputs("s2") == []
        with pytest.raises(SessionNotFound):
            await store.put_input(an_input("i9", session_id="s9"))

    async def test_the_same_input_twice_is_one(self, store: SessionStore) -> None:
        """Ours: a sender that got no answer repeats itself, perhaps later."""
        await store.open_session(a_head())
        await store.put_input(an_input())
        await store.put_input(msgspec.structs.replace(an_input(), created_at=NOW + 9))
        assert await store.inputs("s1") == [an_input()]
        for other in (an_input(text="other"), an_input(kind="inject")):
            with pytest.raises(IdempotencyConflict, match="i1"):
                await store.put_input(other)

    async def test_an_input_that_was_claimed_is_not_queued_again(self, store: SessionStore) -> None:
        """Ours: a sender that repeats itself after the claim must not start a second turn."""
        await store.open_session(a_head())
        await store.put_input(an_input())
        await store.begin(new_turn(consumes="i1"), claimant())
        await store.put_input(an_input())
        assert await store.inputs("s1") == []
        with pytest.raises(IdempotencyConflict):
            await store.put_input(an_input(text="other"))

    async def test_an_input_can_be_withdrawn_until_it_is_claimed(self, store: SessionStore) -> None:
        """Ours: cancellable until claimed."""
        await store.open_session(a_head())
        await store.put_input(an_input("i1"))
        await store.put_input(an_input("i2"))
        assert await store.withdraw_input("i1") is True
        assert await store.withdraw_input("i1") is False
        await store.begin(new_turn(consumes="i2"), claimant())
        assert await store.withdraw_input("i2") is False
        await store.put_input(an_input("i1", text="anew"))
        assert [it.message.content for it in await store.inputs("s1")] == ["anew"]

    async def test_a_queued_input_starts_one_turn(self, store: SessionStore) -> None:
        """Ours: claiming it and beginning its turn are one transaction."""
        await store.open_session(a_head())
        await store.put_input(an_input())
        begun = await store.begin(new_turn(consumes="i1"), claimant("dead"))
        assert isinstance(begun, Begun)
        assert await store.inputs("s1") == []
        await store.commit(begun.lease, a_commit())
        for gone in ("i1", "i9"):
            with pytest.raises(InputNotFound, match=gone):
                await store.begin(new_turn("t2", consumes=gone), claimant())
        assert await store.turn("t2") is None

    async def test_an_input_of_another_session_is_not_consumed(self, store: SessionStore) -> None:
        """Ours: ids are not a way into other sessions."""
        await store.open_session(a_head("s1"))
        await store.open_session(a_head("s2"))
        await store.put_input(an_input(session_id="s2"))
        with pytest.raises(InputNotFound):
            await store.begin(new_turn(consumes="i1"), claimant())
        assert len(await store.inputs("s2")) == 1

    async def test_a_refused_begin_claims_nothing(self, store: SessionStore) -> None:
        """Ours: every method is atomic."""
        await begin(store)
        await store.put_input(an_input("i1"))
        await store.put_input(an_input("i2", "inject"))
        results = await asyncio.gather(
            *(store.begin(new_turn("t2", consumes="i1"), claimant()) for _ in range(3)),
            return_exceptions=True,
        )
        assert all(isinstance(it, Exception) for it in results)
        assert len(await store.inputs("s1")) == 2

    async def test_a_beginning_turn_takes_along_what_was_injected(self, store: SessionStore) -> None:
        """Ours: what came between turns reaches the next one."""
        await store.open_session(a_head())
        await store.put_input(an_input("i1", "inject"))
        await store.put_input(an_input("i2"))
        await store.put_input(an_input("i3", "inject"))
        begun = await store.begin(new_turn(), claimant())
        assert isinstance(begun, Begun)
        assert begun.input == b'[null,["i1","i3"]]'
        assert await store.inputs("s1") == [an_input("i2")]

    async def test_a_checkpoint_claims_what_was_injected(self, store: SessionStore) -> None:
        """Ours: `inject` is delivered at the next checkpoint of this turn, once."""
        begun = await begin(store, claimed_by=claimant("dead"))
        await store.put_input(an_input("i1", "inject"))
        await store.put_input(an_input("i2"))
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
        with pytest.raises(StaleState):
            await store.save(
                begun.lease, Save(turn_id="t1", entries=(), make_checkpoint=lambda _: an_entry("k"))
            )
        assert len(await store.inputs("s1")) == 1

    async def test_a_turn_does_not_finish_over_an_injected_message(self, store: SessionStore) -> None:
        """Ours: what is said before the end is answered in this turn."""
        begun = await begin(store)
        await store.put_input(an_input("i1", "inject"))
        assert await store.commit(begun.lease, a_commit()) == CommitRefused(reason="injected")
        head = await store.head("s1")
        assert head is not None
        assert head.leaf is None
        save = Save(turn_id="t1", entries=(), make_checkpoint=a_checkpoint("checkpoint.1"))
        await store.save(begun.lease, save)
        await store.put_input(an_input("i2"))
        assert isinstance(await store.commit(begun.lease, a_commit()), SessionHead)

    async def test_what_a_stopped_turn_did_not_hear_starts_the_next(self, store: SessionStore) -> None:
        """Ours: what misses the last checkpoint becomes the next turn."""
        begun = await begin(store)
        await store.put_input(an_input("i1", "inject"))
        await store.put_input(an_input("i2"))
        task = an_input("t1.task")
        await store.commit(begun.lease, a_commit(summary=stopped(), enqueue=(task,)))
        left = [(it.input_id, it.kind) for it in await store.inputs("s1")]
        assert left == [("i1", "queue"), ("i2", "queue"), ("t1.task", "queue")]
        await store.put_input(an_input("i1", "inject"))
        assert len(await store.inputs("s1")) == 3
        assert isinstance(await store.begin(new_turn("t2", consumes="i1"), claimant()), Begun)

    async def test_a_first_input_waits_until_a_turn_claims_it(self, store: SessionStore) -> None:
        """Seed: the first turn's input is popped once; turns that begin, save and end leave it alone."""
        await store.open_session(a_head())
        first = an_input("i0", "first")
        await store.put_input(first)
        await store.put_input(first)
        await store.put_input(an_input("i1", "inject"))
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
        await store.open_session(a_head())
        await store.put_input(an_input("i0", "first"))
        assert isinstance(await store.begin(new_turn(consumes="i0"), claimant()), Begun)
        assert await store.withdraw_input("i0") is False

    async def test_blobs_are_kept_by_content(self, store: SessionStore) -> None:
        """Ours: media is never inside a message, and stored once."""
        await store.open_session(a_head())
        one, two = a_blob(b"one" * 10_000), a_blob(b"")
        item = QueuedInput(input_id="i1", session_id="s1", kind="queue", message=showing(one), created_at=NOW)
        await store.put_input(item, (one, one))
        await store.begin(new_turn(blobs=(one, two), consumes="i1"), claimant())
        assert await store.blob(one.digest) == one.data
        assert await store.blob(two.digest) == b""
        assert await store.blob("0" * 64) is None
