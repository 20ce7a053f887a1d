"""The contract of session stores for background tasks, triggers and occurrences at their sources."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import msgspec
import pytest

from standfast import errors
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.model.trigger import Occurrence, Schedule, Trigger
from standfast.ports.session_store import PruneRequest, QueuedInput, SessionStore
from standfast.testing.session_values import (
    NOW,
    StoreContract,
    a_head,
    an_input,
    claimant,
    new_turn,
    refuses,
    take_turn,
)

ENDED = [state for state in TaskState if state.is_terminal]
LIVE = [state for state in TaskState if not state.is_terminal]

_replace = msgspec.structs.replace


def a_task(
    task_id: str = "watch", session_id: str = "s1", state: TaskState = TaskState.RUNNING, at_ms: int = NOW
) -> TaskRecord:
    """Return a running task."""
    return TaskRecord(
        session_id=session_id,
        id=task_id,
        kind=TaskKind.MONITOR,
        state=state,
        created_at=at_ms,
        updated_at=at_ms,
        label="the log",
        owner="w1",
        body={"command": ["tail", "-f", "é"], "size": 2**70},
    )


def becomes(state: TaskState, at_ms: int = NOW + 5) -> Callable[[TaskRecord], TaskRecord]:
    """Return a function that changes a task's state."""
    return lambda record: _replace(record, state=state, updated_at=at_ms)


def ids(tasks: list[TaskRecord]) -> list[tuple[str, str]]:
    return [(task.session_id, task.id) for task in tasks]


class TaskContract(StoreContract, sessions=("s1", "s2")):
    """Tasks: stored, changed, listed, moved, removed."""

    async def test_a_task_is_stored_as_it_was_added(self, store: SessionStore) -> None:
        """Seed: registered tasks are records that any caller may list."""
        error = errors.ErrorObject(code=errors.Code.INTERRUPTED, message="its process is gone")
        whole = _replace(a_task("all"), state=TaskState.FAILED, result=[1, None], error=error)
        for task in (a_task(), whole):
            await store.add_task(task)
            assert await store.task("s1", task.id) == task
        assert await store.tasks() == [a_task(), whole]
        assert await store.task("s2", "watch") is None
        assert await store.task("s9", "watch") is None
        assert await store.task("s1", "other") is None

    async def test_a_task_needs_an_existing_session(self, store: SessionStore) -> None:
        """Ours: nothing is stored for a session that does not exist."""
        await refuses(store.add_task(a_task(session_id="s9")), errors.SessionNotFound, match="s9")
        assert await store.tasks() == []
        assert await store.tasks(session_id="s9") == []

    async def test_an_id_is_taken_as_long_as_its_task_is_live(self, store: SessionStore) -> None:
        """Seed: an id is unique among the live tasks of a session, and free again when its task has ended."""
        for state in LIVE:
            await store.add_task(a_task(state.value, state=state))
            await refuses(store.add_task(a_task(state.value)), errors.TaskExists, match=state.value)
            await store.add_task(a_task(state.value, "s2"))
            assert await store.task("s1", state.value) == a_task(state.value, state=state)
        for state in ENDED:
            await store.add_task(a_task(state.value, state=state))
            again = a_task(state.value, at_ms=NOW + 1)
            await store.add_task(again)
            assert await store.task("s1", state.value) == again
        assert len(await store.tasks(session_id="s1")) == len(TaskState)

    async def test_exactly_one_of_many_concurrent_additions_of_an_id_succeeds(
        self, store: SessionStore
    ) -> None:
        """Ours: every method is atomic."""
        tasks = [_replace(a_task(), owner=f"w{number}") for number in range(10)]
        results = await asyncio.gather(*map(store.add_task, tasks), return_exceptions=True)
        assert [type(it) for it in results].count(errors.TaskExists) == 9
        assert await store.task("s1", "watch") == tasks[results.index(None)]

    # Changes

    async def test_a_change_stores_what_its_function_returns(self, store: SessionStore) -> None:
        """Ours: compare and set; the function sees the current record."""
        await store.add_task(a_task())
        idle = await store.change_task("s1", "watch", becomes(TaskState.IDLE))
        assert idle == _replace(a_task(), state=TaskState.IDLE, updated_at=NOW + 5)
        assert await store.change_task("s1", "watch", lambda record: record) == idle
        end = {"state": TaskState.COMPLETED, "result": {"lines": 3}}
        ended = await store.change_task("s1", "watch", lambda record: _replace(record, **end))
        assert ended == _replace(idle, **end)
        assert await store.task("s1", "watch") == ended

    async def test_an_ended_task_keeps_its_final_state(self, store: SessionStore) -> None:
        """Seed: a final state never changes again; a late caller gets the final record."""
        for state in ENDED:
            await store.add_task(a_task(state.value, state=state))
            for late in (TaskState.RUNNING, TaskState.CANCELLED):
                found = await store.change_task("s1", state.value, becomes(late))
                assert found == await store.task("s1", state.value) == a_task(state.value, state=state)

    async def test_exactly_one_of_many_concurrent_ends_is_kept(self, store: SessionStore) -> None:
        """Ours: completion and cancellation race, and all callers see the same winner."""
        await store.add_task(a_task())
        ends = [becomes(ENDED[number % 3], NOW + number) for number in range(9)]
        results = await asyncio.gather(*(store.change_task("s1", "watch", end) for end in ends))
        assert results == [await store.task("s1", "watch")] * 9

    async def test_a_change_that_fails_changes_nothing(self, store: SessionStore) -> None:
        """Ours: only the caller sees the function's error."""
        await store.add_task(a_task())

        def refuse(record: TaskRecord) -> TaskRecord:
            raise errors.StaleState("not mine")

        await refuses(store.change_task("s1", "other", refuse), errors.TaskNotFound)
        await refuses(store.change_task("s1", "watch", refuse), errors.StaleState)
        await refuses(store.change_task("s2", "watch", refuse), errors.TaskNotFound, match="watch")
        for other in ({"id": "other"}, {"session_id": "s2"}):
            change = functools.partial(_replace, **other)
            await refuses(store.change_task("s1", "watch", change), errors.InvalidArgument, match="watch")
        assert await store.tasks() == [a_task()]

    # Lists

    async def test_tasks_are_listed_by_age(self, store: SessionStore) -> None:
        """Ours: by creation time, then in insertion order; a new task with an old id is new."""
        await store.add_task(a_task("b", at_ms=NOW + 1))
        await store.add_task(a_task("a", "s2", at_ms=NOW + 1))
        await store.add_task(a_task("z"))
        assert ids(await store.tasks()) == [("s1", "z"), ("s1", "b"), ("s2", "a")]
        await store.change_task("s1", "b", becomes(TaskState.COMPLETED))
        assert ids(await store.tasks()) == [("s1", "z"), ("s1", "b"), ("s2", "a")]
        await store.add_task(a_task("b", at_ms=NOW + 1))
        assert ids(await store.tasks()) == [("s1", "z"), ("s2", "a"), ("s1", "b")]
        assert ids(await store.tasks(session_id="s1")) == [("s1", "z"), ("s1", "b")]

    async def test_live_tasks_are_those_that_have_not_ended(self, store: SessionStore) -> None:
        """Ours: recovery reads only these."""
        for session_id in ("s1", "s2"):
            for state in TaskState:
                await store.add_task(a_task(state.value, session_id, state))
        live = [state.value for state in LIVE]
        assert ids(await store.tasks(live=True)) == [(it, name) for it in ("s1", "s2") for name in live]
        assert ids(await store.tasks(session_id="s2", live=True)) == [("s2", name) for name in live]
        await store.change_task("s1", "running", becomes(TaskState.CANCEL_REQUESTED))
        assert len(await store.tasks(session_id="s1", live=True)) == len(live)
        await store.change_task("s1", "running", becomes(TaskState.CANCELLED))
        assert "running" not in [it.id for it in await store.tasks(session_id="s1", live=True)]

    # Moves

    async def test_tasks_move_to_another_session(self, store: SessionStore) -> None:
        """Seed: handles are transferred; the task continues unchanged."""
        for name in ("a", "b", "c"):
            await store.add_task(a_task(name))
        await store.move_tasks("s1", "s2", ("c", "a", "c"), NOW + 7)
        assert await store.tasks(session_id="s1") == [a_task("b")]
        moved = [_replace(a_task(name, "s2"), updated_at=NOW + 7) for name in ("a", "c")]
        assert await store.tasks(session_id="s2") == moved
        assert ids(await store.tasks(live=True)) == [("s2", "a"), ("s1", "b"), ("s2", "c")]
        await refuses(store.change_task("s1", "a", becomes(TaskState.IDLE)), errors.TaskNotFound)
        await store.change_task("s2", "a", becomes(TaskState.COMPLETED))
        await store.add_task(a_task("a"))

    async def test_a_move_transfers_all_tasks_or_none(self, store: SessionStore) -> None:
        """Seed: a transfer is rejected as a whole."""
        for task in (a_task("a"), a_task("b"), a_task("b", "s2")):
            await store.add_task(task)
        before = await store.tasks()
        refused: list[tuple[str, str, tuple[str, ...], type[Exception]]] = [
            ("s1", "s2", ("a", "b"), errors.TaskExists),
            ("s1", "s2", ("a", "z"), errors.TaskNotFound),
            ("s1", "s9", ("a",), errors.SessionNotFound),
            ("s9", "s2", ("a",), errors.SessionNotFound),
            ("s1", "s1", ("a", "z"), errors.TaskNotFound),
        ]
        for from_id, to_id, task_ids, error in refused:
            await refuses(store.move_tasks(from_id, to_id, task_ids, NOW), error)
            assert await store.tasks() == before
        await store.move_tasks("s1", "s1", ("a", "b"), NOW + 9)
        await store.move_tasks("s1", "s2", (), NOW + 9)
        assert await store.tasks() == before

    async def test_a_moved_task_may_replace_an_ended_one(self, store: SessionStore) -> None:
        """Ours: an ended task frees its id, in the other session as well."""
        await store.add_task(a_task("a"))
        await store.add_task(a_task("a", "s2", TaskState.FAILED))
        await store.move_tasks("s1", "s2", ("a",), NOW)
        assert await store.tasks() == [a_task("a", "s2")]

    # The end

    async def test_a_task_is_forgotten_once(self, store: SessionStore) -> None:
        """Seed: unregistering a missing task is not an error."""
        await store.add_task(a_task())
        assert await store.remove_task("s2", "watch") is False
        assert await store.remove_task("s9", "watch") is False
        assert await store.remove_task("s1", "watch") is True
        assert await store.remove_task("s1", "watch") is False
        assert await store.tasks() == []
        await store.add_task(a_task())

    async def test_tasks_are_deleted_with_their_session(self, store: SessionStore) -> None:
        """Ours: a new session with the same name has nothing of the old one."""
        for session_id in ("s1", "s2"):
            await store.add_task(a_task(session_id=session_id))
        await store.delete_session("s1")
        await store.open_session(a_head("s1"))
        assert await store.task("s1", "watch") is None
        assert await store.tasks() == [a_task(session_id="s2")]

    async def test_a_session_with_a_running_task_is_never_pruned_by_age(self, store: SessionStore) -> None:
        """Ours: nothing is removed from a running process; ended tasks are pruned with an idle session."""
        await take_turn(store)
        await store.add_task(a_task("live"))
        await store.add_task(a_task("over", state=TaskState.COMPLETED))
        old = PruneRequest(sessions_before_ms=NOW + 100, session_id="s1")
        assert (await store.prune(old)).sessions == 0
        assert len(await store.tasks()) == 2
        await store.change_task("s1", "live", becomes(TaskState.CANCELLED))
        assert (await store.prune(old)).sessions == 1
        assert await store.tasks() == []


def a_trigger(name: str = "nightly", session_id: str = "s1", next_at: int | None = NOW) -> Trigger:
    """Return a trigger with a schedule, or one that fires only from outside."""
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
    """Return the input that an occurrence becomes."""
    return an_input(f"occ_{session_id}_{key}", session_id=session_id)


class TriggerContract(StoreContract, sessions=("s1", "s2")):
    """Triggers, and occurrences that are delivered once."""

    async def test_a_trigger_is_kept_under_its_name(self, store: SessionStore) -> None:
        """Ours: a later trigger with the same name replaces it."""
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
        """Ours: nothing is stored for a session that does not exist."""
        await refuses(store.put_trigger(a_trigger(session_id="s9")), errors.SessionNotFound, match="s9")
        assert await store.triggers() == []

    async def test_a_trigger_is_removed_once(self, store: SessionStore) -> None:
        """Ours: removing a missing trigger is not an error."""
        await store.put_trigger(a_trigger())
        assert await store.remove_trigger("nightly") is True
        assert await store.remove_trigger("nightly") is False
        assert await store.triggers() == []

    async def test_triggers_are_deleted_with_their_session(self, store: SessionStore) -> None:
        """Ours: a deleted session is not woken, even if its name is used again."""
        for name, session_id in (("a", "s1"), ("b", "s2"), ("c", "s1")):
            await store.put_trigger(a_trigger(name, session_id))
        await store.delete_session("s1")
        await store.open_session(a_head("s1"))
        assert await store.triggers() == [a_trigger("b", "s2")]

    async def test_a_session_with_a_scheduled_trigger_is_never_pruned_by_age(
        self, store: SessionStore
    ) -> None:
        """Ours: a timer may be set for next year; a trigger without a time is pruned with an idle session."""
        await take_turn(store)
        await store.put_trigger(a_trigger("timer", next_at=NOW + 2**40))
        await store.put_trigger(a_trigger("hook", next_at=None))
        old = PruneRequest(sessions_before_ms=NOW + 100, session_id="s1")
        assert (await store.prune(old)).sessions == 0
        await store.put_trigger(_replace(a_trigger("timer"), enabled=False))
        assert (await store.prune(old)).sessions == 1
        assert await store.triggers() == []

    # Occurrences

    async def test_an_occurrence_becomes_input_once(self, store: SessionStore) -> None:
        """Ours: an idempotency key; however often a source reports it, it is delivered once."""
        assert await store.occur(an_occurrence(), (delivery(),)) is True
        assert await store.occur(an_occurrence(), (delivery(),)) is False
        late = _replace(an_occurrence(at_ms=NOW + 9), payload="other")
        assert await store.occur(late, (an_input("elsewhere"),)) is False
        assert await store.inputs("s1") == [delivery()]
        assert await store.with_queued() == ["s1"]

    async def test_a_claimed_delivery_is_not_repeated(self, store: SessionStore) -> None:
        """Ours: a source may repeat itself after the turn began."""
        await store.occur(an_occurrence(), (delivery(),))
        await store.begin(new_turn(consumes=delivery().input_id), claimant())
        assert await store.occur(an_occurrence(), (delivery(),)) is False
        assert await store.inputs("s1") == []

    async def test_sources_and_keys_are_not_confused(self, store: SessionStore) -> None:
        """Ours: the same key of another source is a different occurrence."""
        places = [("a", "b"), ("ab", "c"), ("a", "bc"), ("a", "B"), ("a", "b "), ("a", "é")]
        for source, key in places:
            assert await store.occur(an_occurrence(key, source), ()) is True
        for source, key in places:
            assert await store.occur(an_occurrence(key, source), ()) is False

    async def test_an_occurrence_wakes_every_session_that_exists(self, store: SessionStore) -> None:
        """Ours: a missing session does not keep the others from receiving it."""
        inputs = tuple(delivery(session_id=session_id) for session_id in ("s9", "s2", "s1"))
        assert await store.occur(an_occurrence(), inputs) is True
        assert await store.with_queued() == ["s2", "s1"]
        await store.open_session(a_head("s9"))
        assert await store.occur(an_occurrence(), inputs) is False
        assert await store.inputs("s9") == []

    async def test_a_refused_occurrence_is_not_recorded(self, store: SessionStore) -> None:
        """Ours: occurrence, inputs and trigger are one transaction."""
        await store.put_trigger(a_trigger())
        await store.put_input(an_input("taken"))
        inputs = (delivery(), an_input("taken", text="other"))
        advance = a_trigger(next_at=NOW + 10)
        with pytest.raises(errors.IdempotencyConflict, match="taken"):
            await store.occur(an_occurrence(), inputs, advance)
        assert await store.inputs("s1") == [an_input("taken")]
        assert await store.trigger("nightly") == a_trigger()
        assert await store.occur(an_occurrence(), (delivery(),), advance) is True

    async def test_occurrences_reported_twice_concurrently_are_delivered_once(
        self, store: SessionStore
    ) -> None:
        """Ours: a faulty source; one delivery for each occurrence."""
        keys = [f"k{number}" for number in range(50)] * 2
        fired = await asyncio.gather(*(store.occur(an_occurrence(key), (delivery(key),)) for key in keys))
        assert sum(fired) == 50
        assert len(await store.inputs("s1")) == 50

    async def test_occurrences_are_deleted_by_age_only(self, store: SessionStore) -> None:
        """Ours: a repeated event is recognized for as long as records are kept."""
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

    async def test_a_trigger_advances_with_its_occurrence(self, store: SessionStore) -> None:
        """Ours: a crash in between leaves both or neither, and a second process does no harm."""
        await store.put_trigger(a_trigger())
        later = a_trigger(next_at=NOW + 10)
        assert await store.occur(an_occurrence("1"), (delivery("1"),), later) is True
        assert await store.trigger("nightly") == later
        assert await store.occur(an_occurrence("1"), (delivery("1"),), later) is False
        assert await store.trigger("nightly") == later

    async def test_a_trigger_advances_even_if_its_occurrence_is_known(self, store: SessionStore) -> None:
        """Ours: otherwise it would be due forever."""
        await store.put_trigger(a_trigger())
        await store.occur(an_occurrence(), ())
        done = _replace(a_trigger(next_at=None), schedule=a_trigger().schedule, enabled=False)
        assert await store.occur(an_occurrence(), (), done) is False
        assert await store.trigger("nightly") == done

    async def test_a_trigger_never_goes_back(self, store: SessionStore) -> None:
        """Ours: a slow process must not make the same time occur twice."""
        await store.put_trigger(a_trigger(next_at=NOW + 20))
        assert await store.occur(an_occurrence("1"), (), a_trigger(next_at=NOW + 10)) is True
        assert await store.trigger("nightly") == a_trigger(next_at=NOW + 20)

    async def test_advancing_a_trigger_does_not_undo_a_change(self, store: SessionStore) -> None:
        """Ours: the process that advances a trigger may have read it before it was changed or removed."""
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
