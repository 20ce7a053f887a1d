"""What a step in code costs, beside the bare engine. `python bench/code.py [--quick]`

Prints one JSON object a line: framework, workload, metric, value. All are measured in one run, in blocks of
rounds that alternate after a warm-up, because machines are noisy; compare ratios, not absolutes.

- `sqlite` is a durable turn over a file, `memory` the same without one, `engine` the cells of the same code
  on `MontyCells` alone: their calls answered at once, nothing checked, journaled or shown.
- `plain` is a durable turn without tools, over the same file, and `x_plain` a median over its median.
- `x_engine` is a median over the engine's.
- `x_target` is a median over the target, 3 ms where the peers take 35 to 45 (those that isolate code) and 6.9
  (smolagents, which does not). `make bench-peers` measures them in one run with ours.
- CPU time is that of this process; the engine's worker is another one.

Workloads: user text 200 characters, reply 400, tool argument {"x": int}, tool result 100. `code_step_1call`
is a whole turn, from its input to its commit, as the peers were measured: one reply with a cell that calls a
tool and gives the answer. The tool only computes, as the peers' does; `_effect` is the same with one that
acts on something, so that its intent is on disk before it runs; `_check_types` has the type checker.
`one_more_step` is what each further step adds to a turn: the tenth part of what a turn of eleven steps takes
longer than one of one. `code_turn_2replies` is a cell, then a plain reply; `cell_suspended` and
`cell_continued` a cell that waits for a person, before and after the decision.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from standfast import Agent, CodeProtocol, Runtime, Session, tool
from standfast.errors import StandfastError
from standfast.model.capability import Capability, GuestException
from standfast.ports.code_engine import CallAnswer, CellCall, CellEnd, CellPause, CellRequest
from standfast.protocols.code.executor import CELL_LIMITS
from standfast.providers.scripted import ScriptedModel
from standfast.sandbox.monty.cell_engine import MontyCells

USER = "u" * 200
REPLY = "r" * 400
RESULT = "t" * 100
WARM_UP = 60
TARGET_MS = 3.0
BLOCK = 20
FAR = 10_000
LARGE = "\n".join(f"line {number:07d} of a text that no window holds" for number in range(110_000))


@tool(side_effect="none")
async def compute(x: int) -> str:
    """Compute something."""
    return RESULT


@tool(side_effect="external_system")
async def act(x: int) -> str:
    """Do something."""
    return RESULT


@tool(side_effect="external_system", approval="manual")
async def ask(x: int) -> str:
    """Do something that a person has to allow."""
    return RESULT


def report(framework: str, workload: str, metric: str, value: float) -> None:
    line = {"framework": framework, "workload": workload, "metric": metric, "value": round(value, 4)}
    print(json.dumps(line), flush=True)


# What the model says


def one_call(number: int) -> str:
    return f"found = compute(x={number})\nfinish(found)"


def one_effect(number: int) -> str:
    return f"found = act(x={number})\nfinish(found)"


def ten_calls(number: int) -> str:
    return f"found = [act(x={number} + i) for i in range(10)]\nfinish(len(found))"


def ten_at_once(number: int) -> str:
    calls = f"[act(x={number} + i) for i in range(10)]"
    return f"import asyncio\nfound = await asyncio.gather(*{calls})\nfinish(len(found))"


def no_answer(number: int) -> str:
    return f"found = compute(x={number})\nfound"


def no_answer_effect(number: int) -> str:
    return f"found = act(x={number})\nfound"


def asking(number: int) -> str:
    return f"found = ask(x={number})\nfinish(found)"


def reading(number: int) -> str:
    return f'finish(text.count("{number:05d}"))'


Cell = Callable[[int], str]


def reply(code: str) -> str:
    """A cell with as much prose before it as makes 400 characters of both."""
    cell = f"\n\n```python\n{code}\n```\n"
    return "p" * max(1, 400 - len(cell)) + cell


def script(cell: Cell, turns: int, after: Iterable[str] = (), *, first: int = 0) -> ScriptedModel:
    """Return a model that answers with one cell per turn, for the numbers from *first* on."""
    replies = [said for number in range(first, first + turns) for said in (reply(cell(number)), *after)]
    return ScriptedModel(replies, strict=False)


# The engine alone


class Functions:
    """The functions of the bare cells."""

    def __contains__(self, name: object) -> bool:
        return name in ("act", "compute", "finish")

    def names(self) -> Iterable[str]:
        return ["act", "compute", "finish"]

    def capability(self, name: str) -> Capability:
        return act.capability

    def is_async(self, name: str) -> bool:
        return True

    def suggest(self, name: str) -> str | None:
        return None


class BareCells:
    """Cells of one session, their calls answered at once."""

    def __init__(self) -> None:
        self._engine = MontyCells()
        self._state = b""

    def run(self, code: str) -> None:
        request = CellRequest(
            key="bench",
            code=code,
            state=self._state,
            limits=CELL_LIMITS,
            functions=Functions(),
            answer_now=_finish,
            now_ms=1,
            seed="bench",
        )
        run = self._engine.open(request)
        step, waiting = run.start(), list[CellCall]()
        while isinstance(step, CellPause):
            waiting += step.calls
            step = run.answer(waiting.pop(0).number, CallAnswer(value=RESULT, at_ms=1))
        _check(step)
        self._state = step.state or self._state

    def close(self) -> None:
        self._engine.close()


def _finish(call: CellCall) -> CallAnswer | None:
    if call.name != "finish":
        return None
    return CallAnswer(exception=GuestException(type="SystemExit", message="the turn is over"))


def _check(end: CellEnd) -> None:
    if end.error is not None and "SystemExit" not in end.error.message:
        raise StandfastError(end.error.message)


# Measuring


class Stopwatch:
    """Wall and CPU time of each round, in milliseconds."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    async def time(self, work: Callable[[], Awaitable[object]]) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        await work()
        self.wall.append((time.perf_counter() - wall) * 1000)
        self.cpu.append((time.process_time() - cpu) * 1000)

    def report(self, framework: str, workload: str) -> float:
        median = statistics.median(self.wall)
        report(framework, workload, "ms_median", median)
        report(framework, workload, "cpu_ms_median", statistics.median(self.cpu))
        return median


class Stage:
    """The sessions of one workload, in memory and over a file, and the bare engine."""

    def __init__(self, cell: Cell, rounds: int, after: Iterable[str], protocol: CodeProtocol | None) -> None:
        self.cell = cell
        self.rounds = rounds
        self._agents: dict[str, Agent[None, str]] = {
            name: Agent(
                script(cell, rounds + WARM_UP, after, first=first),
                protocol=protocol or "code",
                tools=[act, ask, compute],
            )
            for name, first in (("sqlite", 0), ("memory", FAR))
        }
        self._plain = Agent(ScriptedModel([REPLY] * (rounds + WARM_UP)))
        self.watches = {name: Stopwatch() for name in ("sqlite", "memory", "plain", "engine")}

    async def run(self, *, engine: bool) -> None:
        bare = BareCells()
        with tempfile.TemporaryDirectory(prefix="standfast-bench-") as home:
            async with Runtime(Path(home) / "bench.db") as durable, Runtime() as memory:
                sessions = {
                    "sqlite": await durable.session("bench", agent=self._agents["sqlite"]),
                    "memory": await memory.session("bench", agent=self._agents["memory"]),
                    "plain": await durable.session("plain", agent=self._plain),
                }
                await self._rounds(range(WARM_UP), sessions, bare if engine else None)
                for watch in self.watches.values():
                    watch.wall.clear()
                    watch.cpu.clear()
                gc.collect()
                for start in range(WARM_UP, WARM_UP + self.rounds, BLOCK):
                    block = range(start, min(start + BLOCK, WARM_UP + self.rounds))
                    await self._rounds(block, sessions, bare if engine else None)
        bare.close()

    async def _rounds(self, block: range, sessions: dict[str, Session[str]], bare: BareCells | None) -> None:
        """Run `block` rounds of each kind, one kind after the other."""
        for name, session in sessions.items():
            for _ in block:
                await self.watches[name].time(lambda session=session: session.turn(USER).settled())

        async def alone(number: int) -> None:
            if bare is not None:
                bare.run(self.cell(2 * FAR + number))

        for number in block:
            await self.watches["engine"].time(lambda number=number: alone(number))


async def measure_steps(
    workload: str,
    cell: Cell,
    rounds: int,
    *,
    after: Iterable[str] = (),
    protocol: CodeProtocol | None = None,
    engine: bool = True,
) -> None:
    stage = Stage(cell, rounds, tuple(after), protocol)
    await stage.run(engine=engine)
    bare = stage.watches["engine"].report("engine", workload) if engine else None
    for name in ("sqlite", "memory"):
        median = stage.watches[name].report(name, workload)
        if bare is not None:
            report(name, workload, "x_engine", median / bare)
        if name == "sqlite":
            report(name, workload, "x_plain", median / stage.watches["plain"].report("plain", workload))
            if workload in ("code_step_1call", "code_step_1call_effect"):
                report("sqlite", workload, "x_target", median / TARGET_MS)


STEPS = 10


async def measure_one_step(workload: str, cell: Cell, last: Cell, rounds: int) -> None:
    """What each step adds to a turn: turns of one step, and of eleven."""
    turns = rounds + WARM_UP
    several = [
        reply(code)
        for turn in range(turns)
        for code in (*(cell(turn * STEPS + step) for step in range(STEPS)), last(turn))
    ]
    agents = {
        "one": Agent(script(last, turns), protocol="code", tools=[act, ask, compute]),
        "several": Agent(ScriptedModel(several, strict=False), protocol="code", tools=[act, ask, compute]),
    }
    for name in ("sqlite", "memory"):
        watches = {"one": Stopwatch(), "several": Stopwatch()}
        with tempfile.TemporaryDirectory(prefix="standfast-bench-") as home:
            async with Runtime(Path(home) / "bench.db" if name == "sqlite" else None) as runtime:
                sessions = {key: await runtime.session(key, agent=agents[key]) for key in agents}
                for turn in range(turns):
                    if turn == WARM_UP:
                        watches = {"one": Stopwatch(), "several": Stopwatch()}
                    for key, session in sessions.items():
                        await watches[key].time(lambda session=session: session.turn(USER).settled())
        for metric, times in (("ms_median", "wall"), ("cpu_ms_median", "cpu")):
            longer = [statistics.median(getattr(watches[key], times)) for key in ("several", "one")]
            took = (longer[0] - longer[1]) / STEPS
            report(name, workload, metric, took)


async def measure_waiting(rounds: int) -> None:
    """Measure a cell that suspends for a person, and one that resumes after the decision."""
    stops, resumes = Stopwatch(), Stopwatch()
    with tempfile.TemporaryDirectory(prefix="standfast-bench-") as home:
        async with Runtime(Path(home) / "bench.db") as runtime:
            agent = Agent(script(asking, rounds + WARM_UP), protocol="code", tools=[act, ask, compute])
            session = await runtime.session("bench", agent=agent)
            for number in range(rounds + WARM_UP):
                if number == WARM_UP:
                    stops, resumes = Stopwatch(), Stopwatch()
                await stops.time(lambda: session.turn(USER).settled())
                (asked,) = await session.approvals(pending=True)
                await resumes.time(lambda asked=asked: session.approve(asked.approval_id))
    stops.report("sqlite", "cell_suspended")
    resumes.report("sqlite", "cell_continued")


async def measure_large(rounds: int) -> None:
    """A text of 5 MB that comes with a turn, and one that came with an earlier turn; a cell reads it."""
    given, kept = Stopwatch(), Stopwatch()
    with tempfile.TemporaryDirectory(prefix="standfast-bench-") as home:
        async with Runtime(Path(home) / "bench.db") as runtime:
            session = await runtime.session(
                "bench", agent=Agent(script(reading, 2 * rounds + 4), protocol="code")
            )
            for number in range(rounds + 2):
                if number == 2:
                    given, kept = Stopwatch(), Stopwatch()
                text = f"{LARGE}\n{number}"
                await given.time(lambda text=text: session.turn(USER, inputs={"text": text}).settled())
                await kept.time(lambda: session.turn(USER).settled())
    given.report("sqlite", "input_5mb_given")
    kept.report("sqlite", "input_5mb_read_again")


async def main(quick: bool) -> None:
    rounds = 60 if quick else 300
    await measure_one_step("one_more_step", no_answer, one_call, rounds // 3)
    await measure_one_step("one_more_step_effect", no_answer_effect, one_effect, rounds // 3)
    await measure_steps("code_step_1call", one_call, rounds)
    await measure_steps("code_step_1call_effect", one_effect, rounds)
    await measure_steps("code_turn_2replies", no_answer, rounds, after=[REPLY], engine=False)
    await measure_steps("cell_10_calls", ten_calls, rounds // 2)
    await measure_steps("cell_gather_10", ten_at_once, rounds // 2)
    types: dict[str, Any] = {"protocol": CodeProtocol(check="types"), "engine": False}
    await measure_steps("code_step_1call_check_types", one_call, rounds // 3, **types)
    await measure_waiting(rounds // 2)
    await measure_large(5 if quick else 15)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    asyncio.run(main(parser.parse_args().quick))
