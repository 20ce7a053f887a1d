"""Random histories of a registry, compared with a plain model of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from standfast import Capability, RegisteredTool, ToolRegistry
from standfast.errors import GenerationMismatch, InvalidArgument, ToolConflict, ToolOrphaned, UnknownTool
from standfast.model.capability import SideEffect, ToolAvailability, ToolManifest, ToolState, ToolStateEntry

Listing = list[tuple[str, str]]

_sources = st.sampled_from(["shop", "bank", "mail"])
_names = st.sampled_from(["a", "b", "c", "d"])
_listings = st.lists(st.tuples(st.sampled_from(["i1", "i2", "i3", "i4", "i5"]), _names), max_size=3)
_availabilities = st.none() | st.sampled_from(ToolAvailability)


class Source:
    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def manifests(self) -> Sequence[ToolManifest]:
        return [ToolManifest(id=key, name=name, side_effect=SideEffect.NONE) for key, name in self._listing]

    def resolve(self, name: str) -> RegisteredTool | None:
        return RegisteredTool.sync(Capability(name=name, description=""), lambda call: None)


@dataclass
class Known:
    """The model's data about one id."""

    name: str
    source: str
    bound: bool = True
    resolved: bool = False
    availability: ToolAvailability | None = None
    member: bool = True

    @property
    def visible(self) -> bool:
        return self.bound and self.member and self.availability is not ToolAvailability.OFF


@dataclass
class Model:
    """A plain model of the registry."""

    generation: int = 0
    tools: dict[str, Known] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)

    def bound(self) -> dict[str, Known]:
        return {key: known for key, known in self.tools.items() if known.bound}

    def conflicts(self, source: str, listing: Listing) -> bool:
        others = {key: known for key, known in self.bound().items() if known.source != source}
        keys = [key for key, _ in listing]
        names = [name for _, name in listing]
        twice = len(set(keys)) < len(keys) or len(set(names)) < len(names)
        return twice or bool(set(keys) & set(others) or set(names) & {each.name for each in others.values()})

    def upsert(self, source: str, listing: Listing) -> None:
        orphans = {key for key, known in self.tools.items() if not known.bound}
        self.generation += 1 + len(orphans & {key for key, _ in listing})
        self.release(source)
        for key, name in listing:
            known = self.tools.get(key, Known(name, source))
            self.tools[key] = Known(name, source, availability=known.availability, member=known.member)
        if source not in self.sources:
            self.sources.append(source)

    def release(self, source: str) -> None:
        for known in self.tools.values():
            if known.source == source:
                known.bound = known.resolved = False

    def take(self, state: ToolState) -> None:
        live = self.bound()
        for key, known in live.items():
            kept = state.tools.get(key)
            known.availability = kept.availability if kept else None
            known.member = kept.member if kept else True
        self.tools = live | {
            key: Known(kept.name, kept.source, False, False, kept.availability, kept.member)
            for key, kept in state.tools.items()
            if key not in live
        }

    def state(self) -> ToolState:
        return ToolState(
            generation=self.generation,
            tools={
                key: ToolStateEntry(
                    name=known.name, source=known.source, availability=known.availability, member=known.member
                )
                for key, known in self.tools.items()
            },
        )


class RegistryMachine(RuleBasedStateMachine):
    """A state machine whose rules change registry and model alike; a refusal leaves both unchanged."""

    states = Bundle("states")

    @initialize(target=states)
    def begin(self) -> ToolState:
        self.registry, self.model = ToolRegistry(), Model()
        self.left_behind: list[tuple[ToolRegistry, Model]] = []
        return self.registry.export_state()

    @rule(source=_sources, listing=_listings)
    def upsert(self, source: str, listing: Listing) -> None:
        if self.model.conflicts(source, listing):
            with pytest.raises(ToolConflict):
                self.registry.upsert(source, Source(listing))
            return
        self.model.upsert(source, listing)
        assert self.registry.upsert(source, Source(listing)) == self.model.generation

    @rule(source=_sources)
    def remove(self, source: str) -> None:
        if source not in self.model.sources:
            with pytest.raises(InvalidArgument):
                self.registry.remove(source)
            return
        self.model.release(source)
        self.model.sources.remove(source)
        self.model.generation += 1
        assert self.registry.remove(source) == self.model.generation

    @rule(name=_names)
    def require(self, name: str) -> None:
        there = [known for known in self.model.tools.values() if known.visible and known.name == name]
        if there:
            assert self.registry.require(name).name == name
            self.model.generation += not there[0].resolved
            there[0].resolved = True
            return
        assert self.registry.get(name) is None
        with pytest.raises(UnknownTool) as caught:
            self.registry.require(name)
        namesakes = [known for known in self.model.tools.values() if known.name == name]
        orphaned = bool(namesakes) and not any(known.bound for known in namesakes)
        assert isinstance(caught.value, ToolOrphaned) == orphaned

    @rule(names=st.lists(_names, max_size=2), availability=_availabilities)
    def set_availability(self, names: list[str], availability: ToolAvailability | None) -> None:
        if not self._all_known(names):
            with pytest.raises(UnknownTool):
                self.registry.set_availability(names, availability)
            return
        for known in self._named(names):
            known.availability = availability
        self.model.generation += 1
        assert self.registry.set_availability(names, availability) == self.model.generation

    @rule(names=st.lists(_names, max_size=2), member=st.booleans())
    def set_members(self, names: list[str], member: bool) -> None:
        if not self._all_known(names):
            with pytest.raises(UnknownTool):
                self.registry.set_members(names, member)
            return
        for known in self._named(names):
            known.member = member
        self.model.generation += 1
        assert self.registry.set_members(names, member) == self.model.generation

    @rule(target=states)
    def export(self) -> ToolState:
        return self.registry.export_state()

    @rule(state=states)
    def apply(self, state: ToolState) -> None:
        if state.generation != self.model.generation:
            with pytest.raises(GenerationMismatch):
                self.registry.apply_state(state)
        elif not set(state.tools) <= set(self.model.tools):
            with pytest.raises(UnknownTool):
                self.registry.apply_state(state)
        else:
            self.model.take(state)
            self.model.generation += 1
            assert self.registry.apply_state(state) == self.model.generation

    @rule(state=states)
    def restore(self, state: ToolState) -> None:
        self.model.take(state)
        self.model.generation = state.generation
        self.registry.restore_state(state)

    @rule(target=states)
    def fork(self) -> object:
        self.left_behind.append((self.registry, copy.deepcopy(self.model)))
        self.registry = self.registry.fork()
        return multiple()

    @rule(listing=_listings)
    def compose(self, listing: Listing) -> None:
        if Model().conflicts("context", listing):
            with pytest.raises(ToolConflict):
                self.registry.compose_session_catalog(True, [Source(listing)])
            return
        composed = self.registry.compose_session_catalog(True, [Source(listing)])
        held = {entry.source for key, entry in composed.export_state().tools.items() if key in dict(listing)}
        assert held <= {"context"}
        assert set(composed.names()) >= {name for _, name in listing}, (
            "the base cannot hide tools of the overlay"
        )
        assert composed.generation > self.registry.generation

    @invariant()
    def the_registry_matches_the_model(self) -> None:
        _check(self.registry, self.model)

    @invariant()
    def no_name_is_bound_twice(self) -> None:
        names = [known.name for known in self.model.bound().values()]
        assert len(names) == len(set(names))

    @invariant()
    def forked_registries_did_not_change(self) -> None:
        for registry, model in self.left_behind:
            _check(registry, model)

    def _named(self, names: list[str]) -> list[Known]:
        return [known for known in self.model.tools.values() if known.name in names]

    def _all_known(self, names: list[str]) -> bool:
        return set(names) <= {known.name for known in self.model.tools.values()}


def _check(registry: ToolRegistry, model: Model) -> None:
    visible = sorted(known.name for known in model.tools.values() if known.visible)
    assert registry.export_state() == model.state()
    assert registry.generation == model.generation
    assert registry.names() == visible == [manifest.name for manifest in registry.manifests()]
    assert registry.sources() == model.sources
    assert set(registry.orphans()) == {key for key, known in model.tools.items() if not known.bound}


RegistryMachine.TestCase.settings = settings(
    max_examples=3 * settings.default.max_examples // 5, stateful_step_count=30, deadline=None
)
TestRegistry = RegistryMachine.TestCase
