"""A process that runs a turn which acts in code, for tests that kill it from outside.

Its arguments are its directory and a JSON object as for `fork_server.py`. If it only requests or decides an
approval, it prints that, keeps its runtime open, and waits for a line before it ends; otherwise it prints its
report.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

from code_scenarios import SCENARIOS, finish_and_read, opened
from scenarios import KEY, Stage, approve_everything

from standfast import Runtime
from standfast.testing.crash_points import CrashPoints


async def main(job: dict[str, Any]) -> None:
    print("ready", flush=True)
    if job["how"] == "decide":
        await _decide(Path(job["home"]))
        return
    async with opened(job, CrashPoints()) as (stage, session):
        if job["how"] == "ask":
            await _linger((await session.turn("go", idempotency_key=KEY).settled()).status)
        else:
            print(json.dumps(await finish_and_read(stage, session, SCENARIOS[job["scenario"]])), flush=True)


async def _decide(home: Path) -> None:
    """Decide an approval in a process that has no agent."""
    stage = Stage(home, CrashPoints())
    async with Runtime(home / "standfast.db") as runtime:
        stage.runtime = runtime
        await approve_everything(stage)
        await _linger("decided")


async def _linger(status: str) -> None:
    print(json.dumps({"status": status}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[2])))
