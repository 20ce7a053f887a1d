"""The cost of an import, and the names that the package exports."""

from __future__ import annotations

import compileall
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import standfast
from standfast.runtime.agent_runtime import open_store
from standfast.store.memory_sessions import MemorySessionStore


def _loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()} | set(done.stdout.split())


HEAVY = {
    "pydantic_monty", "httpx2", "apsw", "griffe", "click", "rich", "asyncio", "pydantic", "sqlite3",
    "jsonschema_rs", "anyio", "ssl", "msgspec",
}  # fmt: skip


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Ours: importing the package must be fast."""
    assert _loaded_by("import standfast") & HEAVY == set()


def test_declaring_tools_loads_neither_engine_nor_store_nor_network() -> None:
    """Ours: many programs import tools without running them."""
    loaded = _loaded_by("from standfast import tool\n@tool\ndef f(x: int) -> int:\n    'Doc.'\n    return x")
    assert loaded & (HEAVY - {"msgspec"}) == set()


def test_importing_agent_and_runtime_loads_neither_sessions_nor_turns_nor_protocols() -> None:
    """Ours: a program that only declares its agents does not pay for what runs them."""
    loaded = _loaded_by("from standfast import Agent, Runtime, tool; Agent; Runtime")
    running = {
        f"standfast.{name}" for name in ("graph", "machine", "protocols", "runtime.sessions", "sandbox")
    }
    assert loaded & (running | {"standfast.durable.driver", "standfast.plugins.session"}) == set()


def test_an_in_memory_sandbox_loads_neither_store_nor_network() -> None:
    """Ours: unused packages are not loaded."""
    loaded = _loaded_by("from standfast import BlockingSandbox\nwith BlockingSandbox() as b:\n    b.run('1')")
    assert loaded & {"httpx2", "apsw", "griffe", "click", "rich", "pydantic"} == set()


@pytest.mark.parametrize("name", sorted(set(standfast.__all__)))
def test_every_public_name_can_be_imported(name: str) -> None:
    """Ours: every exported name exists."""
    assert getattr(standfast, name) is not None
    assert name in dir(standfast)


def test_a_missing_name_raises_an_attribute_error() -> None:
    """Ours: lazy loading must not change the error for a missing name."""
    with pytest.raises(AttributeError):
        standfast.nope  # noqa: B018 - reading it is the test


_LAZY = (
    "",
    ".client",
    ".plugins",
    ".plugins.shipped",
    ".providers",
    ".server",
    ".store",
    ".testing",
    ".tools",
    ".trace",
)


@pytest.mark.parametrize("package", _LAZY)
def test_a_package_exports_the_names_that_type_checkers_see(package: str) -> None:
    """Ours: the names that are loaded lazily are those that type checkers see."""
    module = import_module(f"standfast{package}")
    seen = re.findall(r"^ *from \S+ import (\w+) as", Path(str(module.__file__)).read_text(), re.MULTILINE)
    assert sorted(set(module.__all__) - {"__version__"}) == sorted(seen)


@pytest.mark.slow
def test_the_package_works_without_its_source(tmp_path: Path) -> None:
    """Bug: packages read their own source for their exported names, so bytecode without source failed."""
    copy = tmp_path / "standfast"
    shutil.copytree(Path(str(standfast.__file__)).parent, copy)
    compileall.compile_dir(copy, quiet=2, legacy=True)
    for source in copy.rglob("*.py"):
        source.unlink()
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from standfast import Agent, __file__; print(__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str(copy / "__init__.pyc"), done.stderr


def test_the_name_of_sqlites_memory_database_opens_an_in_memory_store() -> None:
    """Bug: SQLite's name for an in-memory database created a file with that name."""
    assert isinstance(open_store(":memory:"), MemorySessionStore)
