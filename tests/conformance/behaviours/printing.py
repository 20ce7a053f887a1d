"""The table as text, and the part of it that is on the engines page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from behaviours.behaviour import ENGINES, Behaviour

Cells = dict[tuple[str, str], str]
Groups = Mapping[str, list[Behaviour]]
Line = tuple[str, list[str]]
_NAME = 80
_KINDS = ("ok", "refused", "BUG", "FAILED", "not run", "n/a")


def table(groups: Groups, cells: Cells) -> str:
    """Return every behaviour with its outcome on each engine, and the totals for each engine."""
    lines = [*_lines(groups, cells), *_sums(groups, cells)]
    widths = [max(len(columns[at]) for _, columns in lines if columns) + 2 for at in range(len(ENGINES))]
    return "\n".join(_line(name, columns, widths) for name, columns in lines) + "\n"


def _lines(groups: Groups, cells: Cells) -> Iterator[Line]:
    for group, behaviours in groups.items():
        yield "", []
        yield group.upper(), list(ENGINES)
        for row in behaviours:
            yield row.name, [_cell(row, engine, cells) for engine in ENGINES]


def _cell(row: Behaviour, engine: str, cells: Cells) -> str:
    return "n/a" if row.texts(engine) is None else cells.get((engine, row.name), "not run")


def _sums(groups: Groups, cells: Cells) -> Iterator[Line]:
    rows = [row for behaviours in groups.values() for row in behaviours]
    counted = [Counter(_cell(row, engine, cells).partition(":")[0] for row in rows) for engine in ENGINES]
    yield "", []
    yield f"IN ALL {len(rows)} BEHAVIOURS", list(ENGINES)
    for kind in _KINDS:
        if any(counts[kind] for counts in counted):
            yield kind, [str(counts[kind]) for counts in counted]


def _line(name: str, columns: list[str], widths: list[int]) -> str:
    shown = "".join(f"{item:<{width}}" for item, width in zip(columns, widths, strict=False))
    return f"{name:<{_NAME}}  {shown}".rstrip()


def page_section(groups: Groups) -> str:
    """Return what each engine does not support, and its known faults, in Markdown."""
    parts = [f"### {engine}\n\n{_refusals(engine, groups)}" for engine in ENGINES]
    if faults := _faults(groups):
        parts.append(f"### Known faults\n\n{faults}")
    return "\n\n".join(parts) + "\n"


def _refusals(engine: str, groups: Groups) -> str:
    lines = [
        f"| {group} | {row.name} | `{row.refused[engine]}` |"
        for group, behaviours in groups.items()
        for row in behaviours
        if engine in row.refused
    ]
    return "\n".join(["| area | behaviour | error code |", "|---|---|---|", *lines]) if lines else "Nothing."


def _faults(groups: Groups) -> str:
    lines = [
        f"- `{engine}`, {row.name}: {row.bugs[engine]}."
        for engine in ENGINES
        for behaviours in groups.values()
        for row in behaviours
        if engine in row.bugs
    ]
    return "\n".join(lines)
