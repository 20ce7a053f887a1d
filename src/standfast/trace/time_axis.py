"""A time axis for drawings of spans, on which stretches of pure waiting are shortened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from standfast.trace.trace_reader import SpanTree

_IDLE_SHARE: Final = 0.15
"""The longest drawn stretch of pure waiting, as a fraction of all other time."""


class TimeAxis:
    """Maps times to positions, from 0 to 1."""

    def __init__(self, trees: Sequence[SpanTree]) -> None:
        start = min(tree.started_ms for tree in trees)
        spans = list(_all(trees))
        end = max([start, *(tree.ended_ms for tree in spans)])
        waits = [(one.started_ms, one.ended_ms) for one in spans if one.record.kind == "wait"]
        work = [  # leaves of the tree, without waits
            (one.started_ms, one.ended_ms)
            for one in spans
            if not any(child.record.span_id for child in one.children)
            and one.record.kind not in ("wait", "event")
            and one.ended_ms > one.started_ms
        ]
        idle = _without(_merged(sorted(waits)), _merged(sorted(work)))
        busy = end - start - sum(stop - begin for begin, stop in idle)
        self._points = _points(idle, start, end, max(1.0, busy * _IDLE_SHARE))
        self._length = self._points[-1][1] or 1.0

    def place(self, ms: float) -> float:
        """Return the position of the time *ms*."""
        (start, low) = self._points[0]
        for end, high in self._points:
            if ms <= end:
                share = max(0.0, ms - start) / (end - start) if end > start else 1.0
                return (low + (high - low) * share) / self._length
            start, low = end, high
        return 1.0


def _all(trees: Sequence[SpanTree]) -> Iterator[SpanTree]:
    for tree in trees:
        yield tree
        yield from _all(tree.children)


def _without(
    stretches: list[tuple[float, float]], taken: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the parts of *stretches* that no part of *taken* overlaps."""
    left: list[tuple[float, float]] = []
    for start, end in stretches:
        at = start
        for begin, stop in taken:
            if begin < end and stop > at:
                left.append((at, begin))
                at = max(at, stop)
        left.append((at, end))
    return [(start, end) for start, end in left if end > start]


def _merged(stretches: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in stretches:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _points(
    idle: list[tuple[float, float]], start: float, end: float, longest: float
) -> list[tuple[float, float]]:
    """Return times with their positions; stretches of pure waiting are at most *longest* long."""
    points, at, along = [(start, 0.0)], start, 0.0
    for begin, stop in [*idle, (end, end)]:
        along += begin - at
        points.append((begin, along))
        along += min(stop - begin, longest)
        points.append((stop, along))
        at = stop
    return points
