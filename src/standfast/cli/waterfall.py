"""Draws spans as bars over time, each below the one that it is a part of.

Rule: what stands still takes little room. A wait of two days does not squeeze what happened around it to
nothing: time in which nothing but waits went on is shown shortened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from standfast.cli.output import console, moment, visible
from standfast.model.canonical import Json
from standfast.model.trace_record import TraceRecord
from standfast.model.usage import dollars
from standfast.trace.trace_reader import SpanTree

_BAR_WIDTH: Final = 32
_HIDDEN: Final = ("turn_began", "turn_taken_up", "usage")
_COLOURS: Final = {
    "turn": "blue", "model_call": "cyan", "tool_call": "green", "cell": "green",
    "hook": "magenta", "wait": "yellow", "task": "blue",
}  # fmt: skip
_BAD: Final = {"error": "red", "timeout": "red", "denied": "red", "expired": "red", "cancelled": "dim"}
_IDLE_SHARE: Final = 0.15
"""A stretch in which nothing but waits goes on is no longer than this part of all the others."""


class Axis:
    """Where in a bar a time is, from 0 to 1."""

    def __init__(self, trees: Sequence[SpanTree]) -> None:
        start = min(tree.started_ms for tree in trees)
        end = max([start, *(tree.ended_ms for tree in _all(trees))])
        idle = _without(_merged(sorted(_waits(trees))), _merged(sorted(_work(trees))))
        busy = end - start - sum(stop - begin for begin, stop in idle)
        self._points = _points(idle, start, end, max(1.0, busy * _IDLE_SHARE))
        self._length = self._points[-1][1] or 1.0

    def place(self, ms: float) -> float:
        """How far along *ms* is."""
        before = self._points[0]
        for point in self._points:
            if ms <= point[0]:
                return _between(before, point, ms) / self._length
            before = point
        return 1.0


def show_waterfalls(trees: Sequence[SpanTree]) -> None:
    """Print every turn with its bars."""
    shown = console()
    worth_it = [tree for tree in trees if not _is_small(tree.record)]
    if not worth_it:
        shown.print("nothing but hooks outside of turns; --json has them", style="dim")
    for number, tree in enumerate(worth_it):
        if number:
            shown.print()
        shown.print(_headline(tree))
        shown.print(_waterfall(tree))


def _is_small(record: TraceRecord) -> bool:
    """Whether it is a hook outside of turns that went well: there is one whenever a session is opened."""
    return record.kind == "hook" and not record.turn_id and record.status == "ok"


def _headline(tree: SpanTree) -> Text:
    record = tree.record
    words = [record.turn_id or "outside of turns", moment(tree.started_ms)]
    return Text(" · ".join(words), "dim")


def _waterfall(tree: SpanTree) -> Table:
    axis = Axis([tree])
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="ellipsis", no_wrap=True, ratio=3)
    table.add_column(no_wrap=True, width=_BAR_WIDTH)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", ratio=2)
    table.expand = True
    for depth, one in _rows(tree, 0):
        colour = _colour(one.record)
        table.add_row(
            Text("  " * depth + _label(one.record), "dim" if one.record.kind == "event" else ""),
            Text(_bar(one, axis), colour),
            Text(_took(one)),
            Text(_detail(one), colour if one.record.status in _BAD else "dim"),
        )
    return table


def _rows(tree: SpanTree, depth: int) -> Iterator[tuple[int, SpanTree]]:
    yield depth, tree
    for child in tree.children:
        if child.record.name not in _HIDDEN or child.record.span_id:
            yield from _rows(child, depth + 1)


def _label(record: TraceRecord) -> str:
    name = visible(record.name) or record.kind
    match record.kind:
        case "tool_call" | "cell":
            return f"{name}()"
        case "wait":
            return f"waits: {name}"
        case "hook":
            return f"{name} · {record.plugin_id}"
        case "event":
            return f"• {name}"
        case _:
            return name


def _bar(tree: SpanTree, axis: Axis) -> str:
    """The span's part of the whole, at least a mark."""
    start = min(int(axis.place(tree.started_ms) * _BAR_WIDTH), _BAR_WIDTH - 1)
    if tree.record.kind == "event":
        return " " * start + "·"
    width = round((axis.place(tree.ended_ms) - axis.place(tree.started_ms)) * _BAR_WIDTH)
    mark = "░" if tree.record.kind == "wait" else "█"
    return " " * start + (mark * min(width, _BAR_WIDTH - start) or "▏")


def _colour(record: TraceRecord) -> str:
    return _BAD.get(record.status) or _COLOURS.get(record.kind, "dim")


def _took(tree: SpanTree) -> str:
    if tree.record.duration_ms is None:
        return ""
    return duration_text(tree.record.duration_ms) + ("…" if tree.is_open else "")


def duration_text(ms: float) -> str:
    """`<1 ms`, `340 ms`, `1.2 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if ms < 1000:
        return f"{ms:.0f} ms" if ms >= 1 or ms == 0 else "<1 ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    for unit, size, smaller, part in (
        ("d", 86_400_000, "h", 3_600_000), ("h", 3_600_000, "min", 60_000), ("min", 60_000, "s", 1000),
    ):  # fmt: skip
        if ms >= size:
            return f"{int(ms // size)} {unit} {int(ms % size // part)} {smaller}"
    return ""


def _detail(tree: SpanTree) -> str:
    record = tree.record
    body: dict[str, Any] = record.body if isinstance(record.body, dict) else {}
    words = ["not over" if tree.is_open else _status_text(record, body)]
    attempt = body.get("attempt", 1)
    words += [f"attempt {attempt}"] if attempt != 1 else []
    words += _usage_words(body.get("usage"))
    return visible(" · ".join(word for word in words if word))


def _status_text(record: TraceRecord, body: dict[str, Any]) -> str:
    if record.kind == "wait":
        return str(body.get("outcome") or record.status)
    if record.status in ("", "ok"):
        return ""
    error = body.get("error")
    return f"{record.status}: {error}" if isinstance(error, str) else record.status


def _usage_words(usage: Json) -> list[str]:
    if not isinstance(usage, dict):
        return []
    given, made = (
        sum(_whole(usage.get(key)) for key in keys)
        for keys in (("input", "cache_read", "cache_write"), ("output",))
    )
    if not given and not made:
        return []
    cost = _whole(usage.get("cost_nano_usd"))
    return [f"{given:,} → {made:,} tokens", *([dollars(cost)] if cost else [])]


def _whole(value: Json) -> int:
    return value if isinstance(value, int) else 0


# Time


def _all(trees: Sequence[SpanTree]) -> Iterator[SpanTree]:
    for tree in trees:
        yield tree
        yield from _all(tree.children)


def _work(trees: Sequence[SpanTree]) -> Iterator[tuple[float, float]]:
    """When something was done: spans in which no other one lies, waits left out."""
    for tree in _all(trees):
        within = [child for child in tree.children if child.record.span_id]
        if not within and tree.record.kind not in ("wait", "event") and tree.ended_ms > tree.started_ms:
            yield tree.started_ms, tree.ended_ms


def _waits(trees: Sequence[SpanTree]) -> Iterator[tuple[float, float]]:
    for tree in _all(trees):
        if tree.record.kind == "wait":
            yield tree.started_ms, tree.ended_ms


def _without(
    stretches: list[tuple[float, float]], taken: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """What of *stretches* no part of *taken* lies in."""
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
    """Times, and how far along they are: those in which nothing was done shortened."""
    points, at, along = [(start, 0.0)], start, 0.0
    for begin, stop in [*idle, (end, end)]:
        along += begin - at
        points.append((begin, along))
        along += min(stop - begin, longest)
        points.append((stop, along))
        at = stop
    return points


def _between(before: tuple[float, float], after: tuple[float, float], ms: float) -> float:
    (start, low), (end, high) = before, after
    return high if end <= start else low + (high - low) * max(0.0, ms - start) / (end - start)
