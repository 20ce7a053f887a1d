"""Limits that guest code cannot get around, and the state after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from standfast.errors import Code, ErrorObject
from standfast.ports.code_engine import CallAnswer, CellEnd, CellRequest
from standfast.sandbox.cpython.cell_engine import CPythonCells

pytestmark = pytest.mark.slow

Request = Callable[..., CellRequest]
Run = Callable[..., CellEnd]


@pytest.fixture
def run(jailed: CPythonCells, request_of: Request) -> Run:
    def start(code: str, **options: Any) -> CellEnd:
        end = jailed.open(request_of(code, **options)).start()
        assert isinstance(end, CellEnd)
        return end

    return start


CATCHING = (
    "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
)
LIMITS: list[tuple[str, dict[str, int], str]] = [
    ("while True:\n    pass", {"cpu_ms": 100}, Code.TIMEOUT_CPU),
    (CATCHING, {"cpu_ms": 100}, Code.TIMEOUT_CPU),
    ("sum(range(10**12))", {"cpu_ms": 100}, Code.TIMEOUT_CPU),
    ("10 ** 10 ** 8 % 7", {"cpu_ms": 100, "memory_mb": 256}, Code.TIMEOUT_CPU),
    ("import re\nre.match('(a+)+$', 'a' * 50 + 'b')", {"cpu_ms": 100}, Code.TIMEOUT_CPU),
    ("import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
     "    except (OSError, ValueError): pass\n"
     "while True: pass", {"cpu_ms": 100}, Code.TIMEOUT_CPU),
    ("import threading\nfor _ in range(3):\n    threading.Thread(target=lambda: sum(range(10**12))).start()",
     {"cpu_ms": 200}, Code.TIMEOUT_CPU),
    ("while True:\n    pass", {"wall_ms": 100}, Code.TIMEOUT_WALL),
    ("import threading\nthreading.Event().wait()", {"wall_ms": 100}, Code.TIMEOUT_WALL),
    ("x = 'a' * 10**10", {"memory_mb": 16}, Code.MEMORY_EXCEEDED),
    ("x = bytearray(40 << 20)", {"memory_mb": 16}, Code.MEMORY_EXCEEDED),
    ("x = []\nwhile True:\n    x.append('a' * 10**6)", {"memory_mb": 16}, Code.MEMORY_EXCEEDED),
    ("x = []\nwhile True:\n    x.append([1, 2, 3])", {"memory_mb": 16}, Code.MEMORY_EXCEEDED),
    ("try:\n    x = 'a' * 10**10\nexcept MemoryError:\n    x = 'caught'\n"
     "x", {"memory_mb": 16}, Code.MEMORY_EXCEEDED),
    ("x = []\nwhile True:\n    try:\n        x.append('a' * 10**7)\n    except:\n"
     "        pass", {"memory_mb": 16},
     Code.MEMORY_EXCEEDED),
    ("while True:\n    print('x' * 1000)", {"max_stdout_bytes": 1000}, Code.STDOUT_EXCEEDED),
    ("while True:\n    print('x', end='')", {"max_stdout_bytes": 1000}, Code.STDOUT_EXCEEDED),
    ("import sys\nwhile True:\n"
     "    sys.stderr.write('ü' * 500)", {"max_stdout_bytes": 1000}, Code.STDOUT_EXCEEDED),
]  # fmt: skip


@pytest.mark.parametrize(("code", "limits", "expected"), LIMITS, ids=[repr(row[0])[:50] for row in LIMITS])
def test_a_limit_ends_the_cell_and_rolls_back_its_state(
    run: Run, code: str, limits: dict[str, int], expected: str
) -> None:
    """Seed: no code runs for ever or can catch its own end, and a hard end is a rollback."""
    state = run("x = 1").state
    began = time.monotonic()
    end = run(f"x = 2\n{code}", state=state, limits={"wall_ms": 20_000, **limits})
    assert time.monotonic() - began < 10
    assert end.error is not None
    assert (end.error.code, end.hard, end.state) == (expected, True, None)
    assert run("x", state=state).result == 1


def test_output_printed_before_a_limit_is_reported(run: Run) -> None:
    """Ours: the output before the limit helps to find the cause."""
    end = run("for n in range(3):\n    print(n)\nwhile True:\n    pass", limits={"cpu_ms": 100})
    assert end.stdout == "0\n1\n2\n"


def test_code_may_raise_its_own_memory_error(run: Run) -> None:
    """Ours: only exceeding the memory limit is a hard failure."""
    end = run("x = 1\nraise MemoryError('mine')")
    assert end.error is not None
    assert (end.error.code, end.error.message, end.hard) == (Code.RUNTIME_ERROR, "MemoryError: mine", False)


def test_depth_is_limited_by_an_error_that_code_can_catch(run: Run) -> None:
    """Seed: exceeding the depth raises a RecursionError."""
    deep = "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
    assert run(f"{deep}f(200)").result == 200
    end = run(f"{deep}f(400)")
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.STACK_OVERFLOW, False)
    assert end.error.hint == "the limit is 256 frames (max_stack_depth)"
    assert run(f"{deep}try:\n    f(400)\nexcept RecursionError:\n    r = 'caught'\nr").result == "caught"
    assert run(f"{deep}f(3000)", limits={"max_stack_depth": 4000}).result == 3000


def test_a_call_near_the_end_of_the_stack_is_made_whole_or_not_at_all(run: Run) -> None:
    """Ours: a stack overflow in the middle of a message must not break the protocol."""
    code = """
def f(n):
    try:
        add(n)
        print(n)
    except RecursionError:
        return n
    return f(n + 1)
f(0)
"""
    end = run(code, answer_now=lambda call: CallAnswer())
    assert end.error is None or end.error.code == Code.STACK_OVERFLOW, end
    assert not end.hard


def test_imports_may_nest_deeper_than_code(run: Run) -> None:
    """Ours: the imports of a module do not count as frames of the code."""
    assert (
        run("import unittest.mock, email.mime.text, xml.dom.minidom\n1", limits={"max_stack_depth": 30}).error
        is None
    )


def test_one_call_too_many_ends_the_cell(jailed: CPythonCells, request_of: Request) -> None:
    """Seed: the number of calls in a run is limited, however the calls are made."""
    for code in (
        "for n in range(3):\n    add(n)",
        "import asyncio\nawait asyncio.gather(*[add(n) for n in range(3)])",
    ):
        run = jailed.open(request_of(code, limits={"max_external_calls": 2}))
        step = run.start()
        for number in (1, 2):
            if not isinstance(step, CellEnd):
                step = run.answer(number, CallAnswer())
        assert isinstance(step, CellEnd)
        assert step.error is not None
        assert (step.error.code, step.hard, step.calls_made) == (Code.EXTERNAL_CALLS_EXCEEDED, True, 2)


def test_output_above_the_cap_is_cut_between_characters(run: Run) -> None:
    """Seed: output is kept up to a cap."""
    end = run("print('ü' * 60)\nprint('more')", limits={"max_stdout_bytes": 101})
    assert (end.stdout, end.truncated) == ("ü" * 50, True)


def test_wall_time_passes_while_a_cell_waits(jailed: CPythonCells, request_of: Request) -> None:
    """Ours: a waiting cell must not occupy its slot for longer than its limit."""
    run = jailed.open(request_of("add(1)", limits={"wall_ms": 150}))
    stopped = threading.Event()
    stop = run.stop

    def noticed(error: ErrorObject) -> None:
        stop(error)
        stopped.set()

    run.stop = noticed  # type: ignore[method-assign]
    run.start()
    assert stopped.wait(10)
    end = run.answer(1, CallAnswer())
    assert isinstance(end, CellEnd)
    assert end.error is not None
    assert (end.error.code, end.hard) == (Code.TIMEOUT_WALL, True)


def test_waiting_does_not_count_as_cpu_time(jailed: CPythonCells, request_of: Request) -> None:
    """Seed: `cpu_ms` counts only the guest's own computation."""
    run = jailed.open(request_of("add(1)\n'done'", limits={"cpu_ms": 40}))
    run.start()
    worker = run._stepper.worker  # type: ignore[attr-defined]
    assert worker is not None
    waited = threading.Event()
    run._engine.watchdog.watch(waited, 0.3, waited.set)
    assert waited.wait(10)
    end = run.answer(1, CallAnswer())
    assert isinstance(end, CellEnd)
    assert end.result == "done"


def test_files_are_limited(run: Run) -> None:
    """Ours: guest code cannot fill the disk, nor the memory by writing files."""
    one = run("with open('big', 'wb') as f:\n    for _ in range(100):\n        f.write(bytes(1 << 20))")
    assert one.error is not None
    many = run("for n in range(500):\n    with open(f'f{n}', 'wb') as f:\n        f.write(bytes(1 << 20))")
    assert many.error is not None


def test_a_run_reports_its_resource_usage(run: Run) -> None:
    """Seed: the metrics of a run are measured."""
    small, large = run("1"), run("len(b'x' * (40 << 20))")
    assert small.memory_peak_bytes is not None
    assert large.memory_peak_bytes is not None
    assert large.memory_peak_bytes - small.memory_peak_bytes > 30 << 20
    assert small.duration_ms < 5_000
