"""Sessions that share one growing set of segments.

Rules
-----
1. Segments are only ever added. Forking and rewinding move leaves and touch no segment.
2. A session's leaf moves to a node that exists, and its revision rises by one when it does.
3. A session reaches its active path and what it appended itself; the nodes of others do not exist for it.
4. `append` with a required ancestor that is not on the active path is `StaleBranch` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from standfast.errors import InvalidArgument, NodeNotFound, SessionExists, SessionNotFound, StaleBranch
from standfast.graph import lineage
from standfast.model.frame import INITIAL
from standfast.model.node import Entry, FrameOpened, Segment, split_node_id


class Branch(msgspec.Struct, frozen=True):
    """Where a session stands in the graph."""

    leaf: str | None = None
    depth: int = 0
    frame: str = INITIAL
    model_calls: int = 0
    revision: int = 0


class SessionGraph:
    """The history of several sessions in memory."""

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}
        self.branches: dict[str, Branch] = {}

    def create(self, session_id: str) -> Branch:
        """A session without history."""
        self._require_free(session_id)
        return self._move(session_id, Branch())

    def append(
        self,
        session_id: str,
        segment_id: str,
        entries: Sequence[Entry],
        *,
        requires: str | None = None,
        model_calls: int = 0,
    ) -> Branch:
        """Add a chain of nodes under the leaf."""
        branch = self.branch(session_id)
        if requires is not None and not lineage.holds(self.segments.get, branch.leaf, requires):
            raise StaleBranch(branch.leaf)
        if segment_id in self.segments:
            raise InvalidArgument(f"there is a segment {segment_id[:80]!r} already")
        if not entries:
            return self._move(
                session_id, msgspec.structs.replace(branch, model_calls=branch.model_calls + model_calls)
            )
        segment = grown(branch, session_id, segment_id, tuple(entries), model_calls)
        self.segments[segment_id] = segment
        return self._move(session_id, moved(branch, segment))

    def fork(self, session_id: str, new_id: str, at: str | None = None) -> Branch:
        """A new session over the same history."""
        branch = self.branch(session_id)
        self._require_free(new_id)
        if at is None or at == branch.leaf:
            return self._move(new_id, msgspec.structs.replace(branch, revision=0))
        return self._move(new_id, self._at(session_id, at, revision=0))

    def rewind(self, session_id: str, to: str) -> Branch:
        """Move the session's leaf to another node of its history; `rewind` leads forward again as well."""
        revision = self.branch(session_id).revision + 1
        return self._move(session_id, self._at(session_id, to, revision))

    def branch(self, session_id: str) -> Branch:
        if (found := self.branches.get(session_id)) is None:
            raise SessionNotFound(session_id)
        return found

    def path(self, session_id: str) -> list[Segment]:
        """The active path, oldest first."""
        leaf = self.branch(session_id).leaf
        return [] if leaf is None else lineage.path(self.segments.get, leaf)

    def reached(self, session_ids: Iterable[str] | None = None) -> set[str]:
        """The ids of all segments on the active paths of these sessions, or of all."""
        asked = self.branches if session_ids is None else session_ids
        return self.ancestry(self.branch(session_id).leaf for session_id in asked)

    def ancestry(self, nodes: Iterable[str | None]) -> set[str]:
        """The ids of all segments on the paths to these nodes; each segment is looked at once."""
        found: set[str] = set()
        for step in nodes:
            while step is not None:
                segment = self.segments.get(split_node_id(step)[0])
                if segment is None or segment.segment_id in found:
                    break
                found.add(segment.segment_id)
                step = segment.parent
        return found

    def _at(self, session_id: str, node: str, revision: int) -> Branch:
        segment_id, index = split_node_id(node)
        segment = self.segments.get(segment_id)
        if segment is None or index >= len(segment.entries):
            raise NodeNotFound(node)
        own = segment.session_id == session_id
        if not own and not lineage.holds(self.segments.get, self.branch(session_id).leaf, node):
            raise NodeNotFound(node)
        return Branch(
            leaf=node,
            depth=segment.depth + index + 1,
            frame=lineage.frame_at(self.segments.get, node),
            model_calls=lineage.calls_at(self.segments.get, node),
            revision=revision,
        )

    def _require_free(self, session_id: str) -> None:
        if session_id in self.branches:
            raise SessionExists(session_id)

    def _move(self, session_id: str, branch: Branch) -> Branch:
        self.branches[session_id] = branch
        return branch


def grown(
    branch: Branch, session_id: str, segment_id: str, entries: tuple[Entry, ...], model_calls: int
) -> Segment:
    """The segment that *entries* make under the leaf of *branch*."""
    frame = branch.frame
    for entry in entries:
        if isinstance(entry.payload, FrameOpened):
            frame = entry.payload.switch.frame_id
    return Segment(
        segment_id=segment_id,
        session_id=session_id,
        parent=branch.leaf,
        caused_by=segment_id,
        depth=branch.depth,
        frame=frame,
        entries=entries,
        opens_frame=lineage.opens_frame(entries),
        model_calls=branch.model_calls + model_calls,
    )


def moved(branch: Branch, segment: Segment) -> Branch:
    """*branch* with its leaf at the end of *segment*."""
    return Branch(
        leaf=segment.leaf,
        depth=segment.depth + len(segment.entries),
        frame=segment.frame,
        model_calls=segment.model_calls,
        revision=branch.revision + 1,
    )
