"""A cell that stops at a call in one process and resumes in another, in the middle of its loop.

    python examples/cell_in_two_processes.py    # stops where a person is asked
    python examples/cell_in_two_processes.py    # a person agrees; the cell resumes at that call

`shop.db` is made where you are. The model is a script, so it needs no key.
"""

from __future__ import annotations

import asyncio
import os

from late_orders import TASK, tell
from refund_in_code import agent

from standfast import Runtime


async def main() -> None:
    async with Runtime("shop.db") as runtime:
        session = await runtime.session("shop", agent=agent)
        waiting = await session.approvals(pending=True)
        if waiting:
            print(f"process {os.getpid()} resumes at {waiting[0].capability}()")
            tell(await session.approve(waiting[0].approval_id))
            return
        result = await session.turn(TASK)
        print(f"process {os.getpid()} stops, the turn is {result.status}")
        print("run it again to approve")


if __name__ == "__main__":
    asyncio.run(main())
