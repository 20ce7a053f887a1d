"""The result that a run reports."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast import RunResult

Run = Callable[..., RunResult]
Value = Callable[..., Any]

ONE_RUN: list[tuple[str, Any]] = [
    ("1 + 1", 2),
    ("", None),
    ("# only a comment", None),
    ("x = 5", None),
    ("x = 5\nx", 5),
    ("result = 3", 3),
    ("result = 3\n99", 3),
    ("99\nresult = 3", 3),
    ("result: int = 4", 4),
    ("result = 1\nresult += 2", 3),
    ("a = result = 7", 7),
    ("result, b = 1, 2", 1),
    ("[result, b] = 1, 2\n5", 1),
    ("if True:\n    result = 2", 2),
    ("if False:\n    result = 2\n5", 5),
    ("if False:\n    result = 2", None),
    ("for result in range(3):\n    pass", 2),
    ("for result in []:\n    pass\n8", 8),
    ("for i in range(3):\n    if i == 1:\n        result = i", 1),
    ("while True:\n    result = 'w'\n    break", "w"),
    ("try:\n    result = 1 // 0\nexcept ZeroDivisionError:\n    result = 'caught'", "caught"),
    ("(result := 6)", 6),
    ("if (result := 6) > 5:\n    pass", 6),
    ("[result for result in range(3)]", [0, 1, 2]),
    ("def f():\n    result = 1\n    return 2\nf()", 2),
    ("def f():\n    global result\n    result = 1\n    return 2\nf()", 1),
    ("def f():\n    global result\n    result = 1\n7", 7),
    ("def result():\n    return 1\nresult()", None),
    ("result = None\n5", None),
    ("result = 0\n5", 0),
    ("class A:\n    result = 5\n6", 6),
    ("x = 1; x + 1", 2),
    ("x = 1;\nx + 1;", 2),
    ("(\n1 +\n2\n)", 3),
    ("'a' 'b'", "ab"),
    ("'''x\ny'''", "x\ny"),
    ("print('x')", None),
    ("{'a': (1, 2)}", {"a": [1, 2]}),
    ("{1: 'x'}", {"1": "x"}),
    ("10**30", 10**30),
    ("-0.0", 0.0),
    ("True", True),
    ("'é' + '😀'", "é😀"),
    ("lambda_ = 4\nlambda_", 4),
    ("1 if True else 2", 1),
    ("1  # comment", 1),
    ("1 # comment ))", 1),
    ("await add_later(1)", 2),
    ("'result = 5'", "result = 5"),
    ("(i for i in range(3))", [0, 1, 2]),  # the engine's generators, zips and enumerates are lists
    ("[zip([1], [2]), enumerate('a')]", [[[1, 2]], [[0, "a"]]]),
    ("x = '''\nresult = 5\n'''\n3", 3),
]


@pytest.mark.parametrize(("code", "expected"), ONE_RUN, ids=[repr(row[0])[:50] for row in ONE_RUN])
def test_the_result_is_result_if_bound_else_the_last_expression(run: Run, code: str, expected: Any) -> None:
    """Ours: SPEC §5; the global `result` if this run bound it, else the last expression, else null."""
    outcome = run(code)
    if code.startswith("def result"):
        assert outcome.error is not None
        assert outcome.error.code == "RESULT_NOT_SERIALIZABLE"
    else:
        assert outcome.status == "ok", outcome.error
        assert outcome.result == expected


def test_an_old_result_is_not_reported_again(value: Value) -> None:
    """Bug: reading the global after every run reported an earlier result."""
    assert value("result = 41") == 41
    assert value("x = 1") is None
    assert value("5") == 5
    assert value("if False:\n    result = 2") is None
    assert value("result + 1") == 42
    assert value("def f():\n    global result\n    result = 9\n3") == 3
    assert value("x") == 1
    assert value("result") == 41


def test_result_persists_as_a_variable(value: Value) -> None:
    """Ours: `result` is a global like any other."""
    value("result = [1]")
    value("result.append(2)")
    assert value("result") == [1, 2]
    assert value("result += [3]") == [1, 2, 3]


def test_a_condition_that_does_not_bind_result_keeps_its_value(value: Value) -> None:
    """Bug: probing by unbinding `result` did not restore it."""
    value("result = 'kept'")
    assert value("if False:\n    result = 1\n7") == 7
    assert value("result") == "kept"
    assert value("if len(result) > 99:\n    result = 1\n8") == 8
    assert value("result") == "kept"


def test_the_same_conditional_code_reports_a_result_in_every_run(value: Value) -> None:
    """Bug: a second run that bound `result` to an equal value counted as not binding it."""
    code = "for i in range(3):\n    if i == 2:\n        result = i"
    assert [value(code) for _ in range(3)] == [2, 2, 2]
    reading = "n = 5\nif n:\n    result = n\nresult"
    assert [value(reading) for _ in range(3)] == [5, 5, 5]


def test_a_conditional_result_that_reads_the_old_one_is_reported(value: Value) -> None:
    """Bug: `result = result + 1` in a branch both reads and binds `result`."""
    value("result = 1")
    assert value("if True:\n    result = result + 1") == 2


def test_assigning_result_to_itself_binds_it(value: Value) -> None:
    """Ours: the binding counts, not whether the value differs."""
    value("result = 2")
    assert value("if True:\n    result = result") == 2


@pytest.mark.parametrize("literal", ["2", "'a'", "True", "(1, 2)", "''", "[]"])
def test_a_conditional_result_that_equals_the_old_one_is_reported(run: Run, literal: str) -> None:
    """Bug: small values are one object in the engine, so identity does not show a binding."""
    code = f"try:\n    print(result)\nexcept NameError:\n    pass\nif True:\n    result = {literal}\nprint(result)"
    first, second = run(code), run(code)
    assert first.result is not None
    assert second.result == first.result


@pytest.mark.parametrize("depth", [200, 300, 1_000, 5_000])
def test_a_deeply_nested_result_is_reported_whole_or_refused(run: Run, depth: int) -> None:
    """Bug: the engine truncates values at 256 levels and inserts a text, which gave a wrong result."""
    outcome = run(f"x = []\nfor i in range({depth}):\n    x = [x]\nx")
    if outcome.status == "ok":
        inner, found = outcome.result, 0
        while isinstance(inner, list) and inner:
            inner, found = inner[0], found + 1
        assert (found, inner) == (depth, [])
    else:
        assert outcome.error is not None
        assert outcome.error.code == "RESULT_NOT_SERIALIZABLE"


def test_a_function_of_an_earlier_run_binds_result_for_the_run_that_calls_it(
    value: Value,
) -> None:
    """Ours: a run binds `result` if it is bound while the run executes."""
    value("def save(x):\n    global result\n    result = x\n    return 'saved'")
    assert value("save(5)") == 5
    assert value("1 + 1") == 2
    assert value("save(6)\nNone") == 6
    assert value("result") == 6


def test_a_run_that_makes_calls_and_only_reads_result_does_not_bind_it(run: Run, value: Value) -> None:
    """Bug: the engine's answer was not read, because the calls before it counted towards its size."""
    run("result = 5")
    ended = run("for i in range(20): add(i, 1)\nif result == 4:\n    result = 7\ny = result + 1")
    assert (ended.status, ended.result) == ("ok", None)
    assert value("[y, result]") == [6, 5]


def test_an_error_after_binding_result_keeps_the_variable_but_reports_no_result(run: Run) -> None:
    """Ours: a Python exception keeps the bindings made before it."""
    outcome = run("result = 5\n1 / 0")
    assert (outcome.status, outcome.result) == ("runtime_error", None)
    assert run("result").result == 5


def test_a_variable_named_underscore_belongs_to_the_guest(value: Value) -> None:
    """Bug: storing the last expression under a name that guests use hid their variable."""
    value("_ = 5")
    value("6 * 7")
    value("[i for i in range(3)]")
    assert value("_") == 5
    assert value("for _ in range(3):\n    pass\n_") == 2


def test_an_input_named_result_is_not_a_result(value: Value) -> None:
    """Ours: an input is not bound by the run."""
    assert value("result + 1", inputs={"result": 1}) == 2
    assert value("5", inputs={"result": 1}) == 5


STRANGE: list[tuple[str, str]] = [
    ("{1, 2}", "set"),
    ("frozenset([1])", "frozenset"),
    ("[1, {2}]", "set"),
    ("{'a': {'b': {3}}}", "set"),
    ("len", "function"),
    ("lambda: 1", "function"),
    ("def f():\n    pass\nf", "function"),
    ("add", "function"),
    ("[add]", "function"),
    ("import math\nmath", "module"),
    ("range(3)", "range"),
    ("[range(3)]", "range"),
    ("class A:\n    pass\nA()", "A"),
    ("class A:\n    pass\nA", "type"),
    ("class A:\n    def __repr__(self):\n        return 'x'\n[A()]", "A"),
    ("int", "type"),
    ("import datetime\ndatetime.datetime(2020, 1, 1)", "datetime"),
    ("import datetime\ndatetime.date(2020, 1, 1)", "date"),
    ("import datetime\ndatetime.timedelta(1)", "timedelta"),
    ("float('nan')", "float"),
    ("float('inf')", "float"),
    ("[1, -float('inf')]", "float"),
    ("b'x'", "bytes"),
    ("{(1, 2): 3}", "tuple"),
    ("{b'k': 3}", "bytes"),
    ("x = []\nx.append(x)\nx", "cycle"),
    ("x = {}\nx['x'] = [x]\nx", "cycle"),
    ("ValueError('x')", "ValueError"),
    ("...", "ellipsis"),
    ("[...]", "ellipsis"),
    ("NotImplemented", "NotImplementedType"),
    ("import re\nre.compile('x')", "Pattern"),
    ("import re\nre.match('x', 'x')", "Match"),
    ("iter([1])", "iterator"),
    ("{'a': 1}.keys()", "dict_keys"),
    ("async def f():\n    pass\nf()", "coroutine"),
    ("import decimal\ndecimal.Decimal('1.5')", "Decimal"),
    ("from pathlib import Path\nPath('/x')", "Path"),
]


@pytest.mark.parametrize(("code", "type_name"), STRANGE, ids=[repr(row[0])[:50] for row in STRANGE])
def test_a_result_that_is_not_json_is_refused_with_the_name_of_its_type(
    run: Run, code: str, type_name: str
) -> None:
    """Ours: SPEC §5; RESULT_NOT_SERIALIZABLE with the type's name as hint, never the text of a repr."""
    outcome = run(code)
    assert outcome.status == "validation_error", (outcome.status, outcome.result, outcome.error)
    assert outcome.error is not None
    assert outcome.error.code == "RESULT_NOT_SERIALIZABLE"
    assert outcome.result is None
    assert type_name.lower() in (outcome.error.hint or "").lower()


LOOKALIKES = [
    "<b>x</b>", "<function f at 0x7f>", "range(0, 3)", "f", "add", "len", "...", "[...]", "{...}", "a(b)",
    "<module 'math'>", "print()", "(...)", "<class 'int'>", "int", "datetime.datetime(2020, 1, 1)", "nan",
]  # fmt: skip


@pytest.mark.parametrize("text", LOOKALIKES)
def test_text_that_merely_looks_like_a_repr_is_text(value: Value, text: str) -> None:
    """Bug: the engine returns functions as text; real text must not be refused as a function."""
    value("def f():\n    pass")
    assert value(f"{text!r}") == text
    assert value(f"result = [1, {{'k': {text!r}}}]") == [1, {"k": text}]
    assert value("if True:\n    result = t", inputs={"t": text}) == text


def test_a_session_stays_usable_after_a_result_that_is_not_json(value: Value, run: Run) -> None:
    """Ours: the code ran, and only its result is not JSON."""
    assert run("x = 5\n{x}").status == "validation_error"
    assert value("x") == 5


def test_a_result_above_the_cap_is_refused_and_its_variable_is_kept(run: Run, value: Value) -> None:
    """Ours: SPEC §11; every size is limited."""
    large = run("text = 'a' * (9 << 20)\n[text, text]", limits={"memory_mb": 256})
    assert (large.status, large.error and large.error.code) == ("resource_exhausted", "RESPONSE_TOO_LARGE")
    assert value("len(text)", limits={"memory_mb": 256}) == 9 << 20
