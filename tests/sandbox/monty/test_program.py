"""Facts about guest code that are known before it runs."""

from __future__ import annotations

import ast
import time

import pytest

from standfast.sandbox.monty.program import read_program

AWAITED = [
    ("f(1)", []),
    ("await f(1)", ["f(1)"]),
    ("x = await f(1) + g(2)", ["f(1)"]),
    ("await f(g(1))", ["f(g(1))"]),
    ("await gather(f(1), g(2))", ["gather(f(1), g(2))", "f(1)", "g(2)"]),
    ("await asyncio.gather(*[f(i) for i in x])", ["asyncio.gather(*[f(i) for i in x])", "f(i)"]),
    ("t = f(1)\nawait t", ["f(1)"]),
    ("t = f(1)\nprint(t)\nawait g(2)", ["g(2)"]),
    ("t: int = f(1)\nawait t", ["f(1)"]),
    ("ts = []\nts.append(f(1))\nawait gather(*ts)", ["f(1)", "gather(*ts)"]),
    ("ts = [f(1), g(2)]\nfor t in ts:\n    await t", ["f(1)", "g(2)"]),
    ("ts = [f(i) for i in x]\n[await t for t in ts]", ["f(i)"]),
    ("ts = {}\nts['a'] = f(1)\nawait gather(*ts.values())", ["f(1)", "gather(*ts.values())", "ts.values()"]),
    ("def start(i):\n    return f(i)\nawait start(1)", ["f(i)", "start(1)"]),
    ("async def one(i):\n    return await f(i)\nawait one(1)", ["f(i)", "one(1)"]),
    ("await (f(1) if c else g(2))", ["f(1)", "g(2)"]),
    ("a, b = f(1), g(2)\nawait a\nawait b", ["f(1)", "g(2)"]),
    ("if (t := f(1)):\n    await t", ["f(1)"]),
    ("'é😀'; x = await f('é')", ["f('é')"]),
    ("x = 1\r\nawait f(1)", ["f(1)"]),
]


@pytest.mark.parametrize(("code", "calls"), AWAITED, ids=[row[0] for row in AWAITED])
def test_awaited_calls_are_located_where_the_engine_reports_them(code: str, calls: list[str]) -> None:
    """Ours: an awaited call is answered with a future, any other with its value."""
    program = read_program(code)
    data = program.fed.encode()
    assert program.awaited is not None
    assert sorted(data[start:end].decode() for start, end in program.awaited) == sorted(calls)


BOUND = [
    ("x = 1", {"x"}),
    ("x, (y, *z) = a", {"x", "y", "z"}),
    ("import os.path, sys as s\nfrom a import b as c, d", {"os", "s", "c", "d"}),
    ("def f(a):\n    b = 1", {"f"}),
    ("class A:\n    x = 1", {"A"}),
    ("for i in a:\n    j = i", {"i", "j"}),
    ("[k for k in a]", set()),
    ("(w := 1)", {"w"}),
    ("def f():\n    global g\n    g = 1", {"f", "g"}),
    (
        "match a:\n    case [p, *q]:\n        pass\n    case {'k': r, **s}:\n        pass",
        {"p", "q", "r", "s"},
    ),
    ("with a as b:\n    pass", {"b"}),
]


@pytest.mark.parametrize(("code", "names"), BOUND, ids=[row[0] for row in BOUND])
def test_the_names_that_code_binds_are_found(code: str, names: set[str]) -> None:
    """Ours: a later check must not report these names as unknown."""
    assert names <= read_program(code).bound
    assert not {"a", "b", "k"} & read_program(code).bound - names


MODES = [
    ("1", "never"),
    ("result = 1", "always"),
    ("result += 1", "always"),
    ("x = result = 1", "always"),
    ("if a:\n    result = 1", "maybe"),
    ("for result in a:\n    pass", "maybe"),
    ("def f():\n    result = 1", "never"),
    ("def f():\n    global result\n    result = 1", "maybe"),
    ("print(result)", "never"),
    ("class A:\n    result = 1", "never"),
    ("'result = 1'", "never"),
    ("# result = 1", "never"),
]


@pytest.mark.parametrize(("code", "mode"), MODES, ids=[row[0] for row in MODES])
def test_whether_code_binds_result_is_decided_from_its_syntax(code: str, mode: str) -> None:
    """Ours: SPEC §5; the result is the global `result` if this run bound it."""
    assert read_program(code).result_mode == mode


def test_functions_of_earlier_runs_may_bind_result_when_called() -> None:
    """Ours: such a run must be probed for its result."""
    assert read_program("f()", result_may_be_bound=True).result_mode == "maybe"
    assert read_program("1 + 1", result_may_be_bound=True).result_mode == "never"


@pytest.mark.parametrize(
    "code",
    [
        "1 + 1",
        "x = 1\n'é😀' + y",
        "(\n 1,\n 2\n)",
        "x; y; z",
        "await f(1)",
        "a\n\n# end",
        "'''a\nb''' + c",
        "x;",
    ],
)
def test_inserted_code_keeps_lines_and_maps_columns_back(code: str) -> None:
    """Ours: spans refer to the user's code, not to the text that is fed to the engine."""
    program = read_program(code)
    theirs, ours = _places(code), _places(program.fed)
    assert theirs
    assert [text for text, _, _ in theirs] == [
        text for text, _, _ in ours if text in dict.fromkeys(t for t, _, _ in theirs)
    ]
    mapped = [(text, line, program.column(line, column)) for text, line, column in ours]
    assert [place for place in mapped if place in theirs] == theirs


def _places(code: str) -> list[tuple[str, int, int]]:
    """Return every name and literal in the code with its line and column, counted in characters from 1."""
    lines = code.split("\n")
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, (ast.Name, ast.Constant))]
    nodes = [node for node in nodes if not (isinstance(node, ast.Name) and node.id.startswith("_"))]
    found = [
        (
            ast.unparse(node),
            node.lineno,
            len(lines[node.lineno - 1].encode()[: node.col_offset].decode()) + 1,
        )
        for node in nodes
    ]
    return sorted(found, key=lambda place: place[1:])


def test_columns_are_mapped_back_using_the_engines_line_ends() -> None:
    """Bug: a carriage return ends a line in Python, but not in the engine."""
    program = read_program("x = 1\r1 + y")
    assert program.fed.startswith("x = 1\r(")
    at = program.fed.index("y") + 1
    assert program.column(1, at) == "x = 1\r1 + y".index("y") + 1


def test_code_that_python_cannot_parse_is_fed_unchanged() -> None:
    """Ours: without a syntax tree, only precision is lost."""
    program = read_program("x = (")
    assert program.fed == "x = ("
    assert not program.plain_keys
    assert program.awaited is None


@pytest.mark.parametrize("code", ["(" * 100_000, "-" * 100_000 + "1", "\0", "x = 1\0", "1" + "+1" * 100_000])
def test_parsing_hostile_code_does_no_harm(code: str) -> None:
    """Bug: Python's own parser raises RecursionError and MemoryError."""
    assert read_program(code).code == code


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("value = 1", "value"),
        ("    value: int = 1", "value"),
        ("value += 1", "value"),
        ("value, other = 1, 2", "other"),
        ("def value(): ...", "value"),
        ("async def value(): ...", "value"),
        ("class value: ...", "value"),
        ("import value", "value"),
        ("from a import value", "value"),
        ("import a as value", "value"),
        ("for value in x: pass", "value"),
        ("for a, value in x: pass", "value"),
    ],
)
def test_code_that_is_not_parsed_still_reports_the_names_it_binds(line: str, name: str) -> None:
    """Bug: the names in long code were unknown, so an input of the same name removed the variable."""
    long = f"{'# padding' * 10000}\n{line}"
    program = read_program(long)
    assert program.awaited is None
    assert name in program.bound


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "x = 1\n" * 10_000,
        "a0 = f()\n" + "".join(f"a{i} = a{i - 1}\n" for i in range(1, 4_000)) + "await a3999",
        "if 1:\n result = result\n" * 2_500,
        "await f(1)\n" * 5_000,
        "for " * 60_000,
        "a " * 120_000,
        "import " + "a, " * 80_000,
        " " * 250_000,
        "x:" + "a" * 250_000,
    ],
    ids=["lines", "a chain of names", "marks", "awaits", "fors", "words", "imports", "blanks", "colon"],
)
def test_no_code_keeps_the_host_busy_for_long(code: str) -> None:
    """Bug: a chain of names was followed once for each name, so a megabyte of code took fifteen seconds."""
    started = time.process_time()
    read_program.__wrapped__(code)
    assert time.process_time() - started < 5
