"""Traces: the sinks for the records of turns. A name is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.model.trace_record": "TraceRecord",
        "standfast.trace.jsonl": "JsonlTrace",
        "standfast.trace.otel": "OtelTrace",
        "standfast.trace.trace_reader": "read_trace span_trees",
    },
)

if TYPE_CHECKING:
    from standfast.model.trace_record import TraceRecord as TraceRecord
    from standfast.trace.jsonl import JsonlTrace as JsonlTrace
    from standfast.trace.otel import OtelTrace as OtelTrace
    from standfast.trace.trace_reader import read_trace as read_trace
    from standfast.trace.trace_reader import span_trees as span_trees
