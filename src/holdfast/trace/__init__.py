"""Traces: where the records of turns go. A name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_HOMES = {
    "JsonlTrace": "holdfast.trace.jsonl",
    "OtelTrace": "holdfast.trace.otel",
    "TraceRecord": "holdfast.model.trace_record",
    "read_trace": "holdfast.trace.reading",
    "span_trees": "holdfast.trace.reading",
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
    from holdfast.model.trace_record import TraceRecord as TraceRecord
    from holdfast.trace.jsonl import JsonlTrace as JsonlTrace
    from holdfast.trace.otel import OtelTrace as OtelTrace
    from holdfast.trace.reading import read_trace as read_trace
    from holdfast.trace.reading import span_trees as span_trees
