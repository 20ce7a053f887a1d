"""Cells that end with a call that is left to the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from standfast.errors import Span
from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CallAnswer, CellCall, CellEnd, CellPause, CellRequest
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.run_errors import argument_not_json

LAST = frozenset({"finish"})


class Functions:
    """The functions that these cells may call."""

    def __contains__(self, name: object, /) -> bool:
        return name in ("finish", "add")

    def names(self) -> list[str]:
        return ["finish", "add"]

    def capability(self, name: str) -> Capability:
        return Capability(name=name, description="", input_schema={})

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return None


@pytest.fixture(scope="module")
def engine() -> Iterator[MontyCells]:
    cells = MontyCells(capacity=1)
    yield cells
    cells.close()


def ended(engine: MontyCells, code: str, *, state: bytes = b"", **options: Any) -> CellEnd:
    """Run a cell; answer each of its calls with 2, and `finish` with None."""
    made: list[str] = []

    def answer_now(call: CellCall) -> CallAnswer:
        made.append(call.name)
        return CallAnswer(value=2 if call.name == "add" else None)

    run = engine.open(
        CellRequest(
            key="s",
            code=code,
            state=state,
            limits=SessionLimits(),
            functions=Functions(),
            answer_now=answer_now,
            **{"last": LAST, **options},
        )
    )
    step = run.start()
    assert not isinstance(step, CellPause)
    assert ("finish" in made) is (step.last_call is None and "finish" in code)
    return step


def test_a_call_at_the_end_is_reported_instead_of_made(engine: MontyCells) -> None:
    """Ours: this saves one request to the engine, and the state is kept."""
    end = ended(engine, "x = add(1)\nfinish([x, 1])")
    assert end.error is None
    assert end.result is None
    assert end.last_call is not None
    assert end.last_call.call == CellCall(number=0, name="finish", args=[[2, 1]])
    assert end.last_call.span == Span(line=2, column=1, end_line=2, end_column=15)
    assert engine.names(end.state or b"") == ["x"]
    after = ended(engine, "y = x\ny + 1", state=end.state or b"")
    assert (after.result, after.last_call) == (3, None)


def test_the_column_of_the_call_counts_characters(engine: MontyCells) -> None:
    """Ours: columns count characters, not bytes."""
    end = ended(engine, "x = 'äöü'; finish(x)")
    assert end.last_call is not None
    assert end.last_call.call.args == ["äöü"]
    assert end.last_call.span == Span(line=1, column=12, end_line=1, end_column=21)


@pytest.mark.parametrize(
    "code",
    [
        "x = 1\nif x:\n    finish(x)",
        "x = 1\nfinish(value=x)",
        "x = [1]\nfinish(*x)",
        "x = 1\nfinish(x, 2)",
        "x = 1\nfinish()",
        "x = finish(1)",
        "x = 1\nfinish(x)\nx = 2",
        "result = 1\nfinish(result)",
        "if add(1):\n    result = 1\nfinish(5)",
    ],
)
def test_any_other_call_is_made(engine: MontyCells, code: str) -> None:
    """Ours: only a call with one value that is the whole last statement can be left to the driver."""
    assert ended(engine, code).last_call is None


def test_no_call_is_left_to_the_driver_unless_requested(engine: MontyCells) -> None:
    """Ours: without `last`, every call is made."""
    assert ended(engine, "x = 1\nfinish(x)", last=frozenset()).last_call is None


def test_a_function_that_the_code_defines_hides_the_tool(engine: MontyCells) -> None:
    """Ours: code that defines a function of that name calls its own, in later cells too."""
    code = "def finish(x):\n    return x + 1\nfinish(1)"
    run = engine.open(
        CellRequest(key="s", code=code, limits=SessionLimits(), functions=Functions(), last=LAST)
    )
    step = run.start()
    assert isinstance(step, CellEnd)
    assert (step.result, step.last_call) == (2, None)
    again = engine.open(
        CellRequest(
            key="s",
            code="y = 1\nfinish(y)",
            state=step.state or b"",
            limits=SessionLimits(),
            functions=Functions(),
            last=LAST,
        )
    ).start()
    assert isinstance(again, CellEnd)
    assert (again.result, again.last_call) == (2, None)


def test_an_argument_that_is_not_json_is_reported(engine: MontyCells) -> None:
    """Ours: the driver is given the reason why the call cannot be made, as with any call."""
    end = ended(engine, "f = lambda: 1\nfinish({'f': f})")
    assert end.error is None
    assert end.last_call is not None
    assert end.last_call.call.problem == argument_not_json("finish", "function")


def test_code_that_fails_before_its_last_call_fails(engine: MontyCells) -> None:
    """Ours: this includes an argument that raises."""
    run = engine.open(
        CellRequest(
            key="s",
            code="x = 1\nfinish(x / 0)",
            limits=SessionLimits(),
            functions=Functions(),
            last=LAST,
        )
    )
    step = run.start()
    assert isinstance(step, CellEnd)
    assert step.last_call is None
    assert step.error is not None
    assert step.error.message == "ZeroDivisionError: division by zero"
    assert step.error.span is not None
    assert (step.error.span.line, step.error.span.column) == (2, 8)
