"""One code step of Standfast, durable (SQLite, synced): the median of whole turns, in milliseconds.

With `uvloop` as its argument, on that loop.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from standfast import Agent, Runtime, tool
from standfast.providers.scripted import ScriptedModel

TURNS = 500


@tool(side_effect="none")
async def compute(x: int) -> str:
    """Compute something."""
    return "t" * 100


def reply(number: int) -> str:
    return "r" * 340 + f"\n```python\nfound = compute(x={number})\nfinish(found)\n```\n"


async def main() -> None:
    said = [reply(number) for number in range(TURNS)]
    agent = Agent(model=ScriptedModel(said), protocol="code", tools=[compute])
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(Path(folder) / "bench.db") as runtime:
            session = await runtime.session("bench", agent=agent)
            for _ in range(TURNS):
                started = time.perf_counter()
                result = await session.turn("u" * 200)
                taken.append(time.perf_counter() - started)
                assert result.output == "t" * 100
    print(statistics.median(taken[100:]) * 1e3)


if sys.argv[1:] == ["uvloop"]:
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
