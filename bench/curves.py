"""How the cost of an operation changes with the amount of work. `python bench/curves.py [--quick] [--write]`

Each curve measures the CPU time of one operation at several amounts. It is the time of the whole process, so
the writer thread counts and waiting for a disk does not. Other programs on the machine raise it, so of
repeated operations the lower quartile counts, and of rounds the lowest. A curve is declared flat or linear:

- flat: the cost at the largest amount is at most 1.5 times the cost at the smallest
- linear: one more item costs at most 1.5 times as much at the end of the curve as at its beginning

The program prints a table, says which curves are not what they are declared to be, and exits with 1 if there
are such. `--write` writes the table and the charts of `docs/how-it-works/scaling.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curve_charts import chart

from plugins import one_hook, tools
from standfast import Agent, Attachment, Runtime, Session, Usage
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded

DOCS = Path(__file__).parent.parent / "docs" / "how-it-works"
USER = "u" * 200
REPLY = "r" * 400
WARM_UP = 30
SLACK_MS = 0.05
"""A rise that is too small to matter, and that noise reaches."""

Points = list[tuple[int, float]]


class ConstantModel:
    """A model that gives the same reply at once, whatever the request."""

    model_id = "constant:1"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        yield ReplyEnded(text=REPLY, usage=Usage(input=10, output=10))

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Series:
    """One line of a chart: costs of one operation, in milliseconds, by amount of work."""

    name: str
    shape: str
    points: Points


@dataclass(frozen=True)
class Curve:
    """One chart: what grows, the amounts, and the function that measures its series."""

    name: str
    title: str
    amounts: tuple[int, ...]
    quick: tuple[int, ...]
    measure: Callable[[tuple[int, ...]], Awaitable[list[Series]]]
    rounds: int = 3

    async def measured(self, quick: bool) -> list[Series]:
        """Return the series, each point the lowest of its rounds: what else runs on the machine only adds."""
        amounts = self.quick if quick else self.amounts
        rounds = [await self.measure(amounts) for _ in range(self.rounds)]
        return [lowest(same) for same in zip(*rounds, strict=True)]


def lowest(rounds: Sequence[Series]) -> Series:
    points = [min(same) for same in zip(*(one.points for one in rounds), strict=True)]
    return Series(rounds[0].name, rounds[0].shape, points)


@asynccontextmanager
async def runtime_on_disk() -> AsyncIterator[Runtime]:
    with tempfile.TemporaryDirectory(prefix="standfast-curves-") as folder:
        async with Runtime(Path(folder)) as runtime:
            yield runtime


async def cost_ms(operations: Iterable[Callable[[], Awaitable[object]]]) -> float:
    """Return the lower quartile of the CPU times of `operations`, executed one after the other."""
    costs = []
    for operation in operations:
        before = time.process_time()
        await operation()
        costs.append((time.process_time() - before) * 1e3)
    return sorted(costs)[len(costs) // 4]


async def turns_cost_ms(session: Session[Any], turns: int = 40) -> float:
    return await cost_ms(lambda: session.turn(USER).settled() for _ in range(turns))


async def warm(runtime: Runtime, agent: Agent[Any, Any]) -> None:
    session = await runtime.session("warm", agent=agent)
    for _ in range(WARM_UP):
        await session.turn(USER)


# The curves


async def measure_turns(amounts: tuple[int, ...]) -> list[Series]:
    """Measure the last of a number of turns of one session."""
    agent = Agent(ConstantModel())
    turn: Points = []
    async with runtime_on_disk() as runtime:
        await warm(runtime, agent)
        session = await runtime.session("long", agent=agent)
        done = 0
        for amount in amounts:
            measured = min(40, amount // 2)
            for _ in range(amount - done - measured):
                await session.turn(USER)
            turn.append((amount, await turns_cost_ms(session, measured)))
            done = amount
    return [Series("a turn", "flat", turn)]


async def measure_sessions(amounts: tuple[int, ...]) -> list[Series]:
    """Measure turns of new sessions, and of sessions that are no longer in the cache, in a growing store."""
    agent = Agent(ConstantModel())
    new: Points = []
    evicted: Points = []
    async with runtime_on_disk() as runtime:
        await warm(runtime, agent)
        done = 0
        for amount in amounts:
            for number in range(done, amount):
                await (await runtime.session(f"s{number}", agent=agent)).turn(USER)
            done = amount
            fresh = [f"new-{amount}-{number}" for number in range(40)]
            new.append((amount, await cost_ms(turn_of(runtime, agent, name) for name in fresh)))
            spread = [f"s{number}" for number in range(0, amount - 300, max(1, (amount - 300) // 40))]
            evicted.append((amount, await cost_ms(turn_of(runtime, agent, name) for name in spread)))
    return [
        Series("a turn of a new session", "flat", new),
        Series("of one read from the store", "flat", evicted),
    ]


def turn_of(runtime: Runtime, agent: Agent[Any, Any], name: str) -> Callable[[], Awaitable[object]]:
    async def operation() -> object:
        return await (await runtime.session(name, agent=agent)).turn(USER)

    return operation


async def measure_tools(amounts: tuple[int, ...]) -> list[Series]:
    """Measure turns with a catalog that does not change, of new sessions, and the first one of an agent."""
    turn: Points = []
    new: Points = []
    first: Points = []
    for amount in amounts:
        async with runtime_on_disk() as runtime:
            await warm(runtime, Agent(ConstantModel()))
            agents = [Agent(ConstantModel(), tools=tools(amount)) for _ in range(5)]
            opened = [turn_of(runtime, agent, f"s{number}") for number, agent in enumerate(agents)]
            first.append((amount, await cost_ms(opened)))
            more = [turn_of(runtime, agents[0], f"new{number}") for number in range(20)]
            new.append((amount, await cost_ms(more)))
            turn.append((amount, await turns_cost_ms(await runtime.session("s0", agent=agents[0]))))
    return [
        Series("a turn", "flat", turn),
        Series("a turn of a new session", "flat", new),
        Series("the first turn of an agent", "linear", first),
    ]


async def measure_plugins(amounts: tuple[int, ...]) -> list[Series]:
    """Measure turns of sessions with plugins of one hook each, each kind of hook in turn."""
    turn: Points = []
    for amount in amounts:
        async with runtime_on_disk() as runtime:
            agent = Agent(ConstantModel(), plugins=[one_hook(number) for number in range(amount)])
            await warm(runtime, agent)
            turn.append((amount, await turns_cost_ms(await runtime.session("s", agent=agent), 100)))
    return [Series("a turn", "linear", turn)]


async def measure_frames(amounts: tuple[int, ...]) -> list[Series]:
    """Measure a session with closed frames of two turns each: its next turn, and opening it with a turn."""
    agent = Agent(ConstantModel())
    turn: Points = []
    opened: Points = []
    with tempfile.TemporaryDirectory(prefix="standfast-curves-") as folder:
        done = 0
        for amount in amounts:
            async with Runtime(Path(folder)) as runtime:
                await warm(runtime, agent)
                session = await runtime.session("framed", agent=agent)
                for _ in range(amount - done):
                    await session.turn(USER)
                    await session.turn(USER)
                    await session.open_frame(seed=["a summary of what was said"])
                done = amount
                turn.append((amount, await turns_cost_ms(session)))
                await session.open_frame(seed=["a summary of what was said"])
            opened.append((amount, min([await cost_of_opening(Path(folder), agent) for _ in range(5)])))
    return [Series("a turn", "flat", turn), Series("opening it, with a turn", "flat", opened)]


async def cost_of_opening(folder: Path, agent: Agent[Any, Any]) -> float:
    async with Runtime(folder) as runtime:
        return await cost_ms([turn_of(runtime, agent, "framed")])


async def measure_attachments(amounts: tuple[int, ...]) -> list[Series]:
    """Measure a turn after attachments of 1 KB in the history, and a turn that brings as many."""
    agent = Agent(ConstantModel())
    after: Points = []
    bringing: Points = []
    for amount in amounts:
        async with runtime_on_disk() as runtime:
            await warm(runtime, agent)
            session = await runtime.session("attached", agent=agent)
            prompts = [files(amount, number) for number in range(5)]
            bringing.append((amount, await cost_ms(starting(session, prompt) for prompt in prompts)))
            after.append((amount, await turns_cost_ms(session)))
    return [Series("a turn after them", "flat", after), Series("a turn that brings them", "linear", bringing)]


def starting(session: Session[Any], prompt: Any) -> Callable[[], Awaitable[object]]:
    return lambda: session.turn(prompt).settled()


def files(amount: int, number: int) -> list[Any]:
    """Return a prompt with text and `amount` different files of 1 KB."""
    contents = (f"{number}:{index}:".ljust(1024, "x").encode() for index in range(amount))
    return [USER, *(Attachment(data, "text/plain", f"f{index}.txt") for index, data in enumerate(contents))]


async def measure_observers(amounts: tuple[int, ...]) -> list[Series]:
    """Measure a turn that is observed, until every observer has its events."""
    agent = Agent(ConstantModel())
    turn: Points = []
    for amount in amounts:
        async with runtime_on_disk() as runtime:
            await warm(runtime, agent)
            session = await runtime.session("watched", agent=agent)
            await session.turn(USER)
            watching = Watching(session)
            await watching.start(amount)
            turn.append((amount, await cost_ms(watching.turn for _ in range(20))))
            await watching.stop()
    return [Series("a turn", "linear", turn)]


class Watching:
    """A session and its observers, each of which counts the turns that it has seen committed."""

    def __init__(self, session: Session[Any]) -> None:
        self.session = session
        self.tasks: list[asyncio.Task[None]] = []
        self.pending = 0
        self.all_seen = asyncio.Event()

    async def start(self, amount: int) -> None:
        cursor = await self.session.cursor()
        self.tasks = [asyncio.create_task(self.observe(cursor)) for _ in range(amount)]
        for _ in range(3):
            await self.turn()

    async def observe(self, cursor: Any) -> None:
        async for seen in self.session.observe(cursor):
            if type(seen.event).__name__ == "TurnCommitted":
                self.pending -= 1
                if not self.pending:
                    self.all_seen.set()

    async def turn(self) -> None:
        self.pending = len(self.tasks)
        self.all_seen.clear()
        await self.session.turn(USER)
        if self.tasks:
            await asyncio.wait_for(self.all_seen.wait(), 60)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


CURVES = (
    Curve("turns", "Turns in a session", (10, 100, 1000, 3000, 10_000), (10, 100, 1000), measure_turns, 1),
    Curve("sessions", "Sessions in a store", (400, 1000, 3000, 10_000), (400, 1000), measure_sessions, 1),
    Curve("tools", "Tools of an agent", (10, 100, 1000, 10_000), (10, 100, 1000), measure_tools),
    Curve("plugins", "Plugins of a session", (0, 1, 5, 10, 20, 50), (0, 10, 50), measure_plugins),
    Curve("frames", "Frames in a session's history", (1, 10, 100, 1000), (1, 10, 100), measure_frames),
    Curve("attachments", "Attachments", (1, 10, 100, 1000), (1, 10, 100), measure_attachments),
    Curve("observers", "Observers of a session", (0, 1, 10, 100, 1000), (0, 10, 100), measure_observers),
)


# What is made of them


def fault(series: Series) -> str:
    """Return why the points do not have the declared shape, or an empty string."""
    (least, first), (most, last) = series.points[0], series.points[-1]
    if series.shape == "flat":
        rises = last > first * 1.5 and last - first > SLACK_MS
        return f"rises from {first:.3f} ms at {least:,} to {last:.3f} ms at {most:,}" if rises else ""
    middle, half = series.points[len(series.points) // 2]
    early, late = (half - first) / (middle - least), (last - half) / (most - middle)
    if late <= early * 1.5 or late - early < SLACK_MS / most:
        return ""
    return f"one more costs {early * 1e3:.1f} µs up to {middle:,} and {late * 1e3:.1f} µs from there on"


def per_item_us(series: Series) -> float:
    (least, first), (most, last) = series.points[0], series.points[-1]
    return (last - first) / (most - least) * 1e3


def section(curve: Curve, measured: list[Series]) -> str:
    """Return the table of a curve and the link to its chart."""
    amounts = [amount for amount, _ in measured[0].points]
    rows = [
        f"| {curve.title.lower()} | " + " | ".join(f"{amount:,}" for amount in amounts) + " | |",
        "|---" * (len(amounts) + 2) + "|",
    ]
    for series in measured:
        costs = " | ".join(f"{cost:.2f}" for _, cost in series.points)
        shape = series.shape if series.shape == "flat" else f"linear: {per_item_us(series):.1f} µs each"
        rows.append(f"| {series.name}: CPU ms | {costs} | {shape} |")
    names = " and ".join(series.name for series in measured)
    return "\n".join([*rows, "", f"![{curve.title}: CPU time of {names}](scaling/{curve.name}.svg)"])


def write(curve: Curve, measured: list[Series]) -> None:
    page, charts = DOCS / "scaling.md", DOCS / "scaling"
    charts.mkdir(exist_ok=True)
    drawn = chart(curve.title, "ms", {series.name: series.points for series in measured})
    (charts / f"{curve.name}.svg").write_text(drawn, encoding="utf-8")
    begin, end = f"<!-- measured: {curve.name} -->\n", "<!-- end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}{section(curve, measured)}\n{end}{after}", encoding="utf-8")


async def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [curve.name for curve in CURVES]
    parser.add_argument("--only", default=",".join(names), help=f"some of {','.join(names)}")
    parser.add_argument("--quick", action="store_true", help="smaller amounts")
    parser.add_argument(
        "--write", action="store_true", help="write the tables and charts of the documentation"
    )
    asked = parser.parse_args()
    faults = []
    for curve in CURVES:
        if curve.name not in asked.only.split(","):
            continue
        measured = await curve.measured(asked.quick)
        print(section(curve, measured).rpartition("\n\n")[0], end="\n\n", flush=True)
        faults += [f"{curve.name}, {one.name}: {why}" for one in measured if (why := fault(one))]
        if asked.write:
            write(curve, measured)
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
