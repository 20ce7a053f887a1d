"""A session's history as data: nodes, and the segments that they are stored in.

Theory of operation
-------------------
A turn appends its nodes in one go, each the child of the one before. Such a chain is a *segment*: one record,
one digest, one parent. A node's id is its segment's id and its place in it (`t_3f….2`), so that ids need
no table of their own and a branch can begin in the middle of a segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.frame import FrameSwitch
from standfast.model.ids import SessionIdField, check_session_id
from standfast.model.message import AssistantMessage, ToolMessage, UserMessage
from standfast.model.outcome import Stopped
from standfast.model.usage import Usage


class TurnEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="turn_ended", omit_defaults=True):
    """An event: the turn stopped without an answer."""

    outcome: Stopped
    usage: Usage = Usage()


class FrameOpened(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="frame_opened"):
    """An event: from here on the model sees this frame."""

    switch: FrameSwitch


class PluginNode(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="plugin"):
    """What a plugin or the host keeps in the history; opaque to everyone else."""

    plugin_id: str
    kind: str
    body: Json = None


Payload = UserMessage | AssistantMessage | ToolMessage | TurnEnded | FrameOpened | PluginNode


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node as its segment holds it."""

    at_ms: int
    payload: Payload


class Segment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A chain of nodes that was appended in one go. `depth` is the place of its first node on its path.

    `frame` is the frame of its last node; `opens_frame` tells that a `FrameOpened` is among its nodes.
    `session_id` is the session that appended it; others may share
    it. `model_calls` counts the calls of the model on the path up to the segment's end.
    """

    segment_id: str
    session_id: SessionIdField
    parent: str | None
    caused_by: str
    depth: int
    frame: str
    entries: tuple[Entry, ...]
    opens_frame: bool = False
    model_calls: int = 0

    def __post_init__(self) -> None:
        check_session_id(self.session_id)

    @property
    def leaf(self) -> str:
        """The id of the last node."""
        return node_id(self.segment_id, len(self.entries) - 1)


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of a session's graph."""

    id: str
    parent: str | None
    frame: str
    caused_by: str
    at_ms: int
    payload: Payload


def node_id(segment_id: str, index: int) -> str:
    return f"{segment_id}.{index}"


def split_node_id(value: str) -> tuple[str, int]:
    """The segment and the place that a node id names."""
    segment_id, dot, index = value.rpartition(".")
    if not dot or not segment_id or not index.isascii() or not index.isdigit():
        raise InvalidArgument(f"{value[:80]!r} is not a node id", hint="node ids look like t_3f2a….2")
    return segment_id, int(index)
