"""Small components of pages: icons, times, states, JSON, truncated text, empty lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import htpy as h

from standfast.errors import ErrorObject
from standfast.workbench.words import ago, duration, iso, moment, pretty, visible

_PATHS: Final = {
    "brand": "M4 17h16M6 17V9a6 6 0 0 1 12 0v8M10 17v-5h4v5",
    "sessions": "M4 6h16M4 12h16M4 18h10",
    "approvals": "M5 12l5 5L20 7",
    "tools": "M14 6a4 4 0 0 0 5 5l-9 9-4-4 9-9z",
    "usage": "M5 20V10M12 20V4M19 20v-7",
    "operations": "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3",
    "branch": "M7 4v16M7 14c0-5 10-3 10-8V4",
    "file": "M6 3h8l4 4v14H6zM14 3v4h4",
}
STATES: Final = {
    "idle": "Idle",
    "running": "Running",
    "waiting": "Waiting",
    "interrupted": "Interrupted",
    "blocked": "Blocked",
}
_MOST_CHARS: Final = 2_000
NONE: Final = "–"
"""A missing value in a table; narrow screens leave it out."""
_MOST_COMPARED: Final = 4_000_000


def icon(name: str) -> h.Element:
    return h.svg(".icon", viewBox="0 0 24 24", aria_hidden="true")[h.path(d=_PATHS[name])]


def state_badge(state: str, text: str = "") -> h.Element:
    """Render a state as a word with a coloured dot, because colour alone is not accessible."""
    shown = (text or STATES.get(state, state)).replace("_", " ")
    return h.span(f".state.{state}")[shown[:1].upper() + shown[1:]]


def when(at_ms: int, now_ms: int, suffix: str = "") -> h.Element:
    """Render a time as its age, which a script keeps up to date."""
    text = ago(at_ms, now_ms)
    return h.time(datetime=iso(at_ms), title=moment(at_ms), data_ago=suffix)[
        text if text == "now" else f"{text}{suffix}"
    ]


def exactly(at_ms: int) -> h.Element:
    """Render a time in full, for a file that is read later."""
    return h.time(datetime=iso(at_ms))[moment(at_ms)]


def due(at_ms: int, now_ms: int) -> h.Element:
    """Render the time left until *at_ms*, which a script keeps up to date."""
    left = at_ms - now_ms
    text = f"in {ago(now_ms, at_ms)}" if left >= 1000 else "now"
    kind = "soon" if left < 3_600_000 else ""
    return h.time(datetime=iso(at_ms), title=moment(at_ms), data_due=True, class_=kind)[text]


def live_part(name: str, address: str, *content: h.Node, kind: str = "", beside: str = "") -> h.Element:
    """Render an element with the id *name* that reloads from *address* on the stream's `changed` event.

    The element with the id *beside* is replaced along with it.
    """
    return h.div(
        f"#{name}{kind}",
        hx_get=address,
        hx_trigger="changed from:#live",
        hx_sync="this:queue last",
        hx_select=f"#{name}",
        hx_select_oob=f"#{beside}" if beside else None,
        hx_swap="outerMorph",
    )[content]


def data_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[h.Node]], kind: str = ""
) -> h.Element:
    """Render a table; on narrow screens, a row with three or more columns becomes a labelled block."""
    narrow = ".stacks" if len(columns) > 2 else ".plain"
    return h.div(".scroll", tabindex="0", role="group", aria_label=title)[
        h.table(f".data{narrow}{kind}")[
            h.thead[h.tr[[h.th[name] for name in columns]]],
            h.tbody[
                [
                    h.tr[
                        [
                            h.td(
                                ".none" if cell == NONE else "",
                                dir="auto",
                                data_label=name if place else None,
                            )[h.div[cell]]
                            for place, (name, cell) in enumerate(zip(columns, row, strict=True))
                        ]
                    ]
                    for row in rows
                ]
            ],
        ]
    ]


def pager(label: str, at: str, before: str | None, after: str | None, kind: str = "") -> h.Element:
    """Render where a page is in a sequence, between links to the previous and the next one, if any."""
    return h.nav(f".row.apart{kind}", aria_label=label)[
        h.a(".button", href=before, rel="prev")["Previous"] if before else h.span,
        at and h.span(".muted")[at],
        h.a(".button", href=after, rel="next")["Next"] if after else h.span,
    ]


def cards(figures: Iterable[tuple[str, str, str]]) -> h.Element:
    """Render figures as cards: the title, the figure and its style."""
    return h.div(".cards")[
        [
            h.div(".card")[h.p(".muted.small")[title], h.p(f".figure{kind}")[text]]
            for title, text, kind in figures
        ]
    ]


def took(ms: int | None) -> h.Node:
    return None if ms is None else h.span(".took")[duration(ms)]


def empty(title: str, *lines: h.Node) -> h.Element:
    """Render the placeholder of an empty list: what it would show, and how to fill it."""
    return h.div(".empty")[h.p(".title")[title], [h.p[line] for line in lines]]


def error_text(error: ErrorObject) -> h.Element:
    return h.div(".failure", dir="auto")[
        h.code[error.code], " ", error.message, error.hint and h.p(".muted")[with_code(error.hint)]
    ]


def with_code(text: str) -> h.Node:
    """Return *text* with the spans between backticks as code."""
    return [h.code[part] if place % 2 else part for place, part in enumerate(text.split("`"))]


def value_block(value: Any, *, label: str, whole: bool = False, most: int = _MOST_CHARS) -> h.Element:
    """Render a JSON value or a text, truncated to *most* characters unless *whole*."""
    text = pretty(value)
    cut = not whole and len(text) > most
    shown = text[:most] + "…" if cut else text
    return h.pre(".value", dir="auto", tabindex="0", aria_label=label)[
        shown, cut and h.span(".muted")[f"\n{len(text):,} characters in all"]
    ]


def arguments_table(arguments: dict[str, Any]) -> h.Node:
    """Render the arguments of a call, one per line, with their invisible characters escaped."""
    if not arguments:
        return h.p(".muted")["No arguments"]
    return h.dl(".arguments")[
        [
            h.div[h.dt(dir="auto")[visible(name)], h.dd(dir="auto")[visible(value_text(value))]]
            for name, value in arguments.items()
        ]
    ]


def value_text(value: Any) -> str:
    return (
        json.dumps(value, ensure_ascii=False, indent=2)
        if isinstance(value, (dict, list))
        else (f'"{value}"' if isinstance(value, str) else json.dumps(value))
    )


def diff(before: str, after: str, *, around: int | None = None) -> h.Node:
    """Render a line diff of two texts, None if they are equal.

    With *around*, show at most that number of equal lines before and after each change.
    """
    if before == after:
        return None
    old, new = before.splitlines(), after.splitlines()
    lines: list[h.Node] = []
    for tag, i, j, k, m in _opcodes(old, new):
        if tag == "equal":
            lines += _equal(old[i:j], around, first=i == 0, last=j == len(old))
            continue
        lines += [h.del_["- ", line, "\n"] for line in old[i:j]]
        lines += [h.ins["+ ", line, "\n"] for line in new[k:m]]
    return h.pre(".diff", dir="auto", tabindex="0", aria_label="Changes")[lines]


def _opcodes(old: list[str], new: list[str]) -> list[tuple[str, int, int, int, int]]:
    """Diff the lines between the common prefix and suffix; treat long middles as one replacement."""
    most = min(len(old), len(new))
    head = next((place for place in range(most) if old[place] != new[place]), most)
    most -= head
    tail = next((place for place in range(most) if old[-1 - place] != new[-1 - place]), most)
    left, right = old[head : len(old) - tail], new[head : len(new) - tail]
    found = [("equal", 0, head, 0, head)] if head else []
    if len(left) * len(right) > _MOST_COMPARED:
        found.append(("replace", head, len(old) - tail, head, len(new) - tail))
    else:
        codes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
        found += [(tag, head + i, head + j, head + k, head + m) for tag, i, j, k, m in codes]
    return [*found, ("equal", len(old) - tail, len(old), len(new) - tail, len(new))] if tail else found


def _equal(lines: list[str], around: int | None, *, first: bool, last: bool) -> list[h.Node]:
    """Render equal lines; with *around*, those next to a change and the number of omitted ones."""
    shown: list[h.Node] = [h.span["  ", line, "\n"] for line in lines]
    if around is None:
        return shown
    before, after = (0 if first else around), (0 if last else around)
    left_out = len(lines) - before - after
    if left_out < 2:
        return shown
    note = h.span(".muted")[f"  … {left_out:,} equal lines\n"]
    return [*shown[:before], note, *shown[len(lines) - after :]]
