"""The agent of `standfast tour`: its process is killed in the middle of a payment, and another one goes on.

`python -m standfast.cli.tour_agent HOME [crash]` runs one turn, or goes on with the one that was left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from standfast import Agent, Runtime, tool
from standfast.cli.tour_tools import note
from standfast.model.message import ToolMessage
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.result import TurnResult

SESSION = "tour-agent"
PROMPT = "Pay invoice 7, please"
CRASH_VARIABLE = "STANDFAST_TOUR_CRASH"

REPLIES: list[dict[str, Any]] = [
    {"tool_calls": [{"name": "pay", "arguments": {"invoice": 7, "cents": 1200}}]},
    {"text": "The payment was cut off. I do not pay again before somebody has looked whether it arrived."},
]


@tool(side_effect="external_system")
def pay(invoice: int, cents: int) -> str:
    """Pay an invoice."""
    note(f"pay invoice {invoice} {cents}")
    if CRASH_VARIABLE in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


async def run(home: Path) -> dict[str, Any]:
    """One turn to its end, whoever began it."""
    agent = Agent(ScriptedModel(REPLIES, strict=False), tools=[pay])
    async with Runtime(home) as runtime:
        session = await runtime.session(SESSION, agent=agent)
        turn = await session.resume() or session.turn(PROMPT)
        shown = _shown(await turn)
        await runtime.delete(SESSION)
        return shown


def _shown(result: TurnResult[str]) -> dict[str, Any]:
    told = [message.error for message in result.messages if isinstance(message, ToolMessage)]
    error = next((one for one in told if one is not None), None)
    return {"status": result.status, "result": result.output, "error": msgspec.to_builtins(error)}


if __name__ == "__main__":
    document = asyncio.run(run(Path(sys.argv[1])))
    sys.stdout.write(msgspec.json.encode(document).decode())
