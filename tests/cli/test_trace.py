"""`standfast trace`: the time spent in turns, by span."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Runtime
from standfast.cli.waterfall import duration_text
from standfast.model.trace_record import TraceRecord, span_id_of
from standfast.providers.scripted import ScriptedModel
from standfast.trace import JsonlTrace, read_trace
from standfast.trace.time_axis import TimeAxis
from standfast.trace.trace_reader import SpanTree, span_trees


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)
    monkeypatch.delenv("STANDFAST_TRACE", raising=False)


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_a_conversation_is_drawn_with_a_bar_for_every_span(standfast: Any, tmp_path: Path) -> None:
    """Ours: every span has a bar, in a terminal and in a pipe."""
    trace = str(tmp_path / "t.jsonl")
    assert standfast("chat", "order A1", "--trace", trace).status == 0
    shown = standfast("trace", "show", "chat", "--file", trace)
    head, turn, first, call, second = lines_of(shown.stdout)
    assert head[0].startswith("t_")
    assert (turn[0], turn[-1]) == ("chat", "tokens")
    assert (first[0], call[0], second[0]) == ("scripted:demo", "order()", "scripted:demo")
    rows = shown.stdout.splitlines()[1:]
    assert [len(row) - len(row.lstrip()) for row in rows if row.strip()] == [0, 2, 2, 2]
    assert all(any(mark in row for mark in "█▏") for row in rows if row.strip())
    assert "\x1b" not in shown.stdout


def test_a_turn_that_resumes_in_another_process_is_one_drawing(
    standfast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the process that decides continues the same trace."""
    monkeypatch.setenv("STANDFAST_TRACE", "1")
    standfast("chat", "refund A1")
    waiting = standfast("trace", "show", "chat")
    assert "not over" in waiting.stdout
    assert "turn_parked" in waiting.stdout
    (asked,) = standfast("approvals", "list", "--json").document
    assert standfast("approvals", "approve", asked["approval_id"]).status == 0
    over = standfast("trace", "show", "chat")
    assert "not over" not in over.stdout
    rows = [line for line in over.stdout.splitlines() if "waits: approval" in line]
    assert len(rows) == 1
    assert rows[0].startswith("    ")
    assert rows[0].rstrip().endswith("approved")


def test_the_json_document_is_the_tree_of_records(
    standfast: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the document has every record of the file, in its place."""
    monkeypatch.setenv("STANDFAST_TRACE", "1")
    standfast("chat", "order A1")
    standfast("chat", "hello")
    turns = [one for one in standfast("trace", "show", "chat", "--json").document if one["kind"] == "turn"]
    assert [one["open"] for one in turns] == [False, False]
    children = [one for one in turns[0]["children"] if one.get("span_id")]
    assert [one["kind"] for one in children] == ["model_call", "tool_call", "model_call"]
    assert {one["trace_id"] for one in children} == {turns[0]["trace_id"]}
    (alone,) = standfast("trace", "show", "chat", "--turn", turns[1]["turn_id"], "--json").document
    assert alone == turns[1]
    assert len(list(read_trace(home / "trace.jsonl"))) > 8


def test_a_missing_file_session_or_turn_is_reported_clearly(
    standfast: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: there is no traceback."""
    nothing = standfast("trace", "show", "chat")
    assert (nothing.status, "there is no trace" in nothing.stderr) == (1, True)
    assert "STANDFAST_TRACE=1" in nothing.stderr
    monkeypatch.setenv("STANDFAST_TRACE", str(home / "mine.jsonl"))
    standfast("chat", "hello")
    unknown = standfast("trace", "show", "other")
    assert (unknown.status, "no records of session 'other'" in unknown.stderr) == (1, True)
    assert "no records of turn 't_0'" in standfast("trace", "show", "chat", "--turn", "t_0").stderr
    assert standfast("trace", "show", "chat", "--json").status == 0


def test_no_trace_is_kept_unless_requested(
    standfast: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: traces are kept only on request."""
    standfast("chat", "hello")
    monkeypatch.setenv("STANDFAST_TRACE", "0")
    standfast("chat", "hello")
    assert not (home / "trace.jsonl").exists()


def test_names_chosen_by_a_model_cannot_control_the_terminal(standfast: Any, tmp_path: Path) -> None:
    """Ours: a model may use any name for a tool, including escape sequences."""
    trace = tmp_path / "t.jsonl"

    async def main() -> None:
        calls = {"tool_calls": [{"name": "\x1b[2Jevil", "arguments": {}}]}
        async with Runtime(trace=JsonlTrace(trace)) as runtime:
            session = await runtime.session("s", agent=Agent(ScriptedModel([calls, "end"])))
            await session.turn("go")

    asyncio.run(main())
    shown = standfast("trace", "show", "s", "--file", str(trace)).stdout
    assert "\x1b" not in shown
    assert "\\x1b[2Jevil()" in shown


def test_a_long_wait_is_drawn_shortened() -> None:
    """Ours: a wait must not squeeze the spans around it."""
    day = 86_400_000

    def span(kind: Any, start: int, end: int, span_id: str, parent_id: str) -> TraceRecord:
        return TraceRecord(
            at_ms=end, name=kind, kind=kind, turn_id="t", span_id=span_id, parent_id=parent_id,
            started_at_ms=start, duration_ms=end - start,
        )  # fmt: skip

    turn = span_id_of("t")
    trees: list[SpanTree] = span_trees(
        [
            span("turn", 0, day + 1000, turn, ""),
            span("model_call", 0, 400, "a", turn),
            span("tool_call", 400, day + 600, "b", turn),
            span("wait", 400, day + 400, "c", "b"),
            span("model_call", day + 600, day + 1000, "d", turn),
        ]
    )
    axis = TimeAxis(trees)
    assert axis.place(400) - axis.place(0) > 0.3
    assert axis.place(day + 1000) - axis.place(day + 600) > 0.3
    assert 0 < axis.place(day + 400) - axis.place(400) < 0.2
    assert (axis.place(0), axis.place(day + 1000), axis.place(2 * day)) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (0.2, "<1 ms"), (340, "340 ms"), (1200, "1.2 s"), (125_000, "2 min 5 s"),
     (12_000_000, "3 h 20 min"), (187_200_000, "2 d 4 h")],
)  # fmt: skip
def test_durations_are_printed_in_suitable_units(ms: float, text: str) -> None:
    """Ours: the units range from fractions of a millisecond to days."""
    assert duration_text(ms) == text
