"""Observations: the text about a cell's run that the model reads.

An observation is a head line and a few sections, each only if it is not empty::

    [cell 3] failed
    stdout:
    12 orders
    error:
    RUNTIME_ERROR: ZeroDivisionError: division by zero
      4 | share = total / count
        |                 ^
    calls:
    orders(customer="A1") -> ok

Calls are written in the session's language: in TypeScript, `orders({customer: "A1"})`.

Rules
-----
1. It is never longer than its budget. Sections have equal shares; long ones also get what short ones do not
   use.
2. A long text is cut in the middle; a note there says how the next cell can read the whole.
3. The head line is never cut, because it alone says whether the cell ran at all.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from standfast.errors import ErrorObject, Span
from standfast.model.canonical import Json
from standfast.model.capability import CallStatus
from standfast.model.code import CallMade, CellReport, Diagnostic, Language
from standfast.protocols.standard.cut_report import cut_end, cut_middle, json_text

NOT_EXECUTED: Final = "nothing was executed"
"""The note of a cell that was refused before it ran; it is part of the head line."""
AS_JSON: Final = {Language.PYTHON: "list(...), str(...)", Language.TYPESCRIPT: "[...x], String(x)"}
"""How code converts other values to JSON."""
_LINE_CHARS: Final = 100
_INDENTED_CHARS: Final = 1_200
"""JSON is indented if it has more than `_LINE_CHARS` and at most `_INDENTED_CHARS`."""
_SOURCE_CHARS: Final = 120
"""How much of a line of code is shown, around the column of the error."""
_MESSAGE_CHARS: Final = 200
_MOST_DIAGNOSTICS: Final = 8
_MOST_CALLS: Final = 12
"""If a cell made more calls than this, only the first few and the failed ones are shown, and a count."""
_FIRST_CALLS: Final = 4
_FAILED_CALLS: Final = 6
_MOST_NAMES: Final = 8


class _Section(NamedTuple):
    """A part of an observation. `key` is the key under which `history` has the whole text."""

    title: str
    text: str
    key: str | None = None


def observation(report: CellReport, code: str, *, budget_chars: int = 8_000) -> str:
    """Return the text that the model reads of a cell, at most *budget_chars* characters."""
    sections = _sections(report, code)
    head = f"[cell {report.index}] {'ok' if report.error is None else 'failed'}"
    if NOT_EXECUTED in report.notes:
        head = f"[cell {report.index}] failed, {NOT_EXECUTED}"
    elif not sections:
        head += f", {'finished' if report.finished else 'no output'}"
    titles = sum(len(section.title) + 1 for section in sections)
    room = max(0, budget_chars - len(head) - titles - len(sections))
    shares = fair_shares([len(section.text) for section in sections], room)
    parts = [head]
    for section, share in zip(sections, shares, strict=True):
        where = None if section.key is None else f'history[{report.index}]["{section.key}"]'
        parts.append(f"{section.title}\n{cut_middle(section.text, share, where)}")
    return "\n".join(parts)[:budget_chars]


def short_arguments(
    arguments: dict[str, Json] | None, limit: int = 120, language: Language = Language.PYTHON
) -> str:
    """Return the arguments of a call as code, each cut to its share of *limit*."""
    if not arguments:
        return ""
    if language is Language.TYPESCRIPT:
        names = [f"{name}: " if name.isidentifier() else f"{json_text(name)}: " for name in arguments]
        return cut_end(f"{{{_named(names, arguments, limit - 2)}}}", limit)
    return _named([f"{name}=" for name in arguments], arguments, limit)


def _named(names: Sequence[str], arguments: dict[str, Json], limit: int) -> str:
    # Cut long strings before encoding them, since most of their JSON would be discarded.
    values = [json_text(one[: limit + 1] if isinstance(one, str) else one) for one in arguments.values()]
    room = max(0, limit - sum(map(len, names)) - 2 * (len(names) - 1))
    shares = fair_shares([len(value) for value in values], room)
    pieces = map("".join, zip(names, map(cut_end, values, shares), strict=True))
    return cut_end(", ".join(pieces), limit)


def fair_shares(lengths: Sequence[int], room: int) -> list[int]:
    """Divide *room* equally among parts, but give no part more than its length."""
    if sum(lengths) <= room:
        return list(lengths)
    shares = [0] * len(lengths)
    shortest_first = sorted(range(len(lengths)), key=lengths.__getitem__)
    for done, at in enumerate(shortest_first):
        shares[at] = min(lengths[at], room // (len(lengths) - done))
        room -= shares[at]
    return shares


def _sections(report: CellReport, code: str) -> list[_Section]:
    found: list[_Section] = []
    lost = ", the rest was too long and is lost" if report.truncated else ""
    for title, text, key in (
        (f"stdout{lost}:", report.stdout, "stdout"),
        ("stderr:", report.stderr, "stderr"),
    ):
        if text.strip():
            found.append(_Section(title, text.removesuffix("\n"), key))
    if report.result is not None:
        found.append(_Section("result:", _result_text(report.result), "result"))
    if report.error is not None:
        found.append(_Section("error:", _problem(report.error, code), "error"))
    if report.diagnostics and (diagnostics := _diagnostics_text(report, code)):
        found.append(_Section("diagnostics:", diagnostics))
    if report.calls:
        found.append(_Section("calls:", _calls_text(report.calls)))
    beside = [
        "\n".join([f"{cut_end(call.name, 60)}({call.arguments}):", *call.texts])
        for call in report.calls
        if call.texts
    ]
    if beside:
        found.append(_Section("text beside results:", "\n".join(beside), "texts"))
    if report.notes and (notes := "\n".join(note for note in report.notes if note != NOT_EXECUTED)):
        found.append(_Section("notes:", notes))
    return found


def _result_text(result: Json) -> str:
    if isinstance(result, str):
        return result or '""'
    text = json_text(result)
    if len(text) <= _LINE_CHARS or len(text) > _INDENTED_CHARS:
        return text
    return msgspec.json.format(text, indent=2)


def _diagnostics_text(report: CellReport, code: str) -> str:
    """Return the diagnostics that do not repeat the error."""
    error = report.error
    said = None if error is None else (error.code, error.message)
    found = [one for one in report.diagnostics if (one.code, one.message) != said]
    texts = [f"{one.severity} {_problem(one, code)}" for one in found[:_MOST_DIAGNOSTICS]]
    if len(found) > _MOST_DIAGNOSTICS:
        texts.append(f"… and {len(found) - _MOST_DIAGNOSTICS} more")
    return "\n".join(texts)


def _problem(problem: ErrorObject | Diagnostic, code: str) -> str:
    """Return code, message, source line and hint of a problem."""
    lines = [f"{problem.code}: {problem.message}"]
    if problem.span is not None:
        lines += _source(code, problem.span)
    if problem.hint:
        lines.append(f"hint: {problem.hint}")
    return "\n".join(lines)


def _source(code: str, span: Span) -> list[str]:
    """Return the line where a span begins and a caret under its column; nothing if there is no such line."""
    lines = code.split("\n")
    if not 1 <= span.line <= len(lines):
        return []
    line, column = lines[span.line - 1].rstrip("\r").replace("\t", " "), max(0, span.column - 1)
    start = max(0, min(column, len(line)) - _SOURCE_CHARS // 2) if len(line) > _SOURCE_CHARS else 0
    before, after = "…" if start else "", "…" if len(line) > start + _SOURCE_CHARS else ""
    gutter = f"  {span.line} | "
    indent = len(before) + min(column, len(line)) - start
    return [
        f"{gutter}{before}{line[start : start + _SOURCE_CHARS]}{after}",
        f"{'| '.rjust(len(gutter))}{' ' * indent}^",
    ]


def _calls_text(calls: Sequence[CallMade]) -> str:
    if len(calls) <= _MOST_CALLS:
        return "\n".join(map(_call_line, calls))
    not_ok = [at for at, call in enumerate(calls) if call.status is not CallStatus.OK]
    shown = sorted({*range(_FIRST_CALLS), *not_ok[:_FAILED_CALLS]})
    names = Counter(call.name for call in calls)
    counts = [f"{cut_end(name, 60)} × {count}" for name, count in names.most_common(_MOST_NAMES)]
    if len(names) > _MOST_NAMES:
        counts.append(f"{len(names) - _MOST_NAMES} others")
    end = f"{len(not_ok)} not ok" if not_ok else "all ok"
    lines = [f"{len(calls)} calls: {', '.join(counts)}; {end}"]
    for before, at in itertools.pairwise([-1, *shown]):
        lines += ["…"] * (at > before + 1) + [_call_line(calls[at])]
    return "\n".join(lines if shown[-1] == len(calls) - 1 else [*lines, "…"])


def _call_line(call: CallMade) -> str:
    line = f"{cut_end(call.name, 60)}({call.arguments}) -> {call.status.replace('_', ' ')}"
    if call.error is None:
        return line
    return f"{line}: {cut_end(' '.join(call.error.message.split()), _MESSAGE_CHARS)}"
