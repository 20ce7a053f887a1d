"""Tools of a support agent: look up an order, and refund it once a person has agreed.

    standfast chat --model scripted:examples/support.json --tools examples/support.py

Set SUPPORT_LEDGER to a file name to see what was really done, line by line.
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


@tool(side_effect="external_system", approval="manual")
def refund(order_id: str, cents: int) -> str:
    """Refund an order. A person has to agree to every call.

    Args:
        order_id: which order.
        cents: how much.
    """
    if path := os.environ.get("SUPPORT_LEDGER"):
        with open(path, "a") as ledger:
            ledger.write(f"refund {order_id} {cents}\n")
    return f"{cents} cents are on their way"
