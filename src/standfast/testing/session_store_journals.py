"""The contract of session stores for journals of ended turns, turns in forks, and surveys for operators."""

from __future__ import annotations

import msgspec

from standfast import errors
from standfast.model.canonical import digest_bytes
from standfast.model.outcome import Waiting
from standfast.model.session import SessionHead, TurnState, TurnSummary
from standfast.ports.session_store import Blob, JournalEntry, NewSession, PruneRequest, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_commit,
    a_head,
    a_save,
    a_state_entry,
    a_wait,
    an_entry,
    begin,
    claimant,
    new_turn,
    refuses,
    take_turn,
    there,
)


async def keep_turn(
    store: SessionStore, turn_id: str = "t1", *saved: JournalEntry, now_ms: int = NOW, session_id: str = "s1"
) -> None:
    """Run a turn that saves these entries and whose journal is kept, with one more entry."""
    begun = await begin(store, turn_id, session_id, claimant(now_ms=now_ms))
    if saved:
        await store.save(begun.lease, a_save(turn_id, *saved))
    commit = msgspec.structs.replace(a_commit(turn_id, now_ms=now_ms), journal=(an_entry("model.9"),))
    assert isinstance(await store.commit(begun.lease, commit), SessionHead)


class JournalContract(StoreContract):
    """Journals that are kept when their turns end."""

    async def test_a_kept_journal_has_the_saved_entries_and_those_of_the_commit(
        self, store: SessionStore
    ) -> None:
        """Ours: a reader can inspect a turn that has ended."""
        large = an_entry("tool.1", b'"%s"' % (b"x" * 5_000))
        past = JournalEntry(key="code@1.1", kind="past", body=b"before")
        await keep_turn(store, "t1", an_entry("model.1"), large, past, a_state_entry("code"))
        found = there(await store.turn_journal("t1"))
        assert found.record == await store.turn("t1")
        assert found.input
        assert found.journal == (
            an_entry("model.1"), large, past, a_state_entry("code"), an_entry("model.9"),
        )  # fmt: skip

    async def test_without_a_journal_in_the_commit_none_is_kept(self, store: SessionStore) -> None:
        """Ours: without `journal` in the commit nothing is kept."""
        await take_turn(store, "t1")
        assert await store.turn_journal("t1") is None
        assert await store.turn_journal("missing") is None
        begun = await begin(store, "t2")
        await store.save(begun.lease, a_save("t2", an_entry("model.1")))
        found = there(await store.turn_journal("t2"))
        assert (found.record.state, found.input) == (TurnState.RUNNING, begun.input)
        assert found.journal == (an_entry("model.1"),)

    async def test_kept_journals_are_deleted_by_the_age_of_their_turns(self, store: SessionStore) -> None:
        """Ours: kept journals are bounded by age."""
        for number in range(3):
            await keep_turn(store, f"t{number}", now_ms=NOW + number)
        assert await store.drop_journals(NOW + 2) == 2
        assert await store.drop_journals(NOW + 2) == 0
        assert [await store.turn_journal(f"t{n}") is not None for n in range(3)] == [False, False, True]
        assert there(await store.turn("t0")).state is TurnState.ENDED

    async def test_a_journal_is_deleted_with_its_turn(self, store: SessionStore) -> None:
        """Ours: a deleted session, and a turn whose record was pruned, leave nothing behind."""
        await keep_turn(store, "t1")
        await keep_turn(store, "t2", session_id="s2")
        await store.delete_session("s1")
        await store.prune(PruneRequest(sessions_before_ms=NOW + 1, session_id="s2"))
        assert await store.drop_journals(NOW + 10) == 0

    async def test_a_blob_is_kept_while_a_kept_journal_refers_to_it(self, store: SessionStore) -> None:
        """Ours: port rule 9 holds for kept journals, compressed or not."""
        blobs = [Blob(digest=digest_bytes(text), data=text) for text in (b"small", b"large", b"unnamed")]
        begun = await begin(store, "t1")
        named = an_entry("tool.1", b'"%s"' % blobs[0].digest.encode())
        await store.save(begun.lease, msgspec.structs.replace(a_save("t1", named), blobs=tuple(blobs)))
        long = an_entry("tool.2", b'"%s %s"' % (blobs[1].digest.encode(), b"x" * 3_000))
        await store.commit(begun.lease, msgspec.structs.replace(a_commit("t1"), journal=(long,)))
        await store.prune(PruneRequest())
        kept = [await store.blob(blob.digest) for blob in blobs]
        assert kept[:2] == [b"small", b"large"]
        await store.drop_journals(NOW + 1)
        await store.prune(PruneRequest())
        assert [await store.blob(blob.digest) for blob in blobs] == [None, None, None]

    async def test_a_session_can_begin_with_an_unfinished_turn(self, store: SessionStore) -> None:
        """Ours: a fork in the middle of a turn is one write; any process can take the turn over."""
        await take_turn(store, "t1")
        leaf = there(await store.head("s1")).leaf
        entries = (an_entry("model.1"), a_state_entry("code"))
        new = NewSession(
            head=a_head("fork"), fork_of="s1", at=leaf, turn=new_turn("t2", "fork"), journal=entries
        )
        head = await store.make_session(new)
        assert (head.leaf, head.forked_from) == (leaf, "s1")
        assert [one.turn_id for one in await store.unfinished(NOW)] == ["t2"]
        taken = await store.take_over("t2", claimant())
        assert taken.journal == entries
        assert isinstance(await store.commit(taken.lease, a_commit("t2")), SessionHead)
        await refuses(store.make_session(new), errors.SessionExists)
        bare = NewSession(head=a_head("bare"), turn=new_turn("t3", "bare"), journal=entries)
        assert (await store.make_session(bare)).leaf is None
        assert there(await store.turn_journal("t3")).journal == entries


class SurveyContract(StoreContract):
    """What operators see of a store."""

    async def test_usage_is_added_up_by_day_and_session(self, store: SessionStore) -> None:
        """Ours: the usage of turns is aggregated in the store."""
        day_ms = 86_400_000
        for turn_id, session_id, now_ms in (
            ("t1", "s1", NOW),
            ("t2", "s1", NOW + 1),
            ("t3", "s2", NOW),
            ("t4", "s1", NOW + day_ms),
        ):
            await take_turn(store, turn_id, session_id, now_ms=now_ms)
        await begin(store, "t5")
        used = there(there(await store.turn("t1")).summary).usage
        found = await store.usage_by_day(NOW)
        assert [(one.day - NOW // day_ms, one.session_id, one.turns) for one in found] == [
            (1, "s1", 1), (0, "s1", 2), (0, "s2", 1),
        ]  # fmt: skip
        assert [one.usage for one in found] == [used, used + used, used]
        assert {one.agent for one in found} == {"helper"}
        assert len(await store.usage_by_day(NOW + 1)) == 2

    async def test_a_survey_lists_leases_open_turns_and_sizes(self, store: SessionStore) -> None:
        """Ours: the same result on every store."""
        await take_turn(store, "t0")
        begun = await begin(store, "t1")
        waiting = await begin(store, "t2", "s2", claimant("w2"))
        summary = TurnSummary(outcome=Waiting(waits=(a_wait("tick"),)))
        await store.park(waiting.lease, a_save("t2"), summary)
        found = await store.survey()
        assert [(one.session_id, one.owner) for one in found.leases] == [("s1", begun.lease.owner)]
        assert {(one.turn_id, one.state) for one in found.turns} == {
            ("t1", TurnState.RUNNING), ("t2", TurnState.WAITING),
        }  # fmt: skip
        assert (found.rows["sessions"], found.rows["turns"]) == (2, 3)
        assert found.bytes is None or found.bytes > 0
