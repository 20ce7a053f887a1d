"""Garbage: the reference cycles that a turn leaves behind."""

from __future__ import annotations

import subprocess
import sys

_TEN_RUNS = """
import gc
from standfast import BlockingSandbox

with BlockingSandbox() as box:
    for _ in range(3):
        box.run("1 + 1")
    gc.collect()
    gc.disable()
    for _ in range(10):
        box.run("1 + 1")
    print(gc.collect())
"""

_TEN_TURNS = """
import asyncio, gc
from standfast import Agent, Runtime, tool
from standfast.providers.scripted import ScriptedModel

@tool(side_effect="external_system")
async def act(x: int) -> str:
    return "done"

async def main():
    replies = [{"tool_calls": [{"name": "act", "arguments": {"x": 1}}]}, {"text": "yes"}] * 13
    async with Runtime() as runtime:
        session = await runtime.session("s", agent=Agent(ScriptedModel(replies), name="a", tools=[act]))
        for _ in range(3):
            await session.turn("go")
        gc.collect()
        gc.disable()
        for _ in range(10):
            await session.turn("go")
        print(gc.collect())

asyncio.run(main())
"""


def test_a_turn_leaves_no_reference_cycles() -> None:
    """Bug: each turn left 50 objects to the garbage collector, which took a third of the time."""
    done = subprocess.run([sys.executable, "-c", _TEN_TURNS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100


def test_a_run_leaves_no_reference_cycles() -> None:
    """Ours: freeing the objects of earlier turns took a fifth of a warm run."""
    # In a separate process, because garbage of other tests would be counted here too.
    done = subprocess.run([sys.executable, "-c", _TEN_RUNS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # one cycle per run would make 680
