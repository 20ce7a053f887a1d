"""Plugins from other packages: found by their entry point, loaded when they are named."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standfast import Agent
from standfast.errors import InvalidPlugin, PluginConflict, PluginFailed
from standfast.plugins.discovery import GROUP, find_plugin, installed_plugins, resolve_plugin
from standfast.plugins.plugin import Plugin

GREETER = '''
from standfast import Plugin, hook


class Greeter(Plugin):
    """Greets."""

    @hook
    async def prompt_contributor(self, ctx):
        return "Greet the user."
'''

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that puts packages on the import path, as an installer would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules: list[str] = []

    def put(module: str, source: str, entry: str, *, name: str = "greeter", version: str = "1.0") -> None:
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {entry}\n")
        modules.append(module)

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def test_an_installed_plugin_is_found_without_being_imported(install: Install) -> None:
    """Seed: found by the entry point group `standfast.plugins`."""
    install("greeter_one", GREETER, "greeter_one:Greeter", version="2.1")
    [found] = [one for one in installed_plugins() if one.name == "greeter"]
    assert (found.target, found.package, found.package_version) == (
        "greeter_one:Greeter",
        "greeter_one",
        "2.1",
    )
    assert "greeter_one" not in sys.modules
    assert found.load().id == "greeter"
    assert "greeter_one" in sys.modules


def test_an_agent_can_name_an_installed_plugin(install: Install) -> None:
    """Seed: `Agent(plugins=[...])` accepts the name of an entry point."""
    install("greeter_two", GREETER, "greeter_two:Greeter")
    agent = Agent("scripted:x", plugins=["greeter"])
    assert [one.id for one in agent.plugins] == ["greeter"]


def test_a_plugin_may_be_given_as_a_class_or_an_instance() -> None:
    """Ours: both forms give the same plugin."""

    class Mine(Plugin):
        """A plugin that does nothing."""

    assert resolve_plugin(Mine).id == resolve_plugin(Mine()).id == "mine"


def test_an_unknown_name_gets_a_close_match_as_suggestion(install: Install) -> None:
    """Ours: the hint says what to do."""
    install("greeter_three", GREETER, "greeter_three:Greeter")
    with pytest.raises(InvalidPlugin, match="plugin 'greter' is not installed") as caught:
        find_plugin("greter")
    assert caught.value.hint == "did you mean greeter?"
    with pytest.raises(InvalidPlugin) as caught:
        find_plugin("something-else-entirely")
    assert "standfast plugins list" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("source", "entry"),
    [
        ("raise RuntimeError('boom')", "broken:Greeter"),
        ("raise SystemExit", "broken:Greeter"),
        ("", "broken:Greeter"),
        ("import nowhere_to_be_found", "broken:Greeter"),
        ("def (:", "broken:Greeter"),
    ],
    ids=["raises", "exits", "lacks it", "lacks a package", "syntax"],
)
def test_a_plugin_that_cannot_be_imported_is_named_in_the_error(
    source: str, entry: str, install: Install
) -> None:
    """Ours: the error names the broken package, and the others still load."""
    install("broken", source, entry, name="broken-one")
    with pytest.raises(PluginFailed, match="plugin 'broken-one' failed in import") as caught:
        find_plugin("broken-one")
    assert caught.value.hint == f"it is {entry}"


def test_an_entry_point_that_is_not_a_plugin_is_refused(install: Install) -> None:
    """Ours: plugins found by entry point are validated like those passed to the agent."""
    install("nonsense", "Greeter = 3", "nonsense:Greeter", name="nonsense")
    with pytest.raises(InvalidPlugin, match="3 is not a plugin"):
        find_plugin("nonsense")


def test_the_same_name_in_two_packages_is_a_conflict_that_names_both(install: Install) -> None:
    """Ours: the error names both packages, and is raised only if the name is used."""
    install("second_greeter", GREETER, "second_greeter:Greeter")
    install("first_greeter", GREETER, "first_greeter:Greeter")
    found = [one.package for one in installed_plugins() if one.name == "greeter"]
    assert found == ["first_greeter", "second_greeter"]
    with pytest.raises(PluginConflict, match="the name 'greeter'") as caught:
        find_plugin("greeter")
    assert (caught.value.owner, caught.value.other) == ("first_greeter", "second_greeter")
