"""Three tools of a small shop, and `tell`, with which the examples beside this file print a turn's result.

`refund_in_code.py` and `refund_native.py` do the same task with them, in code and by native tool calls.
"""

from __future__ import annotations

import os
from typing import Any

from standfast import Session, ToolError, TurnResult, tool

TASK = "Pay back every order of customer 7 that came late."
ORDERS = {
    "A1": {"id": "A1", "cents": 4200, "days_late": 6},
    "B2": {"id": "B2", "cents": 1900, "days_late": 0},
    "C3": {"id": "C3", "cents": 700, "days_late": 0},
}


@tool(side_effect="read")
async def orders(customer: int) -> list[str]:
    """The ids of a customer's orders."""
    return list(ORDERS)


@tool(side_effect="read")
async def order(order_id: str) -> dict[str, str | int]:
    """Look an order up: id, cents, days_late."""
    if order_id not in ORDERS:
        raise ToolError("ORDER_NOT_FOUND", f"there is no order {order_id}")
    return ORDERS[order_id]


@tool(side_effect="external_system", approval="manual")
def refund(order_id: str, cents: int) -> str:
    """Refund an order. A person has to agree."""
    if path := os.environ.get("SHOP_LEDGER"):
        with open(path, "a") as ledger:
            ledger.write(f"refund {order_id} {cents}\n")
    return f"{cents} cents are on their way"


TOOLS = [orders, order, refund]


async def approve_all(session: Session[str], result: TurnResult[str]) -> TurnResult[str]:
    """Say yes to whatever the turn waits for, until it ends."""
    while result.status == "waiting":
        (asked,) = await session.approvals(pending=True)
        print(f"approval     {asked.capability}({_written(asked.kwargs)}): yes")
        result = await session.approve(asked.approval_id)
    return result


def tell(result: TurnResult[str]) -> None:
    """Print how many calls a turn made, and how it ended."""
    print(f"model calls  {result.usage.calls}")
    print(f"tool calls   {', '.join(call.name for call in result.calls)}")
    print(f"{result.status}     {result.output}")


def _written(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
