"""The graph, compared with a naive one that keeps every parent and copies every path."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.graph.shared_history import Position, SharedHistory

from standfast.errors import NodeNotFound, StaleBranch
from standfast.graph.history import (
    ancestry,
    answered,
    calls_at,
    frame_at,
    frame_path,
    holds,
    messages_of,
    nodes_of,
    path,
)
from standfast.model.frame import INITIAL, FrameSwitch
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.model.session import Entry, FrameOpened, Payload, PluginNode

PAYLOADS: st.SearchStrategy[Payload] = st.one_of(
    st.builds(UserMessage, content=st.sampled_from("ab")),
    st.just(AssistantMessage(text="yes")),
    st.just(AssistantMessage(tool_calls=(ToolCall(call_id=1, name="f"), ToolCall(call_id=2, name="g")))),
    st.builds(ToolMessage, call_id=st.integers(1, 2), name=st.just("f")),
    st.just(PluginNode(plugin_id="p", kind="k")),
    st.builds(FrameOpened, switch=st.builds(FrameSwitch, frame_id=st.sampled_from("fgh"))),
)
ENTRIES = st.lists(st.builds(Entry, at_ms=st.integers(0, 9), payload=PAYLOADS), max_size=4)


@dataclass(frozen=True)
class NaiveNode:
    """A node that stores everything about itself."""

    id: str
    parent: str | None
    owner: str
    entry: Entry
    frame: str
    calls: int


@dataclass
class NaiveSession:
    """A session with a copy of its whole path."""

    path: list[NaiveNode] = field(default_factory=list)
    calls: int = 0
    revision: int = 0

    @property
    def leaf(self) -> str | None:
        return self.path[-1].id if self.path else None

    def position(self) -> Position:
        frame = self.path[-1].frame if self.path else INITIAL
        return self.leaf, len(self.path), frame, self.calls, self.revision


def grown(
    session: NaiveSession, owner: str, segment_id: str, entries: list[Entry], calls: int
) -> list[NaiveNode]:
    """Return the nodes that *entries* become, each with its count of calls."""
    nodes: list[NaiveNode] = []
    frame = session.path[-1].frame if session.path else INITIAL
    parent = session.path[-1].id if session.path else None
    base = session.path[-1].calls if session.path else 0
    for index, entry in enumerate(entries):
        if isinstance(entry.payload, FrameOpened):
            frame = entry.payload.switch.frame_id
        later = sum(isinstance(it.payload, AssistantMessage) for it in entries[index + 1 :])
        count = max(base, session.calls + calls - later)
        nodes.append(NaiveNode(f"{segment_id}.{index}", parent, owner, entry, frame, count))
        parent = nodes[-1].id
    return nodes


class GraphMachine(RuleBasedStateMachine):
    """A state machine that takes every step in both graphs, which must then agree."""

    @initialize()
    def begin(self) -> None:
        self.graph = SharedHistory("s0")
        self.sessions: dict[str, NaiveSession] = {"s0": NaiveSession()}
        self.nodes: dict[str, NaiveNode] = {}
        self.count = 0

    def session(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.sessions)))

    def node(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.nodes)))

    def reaches(self, name: str, node: str) -> bool:
        """Return whether the session can reach the node."""
        return self.nodes[node].owner == name or self.nodes[node] in self.sessions[name].path

    def path_to(self, node: str) -> list[NaiveNode]:
        found: list[NaiveNode] = []
        step: str | None = node
        while step is not None:
            found.insert(0, self.nodes[step])
            step = self.nodes[step].parent
        return found

    @rule(data=st.data(), entries=ENTRIES, extra=st.integers(-1, 2))
    def append(self, data: st.DataObject, entries: list[Entry], extra: int) -> None:
        """Append *entries* with `extra` more model calls than replies; if -1, the host appends them."""
        name = self.session(data)
        session = self.sessions[name]
        replies = sum(isinstance(entry.payload, AssistantMessage) for entry in entries)
        calls = 0 if extra < 0 else replies + extra
        self.count += 1
        requires = data.draw(st.sampled_from([None, *[node.id for node in session.path]]))
        self.graph.append(name, f"t{self.count}", entries, requires=requires, model_calls=calls)
        new = grown(session, name, f"t{self.count}", entries, calls)
        self.nodes |= {node.id: node for node in new}
        revision = session.revision + (1 if new else 0)
        self.sessions[name] = NaiveSession([*session.path, *new], session.calls + calls, revision)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), entries=ENTRIES)
    def append_to_a_stale_branch(self, data: st.DataObject, entries: list[Entry]) -> None:
        name, node = self.session(data), self.node(data)
        if self.nodes[node] not in self.sessions[name].path:
            with pytest.raises(StaleBranch) as raised:
                self.graph.append(name, "stale", entries, requires=node)
            assert raised.value.current_leaf_node_id == self.sessions[name].leaf

    @rule(data=st.data())
    def fork_at_the_leaf(self, data: st.DataObject) -> None:
        name = self.session(data)
        new = f"s{len(self.sessions)}"
        self.graph.fork(name, new)
        self.sessions[new] = replace(self.sessions[name], path=list(self.sessions[name].path), revision=0)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def fork_at_a_node(self, data: st.DataObject) -> None:
        name, node = self.session(data), self.node(data)
        new = f"s{len(self.sessions)}"
        if not self.reaches(name, node):
            with pytest.raises(NodeNotFound):
                self.graph.fork(name, new, node)
            return
        self.graph.fork(name, new, node)
        at_leaf = node == self.sessions[name].leaf
        calls = self.sessions[name].calls if at_leaf else self.nodes[node].calls
        self.sessions[new] = NaiveSession(self.path_to(node), calls)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        name, node = self.session(data), self.node(data)
        if not self.reaches(name, node):
            with pytest.raises(NodeNotFound):
                self.graph.rewind(name, node)
            return
        self.graph.rewind(name, node)
        revision = self.sessions[name].revision + 1
        self.sessions[name] = NaiveSession(self.path_to(node), self.nodes[node].calls, revision)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def check_a_node(self, data: st.DataObject) -> None:
        name, node = self.session(data), self.node(data)
        lookup, session = self.graph.segments.get, self.sessions[name]
        assert frame_at(lookup, node) == self.nodes[node].frame
        assert calls_at(lookup, node) == self.nodes[node].calls
        assert holds(lookup, session.leaf, node) is (self.nodes[node] in session.path)
        self.check_the_rest_of_the_frame(data, node)

    def check_the_rest_of_the_frame(self, data: st.DataObject, leaf: str) -> None:
        """Check that a reader that has part of a frame gets the rest of it, or all."""
        known = self.node(data)
        lookup = self.graph.segments.get
        found = frame_path(lookup, leaf, known=known)
        nodes = [node.id for node in nodes_of(found)]
        if known == leaf:
            assert nodes == []
        elif found[0].parent == known:
            whole = [node.id for node in self.path_to(leaf)]
            assert nodes == whole[whole.index(known) + 1 :]
        else:
            assert found == frame_path(lookup, leaf)

    @invariant()
    def positions_match(self) -> None:
        for name, session in self.sessions.items():
            assert self.graph.position(name) == session.position()

    @invariant()
    def paths_are_the_same(self) -> None:
        for name, session in self.sessions.items():
            nodes = nodes_of(self.graph.path(name))
            assert [(node.id, node.parent, node.frame, node.payload) for node in nodes] == [
                (node.id, node.parent, node.frame, node.entry.payload) for node in session.path
            ]

    @invariant()
    def the_rest_of_a_path_is_its_end(self) -> None:
        for session in self.sessions.values():
            if session.path:
                after = len(session.path) // 2
                found = nodes_of(path(self.graph.segments.get, session.path[-1].id, after_depth=after))
                assert [node.id for node in found][-(len(session.path) - after) :] == [
                    node.id for node in session.path[after:]
                ]

    @invariant()
    def the_model_sees_the_current_frame(self) -> None:
        for session in self.sessions.values():
            if session.path:
                found = messages_of(frame_path(self.graph.segments.get, session.path[-1].id))
                assert found == answered(current_frame(session.path))

    @invariant()
    def reached_segments_are_on_a_path(self) -> None:
        on_paths = {node.id.split(".")[0] for session in self.sessions.values() for node in session.path}
        leaves = (head.leaf for head in self.graph.heads.values())
        assert ancestry(self.graph.segments.get, leaves) == on_paths


def current_frame(nodes: list[NaiveNode]) -> list[Message]:
    """Return the messages since the last frame was opened."""
    found: list[Message] = []
    for node in nodes:
        payload = node.entry.payload
        if isinstance(payload, FrameOpened):
            found = list(payload.switch.seed)
        elif isinstance(payload, (UserMessage, AssistantMessage, ToolMessage)):
            found.append(payload)
    return found


TestGraph = GraphMachine.TestCase
TestGraph.settings = settings(
    max_examples=2 * settings.default.max_examples // 5, stateful_step_count=25, deadline=None
)
