"""What the model reads of a cell that ran.

Theory of operation
-------------------
An observation is a head line and a few sections, each under its title and only if it has something to say::

    [cell 3] failed
    stdout:
    12 orders
    error:
    RUNTIME_ERROR: ZeroDivisionError: division by zero
      4 | share = total / count
        |                 ^
    calls:
    orders(customer="A1") -> ok

Calls are written as the session's language writes them: in TypeScript, `orders({customer: "A1"})`.

Rules
-----
1. It is never longer than its budget. Sections have equal shares; what short ones leave goes to long ones.
2. A long text is cut in its middle, between lines where it can be, and says there how much is missing and how
   the next cell reads the whole.
3. The head line is never cut: it alone says whether the cell ran at all.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from standfast.errors import ErrorObject, Span
from standfast.model.canonical import Json
from standfast.model.capability import CallStatus
from standfast.model.cell import CallMade, CellReport
from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language

NOT_EXECUTED: Final = "nothing was executed"
"""The note of a cell that was refused before it ran. It is said in the head line."""

AS_JSON: Final = {
    Language.PYTHON: "list(...), str(...)",
    Language.TYPESCRIPT: "[...x], String(x)",
}
"""How code makes JSON of what is none."""

_LINE_CHARS: Final = 100
"""JSON that fits on a line is shown on one."""

_INDENTED_CHARS: Final = 1_200
"""JSON longer than that has no room for the beauty of an indent."""

_SOURCE_CHARS: Final = 120
"""So much of a line of code is shown, around the column that matters."""

_MESSAGE_CHARS: Final = 200
_MOST_DIAGNOSTICS: Final = 8
_MOST_CALLS: Final = 12
"""More calls than that are counted; then the first few and the failed ones are shown."""

_FIRST_CALLS: Final = 4
_FAILED_CALLS: Final = 6
_MOST_NAMES: Final = 8


class _Section(NamedTuple):
    """A part of an observation. `key` is where `history` has the whole of it."""

    title: str
    text: str
    key: str | None = None


def observation(report: CellReport, code: str, *, budget_chars: int = 8_000) -> str:
    """What the model reads of a cell, in at most *budget_chars* characters."""
    sections = _sections(report, code)
    head = _head_line(report, is_empty=not sections)
    titles = sum(len(section.title) + 1 for section in sections)
    room = max(0, budget_chars - len(head) - titles - len(sections))
    shares = fair_shares([len(section.text) for section in sections], room)
    parts = [_rendered(section, share, report.index) for section, share in zip(sections, shares, strict=True)]
    return "\n".join([head, *parts])[:budget_chars]


def short_arguments(
    arguments: dict[str, Json] | None, limit: int = 120, language: Language = Language.PYTHON
) -> str:
    """The arguments of a call as they would be written, each cut to its share of *limit*."""
    if not arguments:
        return ""
    if language is Language.TYPESCRIPT:
        names = [f"{name}: " if name.isidentifier() else f"{json_text(name)}: " for name in arguments]
        return cut_end(f"{{{_named(names, arguments, limit - 2)}}}", limit)
    return _named([f"{name}=" for name in arguments], arguments, limit)


def _named(names: Sequence[str], arguments: dict[str, Json], limit: int) -> str:
    values = [_value_text(value, limit) for value in arguments.values()]
    room = max(0, limit - sum(map(len, names)) - 2 * (len(names) - 1))
    shares = fair_shares([len(value) for value in values], room)
    pieces = map("".join, zip(names, map(cut_end, values, shares), strict=True))
    return cut_end(", ".join(pieces), limit)


def fair_shares(lengths: Sequence[int], room: int) -> list[int]:
    """How much of *room* each gets: the same for all, but none gets more than it needs."""
    if sum(lengths) <= room:
        return list(lengths)
    shares = [0] * len(lengths)
    shortest_first = sorted(range(len(lengths)), key=lengths.__getitem__)
    for done, at in enumerate(shortest_first):
        shares[at] = min(lengths[at], room // (len(lengths) - done))
        room -= shares[at]
    return shares


def cut_end(text: str, room: int) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= room else text[: max(0, room - 1)] + "…"[:room]


def cut_middle(text: str, room: int, where: str | None = None) -> str:
    """Head and tail of a text that is too long, and between them how much is missing and *where* it is."""
    if len(text) <= room:
        return text
    keep = room - len(_marker(len(text), where)) - 2
    if keep < 2:
        return cut_end(text, room)
    head, tail = _head(text, keep - keep // 2), _tail(text, keep // 2)
    return f"{head}\n{_marker(len(text) - len(head) - len(tail), where)}\n{tail}"


def json_text(value: Json) -> str:
    """A value as JSON on one line."""
    return msgspec.json.encode(value).decode()


# Head and sections


def _head_line(report: CellReport, *, is_empty: bool) -> str:
    if NOT_EXECUTED in report.notes:
        return f"[cell {report.index}] failed, {NOT_EXECUTED}"
    head = f"[cell {report.index}] {'ok' if report.error is None else 'failed'}"
    if not is_empty:
        return head
    return f"{head}, {'finished' if report.finished else 'no output'}"


def _sections(report: CellReport, code: str) -> list[_Section]:
    """The parts that have something to say."""
    found: list[_Section] = []
    if stdout := _trimmed(report.stdout):
        lost = ", the rest was too long and is lost" if report.truncated else ""
        found.append(_Section(f"stdout{lost}:", stdout, "stdout"))
    if stderr := _trimmed(report.stderr):
        found.append(_Section("stderr:", stderr, "stderr"))
    if report.result is not None:
        found.append(_Section("result:", _result_text(report.result), "result"))
    if report.error is not None:
        found.append(_Section("error:", _problem(report.error, code), "error"))
    if report.diagnostics and (diagnostics := _diagnostics_text(report, code)):
        found.append(_Section("diagnostics:", diagnostics))
    if report.calls:
        found.append(_Section("calls:", _calls_text(report.calls)))
    if report.notes and (notes := "\n".join(note for note in report.notes if note != NOT_EXECUTED)):
        found.append(_Section("notes:", notes))
    return found


def _rendered(section: _Section, share: int, index: int) -> str:
    where = None if section.key is None else f'history[{index}]["{section.key}"]'
    return f"{section.title}\n{cut_middle(section.text, share, where)}"


def _trimmed(text: str) -> str:
    """Without the line's end that every print leaves; output of nothing but blanks is none."""
    return text.removesuffix("\n") if text.strip() else ""


def _result_text(result: Json) -> str:
    if isinstance(result, str):
        return result or '""'
    text = json_text(result)
    if len(text) <= _LINE_CHARS or len(text) > _INDENTED_CHARS:
        return text
    return msgspec.json.format(text, indent=2)


# Errors and diagnostics


def _diagnostics_text(report: CellReport, code: str) -> str:
    """All that was found in the code, but not again what the error says already."""
    error = report.error
    said = None if error is None else (error.code, error.message)
    found = [one for one in report.diagnostics if (one.code, one.message) != said]
    texts = [f"{one.severity} {_problem(one, code)}" for one in found[:_MOST_DIAGNOSTICS]]
    if len(found) > _MOST_DIAGNOSTICS:
        texts.append(f"… and {len(found) - _MOST_DIAGNOSTICS} more")
    return "\n".join(texts)


def _problem(problem: ErrorObject | Diagnostic, code: str) -> str:
    """Code, message, the line that it is about, and what to do."""
    lines = [f"{problem.code}: {problem.message}"]
    if problem.span is not None:
        lines += _source(code, problem.span)
    if problem.hint:
        lines.append(f"hint: {problem.hint}")
    return "\n".join(lines)


def _source(code: str, span: Span) -> list[str]:
    """The line that a span begins in, and a caret under its column; nothing if there is no such line."""
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


# Calls


def _calls_text(calls: Sequence[CallMade]) -> str:
    if len(calls) <= _MOST_CALLS:
        return "\n".join(map(_call_line, calls))
    shown = _shown_calls(calls)
    lines = [_calls_counted(calls)]
    for before, at in itertools.pairwise([-1, *shown]):
        lines += ["…"] * (at > before + 1) + [_call_line(calls[at])]
    return "\n".join(lines if shown[-1] == len(calls) - 1 else [*lines, "…"])


def _shown_calls(calls: Sequence[CallMade]) -> list[int]:
    """The places of the first few calls and of the first failed ones."""
    failed = (at for at, call in enumerate(calls) if call.status is not CallStatus.OK)
    return sorted({*range(_FIRST_CALLS), *itertools.islice(failed, _FAILED_CALLS)})


def _calls_counted(calls: Iterable[CallMade]) -> str:
    """How many calls there were of each name, and how many were not ok."""
    names = Counter(call.name for call in calls)
    failed = sum(call.status is not CallStatus.OK for call in calls)
    counts = [f"{cut_end(name, 60)} × {count}" for name, count in names.most_common(_MOST_NAMES)]
    if len(names) > _MOST_NAMES:
        counts.append(f"{len(names) - _MOST_NAMES} others")
    end = f"; {failed} not ok" if failed else "; all ok"
    return f"{names.total()} calls: {', '.join(counts)}{end}"


def _call_line(call: CallMade) -> str:
    line = f"{cut_end(call.name, 60)}({call.arguments}) -> {call.status.replace('_', ' ')}"
    if call.error is None:
        return line
    return f"{line}: {cut_end(' '.join(call.error.message.split()), _MESSAGE_CHARS)}"


def _value_text(value: Json, limit: int) -> str:
    """A value as JSON. A long text is cut before, since most of it would be thrown away."""
    return json_text(value[: limit + 1] if isinstance(value, str) else value)


# Cutting


def _marker(count: int, where: str | None) -> str:
    whole = f"; the whole is {where}" if where else ""
    return f"… {count:,} characters left out{whole} …"


def _head(text: str, room: int) -> str:
    """The beginning, to the end of a line if one is near."""
    if text[room : room + 1] == "\n":
        return text[:room]
    end = text.rfind("\n", 0, room)
    return text[: end if end > room // 2 else room]


def _tail(text: str, room: int) -> str:
    """The end, from the beginning of a line if one is near."""
    start = len(text) - room
    line = text.find("\n", start - 1) + 1
    return text[line if start <= line <= start + room // 2 else start :]
