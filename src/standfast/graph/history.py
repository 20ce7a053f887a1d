"""The history of sessions: nodes in segments, paths, frames, and the messages that the model sees.

Theory of operation
-------------------
A segment is a chain of nodes, the first of which has the segment's parent. A path is the list of segments
from the root to a leaf, each cut after the node where the next one branches off. Sessions share one growing
set of segments; a session's head has its position in it. The functions do not know where segments are
stored: their caller passes a `Lookup`.

Rules
-----
1. Segments are only ever added. Forking and rewinding move leaves and touch no segment.
2. A session's leaf moves only to a node that exists, and each move increases the session's revision by one.
3. A session reaches its active path and the nodes that it appended itself; for it, no other nodes exist.
4. `require_append` raises `StaleBranch` if a required ancestor is not on the active path.
5. A missing parent was pruned; the path begins after it.
6. Every call that the model sees has a result. Where the history was cut between a call and its result, for
   instance by a rewind, the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from standfast import errors
from standfast.model.frame import INITIAL
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.model.session import Entry, FrameOpened, Node, Segment, SessionHead, node_id, split_node_id

Lookup = Callable[[str], Segment | None]
"""Returns the segment with the given id, or None if there is none."""


_replace = msgspec.structs.replace


# Paths


def path(lookup: Lookup, leaf: str, *, after_depth: int = 0) -> list[Segment]:
    """Return the segments from the root to *leaf*, without those that end at *after_depth* or before."""
    found: list[Segment] = []
    for segment, index in _steps_from(lookup, leaf):
        segment = cut(lookup, segment, index)
        if segment.depth + len(segment.entries) <= after_depth:
            break
        found.append(segment)
    return found[::-1]


def frame_path(lookup: Lookup, leaf: str, *, known: str | None = None) -> list[Segment]:
    """Return the segments of the leaf's frame, from the one that opens it.

    With *known*, the leaf of an earlier segment, return only the segments after it.
    """
    found: list[Segment] = []
    for segment, index in _steps_from(lookup, leaf):
        segment = cut(lookup, segment, index)
        if known is not None and segment.leaf == known:
            break
        found.append(segment)
        if segment.opens_frame:
            break
    return found[::-1]


def holds(lookup: Lookup, leaf: str | None, wanted: str) -> bool:
    """Return whether the node *wanted* is on the path to *leaf*."""
    segment_id, place = split_node_id(wanted)
    return leaf is not None and any(
        segment.segment_id == segment_id and place <= index and place < len(segment.entries)
        for segment, index in _steps_from(lookup, leaf)
    )


def frame_at(lookup: Lookup, leaf: str) -> str:
    """Return the frame of a node. Each segment records the frame at its end, so few are looked up."""
    for segment, index in _steps_from(lookup, leaf):
        if not segment.opens_frame or not opens_frame(segment.entries[index + 1 :]):
            return segment.frame
        for entry in reversed(segment.entries[: index + 1]):
            if isinstance(entry.payload, FrameOpened):
                return entry.payload.switch.frame_id
    return INITIAL


def calls_at(lookup: Lookup, leaf: str) -> int:
    """Count the model calls on the path up to a node: never fewer than up to the parent of its segment."""
    calls = 0
    for segment, index in _steps_from(lookup, leaf):
        calls = max(calls, model_calls_at(segment, index))
        if calls >= segment.model_calls:
            break
    return calls


def model_calls_at(segment: Segment, index: int) -> int:
    """Subtract the replies after node *index* from the segment's model calls.

    The result is too low if the host wrote some of these replies; `calls_at` corrects it.
    """
    later = sum(isinstance(entry.payload, AssistantMessage) for entry in segment.entries[index + 1 :])
    return max(0, segment.model_calls - later)


def nodes_of(segments: Sequence[Segment], frame: str = INITIAL) -> list[Node]:
    """Return the nodes of a path that begins in *frame*, oldest first."""
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


def opens_frame(entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry.payload, FrameOpened) for entry in entries)


def cut(lookup: Lookup, segment: Segment, index: int) -> Segment:
    """Return the segment cut after the node at *index*."""
    if index + 1 >= len(segment.entries):
        return segment
    return _replace(
        segment,
        entries=segment.entries[: index + 1],
        frame=frame_at(lookup, node_id(segment.segment_id, index)),
        opens_frame=opens_frame(segment.entries[: index + 1]),
        model_calls=model_calls_at(segment, index),
    )


def _steps_from(lookup: Lookup, leaf: str) -> Iterator[tuple[Segment, int]]:
    """Yield the segments from *leaf* to the root, each with the index of the node the path goes through."""
    segment_id, index = split_node_id(leaf)
    while (segment := lookup(segment_id)) is not None:
        yield segment, index
        if segment.parent is None:
            return
        segment_id, _, place = segment.parent.rpartition(".")
        index = int(place)


# The leaf of a session


def require_append(lookup: Lookup, leaf: str | None, segment_id: str, requires: str | None) -> None:
    """Raise an error if a segment with that id cannot be appended to *leaf*.

    The error is `StaleBranch` if the node *requires* is not on the active path.
    """
    if requires is not None and not holds(lookup, leaf, requires):
        raise errors.StaleBranch(leaf)
    if lookup(segment_id) is not None:
        raise errors.InvalidArgument(f"segment {segment_id[:80]!r} already exists")


def grown(
    head: SessionHead, segment_id: str, entries: tuple[Entry, ...], model_calls: int
) -> tuple[SessionHead, Segment | None]:
    """Append *entries* to the leaf; return the head with its leaf there, and the new segment.

    Without entries there is no segment, and the leaf does not move.
    """
    calls = head.model_calls + model_calls
    if not entries:
        return _replace(head, model_calls=calls), None
    frame, opens = head.frame, False
    for entry in entries:
        if isinstance(entry.payload, FrameOpened):
            frame, opens = entry.payload.switch.frame_id, True
    segment = Segment(
        segment_id=segment_id,
        session_id=head.session_id,
        parent=head.leaf,
        caused_by=segment_id,
        depth=head.depth,
        frame=frame,
        entries=entries,
        opens_frame=opens,
        model_calls=calls,
    )
    moved = _replace(
        head,
        leaf=segment.leaf,
        depth=head.depth + len(entries),
        frame=frame,
        model_calls=calls,
        revision=head.revision + 1,
    )
    return moved, segment


def moved_to(lookup: Lookup, head: SessionHead, node: str) -> SessionHead:
    """Return *head* with its leaf at *node*; raise `NodeNotFound` if the session cannot reach it."""
    segment_id, index = split_node_id(node)
    segment = lookup(segment_id)
    if segment is None or index >= len(segment.entries):
        raise errors.NodeNotFound(node)
    if segment.session_id != head.session_id and not holds(lookup, head.leaf, node):
        raise errors.NodeNotFound(node)
    return _replace(
        head,
        leaf=node,
        depth=segment.depth + index + 1,
        frame=frame_at(lookup, node),
        model_calls=calls_at(lookup, node),
        revision=head.revision + 1,
    )


def ancestry(lookup: Lookup, nodes: Iterable[str | None]) -> set[str]:
    """Return the ids of all segments on the paths to these nodes; each segment is visited once."""
    found: set[str] = set()
    for step in nodes:
        while step is not None:
            segment = lookup(split_node_id(step)[0])
            if segment is None or segment.segment_id in found:
                break
            found.add(segment.segment_id)
            step = segment.parent
    return found


# What the model sees


def has_attachments(messages: Iterable[Message]) -> bool:
    """Return whether any tool result in *messages* has attachments, or texts in addition to its value."""
    return bool([one for one in messages if type(one) is ToolMessage and (one.attachments or one.texts)])


def messages_of(segments: Sequence[Segment]) -> list[Message]:
    """Return the messages since the last `FrameOpened` (or all of them), with a result for every call."""
    messages: list[Message] = []
    for segment in segments:
        for entry in segment.entries:
            payload = entry.payload
            # `isinstance` of several types takes longer, and a frame has thousands of messages.
            if (
                type(payload) is UserMessage
                or type(payload) is AssistantMessage
                or type(payload) is ToolMessage
            ):
                messages.append(payload)
            elif type(payload) is FrameOpened:
                messages = list(payload.switch.seed)
    return answered(messages)


def answered(messages: list[Message]) -> list[Message]:
    """Return the messages with one result for every call, and no result without a call."""
    open_calls: dict[int, ToolCall] = {}
    whole: list[Message] = []
    for message in messages:
        if type(message) is ToolMessage:
            if open_calls.pop(message.call_id, None) is None:
                continue  # the result's call is not among the messages
        elif open_calls:
            whole.extend(_cut_off(open_calls))
        if type(message) is AssistantMessage and message.tool_calls:
            open_calls = {call.call_id: call for call in message.tool_calls}
        whole.append(message)
    whole.extend(_cut_off(open_calls))
    return whole


def _cut_off(calls: dict[int, ToolCall]) -> list[ToolMessage]:
    """Return a CANCELLED result for each of *calls*, and clear *calls*."""
    error = errors.ErrorObject(
        code=errors.Code.CANCELLED,
        message="the conversation was rewound to before this call had its result",
    )
    found = [
        ToolMessage(call_id=call.call_id, name=call.name, error=error, provider_id=call.provider_id)
        for call in calls.values()
    ]
    calls.clear()
    return found
