"""Reading traces back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from standfast.model.trace_record import TraceRecord, span_id_of
from standfast.trace import read_trace, span_trees
from standfast.trace.trace_reader import SpanTree


def span(kind: Any, name: str, span_id: str, parent_id: str = "", **fields: Any) -> TraceRecord:
    fields = {
        "at_ms": 20,
        "started_at_ms": 10,
        "duration_ms": 10,
        "session_id": "s",
        "turn_id": "t",
        **fields,
    }
    return TraceRecord(name=name, kind=kind, span_id=span_id, parent_id=parent_id, **fields)


TURN = span_id_of("t")


def drawn(tree: SpanTree) -> Any:
    return (
        (tree.record.name, [drawn(child) for child in tree.children]) if tree.children else tree.record.name
    )


def test_spans_are_placed_under_their_parents_in_order_of_start() -> None:
    """Ours: a file has them in the order in which they ended, children before parents."""
    records = [
        span("tool_call", "inner", "c", "b"),
        span("model_call", "late", "d", TURN, started_at_ms=15),
        span("cell", "code", "b", TURN, started_at_ms=11),
        span("turn", "clerk", TURN),
    ]
    assert [drawn(tree) for tree in span_trees(records)] == [("clerk", [("code", ["inner"]), "late"])]


def test_a_span_that_was_recorded_twice_counts_once() -> None:
    """Ours: another process may record it again; the later record counts."""
    records = [
        span("turn", "clerk", TURN),
        span("tool_call", "x", "a", TURN, status="cancelled"),
        span("tool_call", "x", "a", TURN, status="ok"),
    ]
    (tree,) = span_trees(records)
    assert [child.record.status for child in tree.children] == ["ok"]


def test_an_unfinished_turn_is_shown_with_what_is_known() -> None:
    """Ours: users read a trace because something does not finish."""
    records = [
        TraceRecord(at_ms=5, name="turn_began", session_id="s", turn_id="t", body={"agent": "clerk"}),
        span("model_call", "m", "a", TURN),
        span("wait", "approval", "w", "not-told-yet"),
    ]
    (tree,) = span_trees(records)
    assert (tree.record.name, tree.is_open, tree.started_ms, tree.ended_ms) == ("clerk", True, 5, 20)
    assert [child.record.name for child in tree.children] == ["turn_began", "m", "approval"]


def test_a_session_is_shown_with_the_turns_that_its_calls_started() -> None:
    """Ours: subagents are part of the tree, and can be shown alone."""
    child = span("turn", "helper", span_id_of("t2"), "call", session_id="child", turn_id="t2")
    other = span("turn", "stranger", span_id_of("t3"), session_id="other", turn_id="t3")
    records = [child, span("tool_call", "delegate", "call", TURN), span("turn", "clerk", TURN), other]
    assert [drawn(one) for one in span_trees(records, session_id="s")] == [
        ("clerk", [("delegate", ["helper"])])
    ]
    assert [drawn(one) for one in span_trees(records, session_id="child")] == ["helper"]
    assert [drawn(one) for one in span_trees(records, turn_id="t3")] == ["stranger"]
    assert span_trees(records, session_id="s", turn_id="t3") == []


def test_cyclic_spans_do_not_hang_the_reader() -> None:
    """Ours: a person or another program may have edited the file."""
    records = [span("hook", "a", "a", "b", turn_id=""), span("hook", "b", "b", "a", turn_id="")]
    assert [drawn(one) for one in span_trees(records)] == ["a", "b"]


def test_a_missing_trace_is_empty(tmp_path: Path) -> None:
    """Ours: a missing file is not an error here."""
    assert list(read_trace(tmp_path / "none.jsonl")) == []
