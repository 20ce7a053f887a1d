"""Lines of states: which one holds at a node, and which are still needed.

Theory of operation
-------------------
A state belongs to the node that was the leaf when it was written, and remembers the one that held before.
That one belongs to a node further up the same path, or to none if the session had no node yet. So what leads
to a session's present state is a line along its path, on which depth alone tells what held at a node; and
where paths branch, lines do. A head names the end of its session's line. A segment names the state at its end
as it was appended: so the line of a branch that was left is found again.

Rules
-----
1. What a session wrote at a node itself, last, holds for it there. Otherwise the line decides that passes by.
   So no session gets a state that another one wrote on shared history after the two had parted.
2. A state that is not there was pruned; its line begins after it.
3. A state is needed while a head or a segment names it, while it is the last that a session wrote at a node
   which is still there, and while it is the one before a needed state whose node is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from standfast.model.node import split_node_id

_PREFIX: Final = "state_"


class StatePlace(NamedTuple):
    """A state without its body: who wrote it, what held before, and where. `depth` is that of its node."""

    session: int | str
    previous: int | None
    node: str | None
    depth: int


Find = Callable[[int], StatePlace | None]
"""The place of a state, if it is there."""


class Spot(NamedTuple):
    """A node that a session can reach; `own` tells that its segment has the session's name on it."""

    node: str
    depth: int
    own: bool
    segment_state: int | None


def state_id(key: int | None) -> str | None:
    """Return the name of a state outside of its store."""
    return None if key is None else f"{_PREFIX}{key}"


def state_key(name: str | None) -> int | None:
    """The number that `state_id` made the name of; None for any other name."""
    if name is None or not name.startswith(_PREFIX):
        return None
    number = name[len(_PREFIX) :]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None


def held_at(find: Find, end: int | None, spot: Spot) -> int | None:
    """The state that held at a node, for the session whose line ends with *end*.

    The session's own line knows best, if it passes by. For a node of the session's own it may be on another
    branch; then the segment knows.
    """
    found = _held(find, end, spot.depth)
    place = None if found is None else find(found)
    if spot.own and (place is None or place.node != spot.node):
        return _held(find, spot.segment_state, spot.depth)
    return found


def _held(find: Find, end: int | None, depth: int) -> int | None:
    """The last state of a line that is not deeper than *depth*."""
    while end is not None and (place := find(end)) is not None:
        if place.depth <= depth:
            return end
        end = place.previous
    return None


def before_leaf(find: Find, state: str | None, leaf: str | None) -> int | None:
    """Return what holds before a new state at *leaf*: a *state* that is there already leaves the line."""
    key = state_key(state)
    place = None if key is None else find(key)
    return place.previous if place is not None and place.node == leaf else key


def needed(
    places: Mapping[int, StatePlace],
    named: Iterable[int | None],
    sessions: Collection[int | str],
    segments: Collection[str],
) -> set[int]:
    """The states that must stay. *named* are those of heads and segments; the others are still there."""
    last = {(it.session, it.node): key for key, it in sorted(places.items()) if it.session in sessions}
    own = (key for (_, node), key in last.items() if node is not None and _is_there(node, segments))
    kept: set[int] = set()
    for step in (*named, *own):
        while step is not None and step in places and step not in kept:
            kept.add(step)
            step = places[step].previous if _is_there(places[step].node, segments) else None
    return kept


def _is_there(node: str | None, segments: Collection[str]) -> bool:
    return node is None or split_node_id(node)[0] in segments
