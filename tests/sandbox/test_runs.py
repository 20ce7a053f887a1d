"""Runs: state, inputs, errors, output and tool calls."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast import BlockingSandbox, RunResult, Sandbox, SessionLimits, Span, tool
from standfast.model.canonical import digest_json

Run = Callable[..., RunResult]
Value = Callable[..., Any]


# ── state ────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_keeps_its_variables_functions_and_classes(value: Value) -> None:
    """Seed: a session is state that runs share."""
    value(
        "import math\nx = [1]\ndef f(n):\n    return n + len(x)\nclass A:\n    def __init__(self):\n        self.v = 7\na = A()"
    )
    value("x.append(2)")
    assert value("[x, f(1), a.v, math.floor(2.5)]") == [[1, 2], 3, 7, 2]


def test_sessions_do_not_see_each_other(run: Run) -> None:
    """Seed: state belongs to a session."""
    run("x = 1")
    other = run("x", session="another-one")
    assert other.status == "runtime_error"
    assert "NameError" in (other.error.message if other.error else "")


def test_an_exception_keeps_the_bindings_made_before_it(run: Run, value: Value) -> None:
    """Ours: SPEC §5; variables are kept, as in a REPL."""
    failed = run("x = 1\ny = [x]\n1 / 0\nz = 2")
    assert failed.status == "runtime_error"
    assert not any(item.code == "SESSION_ROLLED_BACK" for item in failed.diagnostics)
    assert value("[x, y]") == [1, [1]]
    assert run("z").status == "runtime_error"


@pytest.mark.parametrize(
    ("code", "limits"),
    [
        ("while True:\n    pass", {"cpu_ms": 50}),
        ("y = [0] * 10**8", {"memory_mb": 8}),
        ("import time\ntime.sleep(5)", {"wall_ms": 60}),
        ("hang()", {"wall_ms": 60}),
        ("for i in range(9):\n    add(i)", {"max_external_calls": 3}),
        ("while True:\n    print('x' * 1000)", {"max_stdout_bytes": 100}),
    ],
    ids=["cpu", "memory", "sleep", "tool", "calls", "stdout"],
)
def test_a_hard_stop_rolls_the_session_back_and_says_so(
    run: Run, value: Value, code: str, limits: dict[str, int]
) -> None:
    """Ours: SPEC §5; a diagnostic says that the session was rolled back."""
    value("x = 1\nitems = [1]")
    stopped = run(f"x = 2\nitems.append(2)\nw = 3\n{code}", limits=limits)
    assert stopped.status in ("timeout", "resource_exhausted")
    assert [item.code for item in stopped.diagnostics][-1] == "SESSION_ROLLED_BACK"
    assert stopped.diagnostics[0].severity == "error"
    assert value("[x, items]") == [1, [1]]
    assert run("w").status == "runtime_error"


def test_refused_code_changes_nothing(run: Run, value: Value) -> None:
    """Ours: syntax and features are checked before the first statement."""
    value("x = 1")
    for code in ("x = 2\nx = (", "x = 2\nclass A(int):\n    pass", "x = 2\ndel x"):
        assert run(code).status == "validation_error"
    assert value("x") == 1


def test_a_hundred_concurrent_increments_on_one_session_lose_no_update() -> None:
    """Ours: SPEC §5; two runs on one session queue and never lose state."""

    async def go() -> Any:
        async with Sandbox() as box:
            await box.run("n = 0", session="s")
            results = await asyncio.gather(*(box.run("n += 1\nn", session="s") for _ in range(100)))
            assert all(item.status == "ok" for item in results)
            assert sorted(item.result for item in results) == list(range(1, 101))
            return (await box.run("n", session="s")).result

    assert asyncio.run(go()) == 100


def test_many_sessions_run_concurrently_with_few_workers() -> None:
    """Ours: workers are a bounded pool; sessions wait for one and keep their state without it."""

    async def go() -> None:
        async with Sandbox(workers=2) as box:
            for round_ in range(3):
                results = await asyncio.gather(
                    *(box.run(f"n = {'0' if not round_ else 'n + 1'}\nn", session=f"s{i}") for i in range(12))
                )
                assert [item.result for item in results] == [round_] * 12

    asyncio.run(go())


def test_runs_in_quick_succession_see_the_state_of_the_run_before_them() -> None:
    """Bug: the memory store saves the state after the result, and the next run did not wait for it."""

    @tool(side_effect="read")
    async def later(x: int) -> int:
        return x

    gather = "import asyncio\nawait asyncio.gather(*[later(i) for i in range(2)])"
    with BlockingSandbox(tools=[later]) as box:
        for index in range(25):
            box.run("x = 1", session=f"s{index}")
            gathered = box.run(gather, session=f"s{index}")
            assert gathered.result == [0, 1], (index, gathered.error)
        for index in range(25):
            box.run("x = 1", session=f"t{index}")
            box.run("y = x", inputs={"x": 5}, session=f"t{index}")
            assert box.run("x", session=f"t{index}").result == 1, index


def test_three_hundred_runs_keep_the_stored_session_small(box: BlockingSandbox, sid: str) -> None:
    """Bug: the engine keeps the source of every run, so dumps grew without limit."""
    for index in range(300):
        result = box.run(f"x = {index}\nif x % 7 == 0:\n    y = x\n'{'pad' * 60}'", session=sid)
        assert result.status == "ok"
    assert box.session(sid).state_bytes < 64_000
    assert box.run("[x, y]", session=sid).result == [299, 294]


def test_functions_survive_three_hundred_runs(run: Run, value: Value) -> None:
    """Bug: sources that functions refer to were dropped with the others."""
    value("def boom(n):\n    return 1 // n\nasync def twice(n):\n    return await add_later(n, n)")
    for index in range(300):
        value(f"x = {index}\n'{'pad' * 60}'")
    assert value("await twice(4)") == 8
    failed = run("boom(0)")
    assert failed.error is not None
    assert "ZeroDivisionError" in failed.error.message
    assert failed.error.span == Span(line=1, column=1, end_line=1, end_column=8)


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────


def test_inputs_are_variables_of_one_run_only(run: Run, value: Value) -> None:
    """Seed: inputs. Ours: they are gone after the run."""
    assert value("a + b['c'][0]", inputs={"a": 1, "b": {"c": [2]}}) == 3
    assert run("a").status == "runtime_error"
    assert run("b").status == "runtime_error"


def test_a_variable_hidden_by_an_input_reappears(value: Value) -> None:
    """Ours: inputs belong to the run, variables to the session."""
    value("x = 'mine'")
    assert value("x", inputs={"x": "given"}) == "given"
    assert value("x") == "mine"


def test_a_hidden_variable_reappears_after_an_error_too(run: Run, value: Value) -> None:
    """Ours: an exception ends the run, and with it the inputs."""
    value("x = 'mine'")
    assert run("1 / 0", inputs={"x": 1, "y": 2}).status == "runtime_error"
    assert value("x") == "mine"
    assert run("y").status == "runtime_error"


def test_an_input_that_the_code_rebinds_still_ends_with_the_run(run: Run, value: Value) -> None:
    """Ours: SPEC §5; inputs are variables of this run, on every engine."""
    assert value("x = x + 1\nx", inputs={"x": 1}) == 2
    assert run("x").status == "runtime_error"
    value("x = 'mine'")
    assert value("x = x + 1\nx", inputs={"x": 1}) == 2
    assert value("x") == "mine"


def test_an_input_whose_name_an_inner_scope_binds_still_ends_with_the_run(run: Run, value: Value) -> None:
    """Bug: names bound in an inner scope counted as bound by the run."""
    assert value("[x for x in [1, 2]] + [y]", inputs={"x": 5, "y": 3}) == [1, 2, 3]
    value("def f():\n    z = 1\n    return z\nf() + z", inputs={"z": 5})
    for name in "xyz":
        assert run(name).status == "runtime_error", name


def test_inputs_are_passed_by_value(value: Value) -> None:
    """Ours: SPEC §5; guest code cannot change the host's objects."""
    given: dict[str, Any] = {"items": [1], "table": {"k": [1]}}
    value("items.append(2)\ntable['k'].append(2)\ntable['new'] = 1", inputs=given)
    assert given == {"items": [1], "table": {"k": [1]}}


@pytest.mark.parametrize(
    "bad", [float("nan"), b"x", {1}, object(), "\ud800"], ids=lambda item: type(item).__name__
)
def test_an_input_that_is_not_json_is_refused(run: Run, bad: object) -> None:
    """Ours: inputs are JSON."""
    result = run("1", inputs={"x": bad})
    assert result.status == "validation_error"
    assert result.error is not None
    assert result.error.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("name", ["print", "len", "add", "_", "result", "None", "class"])
def test_an_input_may_have_any_name_that_a_variable_may_have(run: Run, value: Value, name: str) -> None:
    """Ours: an input may hide a built-in or a tool for a run; keywords are refused."""
    result = run(f"[{name}]", inputs={name: 5})
    if name in ("None", "class"):
        assert result.status == "validation_error"
    else:
        assert result.result == [5], result.error
    assert value("[len('ab'), add(1)]") == [2, 2]


def test_big_integers_and_floats_pass_unchanged(value: Value) -> None:
    """Ours: values are converted without loss."""
    given = {"n": 10**40, "m": -(2**63), "f": 0.1, "g": 1e300, "s": "é\0😀"}
    assert value("[n, m, f, g, s]", inputs=given) == list(given.values())
    assert value("echo([n, m, f, g, s])", inputs=given) == list(given.values())


# ── limits of one run ────────────────────────────────────────────────────────────────────────────


def test_limits_of_a_run_apply_only_to_it(run: Run, value: Value) -> None:
    """Bug: the engine can only tighten a stored session's limits, so a run with small limits shrank the session."""
    assert value("x = 1\nx", limits={"memory_mb": 8, "cpu_ms": 100, "max_stack_depth": 20}) == 1
    assert value("len('a' * (20 << 20))") == 20 << 20
    assert value("def f(n):\n    return n and f(n - 1)\nf(100)") == 0
    assert run("len('a' * (20 << 20))", limits={"memory_mb": 8}).status == "resource_exhausted"
    assert value("len('a' * (20 << 20)) + x") == (20 << 20) + 1


@pytest.mark.parametrize("megabytes", [1, 8, 20, 40])
def test_a_large_variable_is_kept_or_refused_but_never_lost(run: Run, value: Value, megabytes: int) -> None:
    """Bug: storing a session needs memory too; a variable that cannot be stored must be refused."""
    value("y = 'before'")
    result = run(f"y = 'a' * ({megabytes} << 20)\nlen(y)")
    if result.status == "ok":
        assert value("len(y)") == megabytes << 20
    else:
        assert (result.status, result.error and result.error.code) == (
            "resource_exhausted",
            "MEMORY_EXCEEDED",
        )
        assert value("y") == "before"
    assert megabytes > 8 or result.status == "ok"


def test_a_run_may_have_higher_limits_than_its_session(run: Run, value: Value) -> None:
    """Ours: a request's limits replace the session's, whether higher or lower."""
    code = "'a' * (80 << 20)\n1"
    assert run(code).status == "resource_exhausted"
    assert value(code, limits={"memory_mb": 128}) == 1
    assert run(code).status == "resource_exhausted"


def test_timeout_ms_applies_only_to_its_run(run: Run, value: Value) -> None:
    """Seed: timeout_ms limits one run."""
    started = time.monotonic()
    late = run("hang(9)", timeout_ms=80)
    assert time.monotonic() - started < 3
    assert (late.status, late.error and late.error.code) == ("timeout", "TIMEOUT_WALL")
    assert value("import time\ntime.sleep(0.1)\n5") == 5


def test_a_sessions_limits_apply_to_all_its_runs(box: BlockingSandbox, sid: str) -> None:
    """Seed: create_session takes limits."""
    box.create(sid, limits={"memory_mb": 8})
    assert box.run("x = 'a' * (20 << 20)", session=sid).status == "resource_exhausted"
    assert box.session(sid).meta.limits == SessionLimits(memory_mb=8)


@pytest.mark.parametrize(
    "limits", [{"memory": 5}, {"memory_mb": 0}, {"cpu_ms": -1}, {"wall_ms": "x"}], ids=str
)
def test_invalid_limits_are_refused(run: Run, limits: dict[str, Any]) -> None:
    """Ours: a misspelt limit must not mean no limit."""
    result = run("1", limits=limits)
    assert (result.status, result.error and result.error.code) == ("validation_error", "INVALID_ARGUMENT")


# ── calls ────────────────────────────────────────────────────────────────────────────────────────

CALLS = [
    ("add(1)", 2),
    ("add_later(1)", 2),
    ("await add(1)", 2),
    ("await add_later(1)", 2),
    ("add(add(add_later(1)), b=5)", 8),
    ("add(await add_later(1)) + add_later(b=1, a=2)", 6),
    ("f = add\nf(1)", 2),
    ("fs = [add, add_later]\n[f(1) for f in fs]", [2, 2]),
    ("[add(i) for i in range(3)]", [1, 2, 3]),
    ("{k: add(k) for k in range(2)}", {"0": 1, "1": 2}),
    ("def f(n):\n    return add(n)\nf(1)", 2),
    ("def f(n):\n    return add_later(n)\nf(1)", 2),
    ("async def f(n):\n    return await add(n)\nawait f(1)", 2),
    ("async def f(n):\n    return add_later(n)\nawait f(1)", 2),
    ("async def f(n):\n    x = await add_later(n)\n    return x * 10\nawait f(1)", 20),
    ("class A:\n    def m(self):\n        return add(1)\nA().m()", 2),
    ("(lambda n: add(n))(1)", 2),
    ("x = add(1) if add(0) else None\nx", 2),
    ("f'{add(1)}-{await add_later(2)}'", "2-3"),
    ("add(*[1], **{'b': 2})", 3),
    ("t = add_later(1)\nt + 1", 3),
    ("t = add(1)\nawait add_later(t)", 3),
    ("try:\n    x = add(1)\nfinally:\n    y = add(2)\n[x, y]", [2, 3]),
]


@pytest.mark.parametrize(("code", "expected"), CALLS, ids=[repr(row[0])[:60] for row in CALLS])
def test_a_sync_or_async_tool_can_be_called_plainly_or_awaited(
    value: Value, code: str, expected: Any
) -> None:
    """Ours: SPEC §4; guest code need not know whether a tool is sync or async."""
    assert value(code) == expected


IMPORT = "import asyncio\n"
GATHERS = [
    "await asyncio.gather({f}('P', 3, 0), {f}('P', 3, 1), {f}('P', 3, 2))",
    "await asyncio.gather(*[{f}('P', 3, i) for i in range(3)])",
    "await asyncio.gather(*({f}('P', 3, i) for i in range(3)))",
    "tasks = [{f}('P', 3, i) for i in range(3)]\nawait asyncio.gather(*tasks)",
    "tasks = []\nfor i in range(3):\n    tasks.append({f}('P', 3, i))\nawait asyncio.gather(*tasks)",
    "tasks = []\nfor i in range(3):\n    t = {f}('P', 3, i)\n    tasks.append(t)\nawait asyncio.gather(*tasks)",
    "tasks = []\nfor i in range(3):\n    tasks += [{f}('P', 3, i)]\nawait asyncio.gather(*tasks)",
    "a, b, c = [{f}('P', 3, i) for i in range(3)]\nawait asyncio.gather(a, b, c)",
    "a = {f}('P', 3, 0)\nb = {f}('P', 3, 1)\nc = {f}('P', 3, 2)\nawait asyncio.gather(a, b, c)",
    "a = {f}('P', 3, 0)\nb = {f}('P', 3, 1)\nc = {f}('P', 3, 2)\n[await a, await b, await c]",
    "tasks = [{f}('P', 3, i) for i in range(3)]\nout = []\nfor t in tasks:\n    out.append(await t)\nout",
    "tasks = [{f}('P', 3, i) for i in range(3)]\n[await t for t in tasks]",
    "async def one(i):\n    return await {f}('P', 3, i)\nawait asyncio.gather(one(0), one(1), one(2))",
    "async def one(i):\n    return await {f}('P', 3, i)\nawait asyncio.gather(*[one(i) for i in range(3)])",
    "async def all_():\n    return await asyncio.gather(*[{f}('P', 3, i) for i in range(3)])\nawait all_()",
    "async def main():\n    ts = [{f}('P', 3, i) for i in range(3)]\n    return await asyncio.gather(*ts)\nasyncio.run(main())",
    "def start(i):\n    return {f}('P', 3, i)\nawait asyncio.gather(*[start(i) for i in range(3)])",
    "ts = {{i: {f}('P', 3, i) for i in range(3)}}\nawait asyncio.gather(*ts.values())",
    "from asyncio import gather\nawait gather(*[{f}('P', 3, i) for i in range(3)])",
    "x = [2 * n for n in await asyncio.gather(*[{f}('P', 3, i) for i in range(3)])]\n[n // 2 for n in x]",
]


@pytest.mark.parametrize("tool_name", ["meet", "meet_later"])
@pytest.mark.parametrize("code", GATHERS, ids=[repr(row)[:70] for row in GATHERS])
def test_gathered_calls_run_concurrently(value: Value, sid: str, code: str, tool_name: str) -> None:
    """Ours: SPEC §4; the tool returns only once all three calls run."""
    assert value(IMPORT + code.format(f=tool_name).replace("'P'", f"'{sid}'")) == [0, 1, 2]


def test_functions_of_an_earlier_run_can_gather_too(value: Value, sid: str) -> None:
    """Bug: whether a call is awaited is decided from the code, which is not available for earlier runs."""
    value(
        "import asyncio\n"
        "async def one(place, i):\n    return await meet_later(place, 3, i)\n"
        "async def all_(place):\n    return await asyncio.gather(*[meet(place, 3, i) for i in range(3)])\n"
        "def start(place, i):\n    return meet_later(place, 3, i)\n"
    )
    assert value(f"await asyncio.gather(*[one('{sid}a', i) for i in range(3)])") == [0, 1, 2]
    assert value(f"await all_('{sid}b')") == [0, 1, 2]
    assert value("add(1)") == 2
    assert value(f"await all_('{sid}c')") == [0, 1, 2]


def test_gather_raises_a_failure_in_guest_code(value: Value) -> None:
    """Ours: the first exception of a gather is catchable."""
    assert (
        value(
            "import asyncio\ntry:\n    await asyncio.gather(add_later(1), fail())\nexcept ValueError as e:\n    result = str(e)"
        )
        == "told so"
    )


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("fail()", "ValueError: told so"),
        ("fail('KeyError')", "KeyError: 'told so'"),
        ("fail('OSError')", "OSError: told so"),
        ("await fail()", "ValueError: told so"),
    ],
)
def test_a_tools_exception_is_raised_in_the_guest(run: Run, value: Value, code: str, seen: str) -> None:
    """Ours: a tool that raises becomes a typed failure, which code can catch by its type."""
    kind = seen.split(":")[0]
    caught = value(f"try:\n    {code}\nexcept {kind} as e:\n    result = f'{kind}: {{e}}'")
    assert caught == seen
    failed = run(code)
    assert (failed.status, failed.error and failed.error.code) == ("runtime_error", "TOOL_ERROR")
    assert failed.external_calls[0].status == "error"


def test_an_uncaught_tool_error_ends_the_run_with_its_own_code(run: Run) -> None:
    """Seed: a ToolError has its own code and message."""
    failed = run("x = 1\nfail('ToolError')")
    assert failed.status == "runtime_error"
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("OUT_OF_STOCK", "none left")
    assert failed.error.span == Span(line=2, column=1, end_line=2, end_column=18)


def test_calls_are_recorded_in_the_order_they_were_made(run: Run) -> None:
    """Seed: a result has external_calls and external_calls_count."""
    result = run(
        "import asyncio\nadd(1)\nawait asyncio.gather(add_later(2), add(3))\ntry:\n    fail()\nexcept ValueError:\n    pass"
    )
    assert [item.name for item in result.external_calls] == ["add", "add_later", "add", "fail"]
    assert [item.status for item in result.external_calls] == ["ok", "ok", "ok", "error"]
    assert result.external_calls[0].request_digest == digest_json(["add", [1], {}])
    assert result.external_calls[0].response_digest == digest_json(2)
    assert result.metrics.external_calls_count == 4


def test_a_malformed_call_is_a_type_error_in_the_guest(run: Run, value: Value) -> None:
    """Ours: a TypeError as in Python, and INVALID_ARGUMENT if the guest does not catch it."""
    assert value("try:\n    add('x')\nexcept TypeError:\n    result = 'caught'") == "caught"
    failed = run("add()")
    assert (failed.status, failed.error and failed.error.code) == ("validation_error", "INVALID_ARGUMENT")


STRANGE_ARGUMENTS = [
    "{1, 2}", "b'x'", "float('nan')", "range(3)", "add", "len", "lambda: 1", "[lambda: 1]", "{'k': range(2)}",
    "ValueError('x')", "...", "int",
]  # fmt: skip


@pytest.mark.parametrize("argument", STRANGE_ARGUMENTS)
def test_an_argument_that_is_not_json_is_refused_instead_of_passed_as_text(run: Run, argument: str) -> None:
    """Bug: the engine returns functions and ranges as text, which a tool must not receive."""
    result = run(f"echo({argument})")
    assert result.status == "validation_error", (result.status, result.result, result.error)
    assert result.error is not None
    assert result.error.code == "INVALID_ARGUMENT"


def test_a_deeply_nested_argument_arrives_whole_or_is_refused(run: Run) -> None:
    """Bug: the engine truncates values at 256 levels and inserts a text."""
    result = run(
        "x = []\nfor i in range(600):\n    x = [x]\nd = 0\ny = echo(x)\nwhile isinstance(y, list) and y:\n    y = y[0]\n    d += 1\nd"
    )
    assert result.result == 600 or result.status == "validation_error", (result.status, result.result)


# ── unknown names ────────────────────────────────────────────────────────────────────────────────


def test_a_call_to_an_unknown_name_is_an_unknown_tool_with_close_matches(run: Run) -> None:
    """Ours: SPEC §5; UNKNOWN_TOOL has close matches in its hint."""
    failed = run("x = 1\nad(1)")
    assert failed.status == "validation_error"
    assert failed.error is not None
    assert failed.error.code == "UNKNOWN_TOOL"
    assert "add" in (failed.error.hint or "")
    assert failed.error.span is not None
    assert failed.error.span.line == 2


def test_guest_code_may_catch_the_name_error(value: Value) -> None:
    """Ours: SPEC §5; guest code may catch the NameError of an unknown call."""
    assert (
        value("try:\n    nope(1)\nexcept NameError as e:\n    result = str(e)")
        == "name 'nope' is not defined"
    )
    assert value("try:\n    nope\nexcept NameError:\n    result = 'read'") == "read"


def test_reading_an_unknown_name_is_a_name_error_not_an_unknown_tool(code_of: Callable[..., str]) -> None:
    """Ours: UNKNOWN_TOOL is only for calls."""
    assert code_of("nope") == "RUNTIME_ERROR"
    assert code_of("nope + 1") == "RUNTIME_ERROR"


def test_an_unknown_name_inside_a_function_is_found_only_when_it_is_called(run: Run, value: Value) -> None:
    """Ours: a name may be bound later."""
    value("def f():\n    return helper(1)")
    assert run("f()").error.code == "UNKNOWN_TOOL"
    value("def helper(n):\n    return n + 1")
    assert value("f()") == 2


# ── positions ────────────────────────────────────────────────────────────────────────────────────

PLACES = [
    ("1 / 0", (1, 1, 1, 6)),
    ("x = 1\n1 / 0", (2, 1, 2, 6)),
    ("x = 1; 1 / 0", (1, 8, 1, 13)),
    ("x = 1 / 0", (1, 5, 1, 10)),
    ("'é😀'; 1 / 0", (1, 7, 1, 12)),
    ("'é😀' + 1 / 0", (1, 8, 1, 13)),
    ("'é😀' + str(1 / 0)", (1, 12, 1, 17)),
    ("x = 'é😀' + str(1 / 0)", (1, 16, 1, 21)),
    ("if True:\n    1 / 0", (2, 5, 2, 10)),
    ("(\n    1 /\n    0\n)", (2, 5, 3, 6)),
    ("[\n 1,\n 1 / 0,\n]", (3, 2, 3, 7)),
    ("'''a\né''' + (1 / 0)", (2, 9, 2, 14)),
    ("def f():\n    return 1 / 0\nf()", (2, 12, 2, 17)),
    ("def f():\n    return 1 / 0\nx = f()", (2, 12, 2, 17)),
    ("\n\n  \n1 / 0", (4, 1, 4, 6)),
    ("\t\n1 / 0", (2, 1, 2, 6)),
    ("x = 1\r\n1 / 0", (2, 1, 2, 6)),
]


@pytest.mark.parametrize(("code", "place"), PLACES, ids=[repr(row[0]) for row in PLACES])
def test_an_error_has_its_position(run: Run, code: str, place: tuple[int, int, int, int]) -> None:
    """Ours: SPEC §3; spans have 1-based lines and columns, which count characters."""
    failed = run(code)
    assert failed.error is not None
    assert "ZeroDivisionError" in failed.error.message
    line, column, end_line, end_column = place
    assert failed.error.span == Span(line=line, column=column, end_line=end_line, end_column=end_column)


@pytest.mark.parametrize(
    ("code", "line", "column"),
    [("x = 1\ny = = 2", 2, 5), ("é = 1; (", 1, 8), ("def f(:\n    pass", 1, 7), ("result = 1\nx = )", 2, 5)],
)
def test_a_syntax_error_has_its_position(run: Run, code: str, line: int, column: int) -> None:
    """Ours: SPEC §3; a syntax error has a span."""
    failed = run(code)
    assert (failed.status, failed.error and failed.error.code) == ("validation_error", "SYNTAX_ERROR")
    assert failed.error is not None
    assert failed.error.span is not None
    assert failed.error.span.line == line
    assert abs(failed.error.span.column - column) <= 1


def test_an_error_in_a_function_of_an_earlier_run_points_at_the_call(run: Run, value: Value) -> None:
    """Ours: a span refers to the code of this run; the earlier source is not available."""
    value("def f(n):\n\n\n\n\n    return 1 // n")
    failed = run("x = 5\ny = f(0)")
    assert failed.error is not None
    assert "ZeroDivisionError" in failed.error.message
    assert failed.error.span == Span(line=2, column=5, end_line=2, end_column=9)


# ── output ───────────────────────────────────────────────────────────────────────────────────────


def test_printed_output_is_captured(run: Run) -> None:
    """Seed: a result has stdout and stderr."""
    result = run("import sys\nprint('a', 1, sep='-', end='!\\n')\nprint('b', file=sys.stderr)\nprint('é😀')")
    assert result.status == "ok", result.error
    assert (result.stdout, result.stderr) == ("a-1!\né😀\n", "b\n")


def test_output_before_an_error_or_a_stop_is_kept(run: Run) -> None:
    """Ours: earlier output helps to find the cause."""
    assert run("print('before')\n1 / 0").stdout == "before\n"
    assert run("print('before')\nwhile True:\n    pass", limits={"cpu_ms": 50}).stdout == "before\n"


def test_output_above_the_cap_is_dropped_with_a_warning(run: Run) -> None:
    """Ours: SPEC §5; dropped output causes an OUTPUT_TRUNCATED warning."""
    result = run("print('abcdef')\nprint('x')\n5", limits={"max_stdout_bytes": 4})
    assert (result.status, result.result, result.stdout) == ("ok", 5, "abcd")
    assert [(item.severity, item.code) for item in result.diagnostics] == [("warning", "OUTPUT_TRUNCATED")]


def test_output_of_exactly_the_cap_is_kept_whole(run: Run) -> None:
    """Ours: the limit itself is still permitted."""
    result = run("print('abc')", limits={"max_stdout_bytes": 4})
    assert result.stdout == "abc\n"
    assert result.diagnostics == []


@pytest.mark.parametrize("cap", range(1, 9))
def test_output_is_cut_between_characters(run: Run, cap: int) -> None:
    """Ours: SPEC §5; output is cut at a character boundary."""
    result = run("print('é😀é')", limits={"max_stdout_bytes": cap})
    expected = "é😀é\n".encode()[:cap].decode(errors="ignore")
    assert result.stdout == expected


def test_no_output_is_kept_after_the_cut(run: Run) -> None:
    """Bug: a short line after the cut was kept, leaving a gap."""
    result = run("print('é' * 9, end='')\nprint('tail')", limits={"max_stdout_bytes": 5})
    assert result.stdout == "éé"


def test_output_of_sixteen_times_the_cap_ends_the_run(run: Run, value: Value) -> None:
    """Ours: SPEC §5; the error is STDOUT_EXCEEDED."""
    fits = run("for i in range(16):\n    print('x' * 99)\n5", limits={"max_stdout_bytes": 100})
    assert (fits.status, fits.result) == ("ok", 5)
    floods = run("for i in range(17):\n    print('x' * 99)\n5", limits={"max_stdout_bytes": 100})
    assert (floods.status, floods.error and floods.error.code) == ("resource_exhausted", "STDOUT_EXCEEDED")
    assert {item.code for item in floods.diagnostics} >= {
        "STDOUT_EXCEEDED",
        "OUTPUT_TRUNCATED",
        "SESSION_ROLLED_BACK",
    }
    assert value("1 + 1") == 2


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_exactly_the_permitted_calls_run_and_the_next_ends_the_run(
    run: Run, noted: list[Any], limit: int
) -> None:
    """Ours: SPEC §5; exactly max_external_calls calls run."""
    code = "for i in range({}):\n    note(i)\n'done'"
    assert run(code.format(limit), limits={"max_external_calls": limit}).result == "done"
    assert noted == list(range(limit))
    noted.clear()
    stopped = run(code.format(limit + 1), limits={"max_external_calls": limit})
    assert (stopped.status, stopped.error and stopped.error.code) == (
        "resource_exhausted",
        "EXTERNAL_CALLS_EXCEEDED",
    )
    assert noted == list(range(limit))
    assert stopped.metrics.external_calls_count == limit


def test_gathered_calls_count_too() -> None:
    """Ours: concurrent calls cannot bypass the limit."""
    counted: list[int] = []  # a separate list: a thread may finish late, while another test counts

    @tool(side_effect="read")
    def count(value: int) -> None:
        """Count a call."""
        counted.append(value)

    with BlockingSandbox(tools=[count]) as box:
        stopped = box.run(
            "import asyncio\nawait asyncio.gather(*[count(i) for i in range(9)])",
            limits={"max_external_calls": 4},
        )
    assert stopped.error is not None
    assert stopped.error.code == "EXTERNAL_CALLS_EXCEEDED"
    assert len(counted) <= 4


def test_the_call_limit_cannot_be_caught(run: Run, noted: list[Any]) -> None:
    """Ours: SPEC §5; guest code can catch no limit except depth."""
    stopped = run(
        "while True:\n    try:\n        note()\n    except BaseException:\n        pass",
        limits={"max_external_calls": 2},
    )
    assert stopped.error is not None
    assert stopped.error.code == "EXTERNAL_CALLS_EXCEEDED"
    assert len(noted) == 2


def test_exceeding_the_depth_is_a_recursion_error_that_guest_code_may_catch(run: Run, value: Value) -> None:
    """Ours: SPEC §5; uncaught it is STACK_OVERFLOW."""
    value("def f(n):\n    return f(n + 1)")
    assert value("try:\n    f(0)\nexcept RecursionError:\n    result = 'caught'") == "caught"
    failed = run("f(0)")
    assert (failed.status, failed.error and failed.error.code) == ("resource_exhausted", "STACK_OVERFLOW")
    assert value("1 + 1") == 2


def test_sleeping_counts_as_wall_time_but_not_as_cpu_time(run: Run, value: Value) -> None:
    """Ours: SPEC §5; cpu_ms counts only the guest's own computation."""
    assert value("import time\ntime.sleep(0.15)\n1", limits={"cpu_ms": 60}) == 1
    assert value("import asyncio\nawait asyncio.sleep(0.15)\n1", limits={"cpu_ms": 60}) == 1
    assert value("hang(0.15)\n1", limits={"cpu_ms": 60}) == 1
    assert run("import time\ntime.sleep(3)", limits={"wall_ms": 60}).error.code == "TIMEOUT_WALL"
    assert run("import asyncio\nawait asyncio.sleep(3)", limits={"wall_ms": 60}).error.code == "TIMEOUT_WALL"


def test_gathered_sleeps_pass_concurrently(value: Value) -> None:
    """Ours: asyncio.sleep waits concurrently, like any call."""
    started = time.monotonic()
    value("import asyncio\nawait asyncio.gather(*[asyncio.sleep(0.2) for i in range(10)])\n1")
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize("seconds", ["-1", "float('nan')", "float('inf')", "10**400", "'x'", "None", "1e308"])
def test_a_sleep_of_an_unusual_duration_does_no_harm(run: Run, value: Value, seconds: str) -> None:
    """Bug: any duration that guest code passed to sleep reached the host's clock."""
    result = run(f"import time\ntime.sleep({seconds})", limits={"wall_ms": 150})
    assert result.status in ("ok", "timeout", "runtime_error"), result.error
    result = run(f"import asyncio\nawait asyncio.sleep({seconds})", limits={"wall_ms": 150})
    assert result.status in ("ok", "timeout", "runtime_error"), result.error
    assert value("1 + 1") == 2


@pytest.mark.parametrize("name", ["hang", "hang_later"])
def test_the_wall_limit_ends_a_run_in_the_middle_of_a_tool_call(run: Run, name: str) -> None:
    """Ours: SPEC §5; wall_ms counts host calls too."""
    for code in (f"{name}()", f"await {name}()", f"import asyncio\nawait asyncio.gather({name}(), {name}())"):
        started = time.monotonic()
        late = run(code, timeout_ms=70)
        assert time.monotonic() - started < 3
        assert (late.status, late.error and late.error.code) == ("timeout", "TIMEOUT_WALL")


def test_computing_too_long_is_a_cpu_timeout_even_if_code_catches_everything(run: Run) -> None:
    """Ours: SPEC §5; no limit can be caught."""
    late = run(
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        limits={"cpu_ms": 60},
    )
    assert (late.status, late.error and late.error.code) == ("timeout", "TIMEOUT_CPU")


def test_a_guests_own_timeout_or_memory_error_is_not_mistaken_for_a_limit(run: Run, value: Value) -> None:
    """Bug: a MemoryError that the guest raised itself was taken for a limit."""
    value("x = 1")
    for kind in ("MemoryError", "TimeoutError", "RecursionError('x' )"):
        failed = run(f"x = 2\nraise {kind}")
        assert failed.status in ("runtime_error", "resource_exhausted")
        assert not any(item.code == "SESSION_ROLLED_BACK" for item in failed.diagnostics), kind
        assert value("x") == 2
    faked = run("raise TimeoutError('time limit exceeded: 2s > 2s')")
    assert (faked.status, faked.error and faked.error.code) == ("runtime_error", "RUNTIME_ERROR")


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def test_metrics_are_measured(run: Run) -> None:
    """Ours: SPEC §5; metrics are measured; instructions are null if the engine does not count them."""
    small = run("1 + 1").metrics
    big = run("x = 'a' * (30 << 20)\nlen(x)").metrics
    slow = run("import time\ntime.sleep(0.05)").metrics
    assert small.instructions is None
    assert small.memory_peak_bytes is not None
    assert big.memory_peak_bytes is not None
    assert 1 << 20 < small.memory_peak_bytes < 60 << 20
    assert big.memory_peak_bytes - small.memory_peak_bytes > 25 << 20
    assert 45 <= slow.duration_ms < 5_000
    assert small.duration_ms < 2_000


def test_the_memory_peak_is_measured_per_run(run: Run) -> None:
    """Ours: the peak of one run does not affect the next."""
    run("x = 'a' * (30 << 20)\nx = None\n1")
    run("1")
    after = run("1").metrics
    assert after.memory_peak_bytes is not None
    assert after.memory_peak_bytes < 40 << 20


# ── invalid requests ─────────────────────────────────────────────────────────────────────────────


def test_code_that_is_too_long_is_refused(code_of: Callable[..., str]) -> None:
    """Ours: SPEC §11; every size is limited."""
    assert code_of("# " + "x" * (1 << 20)) == "REQUEST_TOO_LARGE"


@pytest.mark.parametrize("code", ["x = '\ud800'", "x = 1\0"])
def test_text_that_cannot_be_code_is_refused(run: Run, value: Value, code: str) -> None:
    """Ours: a lone surrogate or a NUL must not be altered on its way to the engine."""
    assert run(code).status in ("validation_error", "runtime_error")
    assert value("1 + 1") == 2


def test_an_invalid_session_id_is_an_error_result_not_an_exception(box: BlockingSandbox) -> None:
    """Seed: `run` always returns a RunResult."""
    result = box.run("1", session="a/b")
    assert (result.status, result.error and result.error.code) == ("validation_error", "INVALID_SESSION_ID")


def test_deeply_nested_code_does_no_harm(run: Run, value: Value) -> None:
    """Ours: deep recursion in a parser must not crash the host."""
    for code in (
        "(" * 50_000 + ")" * 50_000,
        "-" * 100_000 + "1",
        "[" * 5_000,
        "x" + ".a" * 50_000,
        "1" + "+1" * 50_000,
    ):
        result = run(code)
        assert result.status != "waiting_for_approval"
    assert value("1 + 1") == 2


def test_discovery_functions_are_always_available(value: Value) -> None:
    """Ours: SPEC §4; list_tools, describe_tool and current_policy are always available."""
    names = [item["name"] if isinstance(item, dict) else item for item in value("list_tools()")]
    assert {"add", "echo"} <= set(names)
    assert value("describe_tool('add')")["name"] == "add"
    assert value("current_policy()")["limits"]["memory_mb"] == 64


# ── changes that must be kept ────────────────────────────────────────────────────────────────────

MUTATIONS = [
    ("x.append(3)", "x", [1, 2, 3]),
    ("x.pop()", "x", [1]),
    ("next(it)", "next(it)", 8),
    ("[x.append(i) for i in range(2)]", "x", [1, 2, 0, 1]),
    ("f'{x.append(9)}'", "x", [1, 2, 9]),
    ("(lambda: x.append(9))()", "x", [1, 2, 9]),
    ("list(map(x.append, [9]))", "x", [1, 2, 9]),
    ("sorted([3], key=x.append)", "x", [1, 2, 3]),
    ("x.append(9) if x else None", "x", [1, 2, 9]),
    ("len(x) and x.append(9)", "x", [1, 2, 9]),
    ("{x.append(9): 1}", "x", [1, 2, 9]),
    ("bump()", "n", 1),
    ("[bump, 1][0]()", "n", 1),
    ("c.up()", "c.v", 1),
    ("c[5]", "c.v", 5),
    ("c + 7", "c.v", 7),
    ("-c", "c.v", -1),
    ("c == 8", "c.v", 8),
    ("c < 9", "c.v", 9),
    ("4 in c", "c.v", 4),
    ("len(c)", "c.v", 70),
    ("str(c)", "c.v", 60),
    ("f'{c}'", "c.v", 60),
    ("bool(c)", "c.v", 50),
    ("not c", "c.v", 50),
    ("c.missing", "c.v", 40),
    ("[i for i in c]", "c.v", 30),
    ("d.setdefault('k', 1)", "d", {"k": 1}),
    ("d.update(k=2)", "d", {"k": 2}),
    ("(z := 5)", "z", 5),
    ("setattr(c, 'v', 3)", "c.v", 3),
    ("c.__init__()", "c.v", 0),
    ("add(x.append(9) or 1)", "x", [1, 2, 9]),
    ("echo([x.append(9)])", "x", [1, 2, 9]),
    ("await change()", "x", [1, 2, 9]),
    ("exec('n = 4')", "n", 4),
    ("eval('x.append(9)')", "x", [1, 2, 9]),
]
SETUP = """
x = [1, 2]
d = {}
n = 0
it = iter([7, 8, 9])
def bump():
    global n
    n += 1
    return n
async def change():
    x.append(9)
class C:
    def __init__(self):
        self.v = 0
    def up(self):
        self.v += 1
    def __getitem__(self, key):
        self.v = key
        return key
    def __add__(self, other):
        self.v = other
        return other
    def __neg__(self):
        self.v = -1
        return 1
    def __eq__(self, other):
        self.v = other
        return True
    def __lt__(self, other):
        self.v = other
        return True
    def __contains__(self, item):
        self.v = item
        return True
    def __str__(self):
        self.v = 60
        return 's'
    def __iter__(self):
        self.v = 30
        return iter([1])
c = C()
"""


@pytest.mark.parametrize(("code", "probe", "expected"), MUTATIONS, ids=[row[0] for row in MUTATIONS])
def test_every_change_made_by_an_expression_is_kept(
    tmp_path: Path, code: str, probe: str, expected: Any
) -> None:
    """Bug: a run that seemed only to compute a value had changed something."""
    with BlockingSandbox(tools=[_add, _echo], data_dir=tmp_path) as box:
        assert box.run(SETUP).status == "ok"
        done = box.run(code)
        here = box.run(probe)
    with BlockingSandbox(tools=[_add, _echo], data_dir=tmp_path) as box:
        there = box.run(probe)
    if done.status == "ok" and here.result == expected and not code.startswith("next"):
        assert (there.status, there.result) == ("ok", expected)
    elif code.startswith("next"):
        assert here.result == expected
        assert there.result in (expected, expected + 1)
    else:
        assert there.result == here.result  # the engine does not support it; then it must not do half of it


@tool(name="add", side_effect="read")
def _add(a: int, b: int = 1) -> int:
    return a + b


@tool(name="echo", side_effect="read")
def _echo(value: Any) -> Any:
    return value


@pytest.mark.parametrize("name", ["class", "None", "a b", "1a", ""])
def test_an_input_must_have_a_name_that_code_can_read(run: Run, name: str) -> None:
    """Bug: a keyword was accepted as a name, and could not be restored."""
    result = run("1 + 1", inputs={name: 1})
    assert (result.status, result.error and result.error.code) == ("validation_error", "INVALID_ARGUMENT")


@pytest.mark.parametrize("name", ["result", "_", "list_tools", "print", "é"])
def test_an_input_may_hide_a_name_for_its_run(run: Run, name: str) -> None:
    """Ours: SPEC §5; inputs are variables of this run."""
    assert run(name, inputs={name: 7}).result == 7
    assert run("print('heard')").stdout == "heard\n"
    assert isinstance(run("list_tools()").result, list)


def test_a_run_that_has_ended_cannot_cancel_the_next_one(tmp_path: Path) -> None:
    """Bug: a lease that was renewed just when its run ended counted as lost, which cancelled the next run."""
    turns: list[Any] = []

    @tool(side_effect="none")
    def act(number: int) -> int:
        """Act."""
        session = runs.sessions.cached("default")
        assert session is not None
        turns.append(session.current)
        if number:
            turns[0].lose()
            turns[0].request_cancel()
        return number

    with BlockingSandbox(tools=[act], data_dir=tmp_path) as box:
        runs = box._runs
        assert box.run("act(0)").result == 0
        result = box.run("[act(1), act(2)]")
        assert (result.status, result.result) == ("ok", [1, 2])
        assert len(set(map(id, turns))) == 2
