"""The states of plugins and tools that `MemorySessionStore` keeps; see `rules` for which holds where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from standfast.graph.history import SessionGraph
from standfast.model.session import SessionHead, split_node_id
from standfast.ports.session_store import StateRecord
from standfast.store.rules import (
    Spot,
    StatePlace,
    before_leaf,
    held_at,
    needed_states,
    state_id,
    state_key,
)

_NO_SESSION = ""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A state in its place."""

    record: StateRecord
    place: StatePlace


class MemoryStates:
    """All states of one store by key, and the ones that segments name."""

    def __init__(self, graph: SessionGraph) -> None:
        self._graph = graph
        self._states: dict[int, _Stored] = {}
        self._last = 0
        self.of_segments: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._states)

    def add(self, head: SessionHead, record: StateRecord) -> int:
        """Keep a state at the head's leaf; returns its key."""
        self._last += 1
        previous = before_leaf(self._find, head.state, head.leaf)
        place = StatePlace(head.session_id, previous, head.leaf, head.depth)
        self._states[self._last] = _Stored(record, place)
        return self._last

    def body(self, name: str) -> bytes | None:
        """The body of the state of that name."""
        found = self._states.get(state_key(name) or 0)
        return None if found is None else found.record.body

    def blobs(self) -> Iterator[str]:
        """The digests that states list."""
        for stored in self._states.values():
            yield from stored.record.blobs

    def name(self, segment_id: str, state: str | None) -> None:
        """Remember the state that holds at the end of a segment."""
        if (key := state_key(state)) is not None:
            self.of_segments[segment_id] = key

    def at_node(self, head: SessionHead, family: Sequence[int], node: str, depth: int) -> str | None:
        """The state that holds for a session at a node that it can reach. *family* are its family's."""
        for key in reversed(family):
            place = self._states[key].place
            if (place.session, place.node) == (head.session_id, node):
                return state_id(key)
        segment_id = split_node_id(node)[0]
        own = self._graph.segments[segment_id].session_id == head.session_id
        spot = Spot(node, depth, own, self.of_segments.get(segment_id))
        return state_id(held_at(self._find, state_key(head.state), spot))

    def disown(self, session_id: str, family: Iterable[int]) -> None:
        """Give up the states of a deleted session, so that a later session of its name does not have them."""
        for key in family:
            stored = self._states[key]
            if stored.place.session == session_id:
                self._states[key] = replace(stored, place=stored.place._replace(session=_NO_SESSION))

    def sweep(self, family: list[int], heads: Sequence[SessionHead], segments: Sequence[str]) -> None:
        """Delete the states of the family that neither its sessions nor its segments need."""
        places = {key: self._states[key].place for key in family}
        named = [state_key(head.state) for head in heads] + [self.of_segments.get(it) for it in segments]
        kept = needed_states(places, named, {head.session_id for head in heads}, set(segments))
        for key in places.keys() - kept:
            del self._states[key]
        family[:] = [key for key in family if key in kept]

    def _find(self, key: int) -> StatePlace | None:
        found = self._states.get(key)
        return None if found is None else found.place
