"""The task of `refund_in_code.py` by native tool calls: the model is called four times.

    python examples/refund_native.py

The model is a script, so it needs no key.
"""

from __future__ import annotations

import asyncio

from late_orders import TASK, TOOLS, approve_all, tell

from standfast import Agent, Runtime, ScriptedModel

REPLIES = [
    {
        "text": "I look which orders there are.",
        "tool_calls": [{"name": "orders", "arguments": {"customer": 7}}],
    },
    {
        "text": "I look at each of them.",
        "tool_calls": [{"name": "order", "arguments": {"order_id": name}} for name in ("A1", "B2", "C3")],
    },
    {
        "text": "A1 came late.",
        "tool_calls": [{"name": "refund", "arguments": {"order_id": "A1", "cents": 4200}}],
    },
    "Paid back: A1.",
]

agent = Agent(ScriptedModel(REPLIES), tools=TOOLS)


async def main() -> None:
    async with Runtime() as runtime:
        session = await runtime.session("shop", agent=agent)
        tell(await approve_all(session, await session.turn(TASK)))


if __name__ == "__main__":
    asyncio.run(main())
