"""An agent that acts in code: three tools, a loop and an approval in one cell, one call of the model.

    python examples/refund_in_code.py

The model is a script, so it needs no key. `refund_native.py` does the same by native tool calls.
"""

from __future__ import annotations

import asyncio

from late_orders import TASK, TOOLS, approve_all, tell

from standfast import Agent, Runtime, ScriptedModel

CELL = """\
I look at the orders and pay back what came late.

```python
paid = []
for order_id in orders(customer=7):
    one = order(order_id)
    if one["days_late"] > 0:
        refund(order_id, one["cents"])
        paid.append(order_id)
finish(f"Paid back: {', '.join(paid)}.")
```
"""

agent = Agent(ScriptedModel([CELL]), protocol="code", tools=TOOLS)


async def main() -> None:
    async with Runtime() as runtime:
        session = await runtime.session("shop", agent=agent)
        tell(await approve_all(session, await session.turn(TASK)))


if __name__ == "__main__":
    asyncio.run(main())
