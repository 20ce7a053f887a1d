"""Where the instructions of a turn go, by library, and its Python calls, by package.

`python bench/instructions.py [--match WORDS]` prints a table for each workload. Instructions are counted by
valgrind's callgrind, so the figures hardly depend on the load of the machine; the kernel's are not counted.
Each workload runs twice, with a different number of repetitions: the difference is the cost of a repetition,
without start-up and warm-up. It needs `valgrind` on the path and takes about five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

USER, REPLY, RESULT = "u" * 200, "r" * 400, "t" * 100
CALLS = 10
AT_ONCE = 20
FEW, MANY, WARM_UP = 10, 40, 50
"""Repetitions of the two counts, and those before them: Python specializes its code in the first ones."""
LIBRARIES = {
    "libpython": "Python",
    "apsw": "SQLite",
    "libz": "zlib",
    "libcrypto": "digests",
    "msgspec": "msgspec",
    "_asyncio": "asyncio",
}
"""What is counted together, by a part of the library's path."""
Turn = Callable[[], Awaitable[object]]


# Workloads


@asynccontextmanager
async def turns(store: str | None, calls: int) -> AsyncIterator[Turn]:
    """Turns of one session, each with *calls* tool calls one after the other."""
    from standfast import Agent, Runtime, ScriptedModel, tool

    @tool(side_effect="external_system", approval="none")
    async def act(x: int) -> str:
        """Act on x."""
        return RESULT

    asked: list[dict[str, object]] = [
        {"tool_calls": [{"name": "act", "arguments": {"x": n}}]} for n in range(calls)
    ]
    model = ScriptedModel([*asked, {"text": REPLY}] * (MANY + WARM_UP), strict=False)
    async with Runtime(store) if store else Runtime() as runtime:
        session = await runtime.session("s", agent=Agent(model, tools=[act] if calls else []))
        yield lambda: session.turn(USER).settled()


@asynccontextmanager
async def new_sessions(store: str) -> AsyncIterator[Turn]:
    """The first turns of new sessions."""
    from standfast import Agent, Runtime, ScriptedModel

    agent: Agent[None, str] = Agent(ScriptedModel([{"text": REPLY}] * (MANY + WARM_UP), strict=False))
    numbers = iter(range(MANY + WARM_UP))
    async with Runtime(store) as runtime:

        async def first() -> object:
            session = await runtime.session(f"s{next(numbers)}", agent=agent)
            return await session.turn(USER).settled()

        yield first


@asynccontextmanager
async def turns_at_once(store: str) -> AsyncIterator[Turn]:
    """A turn in each of several sessions at once."""
    from standfast import Agent, Runtime, ScriptedModel

    turns = (MANY + WARM_UP) * AT_ONCE
    agent: Agent[None, str] = Agent(ScriptedModel([{"text": REPLY}] * turns, strict=False))
    async with Runtime(store) as runtime:
        sessions = [await runtime.session(f"s{number}", agent=agent) for number in range(AT_ONCE)]
        yield lambda: asyncio.gather(*[session.turn(USER).settled() for session in sessions])


@asynccontextmanager
async def reopened(store: str, length: int) -> AsyncIterator[Turn]:
    """A turn of a session of *length* turns in a runtime that has just been opened."""
    from standfast import Agent, Runtime, ScriptedModel

    agent: Agent[None, str] = Agent(
        ScriptedModel([{"text": REPLY}] * (length + MANY + WARM_UP), strict=False)
    )
    async with Runtime(store) as runtime:
        session = await runtime.session("s", agent=agent)
        for _ in range(length):
            await session.turn(USER).settled()

    async def reopen() -> object:
        async with Runtime(store) as runtime:
            session = await runtime.session("s", agent=agent)
            return await session.turn(USER).settled()

    yield reopen


@asynccontextmanager
async def sandbox_runs(store: str | None, code: str) -> AsyncIterator[Turn]:
    """Warm runs of *code*, which may call `act`, in one session."""
    from standfast import BlockingSandbox, tool

    @tool(side_effect="none")
    def act(x: int) -> int:
        """Act on x."""
        return x

    with BlockingSandbox(tools=[act], data_dir=store) as sandbox:

        async def run() -> object:
            return sandbox.run(code, session="s")

        yield run


@asynccontextmanager
async def code_steps(store: str | None) -> AsyncIterator[Turn]:
    """Turns of one session, each with one cell that calls a tool and finishes."""
    from standfast import Agent, Runtime, ScriptedModel, tool

    @tool(side_effect="external_system", approval="none")
    async def act(x: int) -> str:
        """Act on x."""
        return RESULT

    cell = "```python\nfound = await act(x=1)\nfinish(len(found))\n```"
    model = ScriptedModel([{"text": cell}] * (MANY + WARM_UP), strict=False)
    async with Runtime(store) if store else Runtime() as runtime:
        session = await runtime.session("s", agent=Agent(model, protocol="code", tools=[act]))
        yield lambda: session.turn(USER).settled()


SANDBOX_CALLS = f"for x in range({CALLS}): act(x)"
WORKLOADS: dict[str, Callable[[str], Any]] = {
    "plain turn, memory": lambda store: turns(None, 0),
    "plain turn, stored": lambda store: turns(store, 0),
    "plain turn of a new session, stored": new_sessions,
    f"{AT_ONCE} plain turns at once, stored": turns_at_once,
    "ten tools in sequence, memory": lambda store: turns(None, CALLS),
    "ten tools in sequence, stored": lambda store: turns(store, CALLS),
    "code step with one call, memory": lambda store: code_steps(None),
    "code step with one call, stored": code_steps,
    "reopen 200 turns, and one turn": lambda store: reopened(store, 200),
    "warm 1+1 of the sandbox, memory": lambda store: sandbox_runs(None, "1+1"),
    "warm 1+1 of the sandbox, stored": lambda store: sandbox_runs(store, "1+1"),
    "x = 1+1 of the sandbox, stored": lambda store: sandbox_runs(store, "x = 1+1"),
    "sandbox run with ten host calls, memory": lambda store: sandbox_runs(None, SANDBOX_CALLS),
    "sandbox run with ten host calls, stored": lambda store: sandbox_runs(store, SANDBOX_CALLS),
}


# Counting


async def repeat(name: str, times: int, profile: bool) -> None:
    """Run a workload *times* times after a warm-up; with *profile*, print its Python calls by package."""
    gc.disable()  # one collection takes as long as several turns, and would be in one of the two counts
    calls: Counter[str] = Counter()

    is_warm = False

    def count(frame: FrameType, event: str, _: object) -> None:
        if is_warm and event in ("call", "c_call"):
            calls[package_of(frame.f_code.co_filename) if event == "call" else "functions in C"] += 1

    if profile:
        threading.setprofile(count)  # threads that the warm-up starts may do some of the work
    with tempfile.TemporaryDirectory() as home:
        async with WORKLOADS[name](os.path.join(home, "bench.db")) as turn:
            for _ in range(WARM_UP):
                await turn()
            if profile:
                sys.setprofile(count)
            is_warm = True
            for _ in range(times):
                await turn()
            is_warm = False
            sys.setprofile(None)
    for package, number in calls.items():
        print(f"{package}\t{number / times}")


def package_of(file: str) -> str:
    """Return `standfast.PACKAGE` for a file of ours, else the library that it belongs to."""
    if found := re.search(r"/standfast/(\w+)", file):
        return f"standfast.{found[1]}"
    found = re.search(r"/(?:site-packages|python3\.\d+)/(\w+)", file)
    return found[1] if found else "this program"


def instructions(name: str, times: int) -> Counter[str]:
    """Return the instructions of a whole process by library, as callgrind counts them."""
    with tempfile.TemporaryDirectory() as home:
        out = Path(home, "out")
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--compress-strings=no"]
        run = [sys.executable, __file__, "--repeat", name, "--times", str(times)]
        subprocess.run([*valgrind, f"--callgrind-out-file={out}", *run], check=True, env=environment)
        found: Counter[str] = Counter()
        library, inclusive = "", False
        with out.open() as lines:
            for line in lines:
                if line.startswith("ob="):
                    library = line[3:].strip()
                elif line.startswith("calls="):
                    inclusive = True  # the next line is the callee's cost, which is counted there
                elif line[0] in "+-*0123456789":
                    if not inclusive:
                        found[library_name(library)] += int(line.split()[-1])
                    inclusive = False
    return found


def library_name(path: str) -> str:
    known = {
        "libpython": "Python",
        "apsw": "SQLite",
        "libz": "zlib",
        "libcrypto": "digests",
        "msgspec": "msgspec",
    }
    names = (name for part, name in known.items() if part in path)
    return next(names, "asyncio" if "_asyncio" in path else "libc and others")


def table(name: str) -> None:
    """Print the costs of one repetition of a workload."""
    few, many = instructions(name, FEW), instructions(name, MANY)
    costs = {library: (many[library] - few[library]) / (MANY - FEW) for library in many}
    run = [sys.executable, __file__, "--repeat", name, "--times", str(MANY), "--profile"]
    ran = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True)
    calls = {
        package: float(number) for package, number in (line.split("\t") for line in ran.stdout.splitlines())
    }
    total, frames = sum(costs.values()), sum(calls.values()) - calls.get("functions in C", 0)
    print(f"\n{name}: {total / 1000:,.0f} thousand instructions, {frames:,.0f} Python calls")
    for library, cost in sorted(costs.items(), key=lambda one: -one[1]):
        if cost >= total / 200:
            print(f"  {cost / 1000:10,.0f} K  {cost / total:4.0%}  {library}")
    for package, number in sorted(calls.items(), key=lambda one: -one[1])[:12]:
        print(f"  {number:10,.0f} calls  {package}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", default="", help="only workloads with these words in their names")
    parser.add_argument("--repeat", help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=MANY, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.repeat:
        asyncio.run(repeat(asked.repeat, asked.times, asked.profile))
        return
    for name in WORKLOADS:
        if asked.match in name:
            table(name)


if __name__ == "__main__":
    main()
