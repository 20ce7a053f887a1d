"""Races between a cell and a cancellation: whichever is first, nothing raises and no run stays open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from standfast.errors import EngineFailed, ErrorObject
from standfast.model.limits import SessionLimits
from standfast.plugins.turn_protocol import ExecRequest
from standfast.ports.code_engine import CallAnswer, CellCall, CellEnd, CellPause, CellRequest, CellStep
from standfast.protocols.code.running_cell import QUICKLY_STORED_BYTES, ModelCell
from standfast.protocols.code.values import ReadOnlyValues, SessionReading

Job = Callable[[], Callable[[], object] | None]
WAITS = CellPause((CellCall(number=1, name="pay"),))
THROUGH = CellEnd(result=1)


class Threads:
    """Threads that run a job only when the test releases it."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.given = asyncio.Event()

    def start(self, job: Job) -> None:
        self.jobs.append(job)
        self.given.set()

    def work(self) -> None:
        """Run the next job and its callback, on a thread other than the loop's."""
        job = self.jobs.pop(0)

        def run() -> None:
            if (then := job()) is not None:
                then()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


@dataclass
class Run:
    """A run that takes the given steps; `open` says whether it still holds a worker."""

    steps: list[CellStep | Exception]
    request: CellRequest
    stopped: ErrorObject | None = None
    open: bool = True

    def start(self) -> CellStep:
        step = self.steps.pop(0)
        if self.request.through is not None and step == THROUGH:
            self.request.through(THROUGH)
        if isinstance(step, Exception):
            self.open = False
            raise step
        self.open = isinstance(step, CellPause)
        return step

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        return self.start()

    def stop(self, error: ErrorObject) -> None:
        self.stopped = error

    def close(self) -> None:
        self.open = False


@dataclass
class Stage:
    """An engine, a turn's context and the threads between them, all controlled by a test."""

    steps: list[CellStep | Exception]
    threads: Threads = field(default_factory=Threads)
    runs: list[Run] = field(default_factory=list)
    asked: list[Sequence[CellCall]] = field(default_factory=list)
    session_id: str = "s"
    turn_id: str = "t"
    call_id: int = 1
    now_ms: int = 0
    seed: str = ""
    functions: Any = None
    output: Any = None

    def check(self, code: str, **options: Any) -> list[Any]:
        return []

    def open(self, request: CellRequest) -> Run:
        self.runs.append(Run(self.steps, request))
        return self.runs[-1]

    def ask(self, calls: Sequence[CellCall], hear: Callable[[int, CallAnswer], None]) -> None:
        self.asked.append(calls)
        self.hear = hear

    async def read_blob(self, digest: str) -> bytes | None:
        return None

    def cell(self) -> ModelCell:
        here: Any = self
        values = ReadOnlyValues([], SessionReading(), {}, self.read_blob)
        return ModelCell(here, ExecRequest(language="python", code="pay()"), values, here)


def play(scene: Callable[[], Any]) -> None:
    """Run a scenario on an event loop, and fail if the loop logged an error."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await scene()

    asyncio.run(watched())
    assert complaints == []


async def begun(stage: Stage, cell: ModelCell, state: bytes = b"") -> asyncio.Task[CellEnd]:
    """Return the task that runs the cell, up to the point where the engine computes."""
    task = asyncio.create_task(cell.run(state, None, SessionLimits(), "calls"))
    await stage.threads.given.wait()
    return task


async def cancelled(task: asyncio.Task[CellEnd]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def finished(stage: Stage) -> bool:
    """Let the threads finish their jobs, and return whether no run is open then."""
    while stage.threads.jobs:
        stage.threads.work()
    return not any(run.open for run in stage.runs)


def test_a_cancellation_may_coincide_with_the_end_of_storing() -> None:
    """Bug: the engine ended between the cancellation of the future and of its task."""

    async def scene() -> None:
        stage = Stage([THROUGH])
        cell = stage.cell()
        running = await begun(stage, cell, bytes(QUICKLY_STORED_BYTES + 1))
        then = stage.threads.jobs.pop(0)()  # the engine has finished; the loop does not know yet
        assert await running == THROUGH
        ending = asyncio.create_task(cell.end())
        await asyncio.sleep(0)
        assert then is not None
        then()
        ending.cancel()  # its future is cancelled at once, its task only when the loop runs it
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert finished(stage)

    play(scene)


@pytest.mark.parametrize("step", [WAITS, THROUGH, EngineFailed("broken")], ids=["waits", "ends", "fails"])
@pytest.mark.parametrize("first", ["engine", "cancellation", "both at once"])
def test_a_cancelled_cell_leaves_no_run_open(step: CellStep | Exception, first: str) -> None:
    """Bug: a cell that paused while its turn was cancelled was stopped but never closed."""

    async def scene() -> None:
        stage = Stage([step])
        cell = stage.cell()
        task = await begun(stage, cell)
        if first == "engine":  # the step is complete; the loop has not been notified
            then = stage.threads.jobs.pop(0)()
            await cancelled(task)
            assert then is not None
            then()
        elif first == "cancellation":
            await cancelled(task)
            stage.threads.work()
        else:
            stage.threads.work()
            await cancelled(task)
        for _ in range(3):
            await asyncio.sleep(0)
        assert stage.asked == []
        assert finished(stage)

    play(scene)


def test_an_answer_that_coincides_with_a_cancellation_leaves_no_run_open() -> None:
    """Bug: the same happened after an answer, when the run already has a worker."""

    async def scene() -> None:
        stage = Stage([WAITS, WAITS])
        cell = stage.cell()
        task = await begun(stage, cell)
        stage.threads.work()
        await asyncio.sleep(0)
        stage.hear(1, CallAnswer())
        then = stage.threads.jobs.pop(0)()
        await cancelled(task)
        assert then is not None
        then()
        await asyncio.sleep(0)
        assert finished(stage)

    play(scene)


def test_a_paused_cell_is_closed_when_its_turn_is_cancelled() -> None:
    """Ours: no other code would release its worker."""

    async def scene() -> None:
        stage = Stage([WAITS])
        task = await begun(stage, stage.cell())
        stage.threads.work()
        await asyncio.sleep(0)
        assert len(stage.asked) == 1
        await cancelled(task)
        stage.hear(1, CallAnswer())
        assert finished(stage)

    play(scene)


@pytest.mark.parametrize("size", [0, QUICKLY_STORED_BYTES, QUICKLY_STORED_BYTES + 1])
def test_an_early_report_is_requested_only_if_storing_is_slower_than_waking_the_loop(size: int) -> None:
    """Ours: the loop was woken twice for every cell, and the engine could not store before it slept again."""

    async def scene() -> None:
        stage = Stage([THROUGH])
        cell = stage.cell()
        running = await begun(stage, cell, bytes(size))
        then = stage.threads.jobs.pop(0)()
        assert (stage.runs[0].request.through is not None) == (size > QUICKLY_STORED_BYTES)
        assert then is not None
        then()
        assert await running == await cell.end() == THROUGH

    play(scene)
