"""Paths through segments, with only a dict to look them up in."""

from __future__ import annotations

import pytest

from standfast.errors import InvalidArgument
from standfast.graph.history import (
    Lookup,
    calls_at,
    cut,
    frame_at,
    frame_path,
    holds,
    model_calls_at,
    nodes_of,
    opens_frame,
    path,
)
from standfast.model.frame import INITIAL, FrameSwitch
from standfast.model.message import AssistantMessage, UserMessage
from standfast.model.session import Entry, FrameOpened, Segment

USER = Entry(at_ms=1, payload=UserMessage(content="hi"))
REPLY = Entry(at_ms=2, payload=AssistantMessage(text="yes"))


def frame(frame_id: str) -> Entry:
    return Entry(at_ms=3, payload=FrameOpened(switch=FrameSwitch(frame_id=frame_id)))


def segment(
    segment_id: str,
    parent: str | None,
    *entries: Entry,
    depth: int = 0,
    in_frame: str = INITIAL,
    model_calls: int = 0,
) -> Segment:
    return Segment(
        segment_id=segment_id,
        session_id="s",
        parent=parent,
        caused_by=segment_id,
        depth=depth,
        frame=in_frame,
        entries=entries,
        opens_frame=opens_frame(entries),
        model_calls=model_calls,
    )


def lookup(*segments: Segment) -> Lookup:
    return {item.segment_id: item for item in segments}.get


A = segment("a", None, USER, REPLY, model_calls=1)
B = segment("b", "a.1", USER, frame("f"), REPLY, depth=2, in_frame="f", model_calls=2)
C = segment("c", "b.2", USER, REPLY, depth=5, in_frame="f", model_calls=3)
BESIDE = segment("d", "b.0", USER, depth=3, model_calls=1)
ALL = lookup(A, B, C, BESIDE)


def ids(segments: list[Segment]) -> list[str]:
    return [node.id for node in nodes_of(segments)]


def test_a_path_runs_from_the_root_to_the_leaf() -> None:
    """Seed: the active path runs from the leaf to the root."""
    assert path(ALL, "c.1") == [A, B, C]


def test_a_path_is_cut_after_the_leaf_and_where_a_branch_begins() -> None:
    """Ours: a branch may begin in the middle of a segment."""
    assert ids(path(ALL, "c.0")) == ["a.0", "a.1", "b.0", "b.1", "b.2", "c.0"]
    assert ids(path(ALL, "d.0")) == ["a.0", "a.1", "b.0", "d.0"]


@pytest.mark.parametrize(
    ("depth", "found"), [(0, "abc"), (1, "abc"), (2, "bc"), (4, "bc"), (5, "c"), (6, "c"), (7, "")]
)
def test_a_path_can_omit_the_segments_before_a_depth(depth: int, found: str) -> None:
    """Ours: a reader that has the first nodes requests only the rest."""
    assert "".join(item.segment_id for item in path(ALL, "c.1", after_depth=depth)) == found


def test_a_path_begins_after_a_pruned_parent() -> None:
    """Ours: retention may drop old segments, and the rest stays readable."""
    assert path(lookup(B, C), "c.1") == [B, C]
    assert path(lookup(), "c.1") == []


def test_an_invalid_node_id_is_refused() -> None:
    """Ours: node ids come from callers and must be validated."""
    for wrong in ("a", "a.", ".1", "a.x", "a.-1", "a.²"):
        with pytest.raises(InvalidArgument, match="not a node id"):
            path(ALL, wrong)


def test_a_cut_segment_looks_as_if_the_rest_had_never_been_added() -> None:
    """Bug: a segment that was cut before it opened a frame still claimed to end in that frame."""
    found = lookup(segment("a", None, USER, REPLY, in_frame="before"), B)
    assert cut(found, B, 2) is B
    assert cut(found, B, 1) == segment("b", "a.1", USER, frame("f"), depth=2, in_frame="f", model_calls=1)
    assert cut(found, B, 0) == segment("b", "a.1", USER, depth=2, in_frame="before", model_calls=1)


def test_the_cut_segments_of_a_path_have_the_right_frames() -> None:
    """Bug: `path` had the same fault, with the frame looked up in the segments before."""
    twice = segment("e", "c.1", USER, frame("g"), USER, depth=7, in_frame="g", model_calls=3)
    plain = segment("p", "e.2", USER, USER, depth=10, in_frame="g", model_calls=3)
    first = segment("r", None, USER, frame("h"), in_frame="h")
    found = lookup(A, B, C, twice, plain, first)
    assert [item.frame for item in path(found, "e.0")] == [INITIAL, "f", "f", "f"]
    assert [item.frame for item in path(found, "p.0")] == [INITIAL, "f", "f", "g", "g"]
    assert [item.frame for item in path(found, "r.0")] == [INITIAL]


# Frames


def test_a_frame_begins_with_the_segment_that_opens_it() -> None:
    """Seed: the model sees the current frame; everything older stays readable."""
    assert frame_path(ALL, "c.1") == [B, C]
    assert frame_path(ALL, "b.1") == [cut(ALL, B, 1)]


def test_the_initial_frame_reaches_back_to_the_root() -> None:
    """Ours: a frame opened after a branch began does not belong to the branch."""
    assert ids(frame_path(ALL, "d.0")) == ["a.0", "a.1", "b.0", "d.0"]
    assert ids(frame_path(ALL, "b.0")) == ["a.0", "a.1", "b.0"]


@pytest.mark.parametrize(
    ("known", "found"),
    [("c.1", ""), ("b.2", "c"), ("a.1", "bc"), ("c.0", "bc"), ("b.1", "bc"), ("d.0", "bc"), ("x.9", "bc")],
)
def test_a_reader_that_knows_a_node_gets_the_segments_after_it(known: str, found: str) -> None:
    """Ours: continuing a session that was read before reads only the new nodes, or all if unsure."""
    assert "".join(item.segment_id for item in frame_path(ALL, "c.1", known=known)) == found


def test_the_frame_of_a_node_is_found() -> None:
    """Ours: this covers nodes before and after a `FrameOpened`, in its segment and in others."""
    found = {node: frame_at(ALL, node) for node in ("a.0", "b.0", "b.1", "b.2", "c.0", "d.0")}
    assert found == {"a.0": INITIAL, "b.0": INITIAL, "b.1": "f", "b.2": "f", "c.0": "f", "d.0": INITIAL}


def test_a_node_before_its_segments_frame_change_has_the_parents_frame() -> None:
    """Ours: this covers two frames opened by one segment, and a segment whose parents were pruned."""
    twice = segment("e", "c.1", USER, frame("g"), frame("h"), in_frame="h")
    assert [frame_at(lookup(C, twice), f"e.{place}") for place in range(3)] == ["f", "g", "h"]
    assert frame_at(lookup(twice), "e.0") == INITIAL


def test_nodes_have_their_parents_and_frames() -> None:
    """Seed: a node has an id, a parent, a frame, a cause and a time."""
    nodes = nodes_of(path(ALL, "c.0"))
    assert [node.parent for node in nodes] == [None, *[node.id for node in nodes[:-1]]]
    assert [node.frame for node in nodes] == [INITIAL, INITIAL, INITIAL, "f", "f", "f"]
    assert (nodes[-1].caused_by, nodes[-1].at_ms, nodes[-1].payload) == ("c", 1, USER.payload)


def test_nodes_of_the_rest_of_a_path_have_the_right_frames() -> None:
    """Bug: nodes after a depth counted as nodes of the initial frame unless the caller passed the frame."""
    assert [node.frame for node in nodes_of(path(ALL, "c.1", after_depth=5))] == ["f", "f"]
    assert [node.frame for node in nodes_of([B], "e")] == ["e", "f", "f"]


# Membership


@pytest.mark.parametrize(
    ("leaf", "node", "found"),
    [
        ("c.1", "c.1", True),
        ("c.1", "a.0", True),
        ("c.0", "c.1", False),
        ("d.0", "b.0", True),
        ("d.0", "b.1", False),
        ("c.1", "d.0", False),
        ("c.1", "nowhere.0", False),
        (None, "a.0", False),
    ],
)
def test_a_path_contains_the_nodes_up_to_its_leaf(leaf: str | None, node: str, found: bool) -> None:
    """Seed: an ancestor is a node on the active path."""
    assert holds(ALL, leaf, node) is found


def test_model_calls_are_counted_up_to_a_node() -> None:
    """Ours: a rewind also restores the number of the next model call."""
    assert [calls_at(ALL, node) for node in ("a.0", "a.1", "b.0", "b.2", "c.0", "c.1")] == [0, 1, 1, 2, 2, 3]


def test_appended_replies_never_lower_the_call_count_below_the_parents() -> None:
    """Bug: rewinding into replies that the host had appended made the number of calls negative."""
    imported = segment("i", "c.1", USER, REPLY, REPLY, REPLY, REPLY, model_calls=3)
    on_top = segment("j", "i.1", USER, REPLY, REPLY, REPLY, REPLY, REPLY, model_calls=4)
    found = lookup(A, B, C, imported, on_top)
    assert model_calls_at(imported, 0) == 0
    assert [calls_at(found, f"i.{place}") for place in range(5)] == [3] * 5
    assert [calls_at(found, f"j.{place}") for place in range(6)] == [3, 3, 3, 3, 3, 4]
    assert calls_at(lookup(imported), "i.0") == 0
