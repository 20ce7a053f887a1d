"""Reader of trace files, which builds trees of their spans.

A line that is not a record is skipped: a full disk truncated it, or another program wrote it. Of several
records of one span the last counts. An unfinished turn is included, from its beginning to its latest record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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
    """A span or an event, with its children."""

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
    """Read the records of a file, after those of its rotated predecessor."""
    for file in (Path(f"{os.fspath(path)}.1"), Path(path)):
        if file.exists():
            with file.open("rb") as lines:
                for line in lines:
                    with suppress(InvalidSessionId, msgspec.DecodeError, UnicodeDecodeError):
                        yield _decode(line)


def span_trees(
    records: Iterable[TraceRecord], *, session_id: str | None = None, turn_id: str | None = None
) -> list[SpanTree]:
    """Return the turns among *records*, and records outside of turns, ordered by start.

    With a session or a turn, return only those, with the turns that their calls started in other sessions.
    """
    spans: dict[str, SpanTree] = {}
    events: list[SpanTree] = []
    for record in records:
        if record.span_id:
            spans[record.span_id] = SpanTree(record)
        else:
            events.append(SpanTree(record))
    nodes = [*spans.values(), *events]
    _add_unfinished(nodes)
    known = {one.record.span_id: one for one in nodes if one.record.span_id}
    roots = [one for one in nodes if not _hang(one, known)]
    found = _topmost(
        roots, lambda record: session_id in (None, record.session_id) and turn_id in (None, record.turn_id)
    )
    pending = [found]
    while pending:
        trees = pending.pop()
        trees.sort(key=lambda tree: (tree.started_ms, tree.record.at_ms))
        pending += [tree.children for tree in trees]
    return found


def _add_unfinished(nodes: list[SpanTree]) -> None:
    """Add the turns that have not ended."""
    known = {one.record.span_id for one in nodes}
    last: dict[str, int] = {}
    for one in nodes:
        last[one.record.turn_id] = max(last.get(one.record.turn_id, 0), one.record.at_ms)
    for one in list(nodes):
        begun = one.record
        span_id = span_id_of(begun.turn_id)
        if begun.kind == "event" and begun.name in _BEGINNINGS and span_id not in known:
            known.add(span_id)
            last_ms = last[begun.turn_id]
            record = TraceRecord(
                at_ms=last_ms,
                name=str(begun.body.get("agent", "") if isinstance(begun.body, dict) else ""),
                kind="turn",
                session_id=begun.session_id,
                turn_id=begun.turn_id,
                span_id=span_id,
                started_at_ms=begun.at_ms,
                duration_ms=max(0, last_ms - begun.at_ms),
            )
            nodes.append(SpanTree(record, is_open=True))


def _hang(one: SpanTree, known: dict[str, SpanTree]) -> bool:
    """Attach a node to its parent, or to its turn if the parent has no record; False if there is neither."""
    record = one.record
    wanted = [record.parent_id] if record.parent_id else []
    if record.kind != "turn" and record.turn_id:
        wanted.append(span_id_of(record.turn_id))
    parent = next((known[span_id] for span_id in wanted if span_id in known), None)
    at, seen = parent, set[int]()
    while at is not None and id(at) not in seen:  # an edited file may contain cycles
        if at is one:
            return False
        seen.add(id(at))
        at = known.get(at.record.parent_id)
    if parent is not None:
        parent.children.append(one)
    return parent is not None


def _topmost(trees: list[SpanTree], is_wanted: Callable[[TraceRecord], bool]) -> list[SpanTree]:
    """Return the wanted trees that are not inside another wanted tree."""
    found: list[SpanTree] = []
    for tree in trees:
        found += [tree] if is_wanted(tree.record) else _topmost(tree.children, is_wanted)
    return found
