"""Finding the agents of a command line by module or file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from standfast.errors import NotConfigured
from standfast.runtime.app import load_app

_SOURCE = """
from standfast import Agent, Runtime

agent = Agent("scripted:none.json", name="one")
agents = [agent, Agent("scripted:none.json", name="two")]
by_name = {"first": agent}


def runtime(store):
    return Runtime(store, agents=agents, lease_s=5)


def fixed():
    return Runtime(agents=agents)


made = fixed()


def broken():
    raise ValueError("no key")


async def later(store):
    return Runtime(store)


nothing: list[Agent] = []
text = "agent"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop_agents.py"
    path.write_text(_SOURCE)
    return path


def test_an_app_is_an_agent_several_agents_or_a_function_that_creates_a_runtime(file: Path) -> None:
    """Ours: the worker and the server run the same APP."""
    assert [one.name for one in load_app(f"{file}:agent").agents] == ["one"]
    assert [one.name for one in load_app(f"{file}:agents").agents] == ["one", "two"]
    assert [one.name for one in load_app(f"{file}:by_name").agents] == ["one"]
    assert [one.name for one in load_app(str(file)).agents] == ["one"]
    made = load_app(f"{file}:runtime").runtime(file.with_name("shop.db"))
    assert not made.is_open
    assert not load_app(f"{file}:fixed").runtime().is_open
    assert list(load_app(f"{file}:made").runtime().agents) == ["one", "two"]


def test_an_app_is_also_found_as_a_module_in_the_working_directory(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: `standfast worker shop_agents:agent` works in the directory of `shop_agents.py`."""
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert [one.name for one in load_app("shop_agents:agent").agents] == ["one"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_shop", "no_shop cannot be imported"),
        (":agent", "does not name an app"),
        ("no_such_module_here:agent", "cannot be imported: ModuleNotFoundError"),
        ("no/such/file.py:agent", "does not exist"),
        ("{file}:missing", "has no 'missing'"),
        ("{file}:nothing", "is list, not an app"),
        ("{file}:text", "is str, not an app"),
        ("{file}:Agent", "is type, not an app"),
    ],
)
def test_a_value_that_is_not_an_app_is_refused_with_the_accepted_forms(
    file: Path, name: str, problem: str
) -> None:
    """Ours: the error names the value and shows the accepted forms."""
    with pytest.raises(NotConfigured, match=problem) as refused:
        load_app(name.format(file=file))
    assert refused.value.hint


def test_a_runtime_function_that_ignores_the_store_or_fails_is_refused(file: Path) -> None:
    """Ours: --store is never silently ignored."""
    with pytest.raises(NotConfigured, match=r"takes no argument, .* postgresql://me:\*\*\*@host/shop"):
        load_app(f"{file}:fixed").runtime("postgresql://me:secret@host/shop")
    with pytest.raises(NotConfigured, match="broken failed: ValueError: no key"):
        load_app(f"{file}:broken").runtime()
    with pytest.raises(NotConfigured, match="returned coroutine, not a Runtime"):
        load_app(f"{file}:later").runtime("shop.db")
