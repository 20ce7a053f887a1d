"""Values that contain one part many times: small in memory, but endless when walked as a tree.

Each engine is attacked in a separate process, which this one watches: an attack that succeeds exhausts the
memory or the time of its process.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_structure import CELLS, PYTHON, TYPESCRIPT

pytestmark = pytest.mark.slow

MAX_RESIDENT_MB = 1_500
MAX_S = 240
"""The time for all attacks on one engine; those that the guest's own limits end take seconds each."""
MAX_STALL_MS = 3_000
"""Generous, because other processes share the machine. Without the bound, a stall never ends."""

TOO_LARGE, REFUSED = {"RESPONSE_TOO_LARGE"}, {"REQUEST_TOO_LARGE"}
GUEST = {
    "TIMEOUT_CPU",
    "TIMEOUT_WALL",
    "MEMORY_EXCEEDED",
    "RUNTIME_ERROR",
    "STDOUT_EXCEEDED",
    "STACK_OVERFLOW",
}
"""Attacks where guest code itself walks the value, or an engine encodes it in its own process."""


def expected(engine: str, name: str) -> set[str | None]:
    """Return the codes that an attack may end with."""
    if name in ("still usable", "a move"):
        return {None}
    if name == "an exception of a tool":
        return {"TOOL_ERROR"}
    if name in ("printed", "compared", "an exception of the code"):
        return {*GUEST, None}
    if "as keys" in name:
        return {"RESULT_NOT_SERIALIZABLE", "INVALID_ARGUMENT", *(GUEST if engine == "cpython" else ())}
    host = TOO_LARGE if "result" in name else REFUSED
    by_host = "input" in name or "tool's result" in name or engine in ("monty", "auto")
    return {*host} if by_host else {*host, *GUEST}


@pytest.fixture(scope="module")
def attacked(chosen: Callable[[str, str], list[str]]) -> Callable[[str], dict[str, dict[str, Any]]]:
    """Return the outcome of each attack on an engine; those after a successful one are missing."""
    return functools.cache(lambda engine: outcomes(engine, chosen(__file__, engine)))


def outcomes(engine: str, names: list[str]) -> dict[str, dict[str, Any]]:
    script = Path(__file__).with_name("shared_structure.py")
    with (
        tempfile.TemporaryFile("w+") as told,
        subprocess.Popen(
            [sys.executable, str(script), engine, *names], stdout=told, stderr=subprocess.STDOUT
        ) as process,
    ):
        began = time.monotonic()
        while process.poll() is None:
            if _resident_mb(process.pid) > MAX_RESIDENT_MB or time.monotonic() - began > MAX_S:
                process.kill()
            time.sleep(0.05)
        told.seek(0)
        lines = told.read().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    assert process.returncode == 0, "\n".join(lines[-20:])
    return {one["name"]: one for one in found}


def _resident_mb(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


INPUTS = ["an input", "text many times, as an input", "still usable"]
ATTACKS = [
    *(("monty", name) for name in [*PYTHON, *INPUTS]),
    *(("auto", name) for name in [*PYTHON, *INPUTS, "a move"]),
    *(("cpython", name) for name in [*PYTHON, *INPUTS]),
    *(("quickjs", name) for name in [*TYPESCRIPT, *INPUTS]),
]


@pytest.mark.sampled(8, each="engine")
@pytest.mark.parametrize(("engine", "name"), ATTACKS)
def test_shared_structure_neither_freezes_nor_exhausts_the_host(
    engine: str, name: str, attacked: Callable[[str], dict[str, Any]]
) -> None:
    """Bug: the host walked a value with shared parts as a tree, in C, past every limit."""
    ended = attacked(engine)[name]
    assert ended["code"] in expected(engine, name), ended
    assert ended["stalled_ms"] < MAX_STALL_MS


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("engine", "name"), [("cells", name) for name in CELLS])
def test_shared_structure_in_a_cell_of_an_agent_is_an_error_the_model_sees(
    engine: str, name: str, attacked: Callable[[str], dict[str, Any]]
) -> None:
    """Bug: agents' cells had the same fault; the turn must continue with the next cell."""
    ended = attacked(engine)[name]
    assert ended["status"] == "over"
    if "as keys" in name:
        assert ended["code"] == "RESULT_NOT_SERIALIZABLE"
    else:
        assert ended["code"] in {"RESPONSE_TOO_LARGE", "REQUEST_TOO_LARGE", "RUNTIME_ERROR"}
    assert ended["stalled_ms"] < MAX_STALL_MS
