"""Reads a trace back from its file, and puts its spans into trees.

Rules
-----
1. A line that is no record is passed over: it was torn by a full disk, or somebody else wrote it.
2. A span that was told twice is the one that was told last.
3. A turn that is not over yet is there all the same, from when it began to what was last heard of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from standfast.errors import InvalidSessionId
from standfast.model.trace_record import TraceRecord, span_id_of

_decode: Final = msgspec.json.Decoder(TraceRecord).decode
_BEGINNINGS: Final = ("turn_began", "turn_taken_up")


@dataclass(slots=True)
class SpanTree:
    """A span or an event, with what happened in it."""

    record: TraceRecord
    children: list[SpanTree] = field(default_factory=list)
    is_open: bool = False

    @property
    def started_ms(self) -> int:
        started = self.record.started_at_ms
        return self.record.at_ms if started is None else started

    @property
    def ended_ms(self) -> float:
        return self.started_ms + (self.record.duration_ms or 0)


def read_trace(path: str | os.PathLike[str]) -> Iterator[TraceRecord]:
    """The records of a file, those of the one that was put aside first."""
    for file in (Path(f"{os.fspath(path)}.1"), Path(path)):
        if file.exists():
            with file.open("rb") as lines:
                yield from (record for line in lines if (record := _read(line)) is not None)


def span_trees(
    records: Iterable[TraceRecord], *, session_id: str | None = None, turn_id: str | None = None
) -> list[SpanTree]:
    """The turns among *records*, and what happened outside of turns, in the order of their beginnings.

    With a session or a turn, those alone; with the turns that their calls have begun in other sessions.
    """
    nodes = _nodes(records)
    _add_unfinished(nodes)
    known = {one.record.span_id: one for one in nodes if one.record.span_id}
    roots = [one for one in nodes if not _hang(one, known)]
    found = _within(roots, lambda record: _is_wanted(record, session_id, turn_id))
    for tree in _all(found):
        tree.children.sort(key=_when)
    return sorted(found, key=_when)


def _read(line: bytes) -> TraceRecord | None:
    try:
        return _decode(line)
    except (InvalidSessionId, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _nodes(records: Iterable[TraceRecord]) -> list[SpanTree]:
    """A node for each event, and one for each span."""
    spans: dict[str, SpanTree] = {}
    events: list[SpanTree] = []
    for record in records:
        if record.span_id:
            spans[record.span_id] = SpanTree(record)
        else:
            events.append(SpanTree(record))
    return [*spans.values(), *events]


def _add_unfinished(nodes: list[SpanTree]) -> None:
    """Put in the turns that are not over."""
    known = {one.record.span_id for one in nodes}
    last: dict[str, int] = {}
    for one in nodes:
        last[one.record.turn_id] = max(last.get(one.record.turn_id, 0), one.record.at_ms)
    for one in list(nodes):
        begun = one.record
        span_id = span_id_of(begun.turn_id)
        if begun.kind == "event" and begun.name in _BEGINNINGS and span_id not in known:
            known.add(span_id)
            nodes.append(SpanTree(_open_turn(begun, span_id, last[begun.turn_id]), is_open=True))


def _open_turn(begun: TraceRecord, span_id: str, last_ms: int) -> TraceRecord:
    name = begun.body.get("agent", "") if isinstance(begun.body, dict) else ""
    return TraceRecord(
        at_ms=last_ms,
        name=str(name),
        kind="turn",
        session_id=begun.session_id,
        turn_id=begun.turn_id,
        span_id=span_id,
        started_at_ms=begun.at_ms,
        duration_ms=max(0, last_ms - begun.at_ms),
    )


def _hang(one: SpanTree, known: dict[str, SpanTree]) -> bool:
    """Put a node under its parent, or under its turn if the parent is not told yet; false if it has none."""
    record = one.record
    wanted = [record.parent_id] if record.parent_id else []
    if record.kind != "turn" and record.turn_id:
        wanted.append(span_id_of(record.turn_id))
    parent = next((known[span_id] for span_id in wanted if span_id in known), None)
    if parent is None or _leads_to(parent, one, known):
        return False
    parent.children.append(one)
    return True


def _leads_to(start: SpanTree, goal: SpanTree, known: dict[str, SpanTree]) -> bool:
    """Whether *goal* is above *start*: a file that somebody has edited may go in circles."""
    seen: set[int] = set()
    at: SpanTree | None = start
    while at is not None and id(at) not in seen:
        if at is goal:
            return True
        seen.add(id(at))
        at = known.get(at.record.parent_id)
    return False


def _within(trees: list[SpanTree], is_wanted: Callable[[TraceRecord], bool]) -> list[SpanTree]:
    """The uppermost trees that are wanted."""
    found: list[SpanTree] = []
    for tree in trees:
        found += [tree] if is_wanted(tree.record) else _within(tree.children, is_wanted)
    return found


def _is_wanted(record: TraceRecord, session_id: str | None, turn_id: str | None) -> bool:
    return session_id in (None, record.session_id) and turn_id in (None, record.turn_id)


def _all(trees: list[SpanTree]) -> Iterator[SpanTree]:
    for tree in trees:
        yield tree
        yield from _all(tree.children)


def _when(tree: SpanTree) -> tuple[int, int]:
    return tree.started_ms, tree.record.at_ms
