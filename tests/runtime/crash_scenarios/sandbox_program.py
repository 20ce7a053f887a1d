"""A sandbox run that kills itself at a crash point, and its recovery by another process.

    python sandbox_program.py HOME run|finish

`run` runs the code with `STANDFAST_CRASH_AT` in force. `finish` recovers, approves waiting calls, and prints
the results and the session's variables as JSON. HOME/ledger has a line for each execution of a tool.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec

from standfast import tool
from standfast.durable.journal import owner_is_dead
from standfast.model.approval import Decision
from standfast.model.run import RunRequest
from standfast.runtime.code_runs import CodeRuns, RunControl
from standfast.runtime.code_turns import SandboxServices
from standfast.runtime.sessions.approvals import list_approvals
from standfast.sandbox.engine_kinds import SandboxConfig
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.crash_points import CrashPoints
from standfast.tools.registry import ToolRegistry
from standfast.tools.threads import run_blocking

HOME = Path(sys.argv[1])
POINTS = CrashPoints.from_environment()

CODE = """
import asyncio
seen = look("a")
try:
    first = pay("b")
except RuntimeError as error:
    first = "unknown" if "INTERRUPTED" in str(error) else str(error)
async def both():
    return await asyncio.gather(look_soon("c"), look_soon("d"))
pair = await both()
try:
    last = refund("e")
except RuntimeError as error:
    last = "unknown" if "INTERRUPTED" in str(error) else str(error)
[seen, first, pair, last]
"""


def note(what: str) -> str:
    """Log an execution where no crash can undo it."""
    POINTS.point(f"before {what}")
    with (HOME / "ledger").open("a") as file:
        file.write(what + "\n")
        file.flush()
        os.fsync(file.fileno())
    POINTS.point(f"after {what}")
    return what


@tool(side_effect="read")
def look(key: str) -> str:
    """Look something up."""
    return note(f"look {key}")


@tool(side_effect="read")
async def look_soon(key: str) -> str:
    """Look something up, awaited."""
    return note(f"look {key}")


@tool(side_effect="external_system")
def pay(key: str) -> str:
    """Pay."""
    return note(f"pay {key}")


@tool(side_effect="external_system", approval="manual")
def refund(key: str) -> str:
    """Pay back, if a person agrees."""
    return note(f"refund {key}")


def runs(*, crashes: bool) -> CodeRuns:
    registry = ToolRegistry()
    for one in (look, look_soon, pay, refund):
        registry.register(one.registered)
    store = SqliteSessionStore(HOME / "standfast.db", owner_is_dead=owner_is_dead)
    kept = POINTS.store(store) if crashes else store
    return CodeRuns(SandboxServices(registry, kept, SandboxConfig(snapshot_key=b"k" * 32)))


def run() -> None:
    box = runs(crashes=True)
    print(msgspec.json.encode(box.run(RunRequest(session_id="s", code=CODE))).decode())
    box.close()


def finish() -> None:
    box = runs(crashes=True)
    results = list(run_blocking(box.recover()).values())
    for approval in run_blocking(
        list_approvals(box.services.store, box.services.clock.now_ms(), pending=True)
    ):
        decided = box.decide(approval.approval_id, Decision(approved=True), RunControl())
        results.append(run_blocking(decided))
    turns = len(run_blocking(box.sessions.infos()))
    variables = box.run(RunRequest(session_id="s", code="[seen, first, pair, last] if 'x' else 0"))
    print(json.dumps({
        "results": [msgspec.to_builtins(result) for result in results],
        "sessions": turns,
        "variables": msgspec.to_builtins(variables),
    }))  # fmt: skip
    box.close()


if __name__ == "__main__":
    {"run": run, "finish": finish}[sys.argv[2]]()
