"""Limits that stop a run."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from typing import Any

from behaviours.behaviour import Behaviour, Check, fails, gives, sharing
from behaviours.stage import Stage


def stops(code: str, status: str, **options: Any) -> Check:
    """Return a check that the last run is stopped hard, reports this code, and leaves the session usable."""

    def check(stage: Stage) -> None:
        ended = stage.last(**options)
        assert ended.error is not None, ended.result
        assert (ended.error.code, ended.status) == (code, status), ended.error
        assert [item.code for item in ended.diagnostics][-1] == "SESSION_ROLLED_BACK"
        assert stage.value("1 + 1") == 2

    return check


def _truncated(stage: Stage) -> None:
    ended = stage.run(stage.code, limits={"max_stdout_bytes": 5})
    assert (ended.status, ended.stdout) == ("ok", "éé")
    assert [item.code for item in ended.diagnostics] == ["OUTPUT_TRUNCATED"]


def _makes_every_allowed_call(stage: Stage) -> None:
    stopped = stage.run(stage.code, limits={"max_external_calls": 3})
    assert (stopped.error and stopped.error.code) == "EXTERNAL_CALLS_EXCEEDED"
    assert [call[1] for call in stage.done] == [0, 1, 2]


def _for_this_run_only(stage: Stage) -> None:
    assert stage.fails(stage.code, limits={"memory_mb": 16}) == "MEMORY_EXCEEDED"
    assert stage.value(stage.code) == 20 << 20


def _streams(stage: Stage) -> None:
    ended = stage.run(stage.code)
    assert (ended.status, ended.stdout, ended.stderr) == ("ok", "out\n", "err\n")


def _measured(stage: Stage) -> None:
    stage.value(stage.code)
    metrics = stage.ended.metrics
    assert metrics.memory_peak_bytes is not None
    assert metrics.memory_peak_bytes > 1 << 20
    assert (metrics.instructions is not None) == (stage.engine == "quickjs")


def _too_long(stage: Stage) -> None:
    assert stage.fails(stage.code + " " * (257 << 10)) == "REQUEST_TOO_LARGE"
    assert stage.value(stage.code + " " * (200 << 10)) == 2


EXHAUSTED = "resource_exhausted"
CPU = stops("TIMEOUT_CPU", "timeout", limits={"cpu_ms": 100})
MEMORY = stops("MEMORY_EXCEEDED", EXHAUSTED, limits={"memory_mb": 32})

LIMITS = sharing(
    Behaviour(
        name="a single large allocation is limited",
        check=MEMORY,
        py="x = 'a' * 200_000_000",
        ts="const x = new Uint8Array(200_000_000)",
    ),
    Behaviour(
        name="many small allocations are limited",
        check=MEMORY,
        py="x = []\nwhile True:\n    x.append('a' * 10_000)",
        ts="const x: any[] = []\nwhile (true) x.push(new Array(1000).fill(x.length))",
    ),
    Behaviour(
        name="the memory limit cannot be caught",
        check=MEMORY,
        py="try:\n    x = 'a' * 200_000_000\nexcept BaseException:\n    x = 'caught'\nx",
        ts="let x: any\ntry { x = new Uint8Array(200_000_000) } catch { x = 'caught' }\nx.length",
    ),
    Behaviour(
        name="CPU time is limited",
        check=CPU,
        py="while True:\n    pass",
        ts="while (true) {}",
    ),
    Behaviour(
        name="the CPU limit cannot be caught",
        check=CPU,
        py="while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        ts="while (true) { try { while (true) {} } catch {} finally { continue } }",
    ),
    Behaviour(
        name="CPU time in an async function is limited",
        check=CPU,
        py="async def f():\n    while True:\n        pass\nawait f()",
        ts="await (async () => { while (true) await null })()",
    ),
    Behaviour(
        name="CPU time in one long engine step is limited",
        check=stops("TIMEOUT_CPU", "timeout", limits={"cpu_ms": 100}),
        py="x = 7 ** 40_000_000\nx % 10",
        ts="/^(a+)+$/.test('a'.repeat(40) + 'b')",
        slow=True,
    ),
    Behaviour(
        name="the duration of a call is limited",
        check=stops("TIMEOUT_WALL", "timeout", limits={"wall_ms": 150}),
        py="hang()",
        ts="await hang()",
    ),
    Behaviour(
        name="the duration of a sleep is limited",
        check=stops("TIMEOUT_WALL", "timeout", timeout_ms=150),
        py="import time\ntime.sleep(1000)",
        ts="await new Promise(done => setTimeout(done, 1_000_000))",
    ),
    Behaviour(
        name="the wall-clock limit cannot be caught",
        check=stops("TIMEOUT_WALL", "timeout", limits={"wall_ms": 150}),
        py="while True:\n    try:\n        hang()\n    except BaseException:\n        pass",
        ts="while (true) { try { await hang() } catch {} }",
    ),
    Behaviour(
        name="output above its limit is cut between characters, with a warning",
        check=_truncated,
        py="print('é' * 10)",
        ts="console.log('é'.repeat(10))",
    ),
    Behaviour(
        name="a flood of output ends the run",
        check=stops("STDOUT_EXCEEDED", EXHAUSTED, limits={"max_stdout_bytes": 100}),
        py="while True:\n    print('x' * 100)",
        ts="while (true) console.log('x'.repeat(100))",
    ),
    Behaviour(
        name="the two streams of output are kept separate",
        check=_streams,
        py="import sys\nprint('out')\nprint('err', file=sys.stderr)",
        ts="console.log('out')\nconsole.error('err')",
    ),
    Behaviour(
        name="exactly as many calls are made as the limit allows",
        check=_makes_every_allowed_call,
        py="for i in range(9):\n    add(i)",
        ts="for (let i = 0; i < 9; i++) await add(i)",
    ),
    Behaviour(
        name="the limit on calls cannot be caught",
        check=stops("EXTERNAL_CALLS_EXCEEDED", EXHAUSTED, limits={"max_external_calls": 3}),
        py="while True:\n    try:\n        add(1)\n    except BaseException:\n        pass",
        ts="while (true) { try { await add(1) } catch {} }",
    ),
    Behaviour(
        name="stack depth is limited, and the error can be caught",
        check=gives("caught"),
        py="def f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError:\n    result = 'caught'",
        ts="function f(n: number): number { return 1 + f(n + 1) }\n"
        "try { f(0) } catch (e) { if (e instanceof RangeError) result = 'caught' }",
    ),
    Behaviour(
        name="an uncaught stack overflow is STACK_OVERFLOW, and the session stays usable",
        check=fails("STACK_OVERFLOW", EXHAUSTED),
        py="def f(n):\n    return f(n + 1)\nf(0)",
        ts="function f(n: number): number { return 1 + f(n + 1) }\nf(0)",
    ),
    Behaviour(
        name="recursion within the limit works",
        check=gives(200),
        py="def f(n):\n    return n and 1 + f(n - 1)\nf(200)",
        ts="const f = (n: number): number => n && 1 + f(n - 1)\nf(200)",
    ),
    Behaviour(
        name="limits hold for their run only",
        check=_for_this_run_only,
        py="len('a' * (20 << 20))",
        ts="new Uint8Array(20 << 20).length",
    ),
    Behaviour(
        name="metrics report what a run used",
        check=_measured,
        py="len('a' * (2 << 20))",
        ts="new Uint8Array(2 << 20).length",
    ),
    Behaviour(
        name="code is limited to 256 KiB",
        check=_too_long,
        py="1 + 1",
        ts="1 + 1",
    ),
)
