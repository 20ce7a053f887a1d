"""An agent with two tools and a durable session. The model is a script, so it needs no key.

Run it with `python examples/ten_lines.py`; `standfast.db` is made where you are.
"""

import asyncio

from standfast import Agent, Runtime, tool


@tool(side_effect="read")
async def order(order_id: str) -> dict[str, int]:
    """Look an order up."""
    return {"cents": 4200, "days_late": 6}


@tool(side_effect="external_system", approval="manual")
async def refund(order_id: str, cents: int) -> str:
    """Pay an order back."""
    return f"{cents} cents paid back"


agent = Agent("scripted:demo", tools=[order, refund])


async def main() -> None:
    async with Runtime("standfast.db") as runtime:
        session = await runtime.session("support-42", agent=agent)
        async for event in (turn := session.turn("Did order A1 arrive late?")):
            print(event)
        print((await turn).output)


asyncio.run(main())
