"""`refund_in_code.py` in TypeScript: three tools, a loop and an approval in one cell, one call of the model.

    python examples/refund_in_typescript.py

The model is a script, so it needs no key. The tools are the same functions; in the cell they return promises.
"""

from __future__ import annotations

import asyncio

from late_orders import TASK, TOOLS, approve_all, tell

from standfast import Agent, CodeProtocol, Runtime, ScriptedModel

CELL = """\
I look at the orders and pay back what came late.

```typescript
const paid: string[] = [];
for (const order_id of await orders({customer: 7})) {
  const one = await order({order_id});
  if (one.days_late > 0) {
    await refund({order_id, cents: one.cents});
    paid.push(order_id);
  }
}
finish(`Paid back: ${paid.join(", ")}.`);
```
"""

agent = Agent(ScriptedModel([CELL]), protocol=CodeProtocol(language="typescript"), tools=TOOLS)


async def main() -> None:
    async with Runtime() as runtime:
        session = await runtime.session("shop", agent=agent)
        tell(await approve_all(session, await session.turn(TASK)))


if __name__ == "__main__":
    asyncio.run(main())
