"""What many machines cost: turns on PostgreSQL and through Restate, beside the bare work they stand for.

`python bench/scale.py [--quick] [--restate]` prints a table of ratios with their goals and verdicts, then the
figures as one JSON object that `bench/scale_model.py` reads. It starts a PostgreSQL of its own, with `fsync`.
Rounds of a turn and of its floor alternate, because machines are noisy; compare ratios, not absolutes. The
floor of a turn is psycopg in autocommit: one statement, one round trip and one synchronous commit for each
step of the turn that must not be lost.

With `--restate`, as root on Linux, it also starts a Restate server on a network without a way out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from standfast import Agent, Runtime, ScriptedModel, tool
from standfast.events import TextStreamed, TurnCommitted
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.testing.postgres_server import PostgresServer

USER, REPLY, RESULT = "u" * 200, "r" * 400, "t" * 100
PLAIN = [200, 400]
EFFECTS = 10
TEN_EFFECTS = [200, *([60, 100] * EFFECTS), 400]
SESSIONS, TURNS = 100, 10
CHUNKS, CHUNK_S = 40, 0.1
HERE = Path(__file__).resolve()


class Row(NamedTuple):
    """One line of the table; `goal` is the most that is wanted, or the least if `at_least`."""

    name: str
    value: float
    goal: float
    unit: str
    note: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


# What the agents of this file do; workers load them from here


@tool(side_effect="external_system")
async def act(x: int) -> str:
    """Do something."""
    return RESULT


class Replies:
    """A model that always gives the same reply."""

    model_id = "bench:replies"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        yield TextArrived(text=REPLY)
        yield ReplyEnded(text=REPLY)

    async def close(self) -> None:
        pass


class Clockwork:
    """A model that streams the time, chunk by chunk."""

    model_id = "bench:clockwork"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        text = ""
        for _ in range(CHUNKS):
            await asyncio.sleep(CHUNK_S)
            piece = f"{time.time():.6f} "
            text += piece
            yield TextArrived(text=piece)
        yield ReplyEnded(text=text)

    async def close(self) -> None:
        pass


replies: Agent[None, str] = Agent(Replies(), name="replies")
clockwork: Agent[None, str] = Agent(Clockwork(), name="clockwork")
agents = [replies, clockwork]


# Measuring


class Floor:
    """Synchronous commits by psycopg in autocommit."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._db.execute("CREATE TABLE IF NOT EXISTS floor (id bigserial PRIMARY KEY, b bytea)")

    async def commit(self, sizes: list[int]) -> None:
        for size in sizes:
            self._db.execute("INSERT INTO floor (b) VALUES (%s)", (b"x" * size,))


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Await *work*; return how many milliseconds it took."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def compare(
    url: str, model: ScriptedModel, floor: Floor, sizes: list[int], rounds: int
) -> tuple[list[float], list[float]]:
    """Return the times of turns, and of the floor between them."""
    ours: list[float] = []
    bare: list[float] = []
    async with Runtime(url) as runtime:
        session = await runtime.session(f"s{len(sizes)}", agent=Agent(model, tools=[act]))
        for number in range(rounds + 20):
            spent = await timed(lambda: session.turn(USER).settled())
            floored = await timed(lambda: floor.commit(sizes))
            if number >= 20:
                ours.append(spent)
                bare.append(floored)
    return ours, bare


def calls(number: int) -> dict[str, object]:
    return {"tool_calls": [{"name": "act", "arguments": {"x": number}}]}


async def measure_turns(url: str, floor: Floor, rounds: int, figures: dict[str, float]) -> list[Row]:
    plain = ScriptedModel([{"text": REPLY}] * (rounds + 20), strict=False)
    ours, bare = await compare(url, plain, floor, PLAIN, rounds)
    figures["turn_ms"], figures["commit_ms"] = min(ours), min(bare) / len(PLAIN)
    note = f"{statistics.median(ours):.2f} ms to {statistics.median(bare):.2f} ms; at best {min(ours):.2f}"
    rows = [Row("plain turn / two bare commits", _ratio(ours, bare), 2.0, "x", note)]
    script = [*(calls(number) for number in range(EFFECTS)), {"text": REPLY}]
    rounds = max(10, rounds // 4)
    acting = ScriptedModel(script * (rounds + 20), strict=False)
    ours, bare = await compare(url, acting, floor, TEN_EFFECTS, rounds)
    figures["effect_ms"] = (min(ours) - figures["turn_ms"]) / EFFECTS
    note = f"{statistics.median(ours):.2f} ms to {statistics.median(bare):.2f} ms, {EFFECTS} effects"
    return [*rows, Row("turn with effects / as many bare commits", _ratio(ours, bare), 1.3, "x", note)]


def _ratio(ours: list[float], bare: list[float]) -> float:
    """Return the ratio of the medians, or of the fastest rounds if that is less: machines are busy."""
    return min(statistics.median(ours) / statistics.median(bare), min(ours) / min(bare))


async def measure_growth(url: str, turns: int, figures: dict[str, float]) -> Row:
    """Compare the last turns of a long session with its first ones."""
    late: list[float] = []
    early: list[float] = []
    async with Runtime(url) as runtime:
        model = ScriptedModel([{"text": REPLY}] * (turns + 20), strict=False)
        long = await runtime.session("long", agent=Agent(model))
        fresh = await runtime.session("fresh", agent=Agent(model))
        for session, before in ((fresh, 5), (long, turns)):
            for _ in range(before):
                await session.turn(USER).settled()
        for _ in range(20):  # both kinds of turns at the same time, under the same load
            late.append(await timed(lambda: long.turn(USER).settled()))
            early.append(await timed(lambda: fresh.turn(USER).settled()))
    ratio = _ratio(late, early)
    note = f"{statistics.median(late):.2f} ms to {statistics.median(early):.2f} ms"
    figures["growth"] = ratio
    return Row(f"turn {turns:,} / turn 10", ratio, 1.2, "x", note)


def start_worker(url: str, *options: str) -> subprocess.Popen[str]:
    words = ["worker", f"{HERE}:agents", "--store", url, "--concurrency", "100", *options]
    worker = subprocess.Popen(
        [sys.executable, "-m", "standfast", *words], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert worker.stdout is not None
    assert "started" in worker.stdout.readline()
    return worker


def stop(*workers: subprocess.Popen[str]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.wait(timeout=60)
        if worker.stdout is not None:
            worker.stdout.close()


async def measure_throughput(server: PostgresServer, figures: dict[str, float]) -> Row:
    """Queue inputs for many sessions and let two workers run them: turns between first begin and last end."""
    url = server.new_url()
    async with Runtime(url, keeper=False) as runtime:
        for number in range(SESSIONS):
            session = await runtime.session(f"s{number}", agent=replies)
            for _ in range(TURNS):
                await session.queue(USER)
        began, server_s = time.perf_counter(), server_cpu_s(server)
        workers = [start_worker(url) for _ in range(2)]
        starting_s = 2 * process_cpu_s(workers[1].pid)  # the first one may have begun to work
        while (counts := await runtime.turn_counts()).queued or counts.running or counts.stuck:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the turns run in other processes
        busy = time.perf_counter() - began
        worker_s = sum(process_cpu_s(worker.pid) for worker in workers) - starting_s
        server_s = server_cpu_s(server) - server_s
        await asyncio.to_thread(stop, *workers)
        turns = [turn for number in range(SESSIONS) for turn in await runtime.store.turns(f"s{number}")]
    assert len(turns) == SESSIONS * TURNS, f"{len(turns)} turns"
    span_s = (max(turn.ended_at or 0 for turn in turns) - min(turn.created_at for turn in turns)) / 1000
    figures["turns_per_s"] = rate = len(turns) / span_s
    figures["worker_cpu_ms"] = worker_ms = worker_s * 1000 / len(turns)
    figures["server_cpu_ms"] = server_ms = server_s * 1000 / len(turns)
    cores = os.cpu_count() or 1
    figures["turns_per_s_of_cores"] = cores * 1000 / (worker_ms + server_ms)
    note = (
        f"{span_s:.2f} s of {busy:.2f} s; CPU a turn: workers {worker_ms:.2f} ms, server {server_ms:.2f} ms, "
        f"so {cores} cores saturate at {figures['turns_per_s_of_cores']:.0f}; load {os.getloadavg()[0]:.0f}"
    )
    return Row(f"{SESSIONS} x {TURNS} turns, two workers", rate, 800, "turns/s", note, at_least=True)


async def measure_observing(url: str, figures: dict[str, float]) -> Row:
    """Stream in a worker for many sessions at once, observe all of them here, and compare the times."""
    late: list[float] = []

    async def observe(runtime: Runtime, name: str) -> None:
        async for one in runtime.session_handle(name).observe():
            if isinstance(one.event, TextStreamed):
                now = time.time()
                late.extend((now - float(stamp)) * 1000 for stamp in one.event.text.split())
            elif isinstance(one.event, TurnCommitted):
                return

    async with Runtime(url, keeper=False) as runtime:
        names = [f"stream{number}" for number in range(SESSIONS)]
        for name in names:
            await runtime.session(name, agent=clockwork)
        watching = [asyncio.ensure_future(observe(runtime, name)) for name in names]
        await asyncio.sleep(1)
        worker = start_worker(url)
        for name in names:
            await (await runtime.session(name, agent=clockwork)).queue("go")
        await asyncio.wait_for(asyncio.gather(*watching), 120)
        await asyncio.to_thread(stop, worker)
    figures["observer_ms"] = median = statistics.median(late)
    ninety = statistics.quantiles(late, n=20)[-2]
    rate = SESSIONS / CHUNK_S
    note = f"{len(late)} chunks of {SESSIONS} sessions, {rate:.0f}/s; 95 % within {ninety:.0f} ms"
    return Row("a chunk reaches another process", median, 50, "ms", note)


# Bytes and CPU time, for the capacity model


async def measure_bytes(server: PostgresServer, turns: int, figures: dict[str, float]) -> None:
    """Measure what a plain turn and an empty session write."""
    url = server.new_url()
    with psycopg.connect(server.url, autocommit=True) as db:
        async with Runtime(url) as runtime:
            model = ScriptedModel([{"text": REPLY}] * (turns + 20), strict=False)
            agent = Agent(model, name="bytes")
            session = await runtime.session("bytes", agent=agent)
            for _ in range(20):
                await session.turn(USER).settled()
            wal, size = _wal(db), _size(db, url)
            for _ in range(turns):
                await session.turn(USER).settled()
            figures["wal_bytes"] = (_wal(db) - wal) / turns
            figures["turn_bytes"] = (_size(db, url) - size) / turns
            size = _size(db, url)
            for number in range(turns):
                await runtime.session(f"empty-{number}", agent=agent)
            figures["session_bytes"] = (_size(db, url) - size) / turns


def _wal(db: psycopg.Connection[Any]) -> int:
    return int(db.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()[0])  # type: ignore[index]


def _size(db: psycopg.Connection[Any], url: str) -> int:
    """Return the bytes of the tables of a store, with their indexes."""
    schema = url.rpartition("=")[2]
    sql = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE relkind = 'r' AND relnamespace = "
    found = db.execute(f"{sql} %s::regnamespace", (schema,)).fetchone()
    return int(found[0]) if found is not None else 0


def process_cpu_s(pid: int) -> float:
    """Return the CPU time that a process, and children of it that have ended, have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def server_cpu_s(server: PostgresServer) -> float:
    """Return the CPU time that the server and its processes have used."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    spent = process_cpu_s(server.pid)
    for pid in children:
        with contextlib.suppress(OSError):  # it has ended
            spent += process_cpu_s(int(pid))
    return spent


# Restate


async def measure_restate(url: str, turn_ms: float, rounds: int, figures: dict[str, float]) -> Row:
    """Compare what Restate adds to a turn with a bare invocation that has one `ctx.run`."""
    sys.path.insert(0, str(HERE.parents[1] / "tests" / "worker"))
    from hosts import Network  # the servers that tests use
    from restate_host import Restate

    bare: list[float] = []
    ours: list[float] = []
    with tempfile.TemporaryDirectory() as home, Network() as network, Restate(network, Path(home)) as restate:
        where = {"admin": restate.nodes[0].admin, "ingress": restate.nodes[0].ingress}
        here = restate.here
        worker = start_worker(
            url, "--engine", "restate", "--listen", f"{here}:9180", "--advertise",
            f"http://{here}:9180", "--admin", where["admin"], "--ingress", where["ingress"],
        )  # fmt: skip
        service = start_bare_service(f"{here}:9181")
        try:
            _register(where["admin"], f"http://{here}:9181")
            for number in range(rounds + 20):
                body = {"prompt": USER, "agent": "replies"}
                one = _post(f"{where['ingress']}/standfast_session/bench/turn", body)
                two = _post(f"{where['ingress']}/bare/run", {})
                if number >= 20:
                    ours.append(one)
                    bare.append(two)
        finally:
            stop(worker)
            service.kill()
            service.wait()
    added = [one - turn_ms for one in ours]
    figures["restate_turn_ms"], figures["restate_bare_ms"] = statistics.median(ours), statistics.median(bare)
    note = f"turn {statistics.median(ours):.2f} ms, invocation {statistics.median(bare):.2f} ms"
    return Row("what Restate adds to a turn / bare invocation", _ratio(added, bare), 1.3, "x", note)


def start_bare_service(listen: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE), "--bare-service", listen])


def _post(url: str, body: dict[str, object]) -> float:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    return (time.perf_counter() - began) * 1000


def _register(admin: str, where: str) -> None:
    for _ in range(100):
        try:
            _post(f"{admin}/deployments", {"uri": where, "force": True})
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"Restate at {admin} did not register {where}")


def serve_bare(listen: str) -> None:
    """Serve an invocation that does nothing but one durable step."""
    import hypercorn.asyncio
    import restate
    from hypercorn.config import Config

    service = restate.Service("bare")

    @service.handler()
    async def run(ctx: Any, body: Any) -> str:
        return str(await ctx.run_typed("step", lambda: RESULT))

    config = Config()
    config.bind, config.keep_alive_max_requests = [listen], 10**6
    asyncio.run(hypercorn.asyncio.serve(restate.app([service]), config))


# The table


def show(rows: list[Row]) -> None:
    lines = [("measured", "value", "goal", "", "how")]
    for row in rows:
        sign = ">=" if row.at_least else "<="
        value = f"{row.value:,.0f}" if row.value >= 10 else f"{row.value:.2f}"
        lines.append(
            (
                row.name,
                f"{value} {row.unit}",
                f"{sign} {row.goal:g}",
                "met" if row.met else "MISSED",
                row.note,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    for line in lines:
        print(*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4], sep="  ")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="fewer rounds")
    options.add_argument("--restate", action="store_true", help="also measure Restate")
    options.add_argument("--bare-service", metavar="HOST:PORT", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.bare_service:
        serve_bare(given.bare_service)
        return
    rounds, long = (60, 200) if given.quick else (400, 1_000)
    figures: dict[str, float] = {}
    rows: list[Row] = []

    async def measure(server: PostgresServer) -> None:
        floor = Floor(server.url)
        rows.extend(await measure_turns(server.new_url(), floor, rounds, figures))
        await measure_bytes(server, long // 2, figures)
        rows.append(await measure_growth(server.new_url(), long, figures))
        rows.append(await measure_throughput(server, figures))
        rows.append(await measure_observing(server.new_url(), figures))
        if given.restate:
            turn_ms = figures["turn_ms"]
            rows.append(await measure_restate(server.new_url(), turn_ms, rounds, figures))

    with PostgresServer() as server:
        asyncio.run(measure(server))
    show(rows)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
