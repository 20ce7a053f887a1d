"""A sink that keeps the spans it receives, and helpers that summarize a trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from standfast import Agent
from standfast.model.trace_record import TraceRecord
from standfast.providers.scripted import ScriptedModel


class Kept:
    """A sink that keeps records; `contents` has the same meaning as for the shipped sinks."""

    def __init__(self, *, contents: bool = False) -> None:
        self.contents = contents
        self.records: list[TraceRecord] = []

    def record(self, record: TraceRecord) -> None:
        self.records.append(record)

    def of(self, kind: str) -> list[TraceRecord]:
        return [one for one in self.records if one.kind == kind and (one.turn_id or kind != "hook")]

    def one(self, kind: str) -> TraceRecord:
        (found,) = self.of(kind)
        return found

    def names(self, kind: str) -> list[str]:
        return [one.name for one in self.of(kind)]


def agent_of(*replies: Any, **options: Any) -> Agent[Any, Any]:
    """Return an agent with a scripted model."""
    return Agent(ScriptedModel(replies), **options)


def asks(*calls: tuple[str, dict[str, Any] | str]) -> dict[str, Any]:
    """Return a scripted reply that requests these calls."""
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def by_span(records: Iterable[TraceRecord]) -> dict[str, TraceRecord]:
    return {one.span_id: one for one in records if one.span_id}


def path_of(record: TraceRecord, records: Iterable[TraceRecord]) -> list[str]:
    """Return the kinds of a span and its ancestors, from the outermost to the span itself."""
    known = by_span(records)
    kinds: list[str] = []
    at: TraceRecord | None = record
    while at is not None:
        kinds.append(at.kind)
        at = known.get(at.parent_id)
    return kinds[::-1]
