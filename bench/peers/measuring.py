"""The workloads that every framework runs, and how they are measured. Standard library only.

A file `bench_NAME.py` describes one framework: it subclasses `Framework` and `Runner` and calls `main`. It
prints one JSON object a line: framework, variant, workload, metric, value.

Workloads
---------
`import`: a fresh process that imports the names an agent needs.
`turn_plain`: one model call. `turn_tool1`: two model calls, one tool call. `turn_tool10_seq`: eleven and ten.
`turn_tool10_par`: two model calls, ten tool calls in one reply. Each turn is the first of a new session.
`growth`: 1,000 plain turns of one session (quick: 100). `reopen_1000`: opening its store again, and one turn.
`stream_10k`: one reply of 10,000 chunks, each delivered to the caller.
`concurrent_100x10`: 100 sessions at once, ten plain turns each. `idle_sessions`: memory of one of 1,000
sessions that have had five turns each. `code_step_1call`: a turn with code that calls a tool once.
`hitl_pause_resume`: a turn that stops for an approval, and from the decision to the answer.

The suffix `_sqlite` means the framework's own persistence on disk, in whatever format; `_mem` or no suffix
means none.

Rules
-----
Models are fakes in the process: nothing is sent over a network. User text has 200 characters, a reply 400, a
tool's argument is `{"x": int}`, its result has 100. Each group of workloads runs in a process of its own.
CPU time is that of the process; the workers of a code engine are other processes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

USER = ("u" * 9 + " ") * 20
REPLY = ("a" * 9 + " ") * 40
RESULT = ("t" * 9 + " ") * 10
CHUNK = "tok4 "
TURNS = {"plain": 300, "tool1": 200, "tool10_seq": 60, "tool10_par": 100}
CALLS = {"plain": 0, "tool1": 1, "tool10_seq": 10, "tool10_par": 10, "code_step_1call": 1, "hitl": 1}
"""The tool calls of one turn."""
MARKS = (10, 100, 300, 1000)
"""The turns of a growing session whose cost is reported."""
GROWTH_SECONDS = 900
"""A session that takes longer to grow is stopped, and reports how far it came."""

tool_calls = itertools.count()
"""Advanced by every tool call, so that a framework which skips or repeats one is noticed."""


class Unsupported(Exception):
    """The framework does not have what the workload measures."""


class Runner:
    """An agent of one framework. Methods may be coroutine functions."""

    def new_session(self, name: str) -> Any:
        raise NotImplementedError

    def turn(self, session: Any, text: str) -> Any:
        raise NotImplementedError

    def stream(self, session: Any, text: str) -> Any:
        """Run a turn, receive its reply chunk by chunk and return their number."""
        raise Unsupported("no streaming")

    def reopen(self, name: str) -> Any:
        """Return the session of this name that an earlier runner stored."""
        raise Unsupported("no stored sessions")

    def pause(self, name: str) -> Any:
        """Run a turn of a new session until it waits for an approval; return what `resume` needs."""
        raise Unsupported("no approvals")

    def resume(self, paused: Any) -> Any:
        """Approve the call and return the answer of the turn."""
        raise Unsupported("no approvals")

    def close(self) -> Any:
        pass


class Framework:
    """What is measured: how to import it, and how to make an agent for a kind of turn."""

    name = "?"
    import_statement = "pass"
    packages: tuple[str, ...] = ()
    threads = False
    """Whether turns block, so that sessions run at once in threads."""

    def make(self, kind: str, path: str | None, chunks: int) -> Any:
        """Return a `Runner` for turns of `kind` that keeps sessions at `path`, or in memory."""
        raise NotImplementedError


def look_up() -> str:
    """Do what every tool does."""
    next(tool_calls)
    return RESULT


def scripted_calls(kind: str, results: int) -> list[int]:
    """Return the arguments of the calls in the next reply of a turn of `kind` that has `results` so far."""
    if kind == "tool10_par":
        return [] if results else list(range(10))
    if kind in ("tool1", "tool10_seq", "hitl"):
        return [results] if results < CALLS[kind] else []
    return []


def numbered(text: str, number: int) -> str:
    """Return `text` beginning with `number`: some frameworks drop repeated messages."""
    return f"{number:06d}{text[6:]}"


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def resident_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def stored_bytes(path: str) -> int:
    """Return the size of a database with its logs, or of a directory, at `path`."""
    if os.path.isdir(path):
        return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    names = (path + suffix for suffix in ("", "-wal", "-shm", "-journal"))
    return sum(os.path.getsize(name) for name in names if os.path.exists(name))


class Stopwatch:
    """Wall and CPU time of each round, in milliseconds."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    async def time(self, work: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = await settled(work())
        self.wall.append((time.perf_counter() - wall) * 1e3)
        self.cpu.append((time.process_time() - cpu) * 1e3)
        return result


class Measurement:
    """One run of one group of workloads on one framework."""

    def __init__(self, framework: Framework, *, variant: str, work: Path, quick: bool) -> None:
        self.framework = framework
        self.variant = variant
        self.work = work
        self.quick = quick

    def report(self, workload: str, metric: str, value: float | str) -> None:
        line = {
            "framework": self.framework.name,
            "variant": self.variant,
            "workload": workload,
            "metric": metric,
            "value": round(value, 6) if isinstance(value, float) else value,
        }
        print(json.dumps(line), flush=True)

    async def attempt(self, workload: str, work: Awaitable[None]) -> None:
        """Run a workload; report why it failed instead of its figures if it does."""
        try:
            await work
        except Unsupported as reason:
            self.report(workload, "not_supported", str(reason))
        except Exception as error:
            traceback.print_exc()
            self.report(workload, "error", f"{type(error).__name__}: {error}"[:300])

    def new_path(self) -> str:
        return os.path.join(tempfile.mkdtemp(prefix="db-", dir=self.work), "bench.db")

    async def make(self, kind: str, path: str | None = None, chunks: int = 0) -> Runner:
        runner: Runner = await settled(self.framework.make(kind, path, chunks))
        return runner

    # Imports

    async def measure_import(self) -> None:
        for package in self.framework.packages:
            self.report("version", package, version(package))
        statement = self.framework.import_statement
        rounds = 3 if self.quick else 9
        in_process(statement)
        bare = [in_process("pass") for _ in range(rounds)]
        whole = [in_process(statement) for _ in range(rounds)]
        for index, metric in enumerate(("seconds_median", "cpu_seconds_median")):
            value = statistics.median(t[index] for t in whole) - statistics.median(t[index] for t in bare)
            self.report("import", metric, value)
        modules, kilobytes = loaded_by(statement)
        self.report("import", "modules", modules)
        self.report("import", "rss_kb", kilobytes)

    # Turns

    async def measure_turns(self) -> None:
        for kind, rounds in TURNS.items():
            await self.attempt(f"turn_{kind}", self.turns(f"turn_{kind}", kind, rounds))
            name = f"turn_{kind}_sqlite"
            await self.attempt(name, self.turns(name, kind, rounds, self.new_path()))

    async def measure_code(self) -> None:
        await self.attempt("code_step_1call", self.turns("code_step_1call", "code_step_1call", 100))
        name = "code_step_1call_sqlite"
        await self.attempt(name, self.turns(name, "code_step_1call", 100, self.new_path()))

    async def turns(self, workload: str, kind: str, rounds: int, path: str | None = None) -> None:
        rounds = max(5, rounds // 10) if self.quick else rounds
        warm_up = max(3, rounds // 10)
        runner, watch = await self.make(kind, path), Stopwatch()
        before = next(tool_calls)
        for number in range(warm_up + rounds):
            if number == warm_up:
                watch = Stopwatch()
            session = await settled(runner.new_session(f"s{number}"))
            await watch.time(lambda session=session: runner.turn(session, USER))
        called = (next(tool_calls) - before - 1) / (warm_up + rounds)
        await settled(runner.close())
        if called != CALLS[kind]:
            raise RuntimeError(f"a turn must call {CALLS[kind]} tools, called {called}")
        self.report(workload, "cpu_ms_median", statistics.median(watch.cpu))
        self.report(workload, "ms_median", statistics.median(watch.wall))
        if path:
            self.report(workload, "bytes_per_turn", stored_bytes(path) / (warm_up + rounds))

    # One session that grows

    async def measure_growth(self) -> None:
        await self.attempt("growth_mem", self.growth("growth_mem", None))
        path = self.new_path()
        await self.attempt("growth_sqlite", self.growth("growth_sqlite", path))
        name = "reopen_100_sqlite" if self.quick else "reopen_1000_sqlite"
        await self.attempt(name, self.reopening(name, path))

    async def growth(self, workload: str, path: str | None) -> None:
        turns = 100 if self.quick else 1000
        runner, watch = await self.make("plain", path), Stopwatch()
        session = await settled(runner.new_session("grow"))
        started = time.perf_counter()
        for number in range(1, turns + 1):
            text = numbered(USER, number)
            await watch.time(lambda text=text: runner.turn(session, text))
            if path and number in MARKS:
                self.report(workload, f"bytes_at_{number}", stored_bytes(path))
            if time.perf_counter() - started > GROWTH_SECONDS:
                self.report(workload, "stopped_at_turn", number)
                break
        await settled(runner.close())
        if path:
            self.report(workload, f"bytes_after_{len(watch.cpu)}_turns", stored_bytes(path))
        for mark in MARKS:
            if mark <= len(watch.cpu):
                first = mark - (4 if mark <= 10 else 20)
                self.report(workload, f"cpu_ms_at_{mark}", statistics.median(watch.cpu[first:mark]))
                self.report(workload, f"ms_at_{mark}", statistics.median(watch.wall[first:mark]))

    async def reopening(self, workload: str, path: str) -> None:
        if not stored_bytes(path):
            raise Unsupported("no stored sessions")
        watch = Stopwatch()
        for number in range(5):
            await watch.time(lambda number=number: self.reopen(path, 2000 + number))
        self.report(workload, "ms_median", statistics.median(watch.wall))
        self.report(workload, "cpu_ms_median", statistics.median(watch.cpu))

    async def reopen(self, path: str, number: int) -> None:
        runner = await self.make("plain", path)
        session = await settled(runner.reopen("grow"))
        await settled(runner.turn(session, numbered(USER, number)))
        await settled(runner.close())

    # Memory, streams, many sessions

    async def measure_idle(self) -> None:
        await self.attempt("idle_sessions_mem", self.idle("idle_sessions_mem", None))
        await self.attempt("idle_sessions_sqlite", self.idle("idle_sessions_sqlite", self.new_path()))

    async def idle(self, workload: str, path: str | None) -> None:
        sessions = 100 if self.quick else 1000
        runner = await self.make("plain", path)
        for number in range(20):
            await settled(runner.turn(await settled(runner.new_session(f"w{number}")), USER))
        gc.collect()
        before, kept = resident_kb(), []
        for number in range(sessions):
            kept.append(await settled(runner.new_session(f"i{number}")))
            for turn in range(5):
                await settled(runner.turn(kept[-1], numbered(USER, turn)))
        gc.collect()
        self.report(workload, "kb_per_session", (resident_kb() - before) / sessions)
        await settled(runner.close())

    async def measure_stream(self) -> None:
        await self.attempt("stream_10k", self.stream("stream_10k", None))
        await self.attempt("stream_10k_sqlite", self.stream("stream_10k_sqlite", self.new_path()))

    async def stream(self, workload: str, path: str | None) -> None:
        chunks = 10_000
        runner, watch = await self.make("stream", path, chunks), Stopwatch()
        for number in range(2 if self.quick else 4):
            if number == 1:
                watch = Stopwatch()
            session = await settled(runner.new_session(f"st{number}"))
            seen = await watch.time(lambda session=session: runner.stream(session, USER))
        await settled(runner.close())
        if seen < chunks:
            raise RuntimeError(f"the caller must receive {chunks} chunks, received {seen}")
        self.report(workload, "cpu_us_per_chunk", statistics.median(watch.cpu) / chunks * 1e3)
        self.report(workload, "us_per_chunk", statistics.median(watch.wall) / chunks * 1e3)

    async def measure_concurrent(self) -> None:
        name = "concurrent_100x10"
        await self.attempt(name, self.concurrent(name, None))
        await self.attempt(f"{name}_sqlite", self.concurrent(f"{name}_sqlite", self.new_path()))

    async def concurrent(self, workload: str, path: str | None) -> None:
        sessions, turns = (20, 5) if self.quick else (100, 10)
        runner, watch = await self.make("plain", path), Stopwatch()
        outcomes = await watch.time(lambda: self.run_at_once(runner, sessions, turns))
        await settled(runner.close())
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        self.report(workload, "turns_per_s", sessions * turns / watch.wall[0] * 1e3)
        self.report(workload, "cpu_ms_per_turn", watch.cpu[0] / sessions / turns)
        self.report(workload, "failed_sessions", len(failures))
        if failures:
            self.report(workload, "first_failure", repr(failures[0])[:300])

    async def run_at_once(self, runner: Runner, sessions: int, turns: int) -> list[Any]:
        async def run(number: int) -> None:
            session = await settled(runner.new_session(f"c{number}"))
            for turn in range(turns):
                await settled(runner.turn(session, numbered(USER, turn)))

        def run_in_thread(number: int) -> None:
            session = runner.new_session(f"c{number}")
            for turn in range(turns):
                runner.turn(session, numbered(USER, turn))

        if not self.framework.threads:
            return await asyncio.gather(*map(run, range(sessions)), return_exceptions=True)
        with ThreadPoolExecutor(sessions) as pool:
            futures = [pool.submit(run_in_thread, number) for number in range(sessions)]
            return [future.exception() for future in futures]

    # Approvals

    async def measure_hitl(self) -> None:
        name = "hitl_pause_resume"
        await self.attempt(name, self.approvals(name, None))
        await self.attempt(f"{name}_sqlite", self.approvals(f"{name}_sqlite", self.new_path()))

    async def approvals(self, workload: str, path: str | None) -> None:
        rounds = 10 if self.quick else 50
        runner, pauses, resumes = await self.make("hitl", path), Stopwatch(), Stopwatch()
        for number in range(3 + rounds):
            if number == 3:
                pauses, resumes = Stopwatch(), Stopwatch()
            before = next(tool_calls)
            paused = await pauses.time(lambda number=number: runner.pause(f"h{number}"))
            answer = await resumes.time(lambda paused=paused: runner.resume(paused))
            if answer != REPLY or next(tool_calls) != before + 2:
                raise RuntimeError(f"the tool must run once and the turn must end, answered {answer!r}")
        await settled(runner.close())
        for name, watch in (("pause", pauses), ("resume", resumes)):
            self.report(workload, f"{name}_ms", statistics.median(watch.wall))
            self.report(workload, f"{name}_cpu_ms", statistics.median(watch.cpu))


GROUPS = {
    "import": Measurement.measure_import,
    "turns": Measurement.measure_turns,
    "growth": Measurement.measure_growth,
    "idle": Measurement.measure_idle,
    "stream": Measurement.measure_stream,
    "concurrent": Measurement.measure_concurrent,
    "code": Measurement.measure_code,
    "hitl": Measurement.measure_hitl,
}


def in_process(code: str) -> tuple[float, float]:
    """Return the wall and CPU seconds of a fresh process that runs `code`."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded_by(statement: str) -> tuple[int, int]:
    """Return the number of modules and the resident kilobytes of a fresh process after `statement`."""
    code = f"{statement}\nimport sys\nprint(len(sys.modules), open('/proc/self/statm').read().split()[1])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, pages = printed.stdout.split()[-2:]
    return int(modules), int(pages) * os.sysconf("SC_PAGE_SIZE") // 1024


def main(framework: Framework, variant: str = "default") -> None:
    """Measure the groups that the command line names, each in a process of its own."""
    parser = argparse.ArgumentParser(description=f"Measure {framework.name}.")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"groups: {','.join(GROUPS)}")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions of the same workloads")
    arguments = parser.parse_args()
    groups = arguments.only.split(",")
    if unknown := [group for group in groups if group not in GROUPS]:
        parser.error(f"unknown group {unknown[0]!r}; write some of {', '.join(GROUPS)}")
    if len(groups) > 1:
        for group in groups:
            command = [
                sys.executable,
                sys.argv[0],
                "--only",
                group,
                *(["--quick"] if arguments.quick else []),
            ]
            subprocess.run(command, check=True)
        return
    with tempfile.TemporaryDirectory(prefix="standfast-peers-") as work:
        measurement = Measurement(framework, variant=variant, work=Path(work), quick=arguments.quick)
        asyncio.run(GROUPS[groups[0]](measurement))
