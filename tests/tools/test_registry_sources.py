"""Sources that fail or return garbage: the registry names the source and does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast import Capability, RegisteredTool, ToolRegistry, tool
from standfast.errors import BadToolSource, InvalidArgument, ToolNameTaken
from standfast.model.capability import SideEffect, ToolManifest
from standfast.tools.registry import StaticTools


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Bad:
    """A source that returns a given value or raises a given exception."""

    def __init__(self, manifests: Any, resolved: Any = None) -> None:
        self._manifests, self._resolved = manifests, resolved

    def manifests(self) -> Any:
        return _give(self._manifests)

    def resolve(self, name: str) -> Any:
        return _give(self._resolved)


def _give(answer: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer() if isinstance(answer, Bomb) else answer


class Bomb:
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __call__(self) -> Any:
        return self._make()


def manifest(**fields: Any) -> ToolManifest:
    return ToolManifest(**{"id": "a", "name": "a", "side_effect": SideEffect.NONE, **fields})


def made(name: str, owner: str = "x", **contract: Any) -> RegisteredTool:
    return RegisteredTool.sync(
        Capability(name=name, description="", **contract), lambda call: None, owner=owner
    )


_LISTINGS: dict[str, Any] = {
    "raises": RuntimeError("server down"),
    "exits": SystemExit(3),
    "recurses": RecursionError(),
    "raises what cannot be printed": Unspeakable(),
    "none": None,
    "a number": 7,
    "a text": "ab",
    "a list of none": [None],
    "dicts": [{"id": "a", "name": "a"}],
    "one manifest and a text": [manifest(), "b"],
    "an id that is a number": [manifest(id=7)],
    "no description": [manifest(description=None)],
    "a side effect as text": [manifest(side_effect="none")],
    "an availability as text": [manifest(availability="off")],
    "a name that cannot be called": Bomb(lambda: [manifest(name="not a name")]),
    "a name that is a number": Bomb(lambda: [manifest(name=7)]),
    "a generator that raises": Bomb(lambda: (1 / 0 for _ in [0])),
}
_RESOLUTIONS: dict[str, Any] = {
    "raises": RuntimeError("server down"),
    "exits": SystemExit(3),
    "raises what cannot be printed": Unspeakable(),
    "none": None,
    "a number": 7,
    "a function": lambda: None,
    "another tool": made("b"),
    "another side effect": made("a", side_effect=SideEffect.WRITE),
}


@pytest.mark.parametrize("fault", _LISTINGS)
def test_a_source_that_cannot_be_listed_is_named_and_changes_nothing(fault: str) -> None:
    """Ours: SPEC §12; a plugin's fault is a typed error, never a broken session."""
    registry = ToolRegistry([made("own")])
    registry.upsert("shop", StaticTools([made("old")]))
    before = registry.export_state()
    with pytest.raises(BadToolSource, match="'shop'") as caught:
        registry.upsert("shop", Bad(_LISTINGS[fault]))
    assert caught.value.source == "shop"
    assert caught.value.code == "BAD_TOOL_SOURCE"
    with pytest.raises(BadToolSource, match="'context provider 2'"):
        registry.compose_session_catalog(True, [StaticTools([]), Bad(_LISTINGS[fault])])
    assert registry.export_state() == before
    assert registry.names() == ["old", "own"]


@pytest.mark.parametrize("fault", _RESOLUTIONS)
def test_a_tool_that_cannot_be_resolved_names_its_source_and_changes_nothing(fault: str) -> None:
    """Ours: a resolved tool must match its listing, above all in its side effect."""
    registry = ToolRegistry()
    registry.upsert("shop", Bad([manifest()], _RESOLUTIONS[fault]))
    before = registry.export_state()
    for ask in (registry.require, registry.get):
        with pytest.raises(BadToolSource, match="'shop'"):
            ask("a")
    with pytest.raises(BadToolSource, match="'shop'"):
        registry.capabilities()
    assert registry.export_state() == before
    assert registry.names() == ["a"]


def test_a_source_that_was_down_is_asked_again() -> None:
    """Ours: the registry does not cache a failure."""
    registry = ToolRegistry()
    source = Bad([manifest()], RuntimeError("down"))
    registry.upsert("shop", source)
    with pytest.raises(BadToolSource, match="RuntimeError: down"):
        registry.require("a")
    source._resolved = made("a")
    assert registry.require("a").name == "a"
    assert registry.generation == 2


def test_the_reason_why_a_name_is_invalid_is_passed_on() -> None:
    """Ours: tool names of a source are validated like capability names."""
    with pytest.raises(BadToolSource, match="hides a Python built-in"):
        ToolRegistry().upsert("shop", Bad(Bomb(lambda: [manifest(name="print")])))


def test_an_interrupt_is_not_the_sources_fault() -> None:
    """Ours: ctrl-c comes from the user and must not be swallowed."""
    with pytest.raises(KeyboardInterrupt):
        ToolRegistry().upsert("shop", Bad(KeyboardInterrupt()))


def test_static_tools_are_a_source() -> None:
    """Ours: the tools of an agent or a plugin are a source; ids are prefixed, names are not."""
    source = StaticTools([made("a", side_effect=SideEffect.READ)], "plan:")
    assert source.manifests() == [manifest(id="plan:a", side_effect=SideEffect.READ)]
    assert source.resolve("a") is not None
    assert source.resolve("plan:a") is None


def test_static_tools_must_have_unique_names() -> None:
    """Ours: two tools of the same name are refused when the source is created."""
    with pytest.raises(ToolNameTaken):
        StaticTools([made("a", "one"), made("a", "two")])


def test_an_object_that_is_not_a_registered_tool_is_refused() -> None:
    """Ours: the hint says what to do with a decorated function."""

    @tool
    def order() -> str:
        """Look an order up."""
        return ""

    with pytest.raises(InvalidArgument, match="as_registered"):
        StaticTools([order])  # type: ignore[list-item]
