"""Turns that act in code, killed and run again until they end.

Each action of a process is a line of one ledger, `acts`: it calls the model, executes a call, starts a cell,
or resumes a suspended one. Each process first writes the content of the journal there, so that each action
can be compared with what was known at the time. At the end a cell of a later turn reads the variables, and so
does a cell of a fork, which has only the committed state.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from code_tools import CodeStage, asking, gated, hanging, ordinary, retrying, waiting
from code_watch import CodeModel, break_something, watch_engine
from scenarios import (
    KEY,
    NEXT_KEY,
    Answer,
    Stage,
    Tools,
    _decide,
    _open,
    approve_everything,
    deliver,
)

from standfast import Agent, CodeMode, Runtime, Session, TurnResult
from standfast.model.message import ToolMessage
from standfast.protocols.code.executor import as_written
from standfast.runtime.agent_runtime import open_store
from standfast.store.sqlite.connection import open_checked
from standfast.testing.crash_points import CrashPoints


@dataclass(frozen=True, slots=True)
class CodeScenario:
    """The texts that the model writes, in order, and the code that reads the variables at the end."""

    steps: list[str]
    reads: str
    tools: Callable[[CodeStage], Tools] = ordinary
    answer: Answer = approve_everything
    mode: bool = False
    """Code mode in the standard protocol, instead of the code protocol."""

    def rules(self) -> list[dict[str, Any]]:
        replies = [self._reply(text) for text in self.steps]
        after = [{"when": f"[cell {number}]", **reply} for number, reply in enumerate(replies[1:])]
        if self.mode:
            after = [{"when_tool": "run_code", "text": "hello again", "when": "again"}]
            after.append({"when_tool": "run_code", "text": "done"})
        reads = self._reply(f"```python\n{self.reads}\n```")
        return [
            {"when": "how many are they", "text": "seven"},
            *after,
            {"when": "go", **replies[0]},
            {"when": "again", **reads},
            {"when": "rerun after a restart", **reads},  # the cell failed: only defects lead here
        ]

    def _reply(self, text: str) -> dict[str, Any]:
        if not self.mode:
            return {"text": text}
        code = text.partition("```python\n")[2].rpartition("\n```")[0]
        return {"tool_calls": [{"name": "run_code", "arguments": {"code": code}}]}


ROUNDS = 3_000_000
"""What a cell computes for a moment without calling anything."""


def cell(code: str) -> str:
    return f"I look.\n```python\n{code.strip()}\n```\n"


FIVE = """
import asyncio
seen = ["begun"]
async def charged():
    try:
        return await charge("B", 5)
    except RuntimeError as error:
        return str(error)
async def booked():
    try:
        return await book("z")
    except RuntimeError as error:
        return str(error)
a = price("A")
seen.append(a)
print(len(seen))
three = await asyncio.gather(stock("x"), charged(), booked())
seen += three
print(len(seen))
try:
    ok = refund("A1", 7)
except RuntimeError as error:
    ok = str(error)
seen.append(ok)
print(len(seen))
"""

READ_FIVE = '{"a": a, "three": three, "ok": ok, "seen": seen}'

FIRST = """
log = []
def twice(text):
    log.append(text)
    return [text, text]
a = price("A")
big = [f"{number} {a}" for number in range(3_000)]
twice(a)
"""

SECOND = """
try:
    b = charge("B", 5)
except RuntimeError as error:
    b = str(error)
also = log
both = twice(b)
print("x" * 50_000)
"""

THIRD = """
also.append("more")
c = stock("C")
printed = len(history[1]["stdout"])
finish(len(twice(c)))
"""

CHANCE = """
import random
from datetime import datetime
def draw():
    drawn.append(f"{random.random()} {random.randint(1, 10**9)} {datetime.now().isoformat()}")
    return drawn[-1]
drawn = []
got = [price(draw())]
draw()
try:
    got.append(charge(draw(), random.randrange(1000)))
except RuntimeError as error:
    got.append(str(error))
draw()
got.append(stock(draw()))
try:
    got.append(refund(draw(), 7))
except RuntimeError as error:
    got.append(str(error))
got.append(price(draw()))
finish(len(drawn))
"""

ORDER = """
import asyncio
order = []
async def one(name):
    got = await stock(name)
    order.append(name)
    return got
three = await asyncio.gather(one("x"), one("y"), one("z"))
first = price(order[0])
try:
    last = charge(order[-1], len(order))
except RuntimeError as error:
    last = str(error)
finish(len(order))
"""

INTERRUPTED = """
a = price("A")
b = charge("B", 5)
c = stock(b)
finish("done")
"""

WAITS = """
import asyncio
heard = []
async def wait(name):
    try:
        if name == "later":
            got = await later("L")
        elif name == "outside":
            got = await outside("O")
        else:
            got = await refund("R", 7)
    except RuntimeError as error:
        got = str(error)
    heard.append(name)
    return got
a = await wait("later")
three = await asyncio.gather(wait("outside"), wait("refund"), stock("x"))
b = price(heard[1])
finish("done")
"""

COMPUTES = """
a = price("A")
total = 0
for number in range(ROUNDS):
    total += number % 7
try:
    b = charge(a, total)
except RuntimeError as error:
    b = str(error)
finish(total)
"""

ASKS = """
n = llm("how many are they")
try:
    b = charge(n, 5)
except RuntimeError as error:
    b = str(error)
m = llm("how many are they", data=b)
finish("done")
"""


async def deliver_or_approve(stage: Stage, waiting: TurnResult[Any]) -> None:
    """Perform one step at a time, completions from outside first."""
    if any(wait.kind == "completion" for wait in waiting.waits):
        await deliver(stage, waiting)
    else:
        await approve_everything(stage)


SCENARIOS = {
    "five": CodeScenario([cell(FIVE + f"finish({READ_FIVE})")], f"finish({READ_FIVE})"),
    "steps": CodeScenario(
        [cell(FIRST), cell(SECOND), cell(THIRD)],
        'also.append("again")\n'
        'finish({"log": log, "a": a, "both": both, "c": c, "big": big[-2:], "printed": printed})',
    ),
    "chance": CodeScenario([cell(CHANCE)], 'finish({"drawn": drawn, "got": got})'),
    "order": CodeScenario(
        [cell(ORDER)], 'finish({"order": order, "three": three, "first": first, "last": last})', gated
    ),
    "ask": CodeScenario([cell(INTERRUPTED)], 'finish({"a": a, "b": b, "c": c})', asking),
    "ask_late": CodeScenario([cell(INTERRUPTED)], 'finish({"a": a, "b": b, "c": c})', hanging),
    "retry": CodeScenario([cell(INTERRUPTED)], 'finish({"a": a, "b": b, "c": c})', retrying),
    "waits": CodeScenario(
        [cell(WAITS)],
        'finish({"heard": heard, "a": a, "three": three, "b": b})',
        waiting,
        deliver_or_approve,
    ),
    "computes": CodeScenario(
        [cell(COMPUTES.replace("ROUNDS", str(ROUNDS)))], 'finish({"a": a, "b": b, "total": total})'
    ),
    "asks": CodeScenario([cell(ASKS)], 'finish({"n": n, "b": b, "m": m})'),
    "mode": CodeScenario([cell(FIVE + "len(seen)")], READ_FIVE, mode=True),
}


# Playing


async def play(job: dict[str, Any], points: CrashPoints) -> dict[str, Any]:
    """Run one process: resume, finish, read the variables, report."""
    if job.get("how") == "decide":
        stage = CodeStage(Path(job["home"]), points)
        return await _decide(stage, points.store(open_store(stage.home / "standfast.db")))
    async with opened(job, points) as (stage, session):
        if job.get("how") == "ask":
            return {"status": (await session.turn("go", idempotency_key=KEY).settled()).status}
        return await finish_and_read(stage, session, SCENARIOS[job["scenario"]])


@contextlib.asynccontextmanager
async def opened(job: dict[str, Any], points: CrashPoints) -> AsyncIterator[tuple[CodeStage, Session[Any]]]:
    """Log the content of the journal, then open the session of a scenario."""
    stage = CodeStage(Path(job["home"]), points)
    stage.note("acts", **_journaled(stage.home / "standfast.db"))
    scenario = SCENARIOS[job["scenario"]]
    watch_engine(stage, lucky=job.get("broken") == "chance")
    model = points.model(CodeModel(scenario.rules(), stage))
    how: dict[str, Any] = {"plugins": [CodeMode()]} if scenario.mode else {"protocol": "code"}
    agent: Agent[Any, Any] = Agent(model, name="clerk", tools=scenario.tools(stage), **how)
    store = break_something(job.get("broken"), points.store(open_store(stage.home / "standfast.db")))
    async with Runtime(store, agents=[agent], lease_s=job.get("lease_s", 30.0)) as runtime:
        stage.runtime = runtime
        stage.session = await _open(runtime, agent, job.get("how", "request"))
        yield stage, stage.session


async def finish_and_read(stage: CodeStage, session: Session[Any], scenario: CodeScenario) -> dict[str, Any]:
    """End the turn, then read the variables in the next turn and in a fork."""
    await _finish(stage, session, scenario)
    read = await session.turn("again", idempotency_key=NEXT_KEY).settled()
    fork: Session[Any] = await session.fork(f"f{os.getpid()}", at=await _leaf_of_first(session))
    forked = await fork.turn("again").settled()
    report = await _report(session, [_read_by(read), _read_by(forked)])
    return {**report, "written": report["messages"]} if scenario.mode else report


async def _leaf_of_first(session: Session[Any]) -> str:
    """Return the last node of the first turn, so that the fork does not see the second turn."""
    first = (await session.turns())[0].turn_id
    return [node.id for node in await session.nodes() if node.caused_by == first][-1]


def _read_by(result: TurnResult[Any]) -> Any:
    """Return the values that the last cell of a turn has read."""
    told = [one for one in result.messages if isinstance(one, ToolMessage)][-1]
    value = told.value if isinstance(told.value, dict) else {}
    return {"variables": value.get("result"), "error": msgspec.to_builtins(told.error)}


def _journaled(database: Path) -> dict[str, Any]:
    """Return the turns that are waiting or have ended, and the journal entries of the others."""
    if not database.exists():
        return {"states": [], "journal": []}
    with contextlib.closing(open_checked(str(database))) as connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'journal'").get:
            return {"states": [], "journal": []}
        states = [list(row) for row in connection.execute("SELECT turn_id, state FROM turns")]
        kept = [list(row) for row in connection.execute("SELECT turn_id, name, kind FROM journal")]
        return {"states": states, "journal": kept}


async def _finish(stage: CodeStage, session: Session[Any], scenario: CodeScenario) -> None:
    result = await session.turn("go", idempotency_key=KEY).settled()
    while result.status == "waiting":
        await scenario.answer(stage, result)
        going_on = await session.resume()
        if going_on is None:
            return
        result = await going_on.settled()


async def _report(session: Session[Any], read: list[Any]) -> dict[str, Any]:
    messages = await session.messages()
    return {
        "status": "done",
        "messages": msgspec.to_builtins(messages),
        "written": msgspec.to_builtins([as_written(message) for message in messages]),
        "nodes": msgspec.to_builtins(await session.nodes()),
        "turns": msgspec.to_builtins(await session.turns()),
        "approvals": msgspec.to_builtins(await session.approvals()),
        "inputs": msgspec.to_builtins(await session.inputs()),
        "head": msgspec.to_builtins(await session.head()),
        "usage": msgspec.to_builtins(await session.usage()),
        "read": read,
    }
