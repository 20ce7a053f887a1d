"""How long tests take: `times.txt` lists those that need more than 50 ms of CPU time.

`make test-fast` leaves them out, and every run starts with the files that take longest. `make times` measures
them again. A line has the mean of a test's cases; a case that takes much longer has its own line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

LISTED_S = 0.05
ALONE_S = 5.0
"""A case that takes longer has its own line, and is dealt to a worker apart from the rest of its file."""

_FILE = Path(__file__).with_name("times.txt")


def read() -> dict[str, float]:
    """Return the CPU seconds of each test in the list."""
    lines = _FILE.read_text().splitlines() if _FILE.exists() else []
    return {name: float(seconds) for seconds, _, name in (line.partition(" ") for line in lines)}


def of(item: pytest.Item, listed: Mapping[str, float]) -> float:
    """Return the CPU seconds of *item*, 0 if it is not in the list."""
    found = listed.get(item.nodeid)
    return listed.get(item.nodeid.partition("[")[0], 0.0) if found is None else found


def write(measured: Mapping[str, float]) -> None:
    """Write the list from the seconds of each case of a run. Tests that were not run keep their lines."""
    cases: dict[str, dict[str, float]] = defaultdict(dict)
    for nodeid, seconds in measured.items():
        cases[nodeid.partition("[")[0]][nodeid] = seconds
    listed = {name: sum(each.values()) / len(each) for name, each in cases.items()}
    for each in cases.values():
        if len(each) > 1:
            listed |= {name: s for name, s in each.items() if s >= ALONE_S and name.isprintable()}
    kept = {name: seconds for name, seconds in read().items() if name.partition("[")[0] not in cases}
    lines = [f"{seconds:.2f} {name}\n" for name, seconds in (kept | listed).items() if seconds >= LISTED_S]
    _FILE.write_text("".join(sorted(lines, key=lambda line: line.partition(" ")[2])))
