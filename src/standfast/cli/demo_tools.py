"""The tools of the scripted demo. They know a single order and move no money."""

from __future__ import annotations

from standfast import ToolError, tool


@tool(side_effect="read")
def order(order_id: str) -> dict[str, str | int]:
    """Look an order up.

    Args:
        order_id: such as A1.
    """
    if order_id != "A1":
        raise ToolError("ORDER_NOT_FOUND", f"there is no order {order_id}")
    return {"id": "A1", "cents": 1999, "days_late": 6}


@tool(side_effect="external_system", approval="manual")
def refund(order_id: str, cents: int) -> str:
    """Pay an order back. Every call needs approval.

    Args:
        order_id: which order.
        cents: how much.
    """
    return f"{cents} cents refunded for order {order_id}"
