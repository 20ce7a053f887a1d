"""View models: the contents of pages, as pure functions of records."""

from __future__ import annotations

import pytest

from standfast.model.approval import Approval, ApprovalState
from standfast.model.call_history import CallHistory
from standfast.model.events import (
    ModelCallStarted,
    ReplyReceived,
    TextStreamed,
    ToolCallStarted,
    TurnBegan,
    TurnCommitted,
)
from standfast.model.journal import JournalStep
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.model.outcome import Finished
from standfast.model.session import Entry, Segment, SessionHead
from standfast.workbench.approvals_html import request_html
from standfast.workbench.branches import family_of, graph_rows
from standfast.workbench.conversation import (
    CallView,
    CellView,
    MessageView,
    ReplyView,
    cell_view,
    items_of,
    place_calls,
)
from standfast.workbench.conversation_html import Options, call_html
from standfast.workbench.live_turn import LiveTurn
from standfast.workbench.markdown import plain_text, render_markdown
from standfast.workbench.parts import due, when
from standfast.workbench.tools_page import _example
from standfast.workbench.turn_pages import step_titles
from standfast.workbench.words import ago, cost, duration, one_line, tokens


def test_the_result_of_a_call_is_shown_with_the_call() -> None:
    """Ours: a tool message is not shown separately; its call has the result."""
    call = ToolCall(call_id=1, name="order", arguments={"order_id": "A1"})
    said: list[tuple[str, Message]] = [
        ("t.0", UserMessage(content="look")),
        ("t.1", AssistantMessage(text="", tool_calls=(call,))),
        ("t.2", ToolMessage(call_id=1, name="order", value={"cents": 5}, texts=("it is <late>",))),
    ]
    user, reply = items_of(said, "t", {})
    assert isinstance(user, MessageView)
    assert isinstance(reply, ReplyView)
    (view,) = reply.calls
    assert isinstance(view, CallView)
    assert (view.state, view.value) == ("ok", {"cents": 5})
    assert "it is &lt;late&gt;" in str(call_html(view, Options(session_id="s", now_ms=0), "t.1"))


def test_a_call_is_placed_at_the_only_line_that_calls_its_name() -> None:
    """Ours: a call is placed only if its line is certain; others are listed below the code."""
    code = "a = order('A1')\nfor i in range(2):\n    refund(i)\nrefund(3)\nreorder()"
    made = [
        CallView(call_id=1, name="order", brief=""),
        CallView(call_id=2, name="refund", brief=""),
        CallView(call_id=3, name="gone", brief=""),
    ]
    placed, loose, unsure = place_calls(code, made)
    assert {line: [one.name for one in calls] for line, calls in placed.items()} == {1: ["order"]}
    assert [one.name for one in unsure] == ["refund", "gone"]
    assert loose == ()


def test_a_call_is_placed_at_the_line_that_the_engine_reported() -> None:
    """Ours: a call from other code has no line; calls without a reported line are matched as before."""
    code = "if x:\n    f(x)\nelse:\n    f(y)\ng(1)"
    lines = {1: 4, 2: 2, 3: 0, 4: None}
    made = [CallView(call_id=one, name="f" if one < 4 else "g", brief="", line=lines[one]) for one in lines]
    placed, loose, unsure = place_calls(code, made)
    assert {line: [one.call_id for one in calls] for line, calls in placed.items()} == {
        4: [1],
        2: [2],
        5: [4],
    }
    assert [one.call_id for one in loose] == [3]
    assert unsure == ()


def test_line_numbers_match_the_code_as_shown() -> None:
    """Bug: in code that starts with blank lines, the marks were that many lines too low."""
    call = ToolCall(call_id=1, name="run_code", arguments={"code": "\n\nf(1)\n1/0"})
    report = {
        "index": 1,
        "calls": [{"call_id": 2, "name": "f", "line": 3}],
        "error": {"code": "RUNTIME_ERROR", "message": "x", "span": {"line": 4, "column": 1}},
    }
    cell = cell_view(call, ToolMessage(call_id=1, name="run_code", value=report))
    assert cell.lines == ("f(1)", "1/0")
    assert list(cell.placed) == [1]
    assert cell.bad_line == 2


def test_each_cell_of_a_turn_has_its_own_calls_with_their_results() -> None:
    """Ours: the journal has the results, the report has the tool's other texts."""
    cells = [ToolCall(call_id=one, name="run_code", arguments={"code": "f()"}) for one in (1, 3, 4)]
    reports = [
        {"index": 0, "calls": [{"call_id": 2, "name": "f", "line": 1, "texts": ["beside"]}]},
        {"index": 1},
        {"index": 2, "calls": [{"call_id": 5, "name": "f", "line": 1}]},
    ]
    said: list[tuple[str, Message]] = [("t.0", AssistantMessage(text="", tool_calls=tuple(cells)))]
    for place, (cell, report) in enumerate(zip(cells, reports, strict=True), 1):
        said.append((f"t.{place}", ToolMessage(call_id=cell.call_id, name="run_code", value=report)))
    inner = ToolCall(call_id=2, name="f", parent=1, line=1)
    (reply,) = items_of(said, "t", {}, made=[CallHistory(call=inner, value=7, settled=True)])
    assert isinstance(reply, ReplyView)
    views = [view for view in reply.calls if isinstance(view, CellView)]
    shown = [[(one.value, one.texts) for one in view.placed.get(1, ())] for view in views]
    assert shown == [[(7, ("beside",))], [], [(None, ())]]


def test_a_live_turn_is_a_fold_of_its_events() -> None:
    """Ours: streamed text changes no other part of the page; a new model call starts a new text."""
    live = LiveTurn()
    assert live.feed(TurnBegan(turn_id="t", session_id="s"))
    assert live.feed(ModelCallStarted(turn_id="t", number=1))
    assert not live.feed(TextStreamed(turn_id="t", text="he"))
    assert not live.feed(TextStreamed(turn_id="t", text="llo"))
    assert live.text == "hello"
    assert live.feed(ReplyReceived(turn_id="t", text="hello"))
    assert live.text == ""
    live.feed(ToolCallStarted(turn_id="t", call=ToolCall(call_id=1, name="order")))
    assert list(live.calls) == [1]
    live.feed(TurnCommitted(turn_id="t", outcome=Finished(text=""), usage=Usage(), depth=2))
    assert (live.turn_id, live.calls) == ("", {})


def segment(name: str, parent: str | None, session_id: str = "s") -> Segment:
    entries = (Entry(at_ms=1, payload=UserMessage(content=name)),)
    node = None if parent is None else f"{parent}.0"
    return Segment(
        segment_id=name,
        session_id=session_id,
        parent=node,
        caused_by=name,
        depth=0,
        frame="initial",
        entries=entries,
    )


def head(session_id: str, leaf: str, forked_from: str | None = None) -> SessionHead:
    return SessionHead(
        session_id=session_id, created_at=1, updated_at=1, leaf=f"{leaf}.0", depth=1, forked_from=forked_from
    )


def test_branches_get_lanes_and_abandoned_turns_are_marked() -> None:
    """Ours: the session's own path has the first lane; turns that a rewind left are on no path."""
    segments = {one.segment_id: one for one in (
        segment("a", None), segment("b", "a"), segment("c", "b"), segment("d", "b", "f"), segment("e", "a"),
    )}  # fmt: skip
    rows = graph_rows(segments, [head("s", "c"), head("f", "d", "s")], "s")
    shown = {row.segment_id: (row.lane, row.active, row.heads) for row in rows}
    assert shown["c"] == (0, True, ["s"])
    assert shown["d"][1:] == (True, ["f"])
    assert shown["e"][1:] == (False, [])
    assert len({shown[name][0] for name in "cde"}) == 3


def test_long_sequences_of_turns_are_collapsed_to_a_count() -> None:
    """Ours: the graph of a long session stays small."""
    names = [f"n{number:03}" for number in range(50)]
    segments = {name: segment(name, names[place - 1] if place else None) for place, name in enumerate(names)}
    rows = graph_rows(segments, [head("s", names[-1])], "s")
    assert len(rows) == 3
    assert rows[1].label == "48 turns"
    assert [row.parent for row in rows] == [None, 0, 1]


def test_a_family_is_all_sessions_that_share_history() -> None:
    """Ours: it includes forks of forks, but no other sessions."""
    heads = [head("a", "x"), head("b", "x", "a"), head("c", "x", "b"), head("z", "y")]
    assert {one.session_id for one in family_of("c", heads)} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("[x](javascript:y)", "[x](javascript:y)"),
        ("![x](https://example.org/a.png)", "<a href="),
        ("a\n\nb", '<p dir="auto">a</p><p dir="auto">b</p>'),
    ],
)
def test_markdown_is_rendered_as_a_fixed_set_of_elements(text: str, shown: str) -> None:
    """Ours: HTML stays text, images become links, and links may only point to the web."""
    html = str(render_markdown(text))
    assert shown in html
    assert "<img" not in html


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words", "plain words"),
        ("**Order `A1`** came\n*late*", "Order A1 came late"),
        ("# Title\n\n- one\n- [two](https://example.org)", "Title one two"),
        ("<b>raw</b> *x*", "<b>raw</b> x"),
        ("```python\nf(1)\n```", "f(1)\n"),
    ],
)
def test_a_preview_of_markdown_has_no_markup(text: str, shown: str) -> None:
    """Ours: the list of sessions shows the text of the last reply, not its asterisks."""
    assert plain_text(text) == shown


def test_past_and_future_times_read_naturally() -> None:
    """Bug: a new turn was `now ago` in the graph, and a wait that was over would time out `expired`."""
    assert ">now<" in str(when(1_000, 1_500, " ago"))
    assert ">2 s ago<" in str(when(1_000, 3_000, " ago"))
    assert ">in 2 s<" in str(due(3_000, 1_000))
    assert ">now<" in str(due(1_000, 3_000))


def test_journaled_inputs_are_titled_by_their_subject() -> None:
    """Ours: an input that has only the number of a call is titled by the call's tool."""
    steps = [
        JournalStep(number=1, at_ms=1, input={"type": "turn_started"}, commands=(), phase="x"),
        JournalStep(
            number=2,
            at_ms=2,
            input={"type": "model_replied"},
            commands=({"command": "run_tool", "call_id": 1, "name": "order"},),
            phase="x",
        ),
        JournalStep(number=3, at_ms=3, input={"type": "tool_settled", "call_id": 1}, commands=(), phase="x"),
        JournalStep(number=4, at_ms=4, input={"type": "tool_settled", "call_id": 7}, commands=(), phase="x"),
    ]
    assert list(step_titles(steps).values()) == [
        "Turn started", "Model replied", "Tool settled: order", "Tool settled: call 7",
    ]  # fmt: skip


def test_a_form_starts_with_values_that_match_the_schema() -> None:
    """Ours: to try a tool, a person edits values instead of typing them."""
    schemas = [{"type": "integer"}, {"type": "array"}, {"default": "x"}, {"enum": ["a", "b"]}, {}, True]
    assert [_example(one) for one in schemas] == [0, [], "x", "a", "", ""]


def test_numbers_are_formatted_for_people() -> None:
    """Ours: times, tokens and costs have one format everywhere."""
    assert [duration(ms) for ms in (0, 0.4, 340, 1200, 125_000, 7_200_000)] == [
        "0 ms", "<1 ms", "340 ms", "1.2 s", "2 min 5 s", "2 h",
    ]  # fmt: skip
    assert [ago(0, ms) for ms in (400, 40_000, 180_000, 90_000_000)] == ["now", "40 s", "3 min", "1 d"]
    assert [tokens(number) for number in (812, 4_200, 1_300_000)] == ["812", "4.2k", "1.3M"]
    assert cost(Usage(cost_nano_usd=2_100_000, priced=1, calls=1)) == "$0.0021"
    assert cost(Usage(cost_nano_usd=1_200_000_000, priced=1, calls=2)) == "≥ $1.20"
    assert one_line("a\n b  c", 4) == "a b…"


def test_a_request_shows_its_question_with_the_schema_of_the_answer() -> None:
    """Bug: a person saw the schema of the answer, but not the question."""
    approval = Approval(
        approval_id="apr_1",
        state=ApprovalState.PENDING,
        session_id="s",
        capability="travel",
        args=[],
        kwargs={},
        requested_at=0,
        expires_at=1,
        binding="",
        run_id="t_1",
        call_id=1,
        reason="Where <to>?",
        answer_schema={"type": "object", "properties": {"city": {"type": "string"}}},
    )
    shown = str(request_html(approval, 0, decides=True))
    assert "Where &lt;to&gt;?" in shown
    assert "city" in shown
