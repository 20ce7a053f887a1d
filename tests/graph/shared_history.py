"""Sessions over one shared history, with only dicts to keep them in."""

from __future__ import annotations

from collections.abc import Sequence

from standfast.graph.history import grown, moved_to, path, require_append
from standfast.model.session import Entry, Segment, SessionHead
from standfast.store.rules import forked

Position = tuple[str | None, int, str, int, int]
"""The leaf, depth, frame, model calls and revision of a head."""


class SharedHistory:
    """The heads of sessions, and their segments."""

    def __init__(self, *session_ids: str) -> None:
        self.segments: dict[str, Segment] = {}
        self.heads = {name: SessionHead(session_id=name, created_at=1, updated_at=1) for name in session_ids}

    def append(
        self,
        name: str,
        segment_id: str,
        entries: Sequence[Entry],
        *,
        requires: str | None = None,
        model_calls: int = 0,
    ) -> Position:
        require_append(self.segments.get, self.heads[name].leaf, segment_id, requires)
        self.heads[name], segment = grown(self.heads[name], segment_id, tuple(entries), model_calls)
        if segment is not None:
            self.segments[segment_id] = segment
        return self.position(name)

    def fork(self, name: str, new: str, at: str | None = None) -> Position:
        head = self.heads[name]
        if at is not None and at != head.leaf:
            head = moved_to(self.segments.get, head, at)
        self.heads[new] = forked(head, new, 1, None)
        return self.position(new)

    def rewind(self, name: str, to: str) -> Position:
        self.heads[name] = moved_to(self.segments.get, self.heads[name], to)
        return self.position(name)

    def position(self, name: str) -> Position:
        head = self.heads[name]
        return head.leaf, head.depth, head.frame, head.model_calls, head.revision

    def path(self, name: str) -> list[Segment]:
        leaf = self.heads[name].leaf
        return [] if leaf is None else path(self.segments.get, leaf)
