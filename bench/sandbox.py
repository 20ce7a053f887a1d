"""What the sandbox costs beside the bare engine, in one process, as ratios.

    python bench/sandbox.py [--quick] [--json]

Every figure is a median over interleaved rounds, so that a noisy machine disturbs both sides alike. The bare
engine is `pydantic_monty` driven by hand: no dispatch, no limits of ours, no state kept, nothing durable.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pydantic_monty

from standfast import BlockingSandbox, Sandbox, tool

CALLS = 30
LOOP = f"for i in range({CALLS}): i"
BUSY = "total = 0\nfor i in range(60000): total += i * i\ntotal"


@tool(side_effect="none")
def echo(x: int) -> int:
    """Give back what came."""
    return x


@tool(side_effect="external_system", approval="none")
def send(x: int) -> int:
    """Act outside, so that the call's intent is synced before it runs."""
    return x


@tool(side_effect="none")
async def echo_async(x: int) -> int:
    """Give back what came."""
    return x


def checked_code(number: int) -> str:
    """Return code for `validate`; other code each time, so that no check can be reused."""
    return f"orders = [{{'id': n}} for n in range({number})]\nsum(one['id'] for one in orders) + echo(1)"


def calls_of(name: str) -> str:
    return f"for i in range({CALLS}): {name}(i)"


@dataclass
class Timings:
    """Seconds, by name."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    def time(self, name: str, work: Callable[[], object], repeat: int) -> None:
        for _ in range(repeat):
            started = time.perf_counter()
            work()
            self.samples.setdefault(name, []).append(time.perf_counter() - started)

    async def time_async(self, name: str, work: Callable[[], Awaitable[object]], repeat: int) -> None:
        for _ in range(repeat):
            started = time.perf_counter()
            await work()
            self.samples.setdefault(name, []).append(time.perf_counter() - started)

    def us(self, name: str) -> float:
        return statistics.median(self.samples[name]) * 1e6


class BareEngine:
    """The engine by hand."""

    def __init__(self) -> None:
        self._pool = pydantic_monty.Monty(min_processes=1)
        self._pool.__enter__()
        self.fresh()

    def fresh(self) -> None:
        """A new session: the engine keeps every source, so a long-lived one would grow slower."""
        self.session = self._pool.checkout(limits={"max_suspensions": 2**31})
        self.session.__enter__()

    def done(self) -> None:
        self.session.__exit__(None, None, None)

    def run(self, code: str) -> object:
        return self.session.feed_start(code)

    def calls(self) -> None:
        step = self.session.feed_start(f"for i in range({CALLS}): echo(i)")
        for value in range(CALLS):
            step = step.resume({"return_value": value})

    def dump_and_load(self) -> None:
        dump = self.session.dump()
        with self._pool.checkout() as other:
            other.load_session(dump)
            other.feed_start("1+1")

    def close(self) -> None:
        self._pool.__exit__(None, None, None)


class SyncedCommit:
    """One durable commit of a session's size: WAL, synchronous=FULL, nothing else."""

    def __init__(self, folder: Path) -> None:
        self._db = apsw.Connection(str(folder / "floor.db"))
        self._db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL").fetchall()
        self._db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, data BLOB); INSERT INTO t VALUES (1, x'')")
        self._count = 0

    def commit(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._count += 1  # SQLite writes nothing where nothing changes
        data = self._count.to_bytes(8, "big") * 256
        self._db.execute("UPDATE t SET data = ? WHERE id = 1", (data,))
        self._db.execute("COMMIT")


def measure_blocking(timings: Timings, rounds: int) -> None:
    bare, numbers = BareEngine(), itertools.count(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        BlockingSandbox(tools=[echo, send]) as memory,
        BlockingSandbox(tools=[echo, send], data_dir=Path(folder) / "data") as durable,
    ):
        floor = SyncedCommit(Path(folder))
        for _ in range(rounds):
            timings.time("bare 1+1", lambda: bare.run("1+1"), 40)
            timings.time("memory 1+1", lambda: memory.run("1+1"), 40)
            timings.time("durable 1+1", lambda: durable.run("1+1"), 40)
            timings.time("bare x=1+1", lambda: bare.run("x = 1+1"), 40)
            timings.time("memory x=1+1", lambda: memory.run("x = 1+1"), 40)
            timings.time("durable x=1+1", lambda: durable.run("x = 1+1"), 40)
            timings.time("commit", floor.commit, 40)
            timings.time("bare loop", lambda: bare.run(LOOP), 10)
            timings.time("bare calls", bare.calls, 10)
            for name, box in (("memory", memory), ("durable", durable)):
                timings.time(f"{name} loop", lambda box=box: box.run(LOOP), 10)
                for called in ("echo", "send"):
                    code = calls_of(called)
                    timings.time(f"{name} {called}", lambda box=box, code=code: box.run(code), 10)
            timings.time("validate", lambda: memory.validate(checked_code(next(numbers))), 10)
            timings.time("bare snapshot+restore", bare.dump_and_load, 10)
            timings.time("snapshot+restore", lambda: there_and_back(memory), 10)
            bare.done()
            bare.fresh()
    bare.done()
    bare.close()


def there_and_back(box: BlockingSandbox) -> None:
    box.restore(box.snapshot("default"))
    box.run("1+1")


async def measure_async(timings: Timings, rounds: int) -> None:
    bare = BareEngine()
    async with Sandbox(tools=[echo, echo_async]) as box:
        for _ in range(rounds):
            await timings.time_async("bare in a thread", lambda: asyncio.to_thread(bare.run, "1+1"), 40)
            await timings.time_async("async 1+1", lambda: box.run("1+1"), 40)
            await timings.time_async("loop", lambda: box.run(LOOP), 10)
            await timings.time_async("calls", lambda: box.run(calls_of("echo")), 10)
            await timings.time_async("async calls", lambda: box.run(calls_of("echo_async")), 10)
            bare.done()
            bare.fresh()
    bare.done()
    bare.close()


def busy_sessions(workers: int, sessions: int) -> float:
    """Return the seconds that *sessions* sessions need for the same computation on *workers* workers."""
    with BlockingSandbox(workers=workers) as box, ThreadPoolExecutor(workers) as pool:
        for index in range(workers):
            box.run("1", session=f"warm{index}")
        started = time.perf_counter()
        for result in pool.map(lambda i: box.run(BUSY, session=f"s{i}"), range(sessions)):
            assert result.status == "ok", result
        return time.perf_counter() - started


@dataclass(frozen=True)
class Line:
    name: str
    value: float
    unit: str
    target: str = ""


def report(timings: Timings, scaling: float) -> list[Line]:
    us = timings.us
    bare_call = (us("bare calls") - us("bare loop")) / CALLS
    call = (us("calls") - us("loop")) / CALLS
    call_async = (us("async calls") - us("loop")) / CALLS
    blocking = {
        f"{where} {called}": (us(f"{where} {called}") - us(f"{where} loop")) / CALLS
        for where in ("memory", "durable")
        for called in ("echo", "send")
    }
    commits = (us("durable 1+1") - us("bare 1+1")) / us("commit")
    commits_changed = (us("durable x=1+1") - us("bare x=1+1")) / us("commit")
    return [
        Line("bare engine: 1+1", us("bare 1+1"), "us"),
        Line("bare engine: resume of a host call", bare_call, "us"),
        Line("one synced commit of 2 KB", us("commit"), "us"),
        Line("warm run of 1+1, memory", us("memory 1+1") / us("bare 1+1"), "x bare", "<= 2"),
        Line("warm run of x = 1+1, memory", us("memory x=1+1") / us("bare x=1+1"), "x bare"),
        Line("warm run of 1+1, durable: over bare", commits, "commits", "<= 1.5"),
        Line("warm run of x = 1+1, durable: over bare", commits_changed, "commits"),
        Line("warm run of 1+1, awaited", us("async 1+1") / us("bare 1+1"), "x bare"),
        Line("  the bare engine in asyncio.to_thread", us("bare in a thread") / us("bare 1+1"), "x bare"),
        Line("host call, memory", blocking["memory echo"], "us", "<= 80"),
        Line("  relative to the bare engine", blocking["memory echo"] / bare_call, "x bare resume"),
        Line("host call with an effect, memory", blocking["memory send"], "us"),
        Line("host call, durable", blocking["durable echo"], "us", "<= 400"),
        Line("host call with an effect, durable", blocking["durable send"], "us"),
        Line("host call of an awaited run, plain function", call / bare_call, "x bare resume", "<= 3"),
        Line("host call of an awaited run, coroutine function", call_async / bare_call, "x bare resume"),
        Line("validate: syntax, names and types", us("validate") / 1000, "ms"),
        Line("snapshot, restore and a run", us("snapshot+restore") / us("bare snapshot+restore"), "x bare"),
        Line("100 sessions, two workers instead of one", scaling, "x", ">= 1.7"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    rounds = 4 if options.quick else 20
    timings = Timings()
    measure_blocking(timings, rounds)
    asyncio.run(measure_async(timings, rounds))
    scaling = statistics.median(
        busy_sessions(1, 100) / busy_sessions(2, 100) for _ in range(1 if options.quick else 3)
    )
    for line in report(timings, scaling):
        if options.json:
            print(json.dumps(line.__dict__))
        else:
            print(f"{line.name:<50}{line.value:>9.2f} {line.unit:<14}{line.target}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
