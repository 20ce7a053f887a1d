"""The agents of `standfast tour`: one is killed in a payment, one stops for an approval in its code.

`python -m standfast.cli.tour_agent HOME pay|code` starts a turn, or resumes the unfinished one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import msgspec

from standfast import Agent, Runtime, tool
from standfast.cli.tour_tools import note
from standfast.model.message import ToolMessage
from standfast.providers.scripted import ScriptedModel

CRASH_VARIABLE = "STANDFAST_TOUR_CRASH"
PAY_PROMPT = "Pay invoice 7, please"
CODE_PROMPT = "Pay back what came late"
CODE = """\
paid = []
for name in ("A1", "B2", "C3"):
    if days_late(name) > 5:
        paid.append(pay_back(name))
finish(f"paid back: {paid}")"""

_PAY_REPLIES: list[dict[str, Any]] = [
    {"tool_calls": [{"name": "pay", "arguments": {"invoice": 7, "cents": 1200}}]},
    {"text": "The payment was cut off. I will not pay again before you have checked whether it arrived."},
]


@tool(side_effect="external_system")
def pay(invoice: int, cents: int) -> str:
    """Pay an invoice."""
    note(f"pay invoice {invoice} {cents}")
    if CRASH_VARIABLE in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


@tool(side_effect="read")
def days_late(order_id: str) -> int:
    """Return how many days late an order came."""
    return {"A1": 6}.get(order_id, 0)


@tool(side_effect="external_system", approval="manual")
def pay_back(order_id: str) -> str:
    """Pay an order back."""
    note(f"pay back {order_id}")
    return order_id


async def run_payment(home: str) -> dict[str, Any]:
    """Run a turn to its end, or finish the interrupted one."""
    agent = Agent(ScriptedModel(_PAY_REPLIES, strict=False), tools=[pay])
    async with Runtime(home) as runtime:
        session = await runtime.session("tour-agent", agent=agent)
        result = await (await session.resume() or session.turn(PAY_PROMPT))
        await runtime.delete("tour-agent")
    errors = [one.error for one in result.messages if isinstance(one, ToolMessage) and one.error is not None]
    error = errors[0] if errors else None
    return {"status": result.status, "result": result.output, "error": msgspec.to_builtins(error)}


async def run_code(home: str) -> dict[str, Any]:
    """Run a turn until it needs approval, or approve the waiting one."""
    model = ScriptedModel([f"```python\n{CODE}\n```"], strict=False)
    agent = Agent(model, protocol="code", tools=[days_late, pay_back])
    async with Runtime(home) as runtime:
        session = await runtime.session("tour-code", agent=agent)
        waiting = await session.approvals(pending=True)
        result = await (session.approve(waiting[0].approval_id) if waiting else session.turn(CODE_PROMPT))
        if result.status != "waiting":
            await runtime.delete("tour-code")
    return {"status": result.status, "result": result.output}


if __name__ == "__main__":
    document = asyncio.run((run_code if sys.argv[2] == "code" else run_payment)(sys.argv[1]))
    sys.stdout.write(msgspec.json.encode(document).decode())
