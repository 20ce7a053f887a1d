"""The tools of `standfast tour`. They write every effect to a ledger, so that effects can be counted."""

from __future__ import annotations

import os
from pathlib import Path

from standfast import tool

LEDGER_VARIABLE = "STANDFAST_TOUR_LEDGER"


@tool(side_effect="external_system")
def fee() -> int:
    """Charge the handling fee, in cents."""
    note("fee 30")
    return 30


@tool(side_effect="external_system", approval="manual")
def refund(order_id: str, cents: int) -> int:
    """Pay an order back.

    Args:
        order_id: which order.
        cents: how much.
    """
    note(f"refund {order_id} {cents}")
    return cents


def note(line: str) -> None:
    """Append a line to the ledger."""
    with Path(os.environ[LEDGER_VARIABLE]).open("a") as ledger:
        ledger.write(f"{line} (process {os.getpid()})\n")
