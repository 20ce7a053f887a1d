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

from holdfast.model.frame import INITIAL
from holdfast.model.message import AssistantMessage
from holdfast.model.node import Entry, FrameOpened, Node, Segment, node_id, split_node_id

Lookup = Callable[[str], Segment | None]
"""The segment of an id, if it is there."""


def cut(segment: Segment, index: int) -> Segment:
    """The segment up to the node at *index*, as if what follows had never been added."""
    if index + 1 >= len(segment.entries):
        return segment
    entries = segment.entries[: index + 1]
    return msgspec.structs.replace(
        segment,
        entries=entries,
        opens_frame=opens_frame(entries),
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
    """The frame of a node."""
    for segment in _back_from(lookup, leaf):
        for entry in reversed(segment.entries):
            if isinstance(entry.payload, FrameOpened):
                return entry.payload.switch.frame_id
    return INITIAL


def model_calls_at(segment: Segment, index: int) -> int:
    """How many model calls lie on the path up to the node at *index*, as far as they left a reply."""
    later = sum(isinstance(entry.payload, AssistantMessage) for entry in segment.entries[index + 1 :])
    return segment.model_calls - later


def nodes_of(segments: Sequence[Segment], frame: str = INITIAL) -> list[Node]:
    """The nodes of a path, oldest first. *frame* is the one that the path begins in."""
    nodes: list[Node] = []
    for segment in segments:
        parent = segment.parent
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
    step: str | None = leaf
    while step is not None:
        segment_id, index = split_node_id(step)
        segment = lookup(segment_id)
        if segment is None:
            return
        yield cut(segment, index)
        step = segment.parent
