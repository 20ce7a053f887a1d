"""The life cycle of turns compared with a model: random histories of two sessions, on every store.

The model implements the port in a few lines: the lease holder, the journal, the waits. Whatever
hypothesis does, the store must agree with the model.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from standfast.errors import (
    LeaseLost,
    SessionBusy,
    StaleState,
    StandfastError,
    TokenAlreadyUsed,
    TurnUnfinished,
)
from standfast.model.outcome import Completed, Expired, Wait, Waiting
from standfast.model.session import SessionHead, TurnState
from standfast.ports.session_store import Begun, CommitRefused, JournalEntry, Lease, Save, SessionStore
from standfast.store.memory_sessions import MemorySessionStore
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.session_values import (
    LEASE_MS,
    NOW,
    a_checkpoint,
    a_commit,
    a_head,
    a_save,
    a_state,
    a_state_entry,
    an_entry,
    an_input,
    claimant,
    is_dead,
    new_turn,
    stopped,
    waiting,
)

T = TypeVar("T")

SESSIONS = ("s1", "s2")
sessions = st.sampled_from(SESSIONS)
owners = st.sampled_from(("w1", "w2", "dead"))
keys = st.sampled_from(("k1", "k2", "k3"))
bodies = st.none() | st.binary(max_size=20)


@dataclass
class ModelTurn:
    """An unfinished turn in the model."""

    turn_id: str
    journal: list[JournalEntry] = field(default_factory=list)
    lease: Lease | None = None
    cancelled: bool = False
    wait: Wait | None = None
    answer: object = None


@dataclass
class ModelSession:
    """A session in the model."""

    turn: ModelTurn | None = None
    depth: int = 0
    ended: int = 0
    state: bytes | None = None
    inputs: list[tuple[str, str]] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    old_leases: list[Lease] = field(default_factory=list)

    def injected(self) -> list[str]:
        return [input_id for input_id, kind in self.inputs if kind == "inject"]


def any_held(life: TurnLife) -> bool:
    """Return whether a process has the lease of any turn."""
    return bool(life.held())


class TurnLife(RuleBasedStateMachine):
    """Random turns on two sessions; a subclass chooses the store."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.make_store()
        self.model = {session_id: ModelSession() for session_id in SESSIONS}
        self.now = NOW
        self.count = 0
        for session_id in SESSIONS:
            self.run(self.store.open_session(a_head(session_id)))

    def make_store(self) -> SessionStore:
        raise NotImplementedError

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def attempt(self, call: Coroutine[Any, Any, T]) -> T | StandfastError:
        """Return the result of a call, or the error that it raised."""
        try:
            return self.run(call)
        except StandfastError as error:
            return error

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    def number(self) -> int:
        self.count += 1
        return self.count

    def free(self, turn: ModelTurn) -> bool:
        """Return whether no live process has the lease."""
        return turn.lease is None or turn.lease.until_ms <= self.now or is_dead(turn.lease.owner)

    def held(self) -> list[str]:
        """Return the sessions whose turn has a lease, even an expired one."""
        found = self.model.items()
        return [name for name, it in found if it.turn is not None and it.turn.lease is not None]

    def draw_held(self, data: st.DataObject) -> tuple[ModelSession, ModelTurn, Lease]:
        session = self.model[data.draw(st.sampled_from(self.held()))]
        assert session.turn is not None
        assert session.turn.lease is not None
        return session, session.turn, session.turn.lease

    def leased(self, session_id: str, lease: Lease) -> None:
        session = self.model[session_id]
        assert lease.fence > max(session.fences, default=0)
        session.fences.append(lease.fence)
        assert session.turn is not None
        if session.turn.lease is not None:
            session.old_leases.append(session.turn.lease)
        session.turn.lease = lease

    # Turns

    @rule(session_id=sessions, owner=owners)
    def begin(self, session_id: str, owner: str) -> None:
        session, turn_id = self.model[session_id], f"t{self.number()}"
        result = self.attempt(self.store.begin(new_turn(turn_id, session_id), claimant(owner, self.now)))
        if session.turn is None:
            assert isinstance(result, Begun)
            session.turn = ModelTurn(turn_id)
            session.inputs = [item for item in session.inputs if item[1] != "inject"]
            self.leased(session_id, result.lease)
        elif self.free(session.turn):
            assert isinstance(result, TurnUnfinished)
            assert result.waits == (session.turn.wait is not None)
        else:
            assert isinstance(result, SessionBusy)

    @initialize(owner=owners)
    def begin_on_both(self, owner: str) -> None:
        for session_id in SESSIONS:
            self.begin(session_id, owner)

    @precondition(lambda self: any(session.turn for session in self.model.values()))
    @rule(data=st.data(), owner=owners)
    def take_over(self, data: st.DataObject, owner: str) -> None:
        session_id = data.draw(st.sampled_from([name for name, it in self.model.items() if it.turn]))
        turn = self.model[session_id].turn
        assert turn is not None
        result = self.attempt(self.store.take_over(turn.turn_id, claimant(owner, self.now)))
        if not self.free(turn):
            assert isinstance(result, SessionBusy)
        else:
            assert not isinstance(result, StandfastError)
            assert list(result.journal) == turn.journal
            assert result.record.cancel_requested == turn.cancelled
            turn.wait, turn.answer = None, None
            self.leased(session_id, result.lease)

    @precondition(any_held)
    @rule(data=st.data(), key=keys, body=st.binary(max_size=20))
    def save(self, data: st.DataObject, key: str, body: bytes) -> None:
        _, turn, lease = self.draw_held(data)
        entry = an_entry(key, body)
        result = self.attempt(self.store.save(lease, a_save(turn.turn_id, entry)))
        if any(known.key == key and known.kind == "input" for known in turn.journal):
            assert isinstance(result, StaleState)
        else:
            assert not isinstance(result, StandfastError)
            assert result.cancel_requested == turn.cancelled
            turn.journal.append(entry)

    @precondition(any_held)
    @rule(data=st.data(), key=keys, body=st.binary(max_size=20))
    def save_a_state(self, data: st.DataObject, key: str, body: bytes) -> None:
        _, turn, lease = self.draw_held(data)
        entry = a_state_entry(key, body)
        self.run(self.store.save(lease, a_save(turn.turn_id, entry)))
        turn.journal = [it for it in turn.journal if (it.kind, it.key) != ("state", key)]
        turn.journal.append(entry)

    @rule(session_id=sessions, body=st.binary(max_size=20))
    def set_state(self, session_id: str, body: bytes) -> None:
        session = self.model[session_id]
        result = self.attempt(self.store.set_state(session_id, a_state(body), (), self.now))
        if session.turn is not None:
            assert isinstance(result, SessionBusy)
        else:
            assert isinstance(result, SessionHead)
            session.state = body

    @precondition(any_held)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        session, turn, lease = self.draw_held(data)
        make = a_checkpoint(f"checkpoint.{self.number()}")
        saved = self.run(self.store.save(lease, Save(turn_id=turn.turn_id, entries=(), make_checkpoint=make)))
        assert saved.checkpoint is not None
        assert saved.checkpoint.body == _names(session.injected())
        turn.journal.append(saved.checkpoint)
        session.inputs = [item for item in session.inputs if item[1] != "inject"]

    @precondition(any_held)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        session, turn, lease = self.draw_held(data)
        token = f"cpl_{turn.turn_id}.{self.number()}"
        wait = Wait(wait_id=token, kind="completion", call_id=1, due_at=self.now + 5_000)
        save = Save(turn_id=turn.turn_id, entries=(), waits=(wait,))
        self.run(self.store.park(lease, save, waiting(wait)))
        session.old_leases.append(lease)
        turn.lease, turn.wait = None, wait

    @precondition(any_held)
    @rule(data=st.data(), well=st.booleans(), state=bodies)
    def commit(self, data: st.DataObject, well: bool, state: bytes | None) -> None:
        self.end(*self.draw_held(data), well, state)

    @precondition(any_held)
    @rule(data=st.data(), well=st.booleans())
    def inject_just_before_the_end(self, data: st.DataObject, well: bool) -> None:
        session, turn, lease = self.draw_held(data)
        self.put_input(lease.session_id, "inject")
        self.end(session, turn, lease, well)

    def end(
        self, session: ModelSession, turn: ModelTurn, lease: Lease, well: bool, state: bytes | None = None
    ) -> None:
        commit = a_commit(
            turn.turn_id,
            None if well else stopped(),
            now_ms=self.now,
            state=None if state is None else a_state(state),
        )
        result = self.run(self.store.commit(lease, commit))
        if well and turn.cancelled:
            assert result == CommitRefused(reason="cancelled")
        elif well and session.injected():
            assert result == CommitRefused(reason="injected")
        else:
            assert isinstance(result, SessionHead)
            session.depth += 2
            session.ended += 1
            session.old_leases.append(lease)
            session.turn = None
            session.state = session.state if state is None else state
            session.inputs = [(input_id, "queue") for input_id, _ in session.inputs]

    @precondition(lambda self: any(session.old_leases for session in self.model.values()))
    @rule(data=st.data())
    def write_with_an_old_lease(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([it for it in self.model.values() if it.old_leases]))
        lease = data.draw(st.sampled_from(session.old_leases))
        turn_id = session.turn.turn_id if session.turn is not None else "nothing"
        for write in (
            self.store.save(lease, a_save(turn_id, an_entry("late"))),
            self.store.commit(lease, a_commit(turn_id)),
        ):
            assert isinstance(self.attempt(write), LeaseLost)

    @rule(session_id=sessions)
    def renew(self, session_id: str) -> None:
        session = self.model[session_id]
        turn = session.turn
        leases = tuple(session.old_leases[-1:])
        lost = {session_id} if leases else set()
        if turn is not None and turn.lease is not None:
            renewed = self.run(self.store.renew((turn.lease,), self.now, LEASE_MS))
            assert renewed.lost == set()
            assert renewed.cancelled == ({turn.turn_id} if turn.cancelled else set())
            turn.lease = Lease(
                session_id=session_id,
                owner=turn.lease.owner,
                fence=turn.lease.fence,
                until_ms=self.now + LEASE_MS,
            )
        assert self.run(self.store.renew(leases, self.now, LEASE_MS)).lost == lost

    @rule(session_id=sessions)
    def cancel(self, session_id: str) -> None:
        turn = self.model[session_id].turn
        turn_id = "nothing" if turn is None else turn.turn_id
        assert self.run(self.store.cancel(turn_id)) is (turn is not None)
        if turn is not None:
            turn.cancelled = True

    # Input and waits

    @rule(session_id=sessions, kind=st.sampled_from(("inject", "queue")))
    def put_input(self, session_id: str, kind: str) -> None:
        item = an_input(f"i{self.number()}", kind, session_id=session_id)
        self.run(self.store.put_input(item))
        self.run(self.store.put_input(item))
        self.model[session_id].inputs.append((item.input_id, kind))

    @precondition(lambda self: any(session.inputs for session in self.model.values()))
    @rule(data=st.data())
    def withdraw_input(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([it for it in self.model.values() if it.inputs]))
        item = data.draw(st.sampled_from(session.inputs))
        assert self.run(self.store.withdraw_input(item[0])) is True
        assert self.run(self.store.withdraw_input(item[0])) is False
        session.inputs.remove(item)

    @precondition(lambda self: any(it.turn and it.turn.wait for it in self.model.values()))
    @rule(data=st.data(), value=st.integers())
    def complete(self, data: st.DataObject, value: int) -> None:
        turns = [it.turn for it in self.model.values() if it.turn is not None and it.turn.wait is not None]
        turn = data.draw(st.sampled_from(turns))
        assert turn.wait is not None
        result = self.attempt(self.store.complete(turn.wait.wait_id, Completed(value=value), self.now))
        if turn.answer is not None or self.now >= turn.wait.due_at:
            assert isinstance(result, TokenAlreadyUsed)
        else:
            assert not isinstance(result, StandfastError)
            turn.answer = Completed(value=value)

    @rule(session_id=sessions)
    def look_at_waits(self, session_id: str) -> None:
        if (turn := self.model[session_id].turn) is None or turn.wait is None:
            return
        if turn.answer is None and self.now >= turn.wait.due_at:
            turn.answer = Expired()
        ended = dict(self.run(self.store.ended_waits(turn.turn_id, self.now)))
        assert ended.get(turn.wait.wait_id) == turn.answer

    @rule(ms=st.sampled_from((1_000, 5_000, LEASE_MS)))
    def let_time_pass(self, ms: int) -> None:
        self.now += ms

    # What must hold at any time

    @invariant()
    def sessions_match_the_model(self) -> None:
        for session_id, session in self.model.items():
            head = self.run(self.store.head(session_id))
            assert head is not None
            assert (head.depth, head.revision) == (session.depth, session.ended)
            state = None if head.state is None else self.run(self.store.state(head.state))
            assert state == session.state
            waiting_inputs = self.run(self.store.inputs(session_id))
            assert [(item.input_id, item.kind) for item in waiting_inputs] == session.inputs

    @invariant()
    def turns_match_the_model(self) -> None:
        for session_id, session in self.model.items():
            records = self.run(self.store.turns(session_id))
            unfinished = [it for it in records if it.state is not TurnState.ENDED]
            assert len(records) - len(unfinished) == session.ended
            assert [it.turn_id for it in unfinished] == ([session.turn.turn_id] if session.turn else [])
            if session.turn is not None:
                (record,) = unfinished
                summary = record.summary
                assert (record.state is TurnState.WAITING) == (session.turn.wait is not None)
                assert isinstance(None if summary is None else summary.outcome, Waiting) == bool(
                    session.turn.wait
                )

    @invariant()
    def resumable_turns_are_found(self) -> None:
        found = {it.turn_id for it in self.run(self.store.unfinished(self.now))}
        expected = set()
        for session in self.model.values():
            if (turn := session.turn) is None:
                continue
            if turn.wait is None:
                could = self.free(turn)
            else:
                could = turn.cancelled or turn.answer is not None or self.now >= turn.wait.due_at
            expected |= {turn.turn_id} if could else set()
        assert found == expected


def _names(input_ids: list[str]) -> bytes:
    return b"[" + b",".join(f'"{input_id}"'.encode() for input_id in input_ids) + b"]"


class MemoryTurnLife(TurnLife):
    def make_store(self) -> SessionStore:
        return MemorySessionStore(owner_is_dead=is_dead)


class SqliteTurnLife(TurnLife):
    def make_store(self) -> SessionStore:
        self.directory = tempfile.TemporaryDirectory()
        return SqliteSessionStore(Path(self.directory.name) / "standfast.db", owner_is_dead=is_dead)

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()

    @rule()
    def reopen(self) -> None:
        """Reopen the file, as another process would."""
        self.run(self.store.close())
        path = Path(self.directory.name) / "standfast.db"
        self.store = SqliteSessionStore(path, owner_is_dead=is_dead)


class PostgresTurnLife(TurnLife):
    server: ClassVar[PostgresServer]

    def make_store(self) -> SessionStore:
        self.url = self.server.new_url()
        return PostgresSessionStore(self.url, owner_is_dead=is_dead, database_clock=False)

    @rule()
    def reopen(self) -> None:
        """Reconnect, as another process would."""
        self.run(self.store.close())
        self.store = PostgresSessionStore(self.url, owner_is_dead=is_dead, database_clock=False)


@pytest.fixture(scope="class")
def server(postgres: PostgresServer) -> None:
    """Pass the server to the state machine, which hypothesis instantiates."""
    PostgresTurnLife.server = postgres


_SETTINGS = settings(
    max_examples=3 * settings.default.max_examples // 10,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
class TestMemoryTurnLife(MemoryTurnLife.TestCase):  # type: ignore[valid-type, misc]
    """Ours: the memory store must satisfy the same model as the others."""

    settings = settings(_SETTINGS, max_examples=settings.default.max_examples)


@pytest.mark.slow
class TestSqliteTurnLife(SqliteTurnLife.TestCase):  # type: ignore[valid-type, misc]
    """Ours: hypothesis state machines for the journal and the stores."""

    settings = _SETTINGS


@pytest.mark.slow
@pytest.mark.usefixtures("server")
class TestPostgresTurnLife(PostgresTurnLife.TestCase):  # type: ignore[valid-type, misc]
    """Ours: PostgreSQL must satisfy the same model as SQLite."""

    settings = settings(_SETTINGS, max_examples=settings.default.max_examples // 6)
