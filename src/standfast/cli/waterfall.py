"""Spans drawn as bars over time, each below its parent; stretches of pure waiting are shortened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from standfast.cli.output import console, moment, visible
from standfast.model.limits import dollars
from standfast.model.trace_record import TraceRecord
from standfast.trace.time_axis import TimeAxis
from standfast.trace.trace_reader import SpanTree

_BAR_WIDTH: Final = 32
_HIDDEN: Final = ("turn_began", "turn_taken_up", "usage")
_COLOURS: Final = {
    "turn": "blue", "model_call": "cyan", "tool_call": "green", "cell": "green",
    "hook": "magenta", "wait": "yellow", "task": "blue",
}  # fmt: skip
_BAD: Final = {"error": "red", "timeout": "red", "denied": "red", "expired": "red", "cancelled": "dim"}


def show_waterfalls(trees: Sequence[SpanTree]) -> None:
    """Print every turn with its bars. Hooks outside of turns are shown only if they failed."""
    shown = console()
    worth_it = [
        tree
        for tree in trees
        if tree.record.kind != "hook" or tree.record.turn_id or tree.record.status != "ok"
    ]
    if not worth_it:
        shown.print("the trace has only hooks outside of turns; --json shows them", style="dim")
    for number, tree in enumerate(worth_it):
        if number:
            shown.print()
        place = tree.record.turn_id or "outside of turns"
        shown.print(Text(f"{place} · {moment(tree.started_ms)}", "dim"))
        axis = TimeAxis([tree])
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


def _bar(tree: SpanTree, axis: TimeAxis) -> str:
    """Draw a span's part of the whole, at least a mark."""
    start = min(int(axis.place(tree.started_ms) * _BAR_WIDTH), _BAR_WIDTH - 1)
    if tree.record.kind == "event":
        return " " * start + "·"
    width = round((axis.place(tree.ended_ms) - axis.place(tree.started_ms)) * _BAR_WIDTH)
    mark = "░" if tree.record.kind == "wait" else "█"
    return " " * start + (mark * min(width, _BAR_WIDTH - start) or "▏")


def duration_text(ms: float) -> str:
    """Format a duration: `<1 ms`, `340 ms`, `1.2 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
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
