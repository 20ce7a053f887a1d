"""A pure function that lays out a session's branches (forks, rewinds, frames) as rows and lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from standfast.model.message import AssistantMessage, UserMessage, text_of
from standfast.model.session import Segment, SessionHead, split_node_id
from standfast.workbench.words import count, one_line

_SHORT_RUN: Final = 3
"""Collapse a longer run of consecutive turns without a branch into one row that counts them."""


@dataclass(slots=True)
class GraphRow:
    """A turn or a collapsed run: its lane, its parent's row, and the sessions whose history ends at it."""

    segment_id: str
    session_id: str
    label: str
    at_ms: int
    lane: int = 0
    parent: int | None = None
    heads: list[str] = field(default_factory=list)
    active: bool = True
    frame: bool = False
    skipped: int = 0


def family_of(session_id: str, heads: Iterable[SessionHead]) -> list[SessionHead]:
    """Return the sessions that share history with *session_id* through forks, oldest first."""
    known = {head.session_id: head for head in heads}

    def root(one: str) -> str:
        seen = {one}
        while (head := known.get(one)) is not None and head.forked_from and head.forked_from not in seen:
            one = head.forked_from
            seen.add(one)
        return one

    mine = root(session_id)
    return sorted(
        (head for head in known.values() if root(head.session_id) == mine), key=lambda one: one.created_at
    )


def graph_rows(segments: Mapping[str, Segment], heads: Sequence[SessionHead], current: str) -> list[GraphRow]:
    """Return the rows of the graph, oldest first. The path of session *current* takes the first lane."""
    children: dict[str | None, list[str]] = {}
    for segment in segments.values():
        parent = None if segment.parent is None else split_node_id(segment.parent)[0]
        children.setdefault(parent if parent in segments else None, []).append(segment.segment_id)
    ends: dict[str, list[str]] = {}
    active: set[str] = set()
    own: set[str] = set()
    for head in heads:
        if head.leaf is None:
            continue
        at = split_node_id(head.leaf)[0]
        ends.setdefault(at, []).append(head.session_id)
        while at in segments:
            active.add(at)
            if head.session_id == current:
                own.add(at)
            above = segments[at].parent
            at = "" if above is None else split_node_id(above)[0]
    rows: list[GraphRow] = []
    lanes = 0
    pending = [
        (one, 0 if number == 0 else None, None) for number, one in enumerate(sorted(children.get(None, [])))
    ]
    stack: list[tuple[str, int | None, int | None]] = list(reversed(pending))
    while stack:
        segment_id, lane, parent_row = stack.pop()
        if lane is None:
            lanes += 1
            lane = lanes
        segment = segments[segment_id]
        rows.append(
            GraphRow(
                segment_id=segment_id,
                session_id=segment.session_id,
                label=_label(segment),
                at_ms=segment.entries[0].at_ms if segment.entries else 0,
                lane=lane,
                parent=parent_row,
                heads=ends.get(segment_id, []),
                active=segment_id in active,
                frame=segment.opens_frame,
            )
        )
        here = len(rows) - 1
        below = sorted(children.get(segment_id, []), key=lambda one: (one not in own, one not in active, one))
        stack += [
            (one, lane if place == 0 else None, here) for place, one in reversed(list(enumerate(below)))
        ]
    return _shortened(rows)


def _label(segment: Segment) -> str:
    for entry in segment.entries:
        payload = entry.payload
        if isinstance(payload, UserMessage) and (text := text_of(payload.content).strip()):
            return one_line(text, 80)
        if isinstance(payload, AssistantMessage) and payload.text.strip():
            return one_line(payload.text, 80)
    return count(len(segment.entries), "entry", "entries")


def _shortened(rows: list[GraphRow]) -> list[GraphRow]:
    """Collapse each long run of turns without a branch, head or frame into one row that counts them."""
    used: dict[int, int] = {}
    for row in rows:
        if row.parent is not None:
            used[row.parent] = used.get(row.parent, 0) + 1
    plain = [
        used.get(place, 0) == 1
        and not row.heads
        and not row.frame
        and row.parent is not None
        and used[row.parent] == 1
        for place, row in enumerate(rows)
    ]
    kept: list[GraphRow] = []
    moved: dict[int, int] = {}
    place = 0
    while place < len(rows):
        end = place
        while end < len(rows) and plain[end] and rows[end].lane == rows[place].lane:
            end += 1
        if end - place > _SHORT_RUN:
            first = rows[place]
            first.skipped = end - place
            first.label = f"{end - place} turns"
        else:
            end = place + 1
        row = rows[place]
        row.parent = None if row.parent is None else moved[row.parent]
        kept.append(row)
        for one in range(place, end):
            moved[one] = len(kept) - 1
        place = end
    return kept
