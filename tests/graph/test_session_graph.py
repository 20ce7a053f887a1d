"""Sessions over one shared history: append, fork, rewind."""

from __future__ import annotations

from typing import Any

import pytest
from tests.graph.shared_history import SharedHistory

from standfast.errors import InvalidArgument, NodeNotFound, StaleBranch
from standfast.graph.history import ancestry, nodes_of
from standfast.model.frame import INITIAL, FrameSwitch
from standfast.model.message import AssistantMessage, UserMessage
from standfast.model.session import Entry, FrameOpened, Segment

USER = Entry(at_ms=1, payload=UserMessage(content="hi"))
REPLY = Entry(at_ms=2, payload=AssistantMessage(text="yes"))
FRAME = Entry(at_ms=3, payload=FrameOpened(switch=FrameSwitch(frame_id="f")))
TURN = (USER, REPLY)


class CountedSegments(dict[str, Segment]):
    """Segments that count how often they are looked up."""

    lookups = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> Segment:
        self.lookups += 1
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        raise AssertionError("no method iterates over all segments")

    values = items = keys = __iter__


def graph_of(turns: int, *others: str) -> SharedHistory:
    """Return a graph with a session `s` that has this many turns `t0`, `t1` …, and empty *others*."""
    graph = SharedHistory("s", *others)
    for number in range(turns):
        graph.append("s", f"t{number}", TURN, model_calls=1)
    return graph


def ids(graph: SharedHistory, session_id: str = "s") -> list[str]:
    return [node.id for node in nodes_of(graph.path(session_id))]


def reached(graph: SharedHistory, *names: str) -> set[str]:
    """Return the segments on the active paths of these sessions, or of all."""
    return ancestry(graph.segments.get, (graph.heads[name].leaf for name in names or graph.heads))


# Append


def test_a_new_session_has_no_history() -> None:
    """Ours: a new session is in the initial frame."""
    graph = SharedHistory("s")
    assert graph.position("s") == (None, 0, INITIAL, 0, 0)
    assert graph.path("s") == []


def test_appending_moves_the_leaf_and_raises_the_revision_by_one() -> None:
    """Seed: the graph is append-only, with one leaf per session."""
    graph = graph_of(1)
    after = graph.append("s", "t1", (USER, FRAME, REPLY), model_calls=3)
    assert after == ("t1.2", 5, "f", 4, 2)
    assert ids(graph) == ["t0.0", "t0.1", "t1.0", "t1.1", "t1.2"]


def test_appending_nothing_keeps_the_leaf_but_counts_calls() -> None:
    """Ours: a turn without nodes may still have called the model."""
    graph = graph_of(1)
    before = graph.position("s")
    assert graph.append("s", "t1", ()) == before
    assert graph.append("s", "t1", (), model_calls=2) == (*before[:3], 3, before[4])
    assert ids(graph) == ["t0.0", "t0.1"]


@pytest.mark.parametrize("required", ["t0.0", "t0.1", "t1.1"])
def test_an_append_that_requires_an_ancestor_on_the_active_path_succeeds(required: str) -> None:
    """Seed: `requires_ancestor_node_id` makes an append conditional."""
    graph = graph_of(2)
    assert graph.append("s", "n", TURN, requires=required)[0] == "n.1"


@pytest.mark.parametrize("required", ["t1.0", "other.0", "t0.9"])
def test_an_append_that_requires_an_ancestor_off_the_active_path_is_a_stale_branch(
    required: str,
) -> None:
    """Seed: `StaleBranch{current_leaf_node_id}` writes nothing."""
    graph = graph_of(2)
    graph.rewind("s", "t0.1")
    before = graph.position("s")
    with pytest.raises(StaleBranch) as raised:
        graph.append("s", "n", TURN, requires=required)
    assert raised.value.current_leaf_node_id == "t0.1"
    assert graph.position("s") == before
    assert "n" not in graph.segments


def test_a_session_without_history_has_no_ancestors() -> None:
    """Ours: the error then names None as the leaf."""
    with pytest.raises(StaleBranch) as raised:
        graph_of(0).append("s", "n", TURN, requires="t0.0")
    assert raised.value.current_leaf_node_id is None


def test_a_segment_is_never_replaced() -> None:
    """Bug: appending under the id of another segment overwrote the history of every frame that shared it."""
    graph = graph_of(2, "other")
    with pytest.raises(InvalidArgument, match="'t0' already"):
        graph.append("other", "t0", TURN)
    assert ids(graph) == ["t0.0", "t0.1", "t1.0", "t1.1"]
    assert graph.position("other") == (None, 0, INITIAL, 0, 0)


# Fork


def test_a_fork_shares_the_history_and_is_independent() -> None:
    """Seed: fork creates a new session over shared history."""
    graph = graph_of(2)
    assert graph.fork("s", "f") == ("t1.1", 4, INITIAL, 2, 0)
    graph.append("f", "f0", TURN)
    graph.append("s", "t2", TURN)
    assert ids(graph, "f") == ["t0.0", "t0.1", "t1.0", "t1.1", "f0.0", "f0.1"]
    assert ids(graph) == ["t0.0", "t0.1", "t1.0", "t1.1", "t2.0", "t2.1"]


def test_a_fork_may_begin_at_any_node_of_the_session() -> None:
    """Ours: in the middle of a segment, before a frame, or on a branch that the session has left."""
    graph = graph_of(1)
    graph.append("s", "t1", (USER, FRAME, REPLY), model_calls=1)
    graph.rewind("s", "t0.0")
    assert graph.fork("s", "a", "t1.0") == ("t1.0", 3, INITIAL, 1, 0)
    assert graph.fork("s", "b", "t1.1") == ("t1.1", 4, "f", 1, 0)
    assert graph.fork("s", "c", "t1.2") == ("t1.2", 5, "f", 2, 0)
    assert graph.fork("s", "d", "t0.0") == ("t0.0", 1, INITIAL, 0, 0)


def test_a_session_without_history_can_be_forked() -> None:
    """Ours: forking an empty session is not an error."""
    assert graph_of(0).fork("s", "f") == (None, 0, INITIAL, 0, 0)


@pytest.mark.parametrize("at", ["t1.2", "t7.0", "other.0"])
def test_a_fork_at_a_node_that_the_session_cannot_reach_is_refused(at: str) -> None:
    """Ours: a session cannot reach the nodes of other sessions."""
    graph = graph_of(2, "o")
    graph.append("o", "other", TURN)
    with pytest.raises(NodeNotFound):
        graph.fork("s", "f", at)
    assert "f" not in graph.heads


@pytest.mark.parametrize("turns", [1, 10, 1000])
def test_a_fork_costs_the_same_at_any_length(turns: int) -> None:
    """Seed: forking is O(1); so is forking at an earlier node of the same session."""
    graph = graph_of(turns)
    graph.segments = counted = CountedSegments(graph.segments)
    graph.fork("s", "leaf")
    graph.fork("s", "here", f"t{turns - 1}.1")
    assert counted.lookups == 0
    graph.fork("s", "back", "t0.0")
    assert counted.lookups <= 3


def test_rewinding_and_appending_look_up_few_segments_at_any_length() -> None:
    """Ours: neither operation reads the whole history."""
    graph = graph_of(1000)
    graph.segments = counted = CountedSegments(graph.segments)
    graph.append("s", "n", TURN, requires="t999.1")
    graph.rewind("s", "t500.0")
    assert counted.lookups <= 6


# Rewind


def test_a_rewind_moves_the_leaf_back_and_forth() -> None:
    """Seed: rewind moves the leaf; branching never rewrites."""
    graph = graph_of(3)
    assert graph.rewind("s", "t1.0") == ("t1.0", 3, INITIAL, 1, 4)
    assert ids(graph) == ["t0.0", "t0.1", "t1.0"]
    assert graph.rewind("s", "t2.1") == ("t2.1", 6, INITIAL, 3, 5)
    assert len(graph.segments) == 3


def test_a_rewound_session_grows_a_branch() -> None:
    """Ours: nodes after the leaf leave the path but are kept."""
    graph = graph_of(2)
    graph.rewind("s", "t0.0")
    graph.append("s", "n", TURN, model_calls=1)
    assert ids(graph) == ["t0.0", "n.0", "n.1"]
    assert graph.position("s") == ("n.1", 3, INITIAL, 1, 4)


def test_a_fork_can_rewind_over_shared_history_but_not_to_foreign_nodes() -> None:
    """Ours: a session reaches its active path and the nodes that it appended itself."""
    graph = graph_of(2)
    graph.fork("s", "f", "t1.0")
    for beyond in ("t1.1", "t2.0"):
        with pytest.raises(NodeNotFound):
            graph.rewind("f", beyond)
    assert graph.rewind("f", "t0.1")[0] == "t0.1"
    with pytest.raises(NodeNotFound):
        graph.rewind("f", "t1.0")


# Reachability


def test_exactly_the_segments_of_all_active_paths_are_reached() -> None:
    """Ours: retention must keep exactly these segments."""
    graph = graph_of(3, "empty")
    graph.fork("s", "f", "t0.1")
    graph.append("f", "f0", TURN)
    graph.rewind("s", "t1.0")
    assert reached(graph) == {"t0", "t1", "f0"}
    assert reached(graph, "f", "empty") == {"t0", "f0"}
    del graph.segments["t0"]
    assert reached(graph) == {"t1", "f0"}
