"""Shortening of long texts and cell reports, with notes about the omitted parts."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.code import CellReport, Diagnostic

_Problem = TypeVar("_Problem", ErrorObject, Diagnostic)

_MIN_CHARS: Final = 16
"""The minimum number of characters that are kept of a text."""


def cut_report(report: CellReport, max_chars: int) -> Json:
    """Return a shortened report whose JSON has at most *max_chars* characters, if that is possible."""
    room = max_chars // 4
    while True:
        data = msgspec.json.encode(_cut(report, room))
        if room <= _MIN_CHARS or len(data.decode()) <= max_chars:
            return msgspec.json.decode(data)
        room = max(_MIN_CHARS, room * 2 // 3)


def _cut(report: CellReport, room: int) -> CellReport:
    """Return the report with texts of at most *room* characters, and calls and notes in proportion."""
    count, result = room // 80, report.result
    text = result if isinstance(result, str) else json_text(result)
    return msgspec.structs.replace(
        report,
        stdout=cut_middle(report.stdout, room),
        stderr=cut_middle(report.stderr, room),
        result=result if len(text) <= room else cut_middle(text, room),
        error=None if report.error is None else _cut_problem(report.error, room),
        diagnostics=tuple(_cut_problem(one, room // 2) for one in report.diagnostics[:count]),
        calls=tuple(
            msgspec.structs.replace(
                call,
                name=cut_end(call.name, 80),
                arguments=cut_end(call.arguments, 160),
                error=call.error and _cut_problem(call.error, 80),
                texts=tuple(cut_end(text, room // 2) for text in call.texts[:count]),
            )
            for call in report.calls[:count]
        ),
        notes=tuple(cut_end(note, room // 2) for note in report.notes[:count]),
    )


def _cut_problem(problem: _Problem, room: int) -> _Problem:
    hint = problem.hint and cut_end(problem.hint, room // 2)
    return msgspec.structs.replace(problem, message=cut_middle(problem.message, room), hint=hint)


def json_text(value: Json) -> str:
    """Return a value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def cut_end(text: str, room: int) -> str:
    """Return the beginning of a text that is longer than *room*."""
    return text if len(text) <= room else text[: max(0, room - 1)] + "…"[:room]


def cut_middle(text: str, room: int, where: str | None = None) -> str:
    """Return the head and tail of a long text, cut at lines if possible, and a note that names the whole."""
    if len(text) <= room:
        return text
    keep = room - len(_marker(len(text), where)) - 2
    if keep < 2:
        return cut_end(text, room)
    head, tail = keep - keep // 2, len(text) - keep // 2
    if text[head : head + 1] != "\n":
        end = text.rfind("\n", 0, head)
        head = end if end > head // 2 else head
    line = text.find("\n", tail - 1) + 1
    tail = line if tail <= line <= tail + (keep // 2) // 2 else tail
    return f"{text[:head]}\n{_marker(tail - head, where)}\n{text[tail:]}"


def _marker(count: int, where: str | None) -> str:
    whole = f"; {where} has all of it" if where else ""
    return f"… {count:,} characters left out{whole} …"
