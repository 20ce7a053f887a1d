"""Numbers, times and values, formatted for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final
from unicodedata import category

from standfast.model.limits import NANO, Usage

_KEPT: Final = "\n\t\N{ZERO WIDTH JOINER}"
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


def duration(ms: float) -> str:
    """Format a duration: `<1 ms`, `340 ms`, `1.2 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if ms < 1000:
        return f"{ms:.0f} ms" if ms >= 1 or ms == 0 else "<1 ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    for (unit, size), (smaller, part) in pairwise(_UNITS):
        if ms >= size:
            rest = int(ms % size // part)
            return f"{int(ms // size)} {unit}" + (f" {rest} {smaller}" if rest else "")
    return ""


def ago(at_ms: int, now_ms: int) -> str:
    """Format the age of a time in one unit: `now`, `40 s`, `3 min`, `2 h`, `5 d`."""
    passed = max(0, now_ms - at_ms)
    for unit, size in _UNITS:
        if passed >= size:
            return f"{passed // size} {unit}"
    return "now"


def moment(at_ms: int) -> str:
    """Format a time in UTC, to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def count(number: int, one: str, many: str = "") -> str:
    """Format a number with its noun: `1 turn`, `2,000 turns`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def tokens(number: int) -> str:
    """Format a number of tokens: `812`, `4.2k`, `1.3M`."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= size:
            return f"{number / size:.1f}{unit}".replace(".0", "")
    return str(number)


def cost(usage: Usage) -> str:
    """Format the cost of priced calls: `$0.0021`, `≥ $1.20` if some calls have no price, `""` if none has."""
    if not usage.cost_nano_usd:
        return ""
    amount = usage.cost_nano_usd / NANO
    text = f"${amount:,.2f}" if amount >= 0.1 else f"${amount:.4f}".rstrip("0")
    return text if usage.cost_is_known else f"≥ {text}"


def size(count: int) -> str:
    """Format a size: `812 B`, `4.2 kB`, `1.3 MB`."""
    for unit, each in (("MB", 1_000_000), ("kB", 1000)):
        if count >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count} B"


def pretty(value: Any) -> str:
    """Format a JSON value: text as it is, small values on one line, others indented."""
    if isinstance(value, str):
        return value
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 72 else json.dumps(value, ensure_ascii=False, indent=2)


def visible(text: str) -> str:
    """Return *text* with invisible characters as JSON escapes, so that they can neither hide nor reorder any.

    Spaces, line breaks and the characters that join emoji remain. The result of JSON is the same JSON.
    """
    if text.isprintable():
        return text
    return "".join(
        one
        if one.isprintable() or one in _KEPT or category(one) == "Zs"
        else json.dumps(one).removeprefix('"').removesuffix('"')
        for one in text
    )


def one_line(text: str, most: int = 160) -> str:
    """Return the beginning of a text, without line breaks."""
    short = " ".join(text[: most * 2].split())
    return short if len(short) <= most else short[: most - 1] + "…"
