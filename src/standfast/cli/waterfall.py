"""Draws spans as bars over time, each below its parent; time in which a turn only waits is shortened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from standfast.cli.output import console, moment, visible
from standfast.model.limits import dollars
from standfast.model.trace_record import TraceRecord
from standfast.trace.trace_reader import SpanTree

_BAR_WIDTH: Final = 32
_HIDDEN: Final = ("turn_began", "turn_taken_up", "usage")
_COLOURS: Final = {
    "turn": "blue", "model_call": "cyan", "tool_call": "green", "cell": "green",
    "hook": "magenta", "wait": "yellow", "task": "blue",
}  # fmt: skip
_BAD: Final = {"error": "red", "timeout": "red", "denied": "red", "expired": "red", "cancelled": "dim"}
_IDLE_SHARE: Final = 0.15
"""The longest that a stretch of pure waiting is drawn, as a share of all other time."""


class Axis:
    """Maps times to positions in a bar, from 0 to 1."""

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


def show_waterfalls(trees: Sequence[SpanTree]) -> None:
    """Print every turn with its bars. Hooks outside of turns are shown only if they failed."""
    shown = console()
    worth_it = [
        tree
        for tree in trees
        if tree.record.kind != "hook" or tree.record.turn_id or tree.record.status != "ok"
    ]
    if not worth_it:
        shown.print("only hooks outside of turns; --json shows them", style="dim")
    for number, tree in enumerate(worth_it):
        if number:
            shown.print()
        place = tree.record.turn_id or "outside of turns"
        shown.print(Text(f"{place} · {moment(tree.started_ms)}", "dim"))
        axis = Axis([tree])
        table = Table.grid(padding=(0, 2))
        table.add_column(overflow="ellipsis", no_wrap=True, ratio=3)
        table.add_column(no_wrap=True, width=_BAR_WIDTH)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold", ratio=2)
        table.expand = True
        for depth, one in _rows(tree, 0):
            record, took = one.record, ""
            colour = _BAD.get(record.status) or _COLOURS.get(record.kind, "dim")
            if record.duration_ms is not None:
                took = duration_text(record.duration_ms) + ("…" if one.is_open else "")
            table.add_row(
                Text("  " * depth + _label(record), "dim" if record.kind == "event" else ""),
                Text(_bar(one, axis), colour),
                Text(took),
                Text(_detail(one), colour if record.status in _BAD else "dim"),
            )
        shown.print(table)


def _rows(tree: SpanTree, depth: int) -> Iterator[tuple[int, SpanTree]]:
    yield depth, tree
    for child in tree.children:
        if child.record.name not in _HIDDEN or child.record.span_id:
            yield from _rows(child, depth + 1)


def _label(record: TraceRecord) -> str:
    name = visible(record.name) or record.kind
    if record.kind == "hook":
        return f"{name} · {record.plugin_id}"
    lead, tail = {"wait": ("waits: ", ""), "event": ("• ", "")}.get(record.kind, ("", ""))
    return f"{lead}{name}{'()' if record.kind in ('tool_call', 'cell') else tail}"


def _bar(tree: SpanTree, axis: Axis) -> str:
    """Draw a span's share of the whole, at least a mark."""
    start = min(int(axis.place(tree.started_ms) * _BAR_WIDTH), _BAR_WIDTH - 1)
    if tree.record.kind == "event":
        return " " * start + "·"
    width = round((axis.place(tree.ended_ms) - axis.place(tree.started_ms)) * _BAR_WIDTH)
    mark = "░" if tree.record.kind == "wait" else "█"
    return " " * start + (mark * min(width, _BAR_WIDTH - start) or "▏")


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
    """Return a span's status, attempt, tokens and cost."""
    record = tree.record
    body: dict[str, Any] = record.body if isinstance(record.body, dict) else {}
    words = []
    if tree.is_open:
        words.append("not over")
    elif record.kind == "wait":
        words.append(str(body.get("outcome") or record.status))
    elif record.status not in ("", "ok"):
        error = body.get("error")
        words.append(f"{record.status}: {error}" if isinstance(error, str) else record.status)
    if body.get("attempt", 1) != 1:
        words.append(f"attempt {body['attempt']}")
    if isinstance(usage := body.get("usage"), dict):
        names = ("input", "cache_read", "cache_write", "output", "cost_nano_usd")
        counts = [value if isinstance(value := usage.get(name), int) else 0 for name in names]
        read, made, cost = sum(counts[:3]), counts[3], counts[4]
        if read or made:
            words.append(f"{read:,} → {made:,} tokens")
            words += [dollars(cost)] if cost else []
    return visible(" · ".join(word for word in words if word))


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
