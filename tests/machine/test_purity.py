"""The machine and the graph do no I/O and read no clock."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import standfast.graph
import standfast.machine

FORBIDDEN = {
    "asyncio",
    "anyio",
    "socket",
    "sqlite3",
    "apsw",
    "logging",
    "random",
    "ssl",
    "httpx2",
    "threading",
}
"""Modules that do I/O, wait, or differ on each run. `time` is built in: the sources are checked for it."""

PACKAGES = ["standfast.machine", "standfast.graph.history"]

SOURCES = sorted(
    path
    for package in (standfast.machine, standfast.graph)
    for path in Path(package.__path__[0]).rglob("*.py")
)


def _loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    return set(done.stdout.split())


def _imports(path: Path) -> set[str]:
    """Return the packages that a source file imports, at any level."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name.split(".")[0] for name in found}


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_it_loads_nothing_that_waits_or_differs_on_each_run(package: str) -> None:
    """Ours: SPEC §2, `machine`, `graph` and `model` do no I/O and read no clock."""
    loaded = _loaded_by(f"import {package}")
    assert package in loaded
    assert loaded & (FORBIDDEN - {"threading"}) == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_source_names_a_clock_or_does_io(path: Path) -> None:
    """Ours: machine rule 1, the time arrives in the inputs."""
    assert _imports(path) & (FORBIDDEN | {"time", "datetime", "os", "uuid", "secrets", "pathlib"}) == set()


def test_the_machine_imports_only_values_and_errors() -> None:
    """Ours: SPEC §2, imports point down to lower layers only."""
    loaded = {name for name in _loaded_by("import standfast.machine") if name.startswith("standfast.")}
    assert {name.split(".")[1] for name in loaded} == {"machine", "model", "errors", "exports"}


def test_the_machine_has_no_coroutines() -> None:
    """Ours: the turn machine does no I/O, so it has nothing to await."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree)), path
