"""The table as text, and the part of it that the page about engines holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from behaviours.behaviour import ENGINES, Behaviour

Cells = dict[tuple[str, str], str]
Groups = Mapping[str, list[Behaviour]]
_NAME = 78
_COLUMN = 13
_SHORT = {
    "UNSUPPORTED_FEATURE": "UNSUPPORTED",
    "RESULT_NOT_SERIALIZABLE": "NOT_JSON",
    "RUNTIME_ERROR": "RUNTIME",
    "SYNTAX_ERROR": "SYNTAX",
}
"""Codes in a cell of the printed table; the page about engines has them in full."""


def table(groups: Groups, cells: Cells) -> str:
    """Every behaviour with what became of it on each engine, and the sum for each engine."""
    return "\n".join([*_lines(groups, cells), *_sums(groups, cells), ""])


def _lines(groups: Groups, cells: Cells) -> Iterator[str]:
    for group, behaviours in groups.items():
        yield ""
        yield _line(group.upper(), ENGINES)
        for row in behaviours:
            yield _line(row.name, [_shown(cell_of(row, engine, cells)) for engine in ENGINES])


def cell_of(row: Behaviour, engine: str, cells: Cells) -> str:
    if row.texts(engine) is None:
        return "n/a"
    return cells.get((engine, row.name), "not run")


def _shown(cell: str) -> str:
    code = cell.removeprefix("refused: ")
    return cell if code == cell else f"refused: {_SHORT.get(code, code)}"


def _line(name: str, columns: Iterator[str] | list[str] | dict[str, str]) -> str:
    return f"{name:<{_NAME}}  " + "".join(f"{item:<22}" for item in columns).rstrip()


def _sums(groups: Groups, cells: Cells) -> Iterator[str]:
    counted = {
        engine: Counter(
            cell_of(row, engine, cells).partition(":")[0]
            for behaviours in groups.values()
            for row in behaviours
        )
        for engine in ENGINES
    }
    yield ""
    yield _line("IN ALL", ENGINES)
    for kind in ("ok", "refused", "BUG", "FAILED", "not run", "n/a"):
        if any(counts[kind] for counts in counted.values()):
            yield _line(kind, [str(counts[kind]) for counts in counted.values()])


def limits_of(engine: str, groups: Groups) -> str:
    """What an engine cannot do, as a list in Markdown."""
    lines: list[str] = []
    for group, behaviours in groups.items():
        refused = [row for row in behaviours if engine in row.refused]
        lines += [f"- {group}: {row.name}: `{row.refused[engine]}`" for row in refused]
    return "\n".join(lines) or "Nothing in the table."
