"""Cells as people read them: the code, what it printed and called, and what came of it.

A cell is a call of `run_code` whose result is a `CellReport`. Rule: what is no cell after all, or has another
result than a report, is shown like any other call.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.cli.short_text import error_text, short_json, shortened
from standfast.errors import ErrorObject
from standfast.model.cell import RUN_CODE, CallMade, CellReport
from standfast.model.message import ToolCall

_MOST_LINES: Final = 60
"""Of longer code the rest is counted."""
_MOST_CALLS: Final = 20


def is_cell(call: ToolCall) -> bool:
    return call.name == RUN_CODE and not call.parent and isinstance((call.arguments or {}).get("code"), str)


def code_lines(call: ToolCall) -> list[str]:
    """The code of a cell, a line each."""
    code = str((call.arguments or {}).get("code"))
    lines = code.strip("\n").expandtabs(4).split("\n")
    more = len(lines) - _MOST_LINES
    shown = [f"  │ {line}".rstrip() for line in lines[:_MOST_LINES]]
    return shown if more < 1 else [*shown, f"  │ … and {more} more lines"]


def report_of(value: Any) -> CellReport | None:
    """What a result tells of a cell; None if it is no report."""
    if not isinstance(value, dict) or "index" not in value:
        return None
    try:
        return msgspec.convert(value, CellReport)
    except msgspec.ValidationError:
        return None


def outcome(report: CellReport) -> str:
    """What came of a cell, in a line."""
    if report.error is not None:
        return f"✗ {error_text(report.error)}{_place(report.error)}"
    if report.finished:
        return "gave the answer"
    return "→ no result" if report.result is None else f"→ {short_json(report.result)}"


def remarks(report: CellReport) -> list[str]:
    """What a cell printed, and what the runtime has to say about it."""
    streams = (("printed", report.stdout), ("printed to stderr", report.stderr))
    said = [f"{label}: {shortened(text)}" for label, text in streams if text.strip()]
    return [*said, *(f"note: {note}" for note in report.notes)]


def calls_made(report: CellReport) -> list[str]:
    """The calls of a cell, a line each."""
    lines = [_call_made(call) for call in report.calls[:_MOST_CALLS]]
    more = len(report.calls) - _MOST_CALLS
    return lines if more < 1 else [*lines, f"… and {more} more calls"]


def _place(error: ErrorObject) -> str:
    return "" if error.span is None else f" (line {error.span.line})"


def _call_made(call: CallMade) -> str:
    if call.error is not None:
        return f"{call.name}({call.arguments}) ✗ {error_text(call.error)}"
    return f"{call.name}({call.arguments}) → {call.status.replace('_', ' ')}"
