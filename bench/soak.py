"""Whether a runtime that runs for long grows. `python bench/soak.py --turns 500000 [--store memory]`

Prints one JSON object every `--every` turns: resident memory, threads by name, open files, objects that the
garbage collector knows, the size of the store, and the speed since the line before. Sessions are taken in
turns and deleted after `--turns-per-session`, so that the program always holds the same amount of work: what
still rises is kept by the runtime. With `--allocations` every line also names the lines of code whose memory
grew most since the first line; that costs about three times as long.

One turn in eight calls a tool on the loop, and one in eight a tool in a thread. `--at-once` turns run at a
time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from standfast import Agent, Runtime, tool
from standfast.model.message import RequestedCall, ToolMessage
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded

USER = "u" * 200
REPLY = "r" * 400


@tool(side_effect="external_system")
async def act(x: int) -> str:
    """Do something on the loop."""
    return "t" * 100


@tool(side_effect="read")
def look(x: int) -> str:
    """Look something up in a thread."""
    return "t" * 100


class EndlessModel:
    """Answers every call, and remembers none: a recording model would grow by itself."""

    model_id = "soak:endless"

    def __init__(self) -> None:
        self._asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self._asked += 1
        if isinstance(request.messages[-1], ToolMessage) or self._asked % 4:
            yield ReplyEnded(text=REPLY)
            return
        name = "look" if self._asked % 8 else "act"
        arguments = json.dumps({"x": self._asked})
        call = RequestedCall(provider_id=f"c{self._asked}", name=name, arguments=arguments)
        yield ReplyEnded(text="", calls=(call,), stop_reason="tool_calls")

    async def close(self) -> None:
        pass


class Soak:
    """Runs turns until there were enough, and prints what the process holds."""

    def __init__(self, options: argparse.Namespace, path: Path | None) -> None:
        self._options = options
        self._path = path
        self._agent: Agent[Any, Any] = Agent(EndlessModel(), name="soak", tools=[act, look])
        self._done = 0
        self._made = 0
        self._since = time.monotonic()
        self._first: tracemalloc.Snapshot | None = None

    async def run(self) -> None:
        async with Runtime(self._path) as runtime:
            await asyncio.gather(*(self._work(runtime) for _ in range(self._options.at_once)))

    async def _work(self, runtime: Runtime) -> None:
        while self._done < self._options.turns:
            self._made += 1
            name = f"s{self._made}"
            session = await runtime.session(name, agent=self._agent)
            for _ in range(self._options.turns_per_session):
                await session.turn(USER)
                self._done += 1
                if self._done % self._options.every == 0:
                    self._report()
            if not self._options.keep_sessions:
                await runtime.delete(name)

    def _report(self) -> None:
        gc.collect()
        now = time.monotonic()
        line: dict[str, object] = {
            "turns": self._done,
            "sessions": self._made,
            "rss_mb": round(_status("VmRSS") / 1024, 2),
            "threads": threading.active_count(),
            "threads_by_name": dict(_thread_names()),
            "files": len(os.listdir("/proc/self/fd")),
            "objects": len(gc.get_objects()),
            "store_mb": round(_size(self._path) / 1e6, 2),
            "turns_per_s": round(self._options.every / (now - self._since), 1),
        }
        if self._options.allocations:
            line["grew"] = self._grown()
        print(json.dumps(line), flush=True)
        self._since = time.monotonic()

    def _grown(self) -> list[str]:
        taken = tracemalloc.take_snapshot()
        if self._first is None:
            self._first = taken
            return []
        return [str(one) for one in taken.compare_to(self._first, "lineno")[:15]]


def _status(name: str) -> int:
    """A figure of /proc/self/status, in kB."""
    found = re.search(rf"^{name}:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _thread_names() -> Counter[str]:
    return Counter(re.sub(r"[-_ ]?\d+.*$", "", thread.name) for thread in threading.enumerate())


def _size(path: Path | None) -> int:
    if path is None:
        return 0
    return sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=500_000)
    parser.add_argument("--every", type=int, default=50_000)
    parser.add_argument("--store", choices=["durable", "memory"], default="durable")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--turns-per-session", type=int, default=50)
    parser.add_argument("--keep-sessions", action="store_true", help="delete none: memory per session")
    parser.add_argument("--allocations", action="store_true")
    options = parser.parse_args()
    if options.allocations:
        tracemalloc.start(1)
    with tempfile.TemporaryDirectory(prefix="standfast-soak-") as folder:
        path = None if options.store == "memory" else Path(folder) / "standfast.db"
        asyncio.run(Soak(options, path).run())


if __name__ == "__main__":
    main()
