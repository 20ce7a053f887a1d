"""What plugins and tools cost a turn, beside a turn without them. `python bench/plugins.py [--quick]`

Prints one JSON object a line: framework ("standfast" or "without"), workload, metric, value. Both are
measured in the same run, rounds alternating, because machines are noisy; compare ratios, not absolutes.

- `twenty_plugins`: twenty plugins with one hook each, of every kind that a plain turn asks, over SQLite.
- `tools_10000`: a turn with ten thousand tools in the catalog beside one with ten, nothing changed in
  between.
- `open_session`: making the plugins of a session, with twenty plugins and with none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from standfast import Agent, Plugin, Runtime, Session, hook
from standfast.model.capability import Capability, SideEffect
from standfast.providers.scripted import ScriptedModel
from standfast.tools.registered_tool import RegisteredTool

USER = "u" * 200
REPLY = "r" * 400
WARM_UP = 120


def report(framework: str, workload: str, metric: str, value: float) -> None:
    line = {"framework": framework, "workload": workload, "metric": metric, "value": round(value, 4)}
    print(json.dumps(line), flush=True)


# The plugins


async def _prompt(self: Any, ctx: Any) -> str:
    return "Answer briefly."


async def _messages(self: Any, ctx: Any, messages: Any) -> Any:
    return messages


async def _reply(self: Any, ctx: Any) -> Any:
    return ctx.response


async def _chunk(self: Any, ctx: Any) -> Any:
    return ctx.chunk


async def _nothing(self: Any, ctx: Any) -> None:
    return None


HOOKS = {
    "prompt_contributor": _prompt,
    "context_transform": _messages,
    "compactor": _nothing,
    "before_turn": _nothing,
    "checkpoint": _nothing,
    "after_turn": _nothing,
    "assistant_response": _reply,
    "assistant_stream": _chunk,
    "turn_finalized": _nothing,
    "turn_persisted": _nothing,
}


def one_hook(number: int) -> Plugin:
    """A plugin with one hook, the kinds in turn."""
    kind, function = list(HOOKS.items())[number % len(HOOKS)]

    methods = {kind: hook(kind)(_named(function, kind)), "id": f"plugin-{number}"}
    return type(f"Plugin{number}", (Plugin,), methods)()


def _named(function: Any, kind: str) -> Any:
    if kind == "context_transform":

        async def transform(self: Any, ctx: Any, messages: Any) -> Any:
            return await function(self, ctx, messages)

        return transform

    async def plain(self: Any, ctx: Any) -> Any:
        return await function(self, ctx)

    return plain


# Turns


async def timed(session: Session[str]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    await session.turn(USER)
    return time.perf_counter() - wall, time.process_time() - cpu


async def compare(workload: str, with_it: Agent[Any, str], without: Agent[Any, str], rounds: int) -> None:
    """Turns of two agents, one after the other, in two files."""
    with tempfile.TemporaryDirectory() as home:
        async with Runtime(Path(home) / "a.db") as one, Runtime(Path(home) / "b.db") as other:
            sessions = {
                "standfast": await one.session("s", agent=with_it),
                "without": await other.session("s", agent=without),
            }
            for session in sessions.values():
                for _ in range(WARM_UP):
                    await session.turn(USER)
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in sessions}
            for _ in range(rounds):
                for name, session in sessions.items():
                    found[name].append(await timed(session))
    for name, times in found.items():
        report(name, workload, "wall_ms", statistics.median(wall for wall, _ in times) * 1e3)
        report(name, workload, "cpu_ms", statistics.mean(cpu for _, cpu in times) * 1e3)


def model() -> ScriptedModel:
    return ScriptedModel([{"text": REPLY}] * 10_000, strict=False)


def tools(number: int) -> list[RegisteredTool]:
    def handle(context: Any) -> str:
        return context.name

    return [
        RegisteredTool.sync(
            Capability(
                name=f"tool_{index}",
                description=f"Does the thing number {index}.",
                input_schema={"type": "object", "properties": {"x": {"type": "integer"}}},
                side_effect=SideEffect.READ,
            ),
            handle,
        )
        for index in range(number)
    ]


async def measure_opening(rounds: int) -> None:
    for name, plugins in (("standfast", [one_hook(number) for number in range(20)]), ("without", [])):
        agent = Agent(model(), plugins=plugins)
        async with Runtime() as runtime:
            begin = time.perf_counter()
            for number in range(rounds):
                session = await runtime.session(f"s{number}", agent=agent)
                await session.plugins.installed()
            report(name, "open_session", "us", (time.perf_counter() - begin) / rounds * 1e6)


async def main(quick: bool) -> None:
    rounds = 100 if quick else 500
    plugins = [one_hook(number) for number in range(20)]
    await compare("twenty_plugins", Agent(model(), plugins=plugins), Agent(model()), rounds)
    many, few = Agent(model(), tools=tools(10_000)), Agent(model(), tools=tools(10))
    await compare("tools_10000", many, few, rounds)
    await measure_opening(rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    asyncio.run(main(parser.parse_args().quick))
