"""SVG charts of the scaling curves: small files that a browser shows in light and in dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 620, 56, 216
COLOURS = ("first", "second", "third")
STYLE = """\
    .paper { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328 } .soft { fill: #59636e; font-size: 12px }
    .axis { stroke: #8c959f } .grid { stroke: #d0d7de; stroke-dasharray: 2 4 }
    .first { stroke: #0969da; fill: #0969da } .second { stroke: #bc4c00; fill: #bc4c00 }
    .third { stroke: #1a7f37; fill: #1a7f37 }
    polyline { fill: none !important; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc } .soft { fill: #9198a1 }
      .axis { stroke: #656c76 } .grid { stroke: #3d444d }
      .first { stroke: #4493f8; fill: #4493f8 } .second { stroke: #f0883e; fill: #f0883e }
      .third { stroke: #3fb950; fill: #3fb950 }
    }"""

Points = Sequence[tuple[int, float]]


def chart(title: str, unit: str, series: Mapping[str, Points]) -> str:
    """Return an SVG file with two logarithmic axes: flat costs are level, linear ones climb at one angle."""
    amounts = sorted({amount for points in series.values() for amount, _ in points})
    costs = [cost for points in series.values() for _, cost in points]
    decades = range(math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs))) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-labelledby="t" font-family="system-ui, sans-serif" font-size="14">',
        f'  <title id="t">{title}</title>',
        f"  <style>\n{STYLE}\n  </style>",
        f'  <rect class="paper" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="10"/>',
        f'  <text class="soft" x="{LEFT - 8}" y="{TOP - 14}" text-anchor="end">{unit}</text>',
        *grid(decades),
        *amount_labels(amounts),
    ]
    for index, (name, points) in enumerate(series.items()):
        parts += line(name, COLOURS[index], index, [(x(a, amounts), y(c, decades)) for a, c in points])
    return "\n".join([*parts, "</svg>", ""])


def x(amount: int, amounts: Sequence[int]) -> float:
    """Place an amount on the axis; 0 stands left of 1."""
    first, last = position(amounts[0]), position(amounts[-1])
    return LEFT + 12 + (position(amount) - first) / (last - first) * (RIGHT - LEFT - 24)


def position(amount: int) -> float:
    return math.log10(amount) if amount else -0.5


def y(cost: float, decades: range) -> float:
    return BOTTOM - (math.log10(cost) - decades[0]) / (len(decades) - 1) * (BOTTOM - TOP)


def grid(decades: range) -> list[str]:
    parts = []
    for decade in decades:
        cost = 10.0**decade
        at = y(cost, decades)
        kind = "axis" if decade == decades[0] else "grid"
        parts.append(f'  <line class="{kind}" x1="{LEFT}" y1="{at:.1f}" x2="{RIGHT}" y2="{at:.1f}"/>')
        parts.append(
            f'  <text class="soft" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{cost:g}</text>'
        )
    return parts


def amount_labels(amounts: Sequence[int]) -> list[str]:
    attributes = f'class="soft" y="{BOTTOM + 20}" text-anchor="middle"'
    return [f'  <text {attributes} x="{x(amount, amounts):.1f}">{amount:,}</text>' for amount in amounts]


def line(name: str, colour: str, index: int, points: Sequence[tuple[float, float]]) -> list[str]:
    drawn = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
    legend = LEFT + 12 + index * 190
    return [
        f'  <polyline class="{colour}" points="{drawn}"/>',
        *(f'  <circle class="{colour}" cx="{left:.1f}" cy="{top:.1f}" r="3"/>' for left, top in points),
        f'  <rect class="{colour}" x="{legend}" y="22" width="14" height="4"/>',
        f'  <text class="soft" x="{legend + 20}" y="28">{name}</text>',
    ]
