"""The history of sessions: append-only nodes, branches, frames. Pure."""

from standfast.graph.history import messages_of
from standfast.graph.lineage import (
    Lookup,
    calls_at,
    frame_at,
    frame_path,
    holds,
    model_calls_at,
    nodes_of,
    opens_frame,
    path,
)
from standfast.graph.session_graph import Branch, SessionGraph

__all__ = [
    "Branch",
    "Lookup",
    "SessionGraph",
    "calls_at",
    "frame_at",
    "frame_path",
    "holds",
    "messages_of",
    "model_calls_at",
    "nodes_of",
    "opens_frame",
    "path",
]
