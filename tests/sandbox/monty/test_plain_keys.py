"""Code that may nest tuples, and tuples as keys."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

import ast
from typing import Any

import pytest

from standfast import BlockingSandbox, tool
from standfast.sandbox.monty.syntax import has_plain_keys

HARMLESS = [
    "x = [1, {'a': 2}]\nx",
    "for k, v in d.items(): print(k, v)",
    "[k for k, v in d.items()]",
    "for i, x in enumerate(xs): t(x)",
    "total = {}\nfor row in t(1): total[row['k']] = total.get(row['k'], 0) + row['v']\ntotal",
    "def f(a, b=1): return a + b\nf(1, 2)",
    "a = f(1)\nb = 2",
    "import json, math\njson.dumps({'a': math.pi})",
    "await t(1)",
    "f'{x} {y}'",
]
NESTING = [
    "(1, 2)", "a, b = b, a", "return_ = x, y", "d[1, 2] = 3", "tuple([a, a])", "zip([a], [a])", "list(d.items())",
    "for pair in d.items(): keep(pair)", "for k, v in [*d.items()]: pass", "[p for p in zip(a, b)]", "d.popitem()",
    "def f(*x): return x", "lambda *x: x", "f = tuple", "map(zip, x)", "from itertools import product as p\np(x)",
    "import itertools\nitertools.product(x, x)", "from itertools import *", "type(x)(y)", "getattr(d, 'it' + 'ems')()",
    "eval('1')", "exec('1')", "from collections import namedtuple", "Counter(x).most_common()", "partial(f, a, a).args",
    "class A:\n    def __init__(self, x): self.x = x\nA(1).x", "frozenset([a])", "x.unheard_of()", "import heapq",
    "from math import *", "slice(a, a)", "__builtins__['tuple']", "match x:\n    case [*y]: pass", "with x: pass",
    "for k, v in zip(d.items(), (a, a)): pass", "for k, v in f(a, a).items(): keep((k, v))", "()",
]  # fmt: skip


@pytest.mark.parametrize("code", HARMLESS)
def test_code_without_tuples_is_not_inspected(code: str) -> None:
    """Ours: most code costs no inspection of its dump."""
    assert has_plain_keys(ast.parse(code))


@pytest.mark.parametrize("code", NESTING)
def test_code_with_plain_keys_is_recognized(code: str) -> None:
    """Bug: hashing a tuple that holds a tuple twice, forty levels deep, froze the process."""
    assert not has_plain_keys(ast.parse(code))


@tool(side_effect="read")
def take(x: Any) -> int:
    """Take anything."""
    return 1


@pytest.fixture(scope="module")
def sbox() -> Any:
    with BlockingSandbox(tools=[take], engine="monty") as made:
        yield made


PAIR = "class P:\n    def __init__(self, x): self.x = x\np = P(1)\n"
LONG = "#" * 70_000 + "\n"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("a = (1, (2, 3))\n{a: 1}", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds dict with tuple keys"),
        ("[{(1, 2)}]", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds set"),
        ("frozenset([(1, 2)])", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds frozenset"),
        ("result = {(1, 2): 3}", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds dict with tuple keys"),
        ("if True:\n    result = {(1, 2): 3}", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds dict with tuple keys"),
        (LONG + "{(1, 2): 3}", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds dict with tuple keys"),
        ("take({(1, 2): 3})", "INVALID_ARGUMENT: an argument of take() is not JSON: it holds dict with tuple keys"),
        ("take([{(1, 2): 3}, 'x' * 200])", "INVALID_ARGUMENT: an argument of take() is not JSON: it holds dict with tuple keys"),
        ("['x' * 200, {(1, 2)}]", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds set"),
        ("['x' * 200, {(1, 2): 1}]", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds dict with tuple keys"),
        ("['x' * 200, {frozenset([1]): 1}]", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds dict with FrozenSet keys"),
        ("take(x=[{(1, 2)}])", "INVALID_ARGUMENT: an argument of take() is not JSON: it holds set"),
        (PAIR + "{p: 1}", "RESULT_NOT_SERIALIZABLE: the result is not JSON: it holds dict or set with objects as keys"),
        (PAIR + "take({p: 1})", "INVALID_ARGUMENT: an argument of take() is not JSON: it holds dict or set with objects as keys"),
    ],
)  # fmt: skip
def test_tuples_as_keys_are_recognized_without_hashing_them(
    sbox: BlockingSandbox, code: str, error: str
) -> None:
    """Bug: instances as keys ended the run as INTERRUPTED, and shared tuples as keys froze the host."""
    result = sbox.run(code, session="keys")
    assert result.error is not None
    assert f"{result.error.code}: {result.error.message}" == error
    assert sbox.run("1 + 1", session="keys").result == 2


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("(1, (2, 3))", [1, [2, 3]]),
        ("x = [(k, v) for k, v in {'a': 1}.items()]\nx", [["a", 1]]),
        ("[print('once'), (1, 2)]", [None, [1, 2]]),
        ("d = {(1, 2): 3}\nlen(d)", 1),
        ("x = (1, 2)", None),
        ("x = (1, 2)\ntake(x)", 1),
        ("result = ('a', 1)", ["a", 1]),
        (LONG + "x = (5, 6)\nx", [5, 6]),
        (LONG + "x = (1,\n2)", None),
        (LONG + "x = 3", None),
        (LONG + "if True:\n    x = 4", None),
        (LONG + "x = '''\nabc'''", None),
    ],
)  # fmt: skip
def test_other_results_of_such_code_are_unchanged(sbox: BlockingSandbox, code: str, value: Any) -> None:
    """Ours: the value is inspected, and nothing else changes."""
    result = sbox.run(code, session=f"v{abs(hash(code))}")
    assert (result.error, result.result) == (None, value)
    assert result.stdout == ("once\n" if "once" in code else "")


def test_tuples_of_earlier_runs_are_remembered(sbox: BlockingSandbox) -> None:
    """Ours: code without tuples can still use a tuple of an earlier run as a key."""
    sbox.run("a = (1, 2)\nb = (a, a)", session="earlier")
    for code in ("x = {}\nx[b] = 1\nx", "take({b: 1})"):
        result = sbox.run(code, session="earlier")
        assert result.error is not None
        assert "tuple" in result.error.message
