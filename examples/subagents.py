"""A lead and its subagents: three clerks look at one order each, at the same time, and answer with values.

    python examples/subagents.py

The lead pays back what came late; for that, one more subagent has to ask a person. The models are scripts, so
it needs no key.
"""

from __future__ import annotations

import asyncio
from typing import Any

from late_orders import ORDERS, TOOLS

from standfast import Agent, Runtime, ScriptedModel, Session
from standfast.plugins.shipped import Subagents

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "cents": {"type": "integer"}, "days_late": {"type": "integer"}},
    "required": ["id", "cents", "days_late"],
}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def clerk(order_id: str) -> Agent[Any, str]:
    """An agent that looks one order up."""
    replies = [
        {"tool_calls": [call("order", order_id=order_id)]},
        str(ORDERS[order_id]).replace("'", '"'),
    ]
    return Agent(ScriptedModel(replies), name=f"clerk-{order_id}", tools=TOOLS)


CLERKS = [clerk(order_id) for order_id in ORDERS]
CASHIER = Agent(
    ScriptedModel([{"tool_calls": [call("refund", order_id="A1", cents=4200)]}, "A1 is paid back."]),
    name="cashier",
    tools=TOOLS,
)
LEAD = Agent(
    ScriptedModel(
        [
            {
                "tool_calls": [
                    call("spawn_agent", task="How late was it?", agent=one.name, output_schema=ORDER)
                    for one in CLERKS
                ]
            },
            {"tool_calls": [call("wait")]},
            {"tool_calls": [call("spawn_agent", task="Pay back A1.", agent="cashier", tools=["refund"])]},
            {"tool_calls": [call("wait", for_people=True)]},
            "A1 came late and is paid back.",
        ]
    ),
    name="lead",
    tools=TOOLS,
    plugins=[Subagents(agents=[*CLERKS, CASHIER])],
)


async def approve_first(runtime: Runtime) -> None:
    """Say yes to the first question to a person."""
    while not (asked := await runtime.approvals(pending=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    print(f"approval     {asked[0].capability} in {asked[0].session_id[:4]}…: yes")
    await runtime.approve(asked[0].approval_id)


async def tell(session: Session[str]) -> None:
    """Print what became of each subagent, and what all of them have used."""
    for one in await session.plugins.invoke("subagents.show"):
        print(f"subagent     {one['status']}: {one['value'] or one['text']}")
    usage = await session.plugins.invoke("subagents.usage")
    own, theirs, total = (usage[name]["calls"] for name in ("own", "subagents", "total"))
    print(f"model calls  {own} by the lead, {theirs} by subagents, {total} in all")


async def main() -> None:
    async with Runtime(agents=[LEAD, *CLERKS, CASHIER]) as runtime:
        session = await runtime.session("shop", agent=LEAD)
        result, _ = await asyncio.gather(session.turn("Pay back what came late."), approve_first(runtime))
        await tell(session)
        print(f"{result.status}     {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
