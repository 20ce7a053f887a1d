"""The cells of a session as code reads them: `history[n]`.

A cell is a call of `run_code`, and its report is the value of the result. A report that is too long for a
message is stored whole as an attachment; the message then has a cut one, which remains if the attachment is
gone or too large to load.

Rules
-----
1. Every cell with a result has an index in `history`, in the order of the calls, even if it was refused.
2. A whole report replaces a cut one, never a value that a plugin put in the report's place.
3. What is cut says so: in the text, and by `"cut": True` in `history`.
4. A cell keeps its index, since the model has read it. If a frame begins in the middle of a session, the
   places of the cells before it are there, and empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.cell import RUN_CODE, CellReport
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage
from standfast.protocols.standard.cells import WHOLE_REPORT

ReadBlob = Callable[[str], Awaitable[bytes | None]]
"""Returns the bytes of a digest; None if they are gone."""


class CellEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cell that has a result.

    If `report` is cut, `whole` is the digest of the whole one and `whole_bytes` its size. `value` is a result
    that is no report. A cell that is `left_out` belongs to an earlier frame.
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


def cells_of(messages: Iterable[Message]) -> list[CellEntry]:
    """Return the cells that have a result, in the order of their calls."""
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
    """Return the index of the cell with this result: that of its report if possible, else *following*."""
    index = value.get("index") if isinstance(value, dict) else None
    if isinstance(index, int) and 0 < index - following <= _MOST_LEFT_OUT:
        return index
    return following


def placed(entries: Iterable[CellEntry]) -> list[CellEntry]:
    """Return the cells at their indexes, with empty ones for those of earlier frames."""
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
    """Return `history` for the next cell.

    Whole reports are read from the newest to the oldest, as many as fit into *cap_bytes*; with *keys*, only
    those of the indexes that the code reads: `{"0", "-1"}`.
    """
    count = len(entries)
    numbers = (
        range(count) if keys is None else [int(key) for key in keys if key.removeprefix("-").isdecimal()]
    )
    wanted = {number + count if number < 0 else number for number in numbers}
    wholes: dict[int, CellReport] = {}
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if entry.whole is None or place not in wanted or entry.whole_bytes > cap_bytes:
            continue
        data = await read_blob(entry.whole)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # a damaged one counts as gone
            if data is not None:
                wholes[place] = msgspec.json.decode(data, type=CellReport)
                cap_bytes -= entry.whole_bytes
    return [_seen(entry, wholes.get(place)) for place, entry in enumerate(entries)]


def _entry(call: ToolCall, result: ToolMessage) -> CellEntry:
    arguments = call.arguments if result.edited_arguments is None else result.edited_arguments
    code = (arguments or {}).get("code")
    code = code if isinstance(code, str) else call.raw or ""
    try:
        report = msgspec.convert(result.value, CellReport)
    except msgspec.ValidationError:
        return CellEntry(code=code, value=result.value, error=result.error)
    whole = next((part for part in result.attachments if part.name == WHOLE_REPORT), None)
    return CellEntry(
        code=code,
        report=report,
        whole=None if whole is None else whole.digest,
        whole_bytes=0 if whole is None else whole.size,
        error=result.error,
    )


def _seen(entry: CellEntry, whole: CellReport | None) -> dict[str, Json]:
    """Return a cell as code reads it."""
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
