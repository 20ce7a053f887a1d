"""Cells on the engine: pauses, answers, inputs, results, stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from standfast.errors import Code, ErrorObject, InvalidArgument
from standfast.model.capability import GuestException
from standfast.ports.code_engine import (
    CallAnswer,
    CellCall,
    CellEnd,
    CellPause,
    CellRequest,
    CellStep,
    CodeEngine,
)
from standfast.sandbox.cell_lifecycle import SteppedCell
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.run_errors import argument_not_json, request_too_large

pytestmark = pytest.mark.slow

BIG = "x" * 5_000_000
STOPPED = ErrorObject(code=Code.CANCELLED, message="enough")
Open = Callable[..., SteppedCell]
Request = Callable[..., CellRequest]


@pytest.fixture
def cell(engine: CPythonCells, request_of: Request) -> Open:
    return lambda code, **options: engine.open(request_of(code, **options))


def ended(step: CellStep) -> CellEnd:
    assert isinstance(step, CellEnd), step
    return step


def made(step: CellStep) -> list[tuple[int, str]]:
    """Return the number and name of each call of a pause."""
    assert isinstance(step, CellPause), step
    return [(call.number, call.name) for call in step.calls]


def value(of: Any, at_ms: int = 0) -> CallAnswer:
    return CallAnswer(value=of, at_ms=at_ms)


def test_the_engine_implements_its_port(engine: CPythonCells) -> None:
    """Ours: the runtime uses engines only through their port."""
    port: CodeEngine = engine
    assert port.language == "python"


def test_a_plain_call_pauses_the_cell_until_it_is_answered(cell: Open) -> None:
    """Seed: calls inside code are handled like any other call."""
    run = cell("y = add(1, b=2)\ny + 1")
    assert run.start() == CellPause((CellCall(number=1, name="add", args=[1], kwargs={"b": 2}, line=1),))
    end = ended(run.answer(1, value(3)))
    assert (end.result, end.error, end.calls_made) == (4, None, 1)


def test_a_call_can_be_in_the_middle_of_an_expression(cell: Open) -> None:
    """Seed: code pauses at its call, in the middle of an expression."""
    run = cell("[add(1) + n for n in (add(2), add(3))]")
    step = run.start()
    for number, answer in enumerate([5, 7, 10, 20], start=1):
        assert made(step) == [(number, "add")]
        step = run.answer(number, value(answer))
    assert ended(step).result == [15, 27]


def test_awaited_calls_are_made_concurrently(cell: Open) -> None:
    """Seed: `asyncio.gather` over tools runs them concurrently."""
    run = cell("import asyncio\nawait asyncio.gather(add(1), fetch(2), add(3))")
    assert made(run.start()) == [(1, "add"), (2, "fetch"), (3, "add")]
    assert run.answer(3, value("c")) == CellPause()
    assert run.answer(1, value("a")) == CellPause()
    assert ended(run.answer(2, value("b"))).result == ["a", "b", "c"]


def test_code_that_awaits_each_call_continues_in_the_order_of_the_answers(cell: Open) -> None:
    """Ours: the execution of a cell depends only on the order of its results."""
    code = """
import asyncio
seen = []
async def one(n):
    seen.append(await add(n))
    seen.append(await fetch(n))
await asyncio.gather(one(1), one(2))
seen
"""
    run = cell(code)
    assert made(run.start()) == [(1, "add"), (2, "add")]
    assert made(run.answer(2, value("second"))) == [(3, "fetch")]
    assert made(run.answer(1, value("first"))) == [(4, "fetch")]
    assert run.answer(4, value("fourth")) == CellPause()
    assert ended(run.answer(3, value("third"))).result == ["second", "first", "fourth", "third"]


def test_a_plain_call_is_reported_together_with_pending_awaited_calls(cell: Open) -> None:
    """Ours: no call has to wait for a later pause."""
    run = cell("p = fetch(1)\nq = add(2)\nr = await p\n[q, r]")
    assert made(run.start()) == [(1, "fetch"), (2, "add")]
    assert run.answer(1, value("early")) == CellPause()
    assert ended(run.answer(2, value("plain"))).result == ["plain", "early"]


def test_a_call_that_is_no_longer_awaited_can_still_be_answered(cell: Open) -> None:
    """Ours: a failed gather leaves calls behind whose results arrive later."""
    code = """
import asyncio
try:
    await asyncio.gather(add(1), fetch(2))
except ValueError:
    pass
await add(3)
"""
    run = cell(code)
    run.start()
    failed = CallAnswer(exception=GuestException(type="ValueError", message="no"))
    assert made(run.answer(1, failed)) == [(3, "add")]
    assert run.answer(2, value("late")) == CellPause()
    assert ended(run.answer(3, value("ok"))).result == "ok"


def test_an_answer_to_an_unknown_call_is_refused(cell: Open) -> None:
    """Ours: a mistake in the driver must raise."""
    run = cell("add(1)")
    run.start()
    with pytest.raises(InvalidArgument):
        run.answer(2, value(1))
    end = ended(run.answer(1, value(1)))
    assert run.answer(1, value(1)) is end


def test_an_uncaught_exception_keeps_the_error_code_of_the_failed_call(cell: Open) -> None:
    """Ours: the error code of a denied call survives its passage through the guest."""
    denied = ErrorObject(code=Code.PERMISSION_DENIED, message="not you")
    run = cell("x = 1\nadd(1)")
    run.start()
    seen = GuestException(type="PermissionError", message="not you")
    end = ended(run.answer(1, CallAnswer(exception=seen, error=denied)))
    assert end.error is not None
    assert (end.error.code, end.error.message, end.hard) == (Code.PERMISSION_DENIED, "not you", False)
    assert end.error.span is not None
    assert end.error.span.line == 2
    assert end.state is not None


@pytest.mark.parametrize("kind", ["HTTPError", "UnicodeDecodeError", "print", "__import__"])
def test_an_exception_type_unknown_to_python_becomes_a_runtime_error(cell: Open, kind: str) -> None:
    """Ours: a tool's own exception type must not break the cell."""
    run = cell("try:\n    add(1)\nexcept RuntimeError as error:\n    seen = str(error)\nseen")
    run.start()
    error = ErrorObject(code="OUTSIDE", message="503")
    end = ended(run.answer(1, CallAnswer(exception=GuestException(type=kind, message="503"), error=error)))
    assert end.result == "503"


@pytest.mark.parametrize(
    ("argument", "what"),
    [
        ("{1, 2}", "set"),
        ("b'x'", "bytes"),
        ("lambda: 1", "function"),
        ("float('nan')", "float nan"),
        ("10**5000", "int of more than 4300 digits"),
        ("'\\ud800'", "text with a lone surrogate"),
        ("cycle", "a value that contains itself"),
        ("{(1, 2): 3}", "dict with tuple keys"),
        ("deep", "a value nested too deeply"),
        ("object()", "object"),
    ],
)
def test_an_argument_that_is_not_json_is_reported_with_the_call(cell: Open, argument: str, what: str) -> None:
    """Ours: the call is not made, the code is given the reason, and the host survives."""
    code = "cycle = []\ncycle.append(cycle)\ndeep = []\nfor _ in range(5000):\n    deep = [deep]\n"
    run = cell(f"{code}add({argument})")
    pause = run.start()
    assert isinstance(pause, CellPause)
    assert pause.calls[0].problem == argument_not_json("add", what)
    run.close()


def test_an_undefined_function_is_an_unknown_tool(cell: Open) -> None:
    """Seed: an unknown name gets a suggestion; reading one is a NameError."""
    error = ended(cell("x = 5\nad(1)").start()).error
    assert error is not None
    assert (error.code, error.hint, error.span and error.span.line) == (
        Code.UNKNOWN_TOOL,
        "did you mean add?",
        2,
    )
    caught = ended(cell("try:\n    ad(1)\nexcept NameError as e:\n    seen = str(e)\nseen").start())
    assert caught.result == "name 'ad' is not defined"
    read = ended(cell("ad").start()).error
    assert read is not None
    assert (read.code, read.message) == (Code.RUNTIME_ERROR, "NameError: name 'ad' is not defined")


def test_sleeping_is_a_call(cell: Open) -> None:
    """Seed: a sleep is a durable timer, not a blocked process."""
    run = cell("import asyncio, time\ntime.sleep(2)\nawait asyncio.sleep(0.5)\n'slept'")
    assert run.start() == CellPause((CellCall(number=1, name="sleep", kwargs={"seconds": 2.0}, line=2),))
    assert run.answer(1, CallAnswer()) == CellPause(
        (CellCall(number=2, name="sleep", kwargs={"seconds": 0.5}, line=3),)
    )
    assert ended(run.answer(2, CallAnswer())).result == "slept"


def test_a_timeout_in_code_is_a_sleep_beside_the_call(cell: Open) -> None:
    """Ours: `asyncio.wait_for` uses the host's time."""
    code = (
        "import asyncio\ntry:\n    await asyncio.wait_for(add(1), 5)\nexcept TimeoutError:\n    r = 'late'\nr"
    )
    run = cell(code)
    step = run.start()
    assert made(step) == [(1, "add"), (2, "sleep")]
    assert step == CellPause(
        (
            CellCall(number=1, name="add", args=[1], line=3),
            CellCall(number=2, name="sleep", kwargs={"seconds": 5.0}, line=0),
        )
    )
    assert ended(run.answer(2, CallAnswer())).result == "late"
    in_time = cell(code.replace("await", "r = await"))
    in_time.start()
    assert ended(in_time.answer(1, value("soon"))).result == "soon"


def test_a_deadlock_between_tasks_ends_the_cell(cell: Open) -> None:
    """Ours: a deadlock is reported instead of waiting for the time limit."""
    end = ended(cell("import asyncio\nawait asyncio.Event().wait()").start())
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.INTERRUPTED, True)


# ── immediate answers ────────────────────────────────────────────────────────────────────────────────


def test_finish_ends_the_code_and_keeps_its_variables(cell: Open) -> None:
    """Seed: `finish(value)` ends the turn from inside code; `except Exception` does not stop it."""
    finished: list[Any] = []

    def answer_now(call: CellCall) -> CallAnswer | None:
        finished.extend(call.args)
        return CallAnswer(exception=GuestException(type="SystemExit", message="finished"))

    for finish in ("finish({'a': x})", "await finish({'a': x})"):
        code = f"x = 1\ntry:\n    {finish}\nexcept Exception:\n    x = 2\nx = 3"
        end = ended(cell(code, answer_now=answer_now).start())
        assert finished.pop() == {"a": 1}
        assert end.error is not None
        assert (end.error.code, end.error.message) == (Code.RUNTIME_ERROR, "SystemExit: finished")
        assert (end.hard, end.calls_made) == (False, 0)
        assert end.state is not None
        assert ended(cell("x", state=end.state).start()).result == 1


def test_a_call_answered_immediately_has_no_number(cell: Open) -> None:
    """Ours: a call without an effect is neither journaled nor counted."""
    now = lambda call: value(call.args[0] * 10) if call.name == "now_or_never" else None  # noqa: E731
    code = "xs = [now_or_never(n) for n in range(5)]\nadd(sum(xs))"
    run = cell(code, answer_now=now, limits={"max_external_calls": 1})
    assert run.start() == CellPause((CellCall(number=1, name="add", args=[100], line=2),))
    assert ended(run.answer(1, value(1))).calls_made == 1
    mixed = cell(
        "import asyncio\nawait asyncio.gather(now_or_never(1), add(2), now_or_never(3))", answer_now=now
    )
    assert made(mixed.start()) == [(1, "add")]
    assert ended(mixed.answer(1, value(2))).result == [10, 2, 30]


def test_an_immediate_answer_that_raises_frees_the_worker(cell: Open) -> None:
    """Ours: an error in the caller's code must not lose a worker."""

    def broken(call: CellCall) -> CallAnswer | None:
        raise OSError("no disk")

    for _ in range(4):
        with pytest.raises(OSError, match="no disk"):
            cell("add(1)", answer_now=broken).start()
    assert ended(cell("1").start()).result == 1


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_large_input_is_not_part_of_the_state(cell: Open) -> None:
    """Seed: inputs are not stored again with every cell."""
    for code in (
        "n = len(doc)\nn",
        "n = len(doc)\ndoc[:10]",
        "n = 1\nn, doc",
        "if False:\n    doc = 1\nn = 1",
    ):
        end = ended(cell(code, inputs={"doc": BIG}, limits={"memory_mb": 256}).start())
        assert end.error is None
        assert end.state is not None
        assert len(end.state) < 20_000, code
        assert ended(cell("doc", state=end.state).start()).error is not None


def test_an_input_may_be_any_json_value_or_bytes(cell: Open) -> None:
    """Ours: attachments are passed as bytes."""
    inputs = {"a": {"b": [1, None, 2.5]}, "raw": b"\x00\xff", "text": "ü", "t": (1, {2: {3}}), "big": 2**80}
    end = ended(
        cell("[a['b'], len(raw), raw[1], text, type(t).__name__, t[1][2] == {3}, big]", inputs=inputs).start()
    )
    assert end.result == [[1, None, 2.5], 2, 255, "ü", "tuple", True, 2**80]
    refused = ended(cell("1", inputs={"x": object()}).start())
    assert refused.error is not None
    assert refused.error.code == Code.INVALID_ARGUMENT


def test_a_variable_reappears_after_an_input_of_the_same_name(cell: Open) -> None:
    """Seed: inputs hide variables only while the code runs."""
    state = ended(cell("data = 'mine'").start()).state
    end = ended(cell("copy = data", state=state, inputs={"data": "given"}).start())
    assert ended(cell("[data, copy]", state=end.state).start()).result == ["mine", "given"]


def test_a_value_is_loaded_only_when_the_code_uses_it(cell: Open) -> None:
    """Ours: a value that is not used is not loaded."""
    asked: list[str] = []

    def load(name: str) -> Any:
        asked.append(name)
        return {"history": BIG, "quiet": 1}[name]

    code = "def size():\n    return len(history)\nn = size() + len(history)\nif n < 0:\n    quiet\nn"
    first = ended(cell(code, load=load).start())
    assert (first.result, asked) == (10_000_000, ["history"])
    assert first.state is not None
    assert len(first.state) < 20_000
    assert ended(cell("size()", state=first.state, load=load).start()).result == 5_000_000
    assert asked == ["history", "history"]
    missing = ended(cell("nothing", load={}.__getitem__).start()).error
    assert missing is not None
    assert missing.message == "NameError: name 'nothing' is not defined"


# ── results ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("result = 1\n2", 1),
        ("if True:\n    result = 5", 5),
        ("def f():\n    global result\n    result = 6\nf()", 6),
        ("x = 3\nx * 2", 6),
        ("x = 3", None),
        ("(1, {'a': (2,), 3: 4})", [1, {"a": [2], "3": 4}]),
        ("'''only text'''", "only text"),
        ("await add(1)", None),
    ],
)
def test_the_result_is_the_variable_result_or_the_last_expression(cell: Open, code: str, result: Any) -> None:
    """Seed: the result is `result` or the last expression."""
    assert ended(cell(code, answer_now=lambda call: value(None)).start()).result == result


def test_result_of_an_earlier_run_does_not_count(cell: Open) -> None:
    """Seed: `result` counts only if this run bound it, even to the same value."""
    state = ended(cell("result = 5").start()).state
    assert ended(cell("result + 1", state=state).start()).result == 6
    assert ended(cell("x = result", state=state).start()).result is None
    assert ended(cell("if True:\n    result = 5\n7", state=state).start()).result == 5
    bumped = ended(cell("result += 1\n0", state=state).start())
    assert bumped.result == 6
    assert ended(cell("result", state=bumped.state).start()).result == 6


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("lambda: 1", "function"),
        ("{1, 2}", "set"),
        ("add", "GuestTool"),
        ("[range(3)]", "range"),
        ("float('inf')", "float inf"),
        ("class A: pass\n[A()]", "A"),
        ("(n for n in [1])", "generator"),
    ],
)
def test_a_result_that_is_not_json_is_an_error_but_the_state_is_kept(
    cell: Open, code: str, hint: str
) -> None:
    """Seed: the error names the type, and the variables are kept."""
    end = ended(cell(f"x = 1\n{code}").start())
    assert end.error is not None
    assert (end.error.code, end.error.hint, end.hard) == (Code.RESULT_NOT_SERIALIZABLE, hint, False)
    assert ended(cell("x", state=end.state).start()).result == 1


def test_a_result_or_argument_that_is_too_large_is_an_error(cell: Open) -> None:
    """Ours: JSON takes up many times its size in the host's memory."""
    end = ended(cell("'x' * (17 << 20)", limits={"memory_mb": 256}).start())
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.RESPONSE_TOO_LARGE, False)
    pause = cell("add('x' * (17 << 20))", limits={"memory_mb": 256}).start()
    assert isinstance(pause, CellPause)
    assert pause.calls[0].problem == request_too_large("add", "the limit is 16777216 bytes as JSON")


def test_code_with_a_syntax_error_does_not_run(cell: Open) -> None:
    """Seed: code that cannot be parsed has no effect, and the error has a line and column."""
    nested = f"x = {'(' * 300}{')' * 300}"
    for code in (
        "add(1)\nx = (",
        "add(1)\nreturn 5",
        "add(1)\nf(a=1, a=2)",
        nested,
        "x = " + "-" * 50_000 + "1",
    ):
        end = ended(cell(code).start())
        assert end.error is not None
        assert (end.error.code, end.state, end.hard) == (Code.SYNTAX_ERROR, None, False), code[:20]
    error = ended(cell("x = 1\ny = = 2").start()).error
    assert error is not None
    assert error.span is not None
    assert (error.span.line, error.span.column) == (2, 5)


# ── stops ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_paused_cell_that_is_stopped_ends_with_the_next_answer(cell: Open) -> None:
    """Seed: a cancelled turn ends its code."""
    run = cell("p = fetch(1)\nadd(1)\nawait p")
    run.start()
    run.stop(STOPPED)
    end = ended(run.answer(1, value(None)))
    assert (end.error, end.hard, end.state) == (STOPPED, True, None)


def test_a_running_cell_can_be_stopped(cell: Open) -> None:
    """Seed: cancelling does not wait for the code to finish."""
    running = threading.Event()

    def answer_now(call: CellCall) -> CallAnswer:
        running.set()
        return CallAnswer()

    limits = {"cpu_ms": 60_000, "wall_ms": 60_000}
    run = cell("add(1)\nwhile True:\n    pass", limits=limits, answer_now=answer_now)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(run.start)
        assert running.wait(10)
        run.stop(STOPPED)
        assert ended(step.result(10)).error == STOPPED


def test_a_stop_after_the_end_does_nothing(cell: Open) -> None:
    """Ours: a cell ends once, and its worker may already serve another."""
    run = cell("x = 1")
    end = ended(run.start())
    run.stop(STOPPED)
    run.close()
    assert run.answer(1, value(None)) is end
    assert ended(cell("x", state=end.state).start()).result == 1


def test_time_advances_with_answers_and_never_goes_back(cell: Open) -> None:
    """Ours: a cell's clock follows its journal."""
    code = "import time\na = time.time()\nadd()\nb = time.time()\nadd()\n[a, b, time.time()]"
    run = cell(code, now_ms=5_000)
    run.start()
    run.answer(1, value(None, at_ms=9_500))
    assert ended(run.answer(2, value(None, at_ms=7_000))).result == [5.0, 9.5, 9.5]
