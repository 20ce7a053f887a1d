"""What an import costs, and what the package shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

import standfast


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
    assert loaded & {"pydantic_monty", "httpx2", "apsw", "griffe", "click", "rich", "pydantic"} == set()


def test_a_sandbox_in_memory_loads_neither_store_nor_network() -> None:
    """Ours: unused packages are not loaded."""
    loaded = _loaded_by("from standfast import BlockingSandbox\nwith BlockingSandbox() as b:\n    b.run('1')")
    assert loaded & {"httpx2", "apsw", "griffe", "click", "rich", "pydantic"} == set()


@pytest.mark.parametrize("name", sorted(set(standfast.__all__)))
def test_every_public_name_can_be_imported(name: str) -> None:
    """Ours: every listed name exists."""
    assert getattr(standfast, name) is not None
    assert name in dir(standfast)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """Ours: lazy loading must not change what a missing name is."""
    with pytest.raises(AttributeError):
        standfast.nope  # noqa: B018 - reading it is the test
