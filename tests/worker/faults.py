"""Workers on two hosts under random faults, with an external ledger of their tools' effects.

`make faults` runs it by hand:

    make faults ENGINE=restate SECONDS=600 SEED=7

A seed selects the faults and the load; their timing also depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shop_app
from balancer import Balancer
from fleet import Fleet, WorkerProcess
from hosts import Host, Network
from restate_host import Restate

from standfast import Runtime
from standfast.errors import StoreError
from standfast.model.message import UserMessage, text_of
from standfast.model.outcome import Finished
from standfast.model.session import TurnState
from standfast.testing.postgres_server import PostgresServer

SESSIONS = 200
LEASE_S = 3.0
STALLED_S = 120.0
"""If nothing ends for this long after the faults, something is stuck."""
LOADERS = 8
STARTS = ("charge", "look", "later")
MAX_BACKLOG = 300
"""Orders that are submitted while others wait; a slow machine gets fewer of them."""
ONCE = ("charge", "later")
"""The tools whose effects must not be repeated."""
EVIDENCE = {"charged": "charged", "shipped": "later"}
"""The first word of an answer, with the entry of the ledger that it needs."""


class Faults:
    """Four workers on two hosts, a database, optionally Restate, and the faults injected into them."""

    def __init__(
        self,
        fleet: Fleet,
        server: PostgresServer,
        hosts: list[Host],
        seed: str,
        restate: tuple[Restate, Balancer] | None = None,
    ) -> None:
        self.fleet = fleet
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.restate = None if restate is None else restate[0]
        self._advertise = "" if restate is None else restate[1].url
        self._server, self._hosts = server, hosts
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._node_is_down = False
        self._workers = [(host, self._start(host)) for host in (*hosts, *hosts)]
        for _, worker in self._workers:
            worker.wait_started()

    def _start(self, host: Host) -> WorkerProcess:
        words: list[object] = ["--lease-s", LEASE_S, "--grace-s", 1]
        if self.restate is not None:
            words += ["--engine", "restate", "--listen", f"{host.address}:9080"]
            words += ["--advertise", self._advertise]
            words += ["--admin", self.restate.admin, "--ingress", self.restate.ingress]
        store = self.fleet.store.replace("127.0.0.1", host.network.here)
        return self.fleet.launch(*words, store=store, inside=host.inside, WORKER_WORK_S=0.02)

    def inject(self) -> None:
        """Inject one random fault."""
        self.revive()
        kinds = {self.kill: 4, self.stop: 3, self.cut: 2, self.restart_database: 1}
        if self.restate is not None and not self._node_is_down:
            kinds[self.kill_restate_node] = 2
        new = [fault for fault in kinds if not self.done[fault.__name__]]  # each fault occurs at least once
        fault = self.random.choice(new or self.random.choices(list(kinds), list(kinds.values())))
        fault()
        self.done[fault.__name__] += 1

    def revive(self) -> None:
        """Restart workers that have ended, as a supervisor would."""
        for number, (host, worker) in enumerate(self._workers):
            if worker.process.poll() is not None:
                worker.close()
                self._workers[number] = (host, self._start(host))

    def kill(self) -> None:
        """SIGKILL a worker."""
        self.random.choice(self._workers)[1].kill()
        self.revive()

    def stop(self) -> None:
        """SIGSTOP a worker for longer than its lease."""
        worker = self.random.choice(self._workers)[1]
        worker.signal(signal.SIGSTOP)
        self._in(LEASE_S + self.random.uniform(0.5, 3), lambda: worker.signal(signal.SIGCONT))

    def cut(self) -> None:
        """Cut a host, with its workers, off from the database and from Restate."""
        host = self.random.choice(self._hosts)
        host.cut()
        self._in(self.random.uniform(0.5, 2 * LEASE_S), lambda: host.cut("up"))

    def restart_database(self) -> None:
        """Stop PostgreSQL, cleanly or by a crash, and restart it."""
        self._server.stop(self.random.choice((signal.SIGINT, signal.SIGQUIT)))
        self._server.start()

    def kill_restate_node(self) -> None:
        """SIGKILL one of Restate's servers and restart it after a while; the others keep running."""
        assert self.restate is not None
        node, nodes = self.random.choice(self.restate.nodes), self.restate.nodes
        node.kill()
        self._node_is_down = True

        def start() -> None:
            node.start(nodes)
            node.wait_started()
            self._node_is_down = False

        self._in(self.random.uniform(1, 2 * LEASE_S), start)

    def _in(self, seconds: float, undo: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, undo))

    def undo(self, until: float = float("inf")) -> None:
        """Undo the faults whose time is up, or all of them."""
        due = [one for one in self._later if one[0] <= until]
        self._later = [one for one in self._later if one[0] > until]
        for _, undo in due:
            undo()


class Load:
    """Orders for many sessions; each is submitted under its own id until it is accepted."""

    def __init__(self, runtime: Runtime, faults: Faults) -> None:
        self._runtime, self._restate, self._random = runtime, faults.restate, faults.random
        self.orders: dict[str, str] = {}
        """Each order, with its session."""
        self.begun = 0
        self.refused: list[str] = []

    async def put(self) -> None:
        number = self._random.randrange(SESSIONS)
        name = self._random.choice(("charge", "charge", "look", "later" if number % 2 else "look"))
        order, session_id = f"{name[:2].upper()}{len(self.orders)}", f"s{number}"
        self.orders[order] = session_id
        while True:
            try:
                if await self._submit(session_id, f"{name} {order}", order, number):
                    return
            except (StoreError, OSError):
                pass
            await asyncio.sleep(0.05)

    async def _submit(self, session_id: str, prompt: str, order: str, number: int) -> bool:
        if self._restate is None:
            session = await self._runtime.session(session_id, agent=shop_app.shop)
            await session.queue(prompt, id=f"in-{order}")
            return True
        # A turn is refused while another one waits, so a session whose turns wait gets all of them queued.
        handler = "queue" if number % 2 else "turn"
        request = {"prompt": prompt, "agent": "shop", "idempotency_key": order}
        node = random.randrange(len(self._restate.nodes))
        status, answer = await asyncio.to_thread(
            self._restate.call, session_id, handler, request, key=order, send=True, node=node
        )
        if status == 404 and "not found, make sure to register" in str(answer):
            return False  # a node that has just started knows no services yet; retry with the same key
        if 400 <= status < 500:
            self.refused.append(f"{order} was refused: {status} {answer}")
        return status < 500


@dataclass
class Report:
    """The faults, the counts and the findings of a run."""

    title: str
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        found = "".join(f"\n    {finding}" for finding in self.findings) or " none"
        return (
            f"{self.title}\n  faults: {self.faults.total()}: {faults}\n  counts: {counts}\n  findings:{found}"
        )


async def run(faults: Faults, seconds: float, title: str) -> Report:
    """Submit orders and inject faults for a while, let everything settle, and return a report."""
    report = Report(title, faults.done)
    async with Runtime(faults.fleet.store, keeper=False) as runtime:
        load, end = Load(runtime, faults), time.monotonic() + seconds

        async def submit() -> None:
            while time.monotonic() < end:
                if len(load.orders) < load.begun + MAX_BACKLOG:
                    await load.put()
                await asyncio.sleep(0.2)

        async def undo() -> None:
            while True:
                await asyncio.sleep(0.1)
                await asyncio.to_thread(faults.undo, time.monotonic())

        undoing = asyncio.ensure_future(undo())
        loading = asyncio.gather(*(submit() for _ in range(LOADERS)))
        while time.monotonic() < end:
            await asyncio.sleep(faults.random.uniform(0.5, 3))
            await asyncio.to_thread(faults.inject)
            load.begun = len({one.order for one in faults.fleet.effects(*STARTS)})
        undoing.cancel()
        await asyncio.gather(undoing, return_exceptions=True)
        await asyncio.to_thread(faults.undo)
        await asyncio.to_thread(faults.revive)
        await loading
        report.findings += load.refused
        await _settle(runtime, faults.fleet, len(load.orders), report)
        await _compare(runtime, faults.fleet, load.orders, report)
    return report


async def _settle(runtime: Runtime, fleet: Fleet, orders: int, report: Report) -> None:
    """Wait until all orders have ended, for as long as the ledger grows."""
    began = changed = time.monotonic()
    size = 0
    while time.monotonic() < changed + STALLED_S:
        await asyncio.sleep(1)
        with contextlib.suppress(StoreError):
            if not await runtime.store.with_queued() and await _ended(runtime) == orders:
                break
        before, size = size, fleet.ledger.stat().st_size
        changed = changed if size == before else time.monotonic()
    report.counts["settled after s"] = round(time.monotonic() - began)


async def _ended(runtime: Runtime) -> int:
    turns = [await runtime.store.turns(head.session_id) for head in await runtime.sessions()]
    return len([one for own in turns for one in own if one.state is TurnState.ENDED])


async def _compare(runtime: Runtime, fleet: Fleet, orders: dict[str, str], report: Report) -> None:
    """Compare the history of all sessions with the ledger."""
    asked: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    claims: list[tuple[str, str]] = []
    queued: set[str] = set()
    for session_id in sorted(set(orders.values())):
        session = runtime.session_handle(session_id)
        messages, turns = await session.messages(), await session.turns()
        asked.update(text_of(one.content).split()[1] for one in messages if isinstance(one, UserMessage))
        queued |= {text_of(one.message.content).split()[1] for one in await session.inputs()}
        if len(messages) != 4 * len(turns):  # a prompt, a call, its result, an answer
            report.findings.append(f"{session_id} has {len(turns)} turns and {len(messages)} messages")
        for turn in turns:
            outcome: Any = None if turn.summary is None else turn.summary.outcome
            if turn.state is not TurnState.ENDED or not isinstance(outcome, Finished):
                report.findings.append(f"{session_id}: turn {turn.turn_id} is {turn.state}: {outcome}")
                continue
            word, _, order = outcome.text.partition(" ")
            outcomes[word] += 1
            claims += [(EVIDENCE[word], order)] if word in EVIDENCE else []
    effects = fleet.effects()  # read after the history, which may still grow
    begun = Counter((one.name, one.order) for one in effects)
    report.findings += [
        f"{order}: the ledger has no {name}" for name, order in claims if not begun[name, order]
    ]
    report.findings += [
        f"{one} was asked {asked[one]} times{', and is queued' if one in queued else ''}"
        for one in orders
        if asked[one] != 1
    ]
    twice = [(name, order) for (name, order), count in begun.items() if name in ONCE and count > 1]
    report.findings += [f"{order}: {name} was executed {begun[name, order]} times" for name, order in twice]
    report.counts.update(
        {
            "orders": len(orders),
            "turns": outcomes.total(),
            "charges": len([one for one in effects if one.name == "charge"]),
            "shipments": len([one for one in effects if one.name == "later"]),
            "reported as interrupted": outcomes["INTERRUPTED"],
            "reads": len([one for one in effects if one.name == "look"]),
            "reads repeated": sum(count - 1 for (name, _), count in begun.items() if name == "look"),
            "processes": len({one.pid for one in effects}),
        }
    )


def database_for(network: Network) -> PostgresServer:
    """Return a PostgreSQL server that the network's hosts can reach, at this machine's address."""
    server = PostgresServer(listen_addresses=f"127.0.0.1,{network.here}")
    with (server.directory / "data" / "pg_hba.conf").open("a") as rules:
        rules.write("host all all samenet trust\n")
    return server


@contextmanager
def stage(home: Path, engine: str, seed: str) -> Iterator[Faults]:
    """Start a network with two hosts for workers, PostgreSQL, and for Restate a cluster of three servers."""
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        hosts = [stack.enter_context(Host(network)) for _ in range(2)]
        server = stack.enter_context(database_for(network))
        restate = None
        if engine == "restate":
            balancer = stack.enter_context(Balancer(network.here, [(host.address, 9080) for host in hosts]))
            restate = stack.enter_context(Restate(network, home, nodes=3)), balancer
        fleet = stack.enter_context(Fleet(home, server.new_url()))
        yield Faults(fleet, server, hosts, seed, restate)


def check(home: Path, engine: str, seconds: float, seed: str) -> Report:
    """Run the faults, and print the report."""
    title = (
        f"faults on {engine}, seed {seed}: 4 workers on 2 hosts, {SESSIONS} sessions, {seconds:.0f} s, "
        f"leases of {LEASE_S:.0f} s{', 3 servers of Restate' if engine == 'restate' else ''}"
    )
    with stage(home, engine, seed) as faults:
        report = asyncio.run(run(faults, seconds, title))
    print(report)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="Run workers under faults and report what is wrong.")
    parser.add_argument("--engine", choices=("postgres", "restate"), default="postgres")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", default=str(time.time_ns()))
    options = parser.parse_args()
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # the database is restarted on purpose
    with tempfile.TemporaryDirectory() as home:
        sys.exit(bool(check(Path(home), options.engine, options.seconds, options.seed).findings))


if __name__ == "__main__":
    main()
