from collections import defaultdict
from decimal import Decimal
from typing import Any


def revenue_report(orders: list[dict[str, Any]], group: str) -> list[str]:
    """Return exact totals in cents per group, the largest first, each with its share of the total."""
    totals: defaultdict[str, Decimal] = defaultdict(Decimal)
    for order in orders:
        totals[str(order.get(group, "other"))] += Decimal(order["price"]) * order["count"]
    whole = sum(totals.values(), Decimal(0))
    lines: list[str] = []
    for name, total in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        share = int(total * 1000 / whole) if whole else 0
        lines.append(f"{name}: {total:,.2f} ({share // 10}.{share % 10}%)")
    return lines
