"""Every engine against every behaviour: each cell of the table is a test."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from behaviours import ENGINES, GROUPS, Behaviour
from behaviours.stage import Stage

pytestmark = pytest.mark.slow

_numbers = itertools.count()
_SHARED = {"cpython": tuple(GROUPS), "auto": ("Python standard library",)}
"""Where sessions are shared. On `auto`, each row shows whether it moves a session, except for modules."""


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
def test_an_engine_behaves_as_the_table_says(
    group: str,
    row: Behaviour,
    engine: str,
    hosts: Any,
    record_property: Callable[[str, Any], None],
) -> None:
    """Ours: one conformance suite; what an engine does not support is refused with a typed error."""
    record_property("cell", (engine, row.name, row.cell(engine)))
    row.show(_stage(hosts, engine, group, row))


def _stage(hosts: Any, engine: str, group: str, row: Behaviour) -> Stage:
    texts = row.texts(engine)
    assert texts is not None
    return Stage(
        host=hosts.get(engine),
        engine=engine,
        language=ENGINES[engine],
        texts=texts,
        session=_session(engine, group, row),
        host_at=hosts.get,
    )


def _session(engine: str, group: str, row: Behaviour) -> str:
    """Return a new session, or that of the group where a session is a process."""
    if row.fresh or engine not in _SHARED or group not in _SHARED[engine]:
        return f"s{next(_numbers)}"
    return f"group{list(GROUPS).index(group)}{'monty' in row.refused}"


def test_every_row_has_a_unique_name() -> None:
    """Ours: a cell is identified by its engine and its behaviour."""
    names = [row.name for behaviours in GROUPS.values() for row in behaviours]
    assert len(names) == len(set(names))


def test_auto_supports_whatever_cpython_supports() -> None:
    """Ours: a user of `auto` must not run into the limitations of Monty."""
    for behaviours in GROUPS.values():
        for row in behaviours:
            if row.texts("cpython") is not None:
                assert ("auto" in row.refused) == ("cpython" in row.refused), row.name
