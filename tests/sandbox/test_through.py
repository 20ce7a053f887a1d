"""The result of a cell, which is reported before the cell's state is stored."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standfast.errors import Code
from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CallAnswer, CellEnd, CellPause, CellRequest, CodeEngine
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.quickjs.cell_engine import QuickJsCells

ENGINES: dict[str, Callable[[], CodeEngine]] = {"monty": MontyCells, "quickjs": QuickJsCells}
LIMITS = SessionLimits(cpu_ms=5_000, wall_ms=30_000)


class Functions:
    """One function, `ask`."""

    def __contains__(self, name: object, /) -> bool:
        return name == "ask"

    def names(self) -> list[str]:
        return ["ask"]

    def capability(self, name: str) -> Capability:
        return Capability(name=name, description="", input_schema={"type": "object"})

    def is_async(self, name: str) -> bool:
        return True

    def suggest(self, name: str) -> str | None:
        return None


def children() -> set[int]:
    """Return the process ids of this process's children."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for one in lists for pid in one.read_text().split()}


@pytest.fixture
def others() -> set[int]:
    """Return the children that are not the engine's, such as services that other tests use."""
    return children()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, others: set[int]) -> Iterator[CodeEngine]:
    made = ENGINES[request.param]()
    yield made
    made.close()


def run(engine: CodeEngine, code: str, tell: Callable[[CellEnd], None] | None, state: bytes = b"") -> CellEnd:
    """Run a cell to its end, answering every call with 1; in TypeScript, `x` is declared first."""
    if engine.language == "typescript":
        code = code.replace("x =", "const x =")
    cell = engine.open(
        CellRequest(key="s", code=code, state=state, limits=LIMITS, functions=Functions(), through=tell)
    )
    step = cell.start()
    while isinstance(step, CellPause):
        step = cell.answer(step.calls[0].number, CallAnswer(value=1))
    return step


def without_state(end: CellEnd) -> tuple[object, ...]:
    return end.result, end.error, end.hard, end.stdout, end.calls_made, end.state


@pytest.mark.parametrize("code", ["x = 1\nx + 1", "x = await ask()\nx + 1"])
def test_an_early_report_equals_the_end_except_for_the_state(engine: CodeEngine, code: str) -> None:
    """Ours: a turn continues with the report while the engine stores the state."""
    told: list[CellEnd] = []
    end = run(engine, code, told.append)
    assert [without_state(one) for one in told] == [(*without_state(end)[:-1], None)]
    assert (end.result, end.state is None) == (2, False)


def test_an_error_in_the_code_is_reported_early_too(engine: CodeEngine) -> None:
    """Ours: variables bound before the error are kept."""
    told: list[CellEnd] = []
    end = run(engine, "x = 5\nnothing.at.all", told.append)
    assert [one.error for one in told] == [end.error]
    assert end.error is not None
    assert run(engine, "x", None, end.state or b"").result == 5


def test_a_hard_failure_is_not_reported_early(engine: CodeEngine) -> None:
    """Ours: a hard failure has no state to store."""
    told: list[CellEnd] = []
    forever = "while True: pass" if engine.language == "python" else "while (true) {}"
    request = CellRequest(
        key="s", code=forever, limits=SessionLimits(cpu_ms=50), functions=Functions(), through=told.append
    )
    end = engine.open(request).start()
    assert isinstance(end, CellEnd)
    assert end.hard
    assert told == []


def test_a_state_lost_in_transit_fails_the_cell(engine: CodeEngine, others: set[int]) -> None:
    """Ours: the worker dies between the result and the state, and the earlier state is intact.

    The state exceeds a socket's buffer, so it cannot already be in transit.
    """
    much = "'a' * 3000000\nlen(x)" if engine.language == "python" else "'a'.repeat(3000000)\nx.length"
    before = run(engine, "x = 1", None)
    told: list[CellEnd] = []

    def tell(end: CellEnd) -> None:
        told.append(end)
        for worker in children() - others:
            os.kill(worker, signal.SIGKILL)

    end = run(engine, f"x = {much}", tell, before.state or b"")
    assert (told[0].result, told[0].error) == (3_000_000, None)
    assert (end.hard, end.error and end.error.code, end.state) == (True, Code.INTERRUPTED, None)
    again = run(engine, "x", None, before.state or b"")
    if again.error is not None and again.error.code == Code.INTERRUPTED:  # a spare worker was killed too
        again = run(engine, "x", None, before.state or b"")
    assert again.result == 1
