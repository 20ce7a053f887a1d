"""The tools that a session's model may use: contributions, overlay, authority."""

from __future__ import annotations

import pytest

from standfast import Capability, RegisteredTool, ToolRegistry
from standfast.errors import InvalidArgument
from standfast.model.capability import SessionToolAccess, SideEffect, ToolAvailability, ToolManifest
from standfast.tools.registry import CatalogTool, ToolCatalog, ToolCatalogContribution, resolve_catalog

OFF, SEARCHABLE, CALLABLE, SHOWCASED = ToolAvailability
NOTHING = ToolCatalogContribution()
ALL = SessionToolAccess()


def listed(*names: str, availability: ToolAvailability = SHOWCASED) -> list[ToolManifest]:
    return [
        ToolManifest(id=f"x:{name}", name=name, side_effect=SideEffect.READ, availability=availability)
        for name in names
    ]


def sets(**availability: ToolAvailability) -> ToolCatalogContribution:
    return ToolCatalogContribution(availability=availability)


def hides(*names: str) -> ToolCatalogContribution:
    return ToolCatalogContribution(hidden=frozenset(names))


def levels(catalog: ToolCatalog) -> dict[str, ToolAvailability]:
    return {tool.name: tool.availability for tool in catalog.tools}


def test_without_contributions_the_catalog_lists_the_registry() -> None:
    """Seed: the catalog starts from the manifests, in their order."""
    catalog = resolve_catalog(listed("b", "a"), [], NOTHING, ALL)
    assert catalog.names == ("b", "a")
    assert levels(catalog) == {"b": SHOWCASED, "a": SHOWCASED}


def test_plugins_apply_in_order_then_the_session_then_the_authority() -> None:
    """Seed: SPEC §4; contributions of plugins come first, then the session's overlay, authority last."""
    catalog = resolve_catalog(
        listed("a", "b", "c"),
        [sets(a=SEARCHABLE, b=OFF, c=CALLABLE), sets(a=CALLABLE)],
        sets(b=SEARCHABLE, c=OFF),
        SessionToolAccess(tools=("b", "a", "c"), hidden_tools=()),
    )
    assert list(levels(catalog).items()) == [("b", SEARCHABLE), ("a", CALLABLE)]
    hidden = resolve_catalog(listed("a"), [], sets(a=SHOWCASED), SessionToolAccess(hidden_tools=("a",)))
    assert hidden.tools == ()


def test_a_tool_hidden_by_one_plugin_stays_hidden() -> None:
    """Ours: a plugin that hides a tool is a guard, and guards fail closed."""
    access = SessionToolAccess(tools=("a", "b"))
    assert resolve_catalog(
        listed("a", "b"), [hides("a"), sets(a=SHOWCASED)], sets(a=CALLABLE), access
    ).names == ("b",)
    assert resolve_catalog(listed("a", "b"), [], hides("a"), access).names == ("b",)


def test_unknown_names_are_ignored() -> None:
    """Seed: a plugin may name tools that this session does not have."""
    catalog = resolve_catalog(
        listed("a"), [sets(z=SHOWCASED), hides("y")], NOTHING, SessionToolAccess(tools=("x", "a"))
    )
    assert catalog.names == ("a",)


def test_an_authority_that_names_only_missing_tools_leaves_none() -> None:
    """Ours: an allow-list without any existing tool must not fall back to every tool."""
    assert resolve_catalog(listed("a"), [], NOTHING, SessionToolAccess(tools=("z",))).tools == ()


def test_an_invalid_availability_fails_the_build() -> None:
    """Ours: SPEC §8; the catalog build fails; a mistyped "of" must not mean on."""
    wrong = ToolCatalogContribution(availability={"a": "of"})  # type: ignore[dict-item]
    with pytest.raises(InvalidArgument, match="'of'"):
        resolve_catalog(listed("a"), [wrong], NOTHING, ALL)


def test_each_level_of_availability_includes_those_above_it() -> None:
    """Seed: the levels are off < searchable < callable < showcased."""
    catalog = resolve_catalog(
        listed("a", "b", "c", "d"), [sets(a=SEARCHABLE, b=CALLABLE, c=OFF)], NOTHING, ALL
    )
    assert [tool.name for tool in catalog.showcased()] == ["d"]
    assert [tool.name for tool in catalog.callable()] == ["b", "d"]
    assert [tool.name for tool in catalog.searchable()] == ["a", "b", "d"]
    assert [catalog.may_call(name) for name in "abcdz"] == [False, True, False, True, False]


def test_a_tool_is_found_by_name() -> None:
    """Ours: a lookup takes constant time, however many tools there are."""
    catalog = resolve_catalog(listed("a"), [], NOTHING, ALL)
    assert catalog.find("a") == CatalogTool(listed("a")[0], SHOWCASED)
    assert catalog.find("b") is None


def test_the_projection_is_json_and_built_once() -> None:
    """Seed: the projection to JSON is built once, on demand."""
    catalog = resolve_catalog(listed("a"), [sets(a=CALLABLE)], NOTHING, ALL)
    assert catalog.project() == [
        {"id": "x:a", "name": "a", "description": "", "side_effect": "read", "availability": "callable"}
    ]
    assert catalog._projection is catalog._projection
    assert catalog.project() is not catalog.project()


def test_only_contracts_of_showcased_tools_are_resolved() -> None:
    """Ours: a catalog of ten thousand tools resolves only those that the model is shown."""
    asked: list[str] = []
    registry = ToolRegistry(
        RegisteredTool.sync(Capability(name=name, description=""), lambda call: None) for name in "abc"
    )

    def resolve(name: str) -> RegisteredTool:
        asked.append(name)
        return registry.require(name)

    catalog = resolve_catalog(registry.manifests(), [sets(b=CALLABLE)], NOTHING, ALL)
    assert [capability.name for capability in catalog.capabilities(resolve)] == ["a", "c"]
    assert asked == ["a", "c"]


def test_equal_contributions_and_catalogs_are_equal() -> None:
    """Seed: an overlay with the same content is not a change."""
    assert sets(a=OFF) == sets(a=OFF)
    assert sets(a=OFF) != sets(a=CALLABLE)
    assert hides("a") != NOTHING
    assert resolve_catalog(listed("a"), [], NOTHING, ALL) == resolve_catalog(listed("a"), [], NOTHING, ALL)
