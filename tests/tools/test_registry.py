"""The registry: generations, conflicts, orphans, overlays, lazy resolution."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from standfast import Capability, RegisteredTool, ToolRegistry
from standfast.errors import (
    GenerationMismatch,
    InvalidArgument,
    ToolConflict,
    ToolNameTaken,
    ToolOrphaned,
    UnknownTool,
)
from standfast.model.capability import SideEffect, ToolAvailability, ToolManifest, ToolState, ToolStateEntry
from standfast.tools.registry import StaticTools, ToolProvider

OFF, SEARCHABLE, CALLABLE, SHOWCASED = ToolAvailability


def made(name: str, owner: str = "x", description: str = "") -> RegisteredTool:
    return RegisteredTool.sync(
        Capability(name=name, description=description), lambda call: owner, owner=owner
    )


def fixed(*names: str, prefix: str = "") -> StaticTools:
    return StaticTools([made(name, prefix) for name in names], prefix)


class Lazy:
    """A source that creates its tools on demand and counts the requests."""

    def __init__(self, *names: str, prefix: str = "") -> None:
        self.names, self.prefix = list(names), prefix
        self.asked: Counter[str] = Counter()

    def manifests(self) -> Sequence[ToolManifest]:
        self.asked["manifests"] += 1
        return [
            ToolManifest(id=f"{self.prefix}{name}", name=name, side_effect=SideEffect.NONE)
            for name in self.names
        ]

    def resolve(self, name: str) -> RegisteredTool | None:
        self.asked[name] += 1
        return made(name, self.prefix) if name in self.names else None


# Generations


def test_every_kind_of_change_increments_the_generation() -> None:
    """Seed: SPEC §4; one step for each change, none for restore and fork."""
    registry = ToolRegistry()
    assert registry.generation == 0
    assert registry.upsert("shop", Lazy("a", "b")) == 1
    assert registry.upsert("bank", fixed("c")) == 2
    registry.register(made("d"))
    assert registry.generation == 3
    registry.require("a")
    assert registry.generation == 4, "the first resolution counts"
    registry.require("a")
    registry.require("c")
    registry.require("d")
    assert registry.generation == 4, "later resolutions and tools that are already complete do not count"
    assert registry.set_availability(["a"], OFF) == 5
    assert registry.apply_state(registry.export_state()) == 6
    assert registry.fork().generation == 6
    assert registry.remove("shop") == 7
    assert registry.upsert("shop", Lazy("a", "b", "e")) == 10, "one for the upsert, two for the orphans"
    registry.restore_state(ToolState(generation=2))
    assert registry.generation == 2


def test_reading_does_not_change_the_generation() -> None:
    """Ours: a catalog that is cached by generation stays cached."""
    registry = ToolRegistry()
    registry.upsert("shop", Lazy("a", "b"))
    registry.manifests()
    registry.names()
    registry.export_state()
    registry.orphans()
    registry.sources()
    assert "a" in registry
    assert len(registry) == 2
    assert registry.get("nope") is None
    assert registry.generation == 1


def test_tools_added_together_are_one_change() -> None:
    """Ours: the registry of an agent starts at generation 1, an empty one at 0."""
    assert ToolRegistry([made("a"), made("b")]).generation == 1
    assert ToolRegistry([]).generation == 0


def test_listing_a_source_again_increments_the_generation_even_if_nothing_changed() -> None:
    """Seed: every upsert increments the generation."""
    registry, shop = ToolRegistry(), Lazy("a")
    registry.upsert("shop", shop)
    registry.require("a")
    assert registry.upsert("shop", shop) == 3
    registry.require("a")
    assert registry.generation == 4, "the new listing may have a new contract"
    assert shop.asked["a"] == 2


# Sources


def test_live_sources_can_be_added_and_removed() -> None:
    """Seed: live sources come and go at run time."""
    registry = ToolRegistry([made("own")])
    registry.upsert("shop", Lazy("b", "a"))
    assert registry.sources() == ["registered", "shop"]
    assert registry.names() == ["a", "b", "own"]
    assert [manifest.name for manifest in registry.manifests()] == ["a", "b", "own"]
    registry.upsert("shop", Lazy("b", "c"))
    assert registry.names() == ["b", "c", "own"]
    registry.remove("shop")
    assert registry.names() == ["own"]
    assert registry.sources() == ["registered"]


def test_an_unknown_source_cannot_be_removed() -> None:
    """Ours: an unknown source name raises an error."""
    registry = ToolRegistry([made("a")])
    with pytest.raises(InvalidArgument, match="'shop'") as caught:
        registry.remove("shop")
    assert "registered" in (caught.value.hint or "")
    with pytest.raises(InvalidArgument):
        ToolRegistry().remove("shop")
    with pytest.raises(InvalidArgument):
        registry.upsert("", fixed())
    assert registry.generation == 1


def test_a_source_without_tools_is_a_source() -> None:
    """Ours: a server without tools may offer some later."""
    registry = ToolRegistry()
    assert registry.upsert("shop", Lazy()) == 1
    assert (registry.sources(), registry.names()) == (["shop"], [])


def test_a_registry_is_a_provider() -> None:
    """Seed: a session passes its registry on as a ToolProvider."""
    inner = ToolRegistry([made("a")])
    inner.upsert("shop", Lazy("b"))
    inner.set_availability(["b"], SEARCHABLE)
    provider: ToolProvider = inner
    outer = ToolRegistry()
    outer.upsert("inner", provider)
    assert outer.require("b") is inner.require("b")
    assert [manifest.availability for manifest in outer.manifests()] == [SHOWCASED, SEARCHABLE]


# Conflicts


def test_a_name_owned_by_another_source_is_a_conflict_that_names_both() -> None:
    """Seed: SPEC §4; an id or name owned by another bound source."""
    registry = ToolRegistry()
    registry.upsert("shop", Lazy("a", prefix="shop:"))
    before = registry.export_state()
    with pytest.raises(ToolConflict) as caught:
        registry.upsert("bank", Lazy("b", "a", prefix="bank:"))
    error = caught.value
    assert (error.kind, error.value, error.owner, error.other) == ("name", "a", "shop", "bank")
    assert "'shop:a' of shop" in str(error)
    assert "'bank:a' of bank" in str(error)
    assert error.code == "TOOL_CONFLICT"
    assert registry.export_state() == before
    assert registry.sources() == ["shop"]


def test_an_id_owned_by_another_source_is_a_conflict_that_names_both() -> None:
    """Seed: SPEC §4; a renamed tool keeps its id, so ids must be unique too."""
    registry = ToolRegistry()
    registry.upsert("shop", Lazy("xa", prefix=""))
    with pytest.raises(ToolConflict) as caught:
        registry.upsert("bank", Lazy("a", prefix="x"))
    error = caught.value
    assert (error.kind, error.value, error.owner, error.other) == ("id", "xa", "shop", "bank")
    assert "'xa' of shop" in str(error)
    assert "'a' of bank" in str(error)


def test_a_source_that_lists_a_tool_twice_is_refused() -> None:
    """Ours: otherwise one of the two tools would be lost."""
    registry = ToolRegistry()
    with pytest.raises(ToolConflict) as caught:
        registry.upsert("shop", Lazy("a", "a"))
    assert (caught.value.owner, caught.value.other) == ("shop", "shop")
    assert registry.generation == 0


def test_registering_a_taken_name_names_both_owners_or_sources() -> None:
    """Ours: SPEC §3; unlike the seed, which overwrites silently."""
    registry = ToolRegistry([made("a", "shop.orders")])
    registry.upsert("mcp", Lazy("b"))
    with pytest.raises(ToolNameTaken) as taken:
        registry.register(made("a", "bank.orders"))
    assert (taken.value.owner, taken.value.other) == ("shop.orders", "bank.orders")
    with pytest.raises(ToolConflict) as conflict:
        registry.register(made("b"))
    assert (conflict.value.owner, conflict.value.other) == ("mcp", "registered")
    with pytest.raises(ToolNameTaken):
        ToolRegistry([made("a", "one"), made("a", "two")])
    assert registry.generation == 2


def test_a_source_may_reuse_a_name_that_is_free_again() -> None:
    """Seed: only a bound source owns its names."""
    registry = ToolRegistry()
    registry.upsert("shop", Lazy("a", prefix="shop:"))
    registry.remove("shop")
    assert registry.upsert("bank", Lazy("a", prefix="bank:")) == 3
    assert registry.require("a").owner == "bank:"
    assert list(registry.orphans()) == ["shop:a"]
    with pytest.raises(ToolConflict):
        registry.upsert("shop", Lazy("a", prefix="shop:"))
    assert registry.generation == 4, "the last step is the resolution of a"


# Orphans


def test_an_orphan_is_hidden_reports_its_state_and_returns_with_its_override() -> None:
    """Seed: SPEC §4; kept, hidden, rebound when the id is advertised again; calling it says so."""
    registry = ToolRegistry()
    registry.upsert("shop", Lazy("a", "b"))
    registry.set_availability(["a"], SEARCHABLE)
    registry.remove("shop")
    assert registry.names() == []
    assert registry.manifests() == ()
    assert "a" not in registry
    assert registry.get("a") is None
    assert registry.capabilities() == []
    assert registry.digests() == {}
    assert registry.orphans()["a"] == ToolStateEntry(name="a", source="shop", availability=SEARCHABLE)
    with pytest.raises(ToolOrphaned, match="'shop'") as caught:
        registry.require("a")
    assert caught.value.code == "TOOL_ORPHANED"
    assert (caught.value.name, caught.value.source) == ("a", "shop")
    assert registry.upsert("market", Lazy("a")) == 5
    assert [(each.name, each.availability) for each in registry.manifests()] == [("a", SEARCHABLE)]
    assert registry.export_state().tools["a"].source == "market"
    assert list(registry.orphans()) == ["b"]


def test_a_tool_that_its_source_no_longer_lists_is_an_orphan() -> None:
    """Ours: a server may drop a tool and offer it again later."""
    registry = ToolRegistry()
    registry.upsert("shop", Lazy("a", "b"))
    registry.set_availability(["b"], CALLABLE)
    assert registry.upsert("shop", Lazy("a")) == 3
    with pytest.raises(ToolOrphaned):
        registry.require("b")
    assert registry.upsert("shop", Lazy("a", "b")) == 5
    assert registry.export_state().tools["b"].availability is CALLABLE


def test_registering_a_tool_again_binds_its_orphan() -> None:
    """Seed: the source that advertises the id binds the orphan, which is a separate step."""
    registry = ToolRegistry([made("a")])
    registry.remove("registered")
    registry.register(made("a"))
    assert registry.generation == 4
    assert registry.orphans() == {}


def test_a_stored_tool_without_its_source_is_an_orphan_until_the_source_returns() -> None:
    """Seed: the state is restored in a process that has not connected its sources yet."""
    first = ToolRegistry()
    first.upsert("shop", Lazy("a", "b"))
    first.set_availability(["a"], OFF)
    second = ToolRegistry([made("own")])
    second.restore_state(first.export_state())
    assert second.generation == 2
    assert sorted(second.orphans()) == ["a", "b"]
    assert second.names() == ["own"]
    assert second.upsert("shop", Lazy("a", "b")) == 5
    assert second.names() == ["b", "own"], "a is still off"


# State


def test_a_stale_state_is_refused() -> None:
    """Seed: apply needs the exact generation, else GenerationMismatch{expected, actual}."""
    registry = ToolRegistry([made("a")])
    state = registry.export_state()
    registry.upsert("shop", Lazy("b"))
    with pytest.raises(GenerationMismatch) as caught:
        registry.apply_state(state)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    newer = ToolState(generation=3, tools=state.tools)
    with pytest.raises(GenerationMismatch):
        registry.apply_state(newer)
    assert registry.generation == 2
    assert registry.names() == ["a", "b"]


def test_resolving_a_tool_makes_a_state_stale() -> None:
    """Seed: a lazy resolution is a change like any other."""
    registry = ToolRegistry()
    registry.upsert("shop", Lazy("a"))
    state = registry.export_state()
    registry.require("a")
    with pytest.raises(GenerationMismatch):
        registry.apply_state(state)


def test_a_state_with_an_unknown_id_changes_nothing() -> None:
    """Ours: at the same generation there cannot be such an id, so it is another registry's state."""
    registry = ToolRegistry([made("a")])
    foreign = ToolState(
        generation=1,
        tools={
            "a": ToolStateEntry(name="a", source="registered", availability=OFF),
            "z": ToolStateEntry(name="z", source="shop"),
        },
    )
    with pytest.raises(UnknownTool, match="'z'"):
        registry.apply_state(foreign)
    assert registry.names() == ["a"]
    assert registry.generation == 1


def test_a_tool_that_is_off_is_hidden_and_the_error_says_so() -> None:
    """Seed: off tools are not listed; None clears the override."""
    registry = ToolRegistry([made("a"), made("b")])
    registry.set_availability(["a"], OFF)
    assert registry.names() == ["b"]
    assert list(registry.digests()) == ["b"]
    assert "a" not in registry
    assert registry.get("a") is None
    with pytest.raises(UnknownTool, match="is off"):
        registry.require("a")
    registry.set_availability(["a"], None)
    assert registry.names() == ["a", "b"]


def test_a_source_may_offer_a_tool_that_is_off_until_it_is_enabled() -> None:
    """Ours: SPEC §4; a tool may be off until it is granted."""
    registry = ToolRegistry()
    registry.upsert("files", StaticTools([made("write")], availability=OFF))
    assert registry.names() == []
    registry.set_availability(["write"], CALLABLE)
    assert [each.availability for each in registry.manifests()] == [CALLABLE]


def test_a_tool_can_be_removed_from_the_catalog_and_put_back() -> None:
    """Seed: membership decides; the tool's availability is kept."""
    registry = ToolRegistry([made("a"), made("b")])
    registry.set_availability(["a"], CALLABLE)
    assert registry.set_members(["a"], False) == 3
    assert registry.names() == ["b"]
    with pytest.raises(UnknownTool, match="not in the catalog"):
        registry.require("a")
    assert registry.orphans() == {}
    assert registry.set_members(["a"], True) == 4
    assert registry.manifests()[0].availability is CALLABLE


def test_one_unknown_name_fails_the_call_and_changes_nothing() -> None:
    """Seed: SPEC §4; one unknown name fails the whole call."""
    registry = ToolRegistry([made("a")])
    with pytest.raises(UnknownTool, match="'nope'"):
        registry.set_availability(["a", "nope"], OFF)
    with pytest.raises(UnknownTool, match="'nope'"):
        registry.set_members(["a", "nope"], False)
    assert registry.names() == ["a"]
    assert registry.generation == 1


def test_tools_missing_from_a_state_have_no_settings() -> None:
    """Ours: a tool newer than the stored state is listed; an orphan missing from it is dropped."""
    registry = ToolRegistry([made("a")])
    registry.upsert("shop", Lazy("b"))
    registry.remove("shop")
    registry.set_availability(["a"], OFF)
    registry.apply_state(ToolState(generation=registry.generation))
    assert registry.names() == ["a"]
    assert registry.orphans() == {}


def test_an_exported_state_is_a_copy() -> None:
    """Ours: changing an exported state does not change the registry."""
    registry = ToolRegistry([made("a")])
    registry.export_state().tools.clear()
    registry.orphans().clear()
    assert list(registry.export_state().tools) == ["a"]


# Lazy resolution


def test_a_lazy_tool_is_resolved_once() -> None:
    """Seed: contracts are resolved by name, on demand."""
    registry, shop = ToolRegistry(), Lazy("a", "b")
    registry.upsert("shop", shop)
    assert registry.require("a") is registry.get("a")
    assert shop.asked == {"manifests": 1, "a": 1}
    assert list(registry.digests()) == ["a", "b"]
    assert [capability.name for capability in registry.capabilities()] == ["a", "b"]
    assert shop.asked == {"manifests": 1, "a": 1, "b": 1}
    assert registry.generation == 3


def test_a_fork_has_the_resolved_tools_and_its_own_generation() -> None:
    """Seed: a fork is independent of its registry."""
    registry, shop = ToolRegistry(), Lazy("a", "b")
    registry.upsert("shop", shop)
    tool = registry.require("a")
    fork = registry.fork()
    assert fork.require("a") is tool
    fork.require("b")
    assert (registry.generation, fork.generation) == (2, 3)
    registry.require("b")
    assert (registry.generation, fork.generation) == (3, 3)
    fork.remove("shop")
    registry.set_availability(["a"], OFF)
    assert registry.names() == ["b"]
    assert fork.names() == []


def test_a_removed_source_is_freed() -> None:
    """Ours: live sources come and go for months; only the settings of their tools are kept."""
    registry, shop = ToolRegistry(), Lazy("a")
    registry.upsert("shop", shop)
    resolved = weakref.ref(shop), weakref.ref(registry.require("a").handler)
    registry.remove("shop")
    del shop
    gc.collect()
    assert [seen() for seen in resolved] == [None, None]


# Overlays


def test_an_overlay_is_layered_on_top_of_the_base() -> None:
    """Seed: compose_session_catalog with base tools is a fork with source `context` above it."""
    base = ToolRegistry([made("a"), made("b")])
    composed = base.compose_session_catalog(True, [Lazy("c"), fixed("d")])
    assert composed.names() == ["a", "b", "c", "d"]
    assert composed.sources() == ["registered", "context"]
    assert (base.generation, composed.generation) == (1, 2)
    assert base.names() == ["a", "b"]


def test_the_generations_of_composed_catalogs() -> None:
    """Seed: at least 1 with base tools, 0 without any; an overlay is one upsert."""
    empty = ToolRegistry()
    assert empty.compose_session_catalog(True, []).generation == 1
    assert empty.compose_session_catalog(False, []).generation == 0
    assert empty.compose_session_catalog(True, [fixed("a")]).generation == 2
    assert empty.compose_session_catalog(False, [fixed("a")]).generation == 1
    base = ToolRegistry([made("a")])
    base.set_availability(["a"], CALLABLE)
    assert base.compose_session_catalog(True, []).generation == 2
    assert base.compose_session_catalog(False, []).generation == 0
    assert base.compose_session_catalog(False, []).names() == []
    base.remove("registered")
    assert base.compose_session_catalog(True, [fixed("a")]).generation == 5, "an orphan is bound again"


def test_the_overlay_wins_by_name_and_by_id() -> None:
    """Seed: if the id or the name matches, the overlay's tool wins."""
    base = ToolRegistry()
    base.upsert("shop", StaticTools([made("a", "base"), made("b", "base")], "shop:"))
    by_name = base.compose_session_catalog(True, [StaticTools([made("a", "overlay")])])
    assert by_name.names() == ["a", "b"]
    assert by_name.require("a").owner == "overlay"
    assert by_name.require("b").owner == "base"
    by_id = base.compose_session_catalog(True, [Lazy("b2", prefix="shop:"), StaticTools([made("c")])])
    assert by_id.names() == ["a", "b", "b2", "c"]
    renamed = base.compose_session_catalog(True, [Renamed("shop:b", "bb")])
    assert renamed.names() == ["a", "bb"]
    assert base.require("a").owner == "base"


@pytest.mark.parametrize("hidden_by", ["off", "out of the catalog", "orphaned while off"])
@pytest.mark.parametrize("prefix", ["", "ctx:"], ids=["same id", "same name"])
def test_the_overlay_wins_over_a_tool_that_is_off(hidden_by: str, prefix: str) -> None:
    """Bug: an overlay's tool inherited the settings of the base tool with the same id."""
    base = ToolRegistry([made("a", "base")])
    if hidden_by == "out of the catalog":
        base.set_members(["a"], False)
    else:
        base.set_availability(["a"], OFF)
    if hidden_by == "orphaned while off":
        base.remove("registered")
    composed = base.compose_session_catalog(True, [fixed("a", prefix=prefix)])
    assert composed.names() == ["a"]
    assert composed.require("a").owner != "base"
    assert base.names() == [], "the base keeps its settings"


@pytest.mark.parametrize(
    ("providers", "kind"),
    [
        ([Lazy("a", prefix="x:"), Lazy("a", prefix="y:")], "name"),
        ([Lazy("b", prefix="a"), Lazy("ab")], "id"),
    ],
)
def test_duplicates_inside_the_overlay_are_errors_that_name_both(
    providers: list[ToolProvider], kind: str
) -> None:
    """Seed: SPEC §4; within the overlay no tool takes precedence."""
    base = ToolRegistry([made("z")])
    with pytest.raises(ToolConflict) as caught:
        base.compose_session_catalog(True, providers)
    error = caught.value
    assert (error.kind, error.owner, error.other) == (kind, "context provider 1", "context provider 2")
    assert base.generation == 1


def test_a_composed_catalog_does_not_see_later_changes_of_the_base() -> None:
    """Seed: only composing again picks up the changes."""
    base = ToolRegistry([made("a")])
    composed = base.compose_session_catalog(True, [fixed("c")])
    base.upsert("shop", Lazy("b"))
    base.set_availability(["a"], OFF)
    assert composed.names() == ["a", "c"]
    assert base.compose_session_catalog(True, [fixed("c")]).names() == ["b", "c"]


class Renamed:
    """A source of one tool whose id is independent of its name."""

    def __init__(self, tool_id: str, name: str) -> None:
        self._id, self._name = tool_id, name

    def manifests(self) -> Sequence[ToolManifest]:
        return (ToolManifest(id=self._id, name=self._name, side_effect=SideEffect.NONE),)

    def resolve(self, name: str) -> RegisteredTool | None:
        return made(name)


def test_a_tool_may_be_renamed_by_its_source() -> None:
    """Ours: a tool keeps its id and its settings when it is renamed."""
    registry = ToolRegistry()
    registry.upsert("shop", Renamed("x", "old"))
    registry.set_availability(["old"], CALLABLE)
    registry.upsert("shop", Renamed("x", "new"))
    assert [(each.name, each.availability) for each in registry.manifests()] == [("new", CALLABLE)]
    assert registry.orphans() == {}
    assert registry.get("old") is None
    assert registry.export_state().tools["x"].name == "new"


# Threads


class Meeting(Lazy):
    """A source whose resolutions wait for each other, so that they overlap."""

    def __init__(self, *names: str, parties: int) -> None:
        super().__init__(*names)
        self.barrier, self.entered = threading.Barrier(parties), threading.Event()

    def resolve(self, name: str) -> RegisteredTool | None:
        self.entered.set()
        self.barrier.wait(10)
        return super().resolve(name)


def test_threads_that_resolve_one_tool_concurrently_get_one_tool_and_count_once() -> None:
    """Ours: the dispatcher resolves tools from several threads."""
    registry = ToolRegistry()
    registry.upsert("shop", Meeting("a", parties=4))
    with ThreadPoolExecutor(4) as pool:
        tools = list(pool.map(registry.require, ["a"] * 4))
    assert len({id(tool) for tool in tools}) == 1
    assert registry.generation == 2


def test_a_slow_source_does_not_block_other_callers() -> None:
    """Ours: providers are called outside the lock; a tool removed in the meantime is still returned."""
    registry = ToolRegistry([made("own")])
    slow = Meeting("a", parties=2)
    registry.upsert("shop", slow)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(registry.require, "a")
        assert slow.entered.wait(10)
        assert registry.require("own").name == "own"
        assert registry.remove("shop") == 3
        slow.barrier.wait(10)
        assert pending.result(10).name == "a"
    assert registry.generation == 3, "resolving a removed tool is not a change"


def test_changes_from_many_threads_are_all_counted() -> None:
    """Ours: no update is lost, and every state that a reader sees is consistent."""
    registry = ToolRegistry([made("own")])
    changes: list[Callable[[int], object]] = [
        lambda number: registry.upsert(f"s{number}", Lazy(f"t{number}", f"u{number}")),
        lambda number: registry.set_availability(["own"], SEARCHABLE),
        lambda number: registry.register(made(f"r{number}")),
    ]

    def work(number: int) -> None:
        for change in changes:
            change(number)
            state = registry.export_state()
            pairs = {name[1:] for name in (entry.name for entry in state.tools.values()) if name[0] in "tu"}
            assert all({f"t{pair}", f"u{pair}"} <= set(state.tools) for pair in pairs)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert registry.generation == 1 + 40 * 3
    assert len(registry) == 1 + 40 * 3


# Scale


def test_ten_thousand_tools_are_listed_without_being_resolved() -> None:
    """Ours: listing is linear and cheap, and a call asks its source for one tool only."""
    shop = Lazy(*(f"t{number}" for number in range(10_000)))
    registry = ToolRegistry()
    registry.upsert("shop", shop)
    assert len(registry.manifests()) == len(registry.export_state().tools) == len(registry) == 10_000
    assert registry.manifests() is registry.manifests(), "derived once while nothing changes"
    assert shop.asked == {"manifests": 1}
    registry.require("t9999")
    registry.require("t9999")
    composed = registry.compose_session_catalog(True, [fixed("own")])
    composed.require("t9999")
    assert len(composed.manifests()) == 10_001
    assert shop.asked == {"manifests": 1, "t9999": 1}
