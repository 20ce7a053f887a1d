"""The cells of a session, as messages store them and as the next cell reads them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import ErrorObject, Span
from standfast.model.canonical import Json, digest_bytes
from standfast.model.code import CallMade, CellReport, Diagnostic
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.protocols.code.values import CellEntry, cells_of, history_value
from standfast.protocols.standard.cells import kept_report

DENIED = ErrorObject(code="PERMISSION_DENIED", message="no code today")


class Blobs:
    """Blobs by digest, and a log of those that were read."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.reads: list[str] = []

    def keep(self, data: bytes) -> AttachmentPart:
        digest = digest_bytes(data)
        self.kept[digest] = data
        return AttachmentPart(digest=digest, media_type="application/json", size=len(data), name="cell.json")

    async def read(self, digest: str) -> bytes | None:
        self.reads.append(digest)
        return self.kept.get(digest)


def _asked(*codes: str, first_id: int = 1) -> AssistantMessage:
    calls = [
        ToolCall(call_id=first_id + at, name="run_code", arguments={"code": code})
        for at, code in enumerate(codes)
    ]
    return AssistantMessage(tool_calls=tuple(calls))


def _answered(call_id: int, value: Json = None, **more: object) -> ToolMessage:
    if isinstance(value, CellReport):
        value = msgspec.json.decode(msgspec.json.encode(value))
    return ToolMessage(call_id=call_id, name="run_code", value=value, **more)  # type: ignore[arg-type]


def _entry(blobs: Blobs, report: CellReport, code: str = "") -> CellEntry:
    """Return the entry of a report that was stored in a message and read back."""
    value, attachments = kept_report(report, blobs.keep)
    return cells_of([_asked(code), _answered(1, value, attachments=attachments)])[0]


def _history(entries: list[CellEntry], blobs: Blobs, **more: object) -> list[dict[str, Json]]:
    return asyncio.run(history_value(entries, blobs.read, **more))  # type: ignore[arg-type]


def _long(index: int, chars: int = 100_000) -> CellReport:
    return CellReport(index=index, stdout=f"{index}" * chars)


# From messages to cells


def test_cells_are_in_the_order_of_their_calls() -> None:
    """Seed: `history[n]` follows the order of the calls; results may arrive in any order."""
    messages: list[Message] = [
        UserMessage(content="go"),
        _asked("a", "b"),
        _answered(2, CellReport(index=1, result="B")),
        _answered(1, CellReport(index=0, result="A")),
        _asked("c", first_id=3),
        _answered(3, CellReport(index=2, result="C")),
    ]
    assert [(cell.code, cell.report and cell.report.result) for cell in cells_of(messages)] == [
        ("a", "A"),
        ("b", "B"),
        ("c", "C"),
    ]


def test_other_calls_are_not_cells() -> None:
    """Ours: code mode and native tools can be used together."""
    look = AssistantMessage(tool_calls=(ToolCall(call_id=1, name="look", arguments={"code": "x"}),))
    messages: list[Message] = [
        look,
        ToolMessage(call_id=1, name="look", value={"index": 1}),
        UserMessage(content=""),
    ]
    assert cells_of(messages) == []


def test_a_call_without_a_result_is_left_out() -> None:
    """Ours: the cell that runs right now is not in its own history."""
    messages: list[Message] = [_asked("a", "b"), _answered(1, CellReport(index=0))]
    assert [cell.code for cell in cells_of(messages)] == ["a"]


def test_a_reused_call_id_does_not_match_a_later_turns_result() -> None:
    """Ours: call ids are numbered within a turn, and a turn can end with a call that has no result."""
    messages: list[Message] = [
        _asked("lost"),
        UserMessage(content="again"),
        _asked("kept"),
        _answered(1, CellReport(index=0, result=1)),
        AssistantMessage(tool_calls=(ToolCall(call_id=1, name="look"),)),
        ToolMessage(call_id=1, name="look", value=2),
    ]
    assert [(cell.code, cell.report) for cell in cells_of(messages)] == [
        ("kept", CellReport(index=0, result=1))
    ]


def test_a_result_without_a_call_is_not_a_cell() -> None:
    """Ours: a history that was cut by compaction may begin with a result."""
    assert cells_of([_answered(1, CellReport(index=0))]) == []


def test_the_code_in_history_is_the_code_that_ran() -> None:
    """Ours: a person who approves a cell may edit it."""
    changed = _answered(1, CellReport(index=0), edited_arguments={"code": "safe"})
    assert cells_of([_asked("wild"), changed])[0].code == "safe"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (ToolCall(call_id=1, name="run_code", raw='{"code": '), '{"code": '),
        (ToolCall(call_id=1, name="run_code", arguments={"code": 5}), ""),
        (ToolCall(call_id=1, name="run_code", arguments={}), ""),
    ],
)
def test_a_call_without_code_still_has_an_entry(call: ToolCall, code: str) -> None:
    """Ours: arguments that are not a JSON object are kept unchanged."""
    bad = ErrorObject(code="INVALID_ARGUMENT", message="no code")
    assert cells_of([AssistantMessage(tool_calls=(call,)), _answered(1, error=bad)]) == [
        CellEntry(code=code, error=bad)
    ]


@pytest.mark.parametrize("value", ["cached", 5, None, ["a"], {"rows": 2}, {"index": "x"}])
def test_a_value_that_is_not_a_report_is_used_as_the_result(value: Json) -> None:
    """Ours: a plugin may replace the result of a cell."""
    (entry,) = cells_of([_asked("a"), _answered(1, value)])
    assert entry.report is None
    assert _history([entry], Blobs()) == [
        {"code": "a", "stdout": "", "stderr": "", "result": value, "error": None}
    ]


def test_a_report_replaced_by_a_plugin_is_not_restored_from_its_blob() -> None:
    """Ours: redacted text stays redacted."""
    blobs = Blobs()
    _, attachments = kept_report(_long(0), blobs.keep)
    (entry,) = cells_of([_asked("a"), _answered(1, "[redacted]", attachments=attachments)])
    assert _history([entry], blobs)[0]["result"] == "[redacted]"
    assert blobs.reads == []


def test_a_refused_cell_has_an_entry_with_its_error() -> None:
    """Ours: a denied cell has its place in the history, too."""
    (entry,) = cells_of([_asked("a"), _answered(1, error=DENIED)])
    assert _history([entry], Blobs())[0]["error"] == {
        "code": "PERMISSION_DENIED",
        "message": "no code today",
    }


# What the next cell reads


def test_history_has_code_output_result_and_error_of_each_cell() -> None:
    """Seed: `history[n]` is the result of cell n."""
    blobs = Blobs()
    failure = ErrorObject(code="RUNTIME_ERROR", message="boom", hint="h", span=Span(line=2))
    entries = [
        _entry(blobs, CellReport(index=0, stdout="hi\n", stderr="hm\n", result=[1]), "print('hi')"),
        _entry(blobs, CellReport(index=1, error=failure), "boom()"),
    ]
    assert _history(entries, blobs) == [
        {"code": "print('hi')", "stdout": "hi\n", "stderr": "hm\n", "result": [1], "error": None},
        {
            "code": "boom()",
            "stdout": "",
            "stderr": "",
            "result": None,
            "error": {"code": "RUNTIME_ERROR", "message": "boom"},
        },
    ]
    assert blobs.reads == []


def test_a_long_report_is_read_completely() -> None:
    """Seed: the next cell can read the whole result."""
    blobs = Blobs()
    report = CellReport(index=0, stdout="é\n" * 100_000, result={"rows": list(range(50_000))})
    (seen,) = _history([_entry(blobs, report)], blobs)
    assert seen["stdout"] == report.stdout
    assert seen["result"] == report.result
    assert "cut" not in seen


def test_the_newest_reports_are_read_completely_up_to_the_limit() -> None:
    """Seed: old output must not fill a cell's memory; its shortened text remains."""
    blobs = Blobs()
    entries = [_entry(blobs, _long(index)) for index in range(4)]
    seen = _history(entries, blobs, cap_bytes=250_000)
    assert [one.get("cut", False) for one in seen] == [True, True, False, False]
    assert len(seen[3]["stdout"]) == 100_000
    assert seen[0]["stdout"].startswith("000")
    assert "characters left out" in seen[0]["stdout"]
    assert blobs.reads == [entries[3].whole, entries[2].whole]


def test_one_report_over_the_limit_leaves_room_for_others() -> None:
    """Ours: a single huge output does not hide the rest of the history."""
    blobs = Blobs()
    seen = _history([_entry(blobs, _long(0)), _entry(blobs, _long(1, 300_000))], blobs, cap_bytes=250_000)
    assert [one.get("cut", False) for one in seen] == [False, True]


@pytest.mark.parametrize("left", [None, b"", b"{", b"\xff\xfe", b"[]"], ids=repr)
def test_a_missing_or_damaged_blob_leaves_the_shortened_text(left: bytes | None) -> None:
    """Ours: blobs may be collected or lost, and the session stays usable."""
    blobs = Blobs()
    entry = _entry(blobs, _long(7))
    blobs.kept = {} if left is None else dict.fromkeys(blobs.kept, left)
    (seen,) = _history([entry], blobs)
    assert seen["cut"] is True
    assert seen["stdout"].startswith("777")
    assert len(seen["stdout"]) < 4_000


@pytest.mark.parametrize(
    ("keys", "whole"),
    [
        (frozenset({"1"}), [1]),
        (frozenset({"-1", "0"}), [0, 2]),
        (frozenset({"7", "-9", "stdout", "", "-"}), []),
        (frozenset(), []),
        (None, [0, 1, 2]),
    ],
)
def test_only_the_entries_that_the_code_reads_are_loaded(
    keys: frozenset[str] | None, whole: list[int]
) -> None:
    """Ours: `history[-1]` costs one read, however long the session is."""
    blobs = Blobs()
    seen = _history([_entry(blobs, _long(index)) for index in range(3)], blobs, keys=keys)
    assert [place for place, one in enumerate(seen) if "cut" not in one] == whole
    assert len(blobs.reads) == len(whole)


# From a report to a message


def test_a_short_report_is_stored_in_the_message() -> None:
    """Ours: a short report needs no blob."""
    report = CellReport(index=2, stdout="hi", calls=(CallMade(call_id=1, name="look"),), notes=("n",))
    value, attachments = kept_report(report, Blobs().keep)
    assert attachments == ()
    assert msgspec.convert(value, CellReport) == report
    assert type(value["calls"]) is list


def test_a_long_report_is_shortened_in_the_message_and_stored_in_full_beside_it() -> None:
    """Seed: the whole result of a cell is kept."""
    blobs = Blobs()
    report = CellReport(
        index=2, stdout="o" * 9_000, stderr="short", result={"rows": ["r"] * 9_000}, finished=True
    )
    value, (part,) = kept_report(report, blobs.keep)
    assert msgspec.json.decode(blobs.kept[part.digest], type=CellReport) == report
    cut = msgspec.convert(value, CellReport)
    assert (cut.index, cut.stderr, cut.finished) == (2, "short", True)
    assert "characters left out" in cut.stdout
    assert cut.result.startswith('{"rows":["r","r",')
    assert "characters left out" in cut.result


def test_short_parts_of_a_long_report_stay_unchanged() -> None:
    """Ours: a small result keeps its type beside a long output."""
    error = ErrorObject(code="E", message="m", span=Span(line=3, column=4))
    report = CellReport(index=0, stdout="o" * 9_000, result={"a": [1, None]}, error=error)
    cut = msgspec.convert(kept_report(report, Blobs().keep)[0], CellReport)
    assert cut.result == {"a": [1, None]}
    assert cut.error == error


_texts = st.builds(
    lambda part, times: part * times,
    st.text(alphabet='aé😀\n"\x00', max_size=9),
    st.sampled_from([1, 9, 900]),
)
_errors = st.builds(ErrorObject, code=st.just("E"), message=_texts, hint=st.none() | _texts)
_reports = st.builds(
    CellReport,
    index=st.integers(0, 10**6),
    stdout=_texts,
    stderr=_texts,
    result=_texts | st.lists(_texts, max_size=9),
    error=st.none() | _errors,
    diagnostics=st.lists(_errors.map(Diagnostic.error), max_size=9).map(tuple),
    calls=st.lists(
        st.builds(
            CallMade, call_id=st.integers(0, 9), name=_texts, arguments=_texts, error=st.none() | _errors
        ),
        max_size=40,
    ).map(tuple),
    notes=st.lists(_texts, max_size=9).map(tuple),
)


@pytest.mark.slow
@given(_reports, st.integers(1_000, 6_000))
def test_the_part_stored_in_the_message_never_exceeds_its_limit(
    report: CellReport, inline_chars: int
) -> None:
    """Ours: the journal and the prompt stay small with many cells, and nothing is lost."""
    blobs = Blobs()
    value, attachments = kept_report(report, blobs.keep, inline_chars)
    assert len(msgspec.json.encode(value).decode()) <= inline_chars
    data = blobs.kept[attachments[0].digest] if attachments else msgspec.json.encode(value)
    assert msgspec.json.decode(data, type=CellReport) == report
    assert msgspec.convert(value, CellReport).index == report.index
