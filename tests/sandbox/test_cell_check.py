"""Faults that a check finds in a cell before it runs, and code that must pass."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import difflib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from standfast import tool
from standfast.errors import Code, InvalidArgument
from standfast.model.capability import Capability
from standfast.model.code import Diagnostic, Severity
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CellEnd, CellRequest
from standfast.sandbox.monty.cell_engine import MontyCells


@dataclasses.dataclass
class Item:
    name: str
    count: int = 1


@tool(side_effect="read")
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(side_effect="read")
def order(item: Item, tags: list[str] | None = None, *, how: Literal["slow", "fast"] = "slow") -> str:
    """Place an order."""
    return item.name


@tool(side_effect="read")
def book(day: datetime.date, price: decimal.Decimal, ratio: float = 0.5, note: str | None = None) -> bool:
    """Book a day."""
    return True


@tool(side_effect="read")
def put(values: dict[str, int]) -> None:
    """Put values."""


SEARCH = Capability(
    name="search",
    description="Search.",
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "title": "Query"},
            "limit": {"type": ["integer", "null"]},
            "filter": {"$ref": "#/$defs/Filter"},
        },
        "required": ["query"],
        "$defs": {"Filter": {"type": "object", "properties": {"n": {"type": "integer", "title": "N"}}}},
    },
)
LISTED = Capability(name="listed", description="Takes anything.", input_schema={"type": "array"})


class Functions:
    """The functions that these cells may call."""

    def __init__(self) -> None:
        made = [item.capability for item in (add, order, book, put)]
        self._all = {item.name: item for item in (*made, SEARCH, LISTED)}

    def __contains__(self, name: object, /) -> bool:
        return name in self._all

    def names(self) -> list[str]:
        return list(self._all)

    def capability(self, name: str) -> Capability:
        return self._all[name]

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        close = difflib.get_close_matches(name, self._all, n=1)
        return f"did you mean {close[0]}?" if close else None


FUNCTIONS = Functions()
INPUTS = ("data", "history")
Found = Callable[..., list[Diagnostic]]


@pytest.fixture(scope="module")
def engine() -> Iterator[MontyCells]:
    cells = MontyCells(capacity=2)
    yield cells
    cells.close()


@pytest.fixture
def found(engine: MontyCells) -> Found:
    def look(code: str, *, state: bytes = b"", check: Any = "calls") -> list[Diagnostic]:
        return engine.check(code, state=state, functions=FUNCTIONS, inputs=INPUTS, check=check)

    return look


def left_by(engine: MontyCells, code: str) -> bytes:
    """Return the state after running code."""
    end = engine.open(CellRequest(key="s", code=code, limits=SessionLimits(), functions=FUNCTIONS)).start()
    assert isinstance(end, CellEnd)
    assert end.state is not None
    return end.state


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("add()", "add() is missing a"),
        ("add(b=2)", "add() is missing a"),
        ("add(1, 2, 3)", "add() takes 2 arguments, 3 were given"),
        ("put({}, 1)", "put() takes 1 argument, 2 were given"),
        ("add(1, c=2)", "add() has no parameter c"),
        ("add(1, a=2)", "add() got multiple values for a"),
        ("add('1')", "add(): a is '1', not integer"),
        ("add(f'{data}')", "add(): a is f'{data}', not integer"),
        ("add(1.5)", "add(): a is 1.5, not integer"),
        ("add(True)", "add(): a is True, not integer"),
        ("add(None)", "add(): a is None, not integer"),
        ("add([1])", "add(): a is [1], not integer"),
        ("x = 1\nif x:\n    print(add(a={}))", "add(): a is {}, not integer"),
        ("order({'name': 'x'}, how='now')", "order(): how is 'now', not one of 'fast', 'slow'"),
        ("order({'name': 5})", "order(): item at ['name'] is 5, not string"),
        ("order({'count': 5})", "order(): item is missing 'name'"),
        ("order('x')", "order(): item is 'x', not object"),
        ("order({'name': 'x'}, [1])", "order(): tags is [1], which fits none of its types"),
        ("book('2026-01-01', 1, 'half')", "book(): ratio is 'half', not number"),
        ("put({'a': 'x'})", "put(): values at ['a'] is 'x', not integer"),
        ("search(5)", "search(): query is 5, not string"),
        ("search('q', '5')", "search(): limit is '5', not integer or null"),
        ("search('q', filter=3)", "search(): filter is 3, not object"),
        ("await add('1')", "add(): a is '1', not integer"),
    ],
)
def test_arguments_that_a_function_does_not_accept_are_found(found: Found, code: str, message: str) -> None:
    """Seed: a wrong call is reported before the code has done anything."""
    (item,) = found(code)
    assert (item.code, item.message, item.severity) == (Code.TYPE_ERROR, message, Severity.ERROR)
    assert item.hint is not None
    assert item.hint.startswith("def ")
    assert item.span is not None
    assert item.span.line == 1 + code.count("\n")


def test_the_hint_shows_the_signature(found: Found) -> None:
    """Ours: the model can correct the call without asking."""
    (item,) = found("add(1, c=2)")
    assert item.hint == "def add(a: int, b: int = ...) -> int"


def test_an_unknown_function_is_found_with_a_suggestion(found: Found) -> None:
    """Seed: an unknown tool is reported with the name that was probably meant."""
    (item,) = found("x = 1\nserch('a')")
    assert (item.code, item.hint) == (Code.UNKNOWN_TOOL, "did you mean search?")
    assert item.span is not None
    assert (item.span.line, item.span.column, item.span.end_column) == (2, 1, 6)


def test_a_check_knows_the_names_of_the_session(engine: MontyCells, found: Found) -> None:
    """Ours: functions of earlier cells can be called, even if they shadow a tool."""
    state = left_by(engine, "def mine(x):\n    return x\ndef add(text, more, most):\n    return text")
    assert found("mine(1)\nadd('a', 'b', 'c')", state=state) == []
    assert [item.code for item in found("mine(1)")] == [Code.UNKNOWN_TOOL]


@pytest.mark.parametrize(
    "code",
    [
        "data = 1",
        "data += 'x'",
        "data: str = 'x'",
        "for data in [1]:\n    pass",
        "def data():\n    pass",
        "class data:\n    pass",
        "import json as data",
        "from json import loads as data",
        "del data",
        "if (data := 1):\n    pass",
        "a, (b, data) = 1, (2, 3)",
        "try:\n    pass\nexcept ValueError as data:\n    pass",
        "with x as data:\n    pass",
        "match x:\n    case [data]:\n        pass",
        "def f():\n    global data\n    data = 1",
        "[(data := n) for n in [1]]",
        "if x:\n    for n in y:\n        data = n",
    ],
)
def test_assigning_to_an_input_is_found(found: Found, code: str) -> None:
    """Ours: inputs are read-only, because they are not part of the state."""
    assert [(item.code, item.message) for item in found(f"x = y = []\n{code}")] == [
        (Code.TYPE_ERROR, "data is an input and read-only; bind another name")
    ]


def test_importing_an_unknown_module_is_found(found: Found) -> None:
    """Ours: an import on the last line must not fail after the effects before it."""
    items = found("add(1)\nimport pandas as pd, json\nfrom requests.api import get")
    assert [(item.code, item.message) for item in items] == [
        (Code.UNSUPPORTED_FEATURE, "there is no module 'pandas'"),
        (Code.UNSUPPORTED_FEATURE, "there is no module 'requests.api'"),
    ]


def test_columns_count_characters(found: Found) -> None:
    """Ours: columns count characters, as editors do."""
    (item,) = found("x = 'äöü'; serch('ü')")
    assert item.span is not None
    assert (item.span.column, item.span.end_column) == (12, 17)


@pytest.mark.parametrize("code", ["x = (1,\ny = 2", "for x in y print(x)", "f(1", "x = 'abc", "  x = 1\ny"])
def test_syntax_errors_are_found(found: Found, code: str) -> None:
    """Seed: code that cannot be parsed is reported with its position."""
    items = found(code)
    assert items[0].code == Code.SYNTAX_ERROR
    assert items[0].span is not None


def test_code_with_a_lone_surrogate_is_refused(engine: MontyCells, found: Found) -> None:
    """Bug: half of a surrogate pair cannot be passed to the engine, and must not break the host."""
    assert [item.code for item in found("x = '\ud800'")] == [Code.SYNTAX_ERROR]
    with pytest.raises(InvalidArgument):
        left_by(engine, "x = '\ud800'")


def test_syntax_that_only_the_engine_supports_is_not_an_error(found: Found) -> None:
    """Bug: the host's Python is older than the guest's language, which nests quotes in f-strings."""
    assert found("d = {'x': 1}\nf'{d['x']}'") == []
    assert found("def first[T](xs: list[T]) -> T:\n    return xs[0]") == []
    assert [item.code for item in found("d = {}\nf'{d['x']}'\ny = (")] == [Code.SYNTAX_ERROR]


@pytest.mark.parametrize(
    "code",
    [
        "add(1); add(1, 2); add(1, b=2); add(a=1); add(*[1, 2]); add(**{'a': 1}); add(*[], b=1)",
        "add(data); add(len(data)); add(-1); add(5.0); add(1 if data else '2')",
        "order({'name': 'x', 'count': 2}, ['a'], how='fast'); order({'name': data}, None)",
        "order({**data}); order({data: 1}); order(dict(name='x'))",
        "book('2026-01-01', '1.5'); book('2026-01-01', 1.5, 1, note=None); book('2026-01-01', 2, 0.5, 'x')",
        "put({}); put({'a': 1}); put({n: 1 for n in 'ab'}); put({1: 2})",
        "search('q', None); search('q', more=1); search(query='q', filter={'n': '5'}); search('q', 3)",
        "listed(1, 'a', None); listed(); listed(*data)",
        "def f(add):\n    return add('anything', 1, 2, 3)\nf(print)",
        "add = str\nadd('x', 'y')",
        "[data for data in [1]]; {history: 1 for history in 'ab'}; (lambda data: data)(1)",
        "def f(data):\n    data = 1\n    history = data\n    return history\nf(1)",
        "def f():\n    global data\n    return data\nf()",
        "class A:\n    data = 1\n    def history(self):\n        pass\nA()",
        "data['x'] = 1\nhistory[0].append(2)\ndata: dict",
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None",
        "def lazy():\n    import numpy\n    return numpy",
        "try:\n    maybe()\nexcept NameError:\n    pass",
        "import asyncio, json, os.path\nfrom __future__ import annotations\nfrom typing import Any",
        "from math import *\nsqrt(4)",
        "for f in [len, str]:\n    f('x')\nwith_walrus = (g := len)\ng('x')",
        "try:\n    pass\nexcept ValueError as error:\n    error()",
        "match data:\n    case [h, *t] if h():\n        t()",
        "@staticmethod\ndef f(*args, **kwargs):\n    args(); kwargs()\nint('5'); ValueError('x'); sorted([])",
        "data.get('x')(); data['f'](); (lambda: 1)(); obj.method(1)",
        "",
        "# nothing",
    ],
)
def test_code_that_may_be_correct_is_accepted(found: Found, code: str) -> None:
    """Ours: a false alarm costs a model call, a missed fault costs nothing extra."""
    assert found(code) == []


def test_types_are_checked_on_demand(found: Found) -> None:
    """Seed: a strict check finds what a type checker finds; each mistake is reported once."""
    code = "x = add(1)\nx.upper()\nadd('1')\nserch(1)\n[len(h) for h in history]\nyield_ = 1"
    assert [item.span.line for item in found(code) if item.span] == [3, 4]
    strict = found(code, check="types")
    assert [(item.span.line, item.code) for item in strict if item.span] == [
        (2, Code.TYPE_ERROR),
        (3, Code.TYPE_ERROR),
        (4, Code.UNKNOWN_TOOL),
    ]


def test_a_strict_check_finds_what_the_engine_refuses(found: Found) -> None:
    """Seed: unsupported features are reported before anything runs."""
    codes = [item.code for item in found("x = 1\ndel x\ndef g():\n    yield 1", check="types")]
    assert codes == [Code.UNSUPPORTED_FEATURE, Code.UNSUPPORTED_FEATURE]


def test_a_strict_check_knows_the_session(engine: MontyCells, found: Found) -> None:
    """Ours: a variable that shadows a tool is not checked as that tool."""
    state = left_by(engine, "def add(text):\n    return text\nrows = [1]")
    assert found("add('x')\nrows.append(len(data))", state=state, check="types") == []


def test_touched_names_are_the_names_that_code_reads(engine: MontyCells) -> None:
    """Ours: only values that the code reads are loaded."""
    names = ("data", "history", "files", "other", "inputs")
    code = (
        "a = data['x'] + data['y']\nhistory[0]\nfiles['a'].b\nfiles.get('c')\nother = 1\nf'{inputs['q']!r}'"
    )
    assert engine.touched(code.replace("['q']", '["q"]'), names).names == {
        "data": frozenset({"x", "y"}),
        "history": None,
        "files": None,
        "inputs": frozenset({"q"}),
    }
    assert engine.touched("data['x'] = 1", names).names == {"data": None}
    assert engine.touched("data[", names).names == {}


def test_a_state_lists_the_names_it_binds(engine: MontyCells) -> None:
    """Ours: an empty state binds nothing."""
    assert engine.names(b"") == []
    assert engine.names(left_by(engine, "b = 1\nimport json\nfor a in 'x':\n    pass")) == ["a", "b", "json"]
