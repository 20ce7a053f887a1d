"""What a durable turn costs, beside the bare work it stands for. `python bench/turns.py [--quick]`

Prints one JSON object a line: framework ("standfast" or "floor"), workload, metric, value. The floor is
measured in the same run: for a durable turn, as many `synchronous=FULL` commits of the same bytes from one
writer thread as the turn has steps that must not be lost (input, each reply, each result, the end; the last
reply is the end). Rounds of both alternate, because machines are noisy; compare ratios, not absolutes.

Workloads: user text 200 characters, reply 400, tool argument {"x": int}, tool result 100.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw

from standfast import Agent, Runtime, Session, tool
from standfast.providers.scripted import ScriptedModel

USER = "u" * 200
REPLY = "r" * 400
RESULT = "t" * 100
WARM_UP = 120
"""Turns, and as many rounds of the floor, before the first that is measured. In them the interpreter settles
and the write-ahead log grows to its size: while it grows a sync costs more, and ours writes more to it."""


@tool(side_effect="external_system")
async def act(x: int) -> str:
    """Do something."""
    return RESULT


def report(framework: str, workload: str, metric: str, value: float) -> None:
    line = {"framework": framework, "workload": workload, "metric": metric, "value": round(value, 4)}
    print(json.dumps(line), flush=True)


# The floor


FLOOR_SETUP = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "CREATE TABLE t (id INTEGER PRIMARY KEY, b BLOB)",
)


class Floor:
    """One connection on one writer thread; a caller that writes waits for the commit."""

    def __init__(self, path: Path) -> None:
        self._jobs: queue.SimpleQueue[tuple[bytes, threading.Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, args=(path,), daemon=True)
        self._thread.start()

    def commit(self, data: bytes) -> None:
        done = threading.Event()
        self._jobs.put((data, done))
        done.wait()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _serve(self, path: Path) -> None:
        db = apsw.Connection(str(path))
        for statement in FLOOR_SETUP:
            db.execute(statement).fetchall()
        while (job := self._jobs.get()) is not None:
            data, done = job
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO t (b) VALUES (?)", (data,))
            db.execute("COMMIT")
            done.set()
        db.close()


# The workloads: what the model says, turn after turn, and how many durable steps that is


def plain() -> list[dict[str, object]]:
    return [{"text": REPLY}]


def calls(number: int, start: int = 0) -> dict[str, object]:
    return {"tool_calls": [{"name": "act", "arguments": {"x": start + index}} for index in range(number)]}


def sequential(number: int) -> list[dict[str, object]]:
    return [*(calls(1, index) for index in range(number)), {"text": REPLY}]


STEPS: dict[str, tuple[list[dict[str, object]], list[int]]] = {
    "turn_plain": (plain(), [200, 400]),
    "turn_tool1": (sequential(1), [200, 60, 100, 400]),
    "turn_tool10_seq": (sequential(10), [200, *([60, 100] * 10), 400]),
    "turn_tool10_par": ([calls(10), {"text": REPLY}], [200, 600, *([100] * 10), 400]),
}
"""Replies of one turn, and the sizes of the floor's commits."""


def script(turn: list[dict[str, object]], turns: int) -> ScriptedModel:
    return ScriptedModel(turn * turns, strict=False)


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


def disk_bytes(directory: Path) -> int:
    """The database's size once its log is folded in."""
    db = apsw.Connection(str(directory / "standfast.db"))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return sum(file.stat().st_size for file in directory.iterdir())


def used_bytes(directory: Path) -> int:
    """The pages of the database that hold something."""
    db = apsw.Connection(str(directory / "standfast.db"))
    pages, free = db.pragma("page_count"), db.pragma("freelist_count")
    db.close()
    return int(pages - free) * 4096


async def measure_turn(name: str, rounds: int, durable: bool) -> None:
    replies, sizes = STEPS[name]
    workload = f"{name}_sqlite" if durable else name
    ours, floor = Stopwatch(), Stopwatch()
    with tempfile.TemporaryDirectory(prefix="standfast-bench-") as directory:
        home = Path(directory)
        bare = Floor(home / "floor.db") if durable else None
        (home / "ours").mkdir()
        async with Runtime(home / "ours" if durable else None) as runtime:
            agent = Agent(script(replies, rounds + WARM_UP), tools=[act])
            session = await runtime.session("bench", agent=agent)
            before = used_bytes(home / "ours") if durable else 0
            for _ in range(WARM_UP):
                await session.turn(USER)
                if bare is not None:
                    await commit_all(bare, sizes)
            for _ in range(rounds):
                await ours.time(lambda: session.turn(USER).settled())
                if bare is not None:
                    await floor.time(lambda: commit_all(bare, sizes))
        if durable:
            report(
                "standfast",
                workload,
                "bytes_per_turn",
                (used_bytes(home / "ours") - before) / (rounds + WARM_UP),
            )
        if bare is not None:
            bare.close()
    for framework, watch in (("standfast", ours), ("floor", floor)):
        if watch.wall:
            report(framework, workload, "ms_median", statistics.median(watch.wall))
            report(framework, workload, "cpu_ms_median", statistics.median(watch.cpu))


async def commit_all(floor: Floor, sizes: list[int]) -> None:
    for size in sizes:
        floor.commit(b"x" * size)


async def measure_growth() -> None:
    """One session, 1,000 plain turns, then reopened."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="standfast-bench-") as directory:
        home = Path(directory)
        agent = Agent(script(plain(), 1100))
        async with Runtime(home) as runtime:
            session = await runtime.session("bench", agent=agent)
            for _ in range(1000):
                await watch.time(lambda: session.turn(USER).settled())
        for turn in (10, 100, 1000):
            around = watch.cpu[max(0, turn - 20) : turn] if turn > 10 else watch.cpu[2:18]
            report("standfast", "growth_sqlite", f"cpu_ms_at_{turn}", statistics.median(around))
        report("standfast", "growth_sqlite", "bytes_at_1000", disk_bytes(home))
        await measure_reopen(home, agent)


async def measure_reopen(home: Path, agent: Agent[None, str]) -> None:
    """Opening the store and the 1,000-turn session, reading its frame, and with it one turn."""
    loads, turns = [], []
    for _ in range(7):
        started = time.perf_counter()
        async with Runtime(home) as runtime:
            session = await runtime.session("bench", agent=agent)
            opened = time.perf_counter()
            live, head = runtime.live("bench"), await session.head()
            await live.frame.messages_at(head)
            loads.append((time.perf_counter() - opened) * 1000)
            await session.turn(USER)
            turns.append((time.perf_counter() - started) * 1000)
    report("standfast", "reopen_1000", "ms_median", statistics.median(loads))
    report("standfast", "reopen_1000_and_turn", "ms_median", statistics.median(turns))


async def measure_stream(rounds: int) -> None:
    """Measure one reply of 10,000 chunks, each delivered to the caller that iterates over the turn."""
    model = ScriptedModel([{"text": "c" * 40_000, "chunk_size": 4}] * (rounds + 1), strict=False)
    costs: list[float] = []
    async with Runtime() as runtime:
        session = await runtime.session("bench", agent=Agent(model))
        for _ in range(rounds + 1):
            seen, cpu = 0, time.process_time()
            async for _event in session.turn(USER):
                seen += 1
            assert seen >= 10_000
            costs.append((time.process_time() - cpu) * 1e6 / 10_000)
    report("standfast", "stream_10k", "cpu_us_per_chunk", statistics.median(costs[1:]))


async def measure_concurrency(rounds: int) -> None:
    """100 sessions, 10 plain turns each, all at once."""
    rates, floors = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="standfast-bench-") as directory:
            async with Runtime(Path(directory)) as runtime:
                agent = Agent(script(plain(), 11))
                sessions = [await runtime.session(f"s{index}", agent=agent) for index in range(100)]
                started = time.perf_counter()
                await asyncio.gather(*(ten_turns(session) for session in sessions))
                rates.append(1000 / (time.perf_counter() - started))
            floor = Floor(Path(directory) / "floor.db")
            started = time.perf_counter()
            for _ in range(1000):
                await commit_all(floor, [200, 400])
            floors.append(1000 / (time.perf_counter() - started))
            floor.close()
    report("standfast", "concurrent_100x10_sqlite", "turns_per_s", statistics.median(rates))
    report("floor", "concurrent_100x10_sqlite", "turns_per_s", statistics.median(floors))


async def ten_turns(session: Session[str]) -> None:
    for _ in range(10):
        await session.turn(USER)


async def measure_idle() -> None:
    """Memory of a session that has had a turn and waits for the next."""
    with tempfile.TemporaryDirectory(prefix="standfast-bench-") as directory:
        async with Runtime(Path(directory)) as runtime:
            agent = Agent(script(plain(), 2))
            for index in range(100):
                await (await runtime.session(f"warm{index}", agent=agent)).turn(USER)
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            for index in range(1000):
                await (await runtime.session(f"s{index}", agent=agent)).turn(USER)
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
    report("standfast", "idle_sessions_1000", "bytes_per_session", used / 1000)


CRASHED = """
import asyncio, os, signal, sys
from standfast import Agent, Runtime, tool
from standfast.providers.scripted import ScriptedModel
@tool
def act(x: int) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
async def main():
    model = ScriptedModel([{"tool_calls": [{"name": "act", "arguments": {"x": 1}}]}], strict=False)
    async with Runtime(sys.argv[1]) as runtime:
        await (await runtime.session("s", agent=Agent(model, tools=[act]))).turn("go")
asyncio.run(main())
"""


async def measure_recovery(rounds: int) -> None:
    """From opening the store of a process that was killed in a tool to the committed turn."""
    times = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="standfast-bench-") as directory:
            await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CRASHED, directory], check=False)
            model = ScriptedModel([{"text": "-"}, {"text": REPLY}], strict=False)
            started = time.perf_counter()
            async with Runtime(Path(directory)) as runtime:
                session = await runtime.session("s", agent=Agent(model, tools=[act]))
                turn = await session.resume()
                assert turn is not None
                assert (await turn).output == REPLY
                times.append((time.perf_counter() - started) * 1000)
    report("standfast", "recover", "ms_median", statistics.median(times))


def measure_import(rounds: int) -> None:
    """`import standfast`, and the names that an agent needs, in fresh processes."""
    for workload, statement in (
        ("import", "import standfast"),
        ("import_agent", "from standfast import Agent, Runtime, tool"),
    ):
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        with tempfile.TemporaryDirectory(prefix="standfast-bench-") as cache:
            environment["PYTHONPYCACHEPREFIX"] = cache
            times = [
                float(
                    subprocess.run(
                        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
                    ).stdout
                )
                for _ in range(rounds + 1)
            ]
        report("standfast", workload, "ms_median", statistics.median(times[1:]) * 1000)


async def main(quick: bool) -> None:
    rounds = 60 if quick else 300
    await measure_turn("turn_plain", rounds, durable=False)
    for name in STEPS:
        await measure_turn(name, rounds if name == "turn_plain" else rounds // 4, durable=True)
    await measure_growth()
    await measure_stream(3 if quick else 9)
    await measure_concurrency(2 if quick else 5)
    await measure_idle()
    await measure_recovery(2 if quick else 7)
    measure_import(3 if quick else 9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions of the same workloads")
    asyncio.run(main(parser.parse_args().quick))
