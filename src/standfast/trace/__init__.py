"""Traces: where the records of turns go. A name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_HOMES = {
    "JsonlTrace": "standfast.trace.jsonl",
    "OtelTrace": "standfast.trace.otel",
    "TraceRecord": "standfast.model.trace_record",
    "read_trace": "standfast.trace.trace_reader",
    "span_trees": "standfast.trace.trace_reader",
}

__all__ = ["JsonlTrace", "OtelTrace", "TraceRecord", "read_trace", "span_trees"]


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)


if TYPE_CHECKING:
    from standfast.model.trace_record import TraceRecord as TraceRecord
    from standfast.trace.jsonl import JsonlTrace as JsonlTrace
    from standfast.trace.otel import OtelTrace as OtelTrace
    from standfast.trace.trace_reader import read_trace as read_trace
    from standfast.trace.trace_reader import span_trees as span_trees
