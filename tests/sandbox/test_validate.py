"""Checks of code that run none of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from standfast import BlockingSandbox, Capability, RegisteredTool, RunRequest, RunResult, tool
from standfast.runtime.code_turns import SandboxFunctions
from standfast.sandbox.monty.validate import Checkers, Validator
from standfast.sandbox.monty.workers import MontyWorkers
from standfast.sandbox.workers import Watchdog

pytestmark = pytest.mark.slow

Check = Callable[..., RunResult]


@pytest.fixture
def check(box: BlockingSandbox, sid: str) -> Check:
    def go(code: str, **options: Any) -> RunResult:
        return box.validate(code, session=sid, **options)

    return go


def _codes(result: RunResult) -> list[str]:
    return [item.code for item in result.diagnostics if item.severity == "error"]


def test_three_mistakes_are_three_diagnostics_with_positions(check: Check) -> None:
    """Ours: SPEC §5; a check reports all mistakes, with spans."""
    result = check("x = 'é' + nope(1)\ny: int = 'text'\nclass A(int):\n    pass\n")
    assert result.status == "validation_error"
    found = {item.code: item for item in result.diagnostics}
    assert set(found) >= {"UNKNOWN_TOOL", "TYPE_ERROR", "UNSUPPORTED_FEATURE"}
    spans = {code: item.span for code, item in found.items()}
    assert all(span is not None for span in spans.values())
    assert (spans["UNKNOWN_TOOL"].line, spans["UNKNOWN_TOOL"].column) == (1, 11)
    assert spans["TYPE_ERROR"].line == 2
    assert spans["UNSUPPORTED_FEATURE"].line == 3
    assert result.error is not None
    assert result.error.code == result.diagnostics[0].code == "UNKNOWN_TOOL"


GOOD = [
    "1 + 1",
    "",
    "x = add(1)\nadd(x, b=2)",
    "x = await add(1)\nx + 1",
    "await add_later(1) + add(2)",
    "import asyncio\nr = await asyncio.gather(add(1), add_later(2))\nr[0] + r[1]",
    "import asyncio\nawait asyncio.gather(*[add(i) for i in range(3)])",
    "tasks = [add_later(i) for i in range(3)]\nfor t in tasks:\n    await t",
    "async def f(n: int) -> int:\n    return await add_later(n)\nawait f(1)",
    "list(map(str, [1, 2]))",
    "list(filter(None, [0, 1]))",
    "class A:\n    pass\nsetattr(A(), 'x', 1)",
    "sorted([3, 1], key=lambda n: -n)",
    "def f(n):\n    return f(n - 1) if n else 0\nf(3)",
    "import json, re, math\njson.dumps({'a': math.pi})",
    "from datetime import datetime\ndatetime(2020, 1, 1).year",
    "result = {'a': [1, 2]}\nresult['a']",
    "print('x')",
    "echo([1, {'a': 2}])['x']",
    "f'{1:>5}' + 'é'",
    "with_ = 1\nwhile with_:\n    with_ -= 1",
    "list_tools()\ndescribe_tool('add')\ncurrent_policy()",
    "eval('1')",
    "locals()",
    "slice(1, 2)",
    "object",
]


@pytest.mark.parametrize("code", GOOD)
def test_correct_code_causes_no_false_alarm(check: Check, code: str) -> None:
    """Ours: a false alarm makes a model repair correct code."""
    result = check(code)
    assert (result.status, _codes(result)) == ("ok", []), result.diagnostics
    assert result.result is None


BAD = [
    ("x = (", ["SYNTAX_ERROR"]),
    ("add('x')", ["TYPE_ERROR"]),
    ("add(1, 2, 3)", ["TYPE_ERROR"]),
    ("add()", ["TYPE_ERROR"]),
    ("add(1, c=2)", ["TYPE_ERROR"]),
    ("add(1) + 'x'", ["TYPE_ERROR"]),
    ("nope()", ["UNKNOWN_TOOL"]),
    ("def f():\n    return nope()", ["UNKNOWN_TOOL"]),
    ("import numpy", ["UNSUPPORTED_FEATURE"]),
    ("from requests import get", ["UNSUPPORTED_FEATURE"]),
    ("x = 1\ndel x", ["UNSUPPORTED_FEATURE"]),
    ("def g():\n    yield 1", ["UNSUPPORTED_FEATURE"]),
    ("class B(dict):\n    pass", ["UNSUPPORTED_FEATURE"]),
]


@pytest.mark.parametrize(("code", "codes"), BAD, ids=[row[0] for row in BAD])
def test_each_kind_of_mistake_has_its_error_code(check: Check, code: str, codes: list[str]) -> None:
    """Ours: SPEC §5; syntax errors, type errors, calls to unknown names, unsupported features."""
    result = check(code)
    assert result.status == "validation_error"
    assert set(_codes(result)) == set(codes), result.diagnostics
    assert all(item.span is not None for item in result.diagnostics)


def test_every_unsupported_feature_is_listed(check: Check) -> None:
    """Ours: a check lists all of them, not only the first."""
    code = "x = 1\ndel x\ndef g():\n    yield 1\nclass A(int):\n    pass\ny = 2\nclass B(dict):\n    pass\n"
    result = check(code)
    lines = sorted(
        {item.span.line for item in result.diagnostics if item.span and item.code == "UNSUPPORTED_FEATURE"}
    )
    assert lines == [2, 4, 5, 8]


def test_several_syntax_errors_are_listed(check: Check) -> None:
    """Ours: a check lists all of them, not only the first."""
    result = check("x = = 1\ny = 2\nz = )\n")
    lines = {item.span.line for item in result.diagnostics if item.span and item.code == "SYNTAX_ERROR"}
    assert lines >= {1, 3}


def test_close_matches_are_in_the_hint(check: Check) -> None:
    """Ours: SPEC §5; a hint suggests close names at validation and at run time."""
    result = check("ad(1)\nadd_latr(1)")
    hints = [item.hint or "" for item in result.diagnostics]
    assert "add" in hints[0]
    assert "add_later" in hints[1]


def test_an_unknown_import_is_reported_with_the_available_modules(check: Check) -> None:
    """Ours: a model can choose only from what the message lists."""
    (found,) = check("import numpy").diagnostics
    assert "math" in (found.hint or "")


NOTHING_RUNS = [
    "note('plain')",
    "await note('awaited')",
    "@note\ndef f():\n    pass",
    "def f(x=note('default')):\n    pass",
    "class A:\n    x = note('class body')",
    "[note(i) for i in range(3)]",
    "note(10 ** 10 ** 9)",
    "x = 'a' * 10 ** 10\nnote(x)",
    "while True:\n    note(1)",
    "assert note('assert')",
    "x: note('annotation') = 1",
    "import asyncio\nasyncio.run(note(1))",
    "eval('note(1)')\nexec('note(1)')",
    "print('out')\nnote(1)\n1 / 0",
]


@pytest.mark.parametrize("code", NOTHING_RUNS)
def test_nothing_runs_when_code_is_only_checked(check: Check, noted: list[Any], code: str) -> None:
    """Ours: a check runs no decorators, defaults or constant folding."""
    result = check(code)
    assert noted == []
    assert result.stdout == result.stderr == ""
    assert result.external_calls == []
    assert result.metrics.external_calls_count == 0
    assert result.metrics.duration_ms < 2_000


def test_checking_changes_and_creates_no_session(box: BlockingSandbox, check: Check, sid: str) -> None:
    """Ours: validate_only runs nothing."""
    check("x = 1")
    assert sid not in [info.meta.id for info in box.sessions()]
    box.run("x = 'mine'", session=sid)
    check("x = 2\nresult = 3")
    assert box.run("x", session=sid).result == "mine"


def test_the_names_of_the_session_and_the_inputs_are_known(
    box: BlockingSandbox, check: Check, sid: str
) -> None:
    """Ours: names assigned by earlier runs are known."""
    assert check("helper(total) + rate").status == "validation_error"
    box.run("def helper(n):\n    return n\ntotal = 5\nimport math", session=sid)
    assert check("helper(total) + rate", inputs={"rate": 2}).status == "ok"
    assert check("math.floor(1.5)").status == "ok"


def test_names_that_start_with_an_underscore_are_known_too(
    box: BlockingSandbox, check: Check, sid: str
) -> None:
    """Bug: stubs do not export such names by themselves."""
    box.run("_x = 1\ndef _f():\n    return 2\n'last'", session=sid)
    assert check("_x + _f()").status == "ok"
    assert check("_given", inputs={"_given": 1}).status == "ok"


def test_a_star_import_in_an_earlier_run_is_not_reported(
    box: BlockingSandbox, check: Check, sid: str
) -> None:
    """Bug: the names of a session are part of the checked text, and `*` was one of them."""
    assert box.run("x = 1\nfrom math import *", session=sid).status == "runtime_error"
    assert check("x + 1").diagnostics == []
    assert [item.code for item in check("x + 1\nprize()").diagnostics] == ["UNKNOWN_TOOL"]


def test_a_name_that_no_earlier_run_bound_is_unknown(box: BlockingSandbox, check: Check, sid: str) -> None:
    """Ours: only names that earlier runs bound are known."""
    box.run("def helper(n):\n    return n\ntotal = 5", session=sid)
    box.run("1 + 1", session=sid)
    assert check("helper(total) + rate").status == "validation_error"


def test_a_name_that_was_only_an_input_is_unknown_afterwards(
    box: BlockingSandbox, check: Check, sid: str
) -> None:
    """Ours: inputs belong to their run."""
    box.run("y = rate", inputs={"rate": 2}, session=sid)
    assert check("y").status == "ok"
    assert check("rate()").status == "validation_error"


def test_a_request_may_ask_for_validation_only(box: BlockingSandbox, noted: list[Any]) -> None:
    """Seed: RunRequest.validate_only checks without running."""
    assert box.execute(RunRequest(code="note(1)", validate_only=True)).status == "ok"
    assert noted == []


def test_columns_after_non_ascii_text_count_characters(check: Check) -> None:
    """Ours: SPEC §3; columns are 1-based characters; the checker counts bytes or UTF-16 units."""
    (found,) = check("x = '😀é'; y = nope(1)").diagnostics
    assert found.span is not None
    assert (found.span.line, found.span.column) == (1, 15)
    (found,) = check("'é😀'\nclass Ä(int): pass").diagnostics
    assert found.span is not None
    assert found.span.line == 2


@pytest.mark.parametrize("code", ["(" * 20_000, "x" + ".a" * 20_000, "\0", "-" * 50_000 + "1", "'" * 9_999])
def test_checking_hostile_code_does_no_harm(box: BlockingSandbox, check: Check, code: str) -> None:
    """Ours: deep recursion in a parser must not crash the host."""
    check(code)
    assert check("1 + 1").status == "ok"


def test_a_capability_with_odd_property_names_does_not_break_every_check() -> None:
    """Bug: one stub that cannot be parsed made all code invalid."""
    odd = RegisteredTool.sync(
        Capability(
            name="odd",
            description="",
            input_schema={"type": "object", "properties": {"from": {"type": "string"}, "a-b": {}}},
        ),
        lambda context: None,
    )
    with BlockingSandbox(tools=[odd]) as box:
        assert box.validate("1 + 1").status == "ok"
        assert box.validate("odd('x')").status == "ok"
        assert "UNKNOWN_TOOL" in [item.code for item in box.validate("nope()").diagnostics]


def test_a_check_that_takes_too_long_times_out(box: BlockingSandbox, sid: str) -> None:
    """Bug: a check that was killed counted as passed."""
    request = RunRequest(session_id=sid, code="x = 1\n" * 40_000, timeout_ms=300, validate_only=True)
    late = box.execute(request)
    assert (late.status, late.error and late.error.code) == ("timeout", "TIMEOUT_WALL")
    assert box.validate("1 + 1", session=sid).status == "ok"


def test_at_most_two_hundred_mistakes_are_listed(check: Check) -> None:
    """Ours: the number of diagnostics is limited."""
    assert len(check("nope()\n" * 1000).diagnostics) == 200


def test_the_checker_knows_keyword_only_parameters_and_reports_a_fault_once() -> None:
    """Bug: sandbox sessions on Monty were checked like agents' cells, which is wrong."""

    @tool
    def pay(order: str, *, cents: int = 1) -> str:
        return order

    with BlockingSandbox(tools=[pay]) as box:
        for code in ("pay('A', 5)", "pay('A', cents='5')", "pay()", "pya('A')"):
            assert len(box.validate(code).diagnostics) == 1, code
        assert box.validate("n = n + 1", inputs={"n": 1}).diagnostics == []


def test_checks_share_a_loaded_checker_but_no_names() -> None:
    """Ours: the checker is loaded once; a check must not see the names of the one before it."""
    workers = MontyWorkers(2)
    checkers = Checkers(workers)
    try:
        with checkers.checker("") as first:
            pass
        with checkers.checker("") as second, checkers.checker("") as beside:
            assert beside is not second
        assert second is first
        with checkers.checker("def f() -> int: ...\n") as other:
            assert other is not second
    finally:
        checkers.close()
        workers.close()
    with BlockingSandbox() as box:
        assert box.validate("known = 1\ndef f(n: int) -> int:\n    return n").status == "ok"
        for code in ("known + 1", "f(1)", "class known: pass\nf"):
            assert box.validate(code).status == "validation_error", code


def test_a_checker_that_died_is_replaced() -> None:
    """Ours: the kept worker may die while idle, which must not fail the next check."""
    workers = MontyWorkers(2)
    checkers = Checkers(workers)
    with BlockingSandbox() as box:
        validator = Validator(checkers, SandboxFunctions(box.registry), Watchdog())
        try:
            assert validator.check("1 + 1", (), 30_000) == []
            kept = checkers._kept
            assert kept is not None
            os.kill(kept.pid, signal.SIGKILL)
            assert [one.code for one in validator.check("1 + 'a'", (), 30_000)] == ["TYPE_ERROR"]
            assert checkers._kept not in (None, kept)
        finally:
            checkers.close()
            workers.close()
