"""Tokens and cost by day, agent, model, source and session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import htpy as h
import msgspec
from starlette.responses import Response

from standfast.model.limits import Usage
from standfast.model.session import SessionHead
from standfast.ports.session_store import DayUsage
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.workbench.parts import cards, empty, live_part
from standfast.workbench.shell import page
from standfast.workbench.words import cost, count, moment, tokens

_AGES: Final = {"": 0, "1d": 86_400_000, "7d": 7 * 86_400_000, "30d": 30 * 86_400_000}
_MOST: Final = 20
_MOST_DAYS: Final = 60
ROUTES: Final = Routes()


class UsagePageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Limit the report to sessions used within this time."""

    age: Literal["", "1d", "7d", "30d"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTable:
    """Usage grouped by one property, largest first."""

    title: str
    rows: list[tuple[str, Usage]]


def usage_tables(heads: Iterable[SessionHead]) -> tuple[Usage, list[UsageTable]]:
    """Return the total usage, and its breakdown by agent, model, source and session."""
    total = Usage()
    sums: dict[str, dict[str, Usage]] = {"Agent": {}, "Model": {}, "Source": {}, "Session": {}}
    for head in heads:
        for entry in head.usage:
            total += entry.usage
            named = {
                "Agent": head.agent,
                "Model": entry.model,
                "Source": entry.source,
                "Session": head.session_id,
            }
            for title, name in named.items():
                sums[title][name] = sums[title].get(name, Usage()) + entry.usage
    tables = [
        UsageTable(
            title=title,
            rows=sorted(rows.items(), key=lambda row: (-row[1].cost_nano_usd, -row[1].total))[:_MOST],
        )
        for title, rows in sums.items()
    ]
    return total, tables


def usage_days(days: Iterable[DayUsage]) -> UsageTable:
    """Return the usage of each day, latest first."""
    sums: dict[int, Usage] = {}
    for one in days:
        sums[one.day] = sums.get(one.day, Usage()) + one.usage
    rows = [(day_text(day), used) for day, used in sorted(sums.items(), reverse=True)]
    return UsageTable(title="Day", rows=rows[:_MOST_DAYS])


def day_text(day: int) -> str:
    return moment(day * 86_400_000)[:10]


@ROUTES.add("GET", "/usage", Scope.READ, query=UsagePageQuery)
async def usage_page(call: Call) -> Response:
    """Show the usage and cost of sessions."""
    asked: UsagePageQuery = call.query
    since = call.runtime.now_ms() - _AGES[asked.age] if asked.age else 0
    heads = [head for head in await call.visible_heads() if head.updated_at >= since]
    total, tables = usage_tables(heads)
    mine = {head.session_id for head in heads}
    days = [one for one in await call.runtime.usage_by_day(since_ms=since) if one.session_id in mine]
    tables.insert(0, usage_days(days))
    words = {"": "All time", "1d": "Past day", "7d": "Past week", "30d": "Past 30 days"}
    main = [
        h.header(".top")[h.h1["Usage"], h.p("#total.muted")[count(len(heads), "session")]],
        h.nav(".tabs.views", aria_label="Time")[
            [
                h.a(
                    href=f"/usage?age={age}" if age else "/usage",
                    aria_current="page" if age == asked.age else None,
                )[text]
                for age, text in words.items()
            ]
        ],
    ]
    shown: list[h.Node] = [_totals(total), *(_table(table, total) for table in tables if table.rows)]
    if not total.calls:
        shown = [empty("No model calls yet", "Tokens and cost appear here after the first turn.")]
    address = f"/usage?age={asked.age}" if asked.age else "/usage"
    main.append(live_part("figures", address, *shown, kind=".stack", beside="total"))
    return await page(call, title="Usage", place="usage", main=main, stream="/live")


def _totals(total: Usage) -> h.Element:
    figures = (
        ("Cost", cost(total) or "–"),
        ("Model calls", f"{total.calls:,}"),
        ("Input tokens", tokens(total.input + total.cache_read + total.cache_write)),
        ("Cached tokens", tokens(total.cache_read)),
        ("Output tokens", tokens(total.output)),
    )
    return cards((title, text, "") for title, text in figures)


def _table(table: UsageTable, total: Usage) -> h.Element:
    priced = total.cost_nano_usd > 0
    whole = total.cost_nano_usd if priced else total.total
    return h.section(".stack")[
        h.h2[f"By {table.title.lower()}"],
        h.div(".scroll", tabindex="0", role="group", aria_label=f"By {table.title.lower()}")[
            h.table(".data.plain")[
                h.thead[
                    h.tr[
                        h.th[table.title],
                        h.th(".share")["Share"],
                        [h.th(".n")[name] for name in ("Calls", "Input", "Output")],
                        priced and h.th(".n")["Cost"],
                    ]
                ],
                h.tbody[
                    [
                        h.tr[
                            h.td(dir="auto")[
                                h.a(href=f"/sessions/{name}")[name]
                                if table.title == "Session"
                                else name or "unknown"
                            ],
                            h.td(".share")[_share(used.cost_nano_usd if priced else used.total, whole)],
                            h.td(".n")[f"{used.calls:,}"],
                            h.td(".n")[tokens(used.input + used.cache_read + used.cache_write)],
                            h.td(".n")[tokens(used.output)],
                            priced and h.td(".n")[cost(used) or "–"],
                        ]
                        for name, used in table.rows
                    ]
                ],
            ]
        ],
    ]


def _share(part: int, whole: int) -> h.Element:
    percent = 100 * part / whole if whole else 0
    return h.svg(viewBox="0 0 100 8", preserveAspectRatio="none", role="img", aria_label=f"{percent:.0f} %")[
        h.rect(class_="track", width="100", height="8"),
        h.rect(class_="bar", width=f"{percent:.2f}", height="8"),
    ]
