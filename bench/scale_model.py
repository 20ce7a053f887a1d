"""What a large installation needs: a simulation of workers and PostgreSQL, fed with measured figures.

`python bench/scale_model.py [--figures FILE] [--sessions 1e6] [--turns-per-s 1e4] [--server-cores 32] ...`

Theory of operation
-------------------
A partition is one PostgreSQL server with the workers that use it. A session never needs another partition, so
an installation is as many of them as its load needs. The simulation runs one partition, event by event. Turns
arrive at random. A turn is a series of commits: its begin, two for each effect, its end; between them it
waits for the model. A commit first needs its worker's CPU. The worker's writer sends what has gathered as one
group, and the next group when that one is answered, as `store.sql.group_writer` does. The server spends CPU
on every commit of the group, on one core, and then waits for the disk, which confirms all groups that wait
in one flush. The rate is raised until commits take too long; the busiest component is the one that saturates.

FILE has the JSON object that `bench/scale.py` prints last. Without it, figures of one run are used.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MEASURED = {
    "commit_ms": 0.31,
    "worker_cpu_ms": 0.74,
    "server_cpu_ms": 0.44,
    "wal_bytes": 4_610.0,
    "turn_bytes": 2_700.0,
    "session_bytes": 980.0,
}
"""What a plain turn cost in November 2026 on a machine of two slow cores, if no file says otherwise."""

CONNECTIONS = 11
"""Of one worker process: one writes, up to eight read, one listens, one announces."""

PLAIN_COMMITS = 2
ROUND_TRIP_MS = 0.2
SLOWEST_MS = 50.0
"""A partition is saturated when one commit in twenty takes longer."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the installation must carry."""

    sessions: float
    turns_per_s: float
    effects: float
    model_s: float
    turns_per_session: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What a partition has."""

    server_cores: int
    workers: int
    flush_ms: float
    worker_ms: float
    server_ms: float
    commit_bytes: float
    disk_mb_s: float


@dataclass(slots=True)
class Worker:
    """A worker process: one core, and one group of commits on its way."""

    waiting: deque[float] = field(default_factory=deque)
    busy_until: float = 0.0
    sending: bool = False


class Partition:
    """A server and its workers, at one rate of commits. Times are in milliseconds."""

    def __init__(self, machine: Machine, commits_per_s: float, seed: int = 1) -> None:
        self._machine = machine
        self._gap_ms = 1000 / commits_per_s
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._workers = [Worker() for _ in range(machine.workers)]
        self._cores = [0.0] * machine.server_cores
        self._flushing = False
        self._unflushed: list[tuple[Worker, list[float]]] = []
        self.now = 0.0
        self.took: list[float] = []
        self.spent = {"worker CPU": 0.0, "server CPU": 0.0}

    def run(self, seconds: float) -> None:
        at = self._random.expovariate(1 / self._gap_ms)
        while at < seconds * 1000:
            self._at(at, self._arrive)
            at += self._random.expovariate(1 / self._gap_ms)
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def utilization(self) -> dict[str, float]:
        """Return how busy each component is. The disk is full when its bytes are: flushes share it."""
        written = len(self.took) * self._machine.commit_bytes / (self._machine.disk_mb_s * 1000)
        return {
            "worker CPU": self.spent["worker CPU"] / (self.now * len(self._workers)),
            "server CPU": self.spent["server CPU"] / (self.now * len(self._cores)),
            "disk": written / self.now,
        }

    def percentile(self, share: float) -> float:
        return sorted(self.took)[int(share * (len(self.took) - 1))]

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def _arrive(self) -> None:
        worker, began = self._random.choice(self._workers), self.now
        worker.busy_until = max(self.now, worker.busy_until) + self._machine.worker_ms
        self.spent["worker CPU"] += self._machine.worker_ms

        def ready() -> None:
            worker.waiting.append(began)
            self._send(worker)

        self._at(worker.busy_until, ready)

    def _send(self, worker: Worker) -> None:
        if worker.sending or not worker.waiting:
            return
        worker.sending = True
        group = list(worker.waiting)
        worker.waiting.clear()
        core = min(range(len(self._cores)), key=self._cores.__getitem__)
        work_ms = self._machine.server_ms * len(group)
        self._cores[core] = max(self.now, self._cores[core]) + work_ms
        self.spent["server CPU"] += work_ms

        def flush() -> None:
            self._unflushed.append((worker, group))
            self._flush()

        self._at(self._cores[core] + 2 * ROUND_TRIP_MS, flush)

    def _flush(self) -> None:
        if self._flushing or not self._unflushed:
            return
        self._flushing = True
        groups, self._unflushed = self._unflushed, []

        def answer() -> None:
            self._flushing = False
            for worker, group in groups:
                self.took.extend(self.now - began for began in group)
                worker.sending = False
                self._send(worker)
            self._flush()

        self._at(self.now + self._machine.flush_ms, answer)


def capacity(machine: Machine, seconds: float) -> tuple[float, Partition]:
    """Return the highest rate of commits at which a partition answers in time, and its run."""
    best: tuple[float, Partition] | None = None
    rate = 100.0
    step = 2.0
    while step > 1.04:
        partition = Partition(machine, rate * step)
        partition.run(seconds)
        if partition.percentile(0.95) <= SLOWEST_MS:
            rate, best = rate * step, (rate * step, partition)
        else:
            step = math.sqrt(step)
    if best is None:
        raise SystemExit("even 100 commits/s are too many for this machine")
    return best


def show(load: Load, machine: Machine, figures: dict[str, float], seconds: float) -> None:
    per_turn = PLAIN_COMMITS + 2 * load.effects
    rate, partition = capacity(machine, seconds)
    turns = rate / per_turn
    partitions = math.ceil(load.turns_per_s / turns)
    workers = partitions * machine.workers
    use = partition.utilization()
    first = max(use, key=lambda name: use[name])
    stored = load.sessions * load.turns_per_session
    size = load.sessions * figures["session_bytes"] + stored * figures["turn_bytes"]
    wal = load.turns_per_s * figures["wal_bytes"] * per_turn / PLAIN_COMMITS
    half = partition.percentile(0.5)
    busy = ", ".join(f"{name} {share:.0%}" for name, share in use.items())
    at_once = load.turns_per_s * load.model_s * (1 + load.effects)
    lines = {
        "one partition": f"{turns:,.0f} turns/s, {rate:,.0f} commits/s; half of them take {half:.1f} ms",
        "saturates first": f"{first} ({busy})",
        "partitions": f"{partitions}, of {machine.server_cores} server cores and {machine.workers} workers",
        "worker processes": f"{workers:,}, one core each",
        "connections": f"{machine.workers * CONNECTIONS:,} to each server",
        "turns at once": f"{at_once:,.0f}, {at_once / workers:,.0f} in a worker",
        "rows": f"{load.sessions + 2 * stored:,.0f}: one for a session, two for each of {stored:,.0f} turns",
        "bytes in tables": f"{size / 1e9:,.0f} GB, {size / 1e9 / partitions:,.1f} GB in a partition",
        "write-ahead log": f"{wal / 1e6:,.0f} MB/s, {wal / 1e6 / partitions:,.1f} MB/s in a partition",
    }
    print(f"{load.sessions:,.0f} sessions, {load.turns_per_s:,.0f} turns/s of {load.effects:g} effects each")
    for name, text in lines.items():
        print(f"  {name:18}{text}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--figures", type=Path, help="what bench/scale.py printed last")
    options.add_argument("--sessions", type=float, default=1e6)
    options.add_argument("--turns-per-s", type=float, default=1e4)
    options.add_argument("--effects", type=float, default=0, help="calls with an effect in a turn")
    options.add_argument("--model-s", type=float, default=3, help="how long a model takes to reply")
    options.add_argument("--turns-per-session", type=float, default=20)
    options.add_argument("--server-cores", type=int, default=16)
    options.add_argument("--workers", type=int, default=24, help="worker processes of a partition")
    options.add_argument("--disk-mb-s", type=float, default=500, help="what a server's disk writes")
    options.add_argument("--seconds", type=float, default=2, help="how long each rate is simulated")
    given = options.parse_args()
    figures = dict(MEASURED)
    if given.figures is not None:
        figures |= json.loads(given.figures.read_text().strip().splitlines()[-1])
    load = Load(given.sessions, given.turns_per_s, given.effects, given.model_s, given.turns_per_session)
    machine = Machine(
        server_cores=given.server_cores,
        workers=given.workers,
        flush_ms=figures["commit_ms"],
        worker_ms=figures["worker_cpu_ms"] / PLAIN_COMMITS,
        server_ms=figures["server_cpu_ms"] / PLAIN_COMMITS,
        commit_bytes=figures["wal_bytes"] / PLAIN_COMMITS,
        disk_mb_s=given.disk_mb_s,
    )
    show(load, machine, figures, given.seconds)


if __name__ == "__main__":
    main()
