"""A program with four subagents that a test kills and restarts, over one SQLite file.

It prints a line of JSON when a subagent waits for a person, and one at its end. With `--decide` it approves
every pending call; `STANDFAST_CRASH_AT` is the point at which it kills itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from subagent_stage import Cast, calls, spawn, spawned, values

from standfast import Agent, Runtime, tool
from standfast.errors import ModelError
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage
from standfast.plugins.shipped import Subagents
from standfast.ports.model_provider import ModelRequest
from standfast.runtime.agent_runtime import open_store
from standfast.testing.crash_points import CrashPoints

ROLES = ("Good.", "Bad.", "Slow.", "Payer.")


def agents_of(ledger: Path, points: CrashPoints) -> list[Agent[Any, Any]]:
    """Return the parent agent and the agent of two of its subagents."""

    def note(line: str) -> None:
        points.point(f"before {line}")
        handle = os.open(ledger, os.O_WRONLY | os.O_APPEND)
        os.write(handle, f"{line}\n".encode())
        os.close(handle)
        points.point(f"after {line}")

    @tool
    def mark(what: str) -> str:
        """Leave a mark; a call must not be made twice."""
        note(f"mark {what}")
        return "marked"

    @tool(approval="manual")
    def pay(cents: int) -> str:
        """Pay; above all this call must not be made twice."""
        note(f"pay {cents}")
        return "paid"

    model = points.model(_cast(ledger))
    lead = Agent(model, name="lead", tools=[mark, pay], plugins=[Subagents(agents=["worker"])])
    return [lead, Agent(model, name="worker", tools=[mark])]


def _cast(ledger: Path) -> Cast:
    gate = ledger.with_suffix(".hold")

    async def hold(request: ModelRequest) -> str:
        while gate.exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.01)
        return "all good"

    async def never(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "late"

    def fail(request: ModelRequest) -> str:
        raise ModelError("the model is gone")

    def close_and_wait(request: ModelRequest) -> Any:
        good, bad, slow, payer = spawned(request)
        wanted = {"agent_ids": [good, bad, slow, payer], "timeout_s": 60, "for_people": True}
        return calls(("close", {"agent_id": slow}), ("wait", wanted))

    def told(request: ModelRequest) -> str:
        return json.dumps(values(request, "wait")[-1])

    begin = [spawn("Good.", agent="worker"), spawn("Bad.", agent="worker"), spawn("Slow."), spawn("Payer.")]
    return Cast(
        Lead=[calls(*begin), close_and_wait, told],
        **{
            "Good.": [calls(("mark", {"what": "one"})), calls(("mark", {"what": "two"})), hold],
            "Bad.": [calls(("mark", {"what": "three"})), fail],
            "Slow.": [calls(("mark", {"what": "four"})), never],
            "Payer.": [calls(("pay", {"cents": 7})), "paid"],
        },
    )


async def run(home: Path, decide: bool) -> dict[str, Any]:
    """Start or resume the lead's turn, and return the final record."""
    ledger, points = home / "ledger", CrashPoints.from_environment()
    agents = agents_of(ledger, points)
    async with Runtime(points.store(open_store(home / "standfast.db")), agents=agents) as runtime:
        session = await runtime.session("s", agent=agents[0])
        person = asyncio.ensure_future(_person(runtime, decide))
        result = await session.turn("Lead this.", idempotency_key="once")
        await _tasks_over(runtime)
        person.cancel()
        reports = json.loads(result.output or "")
        usage = await session.plugins.invoke("subagents.usage")
        return {"reports": reports, "usage": usage, "points": len(points.passed), **await _record(runtime)}


async def _person(runtime: Runtime, decide: bool) -> None:
    """Act as the person who sees the pending approvals and, with `--decide`, decides them."""
    told = False
    while True:
        for one in await runtime.approvals(pending=True):
            if decide:
                await runtime.approve(one.approval_id)
            elif not told:
                print(json.dumps({"waits": one.capability}), flush=True)
                told = True
        await asyncio.sleep(0.02)


async def _tasks_over(runtime: Runtime) -> None:
    while await runtime.store.tasks(live=True):  # noqa: ASYNC110 - the keeper ends some of them
        await asyncio.sleep(0.02)


async def _record(runtime: Runtime) -> dict[str, Any]:
    """Return the store's record: tasks' states, turns of each session, and whether each ledger is right."""
    tasks = await runtime.store.tasks(session_id="s")
    order = [task.label for task in tasks]
    spent, turns, fits = Usage(), Counter[str](), True
    for head in await runtime.sessions():
        own = sum((line.usage for line in head.usage), Usage())
        said = await (await runtime.session(head.session_id)).messages()
        replies = [one.usage for one in said if isinstance(one, AssistantMessage)]
        fits = fits and own.total == sum(one.total for one in replies)
        turns[head.session_id] = len(await runtime.store.turns(head.session_id))
        spent += own
    return {
        "states": {label: str(tasks[order.index(label)].state) for label in order},
        "tasks": len(tasks),
        "turns": list(turns.values()),
        "tokens": spent.total,
        "ledgers fit": fits,
    }


def main() -> None:
    read = argparse.ArgumentParser()
    read.add_argument("home", type=Path)
    read.add_argument("--decide", action="store_true")
    given = read.parse_args()
    print(json.dumps(asyncio.run(run(given.home, given.decide))), flush=True)


if __name__ == "__main__":
    main()
