"""A process that runs turns on a session that other processes use as well.

Arguments: database, ledger, its name, the number of turns. It prints `ready`, waits for a line, runs its
turns, and prints their outcomes. While the file `<ledger>.hang` exists, its tool does not return.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from typing import Any

from standfast import Agent, RunContext, Runtime, tool
from standfast.providers.scripted import ScriptedModel

DATABASE, LEDGER, NAME, COUNT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
LEASE_S = float(os.environ.get("LEASE_S", "30"))
BUSY_TIMEOUT_S = float(os.environ.get("BUSY_TIMEOUT_S", "60"))


def note(*words: str) -> None:
    handle = os.open(LEDGER, os.O_WRONLY | os.O_APPEND)
    os.write(handle, (" ".join(words) + "\n").encode())
    os.close(handle)


@tool
def step(ctx: RunContext[None]) -> str:
    """Take a moment, and log the beginning and the end."""
    note("enter", NAME, ctx.idempotency_key)
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 4000)
    while os.path.exists(LEDGER + ".hang"):
        time.sleep(0.01)
    note("leave", NAME, ctx.idempotency_key)
    return NAME


class Numbered(ScriptedModel):
    """A model that calls the tool in every odd call of the session, and answers in every even one."""

    def __init__(self) -> None:
        replies: list[dict[str, Any]] = [{"tool_calls": [{"name": "step"}]}, {"text": "done"}]
        super().__init__(replies * 200, strict=False)


async def main() -> None:
    agent: Agent[Any, str] = Agent(Numbered(), name="writer", tools=[step])
    async with Runtime(DATABASE, lease_s=LEASE_S, busy_timeout_s=BUSY_TIMEOUT_S) as runtime:
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.monotonic()
        session = await runtime.session("s", agent=agent)
        results = [await session.turn(f"{NAME} {number}").settled() for number in range(COUNT)]
        took_ms = (time.monotonic() - began) * 1000
        ended = [[result.turn_id, result.status] for result in results]
    print(json.dumps({"turns": ended, "ms": took_ms}), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except Exception as error:
        print(json.dumps({"raised": type(error).__name__, "message": str(error)}), flush=True)
