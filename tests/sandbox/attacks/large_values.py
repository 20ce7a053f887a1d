"""Values just below and far above the bound, on every path: `python large_values.py ENGINE [NAME…]`.

The test runs this in a separate process. It prints one JSON line per case: its name, the error's code, the
seconds it took, the longest stall of the event loop, and the CPU time of the longest single call that encoded
JSON, which holds the GIL. A stall is the lesser of the wall time and this process's CPU time between two
iterations of the loop, so other processes do not count. Python's cyclic garbage collector is off, because its
pauses depend on what else the process holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from standfast import Agent, Runtime, Sandbox, tool
from standfast.model.code import CellReport
from standfast.model.limits import CapabilityLimits
from standfast.model.message import ToolMessage
from standfast.providers.scripted import ScriptedModel

MIB = 1 << 20
LIMITS = {"memory_mb": 512, "cpu_ms": 20_000, "wall_ms": 60_000, "max_stdout_bytes": 15 * MIB}

PYTHON = {
    "small dicts": "[{'a': i} for i in range(66_000)]",
    "one dict": "{str(i): i for i in range(99_000)}",
    "numbers as keys": "{i: i for i in range(99_000)}",
    "text": "'é' * (15 << 19)",
    "escaped text": "'\"' * (15 << 19)",
    "text like a call": "'a' * (15 << 20) + ')'",
    "texts": "['é' * 30 for i in range(199_000)]",
    "floats": "[i + 0.1234567 for i in range(199_000)]",
    "integers": "[10**60 + i for i in range(99_000)]",
    "deep lists": "[eval('[' * 60 + ']' * 60) for i in range(1_950)]",
    "shared lists": "[['é' * 1000] * 10] * 500",
}
"""Legal results: below 16 MiB as JSON, and 200,000 parts."""
SCRIPT = {
    "small dicts": "Array.from({length: 66000}, (_, i) => ({a: i}))",
    "one dict": "Object.fromEntries(Array.from({length: 99000}, (_, i) => ['k' + i, i]))",
    "text": "'é'.repeat(15 << 19)",
    "escaped text": "'\"'.repeat(15 << 19)",
    "texts": "Array.from({length: 199000}, () => 'é'.repeat(30))",
    "floats": "Array.from({length: 199000}, (_, i) => i + 0.1234567)",
    "deep lists": "Array.from({length: 1950}, () => JSON.parse('['.repeat(60) + ']'.repeat(60)))",
    "shared lists": "new Array(500).fill(new Array(10).fill('é'.repeat(1000)))",
}
TOO_LARGE = {
    "a million keys": "{str(i): i for i in range(1_000_000)}",
    "a million keys by name": "x = {str(i): i for i in range(500_000)}\nx",
    "a million keys as `result`": "if True:\n    result = {str(i): i for i in range(500_000)}",
    "a million items": "list(range(1_000_000))",
    "one list many times": "x = [1]\n[x] * 10**7",
    "one list many times in many lists": "x = [1]\ny = [x] * 250\n[y[:] for i in range(40_000)]",
    "a million keys as an argument": "t({str(i): i for i in range(1_000_000)})",
    "one list many times as an argument": "x = [1]\nt([x] * 10**7)",
    "a long text": "'é' * (30 << 20)",
    "a million keys slept on": "import asyncio\nawait asyncio.sleep(0, {str(i): i for i in range(300_000)})",
}
FOREIGN = {
    "integers of one hash as keys": "{i * (2**61 - 1): 1 for i in range(20_000)}",
    "integers of one hash as keys of an argument": "t({i * (2**61 - 1): 1 for i in range(20_000)})",
    "integers of one hash in a set": "{i * (2**61 - 1) for i in range(20_000)}",
    "named tuples as keys": "from collections import namedtuple\nP = namedtuple('P', 'a b')\na = P(1, 2)\n"
    "for i in range(40): a = P(a, a)\n[{a: 1}]",
    "decimals": "import decimal\n[decimal.Decimal(i) for i in range(180_000)]",
}


def shape(name: str) -> Any:
    """Return a legal value of the named shape, made by the host."""
    return eval(PYTHON[name])


@tool(side_effect="read", limits=CapabilityLimits(max_request_bytes=16 * MIB))
def t(x: Any) -> int:
    """Take anything."""
    return 1


@tool(side_effect="read", limits=CapabilityLimits(max_response_bytes=16 * MIB))
def give(name: str) -> Any:
    """Return a legal value."""
    return SHAPES[name]


SHAPES: dict[str, Any] = {}


class Encoding:
    """A probe that measures the CPU time of the longest call to `msgspec.json.encode`."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._encode = msgspec.json.encode
        msgspec.json.encode = self.encode

    def encode(self, value: object, **options: Any) -> bytes:
        began = time.thread_time()
        try:
            return self._encode(value, **options)
        finally:
            self.longest = max(self.longest, time.thread_time() - began)


class Stalls:
    """A probe that measures the longest time that this process keeps the event loop busy."""

    def __init__(self) -> None:
        self.longest = 0.0

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        ticking = asyncio.create_task(self._tick())
        try:
            yield
            await asyncio.sleep(0.005)
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now, used = time.perf_counter(), time.process_time()
            self.longest = max(self.longest, min(now - wall, used - cpu))
            wall, cpu = now, used


async def case(name: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Run *work*, again if the loop stalled or a call was slow: a stall that the code causes recurs."""
    if len(sys.argv) > 2 and name not in sys.argv[2:]:
        return
    stalled, encoded, began = 1e9, 1e9, time.perf_counter()
    for _ in range(5):
        stalls, ENCODING.longest = Stalls(), 0.0
        async with stalls.watched():
            error = await work()
        stalled, encoded = min(stalled, stalls.longest), min(encoded, ENCODING.longest)
        if stalled < 0.05 and encoded < 0.02:
            break
    report = {
        "name": name,
        "code": None if error is None else str(error.code),
        "seconds": round(time.perf_counter() - began, 3),
        "stalled_ms": round(stalled * 1000),
        "encoded_ms": round(encoded * 1000),
    }
    print(json.dumps(report), flush=True)


async def sandbox_cases(engine: str) -> None:
    language = "typescript" if engine == "quickjs" else "python"
    codes = SCRIPT if engine == "quickjs" else PYTHON
    wait, let = ("await ", "let ") if engine == "quickjs" else ("", "")
    async with Sandbox(tools=[t, give], engine=engine, language=language) as box:

        async def run(code: str, **options: Any) -> Any:
            error = (await box.run(code, limits=LIMITS, session="large", **options)).error
            await box.destroy("large")
            return error

        for name, code in codes.items():
            await case(f"{name} as the result", lambda code=code: run(code))  # type: ignore[misc]
            await case(f"{name} as an argument", lambda code=code: run(f"{wait}t({code})"))  # type: ignore[misc]
        for name in PYTHON:
            SHAPES[name] = shape(name)
            await case(f"{name} as an input", lambda name=name: run("1", inputs={"a": SHAPES[name]}))  # type: ignore[misc]
            await case(f"{name} as an answer", lambda name=name: run(f"{let}x = {wait}give('{name}')\n1"))  # type: ignore[misc]
            SHAPES.clear()
        if engine == "quickjs":
            await case("printed", lambda: run("console.log('é'.repeat(7 << 20))"))
            return
        await case("printed", lambda: run("print('é' * (7 << 20))"))
        for name, code in {**TOO_LARGE, **(FOREIGN if engine == "monty" else {})}.items():
            await case(name, lambda code=code: run(code))  # type: ignore[misc]


async def cell_cases() -> None:
    async with Runtime() as runtime:
        for place, name in enumerate(PYTHON):
            for path, code in {"result": PYTHON[name], "argument": f"t({PYTHON[name]})"}.items():

                async def turn(code: str = code, key: str = f"{path}{place}") -> Any:
                    replies = [f"```python\n{code}\n```", "```python\nfinish('over')\n```"]
                    agent = Agent(ScriptedModel(replies, strict=False), protocol="code", tools=[t])
                    session = await runtime.session(f"{key}-{time.monotonic_ns()}", agent=agent)
                    result = await session.turn("go")
                    cells = [one for one in result.messages if isinstance(one, ToolMessage)]
                    return msgspec.convert(cells[0].value, CellReport).error

                await case(f"{name} as the {path} of a cell", turn)


if __name__ == "__main__":
    ENCODING = Encoding()
    gc.disable()
    asyncio.run(cell_cases() if sys.argv[1] == "cells" else sandbox_cases(sys.argv[1]))
