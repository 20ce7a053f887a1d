"""A turn's spans as bars over time: pure functions of trace records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import htpy as h

from standfast.model.limits import Usage
from standfast.model.trace_record import TraceRecord
from standfast.trace.time_axis import TimeAxis
from standfast.trace.trace_reader import SpanTree, span_trees
from standfast.workbench.words import cost, duration, tokens

_HIDDEN: Final = ("turn_began", "usage")
_BAD: Final = frozenset({"error", "timeout", "denied", "expired"})
_EVENTS: Final = {
    "turn_taken_up": "Taken over by another process",
    "turn_interrupted": "Interrupted",
    "turn_parked": "Parked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar. `start` and `width` are fractions of the whole, from 0 to 1."""

    depth: int
    label: str
    kind: str
    start: float
    width: float
    took: str
    detail: str
    failed: bool = False
    replayed: bool = False


def bars_of(records: Sequence[TraceRecord], *, failures: bool = False) -> list[Bar]:
    """Return the bars of *records*, each span below its parent.

    With *failures*, return only failed spans and their ancestors.
    """
    trees = [tree for tree in span_trees(records) if tree.record.kind != "hook" or tree.record.turn_id]
    if not trees:
        return []
    axis = TimeAxis(trees)
    return [bar for tree in trees for bar in _bars(tree, 0, axis, failures)]


def _bars(tree: SpanTree, depth: int, axis: TimeAxis, failures: bool) -> Iterator[Bar]:
    below = [
        bar
        for child in tree.children
        if child.record.name not in _HIDDEN or child.record.span_id
        for bar in _bars(child, depth + 1, axis, failures)
    ]
    own = _bar(tree, depth, axis)
    if not failures or own.failed or below:
        yield own
        yield from below


def _bar(tree: SpanTree, depth: int, axis: TimeAxis) -> Bar:
    record = tree.record
    body: dict[str, Any] = record.body if isinstance(record.body, dict) else {}
    start, end = axis.place(tree.started_ms), axis.place(tree.ended_ms)
    took = "" if record.duration_ms is None else duration(record.duration_ms)
    return Bar(
        depth=depth,
        label=_label(record),
        kind=record.kind,
        start=start,
        width=max(0.0, end - start),
        took=took,
        detail=_detail(tree, body),
        failed=record.status in _BAD,
        replayed=bool(body.get("replays")),
    )


def _label(record: TraceRecord) -> str:
    if record.kind == "hook":
        return f"{record.name} · {record.plugin_id}"
    if record.kind == "wait":
        return f"Wait: {record.name}"
    if record.kind == "event":
        return _EVENTS.get(record.name, record.name.replace("_", " ").capitalize())
    return f"{record.name}()" if record.kind in ("tool_call", "cell") else record.name or record.kind


def _detail(tree: SpanTree, body: dict[str, Any]) -> str:
    """Return the status, the attempt, tokens and cost of a span."""
    record, words = tree.record, list[str]()
    if tree.is_open or record.status == "open":
        words.append("still waiting" if record.kind == "wait" else "still running")
    elif record.kind == "wait":
        words.append(str(body.get("outcome") or record.status))
    elif record.status not in ("", "ok"):
        error = body.get("error")
        words.append(f"{record.status}: {error}" if isinstance(error, str) else str(record.status))
    if body.get("replays"):
        words.append("replayed")
    if body.get("attempt", 1) != 1:
        words.append(f"attempt {body['attempt']}")
    if isinstance(given := body.get("usage"), dict):
        known = {name: value for name, value in given.items() if name in Usage.__struct_fields__}
        used = Usage(**{name: value for name, value in known.items() if isinstance(value, int)})
        if used.total:
            words.append(f"{tokens(used.total - used.output)} → {tokens(used.output)} tokens")
            words.append(cost(used))
    return " · ".join(word for word in words if word)


def waterfall_html(bars: Sequence[Bar]) -> h.Element:
    """Draw the bars: waits hatched, replayed spans pale, failures red."""
    hatch = h.pattern(
        id="hatch", width="6", height="6", patternUnits="userSpaceOnUse", patternTransform="rotate(45)"
    )
    return h.div(".waterfall")[
        h.svg(".hide", aria_hidden="true")[
            h.defs[hatch[h.line(class_="hatch", x1="0", y1="0", x2="0", y2="6")]]
        ],
        [_bar_html(bar) for bar in bars],
        _legend(bars),
    ]


def _legend(bars: Sequence[Bar]) -> h.Element:
    """Render a legend of the kinds of bars that are drawn."""
    kinds = {bar.kind for bar in bars}
    words = [
        ("", "Turns and tools", True),
        ("model_call", "Model calls", "model_call" in kinds),
        ("hook", "Plugins", "hook" in kinds),
        ("wait", "Waits, not to scale", "wait" in kinds),
        ("replayed", "Replayed, not run again", any(bar.replayed for bar in bars)),
        ("bad", "Failed", any(bar.failed for bar in bars)),
        ("event", "Events", "event" in kinds),
    ]
    return h.p(".legend")[
        [
            h.span[
                h.svg(viewBox="0 0 20 10", aria_hidden="true")[
                    h.rect(class_=f"bar {kind}", width="20", height="10", rx="2")
                ],
                text,
            ]
            for kind, text, shown in words
            if shown
        ]
    ]


def _bar_html(bar: Bar) -> h.Element:
    kind = f"bar {bar.kind}" + (" bad" if bar.failed else "") + (" replayed" if bar.replayed else "")
    x, width = min(bar.start * 1000, 994), max(6.0, bar.width * 1000)
    if bar.kind == "event":
        shape = h.rect(class_="mark", x=f"{x:.1f}", y="1", width="5", height="18")
    else:
        shape = h.rect(class_=kind, x=f"{x:.1f}", y="3", width=f"{width:.1f}", height="14", rx="2")
    return h.div(".span")[
        h.span(f".what.d{min(bar.depth, 5)}", title=bar.label, dir="auto")[bar.label],
        h.svg(viewBox="0 0 1000 20", preserveAspectRatio="none", aria_hidden="true")[shape],
        h.span(".time")[bar.took],
        h.span(".detail", dir="auto")[bar.detail],
    ]
