"""Tools of a small shop: look an order up, charge a fee, pay back after a person agreed.

    standfast run --tools examples/refunds.py -e 'total = fee() + refund("A1", 500)'

Set REFUNDS_LEDGER to a file name to see what was really done, line by line.
"""

from __future__ import annotations

import os

from standfast import ToolError, tool

ORDERS = {
    "A1": {"id": "A1", "cents": 4200, "days_late": 6},
    "B2": {"id": "B2", "cents": 1900, "days_late": 0},
}


@tool(side_effect="read")
def order(order_id: str) -> dict[str, str | int]:
    """Look up an order.

    Args:
        order_id: such as A1 or B2.
    """
    if order_id not in ORDERS:
        raise ToolError("ORDER_NOT_FOUND", f"there is no order {order_id}")
    return ORDERS[order_id]


@tool(side_effect="external_system")
def fee() -> int:
    """Charge the handling fee, in cents."""
    _note("fee 30")
    return 30


@tool(side_effect="external_system", approval="manual")
def refund(order_id: str, cents: int) -> int:
    """Refund an order. A person has to agree to every call.

    Args:
        order_id: which order.
        cents: how much.
    """
    _note(f"refund {order_id} {cents}")
    return cents


def _note(line: str) -> None:
    if path := os.environ.get("REFUNDS_LEDGER"):
        with open(path, "a") as ledger:
            ledger.write(line + "\n")
