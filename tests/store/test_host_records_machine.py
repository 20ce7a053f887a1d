"""Tasks, triggers and occurrences compared with a model: random histories of two sessions, on every store.

The model implements the port with a few dicts. Whatever hypothesis does, the store must agree with it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from standfast.errors import SessionNotFound, StandfastError, TaskExists, TaskNotFound
from standfast.model.task import TaskRecord, TaskState
from standfast.model.trigger import Trigger
from standfast.ports.session_store import PruneRequest, SessionStore
from standfast.store.memory_sessions import MemorySessionStore
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.session_store_tasks import a_task, a_trigger, an_occurrence, becomes, delivery
from standfast.testing.session_values import NOW, a_head

T = TypeVar("T")

sessions = st.sampled_from(("s1", "s2"))
names = st.sampled_from(("a", "b", "c"))
states = st.sampled_from(tuple(TaskState))
times = st.integers(NOW, NOW + 3)
keys = st.sampled_from(("k1", "k2", "k3", "k4"))


class HostRecords(RuleBasedStateMachine):
    """Random tasks and triggers; a subclass chooses the store."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.make_store()
        self.there: set[str] = set()
        self.tasks: dict[tuple[str, str], TaskRecord] = {}
        self.triggers: dict[str, Trigger] = {}
        self.occurred: dict[str, int] = {}
        self.delivered: dict[str, list[str]] = {"s1": [], "s2": []}

    def make_store(self) -> SessionStore:
        raise NotImplementedError

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def attempt(self, call: Coroutine[Any, Any, T]) -> T | type[StandfastError]:
        """Return the result of a call, or the type of the error that it raised."""
        try:
            return self.run(call)
        except StandfastError as error:
            return type(error)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    def live(self, session_id: str, name: str) -> bool:
        task = self.tasks.get((session_id, name))
        return task is not None and not task.state.is_terminal

    # Sessions

    @rule(session_id=sessions)
    def open(self, session_id: str) -> None:
        self.run(self.store.open_session(a_head(session_id)))
        self.there.add(session_id)

    @rule(session_id=sessions)
    def delete(self, session_id: str) -> None:
        assert self.run(self.store.delete_session(session_id)) is (session_id in self.there)
        self.forget(session_id)

    def forget(self, session_id: str) -> None:
        self.there.discard(session_id)
        self.delivered[session_id] = []
        self.tasks = {place: task for place, task in self.tasks.items() if place[0] != session_id}
        self.triggers = {name: it for name, it in self.triggers.items() if it.session_id != session_id}

    @rule(before_ms=times)
    def prune(self, before_ms: int) -> None:
        self.run(self.store.prune(PruneRequest(sessions_before_ms=before_ms)))
        self.occurred = {key: at_ms for key, at_ms in self.occurred.items() if at_ms >= before_ms}
        due = {it.session_id for it in self.triggers.values() if it.enabled and it.next_at is not None}
        for session_id in sorted(self.there - due):
            busy = self.delivered[session_id] or any(self.live(session_id, name) for name in "abc")
            if before_ms > NOW and not busy:
                self.forget(session_id)

    # Tasks

    @rule(session_id=sessions, name=names, state=states, at_ms=times)
    def add_task(self, session_id: str, name: str, state: TaskState, at_ms: int) -> None:
        task = a_task(name, session_id, state, at_ms)
        answer = self.attempt(self.store.add_task(task))
        if session_id not in self.there:
            assert answer is SessionNotFound
        elif self.live(session_id, name):
            assert answer is TaskExists
        else:
            assert answer is None
            self.tasks.pop((session_id, name), None)
            self.tasks[session_id, name] = task

    @rule(session_id=sessions, name=names, state=states)
    def change_task(self, session_id: str, name: str, state: TaskState) -> None:
        answer = self.attempt(self.store.change_task(session_id, name, becomes(state)))
        if (task := self.tasks.get((session_id, name))) is None:
            assert answer is TaskNotFound
            return
        if self.live(session_id, name):
            self.tasks[session_id, name] = becomes(state)(task)
        assert answer == self.tasks[session_id, name]

    @rule(from_id=sessions, to_id=sessions, moving=st.lists(names, max_size=3))
    def move_tasks(self, from_id: str, to_id: str, moving: list[str]) -> None:
        answer = self.attempt(self.store.move_tasks(from_id, to_id, tuple(moving), NOW + 7))
        if not {from_id, to_id} <= self.there:
            assert answer is SessionNotFound
        elif any((from_id, name) not in self.tasks for name in moving):
            assert answer is TaskNotFound
        elif from_id != to_id and any(self.live(to_id, name) for name in moving):
            assert answer is TaskExists
        else:
            assert answer is None
            if from_id != to_id:
                self.moved(from_id, to_id, set(moving))

    def moved(self, from_id: str, to_id: str, moving: set[str]) -> None:
        before, self.tasks = self.tasks, {}
        for (session_id, name), task in before.items():
            if name in moving and session_id == from_id:
                moved = msgspec.structs.replace(task, session_id=to_id, updated_at=NOW + 7)
                self.tasks[to_id, name] = moved
            elif name not in moving or session_id != to_id:
                self.tasks[session_id, name] = task

    @rule(session_id=sessions, name=names)
    def remove_task(self, session_id: str, name: str) -> None:
        known = self.tasks.pop((session_id, name), None) is not None
        assert self.run(self.store.remove_task(session_id, name)) is known

    @invariant()
    def tasks_match_the_model(self) -> None:
        ordered = sorted(self.tasks.values(), key=lambda task: task.created_at)
        assert self.run(self.store.tasks()) == ordered
        for session_id in ("s1", "s2"):
            own = [task for task in ordered if task.session_id == session_id]
            assert self.run(self.store.tasks(session_id=session_id)) == own
            live = [task for task in own if not task.state.is_terminal]
            assert self.run(self.store.tasks(session_id=session_id, live=True)) == live

    # Triggers

    @rule(name=names, session_id=sessions, next_at=st.none() | times, enabled=st.booleans())
    def put_trigger(self, name: str, session_id: str, next_at: int | None, enabled: bool) -> None:
        trigger = msgspec.structs.replace(a_trigger(name, session_id, next_at), enabled=enabled)
        answer = self.attempt(self.store.put_trigger(trigger))
        assert answer is (True if session_id in self.there else SessionNotFound)
        if session_id in self.there:
            self.triggers[name] = trigger

    @rule(key=keys, session_id=sessions, at_ms=times, name=st.none() | names, next_at=times)
    def occur(self, key: str, session_id: str, at_ms: int, name: str | None, next_at: int) -> None:
        stored = None if name is None else self.triggers.get(name)
        advance = None if stored is None else msgspec.structs.replace(stored, next_at=next_at)
        occurrence = an_occurrence(key, at_ms=at_ms)
        answer = self.run(self.store.occur(occurrence, (delivery(key, session_id),), advance))
        assert answer is (key not in self.occurred)
        if answer:
            self.occurred[key] = at_ms
            self.deliver(session_id, delivery(key, session_id).input_id)
        if stored is not None and advance is not None and stored.enabled:
            moves_on = stored.next_at is not None and stored.next_at < next_at
            self.triggers[stored.name] = advance if moves_on else stored

    def deliver(self, session_id: str, input_id: str) -> None:
        """Add an input to the model unless it is still queued under this id."""
        if session_id in self.there and input_id not in self.delivered[session_id]:
            self.delivered[session_id].append(input_id)

    @invariant()
    def triggers_and_deliveries_match_the_model(self) -> None:
        assert self.run(self.store.triggers()) == [self.triggers[name] for name in sorted(self.triggers)]
        for session_id, expected in self.delivered.items():
            assert [it.input_id for it in self.run(self.store.inputs(session_id))] == expected
        woken = {session_id for session_id, inputs in self.delivered.items() if inputs}
        assert set(self.run(self.store.with_queued())) == woken


class InMemory(HostRecords):
    def make_store(self) -> SessionStore:
        return MemorySessionStore()


class InSqlite(HostRecords):
    def make_store(self) -> SessionStore:
        self.directory = tempfile.TemporaryDirectory()
        return SqliteSessionStore(Path(self.directory.name) / "standfast.db")

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()

    @rule()
    def reopen(self) -> None:
        """Reopen the file, as another process would."""
        self.run(self.store.close())
        self.store = SqliteSessionStore(Path(self.directory.name) / "standfast.db")


class InPostgres(HostRecords):
    server: ClassVar[PostgresServer]

    def make_store(self) -> SessionStore:
        return PostgresSessionStore(self.server.new_url(), database_clock=False)


@pytest.fixture(scope="class")
def server(postgres: PostgresServer) -> None:
    """Pass the server to the state machine, which hypothesis instantiates."""
    InPostgres.server = postgres


_SETTINGS = settings(
    max_examples=settings.default.max_examples // 5,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
class TestInMemory(InMemory.TestCase):  # type: ignore[valid-type, misc]
    """Ours: the memory store must satisfy the same model as the others."""

    settings = settings(_SETTINGS, max_examples=settings.default.max_examples)


@pytest.mark.slow
class TestInSqlite(InSqlite.TestCase):  # type: ignore[valid-type, misc]
    """Ours: hypothesis state machines for the stores."""

    settings = _SETTINGS


@pytest.mark.slow
@pytest.mark.usefixtures("server")
class TestInPostgres(InPostgres.TestCase):  # type: ignore[valid-type, misc]
    """Ours: PostgreSQL must satisfy the same model as SQLite."""

    settings = settings(_SETTINGS, max_examples=settings.default.max_examples // 10)
