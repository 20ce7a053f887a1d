"""States in branching histories compared with a model: random turns, forks, rewinds, prunes; every store.

The model keeps each line of states as a tuple, so that nothing in it is ever shared, linked or collected.
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
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from standfast.model.session import SessionHead
from standfast.ports.session_store import PruneRequest, SessionStore
from standfast.store.memory_sessions import MemorySessionStore
from standfast.store.postgres.sessions import PostgresSessionStore
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.session_values import NOW, a_head, a_state, opened, replied, said, take_turn

T = TypeVar("T")
Line = tuple[tuple[int, str], ...]
"""The states that led here, each with the depth of its node."""

NAMES = ("s1", "s2", "s3", "s4")
names = st.sampled_from(NAMES)


@dataclass
class ModelSession:
    """A session: its line of states, the last state it wrote at each node, and the lines of its segments."""

    line: Line = ()
    own: dict[str | None, str] = field(default_factory=dict)
    ends: dict[str, Line] = field(default_factory=dict)


def at_depth(line: Line, depth: int) -> Line:
    return tuple(step for step in line if step[0] <= depth)


def last_of(line: Line) -> str | None:
    return line[-1][1] if line else None


class StateLife(RuleBasedStateMachine):
    """Random histories of a few sessions; a subclass chooses the store."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.make_store()
        self.model: dict[str, ModelSession] = {}
        self.count = 0

    def make_store(self) -> SessionStore:
        raise NotImplementedError

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def number(self) -> int:
        self.count += 1
        return self.count

    def draw(self, data: st.DataObject) -> tuple[str, ModelSession]:
        if not self.model:
            self.run(self.store.open_session(a_head("s1")))
            self.model["s1"] = ModelSession()
        name = data.draw(st.sampled_from(sorted(self.model)))
        return name, self.model[name]

    def head(self, session_id: str) -> SessionHead:
        head = self.run(self.store.head(session_id))
        assert head is not None
        return head

    def write(self, session: ModelSession, head: SessionHead, body: str) -> None:
        """Write a state at the session's leaf."""
        session.line = (*at_depth(session.line, head.depth), (head.depth, body))
        session.own[head.leaf] = body

    def line_at(self, name: str, node: str, depth: int) -> Line:
        """Return a session's line of states at a node."""
        session, segment_id = self.model[name], node.rpartition(".")[0]
        line = at_depth(session.ends.get(segment_id, session.line), depth)
        if node in session.own:
            below = at_depth(line, depth - 1)
            return (*below, (depth, session.own[node]))
        return line

    def nodes(self, name: str) -> dict[str, int]:
        """Return the nodes that a session can reach, with their depths."""
        found: dict[str, int] = {}
        leaf = self.head(name).leaf
        reached = list(self.run(self.store.path(leaf))) if leaf is not None else []
        for segment_id in self.model[name].ends:
            reached += self.run(self.store.path(f"{segment_id}.1"))[-1:]
        for segment in reached:
            found |= {
                f"{segment.segment_id}.{place}": segment.depth + place + 1
                for place in range(len(segment.entries))
            }
        return found

    # What happens

    @rule(data=st.data(), changes=st.booleans(), opens=st.booleans())
    def take_turn(self, data: st.DataObject, changes: bool, opens: bool) -> None:
        name, session = self.draw(data)
        number = self.number()
        entries = (opened(f"f{number}") if opens else said(), replied())
        state = a_state(f"turn {number}") if changes else None
        head = self.run(take_turn(self.store, f"t{number}", name, entries, state=state))
        if changes:
            self.write(session, head, f"turn {number}")
        session.ends[f"t{number}"] = session.line

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        name, session = self.draw(data)
        segment_id = f"n{self.number()}"
        self.run(self.store.append(name, segment_id, (said(), replied()), None, NOW))
        session.ends[segment_id] = session.line

    @rule(data=st.data())
    def set_state(self, data: st.DataObject) -> None:
        name, session = self.draw(data)
        body = f"set {self.number()}"
        self.write(session, self.run(self.store.set_state(name, a_state(body), (), NOW)), body)

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        name, session = self.draw(data)
        if nodes := self.nodes(name):
            node = data.draw(st.sampled_from(sorted(nodes)))
            session.line = self.line_at(name, node, nodes[node])
            self.run(self.store.rewind(name, node, NOW))

    @rule(data=st.data(), new=names, at_leaf=st.booleans())
    def fork(self, data: st.DataObject, new: str, at_leaf: bool) -> None:
        name, session = self.draw(data)
        if new in self.model:
            return
        nodes = self.nodes(name)
        node, line = None, session.line
        if nodes and not at_leaf:
            node = data.draw(st.sampled_from(sorted(nodes)))
            here = node == self.head(name).leaf
            line = session.line if here else self.line_at(name, node, nodes[node])
        self.run(self.store.fork(name, new, node, NOW))
        self.model[new] = ModelSession(line=line)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name, _ = self.draw(data)
        self.run(self.store.delete_session(name))
        del self.model[name]
        self.look_everywhere()

    @rule(frames=st.booleans(), branches=st.booleans(), only=st.none() | names)
    def prune(self, frames: bool, branches: bool, only: str | None) -> None:
        self.run(self.store.prune(PruneRequest(frames=frames, branches=branches, session_id=only)))
        self.look_everywhere()

    def look_everywhere(self) -> None:
        """Fork each session at each of its nodes, and check that the fork has the state that held there."""
        for name in self.model:
            leaf = self.head(name).leaf
            for node, depth in self.nodes(name).items():
                if node != leaf:
                    head = self.run(self.store.fork(name, "probe", node, NOW))
                    assert self.body_of(head) == last_of(self.line_at(name, node, depth))
                    self.run(self.store.delete_session("probe"))

    def body_of(self, head: SessionHead) -> str | None:
        """Return the state that a head names, which must exist."""
        if head.state is None:
            return None
        body = self.run(self.store.state(head.state))
        assert body is not None
        return body.decode()

    # What must hold at any time

    @invariant()
    def sessions_match_the_model(self) -> None:
        for name, session in self.model.items():
            assert self.body_of(self.head(name)) == last_of(session.line)


class MemoryStateLife(StateLife):
    def make_store(self) -> SessionStore:
        return MemorySessionStore()


class SqliteStateLife(StateLife):
    def make_store(self) -> SessionStore:
        self.directory = tempfile.TemporaryDirectory()
        return SqliteSessionStore(Path(self.directory.name) / "standfast.db")

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


class PostgresStateLife(StateLife):
    server: ClassVar[PostgresServer]

    def make_store(self) -> SessionStore:
        return PostgresSessionStore(self.server.new_url(), database_clock=False)


@pytest.fixture(scope="class")
def server(postgres: PostgresServer) -> None:
    """Pass the server to the state machine, which hypothesis instantiates."""
    PostgresStateLife.server = postgres


_SETTINGS = settings(
    max_examples=2 * settings.default.max_examples // 5,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
class TestMemoryStateLife(MemoryStateLife.TestCase):  # type: ignore[valid-type, misc]
    """Ours: no state that is still needed is collected, and no session gets another's state."""

    settings = settings(_SETTINGS, max_examples=2 * settings.default.max_examples)


@pytest.mark.slow
class TestSqliteStateLife(SqliteStateLife.TestCase):  # type: ignore[valid-type, misc]
    """Ours: hypothesis state machines for graph, journal and stores."""

    settings = _SETTINGS


@pytest.mark.slow
@pytest.mark.usefixtures("server")
class TestPostgresStateLife(PostgresStateLife.TestCase):  # type: ignore[valid-type, misc]
    """Ours: PostgreSQL must satisfy the same model as SQLite."""

    settings = settings(_SETTINGS, max_examples=settings.default.max_examples // 6)
