"""The cells of a session as messages keep them, and as the next cell reads them: `history[n]`.

Theory of operation
-------------------
A cell is a call of `run_code`, and its report is the value of the result. A report that is too long for a
message is kept whole as an attachment; the message then has a cut one, which is what remains to be read when
the attachment is gone or when reading everything would be too much.

Rules
-----
1. Every cell that has a result has a place in `history`, in the order of the calls, whatever came of it: one
   that was refused or replaced has its place too.
2. A whole report stands in for the cut one, never for what somebody put in the report's place: a plugin that
   replaced the result has had the last word.
3. What is cut says so: in the text, and by `"cut": True` in `history`.
4. A cell keeps its place, since the model has read its number. If a frame begins in the middle of a session
   with some of its turns, the places of the cells before them are there, and empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json, encode_json
from standfast.model.cell import RUN_CODE, CallMade, CellReport
from standfast.model.diagnostic import Diagnostic
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolCall, ToolMessage
from standfast.protocols.code.observation import cut_end, cut_middle, json_text

WHOLE_NAME: Final = "cell.json"
"""The name of the attachment that holds a whole report."""

ReadBlob = Callable[[str], Awaitable[bytes | None]]
"""Gives the bytes of a digest, None if they are gone."""

_Problem = TypeVar("_Problem", ErrorObject, Diagnostic)

_LEAST_CHARS: Final = 16
"""So much of a text remains, however little room there is."""


class CellEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cell that has a result.

    `whole` is the digest of the whole report where `report` is a cut one, and `whole_bytes` its size. `value`
    is what the result is where it is no report. `error` is that of the call, as a refusal leaves it. One that
    is `left_out` is of an earlier frame.
    """

    code: str
    report: CellReport | None = None
    whole: str | None = None
    whole_bytes: int = 0
    value: Json = None
    error: ErrorObject | None = None
    left_out: bool = False


_MOST_LEFT_OUT: Final = 100_000
_LEFT_OUT: Final = CellEntry(code="", left_out=True)

# From messages to history


def cells_of(messages: Iterable[Message]) -> list[CellEntry]:
    """The cells that have a result, in the order in which they were called."""
    cells: list[list[CellEntry]] = []
    called: dict[int, tuple[ToolCall, list[CellEntry]]] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            # Call ids count within a turn, so a later turn uses them again.
            called |= {call.call_id: (call, []) for call in message.tool_calls}
            cells += [called[call.call_id][1] for call in message.tool_calls if call.name == RUN_CODE]
        elif isinstance(message, ToolMessage) and message.name == RUN_CODE and message.call_id in called:
            call, place = called.pop(message.call_id)
            place.append(_entry(call, message))
    return [entry for place in cells for entry in place]


def place_of(value: Json, following: int) -> int:
    """The place of the cell with this result: the one in its report, if it can be, else the *following*."""
    index = value.get("index") if isinstance(value, dict) else None
    if isinstance(index, int) and 0 < index - following <= _MOST_LEFT_OUT:
        return index
    return following


def placed(entries: Iterable[CellEntry]) -> list[CellEntry]:
    """The cells at their places, with empty ones where others were."""
    found: list[CellEntry] = []
    for entry in entries:
        index = 0 if entry.report is None else entry.report.index
        found += [_LEFT_OUT] * (place_of({"index": index}, len(found)) - len(found))
        found.append(entry)
    return found


async def history_value(
    entries: Sequence[CellEntry],
    read_blob: ReadBlob,
    keys: frozenset[str] | None = None,
    cap_bytes: int = 16 << 20,
) -> list[dict[str, Json]]:
    """What `history` is in the next cell.

    Whole reports are read from the newest to the oldest, as many as fit into *cap_bytes*. *keys* are the
    places that the code reads, if no others are of interest: `{"0", "-1"}`.
    """
    wanted = _places(keys, len(entries))
    wholes: dict[int, CellReport] = {}
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if entry.whole is None or place not in wanted or entry.whole_bytes > cap_bytes:
            continue
        whole = _decoded(await read_blob(entry.whole))
        if whole is not None:
            wholes[place] = whole
            cap_bytes -= entry.whole_bytes
    return [_seen(entry, wholes.get(place)) for place, entry in enumerate(entries)]


def _entry(call: ToolCall, result: ToolMessage) -> CellEntry:
    report = _report_of(result.value)
    whole = next((part for part in result.attachments if part.name == WHOLE_NAME), None)
    if report is None:
        return CellEntry(code=_code_of(call, result), value=result.value, error=result.error)
    return CellEntry(
        code=_code_of(call, result),
        report=report,
        whole=None if whole is None else whole.digest,
        whole_bytes=0 if whole is None else whole.size,
        error=result.error,
    )


def _code_of(call: ToolCall, result: ToolMessage) -> str:
    """The code that ran: what a person or a plugin made of it, or what the model wrote."""
    arguments = call.arguments if result.edited_arguments is None else result.edited_arguments
    code = (arguments or {}).get("code")
    return code if isinstance(code, str) else call.raw or ""


def _report_of(value: Json) -> CellReport | None:
    try:
        return msgspec.convert(value, CellReport)
    except msgspec.ValidationError:
        return None


def _decoded(data: bytes | None) -> CellReport | None:
    """A report that was kept; None if it is gone or damaged."""
    try:
        return None if data is None else msgspec.json.decode(data, type=CellReport)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _places(keys: frozenset[str] | None, count: int) -> frozenset[int]:
    """The places that are meant. Those before zero count from the end; what is no number means none."""
    if keys is None:
        return frozenset(range(count))
    numbers = [int(key) for key in keys if key.removeprefix("-").isdecimal()]
    return frozenset(number + count if number < 0 else number for number in numbers)


def _seen(entry: CellEntry, whole: CellReport | None) -> dict[str, Json]:
    """A cell as code reads it."""
    report = whole or entry.report
    error = entry.error if report is None or report.error is None else report.error
    seen: dict[str, Json] = {
        "code": entry.code,
        "stdout": "" if report is None else report.stdout,
        "stderr": "" if report is None else report.stderr,
        "result": entry.value if report is None else report.result,
        "error": None if error is None else {"code": error.code, "message": error.message},
    }
    if entry.left_out or (entry.whole is not None and whole is None):
        seen["cut"] = True
    return seen


# From a report to a message


def kept_report(
    report: CellReport, keep: Callable[[bytes], AttachmentPart], inline_chars: int = 4_000
) -> tuple[Json, tuple[AttachmentPart, ...]]:
    """The value of a cell's result and its attachments: a long report is cut, and kept whole beside it.

    *keep* is to name what it keeps `WHOLE_NAME`, as `application/json`.
    """
    data = encode_json(report)
    if len(data.decode()) <= inline_chars:
        return msgspec.json.decode(data), ()
    return _cut_to(report, inline_chars), (keep(data),)


def _cut_to(report: CellReport, inline_chars: int) -> Json:
    """A cut report whose JSON is not longer than that, if anything can make it so short."""
    room = inline_chars // 4
    while True:
        data = msgspec.json.encode(_cut(report, room))
        if room <= _LEAST_CHARS or len(data.decode()) <= inline_chars:
            return msgspec.json.decode(data)
        room = max(_LEAST_CHARS, room * 2 // 3)


def _cut(report: CellReport, room: int) -> CellReport:
    """A report with texts of so many characters at most, and as many calls and remarks as belong to that."""
    count = room // 80
    return msgspec.structs.replace(
        report,
        stdout=cut_middle(report.stdout, room),
        stderr=cut_middle(report.stderr, room),
        result=_cut_result(report.result, room),
        error=None if report.error is None else _cut_problem(report.error, room),
        diagnostics=tuple(_cut_problem(one, room // 2) for one in report.diagnostics[:count]),
        calls=tuple(_cut_call(call) for call in report.calls[:count]),
        notes=tuple(cut_end(note, room // 2) for note in report.notes[:count]),
    )


def _cut_result(result: Json, room: int) -> Json:
    """The result itself if it is short, else a cut text of its JSON."""
    if isinstance(result, str):
        return cut_middle(result, room)
    text = json_text(result)
    return result if len(text) <= room else cut_middle(text, room)


def _cut_problem(problem: _Problem, room: int) -> _Problem:
    hint = problem.hint and cut_end(problem.hint, room // 2)
    return msgspec.structs.replace(problem, message=cut_middle(problem.message, room), hint=hint)


def _cut_call(call: CallMade) -> CallMade:
    error = call.error and _cut_problem(call.error, 80)
    arguments = cut_end(call.arguments, 160)
    return msgspec.structs.replace(call, name=cut_end(call.name, 80), arguments=arguments, error=error)
