"""The table of engines and behaviours: how it is opened, gathered and printed."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from behaviours import ENGINES, GROUPS
from behaviours.printing import Cells, table
from behaviours.stage import Host

_numbers = itertools.count()
_cells: Cells = {}
Hosts = Callable[[str], Host]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption(
        "--conformance-table", action="store_true", default=False, help="print what each engine does"
    )
    group.addoption(
        "--conformance-write",
        action="store_true",
        default=False,
        help="write what each engine cannot do into docs/engines.md",
    )


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """A sandbox for each engine, opened at its first use; all have one key for their snapshots."""
    with ExitStack() as stack:
        opened: dict[str, Host] = {}

        def get(engine: str) -> Host:
            if engine not in opened:
                opened[engine] = stack.enter_context(Host(engine, ENGINES[engine]).opened())
            return opened[engine]

        yield get


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what became of a cell."""
    given = dict(report.user_properties)
    if "cell" not in given or (report.when != "call" and report.passed):
        return
    engine, name, said = given["cell"]
    if report.passed or (report.skipped and hasattr(report, "wasxfail")):
        _cells[engine, name] = "BUG" if report.skipped else said
    else:
        _cells[engine, name] = "FAILED"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--conformance-table", default=False):
        terminalreporter.write_line("")
        terminalreporter.write(table(GROUPS, _cells))
