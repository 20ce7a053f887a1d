"""The attacks with shared structure, run on one engine: `python shared_structure.py ENGINE`.

The test runs this in a separate process that it can kill. It prints one JSON line per attack: its name, the
status, the error's code, the seconds it took, and the longest stall of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from standfast import Agent, Runtime, Sandbox, tool
from standfast.model.code import CellReport
from standfast.model.message import ToolMessage
from standfast.providers.scripted import ScriptedModel

LISTS = "a=[1]\nfor i in range(40): a=[a,a]\n"
DICTS = "a={}\nfor i in range(40): a={'x':a,'y':a}\n"
TUPLES = "a=()\nfor i in range(40): a=(a,a)\n"
ARRAYS = "let a: any = [1]\nfor (let i = 0; i < 40; i++) a = [a, a]\n"

PYTHON = {
    "text many times, as the result": "['x'*10**6]*10**4",
    "lists as the result": "a=[1]\nfor i in range(40): a=[a,a]\na",
    "lists as the result by name": LISTS + "result = a",
    "dicts as the result": DICTS + "a",
    "tuples as the result": TUPLES + "a",
    "an argument": LISTS + "t(a)",
    "an argument by name": LISTS + "t(x=a)",
    "many arguments": LISTS + "t(*[a] * 50)",
    "an argument of an awaited call": LISTS + "await t(a)",
    "text many times, as an argument": "t(['x'*10**6]*10**4)",
    "an argument of describe_tool": LISTS + "describe_tool(a)",
    "an argument of list_tools": LISTS + "list_tools(a)",
    "an argument of current_policy": LISTS + "current_policy(a)",
    "an argument that a rule decides about": LISTS + "ruled(a)",
    "an argument that a person decides about": LISTS + "manual(a)",
    "an argument that cannot be JSON": LISTS + "t([a, {1, 2}])",
    "a tool's result": "give()",
    "a dataclass as a tool's result": "give_box()",
    "an exception of a tool": "fail()",
    "tuples as keys of the result": TUPLES + "{a: 1}",
    "tuples as keys of the result by name": TUPLES + "result = [{a}]",
    "tuples as keys of the result of long code": "#" * 70_000 + "\n" + TUPLES + "{a: 1}",
    "tuples as keys in an argument": TUPLES + "t({a: 1})",
    "wide tuples as keys of the result": "a=(1,)*1000\nfor i in range(5): a=(a,)*1000\n{a: 1}",
    "an exception of the code": LISTS + "raise ValueError(a)",
    "printed": LISTS + "print(a)",
    "compared": LISTS + "b=[1]\nfor i in range(40): b=[b,b]\na == b",
}
TYPESCRIPT = {
    "text many times, as the result": "new Array(10**4).fill('x'.repeat(10**6))",
    "lists as the result": ARRAYS + "a",
    "an argument": ARRAYS + "await t(a)",
    "an argument by name": ARRAYS + "await t({x: a})",
    "text many times, as an argument": "await t(new Array(10**4).fill('x'.repeat(10**6)))",
    "an argument of describe_tool": ARRAYS + "await describe_tool(a)",
    "an argument that a rule decides about": ARRAYS + "await ruled(a)",
    "an argument that a person decides about": ARRAYS + "await manual(a)",
    "a tool's result": "await give()",
    "a dataclass as a tool's result": "await give_box()",
    "an exception of a tool": "await fail()",
    "an exception of the code": ARRAYS + "throw new Error(a)",
    "printed": ARRAYS + "console.log(a)",
}
CELLS = {
    "a cell's result": LISTS + "a",
    "a cell's argument": LISTS + "t(a)",
    "a cell's finish": LISTS + "finish(a)",
    "a cell's finish in the middle": LISTS + "if True:\n    finish(a)",
    "tuples as keys of a cell's result": TUPLES + "{a: 1}",
    "a cell's next task": LISTS + "continue_as('go on', a)",
}


def shared(depth: int = 40) -> list[Any]:
    value: list[Any] = [1]
    for _ in range(depth):
        value = [value, value]
    return value


@dataclass
class Box:
    held: list[Any] = field(default_factory=shared)


@tool(side_effect="read")
def t(x: Any) -> int:
    """Take anything."""
    return 1


@tool(side_effect="read")
def give() -> Any:
    """Return a value that shares its parts."""
    return shared()


@tool(side_effect="read")
def give_box() -> Any:
    """Return such a value inside a dataclass."""
    return Box()


@tool(side_effect="read")
def fail() -> int:
    """Raise an exception that carries such a value."""
    raise ValueError(shared())


@tool(side_effect="read", approval={"auto": {"rule": "len(args) == 1"}})  # type: ignore[call-overload, untyped-decorator]
def ruled(x: Any) -> int:
    """Accept calls that an approval rule allows."""
    return 1


@tool(side_effect="read", approval="manual")
def manual(x: Any) -> int:
    """Accept calls that a person allows."""
    return 1


TOOLS = [t, give, give_box, fail, ruled, manual]


class Stalls:
    """A probe that measures the longest stall of the event loop."""

    def __init__(self) -> None:
        self.longest = 0.0

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


async def attack(name: str, work: Callable[[], Awaitable[tuple[str, Any]]]) -> None:
    """Run *work* and print its outcome, unless names were requested and this is not among them."""
    if len(sys.argv) > 2 and name not in sys.argv[2:]:
        return
    stalls, began = Stalls(), time.perf_counter()
    async with stalls.watched():
        status, error = await work()
    told = {
        "name": name,
        "status": status,
        "code": None if error is None else str(error.code),
        "seconds": round(time.perf_counter() - began, 3),
        "stalled_ms": round(stalls.longest * 1000),
    }
    print(json.dumps(told), flush=True)


async def sandbox_attacks(engine: str) -> None:
    language = "typescript" if engine == "quickjs" else "python"
    codes = TYPESCRIPT if engine == "quickjs" else PYTHON
    async with Sandbox(tools=TOOLS, engine=engine, language=language) as box:

        async def run(code: str, **options: Any) -> tuple[str, Any]:
            result = await box.run(code, limits={"cpu_ms": 800, "wall_ms": 3_000}, **options)
            return str(result.status), result.error

        await run("1")
        for name, code in codes.items():
            await attack(name, lambda code=code: run(code, session="attacked"))  # type: ignore[misc]
        many = ["x" * 10**6] * 10**4
        await attack("an input", lambda: run("1", inputs={"a": shared()}))
        await attack("text many times, as an input", lambda: run("1", inputs={"a": many}))
        await attack("still usable", lambda: run("1 + 1", session="attacked"))
        if engine == "auto":
            await run(TUPLES, session="moves")
            await attack("a move", lambda: run("import statistics\nstatistics.mean([1, 2])", session="moves"))


async def cell_attacks() -> None:
    async with Runtime() as runtime:
        for place, (name, code) in enumerate(CELLS.items()):
            replies = [f"```python\n{code}\n```", "```python\nfinish('over')\n```"]
            agent = Agent(ScriptedModel(replies, strict=False), protocol="code", tools=[t])
            session = await runtime.session(f"s{place}", agent=agent)

            async def turn(session: Any = session) -> tuple[str, Any]:
                result = await session.turn("go")
                cells = [one for one in result.messages if isinstance(one, ToolMessage)]
                return str(result.output), msgspec.convert(cells[0].value, CellReport).error

            await attack(name, turn)


if __name__ == "__main__":
    asyncio.run(cell_attacks() if sys.argv[1] == "cells" else sandbox_attacks(sys.argv[1]))
