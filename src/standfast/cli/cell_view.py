"""Cells for people: the code, its output and calls, and its result.

A cell is a call of `run_code` whose result is a `CellReport`. Rule: any other call or result is shown like a
call of any tool.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.cli.output import error_text, short_json, shortened
from standfast.model.cell import RUN_CODE, CellReport
from standfast.model.message import ToolCall

_MOST_LINES: Final = 60

_MOST_CALLS: Final = 20


def is_cell(call: ToolCall) -> bool:
    return call.name == RUN_CODE and not call.parent and isinstance((call.arguments or {}).get("code"), str)


def code_lines(call: ToolCall) -> list[str]:
    """Return the code of a cell as lines; those beyond the limit are counted."""
    code = str((call.arguments or {}).get("code"))
    lines = code.strip("\n").expandtabs(4).split("\n")
    more = len(lines) - _MOST_LINES
    shown = [f"  │ {line}".rstrip() for line in lines[:_MOST_LINES]]
    return shown if more < 1 else [*shown, f"  │ … and {more} more lines"]


def report_of(value: Any) -> CellReport | None:
    """Convert a result to the report of a cell; None if it is not one."""
    if not isinstance(value, dict) or "index" not in value:
        return None
    try:
        return msgspec.convert(value, CellReport)
    except msgspec.ValidationError:
        return None


def outcome(report: CellReport) -> str:
    """Describe the result of a cell in one line."""
    if report.error is not None:
        place = "" if report.error.span is None else f" (line {report.error.span.line})"
        return f"✗ {error_text(report.error)}{place}"
    if report.finished:
        return "gave the answer"
    return "→ no result" if report.result is None else f"→ {short_json(report.result)}"


def remarks(report: CellReport) -> list[str]:
    """Return the output of a cell and the runtime's notes about it, one line each."""
    streams = (("printed", report.stdout), ("printed to stderr", report.stderr))
    said = [f"{label}: {shortened(text)}" for label, text in streams if text.strip()]
    return [*said, *(f"note: {note}" for note in report.notes)]


def calls_made(report: CellReport) -> list[str]:
    """Return the calls of a cell, one line each."""
    lines = []
    for call in report.calls[:_MOST_CALLS]:
        end = f"→ {call.status.replace('_', ' ')}" if call.error is None else f"✗ {error_text(call.error)}"
        lines.append(f"{call.name}({call.arguments}) {end}")
    more = len(report.calls) - _MOST_CALLS
    return lines if more < 1 else [*lines, f"… and {more} more calls"]
