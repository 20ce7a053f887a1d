"""Cells on the engine: pauses, answers, suspension, determinism, limits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from standfast.errors import Code, ErrorObject, InvalidArgument, SnapshotRefused
from standfast.model.capability import Capability, GuestException
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import (
    CallAnswer,
    CellCall,
    CellEnd,
    CellPause,
    CellRequest,
    CellStep,
    CodeEngine,
)
from standfast.sandbox.cell_lifecycle import SteppedCell, decode_cell, encode_cell
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.monty.workers import decode_dump, encode_dump
from standfast.sandbox.run_errors import argument_not_json

BIG = "x" * 5_000_000
STOPPED = ErrorObject(code=Code.CANCELLED, message="enough")


class Functions:
    """The functions that these cells may call."""

    def __init__(self, *names: str) -> None:
        self._all = {name: Capability(name=name, description="", input_schema={}) for name in names}

    def __contains__(self, name: object, /) -> bool:
        return name in self._all

    def names(self) -> list[str]:
        return list(self._all)

    def capability(self, name: str) -> Capability:
        return self._all[name]

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return "did you mean add?" if name == "ad" else None


FUNCTIONS = Functions("add", "fetch", "finish", "now_or_never")
Open = Callable[..., SteppedCell]


@pytest.fixture(scope="module")
def engine() -> Iterator[MontyCells]:
    cells = MontyCells(capacity=2)
    yield cells
    cells.close()


@pytest.fixture
def other() -> Iterator[MontyCells]:
    """Another engine with its own processes, as another host process would have."""
    cells = MontyCells(capacity=2)
    yield cells
    cells.close()


def request(code: str, **options: Any) -> CellRequest:
    limits = SessionLimits(**{"wall_ms": 30_000, **options.pop("limits", {})})
    return CellRequest(key=options.pop("key", "s"), code=code, limits=limits, functions=FUNCTIONS, **options)


@pytest.fixture
def cell(engine: MontyCells) -> Open:
    return lambda code, **options: engine.open(request(code, **options))


def ended(step: CellStep) -> CellEnd:
    assert isinstance(step, CellEnd), step
    return step


def made(step: CellStep) -> list[tuple[int, str]]:
    """Return the number and name of each call of a pause."""
    assert isinstance(step, CellPause), step
    return [(call.number, call.name) for call in step.calls]


def value(of: Any, at_ms: int = 0) -> CallAnswer:
    return CallAnswer(value=of, at_ms=at_ms)


# ── pauses and answers ───────────────────────────────────────────────────────────────────────────────


def test_the_engine_implements_its_port(engine: MontyCells) -> None:
    """Ours: the runtime uses engines only through their port."""
    port: CodeEngine = engine
    assert port.language == "python"


def test_a_cell_that_has_not_started_has_used_no_time(cell: Open) -> None:
    """Bug: its time counted from the boot of the machine, so a prepared worker could time out at once."""
    opened = cell("1")
    assert opened.duration_ms() < 1000
    opened.close()


def test_a_plain_call_pauses_the_cell_until_it_is_answered(cell: Open) -> None:
    """Seed: calls inside code are handled like any other call."""
    run = cell("y = add(1, b=2)\ny + 1")
    assert run.start() == CellPause((CellCall(number=1, name="add", args=[1], kwargs={"b": 2}, line=1),))
    end = ended(run.answer(1, value(3)))
    assert (end.result, end.error, end.calls_made) == (4, None, 1)


def test_the_next_cell_starts_from_the_saved_state(engine: MontyCells, cell: Open) -> None:
    """Seed: variables persist between cells."""
    first = ended(cell("x = [1]\ndef f():\n    return x").start())
    assert first.state is not None
    assert engine.names(first.state) == ["f", "x"]
    assert ended(cell("x.append(2)\nf()", state=first.state).start()).result == [1, 2]


def test_a_worker_that_holds_a_different_state_is_not_used(cell: Open) -> None:
    """Ours: after a rewind, the same key arrives with an earlier state."""
    first = ended(cell("x = 1").start())
    assert first.state is not None
    assert ended(cell("x = 2\nx", state=first.state).start()).result == 2
    assert ended(cell("x", state=first.state).start()).result == 1
    assert ended(cell("x", state=b"").start()).error is not None


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


def test_an_exception_is_raised_at_the_call(cell: Open) -> None:
    """Seed: guest code may catch the failure of a call."""
    run = cell("try:\n    add(1)\nexcept ValueError as error:\n    seen = str(error)\nseen")
    run.start()
    end = ended(run.answer(1, CallAnswer(exception=GuestException(type="ValueError", message="no"))))
    assert end.result == "no"


def test_an_uncaught_exception_keeps_the_error_code_of_the_failed_call(cell: Open) -> None:
    """Ours: the error code of a denied call survives its passage through the guest."""
    denied = ErrorObject(code=Code.PERMISSION_DENIED, message="not you")
    run = cell("x = 1\nadd(1)")
    run.start()
    seen = GuestException(type="PermissionError", message="not you")
    end = ended(run.answer(1, CallAnswer(exception=seen, error=denied)))
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.PERMISSION_DENIED, False)
    assert end.error.span is not None
    assert end.error.span.line == 2
    assert end.state is not None


def test_an_exception_type_unknown_to_the_engine_becomes_a_runtime_error(cell: Open) -> None:
    """Ours: a tool's own exception type must not break the cell."""
    run = cell("try:\n    add(1)\nexcept RuntimeError as error:\n    seen = str(error)\nseen")
    run.start()
    end = ended(run.answer(1, CallAnswer(exception=GuestException(type="HTTPError", message="503"))))
    assert end.result == "503"


def test_an_argument_that_is_not_json_is_reported_with_the_call(cell: Open) -> None:
    """Ours: the call is not made, and the code is given the reason."""
    for argument, what in [("{1, 2}", "set"), ("b'x'", "bytes"), ("lambda: 1", "function")]:
        pause = cell(f"add({argument})").start()
        assert isinstance(pause, CellPause)
        assert pause.calls[0].problem == argument_not_json("add", what)


def test_an_undefined_function_is_an_unknown_tool(cell: Open) -> None:
    """Seed: an unknown name gets a suggestion."""
    end = ended(cell("ad(1)").start())
    assert end.error is not None
    assert (end.error.code, end.error.hint) == (Code.UNKNOWN_TOOL, "did you mean add?")


def test_sleeping_is_a_call(cell: Open) -> None:
    """Seed: a sleep is a durable timer, not a blocked process."""
    run = cell("import asyncio, time\ntime.sleep(2)\nawait asyncio.sleep(0.5)\n'slept'")
    assert run.start() == CellPause((CellCall(number=1, name="sleep", kwargs={"seconds": 2.0}, line=2),))
    assert run.answer(1, CallAnswer()) == CellPause(
        (CellCall(number=2, name="sleep", kwargs={"seconds": 0.5}, line=3),)
    )
    assert ended(run.answer(2, CallAnswer())).result == "slept"


# ── immediate answers ────────────────────────────────────────────────────────────────────────────────


def test_finish_ends_the_code_and_keeps_its_variables(engine: MontyCells, cell: Open) -> None:
    """Seed: `finish(value)` ends the turn from inside code; `except Exception` does not stop it."""
    finished: list[Any] = []

    def answer_now(call: CellCall) -> CallAnswer | None:
        finished.extend(call.args)
        return CallAnswer(exception=GuestException(type="SystemExit", message="finished"))

    code = "x = 1\ntry:\n    finish({'a': x})\nexcept Exception:\n    x = 2\nx = 3"
    end = ended(cell(code, answer_now=answer_now).start())
    assert finished == [{"a": 1}]
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


def test_an_awaited_call_can_be_answered_immediately(cell: Open) -> None:
    """Ours: an immediate answer works for awaited calls too."""
    now = lambda call: value(call.args[0]) if call.name == "now_or_never" else None  # noqa: E731
    assert ended(cell("await now_or_never(5)", answer_now=now).start()).result == 5
    run = cell(
        "import asyncio\nawait asyncio.gather(now_or_never(1), add(2), now_or_never(3))", answer_now=now
    )
    assert made(run.start()) == [(1, "add")]
    assert ended(run.answer(1, value(2))).result == [1, 2, 3]


def test_an_awaited_call_that_fails_immediately_raises(cell: Open) -> None:
    """Ours: `await finish(...)` ends the code like `finish(...)`."""
    leave = lambda call: CallAnswer(exception=GuestException(type="SystemExit", message="bye"))  # noqa: E731
    end = ended(cell("await finish(1)", answer_now=leave).start())
    assert end.error is not None
    assert end.error.message == "SystemExit: bye"


def test_an_immediate_answer_that_raises_frees_the_worker(other: MontyCells) -> None:
    """Ours: an error in the caller's code must not lose a worker."""

    def broken(call: CellCall) -> CallAnswer | None:
        raise OSError("no disk")

    for _ in range(5):
        with pytest.raises(OSError, match="no disk"):
            other.open(request("add(1)", answer_now=broken)).start()
    assert ended(other.open(request("1")).start()).result == 1


# ── suspension ───────────────────────────────────────────────────────────────────────────────────────


def test_a_suspended_cell_resumes_in_another_engine(cell: Open, other: MontyCells) -> None:
    """Seed: a cell that waits for a person outlives its process."""
    state = ended(cell("base = 40").start()).state
    code = "print('before')\nx = add(1)\nprint('after')\nbase + x"
    run = cell(code, state=state)
    run.start()
    taken_up = other.open(request(code, state=state, paused=run.suspend()))
    assert taken_up.start() == CellPause()
    end = ended(taken_up.answer(1, value(2)))
    assert (end.result, end.stdout, end.calls_made) == (42, "before\nafter\n", 1)
    assert end.state is not None
    assert other.names(end.state) == ["base", "x"]


def test_undelivered_answers_are_suspended_too(cell: Open, other: MontyCells) -> None:
    """Ours: a result is journaled once and delivered once, whatever happens in between."""
    code = "p = fetch(1)\nq = add(2)\n[q, await p]"
    run = cell(code)
    run.start()
    run.answer(1, value(2**80))
    once = other.open(request(code, paused=run.suspend()))
    assert once.start() == CellPause()
    twice = other.open(request(code, paused=once.suspend()))
    twice.start()
    assert ended(twice.answer(2, value("q"))).result == ["q", 2**80]


def test_a_gather_can_be_suspended_halfway(cell: Open, other: MontyCells) -> None:
    """Seed: parallel calls are approved one by one, over days."""
    code = "import asyncio\nawait asyncio.gather(add(1), add(2), asyncio.sleep(3))"
    run = cell(code)
    run.start()
    assert run.answer(2, value("two")) == CellPause()
    taken_up = other.open(request(code, paused=run.suspend()))
    taken_up.start()
    assert taken_up.answer(3, CallAnswer()) == CellPause()
    assert ended(taken_up.answer(1, value("one"))).result == ["one", "two", None]


def test_a_suspended_cell_keeps_the_codes_of_its_errors(cell: Open, other: MontyCells) -> None:
    """Ours: an exception that is raised again later keeps its error code."""
    code = "try:\n    add(1)\nexcept ValueError as error:\n    kept = error\nadd(2)\nraise kept"
    run = cell(code)
    run.start()
    error = ErrorObject(code="OUT_OF_STOCK", message="none left")
    seen = GuestException(type="ValueError", message="none left")
    run.answer(1, CallAnswer(exception=seen, error=error))
    taken_up = other.open(request(code, paused=run.suspend()))
    taken_up.start()
    end = ended(taken_up.answer(2, value(None)))
    assert end.error is not None
    assert end.error.code == "OUT_OF_STOCK"


def test_the_inputs_of_a_suspended_cell_end_with_it(cell: Open, other: MontyCells) -> None:
    """Ours: a suspension does not change what is kept."""
    code = "x = len(data) + len(later)\nadd(x)\nlen(data)"
    run = cell(code, inputs={"data": "abc"}, load={"later": "de"}.__getitem__)
    assert isinstance(run.start(), CellPause)
    taken_up = other.open(request(code, paused=run.suspend()))
    taken_up.start()
    end = ended(taken_up.answer(1, value(None)))
    assert end.result == 3
    assert end.state is not None
    assert other.names(end.state) == ["x"]
    assert ended(other.open(request("data", state=end.state)).start()).error is not None
    assert ended(other.open(request("later", state=end.state)).start()).error is not None


def test_a_suspended_cell_of_another_engine_is_refused(cell: Open) -> None:
    """Seed: a snapshot of another version has its own error code."""
    run = cell("add(1)")
    run.start()
    data = run.suspend()
    stored = decode_cell(data)
    assert stored is not None
    dump = encode_dump(msgspec.structs.replace(decode_dump(stored.dump), version="9.9.9"))
    newer = encode_cell(msgspec.structs.replace(stored, dump=dump))
    with pytest.raises(SnapshotRefused) as refused:
        cell("add(1)", paused=newer)
    assert refused.value.code == Code.SNAPSHOT_VERSION_MISMATCH
    for broken in (data[:50], b"\x80"):
        with pytest.raises(SnapshotRefused) as refused:
            cell("add(1)", paused=broken)
        assert refused.value.code == Code.SNAPSHOT_CORRUPT


def test_a_cell_that_has_ended_cannot_be_suspended(cell: Open) -> None:
    """Ours: an ended cell has nothing to resume."""
    run = cell("1")
    run.start()
    with pytest.raises(InvalidArgument):
        run.suspend()


# ── determinism ──────────────────────────────────────────────────────────────────────────────────────

CHANCE = """
import random, time, datetime, os, json
add(random.random(), random.randint(1, 10**9), random.Random().random())
now, today = datetime.datetime.now(), datetime.date.today()
fetch(time.time(), time.monotonic(), time.perf_counter(), str(now), str(today))
add(random.random(), list(os.urandom(4)), time.strftime('%H:%M:%S'), time.process_time())
add(list({'b', 'a', 'c'}), hash('text'), str(datetime.datetime.now(datetime.timezone.utc)))
"""


def journey(engine: MontyCells, *, suspend: bool = False, **options: Any) -> list[CellCall]:
    """Return all calls that the same cell makes when given the same results."""
    run = engine.open(request(CHANCE, **options))
    step: CellStep = run.start()
    calls: list[CellCall] = []
    while isinstance(step, CellPause):
        calls += step.calls
        if suspend:
            run = engine.open(request(CHANCE, paused=run.suspend(), **options))
            run.start()
        step = run.answer(len(calls), value(None, at_ms=1_700_000_000_000 + 61_000 * len(calls)))
    assert step.error is None
    return calls


def test_the_same_cell_makes_the_same_calls_in_another_process(engine: MontyCells, other: MontyCells) -> None:
    """Seed: a cell that is rerun after a crash makes the same calls."""
    options: dict[str, Any] = {"now_ms": 1_700_000_000_000, "seed": "turn-7"}
    calls = journey(engine, **options)
    assert len(calls) == 4
    assert journey(other, **options) == calls
    assert journey(other, suspend=True, **options) == calls
    assert calls[1].args == [1700000061.0] * 3 + ["2023-11-14 22:14:21", "2023-11-14"]
    assert journey(other, now_ms=1_700_000_000_000, seed="turn-8")[0] != calls[0]


def test_random_numbers_continue_from_cell_to_cell(cell: Open, other: MontyCells) -> None:
    """Ours: the state of the random generator is part of the session's state."""
    state = ended(cell("import random\na = random.random()", seed="one").start()).state
    warm = ended(cell("random.random()", state=state, seed="two").start()).result
    loaded = ended(other.open(request("random.random()", state=state, seed="three")).start()).result
    assert warm == loaded


def test_time_advances_with_answers_and_never_goes_back(cell: Open) -> None:
    """Ours: a cell's clock follows its journal."""
    run = cell(
        "import time\na = time.time()\nadd()\nb = time.time()\nadd()\n[a, b, time.time()]", now_ms=5_000
    )
    run.start()
    run.answer(1, value(None, at_ms=9_500))
    assert ended(run.answer(2, value(None, at_ms=7_000))).result == [5.0, 9.5, 9.5]


def test_the_machine_is_invisible_to_guest_code(cell: Open) -> None:
    """Seed: guest code sees nothing of the host."""
    for code in ("open('/etc/passwd')", "import os\nos.getenv('HOME')", "import os\nos.urandom(10**9)"):
        end = ended(cell(code).start())
        assert end.error is not None, code


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_large_input_is_not_part_of_the_state(cell: Open) -> None:
    """Seed: inputs are not stored again with every cell."""
    for code in ("n = len(doc)\nn", "n = len(doc)\ndoc[:10]", "n = len(doc)\ndoc", "n = 1\n[doc, doc]"):
        end = ended(cell(code, inputs={"doc": BIG}, limits={"memory_mb": 256}).start())
        assert end.error is None
        assert end.state is not None
        assert len(end.state) < 20_000, code
        assert ended(cell("doc", state=end.state).start()).error is not None


def test_an_input_may_be_any_json_value_or_bytes(cell: Open) -> None:
    """Ours: attachments are passed as bytes."""
    inputs = {"a": {"b": [1, None, 2.5]}, "raw": b"\x00\xff", "text": "ü"}
    end = ended(cell("[a['b'], len(raw), raw[1], text]", inputs=inputs).start())
    assert end.result == [[1, None, 2.5], 2, 255, "ü"]


def test_a_variable_reappears_after_an_input_of_the_same_name(cell: Open) -> None:
    """Seed: inputs hide variables only while the code runs."""
    state = ended(cell("data = 'mine'").start()).state
    end = ended(cell("copy = data", state=state, inputs={"data": "given"}).start())
    assert ended(cell("[data, copy]", state=end.state).start()).result == ["mine", "given"]


def test_an_input_that_code_rebinds_is_not_kept(cell: Open) -> None:
    """Ours: read-only inputs never become part of the state."""
    end = ended(cell("if False:\n    doc = 1\nn = len(doc)", inputs={"doc": BIG}).start())
    assert end.state is not None
    assert len(end.state) < 20_000


def test_a_value_is_loaded_only_when_the_code_uses_it(cell: Open) -> None:
    """Ours: a value that is not used is not loaded."""
    asked: list[str] = []

    def load(name: str) -> Any:
        asked.append(name)
        return {"history": BIG}[name]

    first = ended(
        cell("def size():\n    return len(history)\nn = size() + len(history)\nn", load=load).start()
    )
    assert (first.result, asked) == (10_000_000, ["history"])
    assert first.state is not None
    assert len(first.state) < 20_000
    assert ended(cell("size()", state=first.state, load=load).start()).result == 5_000_000
    assert asked == ["history", "history"]


def test_a_value_that_cannot_be_loaded_is_a_name_error(cell: Open) -> None:
    """Ours: a value that cannot be loaded behaves like an unknown name."""
    end = ended(cell("nothing", load={}.__getitem__).start())
    assert end.error is not None
    assert end.error.message == "NameError: name 'nothing' is not defined"


# ── results and states ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("result = 1\n2", 1),
        ("if True:\n    result = 5", 5),
        ("x = 3\nx * 2", 6),
        ("x = 3", None),
        ("(1, {'a': (2,)})", [1, {"a": [2]}]),
    ],
)
def test_the_result_is_the_variable_result_or_the_last_expression(cell: Open, code: str, result: Any) -> None:
    """Seed: the result is `result` or the last expression."""
    assert ended(cell(code).start()).result == result


@pytest.mark.parametrize("code", ["x = 1\nlambda: 1", "x = 1\n{1, 2}", "x = 1\nadd", "x = 1\n[range(3)]"])
def test_a_result_that_is_not_json_is_an_error_but_the_state_is_kept(cell: Open, code: str) -> None:
    """Seed: the error is reported, and the variables are kept."""
    end = ended(cell(code).start())
    assert end.error is not None
    assert (end.error.code, end.result, end.hard) == (Code.RESULT_NOT_SERIALIZABLE, None, False)
    assert ended(cell("x", state=end.state).start()).result == 1


def test_code_that_only_reads_stores_no_new_state(cell: Open) -> None:
    """Ours: a run without changes stores nothing."""
    state = ended(cell("x = [3, 1]").start()).state
    assert ended(cell("sorted(x)", state=state).start()).state is None
    assert ended(cell("len(doc)", state=state, inputs={"doc": "abc"}).start()).state is None
    assert ended(cell("x", state=state).start()).result == [3, 1]


def test_an_exception_keeps_the_variables_bound_before_it(cell: Open) -> None:
    """Seed: a Python exception is not a rollback."""
    end = ended(cell("x = 1\n1 / 0").start())
    assert end.error is not None
    assert end.error.code == Code.RUNTIME_ERROR
    assert end.error.span is not None
    assert end.error.span.line == 2
    assert ended(cell("x", state=end.state).start()).result == 1


def test_many_cells_keep_a_small_state(cell: Open) -> None:
    """Ours: a state grows with its contents, not with the number of cells."""
    state: bytes | None = None
    for number in range(80):
        state = ended(cell(f"n = {number}\nlast = [n] * 3", state=state or b"").start()).state
    assert state is not None
    assert len(state) < 8_000
    assert ended(cell("last", state=state).start()).result == [79, 79, 79]


# ── limits and stops ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "limits", "expected"),
    [
        ("while True:\n    pass", {"cpu_ms": 50}, Code.TIMEOUT_CPU),
        ("while True:\n    pass", {"wall_ms": 50, "cpu_ms": 20_000}, Code.TIMEOUT_WALL),
        ("x = 'a' * 10**9", {"memory_mb": 16}, Code.MEMORY_EXCEEDED),
        ("while True:\n    print('x' * 1000)", {"max_stdout_bytes": 1000}, Code.STDOUT_EXCEEDED),
        ("import time\nwhile True:\n    time.time()", {"wall_ms": 50}, Code.TIMEOUT_WALL),
    ],
)
def test_a_limit_ends_the_cell_and_rolls_back_its_state(
    cell: Open, code: str, limits: dict[str, int], expected: str
) -> None:
    """Seed: no code runs for ever, and a hard end is a rollback."""
    state = ended(cell("x = 1").start()).state
    end = ended(cell(f"x = 2\n{code}", state=state, limits=limits).start())
    assert end.error is not None
    assert (end.error.code, end.hard, end.state) == (expected, True, None)
    assert ended(cell("x", state=state).start()).result == 1


def test_one_call_too_many_ends_the_cell(cell: Open) -> None:
    """Seed: the number of calls in a run is limited."""
    run = cell("for n in range(3):\n    add(n)", limits={"max_external_calls": 2})
    run.start()
    run.answer(1, value(None))
    end = ended(run.answer(2, value(None)))
    assert end.error is not None
    assert (end.error.code, end.hard, end.calls_made) == (Code.EXTERNAL_CALLS_EXCEEDED, True, 2)


def test_output_above_the_cap_is_cut_even_across_a_suspension(cell: Open, other: MontyCells) -> None:
    """Seed: output is kept up to a cap."""
    code = "print('a' * 90)\nadd(1)\nprint('b' * 90)"
    run = cell(code, limits={"max_stdout_bytes": 100})
    run.start()
    taken_up = other.open(request(code, paused=run.suspend(), limits={"max_stdout_bytes": 100}))
    taken_up.start()
    end = ended(taken_up.answer(1, value(None)))
    assert (end.stdout, end.truncated) == ("a" * 90 + "\n" + "b" * 9, True)


def test_wall_time_passes_while_a_cell_waits(cell: Open) -> None:
    """Ours: a waiting cell must not occupy its slot for longer than its limit."""
    run = cell("add(1)", limits={"wall_ms": 30})
    stopped = threading.Event()
    stop = run.stop

    def noticed(error: ErrorObject) -> None:
        stop(error)
        stopped.set()

    run.stop = noticed  # type: ignore[method-assign]
    run.start()
    assert stopped.wait(10)
    end = ended(run.answer(1, value(None)))
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.TIMEOUT_WALL, True)


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


def test_code_with_a_syntax_error_does_not_run(cell: Open) -> None:
    """Seed: code that cannot be parsed has no effect."""
    for code, expected in (("x = (", Code.SYNTAX_ERROR), ("add(1)\ndel x", Code.UNSUPPORTED_FEATURE)):
        end = ended(cell(code).start())
        assert end.error is not None
        assert (end.error.code, end.state, end.hard) == (expected, None, False)


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_cells_let_others_run(other: MontyCells) -> None:
    """Ours: two slots are enough for any number of sessions that wait for slow calls."""
    runs = [
        other.open(request(f"x = add({n})\ny = await fetch(x)\n[{n}, x, y]", key=f"k{n}")) for n in range(6)
    ]
    for run in runs:
        assert made(run.start()) == [(1, "add")]
    for n, run in reversed(list(enumerate(runs))):
        assert made(run.answer(1, value(n * 10))) == [(2, "fetch")]
    for n, run in enumerate(runs):
        assert ended(run.answer(2, value("y"))).result == [n, n * 10, "y"]


def test_a_cell_waits_for_a_slot_until_another_cell_pauses() -> None:
    """Ours: sessions whose calls need cells must not deadlock."""
    cells = MontyCells(capacity=1)
    try:
        with ThreadPoolExecutor(6) as pool:

            def nested(depth: int) -> int:
                run = cells.open(request(f"add({depth}) + 1", key=f"d{depth}"))
                run.start()
                inner = pool.submit(nested, depth - 1).result(20) if depth else 0
                return int(ended(run.answer(1, value(inner))).result)

            assert pool.submit(nested, 4).result(20) == 5
            assert sorted(pool.map(lambda n: plain(cells, n), range(6))) == list(range(6))
    finally:
        cells.close()


def plain(cells: MontyCells, n: int) -> int:
    run = cells.open(request(f"add() + await fetch({n})", key=f"p{n}"))
    run.start()
    run.answer(1, value(0))
    return int(ended(run.answer(2, value(n))).result)


@pytest.mark.slow
def test_a_cell_whose_process_is_needed_resumes_or_ends_with_the_reason() -> None:
    """Bug: a cell displaced by another session ended as INTERRUPTED, or as if its code needed too much."""
    cells = MontyCells(capacity=1)
    ends: list[CellEnd] = []
    try:
        for size in (1, 4, 6, 7):  # the last two: one can be dumped but not loaded, one cannot be dumped
            lists = "\n".join(f"d{n} = [[i] for i in range(15_000)]" for n in range(size))
            code, limits = f"{lists}\nadd(1)\nlen(d0)", {"memory_mb": 16, "cpu_ms": 20_000, "wall_ms": 60_000}
            run = cells.open(request(code, key=f"k{size}", limits=limits))
            assert made(run.start()) == [(1, "add")]
            assert ended(cells.open(request("1", key="needs a process")).start()).result == 1
            ends.append(ended(run.answer(1, value(1))))
    finally:
        cells.close()
    assert [end.result for end in ends] == [15_000, 15_000, None, None]
    for end in ends[2:]:
        assert end.error is not None
        assert (end.error.code, end.hard, end.state) == (Code.MEMORY_EXCEEDED, True, None)
        assert "another session needed the process of this run" in end.error.message


def test_abandoned_cells_free_their_workers(other: MontyCells) -> None:
    """Ours: a turn that ends early must not lose a worker."""
    for n in range(6):
        run = other.open(request("add(1)", key=f"k{n}"))
        run.start()
        run.close()
        run.close()
    assert ended(other.open(request("1")).start()).result == 1


def test_a_worker_that_died_while_idle_is_replaced(cell: Open, engine: MontyCells) -> None:
    """Ours: a worker's data is always also in the stored state."""
    end = ended(cell("x = 1", key="dies").start())
    worker = engine._workers._warm["dies"]
    os.kill(worker.pid, signal.SIGKILL)
    assert ended(cell("x", key="dies", state=end.state).start()).result == 1


def test_many_sessions_run_concurrently(engine: MontyCells) -> None:
    """Ours: one engine serves many threads."""

    def session(n: int) -> list[int]:
        state, seen = b"", []
        for step in range(4):
            run = engine.open(request(f"x = add({n})\nx", key=f"m{n}", state=state))
            run.start()
            end = ended(run.answer(1, value(n * 100 + step)))
            state = end.state or state
            seen.append(end.result)
        return seen

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(session, range(16)))
    assert results == [[n * 100 + step for step in range(4)] for n in range(16)]


def test_closing_the_engine_ends_its_cells() -> None:
    """Ours: closing ends every cell and worker."""
    cells = MontyCells(capacity=1)
    run = cells.open(request("add(1)"))
    run.start()
    cells.close()
    end = ended(run.answer(1, value(None)))
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.CANCELLED, True)
