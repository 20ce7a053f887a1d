"""What every session store must do with triggers, and with what occurs at their sources."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from standfast.errors import IdempotencyConflict, SessionNotFound
from standfast.model.trigger import Occurrence, Schedule, Trigger
from standfast.ports.session_store import PruneRequest, QueuedInput, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_head,
    an_input,
    claimant,
    new_turn,
    take_turn,
)

_replace = msgspec.structs.replace


def a_trigger(name: str = "nightly", session_id: str = "s1", next_at: int | None = NOW) -> Trigger:
    """Return a trigger with a schedule, or one that only fires from outside."""
    return Trigger(
        name=name,
        source=f"source/{name}",
        session_id=session_id,
        prompt="Look: {payload} é",
        schedule=None if next_at is None else Schedule(cron="0 3 * * *", timezone="Europe/Berlin"),
        next_at=next_at,
        created_at=NOW,
    )


def an_occurrence(key: str = "k1", source: str = "source/nightly", at_ms: int = NOW) -> Occurrence:
    return Occurrence(source=source, key=key, at_ms=at_ms, payload={"n": [1, 2**70]})


def delivery(key: str = "k1", session_id: str = "s1") -> QueuedInput:
    """The input that an occurrence becomes."""
    return an_input(f"occ_{session_id}_{key}", session_id=session_id)


class TriggerContract(StoreContract):
    """Triggers, and occurrences that are delivered once."""

    async def test_a_trigger_is_kept_under_its_name(self, store: SessionStore) -> None:
        """Ours: a later one of its name takes its place."""
        await store.open_session(a_head("s1"))
        await store.open_session(a_head("s2"))
        assert await store.trigger("nightly") is None
        for name in ("b", "a/z", "B", "a"):
            await store.put_trigger(a_trigger(name))
        assert [it.name for it in await store.triggers()] == ["B", "a", "a/z", "b"]
        other = _replace(a_trigger("b", "s2", None), enabled=False)
        await store.put_trigger(other)
        assert await store.trigger("b") == other
        assert await store.trigger("a") == a_trigger("a")
        assert len(await store.triggers()) == 4

    async def test_a_trigger_needs_its_session(self, store: SessionStore) -> None:
        """Ours: nothing is kept for a session that does not exist."""
        with pytest.raises(SessionNotFound, match="s1"):
            await store.put_trigger(a_trigger())
        assert await store.triggers() == []

    async def test_a_trigger_is_removed_once(self, store: SessionStore) -> None:
        """Ours: removing what is not there is no error."""
        await store.open_session(a_head())
        await store.put_trigger(a_trigger())
        assert await store.remove_trigger("nightly") is True
        assert await store.remove_trigger("nightly") is False
        assert await store.triggers() == []

    async def test_triggers_go_with_their_session(self, store: SessionStore) -> None:
        """Ours: a deleted session is not woken, also if its name is used again."""
        await store.open_session(a_head("s1"))
        await store.open_session(a_head("s2"))
        for name, session_id in (("a", "s1"), ("b", "s2"), ("c", "s1")):
            await store.put_trigger(a_trigger(name, session_id))
        await store.delete_session("s1")
        await store.open_session(a_head("s1"))
        assert await store.triggers() == [a_trigger("b", "s2")]

    async def test_a_session_that_is_going_to_be_woken_never_goes_by_age(self, store: SessionStore) -> None:
        """Ours: a timer may be set for next year. A trigger without a time goes with its idle session."""
        await take_turn(store)
        await store.put_trigger(a_trigger("timer", next_at=NOW + 2**40))
        await store.put_trigger(a_trigger("hook", next_at=None))
        old = PruneRequest(sessions_before_ms=NOW + 100)
        assert (await store.prune(old)).sessions == 0
        await store.put_trigger(_replace(a_trigger("timer"), enabled=False))
        assert (await store.prune(old)).sessions == 1
        assert await store.triggers() == []

    # Occurrences

    async def test_what_occurs_becomes_input_once(self, store: SessionStore) -> None:
        """Ours: an idempotency key; however often a source tells of it, it is delivered once."""
        await store.open_session(a_head())
        assert await store.occur(an_occurrence(), (delivery(),)) is True
        assert await store.occur(an_occurrence(), (delivery(),)) is False
        late = _replace(an_occurrence(at_ms=NOW + 9), payload="other")
        assert await store.occur(late, (an_input("elsewhere"),)) is False
        assert await store.inputs("s1") == [delivery()]
        assert await store.with_queued() == ["s1"]

    async def test_a_delivery_that_was_claimed_does_not_come_again(self, store: SessionStore) -> None:
        """Ours: a source that repeats itself after the turn began."""
        await store.open_session(a_head())
        await store.occur(an_occurrence(), (delivery(),))
        await store.begin(new_turn(consumes=delivery().input_id), claimant())
        assert await store.occur(an_occurrence(), (delivery(),)) is False
        assert await store.inputs("s1") == []

    async def test_sources_and_keys_do_not_run_together(self, store: SessionStore) -> None:
        """Ours: the same key of another source is something else."""
        await store.open_session(a_head())
        places = [("a", "b"), ("ab", "c"), ("a", "bc"), ("a", "B"), ("a", "b "), ("a", "é")]
        for source, key in places:
            assert await store.occur(an_occurrence(key, source), ()) is True
        for source, key in places:
            assert await store.occur(an_occurrence(key, source), ()) is False

    async def test_an_occurrence_wakes_every_session_that_is_there(self, store: SessionStore) -> None:
        """Ours: a session that is gone does not keep the others from hearing."""
        await store.open_session(a_head("s1"))
        await store.open_session(a_head("s2"))
        inputs = tuple(delivery(session_id=session_id) for session_id in ("s9", "s2", "s1"))
        assert await store.occur(an_occurrence(), inputs) is True
        assert await store.with_queued() == ["s2", "s1"]
        await store.open_session(a_head("s9"))
        assert await store.occur(an_occurrence(), inputs) is False
        assert await store.inputs("s9") == []

    async def test_an_occurrence_that_is_refused_is_not_known(self, store: SessionStore) -> None:
        """Ours: occurrence, inputs and trigger are one transaction."""
        await store.open_session(a_head())
        await store.put_trigger(a_trigger())
        await store.put_input(an_input("taken"))
        inputs = (delivery(), an_input("taken", text="other"))
        advance = a_trigger(next_at=NOW + 10)
        with pytest.raises(IdempotencyConflict, match="taken"):
            await store.occur(an_occurrence(), inputs, advance)
        assert await store.inputs("s1") == [an_input("taken")]
        assert await store.trigger("nightly") == a_trigger()
        assert await store.occur(an_occurrence(), (delivery(),), advance) is True

    async def test_many_told_twice_at_once_are_delivered_once_each(self, store: SessionStore) -> None:
        """Ours: a faulty source; one delivery for each occurrence."""
        await store.open_session(a_head())
        keys = [f"k{number}" for number in range(50)] * 2
        fired = await asyncio.gather(*(store.occur(an_occurrence(key), (delivery(key),)) for key in keys))
        assert sum(fired) == 50
        assert len(await store.inputs("s1")) == 50

    async def test_what_occurred_is_forgotten_by_age_and_by_nothing_else(self, store: SessionStore) -> None:
        """Ours: a repeated event is recognised for as long as records are kept."""
        await store.open_session(a_head())
        await store.put_trigger(a_trigger())
        for key, at_ms in (("old", NOW + 99), ("new", NOW + 100)):
            await store.occur(an_occurrence(key, at_ms=at_ms), (delivery(key),))
        await store.delete_session("s1")
        await store.open_session(a_head())
        await store.prune(PruneRequest(frames=True, branches=True))
        await store.prune(PruneRequest(sessions_before_ms=NOW + 1_000, session_id="s1"))
        assert await store.occur(an_occurrence("old"), ()) is False
        pruned = await store.prune(PruneRequest(sessions_before_ms=NOW + 100))
        assert pruned.records == 1
        assert await store.occur(an_occurrence("old"), ()) is True
        assert await store.occur(an_occurrence("new"), ()) is False

    # Moving on

    async def test_a_trigger_moves_on_with_its_occurrence(self, store: SessionStore) -> None:
        """Ours: a crash in between leaves both or neither, and a second process does no harm."""
        await store.open_session(a_head())
        await store.put_trigger(a_trigger())
        later = a_trigger(next_at=NOW + 10)
        assert await store.occur(an_occurrence("1"), (delivery("1"),), later) is True
        assert await store.trigger("nightly") == later
        assert await store.occur(an_occurrence("1"), (delivery("1"),), later) is False
        assert await store.trigger("nightly") == later

    async def test_a_trigger_moves_on_though_its_occurrence_is_known(self, store: SessionStore) -> None:
        """Ours: otherwise it would be due for ever."""
        await store.open_session(a_head())
        await store.put_trigger(a_trigger())
        await store.occur(an_occurrence(), ())
        done = _replace(a_trigger(next_at=None), schedule=a_trigger().schedule, enabled=False)
        assert await store.occur(an_occurrence(), (), done) is False
        assert await store.trigger("nightly") == done

    async def test_a_trigger_never_goes_back(self, store: SessionStore) -> None:
        """Ours: a process that was slow must not have the same time come twice."""
        await store.open_session(a_head())
        await store.put_trigger(a_trigger(next_at=NOW + 20))
        assert await store.occur(an_occurrence("1"), (), a_trigger(next_at=NOW + 10)) is True
        assert await store.trigger("nightly") == a_trigger(next_at=NOW + 20)

    async def test_a_change_of_a_trigger_stays(self, store: SessionStore) -> None:
        """Ours: who moves a trigger on has perhaps read it before it was changed, disabled or removed."""
        await store.open_session(a_head())
        advance = a_trigger(next_at=NOW + 10)
        assert await store.occur(an_occurrence("0"), (), advance) is True
        assert await store.triggers() == []
        for key, changed in {
            "prompt": _replace(a_trigger(), prompt="another"),
            "schedule": _replace(a_trigger(), schedule=Schedule(every_ms=5_000)),
            "off": _replace(a_trigger(), enabled=False),
            "unscheduled": _replace(a_trigger(), next_at=None),
        }.items():
            await store.put_trigger(changed)
            assert await store.occur(an_occurrence(key), (), advance) is True
            assert await store.trigger("nightly") == changed
