"""The table of engines and behaviours: how it is opened, collected and printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from behaviours import ENGINES, GROUPS
from behaviours.printing import Cells, table
from behaviours.stage import Host

_cells: Cells = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption(
        "--conformance-table", action="store_true", default=False, help="print what each engine does"
    )
    group.addoption(
        "--conformance-write",
        action="store_true",
        default=False,
        help="write what each engine cannot do into docs/guides/engines.md",
    )


class Hosts:
    """Three sandboxes for each engine, opened at first use: one in memory, and two over one directory."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self._opened: dict[tuple[str, str], Host] = {}

    def get(self, engine: str, place: str = "memory") -> Host:
        if (engine, place) not in self._opened:
            stored = {} if place == "memory" else {"data_dir": self._directory / engine}
            host = Host(engine, ENGINES[engine], **stored)
            self._opened[engine, place] = self._stack.enter_context(host.opened())
        return self._opened[engine, place]

    def clear_logs(self) -> None:
        for host in self._opened.values():
            host.done.clear()


@pytest.fixture(scope="session")
def all_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(stack, tmp_path_factory.mktemp("conformance"))


@pytest.fixture
def hosts(all_hosts: Hosts) -> Hosts:
    """Return the sandboxes with empty logs."""
    all_hosts.clear_logs()
    return all_hosts


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of a cell."""
    given: dict[str, Any] = dict(report.user_properties)
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
