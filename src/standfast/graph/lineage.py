"""Paths through segments: from a leaf back to the root, or to where its frame begins.

Theory of operation
-------------------
A segment is a chain of nodes with one parent. A path is the list of segments from the root to a leaf, each
cut after the node where the next one branches off. Nothing here knows where segments are kept: whoever asks
passes a `Lookup`.

Rule: a parent that is not there was pruned; the path begins after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from standfast.model.frame import INITIAL
from standfast.model.message import AssistantMessage
from standfast.model.node import Entry, FrameOpened, Node, Segment, node_id, split_node_id

Lookup = Callable[[str], Segment | None]
"""The segment of an id, if it is there."""


def cut(segment: Segment, index: int, before: str = INITIAL) -> Segment:
    """The segment up to the node at *index*, as if what follows had never been added.

    *before* is the frame that the segment begins in.
    """
    if index + 1 >= len(segment.entries):
        return segment
    entries = segment.entries[: index + 1]
    opened = [entry.payload.switch.frame_id for entry in entries if isinstance(entry.payload, FrameOpened)]
    return msgspec.structs.replace(
        segment,
        entries=entries,
        frame=opened[-1] if opened else before,
        opens_frame=bool(opened),
        model_calls=model_calls_at(segment, index),
    )


def opens_frame(entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry.payload, FrameOpened) for entry in entries)


def path(lookup: Lookup, leaf: str, *, after_depth: int = 0) -> list[Segment]:
    """The segments from the root to *leaf*, those left out that end before *after_depth* nodes."""
    found: list[Segment] = []
    for segment in _back_from(lookup, leaf):
        if segment.depth + len(segment.entries) <= after_depth:
            break
        found.append(segment)
    return found[::-1]


def frame_path(lookup: Lookup, leaf: str, *, known: str | None = None) -> list[Segment]:
    """The segments of the leaf's frame, from the one that opens it; or what comes after the node *known*."""
    found: list[Segment] = []
    for segment in _back_from(lookup, leaf):
        if known is not None and segment.leaf == known:
            return found[::-1]
        found.append(segment)
        if segment.opens_frame:
            break
    return found[::-1]


def holds(lookup: Lookup, leaf: str | None, wanted: str) -> bool:
    """Whether the node *wanted* is on the path to *leaf*."""
    segment_id, index = split_node_id(wanted)
    if leaf is None:
        return False
    return any(
        segment.segment_id == segment_id and index < len(segment.entries)
        for segment in _back_from(lookup, leaf)
    )


def frame_at(lookup: Lookup, leaf: str) -> str:
    """The frame of a node. A segment knows the frame of its end, so that few are looked up."""
    for segment, index in _steps_from(lookup, leaf):
        if not opens_frame(segment.entries[index + 1 :]):
            return segment.frame
        for entry in reversed(segment.entries[: index + 1]):
            if isinstance(entry.payload, FrameOpened):
                return entry.payload.switch.frame_id
    return INITIAL


def calls_at(lookup: Lookup, leaf: str) -> int:
    """How many model calls lie on the path up to a node: never fewer than at the parent of its segment."""
    calls = 0
    for segment, index in _steps_from(lookup, leaf):
        calls = max(calls, model_calls_at(segment, index))
        if calls >= segment.model_calls:
            break
    return calls


def model_calls_at(segment: Segment, index: int) -> int:
    """How many model calls lie on the path up to the node at *index*, as far as they left a reply.

    A reply that the host appended was no call of this session's, so this may be too few; see `calls_at`.
    """
    later = sum(isinstance(entry.payload, AssistantMessage) for entry in segment.entries[index + 1 :])
    return max(0, segment.model_calls - later)


def nodes_of(segments: Sequence[Segment], frame: str = INITIAL) -> list[Node]:
    """The nodes of a path, oldest first. *frame* is the one that the path begins in, if it opens another."""
    nodes: list[Node] = []
    for segment in segments:
        parent = segment.parent
        frame = frame if segment.opens_frame else segment.frame
        for index, entry in enumerate(segment.entries):
            if isinstance(entry.payload, FrameOpened):
                frame = entry.payload.switch.frame_id
            node = Node(
                id=node_id(segment.segment_id, index),
                parent=parent,
                frame=frame,
                caused_by=segment.caused_by,
                at_ms=entry.at_ms,
                payload=entry.payload,
            )
            nodes.append(node)
            parent = node.id
    return nodes


def _back_from(lookup: Lookup, leaf: str) -> Iterator[Segment]:
    """The segments from *leaf* to the root, each cut after the node the path goes through."""
    for segment, index in _steps_from(lookup, leaf):
        yield segment if index + 1 >= len(segment.entries) else cut(segment, index, _before(lookup, segment))


def _before(lookup: Lookup, segment: Segment) -> str:
    """The frame that a segment begins in."""
    if not segment.opens_frame:
        return segment.frame
    return INITIAL if segment.parent is None else frame_at(lookup, segment.parent)


def _steps_from(lookup: Lookup, leaf: str) -> Iterator[tuple[Segment, int]]:
    """The segments from *leaf* to the root, each with the place of the node the path goes through."""
    step: str | None = leaf
    while step is not None:
        segment_id, index = split_node_id(step)
        segment = lookup(segment_id)
        if segment is None:
            return
        yield segment, index
        step = segment.parent
