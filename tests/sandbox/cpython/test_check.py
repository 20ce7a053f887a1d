"""Faults that a check finds in a Python cell before it runs, and code that must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast import tool
from standfast.errors import Code, InvalidArgument
from standfast.model.capability import Capability
from standfast.model.code import Diagnostic, Severity
from standfast.ports.code_engine import CellEnd, CellRequest
from standfast.sandbox.cpython.cell_engine import CPythonCells


@tool(side_effect="read")
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


class Functions:
    """The functions that these cells may call."""

    def __contains__(self, name: object, /) -> bool:
        return name == "add"

    def names(self) -> list[str]:
        return ["add"]

    def capability(self, name: str) -> Capability:
        return add.capability

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return "did you mean add?" if name == "ad" else None


FUNCTIONS = Functions()
Found = Callable[..., list[Diagnostic]]


@pytest.fixture
def found() -> Found:
    cells = CPythonCells(packages=("msgspec",))

    def look(code: str, *, state: bytes = b"", check: Any = "calls") -> list[Diagnostic]:
        return cells.check(code, state=state, functions=FUNCTIONS, inputs=("data",), check=check)

    return look


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1\nad(1)", (Code.UNKNOWN_TOOL, "ad() is neither defined nor a function that can be called", 2)),
        ("add('1')", (Code.TYPE_ERROR, "add(): a is '1', not integer", 1)),
        ("add(1)\nadd()", (Code.TYPE_ERROR, "add() is missing a", 2)),
        ("data = 1", (Code.TYPE_ERROR, "data is an input and read-only; bind another name", 1)),
        ("add(1)\nimport pandas as pd", (Code.UNSUPPORTED_FEATURE, "there is no module 'pandas'", 2)),
        ("from requests.api import get", (Code.UNSUPPORTED_FEATURE, "there is no module 'requests.api'", 1)),
        ("x = (1,\ny = 2", (Code.SYNTAX_ERROR, "'(' was never closed", 1)),
        ("x = 1\nreturn x", (Code.SYNTAX_ERROR, "'return' outside function", 2)),
        ("x = [1]\nyield x", (Code.SYNTAX_ERROR, "'yield' outside function", 2)),
        ("if data:\n    break", (Code.SYNTAX_ERROR, "'break' outside loop", 2)),
        ("for x in data:\n    def f():\n        continue",
         (Code.SYNTAX_ERROR, "'continue' not properly in loop", 3)),
        ("x = 1\0", (Code.SYNTAX_ERROR, "source code string cannot contain null bytes", 1)),
        ("x = '\ud800'", (Code.SYNTAX_ERROR, "the code holds a lone surrogate", None)),
    ],
)  # fmt: skip
def test_mistakes_are_found(found: Found, code: str, expected: tuple[str, str, int | None]) -> None:
    """Seed: a wrong cell is refused before it has any effect."""
    (item,) = found(code)
    assert (item.code, item.message, item.span and item.span.line) == expected
    assert item.severity == Severity.ERROR


@pytest.mark.parametrize(
    "code",
    [
        "class A(list):\n    def f(self):\n        yield 1\nx = A()\ndel x",
        "import asyncio, sqlite3, xml.etree.ElementTree, msgspec\nfrom concurrent import futures",
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None",
        "def lazy():\n    import numpy\n    return numpy",
        "from . import nothing",
        "async with open_it() as f:\n    pass\ndef open_it(): pass",
        "for x in data:\n    if x:\n        break\n    continue\nelse:\n    pass",
        "def f():\n    return [(yield)]\nlambda: (yield)",
        "while True:\n    class A:\n        pass\n    break",
        "await add(1)\n[await add(n) for n in data]",
        "try:\n    maybe()\nexcept NameError:\n    pass",
        "@property\ndef f(self, /, *a: int, **k) -> 'x': ...",
        "",
    ],
)
def test_code_that_may_be_correct_is_accepted(found: Found, code: str) -> None:
    """Ours: valid Python is not refused, even if another engine lacks a feature."""
    assert found(code) == []


@pytest.mark.parametrize(
    "code",
    [
        "x = " + "(" * 5000 + ")" * 5000,
        "x = " + "-" * 60_000 + "1",
        "x = " + "[" * 150 + "]" * 150,
        "\n".join(" " * n + "if 1:" for n in range(99)),
        "x" + ".y" * 20_000,
        "x = " + "+".join(["1"] * 20_000),
    ],
)
def test_checking_deeply_nested_code_does_no_harm(found: Found, code: str) -> None:
    """Ours: hostile code is inspected in the host process."""
    assert all(item.code == Code.SYNTAX_ERROR for item in found(code))


def test_a_check_neither_runs_nor_evaluates_anything(found: Found) -> None:
    """Seed: a check runs nothing, not even constant folding or decorators."""
    tries = "".join(f"{' ' * n}try:\n{' ' * (n + 1)}pass\n{' ' * n}finally:\n" for n in range(18))
    assert found(f"{tries}{' ' * 18}pass\nx = 10 ** 10 ** 10\n@print\ndef f(a=1 / 0): pass") == []


def test_a_check_knows_the_names_of_the_session(
    engine: CPythonCells, request_of: Callable[..., CellRequest]
) -> None:
    """Ours: functions of earlier cells can be called, even if they shadow a tool."""
    end = engine.open(request_of("def mine(x): return x\ndef add(a, b, c): return a")).start()
    assert isinstance(end, CellEnd)
    state = end.state or b""

    def look(code: str) -> list[Diagnostic]:
        return engine.check(code, state=state, functions=FUNCTIONS, inputs=(), check="calls")

    assert look("mine(1)\nadd('a', 'b', 'c')") == []


def test_a_check_reports_that_types_are_not_checked(found: Found) -> None:
    """Seed: a check says what it did not cover."""
    (item,) = found("x = add(1)\nx.upper()", check="types")
    assert (item.severity, item.message) == (
        Severity.WARNING,
        "types were not checked: this engine has no type checker",
    )


def test_columns_count_characters(found: Found) -> None:
    """Ours: columns count characters, as editors do."""
    (item,) = found("x = 'äöü'; import nothing")
    assert item.span is not None
    assert (item.span.column, item.span.end_column) == (12, 26)


def test_touched_names_are_the_names_that_code_reads(engine: CPythonCells) -> None:
    """Ours: only values that the code reads are loaded."""
    names = ("data", "history", "other")
    assert engine.touched("a = data['x'] + data['y']\nhistory[0]\nother = 1", names).names == {
        "data": frozenset({"x", "y"}),
        "history": None,
    }
    assert engine.touched("data[", names).names == {}


def test_code_with_a_lone_surrogate_is_refused(
    engine: CPythonCells, request_of: Callable[..., CellRequest]
) -> None:
    """Bug: half of a surrogate pair cannot be encoded."""
    with pytest.raises(InvalidArgument):
        engine.open(request_of("x = '\ud800'"))
