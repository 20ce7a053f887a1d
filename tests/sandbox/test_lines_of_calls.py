"""The line of a cell's code that made a call, as each engine reports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CallAnswer, CellCall, CellEnd, CellRequest, CodeEngine
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.quickjs.cell_engine import QuickJsCells

ENGINES: dict[str, Callable[[], CodeEngine]] = {
    "monty": MontyCells,
    "cpython": CPythonCells,
    "quickjs": QuickJsCells,
}
LIMITS = SessionLimits(cpu_ms=5_000, wall_ms=30_000)
PYTHON = """
def helper(x):
    return ask(x)
for name in ["a", "b"]:
    if name == "b":
        ask(
            name)
    else:
        ask(name)
é = "é"; ask(é)
helper("c")
[ask(x) for x in "d"]"""
TYPESCRIPT = """
async function helper(x: string) {
  return await ask(x);
}
for (const name of ["a", "b"]) {
  if (name === "b")
    await ask(
      name);
  else
    await ask(name);
}
const é: string = "é"; await ask(é);
await helper("c");
await Promise.all([..."d"].map((x) => ask(x)));"""


class Functions:
    """One function, `ask`."""

    def __contains__(self, name: object, /) -> bool:
        return name == "ask"

    def names(self) -> list[str]:
        return ["ask"]

    def capability(self, name: str) -> Capability:
        return Capability(name=name, description="", input_schema={"type": "object"})

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return None


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(name: str) -> Iterator[CodeEngine]:
    made = ENGINES[name]()
    yield made
    made.close()


def _run(
    engine: CodeEngine, code: str, *, state: bytes = b"", suspends: bool = False
) -> tuple[list[CellCall], bytes]:
    """Run a cell and answer its calls; return the calls, and the state after the cell."""
    request = CellRequest(key="s", code=code, state=state, limits=LIMITS, functions=Functions(), now_ms=1)
    run, made = engine.open(request), list[CellCall]()
    step = run.start()
    while not isinstance(step, CellEnd):
        made += step.calls
        if suspends:
            paused = run.suspend()
            again = CellRequest(
                key="s", code=code, state=state, paused=paused, limits=LIMITS, functions=Functions(), now_ms=1
            )
            run = engine.open(again)
            run.start()
        step = run.answer(made[-1].number, CallAnswer(value=1, at_ms=1))
    assert step.error is None
    return made, step.state or b""


@pytest.mark.parametrize("suspends", [False, True], ids=["at once", "suspended"])
def test_each_call_has_the_line_that_made_it(engine: CodeEngine, name: str, suspends: bool) -> None:
    """Ours: in loops, branches and functions, after other scripts, and after every suspension."""
    code = TYPESCRIPT if name == "quickjs" else PYTHON
    made, _ = _run(engine, code, suspends=suspends)
    shift = 1 if name == "quickjs" else 0
    lines = [(next(iter([*call.args, *call.kwargs.values()])), call.line) for call in made]
    assert lines == [
        ("a", 9 + shift),
        ("b", 6 + shift),
        ("é", 10 + 2 * shift),
        ("c", 3),
        ("d", 12 + 2 * shift),
    ]


def test_a_call_in_a_function_of_an_earlier_cell_has_the_line_that_called_it(
    engine: CodeEngine, name: str
) -> None:
    """Ours: if the engine does not know that line, the call has none."""
    waits = "await " if name == "quickjs" else ""
    _, state = _run(engine, TYPESCRIPT if name == "quickjs" else PYTHON)
    made, _ = _run(engine, f"{waits}ask('y')\n1\n{waits}helper('z')", state=state)
    assert [call.line for call in made] == [1, 0 if name == "monty" else 3]


def test_a_sleep_has_its_line(engine: CodeEngine, name: str) -> None:
    """Ours: a sleep is a call like any other."""
    code = "import time\n\ntime.sleep(0.01)"
    if name == "quickjs":
        code = "const a = 1;\n\nawait new Promise((done) => setTimeout(done, 10));"
    made, _ = _run(engine, code)
    assert [(call.name, call.line) for call in made] == [("sleep", 3)]
