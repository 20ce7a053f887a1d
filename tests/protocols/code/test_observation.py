"""The observation: the text of a cell's report that the model reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import ErrorObject, Span
from standfast.model.capability import CallStatus
from standfast.model.code import CallMade, CellReport, Diagnostic, Language, Severity
from standfast.protocols.code.observation import NOT_EXECUTED, fair_shares, observation, short_arguments
from standfast.protocols.standard.cut_report import cut_middle

CODE = "total = 5\ncount = 0\nshare = total / count\n"
FAILURE = ErrorObject(
    code="RUNTIME_ERROR",
    message="ZeroDivisionError: division by zero",
    hint="count is 0",
    span=Span(line=3, column=17),
)


def _call(number: int, name: str = "fetch", **more: object) -> CallMade:
    return CallMade(call_id=number, name=name, arguments=f"n={number}", **more)  # type: ignore[arg-type]


def _denied(number: int, message: str = "not allowed") -> CallMade:
    error = ErrorObject(code="PERMISSION_DENIED", message=message)
    return _call(number, "refund", status=CallStatus.DENIED, error=error)


def _read(**of: object) -> str:
    return observation(CellReport(index=3, **of), CODE)  # type: ignore[arg-type]


# Layout


def test_the_sections_are_in_their_fixed_order() -> None:
    """Seed: the observation has stdout, result, diagnostics with the failing line, and calls."""
    text = _read(
        stdout="12 orders\n",
        stderr="slow\n",
        result={"left": 2},
        error=FAILURE,
        diagnostics=(Diagnostic(severity=Severity.WARNING, code="TYPE_ERROR", message="count is int"),),
        calls=(_call(1), _denied(2)),
        notes=("The second cell was not run.",),
    )
    assert text == "\n".join(
        [
            "[cell 3] failed",
            "stdout:",
            "12 orders",
            "stderr:",
            "slow",
            "result:",
            '{"left":2}',
            "error:",
            "RUNTIME_ERROR: ZeroDivisionError: division by zero",
            "  3 | share = total / count",
            "    |                 ^",
            "hint: count is 0",
            "diagnostics:",
            "warning TYPE_ERROR: count is int",
            "calls:",
            "fetch(n=1) -> ok",
            "refund(n=2) -> denied: not allowed",
            "notes:",
            "The second cell was not run.",
        ]
    )


def test_a_cell_without_output_says_so() -> None:
    """Ours: an empty observation would look like a failure."""
    assert _read() == "[cell 3] ok, no output"
    assert _read(stdout="\n") == "[cell 3] ok, no output"
    assert _read(finished=True) == "[cell 3] ok, finished"


def test_a_failed_check_says_that_nothing_was_executed() -> None:
    """Seed: the model must not assume that code which failed its check ran in part."""
    text = _read(error=FAILURE, diagnostics=(Diagnostic.error(FAILURE),), notes=(NOT_EXECUTED,))
    assert text.splitlines()[0] == "[cell 3] failed, nothing was executed"
    assert "notes:" not in text
    assert text.count("division by zero") == 1


def test_each_diagnostic_is_shown_with_its_line() -> None:
    """Seed: diagnostics show the failing line."""
    found = tuple(
        Diagnostic(
            severity=Severity.ERROR, code="TYPE_ERROR", message=f"m{line}", span=Span(line=line, column=2)
        )
        for line in (1, 2)
    )
    text = _read(error=ErrorObject(code="TYPE_ERROR", message="2 problems"), diagnostics=found)
    assert "error TYPE_ERROR: m1\n  1 | total = 5\n    |  ^\nerror TYPE_ERROR: m2\n  2 | count = 0\n" in text


def test_only_the_first_of_many_diagnostics_are_shown() -> None:
    """Ours: one missing name can cause a hundred diagnostics."""
    found = tuple(Diagnostic(code="X", message=f"number {n}.") for n in range(30))
    text = _read(diagnostics=found)
    assert "number 7." in text
    assert "number 8." not in text
    assert text.endswith("… and 22 more")


@pytest.mark.parametrize(
    ("code", "span", "lines"),
    [
        ("x = ä + é", Span(line=1, column=9), ["  1 | x = ä + é", "    |         ^"]),
        ("a\r\n\tb\r\n", Span(line=2, column=2), ["  2 |  b", "    |  ^"]),
        ("\n" * 99 + "abc", Span(line=100, column=1), ["  100 | abc", "      | ^"]),
        ("abc", Span(line=1, column=99), ["  1 | abc", "    |    ^"]),
        ("abc", Span(line=2, column=1), []),
        ("", Span(line=1, column=1), ["  1 | ", "    | ^"]),
    ],
    ids=["letters", "tabs", "wide number", "past the end", "no such line", "no code"],
)
def test_the_caret_is_under_the_column(code: str, span: Span, lines: list[str]) -> None:
    """Ours: columns count characters, in any script."""
    text = observation(CellReport(index=0, error=ErrorObject(code="E", message="m", span=span)), code)
    assert text.splitlines()[3:] == lines


def test_only_the_part_of_a_long_line_around_the_column_is_shown() -> None:
    """Ours: data that is pasted into code makes very long lines."""
    code = "x" * 5_000 + "!" + "y" * 5_000
    error = ErrorObject(code="E", message="m", span=Span(line=1, column=5_001))
    source, caret = observation(CellReport(index=0, error=error), code).splitlines()[3:]
    assert len(source) < 140
    assert source[caret.index("^")] == "!"
    assert source.startswith("  1 | …x")
    assert source.endswith("y…")


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ("two\nlines", "two\nlines"),
        ("", '""'),
        (0, "0"),
        (False, "false"),
        ([1, "é"], '[1,"é"]'),
        ({"a": "x" * 100}, '{\n  "a": "' + "x" * 100 + '"\n}'),
        (["x" * 2_000], '["' + "x" * 2_000 + '"]'),
    ],
    ids=["text", "no text", "zero", "false", "a line", "short", "long"],
)
def test_a_result_is_shown_as_json_and_text_unchanged(result: object, shown: str) -> None:
    """Seed: only values that do not fit on a line are indented."""
    assert _read(result=result) == f"[cell 3] ok\nresult:\n{shown}"


def test_output_dropped_by_the_engine_is_reported_as_lost() -> None:
    """Ours: `history` has no more of it than the observation, so the model is not referred there."""
    assert _read(stdout="a\n", truncated=True).splitlines()[1] == (
        "stdout, the rest was too long and is lost:"
    )


# Calls


def test_calls_are_listed_in_order_with_their_results() -> None:
    """Seed: the observation lists the calls."""
    late = ErrorObject(code="TIMEOUT_TOOL", message="took\n  too long")
    text = _read(
        calls=(
            _call(1),
            _call(2, status=CallStatus.TIMEOUT, error=late),
            _call(3, status=CallStatus.APPROVAL_PENDING),
        )
    )
    assert text.splitlines()[2:] == [
        "fetch(n=1) -> ok",
        "fetch(n=2) -> timeout: took too long",
        "fetch(n=3) -> approval pending",
    ]


def test_many_calls_are_counted_and_failed_ones_are_shown() -> None:
    """Seed: a loop over a thousand orders is one line, its one denied refund another."""
    calls = tuple(_denied(n) if n == 500 else _call(n) for n in range(1_000))
    assert _read(calls=calls).splitlines()[2:] == [
        "1000 calls: fetch × 999, refund × 1; 1 not ok",
        *(f"fetch(n={n}) -> ok" for n in range(4)),
        "…",
        "refund(n=500) -> denied: not allowed",
        "…",
    ]


def test_an_ellipsis_marks_only_calls_that_are_left_out() -> None:
    """Ours: the mark does not mean the end of the list."""
    calls = (*(_call(n) for n in range(12)), _denied(12))
    assert _read(calls=calls).splitlines()[-2:] == ["…", "refund(n=12) -> denied: not allowed"]
    assert "…" not in _read(calls=calls[:12])


def test_a_list_of_many_names_or_failures_stays_short() -> None:
    """Ours: the size of the list of calls is limited."""
    calls = tuple(_call(n, f"tool_{n}") for n in range(100)) + tuple(
        _denied(n, "x" * 999) for n in range(100)
    )
    lines = observation(CellReport(index=0, calls=calls), "", budget_chars=100_000).splitlines()
    assert lines[2].startswith("200 calls: refund × 100, tool_0 × 1, ")
    assert lines[2].endswith("93 others; 100 not ok")
    assert sum("denied" in line for line in lines) == 6
    assert max(map(len, lines)) < 260


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (None, ""),
        ({}, ""),
        ({"order_id": "A1", "cents": 500}, 'order_id="A1", cents=500'),
        ({"all": True, "of": None, "in": [1, {"a": 2}]}, 'all=true, of=null, in=[1,{"a":2}]'),
        ({"text": 'a\n"b"'}, r'text="a\n\"b\""'),
    ],
)
def test_arguments_are_shown_as_in_source_code(arguments: dict[str, object] | None, shown: str) -> None:
    """Seed: a call is shown as `refund(order_id="A1", cents=500)`."""
    assert short_arguments(arguments) == shown


def test_typescript_arguments_are_shown_as_an_object() -> None:
    """Ours: calls are shown in the language's own syntax."""
    arguments = {"order_id": "A1", "not-a-name": [None], "text": "x" * 99}
    shown = short_arguments(arguments, 60, Language.TYPESCRIPT)
    assert shown == '{order_id: "A1", "not-a-name": [null], text: "xxxxxxxxxxxx…}'
    assert short_arguments({}, 60, Language.TYPESCRIPT) == ""


def test_a_long_argument_does_not_hide_the_others() -> None:
    """Ours: the short arguments usually identify a call."""
    text = short_arguments({"body": "x" * 10_000_000, "to": "ann"}, 40)
    assert text == 'body="xxxxxxxxxxxxxxxxxxxxxxx…, to="ann"'
    assert len(text) == 40


@given(
    st.dictionaries(st.text(max_size=20), st.text(max_size=200) | st.integers(), max_size=9),
    st.integers(0, 200),
)
def test_arguments_never_exceed_their_limit(arguments: dict[str, object], limit: int) -> None:
    """Ours: a report of many calls must stay small."""
    for language in Language:
        assert len(short_arguments(arguments, limit, language)) <= limit


# Budget


def test_a_long_text_is_cut_between_lines_and_refers_to_the_full_text() -> None:
    """Seed: the observation stays within its budget; the next cell can read everything."""
    stdout = "".join(f"line {n:05}\n" for n in range(5_000))
    lines = observation(CellReport(index=3, stdout=stdout), "", budget_chars=1_000).splitlines()
    marker = next(at for at, line in enumerate(lines) if line.startswith("…"))
    left = 5_000 - (len(lines) - 3)
    assert lines[marker] == (f'… {left * 11 + 1:,} characters left out; history[3]["stdout"] has all of it …')
    assert lines[2] == "line 00000"
    assert lines[-1] == "line 04999"
    assert all(len(line) == 10 for line in lines[2:marker] + lines[marker + 1 :])
    assert sum(map(len, lines)) > 850


def test_short_sections_leave_their_unused_share_to_long_ones() -> None:
    """Seed: a megabyte of output does not hide an error, nor an error the output."""
    text = observation(CellReport(index=3, stdout="x" * 10**6, error=FAILURE), CODE, budget_chars=2_000)
    assert text.endswith(
        "error:\nRUNTIME_ERROR: ZeroDivisionError: division by zero\n"
        "  3 | share = total / count\n    |                 ^\nhint: count is 0"
    )
    assert 1_990 <= len(text) <= 2_000


def test_two_long_sections_get_equal_shares() -> None:
    """Ours: neither output nor result displaces the other."""
    text = observation(CellReport(index=3, stdout="o" * 10**5, result="r" * 10**5), "", budget_chars=4_000)
    assert abs(text.count("o") - text.count("r")) < 40
    assert 'history[3]["stdout"]' in text
    assert 'history[3]["result"]' in text


def test_text_that_is_not_in_history_is_not_referred_to() -> None:
    """Ours: a reference to something that does not exist costs the model a step."""
    text = observation(CellReport(index=3, notes=("n" * 5_000,)), "", budget_chars=500)
    assert "characters left out …" in text
    assert "history" not in text


def test_text_that_fits_exactly_is_not_cut() -> None:
    """Ours: the budget is a limit, not a target."""
    report = CellReport(index=3, stdout="x" * 300, result="y" * 300)
    whole = observation(report, "")
    assert observation(report, "", budget_chars=len(whole)) == whole
    assert "…" in observation(report, "", budget_chars=len(whole) - 1)


@given(st.lists(st.integers(0, 500), max_size=8), st.integers(0, 2_000))
def test_shares_use_the_available_space_and_are_fair(lengths: list[int], room: int) -> None:
    """Ours: no section gets less space than another unless it needs less."""
    shares = fair_shares(lengths, room)
    assert sum(shares) <= room
    assert sum(shares) >= min(room, sum(lengths))
    cut = [share for share, length in zip(shares, lengths, strict=True) if share < length]
    assert not cut or max(shares) - min(cut) <= 1


@given(st.text(alphabet="ab é\n😀", max_size=600), st.integers(0, 300))
def test_a_cut_text_has_a_head_a_tail_and_the_number_of_omitted_characters(text: str, room: int) -> None:
    """Ours: the number is exact."""
    cut = cut_middle(text, room)
    assert len(cut) <= room or cut == text
    if " characters left out …" in cut:
        head, _, rest = cut.partition("\n… ")
        count, _, tail = rest.partition(" characters left out …\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert int(count.replace(",", "")) == len(text) - len(head) - len(tail)


_texts = st.text(max_size=80) | st.builds(
    lambda part, times: part * times, st.text(min_size=1, max_size=30), st.integers(1, 400)
)
_spans = st.none() | st.builds(Span, line=st.integers(0, 9), column=st.integers(0, 400))
_errors = st.builds(ErrorObject, code=_texts, message=_texts, hint=st.none() | _texts, span=_spans)
_calls = st.builds(
    CallMade,
    call_id=st.integers(0, 99),
    name=_texts,
    arguments=_texts,
    status=st.sampled_from(CallStatus),
    error=st.none() | _errors,
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts, lambda some: st.lists(some, max_size=4)
)
_reports = st.builds(
    CellReport,
    index=st.integers(0, 10**6),
    stdout=_texts,
    stderr=_texts,
    result=_json,
    error=st.none() | _errors,
    diagnostics=st.lists(_errors.map(Diagnostic.error), max_size=12).map(tuple),
    calls=st.lists(_calls, max_size=20).map(tuple),
    notes=st.lists(_texts | st.just(NOT_EXECUTED), max_size=3).map(tuple),
    truncated=st.booleans(),
    finished=st.booleans(),
)


@pytest.mark.slow
@given(_reports, _texts, st.integers(200, 9_000))
def test_an_observation_never_exceeds_its_budget(report: CellReport, code: str, budget: int) -> None:
    """Seed: the budget holds for any output in any script, and the first line stays intact."""
    text = observation(report, code, budget_chars=budget)
    assert len(text) <= budget
    assert text.encode().decode() == text
    assert text.startswith(f"[cell {report.index}] ")
    assert text == observation(report, code, budget_chars=budget)
