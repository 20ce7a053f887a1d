"""The agent of `standfast tour` that acts in code: its program stops at a call, and another process goes on.

`python -m standfast.cli.tour_code HOME` begins the turn, or approves what it waits for and goes on with it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from standfast import Agent, Runtime, Session, TurnResult, tool
from standfast.cli.tour_tools import note
from standfast.providers.scripted import ScriptedModel

SESSION = "tour-code"
PROMPT = "Pay back what came late"
CODE = """\
paid = []
for name in ("A1", "B2", "C3"):
    if days_late(name) > 5:
        paid.append(pay_back(name))
finish(f"paid back: {paid}")"""


@tool(side_effect="read")
def days_late(order_id: str) -> int:
    """How late an order came."""
    return {"A1": 6}.get(order_id, 0)


@tool(side_effect="external_system", approval="manual")
def pay_back(order_id: str) -> str:
    """Pay an order back."""
    note(f"pay back {order_id}")
    return order_id


async def run(home: Path) -> dict[str, Any]:
    """The turn as far as it goes here."""
    model = ScriptedModel([f"```python\n{CODE}\n```"], strict=False)
    agent = Agent(model, protocol="code", tools=[days_late, pay_back])
    async with Runtime(home) as runtime:
        session = await runtime.session(SESSION, agent=agent)
        result = await _go_on(session)
        if result.status != "waiting":
            await runtime.delete(SESSION)
        return {"status": result.status, "result": result.output}


async def _go_on(session: Session[str]) -> TurnResult[str]:
    waiting = await session.approvals(pending=True)
    return await (session.approve(waiting[0].approval_id) if waiting else session.turn(PROMPT))


if __name__ == "__main__":
    document = asyncio.run(run(Path(sys.argv[1])))
    sys.stdout.write(msgspec.json.encode(document).decode())
