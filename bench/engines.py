"""What each engine costs, beside its bare form, in one process, as ratios.

    python bench/engines.py [--quick] [--json]

Every engine is driven through its port (`CodeEngine`), as sessions and agents drive it. Its bare form is what
would do the same with nothing of ours around it:

- monty: `pydantic_monty` driven by hand, its session dumped after a run.
- quickjs: the guest in this process, entered with plain wasmtime calls: types stripped, the code evaluated,
  the promise polled, the memory taken after a run. No other process, no limits.
- cpython: for a call, a JSON message there and back over a socket between two Python processes.

A run of ours always takes the state that it leaves, so the bare one does; how long that alone takes, and when
the result is known, is printed beside it. Figures are medians over interleaved rounds, so a noisy machine
disturbs both sides alike. Code differs from run to run, so that nothing is remembered of it.

Targets in microseconds are for the machine on which they were set: the ratios are what counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pydantic_monty

from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CallAnswer, CellEnd, CellPause, CellRequest, CellRun, CodeEngine
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.quickjs.booting import CompiledGuest
from standfast.sandbox.quickjs.cell_engine import QuickJsCells
from standfast.sandbox.quickjs.guest import GuestSnapshot
from standfast.sandbox.typescript.script import read_script

CALLS = 20
QUIET_S = 0.25
LIMITS = SessionLimits(memory_mb=256, cpu_ms=60_000, wall_ms=600_000, max_external_calls=100_000)
ENGINES: dict[str, Callable[[int], CodeEngine]] = {
    "monty": lambda capacity: MontyCells(capacity=capacity),
    "cpython": lambda capacity: CPythonCells(capacity=capacity),
    "quickjs": lambda capacity: QuickJsCells(capacity=capacity),
}


@dataclass(frozen=True)
class Texts:
    """What is run, in one language. `%d` is another number every time."""

    warm: str
    loop: str
    calls: str
    pause: str
    busy: str


PYTHON = Texts(
    warm="x = 1 + %d",
    loop=f"n = %d\nfor i in range({CALLS}): n",
    calls=f"n = %d\nfor i in range({CALLS}): echo(i)",
    pause="n = %d + echo(1)\nn",
    busy="n = %d\nfor i in range(400000): n += i * i\nn",
)
TYPESCRIPT = Texts(
    warm="const x: number = 1 + %d",
    loop=f"const n: number = %d\nfor (let i = 0; i < {CALLS}; i++) n",
    calls=f"const n: number = %d\nfor (let i = 0; i < {CALLS}; i++) await echo(i)",
    pause="const n: number = %d + await echo(1)\nn",
    busy="let n: number = %d\nfor (let i = 0; i < 400000; i++) n += i * i\nn",
)
TEXTS = {"monty": PYTHON, "cpython": PYTHON, "quickjs": TYPESCRIPT}


ECHO = Capability(
    name="echo", description="", input_schema={"type": "object", "properties": {"x": {"type": "integer"}}}
)


class Functions:
    """What the code may call."""

    def __contains__(self, name: object, /) -> bool:
        return name == "echo"

    def names(self) -> list[str]:
        return ["echo"]

    def capability(self, name: str) -> Capability:
        return ECHO

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return None


FUNCTIONS = Functions()


@dataclass
class Timings:
    """Seconds, by name."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000))
    """Another one for each run of anything: what one has read, no other finds read already."""

    def time(self, name: str, work: Callable[[int], object], repeat: int) -> None:
        taken = self.samples.setdefault(name, [])
        for _ in range(repeat):
            number = next(self.numbers)
            started = time.perf_counter()
            work(number)
            taken.append(time.perf_counter() - started)

    def note(self, name: str, work: Callable[[int], float], repeat: int) -> None:
        """Take the seconds that the work itself tells."""
        taken = self.samples.setdefault(name, [])
        taken += [work(next(self.numbers)) for _ in range(repeat)]

    def us(self, name: str) -> float:
        return statistics.median(self.samples[name]) * 1e6


class Engine:
    """One engine, used as sessions use it."""

    def __init__(self, name: str, capacity: int = 4) -> None:
        self.name = name
        self.texts = TEXTS[name]
        self.cells = ENGINES[name](capacity)
        self._state = b""
        self._made = 0
        self.tells = False
        self.through_s: list[float] = []
        """How long after their beginning warm runs knew their results."""

    def run(self, code: str, *, key: str = "warm", state: bytes = b"", paused: bytes = b"") -> CellEnd:
        return ended(self.opened(code, key=key, state=state, paused=paused))

    def opened(self, code: str, *, key: str, state: bytes = b"", paused: bytes = b"") -> CellRun:
        return self.cells.open(
            CellRequest(
                key=key,
                code=code,
                state=state,
                paused=paused,
                limits=LIMITS,
                functions=FUNCTIONS,
                through=self._through if self.tells else None,
                seed="s",
            )
        )

    def _through(self, end: CellEnd) -> None:
        self.through_s.append(time.perf_counter())

    def warm(self, code: str) -> None:
        """Run the code in one long-lived session, taking a snapshot of its state each time."""
        end = self.run(code, state=self._state)
        self._state = end.state or self._state

    def warm_to_result(self, code: str) -> float:
        """The same; how long it took until the result was known."""
        self.through_s.clear()
        self.tells = True
        started = time.perf_counter()
        self.warm(code)
        self.tells = False
        return (self.through_s[0] if self.through_s else time.perf_counter()) - started

    def fresh(self, code: str) -> None:
        """In a session of its own."""
        self._made += 1
        self.run(code, key=f"new{self._made}")

    def suspended(self, code: str) -> bytes:
        run = self.opened(code, key="paused")
        assert isinstance(run.start(), CellPause)
        return run.suspend()

    def resumed(self, code: str, data: bytes) -> CellEnd:
        run = self.opened(code, key="resumed", paused=data)
        run.start()
        step = run.answer(1, CallAnswer(value=1))
        assert isinstance(step, CellEnd)
        return step

    def restored(self, code: str) -> None:
        """The state, in a session whose worker has none of it."""
        self._made += 1
        self.run(code, key=f"restored{self._made}", state=self._state)


def ended(run: CellRun) -> CellEnd:
    """To the end, every call answered at once."""
    step = run.start()
    while isinstance(step, CellPause):
        step = run.answer(step.calls[0].number, CallAnswer(value=1))
    assert step.error is None, step.error
    return step


class BareMonty:
    """The engine by hand."""

    def __init__(self) -> None:
        self._pool = pydantic_monty.Monty(min_processes=1)
        self._pool.__enter__()
        self.fresh()

    def fresh(self) -> None:
        self._session = self._pool.checkout(limits={"max_suspensions": 2**31})
        self._session.__enter__()

    def done(self) -> None:
        self._session.__exit__(None, None, None)

    def run(self, code: str) -> None:
        step = self._session.feed_start(code)
        while isinstance(step, pydantic_monty.FunctionSnapshot):
            step = step.resume({"return_value": 1})

    def take(self) -> bytes:
        return self._session.dump()

    def close(self) -> None:
        self.done()
        self._pool.__exit__(None, None, None)


class BareQuickJs:
    """The guest in this process, with wasmtime calls alone."""

    def __init__(self) -> None:
        self._machine = CompiledGuest()
        self.fresh()

    def fresh(self) -> None:
        self._guest = self._machine.guest(256 << 20)
        self._guest.limit(memory=256 << 20, depth=256, fuel=1 << 60)

    def done(self) -> None:
        self._guest.close()

    def run(self, code: str) -> None:
        guest = self._guest
        script = read_script(code)
        guest.call("open", b'["echo"]', json.dumps([[], script.binds_result, 65536, 0]).encode())
        assert guest.begin(script.javascript.encode())
        while (poll := self._polled())[4] == "waits":
            for call in poll[0]:
                guest.call("settle", json.dumps([call[0], 0, 1]).encode())
                guest.run_jobs()
        assert poll[4] == "value", poll

    def take(self) -> bytes:
        return b"".join(GuestSnapshot(self._guest).parts())

    def _polled(self) -> list[Any]:
        text = b""
        while not text:
            self._guest.run_jobs()
            text = self._guest.call("poll")
        found: list[Any] = json.loads(text)
        return found

    def close(self) -> None:
        self.done()


@contextmanager
def other_process() -> Iterator[Callable[[int], object]]:
    """One message there and back, between two Python processes."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        while data := there.recv(65536):
            there.sendall(json.dumps({"value": json.loads(data)["args"][0]}).encode())
        os._exit(0)
    there.close()

    def ask(number: int) -> object:
        here.sendall(json.dumps({"call": "echo", "args": [number], "kwargs": {}}).encode())
        return json.loads(here.recv(65536))["value"]

    yield ask
    here.close()
    os.waitpid(child, 0)


def measure(timings: Timings, rounds: int) -> None:
    """Everything but cold starts and computing, on all engines in turn.

    What starts processes comes last, and waits for those that are started in the background.
    """
    engines = [Engine(name) for name in ENGINES]
    bare: dict[str, BareMonty | BareQuickJs] = {"monty": BareMonty(), "quickjs": BareQuickJs()}
    for engine in engines:
        engine.warm(engine.texts.warm % 0)
    time.sleep(QUIET_S)
    with other_process() as ask:
        for _ in range(rounds):
            timings.time("bare cpython call", ask, 100)
            for engine in engines:
                measure_warm(timings, engine, bare.get(engine.name))
    for engine in engines:
        for _ in range(max(1, rounds // 2)):
            measure_new(timings, engine)
        engine.cells.close()
    for one in bare.values():
        one.close()


def measure_warm(timings: Timings, engine: Engine, bare: BareMonty | BareQuickJs | None) -> None:
    """Measure runs in one long-lived session, beside the bare engine."""
    name, texts = engine.name, engine.texts
    timings.note(f"{name} through", lambda n: engine.warm_to_result(texts.warm % n), 10)
    measure_runs(timings, name, engine.warm, texts)
    if bare is None:
        return

    def warm(code: str) -> None:
        bare.run(code)
        bare.take()

    timings.time(f"bare {name} run", lambda n: bare.run(texts.warm % n), 10)
    measure_runs(timings, f"bare {name}", warm, texts)
    bare.done()
    bare.fresh()


def measure_runs(timings: Timings, name: str, run: Callable[[str], None], texts: Texts) -> None:
    timings.time(f"{name} warm", lambda n: run(texts.warm % n), 20)
    timings.time(f"{name} loop", lambda n: run(texts.loop % n), 10)
    timings.time(f"{name} calls", lambda n: run(texts.calls % n), 10)


def measure_new(timings: Timings, engine: Engine) -> None:
    """What needs a guest of its own."""
    name, texts = engine.name, engine.texts
    kept: list[tuple[str, bytes]] = []
    works: dict[str, Callable[[int], object]] = {
        "restore": lambda n: engine.restored("x"),
        "new": lambda n: engine.fresh(texts.warm % n),
        "pause": lambda n: kept.append(paused(engine, texts.pause % n)),
        "resume": lambda n: engine.resumed(*kept.pop()),
    }
    for what, work in works.items():
        for _ in range(3):
            timings.time(f"{name} {what}", work, 1)
            time.sleep(QUIET_S if name == "cpython" else 0)


def paused(engine: Engine, code: str) -> tuple[str, bytes]:
    return code, engine.suspended(code)


def cold_start(name: str) -> float:
    """Seconds from nothing to the first result."""
    started = time.perf_counter()
    engine = Engine(name)
    engine.fresh("1")
    taken = time.perf_counter() - started
    engine.cells.close()
    return taken


class Busy:
    """An engine whose workers all compute, each for a session of its own."""

    def __init__(self, name: str, workers: int) -> None:
        self._engine = Engine(name, workers)
        self._pool = ThreadPoolExecutor(workers)
        self._states = [b""] * workers
        self._numbers = itertools.count()
        self.burst(workers)

    def burst(self, runs: int) -> float:
        """Return the seconds that `runs` runs of the same computation take."""
        workers = len(self._states)
        started = time.perf_counter()
        list(self._pool.map(lambda session: self._compute(session, runs // workers), range(workers)))
        return time.perf_counter() - started

    def _compute(self, session: int, runs: int) -> None:
        for _ in range(runs):
            code = self._engine.texts.busy % next(self._numbers)
            end = self._engine.run(code, key=f"s{session}", state=self._states[session])
            self._states[session] = end.state or self._states[session]

    def close(self) -> None:
        self._pool.shutdown()
        self._engine.cells.close()


def scaling(name: str, rounds: int) -> float:
    """How much sooner two workers are done than one, in bursts that alternate."""
    one, two = Busy(name, 1), Busy(name, 2)
    time.sleep(2 * QUIET_S)  # one more is made ready meanwhile
    ratios = [one.burst(6) / two.burst(6) for _ in range(rounds)]
    one.close()
    two.close()
    return statistics.median(ratios)


@dataclass(frozen=True)
class Line:
    name: str
    value: float
    unit: str
    target: str = ""


def report(timings: Timings, rounds: int) -> list[Line]:
    lines = [Line("cpython: bare round trip", timings.us("bare cpython call"), "us")]
    for name in ENGINES:
        lines += report_engine(timings, name)
        cold = statistics.median(cold_start(name) for _ in range(max(2, rounds // 4)))
        lines.append(Line(f"{name}: cold start to the first result", cold * 1e3, "ms"))
        faster = scaling(name, max(5, rounds // 2))
        lines.append(Line(f"{name}: two workers instead of one", faster, "x", ">= 1.7"))
    return lines


def report_engine(timings: Timings, name: str) -> list[Line]:
    us = timings.us
    call = (us(f"{name} calls") - us(f"{name} loop")) / CALLS
    scaled = name == "quickjs"
    lines = [
        Line(f"{name}: warm run, state taken", us(f"{name} warm"), "us", at_most(500, scaled)),
        Line(f"{name}: warm run, result known", us(f"{name} through"), "us"),
        Line(f"{name}: host call", call, "us", at_most(300, scaled)),
        Line(f"{name}: new session and a run", us(f"{name} new"), "us"),
        Line(f"{name}: run to a call, and suspend", us(f"{name} pause"), "us"),
        Line(f"{name}: take up, answer, end", us(f"{name} resume"), "us"),
        Line(f"{name}: restore a state elsewhere and run", us(f"{name} restore"), "us"),
    ]
    if name == "cpython":
        return [*lines, Line(f"{name}: host call", call / us("bare cpython call"), "x round trip", "<= 2")]
    bare_call = (us(f"bare {name} calls") - us(f"bare {name} loop")) / CALLS
    warm, run = us(f"bare {name} warm"), us(f"bare {name} run")
    return [
        *lines,
        Line(f"{name}: bare run", run, "us"),
        Line(f"{name}: bare run, state taken", warm, "us"),
        Line(f"{name}: bare call", bare_call, "us"),
        Line(f"{name}: warm run, state taken", us(f"{name} warm") / warm, "x bare", at_most(2, scaled)),
        Line(f"{name}: host call", call / bare_call, "x bare", at_most(2, scaled)),
    ]


def at_most(value: float, holds: bool) -> str:
    return f"<= {value:.0f}" if holds else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    rounds = 4 if options.quick else 20
    timings = Timings()
    measure(timings, rounds)
    for line in report(timings, rounds):
        if options.json:
            print(json.dumps(line.__dict__))
        else:
            print(f"{line.name:<46}{line.value:>9.2f} {line.unit:<14}{line.target}")


if __name__ == "__main__":
    main()
