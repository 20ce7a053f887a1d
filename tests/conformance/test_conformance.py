"""Every engine against every behaviour: each cell of the table is a test."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from behaviours import ENGINES, GROUPS, Behaviour
from behaviours.stage import Host, Stage

_numbers = itertools.count()


def _cell(group: str, row: Behaviour, engine: str) -> Any:
    marks: list[pytest.MarkDecorator] = [pytest.mark.slow] if row.slow else []
    if engine in row.bugs:
        marks.append(pytest.mark.xfail(strict=True, reason=row.bugs[engine]))
    return pytest.param(group, row, engine, id=f"{engine}: {row.name}", marks=marks)


CELLS = [
    _cell(group, row, engine)
    for engine in ENGINES
    for group, behaviours in GROUPS.items()
    for row in behaviours
    if row.texts(engine) is not None
]


@pytest.mark.parametrize(("group", "row", "engine"), CELLS)
def test_an_engine_does_what_the_table_says(
    group: str,
    row: Behaviour,
    engine: str,
    hosts: Callable[[str], Host],
    tmp_path: Path,
    record_property: Callable[[str, Any], None],
) -> None:
    """Ours: one conformance suite; a cell that an engine cannot fill is answered by a typed error."""
    record_property("cell", (engine, row.name, row.cell(engine)))
    host = hosts(engine)
    host.done.clear()
    row.show(_stage(host, engine, group, row, tmp_path))


def _stage(host: Host, engine: str, group: str, row: Behaviour, directory: Path) -> Stage:
    language = ENGINES[engine]
    texts = row.texts(engine)
    assert texts is not None
    return Stage(
        host=host,
        engine=engine,
        language=language,
        texts=texts,
        session=_session(engine, group, row),
        directory=directory,
        open_host=lambda **options: Host(engine, language, **options),
    )


def _session(engine: str, group: str, row: Behaviour) -> str:
    """A session of its own, or that of the group. What moves a session on `auto` has one of its own."""
    if row.fresh or (engine == "auto" and "monty" in row.refused):
        return f"s{next(_numbers)}"
    return f"group{list(GROUPS).index(group)}"


def test_every_row_is_told_apart_by_its_name() -> None:
    """Ours: a cell is found by its engine and its behaviour."""
    names = [row.name for behaviours in GROUPS.values() for row in behaviours]
    assert len(names) == len(set(names))


def test_auto_does_whatever_cpython_does() -> None:
    """Ours: a user of `auto` must not meet the walls of Monty."""
    for behaviours in GROUPS.values():
        for row in behaviours:
            assert ("auto" in row.refused) <= ("cpython" in row.refused), row.name
