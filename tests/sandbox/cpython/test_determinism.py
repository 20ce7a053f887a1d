"""The same code with the same results behaves identically, wherever and whenever it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast.ports.code_engine import CallAnswer, CellCall, CellEnd, CellPause, CellRequest, CellStep
from standfast.sandbox.cpython.cell_engine import CPythonCells

pytestmark = pytest.mark.slow

Request = Callable[..., CellRequest]

CHANCE = """
import random, time, datetime, os, uuid, secrets, tempfile
add(random.random(), random.randint(1, 10**9), random.Random().random(), random.SystemRandom().random())
now, today = datetime.datetime.now(), datetime.date.today()
fetch(time.time(), time.monotonic(), time.perf_counter(), str(now), str(today), time.time_ns(), time.ctime())
add(random.random(), list(os.urandom(4)), time.strftime('%H:%M:%S'), time.process_time(), time.gmtime()[:6])
add(list({'b', 'a', 'c'}), hash('text'), str(datetime.datetime.now(datetime.timezone.utc)))
add(str(uuid.uuid4()), str(uuid.uuid1()), secrets.token_hex(8), random.sample(range(9), 5), random.gauss())
add(str(datetime.datetime.utcnow()), str(datetime.datetime.today()), time.clock_gettime(time.CLOCK_REALTIME))
class Mine(datetime.datetime): pass
add(type(Mine.now()).__name__, isinstance(now, datetime.datetime), os.path.basename(tempfile.mktemp()))
"""


def journey(
    cells: CPythonCells, request_of: Request, code: str = CHANCE, *, suspend: bool = False, **options: Any
) -> list[CellCall]:
    """Return all calls that the same cell makes when given the same results."""
    run = cells.open(request_of(code, **options))
    step: CellStep = run.start()
    calls: list[CellCall] = []
    waiting: list[int] = []
    while isinstance(step, CellPause):
        calls += step.calls
        waiting += [call.number for call in step.calls]
        if suspend:
            run = cells.open(request_of(code, paused=run.suspend(), **options))
            run.start()
        step = run.answer(waiting.pop(), CallAnswer(at_ms=1_700_000_000_000 + 61_000 * len(calls)))
    assert step.error is None, step.error
    return calls


@pytest.mark.slow
def test_the_same_cell_makes_the_same_calls_everywhere(
    engine: CPythonCells, other: CPythonCells, locked: CPythonCells, request_of: Request
) -> None:
    """Seed: a cell that is rerun after a crash makes the same calls."""
    options: dict[str, Any] = {"now_ms": 1_700_000_000_000, "seed": "turn-7"}
    calls = journey(engine, request_of, **options)
    assert len(calls) == 7
    assert journey(other, request_of, **options) == calls
    assert journey(locked, request_of, **options) == calls
    assert journey(other, request_of, suspend=True, **options) == calls
    assert calls[1].args[:5] == [1700000061.0] * 3 + ["2023-11-14 22:14:21", "2023-11-14"]
    assert calls[6].args[:2] == ["Mine", True]
    changed = journey(other, request_of, now_ms=1_700_000_000_000, seed="turn-8")
    assert changed[0] != calls[0]
    assert changed[4] != calls[4]


@pytest.mark.slow
def test_parallel_tasks_are_scheduled_identically(
    engine: CPythonCells, other: CPythonCells, request_of: Request
) -> None:
    """Ours: the order of tasks is determined by the order of the results."""
    code = """
import asyncio, random
async def one(n):
    for step in range(3):
        await asyncio.sleep(random.random())
        await add(n, step)
async with asyncio.TaskGroup() as group:
    for n in range(4):
        group.create_task(one(n))
del group
"""
    calls = journey(engine, request_of, code, seed="x")
    assert len(calls) == 24
    assert journey(other, request_of, code, suspend=True, seed="x") == calls


def test_random_numbers_continue_from_cell_to_cell(
    engine: CPythonCells, other: CPythonCells, request_of: Request
) -> None:
    """Ours: once used, the state of the random generator is part of the session's state."""
    first = engine.open(request_of("import random\na = random.random()", seed="one")).start()
    assert isinstance(first, CellEnd)
    ends = [
        cells.open(request_of("random.random()", state=first.state, seed=seed)).start()
        for cells, seed in ((engine, "two"), (other, "three"))
    ]
    results = [end.result for end in ends if isinstance(end, CellEnd)]
    assert results[0] == results[1]


def test_unused_randomness_is_seeded_per_session_and_turn(engine: CPythonCells, request_of: Request) -> None:
    """Ours: two sessions, or two turns, draw different numbers."""
    first = engine.open(request_of("import random", seed="one")).start()
    assert isinstance(first, CellEnd)
    results = []
    for seed in ("two", "two", "three"):
        end = engine.open(request_of("random.random()", state=first.state, seed=seed)).start()
        assert isinstance(end, CellEnd)
        results.append(end.result)
    assert results[0] == results[1] != results[2]
